//! The rows of the protocol's table that are about encryption, in both forms.

use super::{tests::Recorder, *};
use crate::{
    MAX_FRAME,
    client::decode_reply,
    crypt::{Cipher, Key, ReplyTo},
    proto::Encrypted,
};
use std::cell::RefCell;

fn key() -> Key {
    Key::new([7; 32])
}

fn locked(legacy: bool) -> Envelope<Recorder> {
    Envelope::new(Recorder(Vec::new())).encrypted(Gate::new(key(), legacy).unwrap())
}

fn bytes(messages: &str) -> Vec<u8> {
    text::parse::<Messages>(messages).unwrap().write_to_bytes().unwrap()
}

/// A reply as a client reads it, on one line.
fn line(reply: &[u8]) -> String {
    text::print(&decode_reply(reply).unwrap()).split_whitespace().collect::<Vec<_>>().join(" ")
}

const LIST: &str = "messages { revision: 6 message_0 { request { nic_list: true } } }";
const REJECTED: &str = "messages { revision: 6 error { code: REJECTED } }";
const UNREADABLE: &str = "encrypted { error { code: REJECTED } }";
const UNSUPPORTED: &str = "encrypted { error { code: NOT_SUPPORTED } }";

fn listed(counter: u64) -> String {
    format!(
        "messages {{ revision: 6 message_0 {{ response {{ status {{ status: true }} nic_list: \"{counter}\" }} }} }}"
    )
}

/// Returns the reply to `content` as a client with `key` reads it, and the last frame that it sent.
fn exchange(
    envelope: &mut Envelope<Recorder>,
    key: Key,
    legacy: bool,
    content: &[u8],
) -> (Result<String, String>, Vec<u8>) {
    let envelope = RefCell::new(envelope);
    let mut sent = Vec::new();
    let reply = Cipher::new(key, legacy).exchange(content, true, |request| {
        sent = request.to_vec();
        Ok(envelope.borrow_mut().answer(request))
    });
    (reply.map(|reply| line(&reply)).map_err(|error| error.to_string()), sent)
}

#[test]
fn what_is_not_under_the_key_is_not_carried_out() {
    let (_, foreign) = exchange(&mut locked(true), key(), true, &bytes(LIST));
    let foreign = &decode::<Messages>(&foreign).unwrap().encrypted.aes256cbc_sha512().to_vec();
    let encrypted = |field: &str, content: &[u8]| {
        let mut encrypted = Encrypted::new();
        match field {
            "sealed" => encrypted.xchacha20_poly1305 = Some(content.to_vec()),
            _ => encrypted.aes256cbc_sha512 = Some(content.to_vec()),
        }
        Messages { encrypted: MessageField::some(encrypted), ..Default::default() }
            .write_to_bytes()
            .unwrap()
    };
    for (situation, request, reply) in [
        ("clear", bytes(LIST), REJECTED),
        ("nothing at all", vec![], REJECTED),
        ("encrypted, without content", bytes("encrypted { }"), UNSUPPORTED),
        ("that, with a clear part", bytes(&format!("encrypted {{ }} {LIST}")), UNSUPPORTED),
        ("an error as request", bytes("encrypted { error { code: REJECTED } }"), UNSUPPORTED),
        ("legacy: empty", encrypted("legacy", b""), UNREADABLE),
        ("legacy: noise", encrypted("legacy", &[5; 160]), UNREADABLE),
        ("legacy: cut", encrypted("legacy", &foreign[..foreign.len() - 16]), UNREADABLE),
        ("sealed: empty", encrypted("sealed", b""), UNREADABLE),
        ("sealed: noise", encrypted("sealed", &[5; 160]), UNREADABLE),
        (
            "sealed: noise, and something legacy that is good",
            {
                let mut both: Messages = decode(&encrypted("sealed", &[5; 160])).unwrap();
                both.encrypted.as_mut().unwrap().aes256cbc_sha512 = Some(foreign.clone());
                both.write_to_bytes().unwrap()
            },
            UNREADABLE,
        ),
        ("undecodable", vec![0xff], "messages { revision: 6 error { code: PARSE_ERROR } }"),
    ] {
        let mut envelope = locked(true);
        assert_eq!(line(&envelope.answer(&request)), reply, "{situation}");
        assert_eq!(envelope.handler().0, [""; 0], "{situation}: nothing is carried out");
        assert_eq!(envelope.request_counter, u64::from(situation != "undecodable"), "{situation}");
    }
}

