//! Requests that are read, and answers that are written.

use proptest::prelude::*;

use super::*;
use crate::{checksum::Sum, ethernet::Ethernet, ipv4::Ipv4, udp::Udp};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
const FROM: Mac = Mac([0xb2, 0xf0, 0, 0, 0, 1]);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

/// Codes and values of options.
type Told = Vec<(u8, Vec<u8>)>;

fn message(options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef];
    bytes.resize(CHADDR, 0);
    bytes.extend(MAC.0);
    bytes.resize(COOKIE, 0);
    bytes.extend(MAGIC.to_be_bytes());
    bytes.extend(options);
    bytes
}

fn routes() -> Vec<u8> {
    let mut routes = Vec::new();
    classless_route(&mut routes, ([10, 9, 0, 0].into(), 16), [10, 0, 0, 7].into());
    classless_route(&mut routes, (Ipv4Addr::UNSPECIFIED, 0), GATEWAY);
    routes
}

fn terms<'a>(routes: &'a [u8], search: &'a [u8]) -> Terms<'a> {
    Terms {
        gateway: GATEWAY,
        mask: [255, 255, 255, 0].into(),
        broadcast: Some([10, 0, 0, 255].into()),
        lease: 3600,
        mtu: Some(1450),
        dns: &[9, 9, 9, 9, 1, 1, 1, 1],
        search,
        domain: b"example.com",
        routes,
        next_server: [10, 0, 0, 105].into(),
        boot_file: b"pxelinux.0",
    }
}

/// Reads the message of an answer, having checked all headers.
fn message_of(frame: &[u8]) -> (Mac, Ipv4Addr, &[u8]) {
    let link = Ethernet::parse(frame).unwrap();
    assert_eq!((link.source(), link.ethertype()), (FROM, 0x0800));
    let ip = Ipv4::parse(link.payload()).unwrap();
    assert!(ip.checksum_is_valid() && ip.total_len() + 14 == frame.len() && ip.dont_fragment());
    let udp = Udp::parse(ip.payload().unwrap()).unwrap();
    assert_eq!((udp.source_port(), udp.destination_port()), (67, 68));
    let sum = Sum::pseudo_v4(ip.source(), ip.destination(), 17, udp.length());
    assert!(sum.push(ip.payload().unwrap()).is_valid());
    assert_eq!(ip.source(), GATEWAY);
    (link.destination(), ip.destination(), udp.payload().unwrap())
}

/// Returns an answer as the client gets it: destinations, message and options.
fn answered(request: &[u8], reply: Reply, terms: &Terms<'_>) -> (Mac, Ipv4Addr, Vec<u8>, Told) {
    let request = Request::parse(request).unwrap();
    let mut out = [0xaa; MAX_ANSWER];
    let len = answer(&request, reply, terms, FROM, &mut out).unwrap();
    let (mac, ip, message) = message_of(&out[..len]);
    assert!(message.len() >= 300 && message.len() + 28 <= usize::from(request.longest));
    assert_eq!(message[..4], [2, 1, 6, 0]);
    let options = DhcpOptions::of_message(message).unwrap();
    let options = options.map(Result::unwrap).map(|(code, value)| (code, value.to_vec()));
    let options: Vec<_> = options.collect();
    let mut codes: Vec<u8> = options.iter().map(|(code, _)| *code).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), options.len(), "an option came twice: {options:?}");
    (mac, ip, message.to_vec(), options)
}

fn codes(options: &[(u8, Vec<u8>)]) -> Vec<u8> {
    options.iter().map(|(code, _)| *code).collect()
}

#[test]
fn a_request_is_read_whole() {
    let mut bytes = message(&[
        53, 1, 3, 0, 0, 50, 4, 10, 0, 0, 9, 54, 4, 10, 0, 0, 1, 57, 2, 5, 220, 55, 4, 121, 3, 121,
        200, 61, 3, 1, 2, 3, 55, 1, 6, 255, 7, 7,
    ]);
    bytes[FLAGS] = 0x80;
    bytes[CIADDR..CIADDR + 4].copy_from_slice(&[10, 0, 0, 8]);
    bytes[RELAY..RELAY + 4].copy_from_slice(&[10, 0, 0, 2]);
    bytes[3] = 1;
    let read = Request::parse(&bytes).unwrap();
    assert_eq!(read.kind, Kind::Request);
    assert_eq!((read.transaction, read.hops, read.mac), (0xdead_beef, 1, MAC));
    assert_eq!((read.client, read.relay), ([10, 0, 0, 8].into(), [10, 0, 0, 2].into()));
    assert_eq!((read.wanted, read.server), (Some(OWN), Some(GATEWAY)));
    assert_eq!((read.longest, read.wants_broadcast()), (1500, true));
    assert_eq!(read.id, Some(&[1, 2, 3][..]));
    // RFC 3396: in parts. What nobody knows, or came before, is not listed.
    assert_eq!(read.asked.unwrap().list(), [121, 3, 6]);
    for (number, kind) in [(1, Kind::Discover), (4, Kind::Decline), (7, Kind::Release)] {
        assert_eq!(Request::parse(&message(&[53, 1, number, 255])).unwrap().kind, kind);
    }
    let small = message(&[53, 1, 8, 57, 2, 1, 0, 255]);
    let least = Request::parse(&small).unwrap();
    assert_eq!((least.kind, least.longest, least.asked), (Kind::Inform, 576, None));
}

