//! Connections, byte by byte and at once, of peers that behave and of others.

use super::{handshake::READY, refusal::MOST_PARTS, *};
use crate::MAX_FRAME;

/// The greeting of libzmq 4: ZMTP 3.1, NULL.
fn greeting() -> Vec<u8> {
    GREETING.to_vec()
}

fn frame(flags: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    push_header(&mut frame, flags, content.len());
    frame.extend_from_slice(content);
    frame
}

fn command(content: &[u8]) -> Vec<u8> {
    frame(COMMAND, content)
}

fn ready(socket: &str) -> Vec<u8> {
    let mut content = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    content.push(socket.len() as u8);
    content.extend_from_slice(socket.as_bytes());
    content.extend_from_slice(b"\x08Identity\0\0\0\x02me");
    command(&content)
}

/// Parts of one message.
fn message(parts: &[&[u8]]) -> Vec<u8> {
    let last = parts.len() - 1;
    parts
        .iter()
        .enumerate()
        .flat_map(|(n, part)| frame(if n < last { MORE } else { 0 }, part))
        .collect()
}

/// A connection that is open, and has nothing to send.
fn open() -> Connection {
    let mut connection = Connection::new();
    assert_eq!(feed(&mut connection, &greeting()), Ok(()));
    assert_eq!(feed(&mut connection, &ready("REQ")), Ok(()));
    let sent = connection.output().to_vec();
    assert_eq!(sent, [GREETING, READY].concat());
    connection.sent(sent.len());
    connection
}

/// Feeds all, and gives room when it is wanted.
fn feed(connection: &mut Connection, mut bytes: &[u8]) -> Result<(), Refusal> {
    while !bytes.is_empty() {
        let taken = connection.feed(bytes)?;
        bytes = &bytes[taken..];
        if taken == 0 {
            assert!(connection.wanted().is_some(), "it takes nothing and wants nothing");
            connection.give_room();
        }
    }
    if connection.wanted().is_some() {
        connection.give_room();
    }
    Ok(())
}

fn refused(bytes: &[u8]) -> Refusal {
    feed(&mut open(), bytes).unwrap_err()
}

#[test]
fn requests_of_every_shape_are_found() {
    let long = vec![7; 300_000];
    for (what, parts, route, body) in [
        ("REQ", vec![&b""[..], b"body"], &b"\x01\0"[..], Some(&b"body"[..])),
        (
            "a REQ that correlates",
            vec![b"abcd", b"", b"body"],
            b"\x01\x04abcd\x01\0",
            Some(b"body"),
        ),
        (
            "behind two proxies",
            vec![b"one", b"two", b"", b"body"],
            b"\x01\x03one\x01\x03two\x01\0",
            Some(b"body"),
        ),
        ("an empty body", vec![b"", b""], b"\x01\0", Some(b"")),
        ("more parts", vec![b"", b"body", b"x", b"", b"y"], b"\x01\0", Some(b"body")),
        ("a long body", vec![b"", &long], b"\x01\0", Some(&long)),
        ("no delimiter", vec![b"body"], b"", None),
        ("parts without a delimiter", vec![b"a", b"b", &long], b"", None),
        ("only a delimiter", vec![b""], b"", None),
    ] {
        let bytes = message(&parts);
        for step in [1, 7, bytes.len()].into_iter().filter(|step| bytes.len() / step < 1000) {
            let mut connection = open();
            for piece in bytes.chunks(step) {
                feed(&mut connection, piece).unwrap();
            }
            let request = connection.take_request();
            assert_eq!(request.as_ref().map(|request| &*request.body), body, "{what} by {step}");
            if let Some(request) = request {
                assert_eq!(request.route, route, "{what} by {step}");
                assert_eq!(
                    request.room,
                    if request.body.len() > ALLOWANCE { request.body.len() } else { 0 }
                );
            }
            assert!(!connection.is_amid_a_message() && connection.room() == 0, "{what} by {step}");
        }
    }
}