#[test]
fn what_is_under_the_key_is_answered_under_it() {
    let failed = "messages { revision: 6 message_0 { response { status { status: false error { description: \"not n\" help: \"because\" } } } } }";
    let parse_error = "messages { revision: 6 error { code: PARSE_ERROR } }";
    for legacy in [true, false] {
        for (situation, content, reply) in [
            ("good", bytes(LIST), listed(2)),
            (
                "a failure",
                bytes("messages { revision: 6 message_0 { request { nic_del: \"n\" } } }"),
                failed.to_owned(),
            ),
            ("nothing", vec![], REJECTED.to_owned()),
            (
                "encrypted inside encrypted",
                bytes("encrypted { aes256cbc_sha512: \"x\" }"),
                REJECTED.to_owned(),
            ),
            (
                "encrypted inside encrypted, of our own",
                bytes("encrypted { xchacha20_poly1305: \"x\" }"),
                REJECTED.to_owned(),
            ),
            ("undecodable", vec![0xff], parse_error.to_owned()),
            (
                "a defect",
                bytes("messages { revision: 6 message_0 { request { app_quit: true } } }"),
                "messages { revision: 6 error { code: INTERNAL_ERROR } }".to_owned(),
            ),
        ] {
            let (got, _) = exchange(&mut locked(true), key(), legacy, &content);
            assert_eq!(got.unwrap(), reply, "legacy {legacy}: {situation}");
        }
    }
}

/// An encrypted request counts twice, in both forms; asking for the epoch does not count.
#[test]
fn requests_are_counted() {
    for legacy in [true, false] {
        let mut envelope = locked(true);
        for count in [2, 4, 6] {
            assert_eq!(
                exchange(&mut envelope, key(), legacy, &bytes(LIST)).0.unwrap(),
                listed(count),
                "legacy {legacy}"
            );
        }
        assert_eq!(
            exchange(&mut envelope, Key::new([8; 32]), legacy, &bytes(LIST)).0.unwrap_err(),
            "encrypted message error"
        );
        assert_eq!(
            exchange(&mut envelope, key(), legacy, &bytes(LIST)).0.unwrap(),
            listed(9),
            "one that failed counts once"
        );
    }
}

#[test]
fn clear_content_beside_encrypted_is_ignored() {
    for legacy in [true, false] {
        let mut envelope = locked(true);
        let both = RefCell::new(&mut envelope);
        let reply = Cipher::new(key(), legacy).exchange(&bytes(LIST), true, |request| {
            let mut request: Messages = decode(request).unwrap();
            request.messages = text::parse::<Messages>(
                "messages { revision: 6 message_0 { request { sg_list: true } } }",
            )
            .unwrap()
            .messages;
            Ok(both.borrow_mut().answer(&request.write_to_bytes().unwrap()))
        });
        assert_eq!(line(&reply.unwrap()), listed(2));
        assert_eq!(envelope.handler().0, ["NicList"]);
    }
}

#[test]
fn without_a_key_nothing_encrypted_is_read() {
    for legacy in [true, false] {
        let mut open = Envelope::new(Recorder(Vec::new()));
        assert_eq!(
            exchange(&mut open, key(), legacy, &bytes(LIST)).0.unwrap_err(),
            "the reply is not encrypted"
        );
        assert_eq!(open.handler().0, [""; 0]);
    }
}