#[test]
fn what_is_no_request_is_refused() {
    let whole = message(&[53, 1, 1, 255]);
    assert!((0..whole.len()).all(|len| Request::parse(&whole[..len]).is_err()));
    for (at, value) in [(0, 2), (1, 6), (2, 16), (236, 0), (239, 0)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        assert_eq!(Request::parse(&bytes), Err(Error::Malformed), "{at}");
    }
    for options in [
        &[255][..],
        &[53, 1, 2, 255],
        &[53, 1, 0, 255],
        &[53, 2, 1, 1, 255],
        &[53, 1, 1, 53, 1, 1, 255],
        &[53, 1, 1, 50, 3, 1, 1, 1, 255],
        &[53, 1, 1, 54, 4, 1, 1, 1, 1, 54, 4, 1, 1, 1, 1, 255],
        &[53, 1, 1, 57, 1, 5, 255],
        &[53, 1, 1, 61, 1, 5, 61, 1, 5, 255],
        &[53, 1, 1, 52, 1, 4, 255],
        &[53, 1, 1, 52, 1, 1, 52, 1, 1, 255],
    ] {
        assert_eq!(Request::parse(&message(options)), Err(Error::Malformed), "{options:?}");
    }
    for options in [&[53, 1, 1][..], &[53, 1, 1, 12, 9, 1, 255], &[53, 1, 1, 12], &[]] {
        assert_eq!(Request::parse(&message(options)), Err(Error::Truncated), "{options:?}");
    }
}

/// RFC 2131, 4.1.
#[test]
fn overloaded_fields_have_options() {
    let mut bytes = message(&[52, 1, 3, 255]);
    bytes[FILE..FILE + 4].copy_from_slice(&[53, 1, 3, 255]);
    bytes[SNAME..SNAME + 7].copy_from_slice(&[50, 4, 10, 0, 0, 9, 255]);
    let read = Request::parse(&bytes).unwrap();
    assert_eq!((read.kind, read.wanted), (Kind::Request, Some(OWN)));
    bytes[SNAME..SNAME + 4].copy_from_slice(&[53, 1, 3, 255]);
    assert_eq!(Request::parse(&bytes), Err(Error::Malformed));
    bytes[FILE..FILE + 3].copy_from_slice(&[52, 1, 1]);
    assert_eq!(Request::parse(&bytes), Err(Error::Malformed));
}