#[test]
fn replies_go_back_the_way_their_requests_came() {
    for length in [0, 1, 255, 256, 4096, 4097, 70_000] {
        let mut connection = open();
        feed(&mut connection, &message(&[b"id", b"", b"x"])).unwrap();
        let request = connection.take_request().unwrap();
        let body = vec![9; length];
        connection.reply(&request.route, body.clone());
        let expected = message(&[b"id", b"", &body]);
        assert_eq!(connection.unsent(), expected.len());
        let mut sent = Vec::new();
        while !connection.output().is_empty() {
            let piece = connection.output().iter().take(1000).copied().collect::<Vec<_>>();
            connection.sent(piece.len());
            sent.extend(piece);
        }
        assert!(sent == expected, "{length}");
    }
}

#[test]
fn greetings_of_others_are_refused_by_name() {
    let with = |place: usize, bytes: &[u8]| {
        let mut greeting = greeting();
        greeting[place..place + bytes.len()].copy_from_slice(bytes);
        greeting
    };
    for (what, bytes, refusal) in [
        ("HTTP", b"GET / HTTP/1.1\r\n".to_vec(), Refusal::NotZmtp),
        ("ZMTP 1.0: an identity", b"\xff\0\0\0\0\0\0\0\x01\0".to_vec(), Refusal::Version("1.0")),
        ("ZMTP 1.0, told", with(10, &[0])[..11].to_vec(), Refusal::Version("1.0")),
        (
            "ZMTP 2.0, which waits after this",
            with(10, &[1])[..11].to_vec(),
            Refusal::Version("2.0"),
        ),
        ("PLAIN", with(12, b"PLAIN"), Refusal::Mechanism("PLAIN".into())),
        ("CURVE", with(12, b"CURVE"), Refusal::Mechanism("CURVE".into())),
        ("nothing printable", with(12, b"\xff\xff\xff\xff"), Refusal::Mechanism("????".into())),
    ] {
        let mut connection = Connection::new();
        assert_eq!(connection.feed(&bytes), Err(refusal.clone()), "{what}");
        // And as early when it comes byte by byte.
        let mut connection = Connection::new();
        let found = bytes.iter().find_map(|byte| connection.feed(&[*byte]).err());
        assert_eq!(found, Some(refusal.clone()), "{what}");
        assert!(refusal.is_of_handshake());
    }
    for good in [with(11, &[0]), with(10, &[4, 0]), with(32, &[1]), with(1, &[1])] {
        assert_eq!(Connection::new().feed(&good), Ok(64));
    }
}

#[test]
fn metadata_of_others_are_refused_by_name() {
    let meet = |bytes: &[u8]| {
        let mut connection = Connection::new();
        feed(&mut connection, &greeting()).unwrap();
        feed(&mut connection, bytes).map(|()| connection.is_open())
    };
    for socket in ["REQ", "DEALER", "ROUTER"] {
        assert_eq!(meet(&ready(socket)), Ok(true), "{socket}");
    }
    assert_eq!(meet(&command(b"\x05READY")), Ok(true), "libzmq takes it, too");
    for socket in ["REP", "SUB", "PUSH", "PAIR", ""] {
        assert_eq!(meet(&ready(socket)), Err(Refusal::SocketType(socket.into())));
    }
    let broken = Refusal::Handshake("its metadata end too early");
    for cut in
        [b"\x05READY\x0b".as_slice(), b"\x05READY\x0bSocket-Type", b"\x05READY\x01x\0\0\0\x09short"]
    {
        assert_eq!(meet(&command(cut)), Err(broken.clone()));
    }
    assert_eq!(
        meet(&command(b"\x05HELLO")),
        Err(Refusal::Handshake("its first command is not READY"))
    );
    assert_eq!(
        meet(&command(b"\x05ERROR\x03400")),
        Err(Refusal::Handshake("it ended it with an error"))
    );
    assert_eq!(
        meet(&message(&[b"", b"x"])),
        Err(Refusal::Handshake("a message came before its metadata"))
    );
    assert_eq!(
        meet(&command(&vec![0; LONGEST_COMMAND + 1])),
        Err(Refusal::LongCommand(LONGEST_COMMAND as u64 + 1))
    );
}

