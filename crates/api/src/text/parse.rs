//! Text to message.

use super::lexer::{Lexer, Position, Token};
use protobuf::{
    MessageDyn, MessageFull,
    reflect::{
        EnumDescriptor, FieldDescriptor, MessageDescriptor, ReflectValueBox, ReflectValueRef,
        RuntimeFieldType, RuntimeType,
    },
};

/// Depth to which messages may nest: far more than ours do.
const MAX_DEPTH: usize = 64;

/// A text that is not the message it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub struct ParseError {
    /// Place where the reader stumbled; of a missing field, where the message that lacks it begins.
    pub position: Position,
    /// Mistake at that place.
    pub message: String,
    /// The field that does not exist, if that is the mistake.
    pub unknown: Option<UnknownField>,
}

/// A field that a message does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// Name of the field.
    pub name: String,
    /// Names of the fields that the message has.
    pub known: Vec<String>,
}

/// Reads a message in the text format.
///
/// Takes what the C++ library takes:
///
/// - comments from `#` to the end of the line,
/// - `;` and `,` between fields,
/// - `<>` for `{}`, and lists in `[]`,
/// - adjacent strings as one,
/// - enum values by name or number.
///
/// Refuses unknown fields, a second value for a field that is not repeated, and missing required
/// fields.
pub fn parse<M: MessageFull>(text: &str) -> Result<M, ParseError> {
    let mut parser = Parser::new(text)?;
    let mut message = M::new();
    parser.fields(&mut message, &M::descriptor(), &Token::End)?;
    parser.check_required(&message, &M::descriptor(), parser.position)?;
    Ok(message)
}