#[test]
fn an_offer_says_all() {
    let search = search_list(["example.com", "lab.example.com"]).unwrap();
    let all = [1, 28, 26, 6, 15, 119, 3, 66, 67];
    let request = message(&[&[53, 1, 1, 57, 2, 5, 220, 55, 9][..], &all, &[255]].concat());
    let (mac, ip, message, options) = answered(&request, Reply::Offer(OWN), &terms(&[], &search));
    assert_eq!((mac, ip), (MAC, OWN));
    assert_eq!(message[TRANSACTION..8], [0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(message[YIADDR..YIADDR + 4], OWN.octets());
    assert_eq!(message[SIADDR..SIADDR + 4], [10, 0, 0, 105]);
    assert_eq!(message[CHADDR..CHADDR + 16], [&MAC.0[..], &[0; 10]].concat());
    assert_eq!(message[FILE..FILE + 11], *b"pxelinux.0\0");
    let expected: [(u8, &[u8]); 14] = [
        (53, &[2]),
        (54, &[10, 0, 0, 1]),
        (51, &[0, 0, 14, 16]),
        (58, &1800u32.to_be_bytes()),
        (59, &3150u32.to_be_bytes()),
        (1, &[255, 255, 255, 0]),
        (28, &[10, 0, 0, 255]),
        (26, &[5, 170]),
        (6, &[9, 9, 9, 9, 1, 1, 1, 1]),
        (15, b"example.com"),
        (119, b"\x07example\x03com\0\x03lab\x07example\x03com\0"),
        (3, &[10, 0, 0, 1]),
        (66, b"10.0.0.105"),
        (67, b"pxelinux.0"),
    ];
    let options: Vec<(u8, &[u8])> =
        options.iter().map(|(code, value)| (*code, value.as_slice())).collect();
    assert_eq!(options, expected);
}

/// RFC 3442: with classless routes there are no routers, and the default route is one of them.
#[test]
fn classless_routes_take_the_place_of_routers() {
    let routes = routes();
    assert_eq!(routes, [16, 10, 9, 10, 0, 0, 7, 0, 10, 0, 0, 1]);
    let of = |asked: &[u8], routes: &[u8]| {
        let list = [&[53, 1, 1, 55, asked.len() as u8][..], asked, &[255]].concat();
        codes(&answered(&message(&list), Reply::Offer(OWN), &terms(routes, &[])).3)[5..].to_vec()
    };
    assert_eq!(of(&[1, 3, 121, 249], &routes), [1, 121, 249]);
    assert_eq!(of(&[3, 6, 1], &[]), [1, 3, 6], "the mask is before the routers");
    assert_eq!(of(&[1, 3, 249], &routes), [1, 3, 249]);
    assert_eq!(of(&[1, 3, 121, 249], &[]), [1, 3]);
    assert_eq!(of(&[6], &routes), [1, 6]);
    // Without a list a client gets what all clients know.
    let all = answered(&message(&[53, 1, 1, 255]), Reply::Offer(OWN), &terms(&routes, &[]));
    assert_eq!(codes(&all.3)[5..], [1, 3, 6, 28, 26, 15]);
}

/// Section 4.1: to the address that the client has, else as its flag says.
#[test]
fn answers_go_where_the_client_hears_them() {
    let terms = terms(&[], &[]);
    let request = |flags: u8, client: [u8; 4]| {
        let mut bytes = message(&[53, 1, 3, 61, 2, 7, 7, 255]);
        bytes[FLAGS] = flags;
        bytes[CIADDR..CIADDR + 4].copy_from_slice(&client);
        bytes
    };
    let to = |flags, client, reply| {
        let (mac, ip, message, _) = answered(&request(flags, client), reply, &terms);
        assert_eq!(message[FLAGS], flags);
        (mac, ip)
    };
    let everybody = (Mac::BROADCAST, Ipv4Addr::BROADCAST);
    assert_eq!(to(0, [0; 4], Reply::Acknowledge(OWN)), (MAC, OWN));
    assert_eq!(to(0x80, [0; 4], Reply::Acknowledge(OWN)), everybody);
    assert_eq!(to(0x80, OWN.octets(), Reply::Acknowledge(OWN)), (MAC, OWN));
    assert_eq!(to(0, OWN.octets(), Reply::Parameters), (MAC, OWN));
    // A client that renews may hear nothing but what is for its own address (dhcpcd, networkd).
    assert_eq!(to(0x80, OWN.octets(), Reply::Refuse), (MAC, OWN));
    for nobodys in [[0; 4], [0, 0, 0, 9], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        assert_eq!(to(0, nobodys, Reply::Refuse), everybody);
    }
    for chosen in [&[50, 4, 10, 0, 0, 9][..], &[54, 4, 10, 0, 0, 1]] {
        let mut bytes = message(&[&[53, 1, 3], chosen, &[255]].concat());
        bytes[CIADDR..CIADDR + 4].copy_from_slice(&OWN.octets());
        let (mac, ip, ..) = answered(&bytes, Reply::Refuse, &terms);
        assert_eq!((mac, ip), everybody, "it begins");
    }
    let (.., message, options) = answered(&request(0, OWN.octets()), Reply::Refuse, &terms);
    assert_eq!(codes(&options), [53, 54, 61]);
    assert_eq!((&options[0].1[..], &options[2].1[..]), (&[6][..], &[7, 7][..]));
    assert!(message[CIADDR..RELAY].iter().all(|byte| *byte == 0));
    let (.., message, options) = answered(&request(0, OWN.octets()), Reply::Parameters, &terms);
    assert_eq!(codes(&options), [53, 54, 1, 61, 3, 6, 28, 26, 15]);
    assert_eq!(message[CIADDR..CIADDR + 8], [10, 0, 0, 9, 0, 0, 0, 0]);
}

/// RFC 2132, 9.10: nothing is longer than the client takes.
#[test]
fn what_does_not_fit_is_left_out() {
    let search = search_list(
        [&"a".repeat(63), &"b".repeat(63), &"c".repeat(60)].map(|label| label.as_str()),
    )
    .unwrap();
    let request = |longest: u16| {
        let [high, low] = longest.to_be_bytes();
        message(&[53, 1, 1, 57, 2, high, low, 55, 4, 119, 249, 121, 6, 255])
    };
    let long = [24; 250];
    let terms = Terms { routes: &long, ..terms(&[], &search) };
    assert_eq!(
        codes(&answered(&request(1500), Reply::Offer(OWN), &terms).3)[5..],
        [1, 121, 119, 249, 6]
    );
    assert_eq!(codes(&answered(&request(576), Reply::Offer(OWN), &terms).3)[5..], [1, 121, 6]);
    // A client's name of all lengths: the answer repeats it, and what must be there is.
    for len in 0..=255u8 {
        let mut options = vec![53, 1, 1, 55, 1, 3, 61, len];
        options.resize(options.len() + usize::from(len), 7);
        options.push(255);
        let (.., options) = answered(&message(&options), Reply::Offer(OWN), &terms);
        assert_eq!(codes(&options), [53, 54, 51, 58, 59, 1, 61, 3]);
    }
    let parsed = request(576);
    let parsed = Request::parse(&parsed).unwrap();
    for room in 0..MAX_ANSWER {
        let written = answer(&parsed, Reply::Offer(OWN), &terms, FROM, &mut vec![0; room]);
        assert_eq!(written.is_some(), room >= 42 + 300, "{room}");
    }
}

#[test]
fn search_lists_are_short() {
    assert_eq!(search_list([]), Some(Vec::new()));
    assert_eq!(search_list(["a..b"]), None);
    assert_eq!(search_list([""]), None);
    assert_eq!(search_list([&*"a".repeat(64)]), None);
    let labels = |n: usize| vec!["abc"; n];
    assert_eq!(search_list(labels(51)).unwrap().len(), 255);
    assert_eq!(search_list(labels(52)), None);
}

#[test]
fn addresses_as_text() {
    for address in [[0, 0, 0, 0], [9, 10, 99, 100], [101, 110, 199, 200], [255; 4]] {
        let request = message(&[53, 1, 1, 55, 1, 66, 255]);
        let terms = Terms { gateway: GATEWAY, next_server: address.into(), ..Terms::NONE };
        let (.., options) = answered(&request, Reply::Offer(OWN), &terms);
        let found = options.iter().find(|(code, _)| *code == 66);
        let text = found.map(|(_, text)| String::from_utf8(text.clone()).unwrap());
        let there = address != [0; 4];
        assert_eq!(text, there.then(|| Ipv4Addr::from(address).to_string()));
    }
}

proptest! {
    /// All that is read is answered by a message that is whole, fits, and says nothing twice.
    #[test]
    fn every_request_that_is_read_gets_an_answer(
        options in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..20)), 0..12),
        kind in prop::sample::select(vec![1u8, 3, 4, 7, 8]),
        reply in prop::sample::select(vec![
            Reply::Offer(OWN), Reply::Acknowledge(OWN), Reply::Parameters, Reply::Refuse
        ]),
        fixed: [u8; 34],
    ) {
        let mut list = vec![53, 1, kind];
        for (code, value) in options.iter().filter(|(code, _)| ![0, 52, 53, 255].contains(code)) {
            list.extend([*code, value.len() as u8]);
            list.extend(value);
        }
        list.push(255);
        let mut bytes = message(&list);
        bytes[3..CHADDR].copy_from_slice(&fixed[..25]);
        let routes = routes();
        let search = search_list(["example.com"]).unwrap();
        if Request::parse(&bytes).is_ok() {
            let (.., options) = answered(&bytes, reply, &terms(&routes, &search));
            let codes = codes(&options);
            prop_assert!(!codes.contains(&3) || !codes.contains(&121));
        }
    }

    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..700), room in 0usize..700) {
        let mut bytes = bytes;
        if let Some(cookie) = bytes.get_mut(COOKIE..OPTIONS) {
            cookie.copy_from_slice(&MAGIC.to_be_bytes());
            bytes[..3].copy_from_slice(&[1, 1, 6]);
        }
        if let Ok(request) = Request::parse(&bytes) {
            let _ = answer(&request, Reply::Offer(OWN), &Terms::NONE, FROM, &mut vec![0; room]);
        }
    }
}
