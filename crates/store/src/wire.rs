//! Frames between daemon and writer: a length of four bytes, then the content.

use crate::record::{Commit, Contents, Edit, Key, Sort};
use std::io::{self, Read, Write};

/// Longest content. A store of a host with 100,000 vnics is a tenth of it.
const LONGEST: usize = 256 << 20;

/// A message of the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The store is open and holds this. It replaces a damaged one, which has this name now.
    Opened(Contents, Option<String>),
    /// It cannot be opened; the writer tries again.
    Closed(String),
    /// The commit with this number is on the disk.
    Done(u64),
    /// The commit with this number failed.
    Failed(u64, String),
    /// The store was copied, or why not.
    Copied(Result<(), String>),
}

/// A message of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Edits to make.
    Commit(Commit),
    /// A directory that gets a copy of the file as it is after the last commit.
    Copy(Vec<u8>),
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a frame of the store is bad: {what}"))
}

/// Writes a frame.
pub(crate) fn send(mut to: impl Write, content: &[u8]) -> io::Result<()> {
    if content.len() > LONGEST {
        return Err(bad("it is too long"));
    }
    let mut frame = (content.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(content);
    to.write_all(&frame)
}

/// Reads a frame; none at the end of the stream.
pub(crate) fn receive(mut from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(bad("it is too long"));
    }
    // It grows with what arrives.
    let mut content = Vec::new();
    if from.take(length as u64).read_to_end(&mut content)? != length {
        return Ok(None);
    }
    Ok(Some(content))
}

#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn layout(&mut self, layout: u32) -> &mut Self {
        self.number(layout.into())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| bad("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| bad("it ends early"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn layout(&mut self) -> io::Result<u32> {
        u32::try_from(self.number()?).map_err(|_| bad("a layout"))
    }

    fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| bad("a length"))?;
        self.take(length)
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| bad("a text"))
    }

    fn key(&mut self) -> io::Result<Key> {
        let sort = Sort::numbered(self.byte()?).ok_or_else(|| bad("a sort"))?;
        Ok(Key { sort, name: self.text()? })
    }
}

pub(crate) fn of_order(order: &Order) -> Vec<u8> {
    let mut out = Out::default();
    match order {
        Order::Commit(commit) => of_commit(out.byte(0), commit),
        Order::Copy(directory) => drop(out.byte(1).bytes(directory)),
    }
    out.0
}

fn of_commit(out: &mut Out, commit: &Commit) {
    out.number(commit.sequence).number(commit.next_birth);
    out.layout(commit.layout).byte(u8::from(commit.whole));
    out.number(commit.edits.len() as u64);
    for Edit { key, value } in &commit.edits {
        out.byte(key.sort.number()).bytes(key.name.as_bytes());
        out.byte(u8::from(value.is_some())).bytes(value.as_deref().unwrap_or_default());
    }
}

pub(crate) fn order(content: &[u8]) -> io::Result<Order> {
    let mut from = In(content);
    match from.byte()? {
        0 => commit(&mut from).map(Order::Commit),
        1 => Ok(Order::Copy(from.bytes()?.to_vec())),
        _ => Err(bad("an order")),
    }
}

fn commit(from: &mut In<'_>) -> io::Result<Commit> {
    let (sequence, next_birth) = (from.number()?, from.number()?);
    let (layout, whole) = (from.layout()?, from.byte()? != 0);
    let mut edits = Vec::new();
    for _ in 0..from.number()? {
        let (key, there) = (from.key()?, from.byte()? != 0);
        let value = from.bytes()?;
        edits.push(Edit { key, value: there.then(|| value.to_vec()) });
    }
    Ok(Commit { sequence, next_birth, layout, whole, edits })
}

pub(crate) fn of_word(word: &Word) -> Vec<u8> {
    let mut out = Out::default();
    match word {
        Word::Opened(contents, aside) => {
            out.byte(0).number(contents.sequence).number(contents.next_birth);
            out.layout(contents.layout);
            out.bytes(aside.as_deref().unwrap_or_default().as_bytes());
            out.number(contents.records.len() as u64);
            for (key, value) in &contents.records {
                out.byte(key.sort.number()).bytes(key.name.as_bytes()).bytes(value);
            }
        }
        Word::Closed(why) => drop(out.byte(1).bytes(why.as_bytes())),
        Word::Done(sequence) => drop(out.byte(2).number(*sequence)),
        Word::Failed(sequence, why) => drop(out.byte(3).number(*sequence).bytes(why.as_bytes())),
        Word::Copied(outcome) => {
            let why = outcome.as_ref().err().map(String::as_bytes).unwrap_or_default();
            out.byte(4).byte(u8::from(outcome.is_ok())).bytes(why);
        }
    }
    out.0
}

pub(crate) fn word(content: &[u8]) -> io::Result<Word> {
    let mut from = In(content);
    Ok(match from.byte()? {
        0 => {
            let (sequence, next_birth) = (from.number()?, from.number()?);
            let layout = from.layout()?;
            let aside = Some(from.text()?).filter(|name| !name.is_empty());
            let mut records = Vec::new();
            for _ in 0..from.number()? {
                let key = from.key()?;
                records.push((key, from.bytes()?.to_vec()));
            }
            Word::Opened(Contents { sequence, next_birth, layout, records }, aside)
        }
        1 => Word::Closed(from.text()?),
        2 => Word::Done(from.number()?),
        3 => Word::Failed(from.number()?, from.text()?),
        4 => {
            let (done, why) = (from.byte()? != 0, from.text()?);
            Word::Copied(if done { Ok(()) } else { Err(why) })
        }
        _ => return Err(bad("a word")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { sort: Sort::Group, name: name.to_owned() }
    }

    #[test]
    fn what_is_sent_is_received() {
        let edits = vec![
            Edit { key: key("a"), value: Some(vec![1, 2]) },
            Edit { key: key("ä"), value: None },
        ];
        let sent = Commit { sequence: 7, next_birth: 9, layout: 3, whole: true, edits };
        for sent in [Order::Commit(sent), Order::Copy(b"/x\xff".to_vec())] {
            let mut stream = Vec::new();
            send(&mut stream, &of_order(&sent)).unwrap();
            assert_eq!(order(&receive(&stream[..]).unwrap().unwrap()).unwrap(), sent);
            assert_eq!(receive(&stream[..stream.len() - 1]).unwrap(), None, "half a frame");
        }
        let records = vec![(key("x"), vec![3])];
        let contents = Contents { sequence: 1, next_birth: 2, layout: 4, records };
        for sent in [
            Word::Opened(contents.clone(), None),
            Word::Opened(contents, Some("aside".into())),
            Word::Closed("why".into()),
            Word::Done(3),
            Word::Failed(4, "full".into()),
            Word::Copied(Ok(())),
            Word::Copied(Err("full".into())),
        ] {
            assert_eq!(word(&of_word(&sent)).unwrap(), sent);
        }
    }

    #[test]
    fn no_frame_makes_it_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let length = random.usize(..40);
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            let _ = (word(&bytes), order(&bytes));
        }
        assert!(receive(&[255; 8][..]).is_err(), "a length without end");
    }
}
