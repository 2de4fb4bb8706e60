//! Requests that are read, and answers that are written.

use proptest::prelude::*;

use super::*;
use crate::{Mac, checksum::Sum, ethernet::Ethernet, ipv6::Ipv6, protocol::UDP, udp::Udp};

const CLIENT: Mac = Mac([2, 0, 0, 0, 0, 9]);
const SERVER: Mac = Mac([0xb2, 0xf0, 0, 0, 0, 1]);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 9);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 8);
const LOCAL: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9)];
const DUID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 9];

/// A Solicit as clients of home routers send it: for a block, and name servers.
const FOR_A_BLOCK: [u8; 52] = [
    0x01, 0x10, 0x08, 0x74, 0x00, 0x01, 0x00, 0x0e, 0x00, 0x01, 0x00, 0x01, 0x1c, 0x39, 0xcf, 0x88,
    0x08, 0x00, 0x27, 0xfe, 0x8f, 0x95, 0x00, 0x06, 0x00, 0x04, 0x00, 0x17, 0x00, 0x18, 0x00, 0x08,
    0x00, 0x02, 0x00, 0x00, 0x00, 0x19, 0x00, 0x0c, 0x27, 0xfe, 0x8f, 0x95, 0x00, 0x00, 0x0e, 0x10,
    0x00, 0x00, 0x15, 0x18,
];

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
}

fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
    [&[kind, 0xca, 0xfe, 1][..], &options.concat()].concat()
}

fn addresses(number: u32, of: &[Ipv6Addr]) -> Vec<u8> {
    let mut value = [&number.to_be_bytes()[..], &[0; 8]].concat();
    for address in of {
        value.extend(option(5, &[&address.octets()[..], &[0; 8]].concat()));
    }
    option(3, &value)
}

fn id() -> Vec<u8> {
    option(1, &DUID)
}

fn server() -> Vec<u8> {
    option(2, &server_id(SERVER))
}

fn terms(addresses: &[Ipv6Addr]) -> Terms6<'_> {
    Terms6 {
        from: (SERVER, LOCAL[0]),
        to: (CLIENT, LOCAL[1]),
        addresses,
        lease: 3600,
        dns: &[0xfd; 16],
        search: b"\x03lan\0",
    }
}

/// Returns the kind and the options of an answer, whose headers are right.
fn answered(request: &[u8], reply: Reply6, terms: &Terms6<'_>) -> (u8, Vec<(u16, Vec<u8>)>) {
    let request = Request6::parse(request).unwrap();
    let mut out = [0xee; 1514];
    let len = answer6(&request, reply, terms, &mut out).unwrap();
    let link = Ethernet::parse(&out[..len]).unwrap();
    assert_eq!((link.source(), link.destination()), (SERVER, CLIENT));
    let ip = Ipv6::parse(link.payload()).unwrap();
    assert_eq!((ip.source(), ip.destination()), (LOCAL[0], LOCAL[1]));
    let datagram = ip.payload().unwrap();
    let udp = Udp::parse(datagram).unwrap();
    assert_eq!((udp.source_port(), udp.destination_port()), (547, 546));
    let pseudo = Sum::pseudo_v6(LOCAL[0], LOCAL[1], UDP, datagram.len() as u32);
    assert!(pseudo.push(datagram).is_valid());
    let message = udp.payload().unwrap();
    assert_eq!(be32(message, 0).unwrap() & 0xff_ffff, request.transaction);
    let options = Options6::of_message(message).unwrap();
    let options = options.map(Result::unwrap).map(|(code, value)| (code, value.to_vec()));
    (message[0], options.collect())
}

/// Code and value of an association of addresses in an answer.
fn held(number: u32, of: &[(Ipv6Addr, u32)]) -> (u16, Vec<u8>) {
    let mut value = [number, 1800, 2880].map(u32::to_be_bytes).concat();
    for (address, seconds) in of {
        let times = [*seconds; 2].map(u32::to_be_bytes).concat();
        value.extend(option(5, &[&address.octets()[..], &times].concat()));
    }
    (3, value)
}

fn refused(code: u16, number: u32, status: u8) -> (u16, Vec<u8>) {
    let times = if code == 4 { 0 } else { 8 };
    let status = option(13, &[0, status]);
    (code, [&number.to_be_bytes()[..], &[0; 8][..times], &status].concat())
}

fn told() -> Vec<(u16, Vec<u8>)> {
    vec![(23, vec![0xfd; 16]), (24, b"\x03lan\0".to_vec())]
}

