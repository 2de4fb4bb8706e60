//! Text to tokens.

use std::fmt;

/// A place in a text: line and column in characters, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Word(String),
    /// An unsigned literal; a sign before it is a symbol.
    Integer(u64),
    /// One literal; adjacent ones are joined by the parser.
    Bytes(Vec<u8>),
    Symbol(char),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "\"{word}\""),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Bytes(_) => f.write_str("a string"),
            Self::Symbol(symbol) => write!(f, "\"{symbol}\""),
            Self::End => f.write_str("the end of the text"),
        }
    }
}

/// Mistake in a literal.
pub(super) type Complaint = String;

pub(super) struct Lexer<'a> {
    rest: &'a str,
    position: Position,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, position: Position { line: 1, column: 1 } }
    }

    /// The next token and where it starts; a complaint comes with the place of what it is about.
    pub(super) fn next(&mut self) -> Result<(Position, Token), (Position, Complaint)> {
        self.skip_blanks();
        let start = self.position;
        let token = match self.peek() {
            None => Ok(Token::End),
            Some(quote @ ('"' | '\'')) => self.string(quote),
            Some('0'..='9') => self.integer(),
            Some(first) if is_word(first) => Ok(Token::Word(self.take_while(is_word).to_owned())),
            Some(symbol) => {
                self.bump();
                Ok(Token::Symbol(symbol))
            }
        };
        match token {
            Ok(token) => Ok((start, token)),
            Err(complaint) => Err((start, complaint)),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let first = characters.next()?;
        self.rest = characters.as_str();
        if first == '\n' {
            self.position = Position { line: self.position.line + 1, column: 1 };
        } else {
            self.position.column += 1;
        }
        Some(first)
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let all = self.rest;
        while self.peek().is_some_and(&wanted) {
            self.bump();
        }
        // Not by comparing the rest: that is the whole text, once per token.
        all.get(..all.len() - self.rest.len()).unwrap_or(all)
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|c| c.is_ascii_whitespace() || c == '\x0b');
            if self.peek() != Some('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    /// Decimal, `0x` hexadecimal or, after a leading zero, octal.
    fn integer(&mut self) -> Result<Token, Complaint> {
        let literal = self.take_while(|c| is_word(c) || c == '.');
        let digits = literal.to_ascii_lowercase();
        let value = if let Some(hex) = digits.strip_prefix("0x") {
            u64::from_str_radix(hex, 16)
        } else if digits.len() > 1 && digits.starts_with('0') {
            u64::from_str_radix(&digits, 8)
        } else {
            digits.parse()
        };
        value.map(Token::Integer).map_err(|_| format!("{literal} is not an integer of 64 bits"))
    }

    fn string(&mut self, quote: char) -> Result<Token, Complaint> {
        self.bump();
        let mut bytes = Vec::new();
        loop {
            match self.bump() {
                None | Some('\n') => return Err("the string has no end on its line".into()),
                Some('\\') => self.escape(&mut bytes)?,
                Some(c) if c == quote => return Ok(Token::Bytes(bytes)),
                Some(c) => push(&mut bytes, c),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), Complaint> {
        let first = self.bump().ok_or("the string has no end")?;
        match first {
            'a' => bytes.push(7),
            'b' => bytes.push(8),
            't' => bytes.push(b'\t'),
            'n' => bytes.push(b'\n'),
            'v' => bytes.push(11),
            'f' => bytes.push(12),
            'r' => bytes.push(b'\r'),
            '\\' | '\'' | '"' | '?' => push(bytes, first),
            '0'..='7' => {
                let first = first.to_digit(8).unwrap_or_default();
                let (value, _) = self.digits(8, 2, first);
                bytes.push(
                    u8::try_from(value).map_err(|_| format!("\\{value:o} is more than a byte"))?,
                );
            }
            'x' | 'X' => match self.digits(16, 2, 0) {
                (_, 0) => return Err("\\x needs one or two hexadecimal digits".into()),
                // Two hexadecimal digits are a byte.
                (value, _) => bytes.push(value as u8),
            },
            'u' | 'U' => {
                let wanted = if first == 'u' { 4 } else { 8 };
                let (value, found) = self.digits(16, wanted, 0);
                let character = char::from_u32(value).filter(|_| found == wanted);
                let complaint =
                    || format!("\\{first} needs {wanted} hexadecimal digits of a character");
                push(bytes, character.ok_or_else(complaint)?);
            }
            other => return Err(format!("\\{other} is no escape")),
        }
        Ok(())
    }

    /// Appends at most `most` digits to `value`; how many there were comes second.
    fn digits(&mut self, radix: u32, most: usize, mut value: u32) -> (u32, usize) {
        for found in 0..most {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(radix)) else {
                return (value, found);
            };
            self.bump();
            value = value * radix + digit;
        }
        (value, most)
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn push(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