#[test]
fn legacy_can_be_switched_off() {
    let mut envelope = locked(false);
    let (reply, sent) = exchange(&mut envelope, key(), true, &bytes(LIST));
    assert_eq!(reply.unwrap_err(), "encrypted message error");
    assert_eq!(line(&envelope.answer(&sent)), UNSUPPORTED);
    assert_eq!(exchange(&mut envelope, key(), false, &bytes(LIST)).0.unwrap(), listed(4));
}

/// The frame of a sealed request, again: refused in clear text. One in the original's form is
/// carried out again.
#[test]
fn what_was_sent_can_be_sent_again_in_legacy_form_only() {
    let mut envelope = locked(true);
    let (_, sent) = exchange(&mut envelope, key(), false, &bytes(LIST));
    for _ in 0..3 {
        assert_eq!(line(&envelope.answer(&sent)), UNREADABLE);
    }
    assert_eq!(envelope.handler().0.len(), 1);
    let (_, sent) = exchange(&mut envelope, key(), true, &bytes(LIST));
    assert!(line(&envelope.answer(&sent)).starts_with("encrypted { aes256cbc_sha512: "));
    assert_eq!(envelope.handler().0.len(), 3);
    // Nor to another daemon, nor to the same after a restart.
    let (_, sent) = exchange(&mut envelope, key(), false, &bytes(LIST));
    let mut other = locked(true);
    assert!(line(&other.answer(&sent)).starts_with("encrypted { xchacha20_poly1305: "));
    assert_eq!(other.handler().0, [""; 0]);
}

#[test]
fn a_reply_that_cannot_be_encrypted() {
    let gate = Gate::new(key(), true).unwrap().without_random_numbers();
    let mut envelope = Envelope::new(Recorder(Vec::new())).encrypted(gate);
    for legacy in [true, false] {
        let (reply, sent) = exchange(&mut envelope, key(), legacy, &bytes(LIST));
        assert_eq!(reply.unwrap_err(), "encrypted message error");
        let again = line(&envelope.answer(&sent));
        assert!(!legacy || again == "encrypted { error { code: INTERNAL_ERROR } }", "{again}");
    }
}

/// The longest reply there is, encrypted, is one that a client takes; so is the longest request,
/// for a daemon.
#[test]
fn what_encryption_adds_has_room() {
    let gate = Gate::new(key(), true).unwrap();
    for to in [ReplyTo::Legacy, ReplyTo::Sealed([0; 24])] {
        let mut reply = vec![0; LONGEST as usize];
        gate.seal(&to, &mut reply);
        assert!((LONGEST as usize..=MAX_FRAME).contains(&reply.len()), "{}", reply.len());
    }
}

/// The handler hears of refusals, but not of steps that every client has to take.
#[test]
fn refusals_are_told() {
    struct Listener(Vec<String>);
    impl Handler for Listener {
        fn handle(&mut self, _: Action<'_>, _: &Context) -> Answer {
            Ok(Response::default())
        }
        fn not_understood(&mut self, why: &str, _: &Context) {
            self.0.push(why.to_owned());
        }
    }
    let mut envelope =
        Envelope::new(Listener(Vec::new())).encrypted(Gate::new(key(), false).unwrap());
    let mut sent = Vec::new();
    let good = Cipher::new(key(), false).exchange(&bytes(LIST), true, |request| {
        sent = request.to_vec();
        Ok(envelope.answer(request))
    });
    assert!(good.is_ok());
    assert_eq!(envelope.handler().0, [""; 0]);
    envelope.answer(&sent);
    envelope.answer(&bytes(LIST));
    envelope.answer(&bytes("encrypted { }"));
    envelope.answer(&bytes("encrypted { aes256cbc_sha512: \"x\" }"));
    envelope.answer(&bytes("encrypted { xchacha20_poly1305: \"x\" }"));
    let told = &envelope.handler().0;
    let words = [
        "repeats",
        "clear text",
        "anything encrypted that is known",
        "switched off",
        "this daemon's key",
    ];
    assert_eq!(told.len(), words.len());
    for (told, word) in told.iter().zip(words) {
        assert!(told.contains(word), "{told}");
    }
}
