//! The envelope as a table: one row per situation of the protocol.

use super::*;

/// Lists one vnic per envelope counted; refuses deletions; panics when told to quit.
pub(super) struct Recorder(pub Vec<String>);

impl Handler for Recorder {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        self.0.push(format!("{action:?}"));
        match action {
            Action::NicDel(id) => Err(Failure::new(format!("not {id}")).with_help("because")),
            Action::NicUpdate(_) => Err(Failure::default()),
            Action::AppQuit => panic!("a defect"),
            Action::WorkerList => Ok(Response { nic_list: vec!["x".repeat(6 << 20)], ..Default::default() }),
            _ => Ok(Response { nic_list: vec![context.request_counter.to_string()], ..Default::default() }),
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
        format!("messages {{ revision: 6 message_0 {{ response {{ status {{ status: false error {{ {error} }} }} }} {rest}}} }}")
    };
    let listed = |rest: &str| {
        format!("messages {{ revision: 6 message_0 {{ response {{ status {{ status: true }} nic_list: \"1\" }} {rest}}} }}")
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
        ("an error as request", "messages { revision: 6 error { code: REJECTED } }", refused("VERSION_NOT_MANAGED")),
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
        format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} message_id: \"{id}\" }} }} ")
    };
    let batch = [ask("nic_del: \"n\"", "1"), "messages { revision: 6 } ".into(), ask("", "3"), ask("nic_list: true", "4")];
    let request: Messages = text::parse(&batch.concat()).unwrap();
    let mut envelope = envelope();
    let reply = envelope.answer(&request.write_to_bytes().unwrap());
    let reply = Messages::parse_from_bytes(&reply).unwrap().messages;
    let got: Vec<_> =
        reply.iter().map(|message| (message.message_0.message_id(), message.message_0.response.status.status())).collect();
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

/// Three long answers fit nobody's message: the third is not given, and a change behind it is still carried out and told.
#[test]
fn a_reply_is_no_longer_than_a_client_takes() {
    let message = |request: &str| format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} message_id: \"m\" }} }}");
    let batch =
        [message("worker_list: true"), message("worker_list: true"), message("worker_list: true"), message("sg_del: \"s\"")];
    let mut envelope = envelope();
    let batch: Messages = text::parse(&batch.join(" ")).unwrap();
    let reply = envelope.answer(&batch.write_to_bytes().unwrap());
    assert!(reply.len() < MAX_FRAME, "{}", reply.len());
    let reply = Messages::parse_from_bytes(&reply).unwrap().messages;
    let succeeded: Vec<bool> = reply.iter().map(|message| message.message_0.response.status.status()).collect();
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
    let bytes = text::parse::<Messages>("messages { revision: 6 message_0 { request { app_quit: true } } }")
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
}

#[test]
fn requests_are_counted_by_kind_and_outcome() {
    let mut envelope = envelope();
    let mut ask = |request: &str| {
        let request: Messages = text::parse(request).unwrap();
        envelope.answer(&request.write_to_bytes().unwrap());
    };
    let one = |request: &str| format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}");
    ask(&format!("{} {}", one("nic_list: true"), one("nic_del: \"n\"")));
    ask(&one("nic_list: true sg_list: true"));
    ask(&one("app_quit: true")); // the handler panics
    ask(&one(""));
    ask("messages { revision: 6 }");
    ask("");
    envelope.answer(b"\xff");
    let requests = envelope.requests();
    let moved: Vec<_> = requests.list().filter(|kind| kind.succeeded + kind.failed > 0).collect();
    let counts: Vec<_> = moved.iter().map(|kind| (kind.request, kind.succeeded, kind.failed)).collect();
    assert_eq!(counts, [("nic_del", 0, 1), ("nic_list", 2, 0), ("app_quit", 0, 1), ("none", 0, 3), ("undecodable", 0, 1)]);
    assert!(moved.iter().any(|kind| !kind.time.is_zero()));
}
