//! Greeting and metadata, both ways.

use super::refusal::Refusal;

/// Our greeting: ZMTP 3.1, the mechanism NULL, not as its server.
pub(super) const GREETING: &[u8; 64] =
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Our metadata, as a frame: a ROUTER without a name.
pub(super) const READY: &[u8] =
    b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";

/// The greeting of a peer, as far as it came.
#[derive(Debug, Default)]
pub(super) struct Greeting(Vec<u8>);

impl Greeting {
    /// Takes what belongs to the greeting: how many bytes, and whether it is whole.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<(usize, bool), Refusal> {
        let taken = input.len().min(GREETING.len() - self.0.len());
        self.0.extend_from_slice(input.get(..taken).unwrap_or_default());
        // Peers of older versions send no more than this and wait: the bytes so far identify them.
        self.check()?;
        Ok((taken, self.0.len() == GREETING.len()))
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.0.first().is_some_and(|byte| *byte != 0xff) {
            return Err(Refusal::NotZmtp);
        }
        if self.0.get(9).is_some_and(|byte| byte & 1 == 0) {
            return Err(Refusal::Version("1.0"));
        }
        match self.0.get(10) {
            Some(0) => return Err(Refusal::Version("1.0")),
            Some(1 | 2) => return Err(Refusal::Version("2.0")),
            _ => {}
        }
        let Some(mechanism) = self.0.get(12..32) else { return Ok(()) };
        let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
        if name != b"NULL" {
            return Err(Refusal::Mechanism(printable(name)));
        }
        Ok(())
    }
}

/// Refuses metadata of a peer that the API does not talk with.
pub(super) fn check_ready(command: &[u8]) -> Result<(), Refusal> {
    let Some(mut properties) = command.strip_prefix(b"\x05READY") else {
        return Err(Refusal::Handshake(match command.starts_with(b"\x05ERROR") {
            true => "it ended it with an error",
            false => "its first command is not READY",
        }));
    };
    while !properties.is_empty() {
        let (name, value, rest) =
            property(properties).ok_or(Refusal::Handshake("its metadata end too early"))?;
        if name.eq_ignore_ascii_case(b"Socket-Type")
            && !matches!(value, b"REQ" | b"DEALER" | b"ROUTER")
        {
            return Err(Refusal::SocketType(printable(value)));
        }
        properties = rest;
    }
    Ok(())
}

/// The first property, its value, and what is behind it.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) =
        rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((name, value, rest))
}

/// Returns a peer's name for something, short and fit for a log.
fn printable(name: &[u8]) -> String {
    name.iter()
        .take(20)
        .map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' })
        .collect()
}
