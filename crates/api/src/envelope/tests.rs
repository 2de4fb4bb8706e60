//! The envelope as a table: one row per situation of the protocol.

use super::*;
use crate::{MAX_FRAME, envelope::task::MESSAGES};

/// Lists one vnic per envelope counted; refuses deletions; panics when told to quit.
pub(super) struct Recorder(pub Vec<String>);

impl Handler for Recorder {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        self.0.push(format!("{action:?}"));
        match action {
            Action::NicDel(id) => Err(Failure::new(format!("not {id}")).with_help("because")),
            Action::NicUpdate(_) => Err(Failure::default()),
            Action::AppQuit => panic!("a defect"),
            Action::WorkerList => {
                Ok(Response { nic_list: vec!["x".repeat(6 << 20)], ..Default::default() })
            }
            _ => Ok(Response {
                nic_list: vec![context.request_counter.to_string()],
                ..Default::default()
            }),
        }
    }
}

fn envelope() -> Envelope<Recorder> {
    Envelope::new(Recorder(Vec::new()))
}

/// The reply to a request, both as text.
fn answered(request: &str) -> String {
    let request: Messages = text::parse(request).unwrap();
    let reply = envelope().answer(&request.write_to_bytes().unwrap());
    text::print(&Messages::parse_from_bytes(&reply).unwrap())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_situation_has_its_reply() {
    let refused = |code: &str| format!("messages {{ revision: 6 error {{ code: {code} }} }}");
    let failed = |error: &str, rest: &str| {
        format!(
            "messages {{ revision: 6 message_0 {{ response {{ status {{ status: false error {{ {error} }} }} }} {rest}}} }}"
        )
    };
    let listed = |rest: &str| {
        format!(
            "messages {{ revision: 6 message_0 {{ response {{ status {{ status: true }} nic_list: \"1\" }} {rest}}} }}"
        )
    };
    let nothing = "description: \"no request found\"";
    for (situation, request, reply) in [
        ("nothing at all", "", refused("REJECTED")),
        ("encrypted only", "encrypted { aes256cbc_sha512: \"x\" }", refused("REJECTED")),
        ("encrypted without content", "encrypted { }", refused("REJECTED")),
        (
            "encrypted and clear: the clear part counts",
            "encrypted { aes256cbc_sha512: \"x\" } messages { revision: 6 message_0 { request { nic_list: true } } }",
            listed(""),
        ),
        ("no payload", "messages { revision: 6 }", refused("VERSION_NOT_MANAGED")),
        (
            "an error as request",
            "messages { revision: 6 error { code: REJECTED } }",
            refused("VERSION_NOT_MANAGED"),
        ),
        ("no request", "messages { revision: 6 message_0 { } }", failed(nothing, "")),
        (
            "an empty request, its id is copied",
            "messages { revision: 6 message_0 { request { } message_id: \"\\001x\" } }",
            failed(nothing, "message_id: \"\\001x\" "),
        ),
        (
            "any revision is fine, the reply carries ours",
            "messages { revision: 4294967295 message_0 { request { nic_list: false } message_id: \"a\" } }",
            listed("message_id: \"a\" "),
        ),
        (
            "a failure with help",
            "messages { revision: 0 message_0 { request { nic_del: \"n\" } } }",
            failed("description: \"not n\" help: \"because\"", ""),
        ),
        (
            "a failure without words still has its error",
            "messages { revision: 0 message_0 { request { nic_update { id: \"n\" } } } }",
            failed("", "").replace("{  }", "{ }"),
        ),
    ] {
        assert_eq!(one_line(&answered(request)), reply, "{situation}");
    }
}

#[test]
fn a_batch_is_answered_in_order_whatever_fails_in_it() {
    let ask = |request: &str, id: &str| {
        format!(
            "messages {{ revision: 6 message_0 {{ request {{ {request} }} message_id: \"{id}\" }} }} "
        )
    };
    let batch = [
        ask("nic_del: \"n\"", "1"),
        "messages { revision: 6 } ".into(),
        ask("", "3"),
        ask("nic_list: true", "4"),
    ];
    let request: Messages = text::parse(&batch.concat()).unwrap();
    let mut envelope = envelope();
    let reply = envelope.answer(&request.write_to_bytes().unwrap());
    let reply = Messages::parse_from_bytes(&reply).unwrap().messages;
    let got: Vec<_> = reply
        .iter()
        .map(|message| (message.message_0.message_id(), message.message_0.response.status.status()))
        .collect();
    assert_eq!(got, [("1", false), ("", false), ("3", false), ("4", true)]);
    assert!(reply[1].error.is_some());
    assert_eq!(envelope.handler().0, ["NicDel(\"n\")", "NicList"]);
}

/// Not a message; a truncated one; a missing required field; a string that is not UTF-8.
const UNDECODABLE: [&[u8]; 5] = [
    b"\xff",
    b"\x0a\x05\x08\x06",
    b"\x0a\x00",
    b"\x0a\x07\x08\x06\x1a\x03\x1a\x01\xff",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
];

/// Three long answers fit into no client's message. The third is not given. A change behind it is
/// still carried out and reported.
#[test]
fn a_reply_is_no_longer_than_a_client_takes() {
    let message = |request: &str| {
        format!(
            "messages {{ revision: 6 message_0 {{ request {{ {request} }} message_id: \"m\" }} }}"
        )
    };
    let batch = [
        message("worker_list: true"),
        message("worker_list: true"),
        message("worker_list: true"),
        message("sg_del: \"s\""),
    ];
    let mut envelope = envelope();
    let batch: Messages = text::parse(&batch.join(" ")).unwrap();
    let reply = envelope.answer(&batch.write_to_bytes().unwrap());
    assert!(reply.len() < MAX_FRAME, "{}", reply.len());
    let reply = Messages::parse_from_bytes(&reply).unwrap().messages;
    let succeeded: Vec<bool> =
        reply.iter().map(|message| message.message_0.response.status.status()).collect();
    assert_eq!(succeeded, [true, true, false, true]);
    assert!(reply.iter().all(|message| message.message_0.message_id() == "m"));
    assert!(reply[2].message_0.response.status.error.help().contains("several batches"));
    assert_eq!(envelope.handler().0.last().map(String::as_str), Some("SgDel(\"s\")"));
}

#[test]
fn what_is_not_decodable_gets_the_bare_message() {
    for bytes in UNDECODABLE {
        assert_eq!(envelope().answer(bytes), [8, 6, 0x12, 2, 8, 0], "{bytes:x?}");
    }
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    // Groups may nest in unknown fields without end.
    let bytes = vec![0xab; 1 << 20];
    assert_eq!(envelope().answer(&bytes), [8, 6, 0x12, 2, 8, 0]);
}

#[test]
fn a_defect_of_the_handler_is_answered() {
    let bytes = text::parse::<Messages>(
        "messages { revision: 6 message_0 { request { app_quit: true } } }",
    )
    .unwrap()
    .write_to_bytes()
    .unwrap();
    let mut envelope = envelope();
    assert_eq!(envelope.answer(&bytes), [8, 6, 0x12, 2, 8, 1]);
    let list = b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x20\x01";
    let reply = Messages::parse_from_bytes(&envelope.answer(list)).unwrap();
    assert_eq!(reply.messages[0].message_0.response.nic_list, ["2"], "and the next is served");
}

#[test]
fn each_decoded_envelope_counts_once() {
    let mut envelope = envelope();
    let list = b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x20\x01";
    envelope.answer(b"");
    envelope.answer(UNDECODABLE[0]);
    envelope.answer(&list.repeat(3));
    let reply = Messages::parse_from_bytes(&envelope.answer(list)).unwrap();
    assert_eq!(reply.messages[0].message_0.response.nic_list, ["3"]);
}

#[test]
fn a_request_from_the_future_is_explained() {
    // Field 150 of the request.
    let bytes = b"\x0a\x09\x08\x06\x1a\x05\x0a\x03\xb0\x09\x01";
    let reply = Messages::parse_from_bytes(&envelope().answer(bytes)).unwrap();
    let error = reply.messages[0].message_0.response.status.error.clone().unwrap();
    assert_eq!(error.description(), "no request found");
    assert!(error.help().starts_with("field 150 "), "{}", error.help());
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(0u8.., 0..200)) {
        let reply = envelope().answer(&bytes);
        proptest::prop_assert!(
            reply == NOT_DECODABLE || reply == INTERNAL_ERROR || Messages::parse_from_bytes(&reply).is_ok()
        );
    }

    /// Message by message, the same is decodable as at once.
    #[test]
    fn as_much_is_decodable_as_at_once(
        pieces in proptest::collection::vec(0usize..7, 0..6),
        noise in proptest::collection::vec(0u8.., 0..6),
        at in 0usize..60,
    ) {
        let pieces: Vec<&[u8]> = pieces
            .iter()
            .map(|piece| [
                &b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x20\x01"[..],
                b"\x0a\x02\x08\x06",
                b"\x12\x04\x12\x02ab",
                b"\x12\x04\x0a\x02\x08\x01",
                b"\x08\x07",
                b"\x2b\x08\x01\x2c",
                b"\xa2\x06\x01x",
            ][*piece])
            .collect();
        let mut bytes = pieces.concat();
        let at = at.min(bytes.len());
        bytes.splice(at..at, noise);
        let refused = envelope().answer(&bytes) == NOT_DECODABLE;
        proptest::prop_assert_eq!(refused, decode::<Messages>(&bytes).is_err(), "{:x?}", bytes);
    }
}