fn error_at(position: Position, message: impl Into<String>) -> ParseError {
    ParseError { position, message: message.into(), unknown: None }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token,
    position: Position,
    /// Place of the field that is read, or of the element of its list.
    begun: Position,
    /// Names of the messages around it.
    path: Vec<String>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, ParseError> {
        let start = Position { line: 1, column: 1 };
        let mut parser = Self {
            lexer: Lexer::new(text),
            token: Token::End,
            position: start,
            begun: start,
            path: Vec::new(),
        };
        parser.advance()?;
        Ok(parser)
    }

    fn error(&self, message: impl Into<String>) -> ParseError {
        error_at(self.position, message)
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T, ParseError> {
        Err(self.error(format!("{wanted} is expected, not {}", self.token)))
    }

    /// Takes the current token and reads the next.
    fn advance(&mut self) -> Result<Token, ParseError> {
        let (position, next) =
            self.lexer.next().map_err(|(position, message)| error_at(position, message))?;
        self.position = position;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn takes(&mut self, symbol: char) -> Result<bool, ParseError> {
        let found = self.token == Token::Symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Fields up to `end`, which is taken.
    fn fields(
        &mut self,
        message: &mut dyn MessageDyn,
        descriptor: &MessageDescriptor,
        end: &Token,
    ) -> Result<(), ParseError> {
        while self.token != *end {
            let Token::Word(name) = &self.token else {
                return self.unexpected("the name of a field");
            };
            let Some(field) = descriptor.field_by_name(name) else {
                return Err(self.unknown(name, descriptor));
            };
            if field.is_singular() && field.has_field(message) {
                return Err(self.error(format!("{name} is set a second time")));
            }
            self.begun = self.position;
            self.advance()?;
            self.field(message, &field)?;
            if !self.takes(',')? {
                self.takes(';')?;
            }
        }
        if self.token != Token::End {
            self.advance()?;
        }
        Ok(())
    }

    fn field(
        &mut self,
        message: &mut dyn MessageDyn,
        field: &FieldDescriptor,
    ) -> Result<(), ParseError> {
        let (kind, repeated) = match field.runtime_field_type() {
            RuntimeFieldType::Singular(kind) => (kind, false),
            RuntimeFieldType::Repeated(kind) => (kind, true),
            RuntimeFieldType::Map(..) => {
                return Err(self.error(format!("{} cannot be read from text", field.name())));
            }
        };
        // The colon may be left out before a message only.
        if !self.takes(':')? && !matches!(kind, RuntimeType::Message(_)) {
            return self.unexpected("\":\"");
        }
        if !repeated {
            let value = self.value(&kind, || field.name().to_owned())?;
            field.set_singular_field(message, value);
            return Ok(());
        }
        if self.takes('[')? {
            let mut more = !self.takes(']')?;
            while more {
                self.begun = self.position;
                self.one_of_many(message, field, &kind)?;
                more = self.takes(',')?;
                if !more && !self.takes(']')? {
                    return self.unexpected("\",\" or \"]\"");
                }
            }
        } else {
            self.one_of_many(message, field, &kind)?;
        }
        Ok(())
    }

    fn one_of_many(
        &mut self,
        message: &mut dyn MessageDyn,
        field: &FieldDescriptor,
        kind: &RuntimeType,
    ) -> Result<(), ParseError> {
        let index = field.get_repeated(message).len();
        let value = self.value(kind, || format!("{}[{index}]", field.name()))?;
        field.mut_repeated(message).push(value);
        Ok(())
    }

    /// Reads a value; a message is called `name` if something in it is missing.
    fn value(
        &mut self,
        kind: &RuntimeType,
        name: impl FnOnce() -> String,
    ) -> Result<ReflectValueBox, ParseError> {
        Ok(match kind {
            RuntimeType::Message(descriptor) => self.message(descriptor, name())?,
            RuntimeType::Enum(descriptor) => self.enumeration(descriptor)?,
            RuntimeType::String => {
                let start = self.position;
                let text = String::from_utf8(self.bytes()?);
                ReflectValueBox::String(
                    text.map_err(|_| error_at(start, "the string is not UTF-8"))?,
                )
            }
            RuntimeType::VecU8 => ReflectValueBox::Bytes(self.bytes()?),
            RuntimeType::Bool => ReflectValueBox::Bool(self.boolean()?),
            RuntimeType::I32 => ReflectValueBox::I32(self.integer("32 bits, signed")?),
            RuntimeType::I64 => ReflectValueBox::I64(self.integer("64 bits, signed")?),
            RuntimeType::U32 => ReflectValueBox::U32(self.integer("32 bits, not negative")?),
            RuntimeType::U64 => ReflectValueBox::U64(self.integer("64 bits, not negative")?),
            RuntimeType::F32 | RuntimeType::F64 => {
                return Err(self.error("floating-point fields cannot be read from text"));
            }
        })
    }

    fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        name: String,
    ) -> Result<ReflectValueBox, ParseError> {
        let begun = self.begun;
        let end = match self.token {
            Token::Symbol('{') => Token::Symbol('}'),
            Token::Symbol('<') => Token::Symbol('>'),
            _ => return self.unexpected("\"{\""),
        };
        if self.path.len() == MAX_DEPTH {
            return Err(self.error(format!("messages are nested more than {MAX_DEPTH} deep")));
        }
        self.advance()?;
        self.path.push(name);
        let mut message = descriptor.new_instance();
        self.fields(&mut *message, descriptor, &end)?;
        self.check_required(&*message, descriptor, begun)?;
        self.path.pop();
        Ok(ReflectValueBox::Message(message))
    }

    /// Fails if a required field of a message that was read is not set. The messages in it were
    /// checked before.
    fn check_required(
        &self,
        message: &dyn MessageDyn,
        descriptor: &MessageDescriptor,
        begun: Position,
    ) -> Result<(), ParseError> {
        let mut required = descriptor.fields().filter(FieldDescriptor::is_required);
        let Some(field) = required.find(|field| !field.has_field(message)) else { return Ok(()) };
        let mut path = self.path.clone();
        path.push(field.name().to_owned());
        let id = descriptor.field_by_name("id").and_then(|id| id.get_singular(message));
        let whose = match id {
            Some(ReflectValueRef::String(id)) if !id.is_empty() => format!(" (of id {id:?})"),
            _ => String::new(),
        };
        let message = format!("required field {} is missing{whose}", path.join("."));
        Err(error_at(begun, message))
    }

    fn unknown(&self, name: &str, descriptor: &MessageDescriptor) -> ParseError {
        let known = descriptor.fields().map(|field| field.name().to_owned()).collect();
        ParseError {
            unknown: Some(UnknownField { name: name.to_owned(), known }),
            ..self.error(format!("{} has no field {name}", descriptor.name()))
        }
    }

    fn enumeration(&mut self, descriptor: &EnumDescriptor) -> Result<ReflectValueBox, ParseError> {
        let value = match &self.token {
            Token::Word(name) => descriptor.value_by_name(name),
            Token::Integer(number) => {
                i32::try_from(*number).ok().and_then(|number| descriptor.value_by_number(number))
            }
            _ => None,
        };
        let Some(value) = value else {
            let names: Vec<_> = descriptor.values().map(|value| value.name().to_owned()).collect();
            return self.unexpected(&format!("one of {}", names.join(", ")));
        };
        self.advance()?;
        Ok(ReflectValueBox::Enum(descriptor.clone(), value.value()))
    }

    fn boolean(&mut self) -> Result<bool, ParseError> {
        let value = match &self.token {
            Token::Word(word) if matches!(word.as_str(), "true" | "True" | "t") => true,
            Token::Word(word) if matches!(word.as_str(), "false" | "False" | "f") => false,
            Token::Integer(0) => false,
            Token::Integer(1) => true,
            _ => return self.unexpected("true or false"),
        };
        self.advance()?;
        Ok(value)
    }

    fn integer<I: TryFrom<i128>>(&mut self, wanted: &str) -> Result<I, ParseError> {
        let negative = self.takes('-')?;
        let Token::Integer(value) = self.token else {
            return self.unexpected(&format!("an integer of {wanted}"));
        };
        let value = i128::from(value) * if negative { -1 } else { 1 };
        let converted = I::try_from(value)
            .map_err(|_| self.error(format!("{value} is not an integer of {wanted}")))?;
        self.advance()?;
        Ok(converted)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, ParseError> {
        let Token::Bytes(mut bytes) = self.token.clone() else {
            return self.unexpected("a string");
        };
        self.advance()?;
        while let Token::Bytes(more) = &self.token {
            bytes.extend_from_slice(more);
            self.advance()?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::{Messages, Nic, Rule, Sg, nic::Type},
        text::print,
    };

    fn refused(text: &str) -> String {
        parse::<Nic>(text).expect_err(text).to_string()
    }

    #[test]
    fn what_is_printed_reads_back() {
        let text = "\
messages {
  revision: 6
  message_0 {
    request {
      nic_add {
        id: \"a \\303\\251\\n\\'\\\"\\\\ \\000\"
        mac: \"42:42:42:42:42:01\"
        vni: 16777215
        ip: \"10.0.0.1\"
        ip: \"::1\"
        bypass_filtering: true
        type: VHOST_USER_CLIENT
      }
    }
    message_id: \"1\"
  }
}
messages {
  revision: 6
  message_0 {
    request {
      sg_add {
        id: \"sg\"
        rule {
          direction: OUTBOUND
          protocol: -1
          cidr {
            address: \"0.0.0.0\"
            mask_size: 0
          }
        }
      }
    }
  }
}
";
        assert_eq!(print(&parse::<Messages>(text).unwrap()), text);
    }

    #[test]
    fn the_lenient_forms_of_the_format_are_read() {
        let plain = parse::<Sg>(
            r#"id: "ab" member: "x" member: "y" rule { direction: OUTBOUND protocol: 8 }"#,
        );
        for text in [
            "id: 'a' \"b\" # a comment\n member: [\"x\", 'y']; rule: < direction: 1, protocol: 010 >",
            "id:\"\\x61\\142\",member:\"\\u0078\"member:\"\\U00000079\"rule{direction:OUTBOUND protocol:0x8}",
            "# first\n\n id: \"ab\" member: [] member: [\"x\"] member: \"y\" rule: [{direction: OUTBOUND; protocol: 8}]",
        ] {
            assert_eq!(parse::<Sg>(text), plain, "{text}");
        }
        let nic = |flag: &str| {
            parse::<Nic>(&format!("id: '' mac: '' vni: 0 ip_anti_spoof: {flag}")).unwrap()
        };
        for (words, value) in
            [(["true", "True", "t", "1"], true), (["false", "False", "f", "0"], false)]
        {
            for word in words {
                assert_eq!(nic(word).ip_anti_spoof, Some(value), "{word}");
            }
        }
    }

    #[test]
    fn refusals_say_where_and_why() {
        for (text, expected) in [
            ("id: \"x\" mac: \"m\"", "1:17: required field vni is missing (of id \"x\")"),
            ("id: \"x\"\nid: \"y\"", "2:1: id is set a second time"),
            ("identity: \"x\"", "1:1: Nic has no field identity"),
            ("id \"x\"", "1:4: \":\" is expected, not a string"),
            ("id: x", "1:5: a string is expected, not \"x\""),
            ("id: \"x", "1:5: the string has no end on its line"),
            ("id: \"\\q\"", "1:5: \\q is no escape"),
            ("id: \"\\400\"", "1:5: \\400 is more than a byte"),
            ("id: \"\\x\"", "1:5: \\x needs one or two hexadecimal digits"),
            ("id: \"\\ud800\"", "1:5: \\u needs 4 hexadecimal digits of a character"),
            ("id: \"\\377\"", "1:5: the string is not UTF-8"),
            ("vni: -1", "1:7: -1 is not an integer of 32 bits, not negative"),
            ("vni: 4294967296", "1:6: 4294967296 is not an integer of 32 bits, not negative"),
            ("vni: 1.5", "1:6: 1.5 is not an integer of 64 bits"),
            ("vni: 08", "1:6: 08 is not an integer of 64 bits"),
            ("vni: 99999999999999999999", "1:6: 99999999999999999999 is not an integer of 64 bits"),
            (
                "vni: ",
                "1:6: an integer of 32 bits, not negative is expected, not the end of the text",
            ),
            (
                "type: VHOST",
                "1:7: one of VHOST_USER_SERVER, TAP, BENCH, VHOST_USER_CLIENT is expected, not \"VHOST\"",
            ),
            ("bypass_filtering: yes", "1:19: true or false is expected, not \"yes\""),
            ("ip: [\"a\" \"b\"; \"c\"]", "1:13: \",\" or \"]\" is expected, not \";\""),
            ("}", "1:1: the name of a field is expected, not \"}\""),
        ] {
            assert_eq!(refused(text), expected, "{text}");
        }
    }

    #[test]
    fn a_missing_field_has_a_path_and_a_place() {
        let text = "messages { revision: 1 } messages {\n revision: 1 message_0 { request {\n  nic_add { id: \"x\" mac: \"m\" } } } }";
        let field = "messages[1].message_0.request.nic_add.vni";
        assert_eq!(
            parse::<Messages>(text).unwrap_err().to_string(),
            format!("3:3: required field {field} is missing (of id \"x\")")
        );
        assert_eq!(
            parse::<Messages>("messages: [{ revision: 1 }, { }]").unwrap_err().to_string(),
            "1:29: required field messages[1].revision is missing"
        );
    }

    #[test]
    fn an_unknown_field_comes_with_those_there_are() {
        let error = parse::<Messages>("message { }").unwrap_err();
        let unknown = error.unknown.unwrap();
        assert_eq!(unknown.name, "message");
        assert!(unknown.known.iter().any(|name| name == "messages"), "{unknown:?}");
        assert_eq!(parse::<Messages>("messages").unwrap_err().unknown, None);
    }

    #[test]
    fn an_unclosed_message_is_refused() {
        assert_eq!(
            parse::<Messages>("messages { revision: 1").unwrap_err().to_string(),
            "1:23: the name of a field is expected, not the end of the text"
        );
    }

    #[test]
    fn protocols_may_be_negative() {
        assert_eq!(parse::<Rule>("direction: INBOUND protocol: -1").unwrap().protocol(), -1);
        assert_eq!(
            parse::<Nic>("id: '' mac: '' vni: 0 type: 100").unwrap().type_(),
            Type::VHOST_USER_CLIENT
        );
    }

    proptest::proptest! {
        /// The reader ends with a message or a place, for any text.
        #[test]
        fn no_text_harms(text in "(messages|revision|id|:|\\{|\\}|<|\"|'|\\[|\\]|,|-|[0-9]+|\\\\x?| |#|\n|\\PC){0,40}") {
            if let Ok(messages) = parse::<Messages>(&text) {
                assert_eq!(parse::<Messages>(&print(&messages)), Ok(messages));
            }
        }
    }
}