#[test]
fn a_solicit_for_a_block() {
    let request = Request6::parse(&FOR_A_BLOCK).unwrap();
    assert_eq!((request.kind, request.transaction), (Kind6::Solicit, 0x10_0874));
    let identity = request.identities()[0];
    assert_eq!((identity.association, identity.id), (Association::Prefixes, 0x27fe_8f95));
    let (kind, options) = answered(&FOR_A_BLOCK, Reply6::Advertise, &terms(&[OWN]));
    let client = (1, FOR_A_BLOCK[8..22].to_vec());
    let own = (2, server_id(SERVER).to_vec());
    let head = vec![client, own, (7, vec![255]), refused(25, 0x27fe_8f95, 6)];
    assert_eq!((kind, options), (2, [head, told()].concat()));
}

#[test]
fn an_address_is_advertised_and_assigned() {
    let asked = option(6, &[0, 23, 0, 24]);
    let head = vec![(1, DUID.to_vec()), (2, server_id(SERVER).to_vec())];
    let solicit = message(1, &[id(), asked.clone(), addresses(7, &[])]);
    let expected = [head.clone(), vec![(7, vec![255]), held(7, &[(OWN, 3600)])], told()].concat();
    assert_eq!(answered(&solicit, Reply6::Advertise, &terms(&[OWN])), (2, expected));
    let request = message(3, &[id(), server(), asked.clone(), addresses(7, &[OWN])]);
    let expected = [head.clone(), vec![held(7, &[(OWN, 3600)])], told()].concat();
    assert_eq!(answered(&request, Reply6::Assign, &terms(&[OWN])), (7, expected));
    // Section 18.3.1: at once.
    let rapid = message(1, &[id(), option(14, &[]), addresses(7, &[])]);
    assert!(Request6::parse(&rapid).unwrap().rapid);
    let expected = [head.clone(), vec![(14, vec![]), held(7, &[(OWN, 3600)])], told()].concat();
    assert_eq!(answered(&rapid, Reply6::Assign, &terms(&[OWN])), (7, expected));
    // Section 18.3.4: an address that it has no more, and all that it has.
    let renew = message(5, &[id(), server(), option(6, &[0, 23]), addresses(7, &[OTHER])]);
    let all = held(7, &[(OWN, 3600), (OTHER, 0)]);
    let expected = [head.clone(), vec![all], told()[..1].to_vec()].concat();
    assert_eq!(answered(&renew, Reply6::Assign, &terms(&[OWN])), (7, expected));
    // One association has all addresses.
    let two = message(6, &[id(), option(6, &[]), addresses(7, &[]), addresses(8, &[])]);
    let expected = [head, vec![held(7, &[(OWN, 3600), (OTHER, 3600)]), refused(3, 8, 2)]].concat();
    assert_eq!(answered(&two, Reply6::Assign, &terms(&[OWN, OTHER])), (7, expected));
}

#[test]
fn what_is_not_given_is_refused() {
    let head = vec![(1, DUID.to_vec()), (2, server_id(SERVER).to_vec())];
    let temporary = option(4, &9u32.to_be_bytes());
    let solicit = message(1, &[id(), option(6, &[]), addresses(7, &[]), temporary]);
    let told = vec![(7, vec![255]), refused(3, 7, 2), refused(4, 9, 2)];
    let expected = [head.clone(), told].concat();
    assert_eq!(answered(&solicit, Reply6::Advertise, &terms(&[])), (2, expected));
    let confirm = message(4, &[id(), addresses(7, &[OTHER])]);
    for (right, status) in [(true, 0), (false, 4)] {
        let expected = [head.clone(), vec![(13, vec![0, status])]].concat();
        assert_eq!(answered(&confirm, Reply6::OnLink(right), &terms(&[OWN])), (7, expected));
    }
    let request = message(3, &[id(), server(), addresses(7, &[])]);
    let expected = [head.clone(), vec![(13, vec![0, 5])]].concat();
    assert_eq!(answered(&request, Reply6::UseMulticast, &terms(&[OWN])), (7, expected));
    for kind in [8, 9] {
        let own = message(kind, &[id(), server(), addresses(7, &[OWN])]);
        let expected = [head.clone(), vec![(13, vec![0, 0])]].concat();
        assert_eq!(answered(&own, Reply6::Heard, &terms(&[OWN])), (7, expected));
        let other = message(kind, &[id(), server(), addresses(7, &[OTHER])]);
        let expected = [head.clone(), vec![(13, vec![0, 0]), refused(3, 7, 3)]].concat();
        assert_eq!(answered(&other, Reply6::Heard, &terms(&[OWN])), (7, expected));
    }
}