/// Between two messages of a batch others are answered; each envelope keeps its own number.
#[test]
fn a_batch_is_answered_in_turns() {
    let list = b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x20\x01";
    let mut envelope = envelope();
    let mut task = envelope.begin_task(list.repeat(3), None);
    let mut turns = 0;
    let reply = loop {
        if let Some(reply) = envelope.go_on(&mut task, || false) {
            break reply;
        }
        turns += 1;
        if turns == 5 {
            assert!(task.reply_so_far() > 0);
            let other = Messages::parse_from_bytes(&envelope.answer(list)).unwrap();
            assert_eq!(other.messages[0].message_0.response.nic_list, ["2"]);
        }
    };
    assert!(turns >= 6, "{turns}: each message is a turn, twice");
    let reply = Messages::parse_from_bytes(&reply).unwrap();
    let numbers: Vec<_> =
        reply.messages.iter().map(|message| message.message_0.response.nic_list.concat()).collect();
    assert_eq!(numbers, ["1", "1", "1"]);
}

/// A message that would take too much memory is refused before it is decoded; those beside it are
/// answered.
#[test]
fn a_message_that_is_large_when_decoded_is_refused() {
    let mut content = Vec::new();
    let members = b"\x12\0".repeat(1 << 20);
    for field in [8, 1, 3] {
        let inner = if content.is_empty() { &members } else { &content }.clone();
        content.clear();
        scan::push_header(&mut content, field, inner.len());
        content.extend(inner);
    }
    content.extend([0x08, 0x06]);
    let mut bytes = b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x20\x01".to_vec();
    scan::push_header(&mut bytes, MESSAGES, content.len());
    bytes.extend(&content);
    let mut envelope = envelope();
    let reply = Messages::parse_from_bytes(&envelope.answer(&bytes)).unwrap();
    let [good, bad] = &reply.messages[..] else { panic!("{reply}") };
    assert!(good.message_0.response.status.status());
    let error = &bad.message_0.response.status.error;
    assert_eq!(error.description(), "the message is too large");
    assert!(error.help().contains("more than 12 MiB of memory"), "{}", error.help());
    assert_eq!(envelope.handler().0, ["NicList"]);
}