#[test]
fn frames_that_break_the_protocol_are_refused() {
    for flags in [8, 0x80, MORE | COMMAND, MORE | LONG | COMMAND] {
        assert_eq!(refused(&[flags, 0]), Refusal::Flags(flags));
    }
    assert_eq!(
        refused(&command(&vec![0; LONGEST_COMMAND + 1])),
        Refusal::LongCommand(LONGEST_COMMAND as u64 + 1)
    );
    assert_eq!(refused(&command(b"\x04PING\0")), Refusal::Heartbeat);
    let mut huge = vec![MORE, 0, LONG];
    huge.extend_from_slice(&u64::MAX.to_be_bytes());
    assert_eq!(refused(&huge), Refusal::LongMessage(u64::MAX));
    // The longest request, and one byte more.
    let with_length =
        |length: usize| [&[MORE, 0, LONG][..], &(length as u64).to_be_bytes()].concat();
    let mut connection = open();
    assert_eq!(connection.feed(&with_length(MAX_FRAME)), Ok(11));
    assert_eq!(connection.wanted(), Some(MAX_FRAME));
    assert_eq!(refused(&with_length(MAX_FRAME + 1)), Refusal::LongMessage(MAX_FRAME as u64 + 1));
}

/// A message without end makes us hold no more than its way back.
#[test]
fn messages_without_end_are_refused() {
    let mut connection = open();
    let mut parts = 0;
    let refusal = loop {
        if let Err(refusal) = feed(&mut connection, &frame(MORE, b"x")) {
            break refusal;
        }
        parts += 1;
        assert!(
            connection.incoming_bytes() <= LONGEST_ROUTE,
            "{} bytes",
            connection.incoming_bytes()
        );
    };
    assert_eq!((refusal, parts), (Refusal::Parts, MOST_PARTS));

    let mut connection = open();
    let part = frame(MORE, &vec![0; 1 << 20]);
    let refusal = (0..100).find_map(|_| feed(&mut connection, &part).err());
    assert_eq!(refusal, Some(Refusal::LongMessage(17 << 20)));
    assert!(connection.incoming_bytes() <= LONGEST_ROUTE);
    assert_eq!(connection.room(), 0);

    // A way back that is too long is no request, and does no harm.
    let mut connection = open();
    let hops = vec![&[5; 200][..]; 15];
    feed(&mut connection, &message(&[&hops[..], &[b"", b"body"]].concat())).unwrap();
    let hops = vec![&b"x"[..]; 15];
    feed(&mut connection, &message(&[&hops[..], &[b"", b"body"]].concat())).unwrap();
    assert!(!connection.has_request());
    feed(&mut connection, &message(&[b"", b"body"])).unwrap();
    assert!(connection.has_request());
}

#[test]
fn requests_ahead_of_their_answers_are_bounded() {
    for (body, most) in [(0, WAITING), (100, WAITING), (1000, 3), (ALLOWANCE, 2)] {
        let mut connection = open();
        let one = message(&[b"", &vec![1; body]]);
        let many = one.repeat(100);
        let taken = connection.feed(&many).unwrap();
        assert!(!connection.is_ready() && taken < many.len(), "{body}");
        assert!(taken <= (most + 1) * one.len(), "{body}: {taken}");
        // All come, in their order, when those before are answered.
        let mut rest = &many[taken..];
        let mut answered = 0;
        while answered < 100 {
            while connection.take_request().is_some() {
                answered += 1;
            }
            let taken = connection.feed(rest).unwrap();
            rest = &rest[taken..];
            assert!(connection.wanted().is_none(), "short ones need no room");
        }
        assert!(rest.is_empty());
    }
}

