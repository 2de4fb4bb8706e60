//! Request frames of the API, and its text format.

use butterfly_api::{
    Action, Answer, Context, Envelope, Failure, Handler, decode,
    proto::{Messages, Response},
    text,
};

/// Looks at all of a request, refuses some.
struct Reader;

impl Handler for Reader {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        let all = format!("{action:?} {context:?}");
        if all.len() % 2 == 0 {
            Ok(Response::default())
        } else {
            Err(Failure::new("odd").with_help(all))
        }
    }
}

/// The first byte says whether bytes or text follow.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 2 {
        0 => frame(data),
        _ => words(&String::from_utf8_lossy(data)),
    }
}

fn frame(request: &[u8]) {
    let mut envelope = Envelope::new(Reader);
    let reply = envelope.answer(request);
    let Ok(message) = decode::<Messages>(request) else {
        // Without a key nobody looks into an envelope, and it is refused as one; what is around it
        // can be decoded.
        if without_envelopes(request)
            .is_some_and(|rest| rest.len() < request.len() && decode::<Messages>(&rest).is_ok())
        {
            return;
        }
        // The bare message of the contract, which is not a Messages.
        assert_eq!(
            reply,
            [0x08, 0x06, 0x12, 0x02, 0x08, 0x00],
            "not the answer to what cannot be decoded"
        );
        return;
    };
    let reply = decode::<Messages>(&reply).expect("a reply can be decoded");
    assert_eq!(reply.messages.len(), message.messages.len().max(1), "each message has one answer");
    // What is printed is read as the same message: a dump replays.
    let printed = text::print(&message);
    if let Ok(again) = text::parse::<Messages>(&printed) {
        assert_eq!(text::print(&again), printed);
    }
}

/// A message without its fields `encrypted` (number 2, of a length), if its fields are well formed.
fn without_envelopes(request: &[u8]) -> Option<Vec<u8>> {
    const ENVELOPE: u64 = 2 << 3 | 2;
    let (mut rest, mut kept) = (request, Vec::new());
    while !rest.is_empty() {
        let (tag, behind) = varint(rest)?;
        let (_, behind) = match tag & 7 {
            2 => varint(behind)
                .and_then(|(len, behind)| behind.split_at_checked(usize::try_from(len).ok()?)),
            0 => varint(behind).map(|(_, behind)| (&[][..], behind)),
            1 => behind.split_at_checked(8),
            5 => behind.split_at_checked(4),
            // A group has no length, and no such field is a group.
            _ => None,
        }?;
        if tag != ENVELOPE {
            kept.extend_from_slice(&rest[..rest.len() - behind.len()]);
        }
        rest = behind;
    }
    Some(kept)
}

/// The number at the beginning, and what is behind it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let (number, rest) = bytes.split_at(end + 1);
    Some((number.iter().rev().fold(0, |all, byte| all << 7 | u64::from(byte & 0x7f)), rest))
}

fn words(words: &str) {
    if let Ok(message) = text::parse::<Messages>(words) {
        let printed = text::print(&message);
        let again = text::parse::<Messages>(&printed).expect("what was printed can be read");
        assert_eq!(again, message);
    }
}