/// Section 18.3.6: no identifier is needed.
#[test]
fn who_has_addresses_gets_the_rest() {
    let inform = message(11, &[option(6, &[0, 23, 0, 24, 0, 32])]);
    let rest = vec![(32, 3600u32.to_be_bytes().to_vec())];
    let head = vec![(2, server_id(SERVER).to_vec())];
    let expected = [head, rest, told()].concat();
    assert_eq!(answered(&inform, Reply6::Parameters, &terms(&[])), (7, expected));
}

#[test]
fn what_is_no_request() {
    let right = [id(), addresses(7, &[OWN])];
    assert!(Request6::parse(&message(1, &right)).is_ok());
    for kind in [0, 2, 7, 10, 12, 13, 255] {
        assert_eq!(Request6::parse(&message(kind, &right)), Err(Error::Malformed), "{kind}");
    }
    // Section 16: identifiers.
    for kind in [3, 5, 8, 9] {
        assert_eq!(Request6::parse(&message(kind, &right)), Err(Error::Malformed), "{kind}");
        let only = message(kind, &[server(), addresses(7, &[])]);
        assert_eq!(Request6::parse(&only), Err(Error::Malformed), "{kind}");
    }
    for kind in [1, 4, 6] {
        let both = message(kind, &[id(), server()]);
        assert_eq!(Request6::parse(&both), Err(Error::Malformed), "{kind}");
        assert_eq!(Request6::parse(&message(kind, &[])), Err(Error::Malformed), "{kind}");
    }
    assert_eq!(Request6::parse(&message(11, &right)), Err(Error::Malformed));
    let wrong: [Vec<u8>; 9] = [
        [id(), id()].concat(),
        [id(), option(6, &[0])].concat(),
        [id(), option(14, &[0])].concat(),
        [id(), option(14, &[]), option(14, &[])].concat(),
        option(1, &[0, 3]),
        option(1, &[0; 131]),
        [id(), option(3, &[0; 11])].concat(),
        [id(), option(3, &[&[0; 12][..], &[0, 5, 0, 4, 1, 2, 3, 4]].concat())].concat(),
        [id(), option(3, &[&[0; 12][..], &[0, 5, 0, 24]].concat())].concat(),
    ];
    for options in wrong {
        assert_eq!(
            Request6::parse(&message(1, std::slice::from_ref(&options))),
            Err(Error::Malformed),
            "{options:?}"
        );
    }
    let many: Vec<Vec<u8>> = (0..9).map(|at| addresses(at, &[])).collect();
    assert!(Request6::parse(&message(1, &[id(), many[..8].concat()])).is_ok());
    assert_eq!(Request6::parse(&message(1, &[id(), many.concat()])), Err(Error::Malformed));
    let whole = message(1, &right);
    for len in 0..whole.len() {
        let at_an_end = [4, 18].contains(&len);
        let read = Request6::parse(&whole[..len]);
        assert_eq!(read.is_ok(), len == 18, "{len}");
        assert!(at_an_end || read == Err(Error::Truncated), "{len}");
    }
}

proptest! {
    /// All that is read is answered by a message that is whole, and fits the shortest link.
    #[test]
    fn every_request_that_is_read_gets_an_answer(
        options in proptest::collection::vec((0u16..40, proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
        kind in prop::sample::select(vec![1u8, 3, 4, 5, 6, 8, 9, 11]),
        reply in prop::sample::select(vec![
            Reply6::Advertise, Reply6::Assign, Reply6::Parameters, Reply6::Heard,
            Reply6::OnLink(true), Reply6::UseMulticast
        ]),
    ) {
        let mut all = Vec::new();
        if kind != 11 {
            all.push(id());
        }
        if [3, 5, 8, 9].contains(&kind) {
            all.push(server());
        }
        all.extend(options.iter().filter(|(code, _)| ![1, 2].contains(code)).map(|(code, value)| option(*code, value)));
        let bytes = message(kind, &all);
        if Request6::parse(&bytes).is_ok() {
            let (kind, options) = answered(&bytes, reply, &terms(&[OWN, OTHER]));
            prop_assert_eq!(kind, if reply == Reply6::Advertise { 2 } else { 7 });
            prop_assert!(options.iter().any(|(code, _)| *code == 2));
        }
    }

    #[test]
    fn never_panics(
        kind in 0u8..14,
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        room in 0usize..1514,
    ) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Ok(request) = Request6::parse(&bytes) {
            for identity in request.identities() {
                prop_assert!(identity.addresses().count() * 28 <= bytes.len());
            }
            let mut out = vec![0; room];
            let len = answer6(&request, Reply6::Assign, &terms(&[OWN]), &mut out);
            prop_assert!(len.is_none_or(|len| len <= room));
        }
    }
}