/// Room is asked for by the length that is announced, and nothing is taken before it is given.
#[test]
fn a_long_request_waits_for_room() {
    let mut connection = open();
    let body = vec![3; ALLOWANCE + 1];
    let bytes = message(&[b"", &body]);
    let taken = connection.feed(&bytes).unwrap();
    assert_eq!(
        (connection.wanted(), connection.is_ready(), connection.room()),
        (Some(body.len()), false, 0)
    );
    assert_eq!(connection.feed(&bytes[taken..]), Ok(0));
    connection.give_room();
    assert_eq!(
        (connection.wanted(), connection.room(), connection.expects()),
        (None, body.len(), body.len())
    );
    feed(&mut connection, &bytes[taken..]).unwrap();
    assert_eq!((connection.room(), connection.expects()), (body.len(), 0));
    assert_eq!(connection.take_request().unwrap().room, body.len());
    assert_eq!(connection.room(), 0);
}

#[test]
fn heartbeats_are_answered_and_not_gathered() {
    let ping = |context: &[u8]| command(&[b"\x04PING\0\x0a", context].concat());
    let mut connection = open();
    feed(&mut connection, &ping(b"")).unwrap();
    assert_eq!(connection.output(), command(b"\x04PONG"));
    connection.sent(connection.unsent());
    feed(&mut connection, &ping(b"a context that is too long")).unwrap();
    assert_eq!(connection.output(), command(b"\x04PONGa context that i"));
    // The peer does not read: one answer waits, the newest.
    for n in 0..10_000u32 {
        feed(&mut connection, &ping(&n.to_be_bytes())).unwrap();
    }
    assert!(connection.unsent() < 100, "{}", connection.unsent());
    connection.sent(connection.unsent());
    assert_eq!(connection.output(), command(&[&b"\x04PONG"[..], &9999u32.to_be_bytes()].concat()));
    // Between the parts of a message, and while a request waits.
    let mut connection = open();
    feed(&mut connection, &[frame(MORE, b""), ping(b"1"), frame(0, b"body"), ping(b"2")].concat())
        .unwrap();
    assert!(connection.has_request());
    assert_eq!(connection.output(), command(b"\x04PONG1"));
    // Commands of other sockets mean nothing.
    feed(&mut connection, &command(b"\x09SUBSCRIBEx")).unwrap();
}

proptest::proptest! {
    /// Any bytes, cut in any way, give the same requests or the same refusal, within bounds.
    #[test]
    fn any_bytes_in_any_pieces(
        seed in proptest::collection::vec((0u8..8, proptest::collection::vec(0u8.., 0..40)), 0..40),
        cuts in proptest::collection::vec(1usize..50, 1..20),
    ) {
        let bytes: Vec<u8> = seed
            .iter()
            .flat_map(|(kind, content)| match kind {
                0 => content.clone(),
                1 => command(&[b"\x04PING\0\0", content.as_slice()].concat()),
                2 | 3 => frame(MORE, b""),
                4 => frame(MORE, content),
                5 => frame(0, &content.repeat(80)),
                _ => frame(0, content),
            })
            .collect();
        let run = |pieces: &mut dyn Iterator<Item = usize>| {
            let mut connection = open();
            let (mut requests, mut rest, mut refusal) = (Vec::new(), bytes.as_slice(), None);
            while !rest.is_empty() {
                let piece = pieces.next().unwrap_or(rest.len()).min(rest.len());
                match connection.feed(&rest[..piece]) {
                    Ok(taken) => rest = &rest[taken..],
                    Err(why) => {
                        refusal = Some(why);
                        rest = &[];
                    }
                }
                assert!(connection.queued() <= ALLOWANCE + OVERHEAD + LONGEST_ROUTE + ALLOWANCE);
                while let Some(request) = connection.take_request() {
                    requests.push(request);
                }
                connection.give_room();
                connection.sent(connection.unsent());
            }
            while let Some(request) = connection.take_request() {
                requests.push(request);
            }
            (requests, refusal)
        };
        let whole = run(&mut std::iter::empty());
        let cut = run(&mut cuts.iter().copied().cycle());
        proptest::prop_assert_eq!(whole, cut);
    }
}