/// A batch is refused as a whole if its answers alone exceed every reply.
#[test]
fn a_batch_of_too_many_messages_is_refused() {
    let mut envelope = envelope();
    let reply =
        Messages::parse_from_bytes(&envelope.answer(&b"\x0a\x02\x08\x06".repeat(1 << 20))).unwrap();
    assert_eq!(one_line(&text::print(&reply)), "messages { revision: 6 error { code: REJECTED } }");
    assert_eq!(envelope.request_counter, 1);
    // Of as many as have room each is answered, in the end without words.
    let many = LONGEST as usize / 4 / SHORTEST as usize;
    let reply = envelope.answer(&b"\x0a\x08\x08\x06\x1a\x04\x0a\x02\x28\x01".repeat(many));
    assert!(reply.len() <= LONGEST as usize, "{}", reply.len());
    assert_eq!(Messages::parse_from_bytes(&reply).unwrap().messages.len(), many);
}

#[test]
fn requests_are_counted_by_kind_and_outcome() {
    let mut envelope = envelope();
    let mut ask = |request: &str| {
        let request: Messages = text::parse(request).unwrap();
        envelope.answer(&request.write_to_bytes().unwrap());
    };
    let one = |request: &str| {
        format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}")
    };
    ask(&format!("{} {}", one("nic_list: true"), one("nic_del: \"n\"")));
    ask(&one("nic_list: true sg_list: true"));
    ask(&one("app_quit: true")); // the handler panics
    ask(&one(""));
    ask("messages { revision: 6 }");
    ask("");
    envelope.answer(b"\xff");
    let requests = envelope.requests();
    let moved: Vec<_> = requests.list().filter(|kind| kind.succeeded + kind.failed > 0).collect();
    let counts: Vec<_> =
        moved.iter().map(|kind| (kind.request, kind.succeeded, kind.failed)).collect();
    assert_eq!(
        counts,
        [
            ("nic_del", 0, 1),
            ("nic_list", 2, 0),
            ("app_quit", 0, 1),
            ("none", 0, 3),
            ("undecodable", 0, 1)
        ]
    );
    assert!(moved.iter().any(|kind| !kind.time.is_zero()));
}
