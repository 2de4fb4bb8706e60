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
        if all.len() % 2 == 0 { Ok(Response::default()) } else { Err(Failure::new("odd").with_help(all)) }
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
        // The bare message of the contract, which is not a Messages.
        assert_eq!(reply, [0x08, 0x06, 0x12, 0x02, 0x08, 0x00], "not the answer to what cannot be decoded");
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

fn words(words: &str) {
    if let Ok(message) = text::parse::<Messages>(words) {
        let printed = text::print(&message);
        let again = text::parse::<Messages>(&printed).expect("what was printed can be read");
        assert_eq!(again, message);
    }
}
