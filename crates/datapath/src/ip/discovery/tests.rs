//! Messages, one change at a time: valid, and what passes without a rule.

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 0x0a]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x0b]);

fn ip(text: &str) -> Address {
    text.parse::<Ipv6Addr>().unwrap().to_bits()
}

const OWN: &str = "2001:db8::a";
const PEER: &str = "2001:db8::b";
const OWN_LOCAL: &str = "fe80::ff:fe00:a";

/// A message under construction; valid until something is changed.
#[derive(Clone)]
struct Sent {
    kind: u8,
    code: u8,
    flags: u32,
    source: &'static str,
    destination: &'static str,
    hop_limit: u8,
    fragmented: bool,
    body: Vec<u8>,
}

impl Sent {
    fn new(kind: u8, source: &'static str, destination: &'static str) -> Sent {
        let hop_limit = if matches!(kind, 130..=132 | 143) { 1 } else { 255 };
        Sent {
            kind,
            code: 0,
            flags: 0,
            source,
            destination,
            hop_limit,
            fragmented: false,
            body: vec![],
        }
    }

    fn address(mut self, address: &str) -> Sent {
        self.body.extend(ip(address).to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Sent {
        self.body.extend(bytes);
        self
    }

    fn option(self, kind: u8, mac: Mac) -> Sent {
        self.bytes(&[kind, 1]).bytes(&mac.0)
    }

    fn envelope(&self) -> Envelope {
        let Sent { source, destination, hop_limit, fragmented, .. } = *self;
        Envelope { source: ip(source), destination: ip(destination), hop_limit, fragmented }
    }

    fn message(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.code, 0, 0];
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(&self.body);
        bytes
    }

    fn read(&self) -> Discovery {
        let bytes = self.message();
        Discovery::read(&bytes, bytes.len(), true, &self.envelope()).unwrap()
    }

    fn valid(&self) -> bool {
        self.read().valid
    }

    fn may_send(&self) -> bool {
        may_send(&self.read(), MAC, false, |address| [ip(OWN), ip(OWN_LOCAL)].contains(&address))
    }
}

fn solicitation(source: &'static str) -> Sent {
    Sent::new(135, source, "ff02::1:ff00:b").address(PEER)
}

fn advertisement(source: &'static str, target: &str) -> Sent {
    Sent::new(136, source, PEER).address(target)
}

/// One valid message of each kind.
fn each() -> Vec<Sent> {
    vec![
        Sent::new(130, "fe80::1", "ff02::1").address("::"),
        Sent::new(131, OWN_LOCAL, "ff02::5").address("ff02::5"),
        Sent::new(132, OWN_LOCAL, "ff02::2").address("ff02::5"),
        Sent::new(133, OWN_LOCAL, "ff02::2"),
        Sent::new(134, "fe80::1", "ff02::1").bytes(&[0; 8]),
        solicitation(OWN),
        advertisement(OWN, OWN),
        Sent::new(137, "fe80::1", OWN).address(PEER).address(PEER),
        Sent::new(143, OWN_LOCAL, "ff02::16"),
    ]
}

#[test]
fn the_address_of_a_mac() {
    assert_eq!(link_local(MAC), ip(OWN_LOCAL));
    assert_eq!(
        link_local(Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde])),
        ip("fe80::3656:78ff:fe9a:bcde")
    );
}

#[test]
fn these_types_and_no_others() {
    let all: Vec<u8> = (0..=255).filter(|kind| is_discovery(*kind)).collect();
    assert_eq!(all, [130, 131, 132, 133, 134, 135, 136, 137, 143]);
}

#[test]
fn every_check_matters_for_every_kind() {
    for sent in each() {
        let kind = sent.kind;
        assert!(sent.valid(), "{kind}");
        assert_eq!(sent.read().source, ip(sent.source));
        for hop_limit in (0..=255).filter(|limit| *limit != sent.hop_limit) {
            assert!(!Sent { hop_limit, ..sent.clone() }.valid(), "{kind}: hop limit {hop_limit}");
        }
        assert!(!Sent { code: 1, ..sent.clone() }.valid(), "{kind}: code");
        assert!(!Sent { fragmented: true, ..sent.clone() }.valid(), "{kind}: fragmented");
        if !sent.body.is_empty() {
            let body = sent.body[1..].to_vec();
            assert!(!Sent { body, ..sent.clone() }.valid(), "{kind}: length");
        }
        let is_neighbour = (133..=137).contains(&kind);
        assert_eq!(
            sent.clone().bytes(&[14, 0, 0, 0, 0, 0, 0, 0]).valid(),
            !is_neighbour,
            "{kind}: option of length 0"
        );
        assert_eq!(
            sent.clone().bytes(&[14, 2, 0, 0, 0, 0, 0, 0]).valid(),
            !is_neighbour,
            "{kind}: option beyond the end"
        );
        assert_eq!(sent.clone().bytes(&[14]).valid(), !is_neighbour, "{kind}: half an option");
        assert!(sent.clone().bytes(&[14, 1, 0, 0, 0, 0, 0, 0]).valid(), "{kind}: unknown option");
    }
}

#[test]
fn targets() {
    assert_eq!(solicitation(OWN).read().target, ip(PEER));
    assert_eq!(advertisement(OWN, OWN).read().target, ip(OWN));
    assert_eq!(each()[1].read().target, ip("ff02::5"));
    assert_eq!(each()[4].read().target, 0);
    assert!(!Sent::new(135, OWN, "ff02::1:ff00:b").address("ff02::1").valid());
    assert!(!advertisement(OWN, "ff02::1").valid());
}

#[test]
fn address_detection() {
    assert!(solicitation("::").valid());
    assert!(!solicitation("::").option(1, MAC).valid()); // RFC 4861, 7.1.1
    assert!(!Sent { destination: PEER, ..solicitation("::") }.valid());
    assert!(!Sent { destination: "ff02::1", ..solicitation("::") }.valid());
    assert!(Sent { destination: PEER, ..solicitation(OWN) }.valid());
    assert!(!Sent::new(133, "::", "ff02::2").option(1, MAC).valid());
}

#[test]
fn a_solicited_advertisement_has_one_receiver() {
    let flags = SOLICITED;
    assert!(Sent { flags, ..advertisement(OWN, OWN) }.valid());
    assert!(!Sent { flags, destination: "ff02::1", ..advertisement(OWN, OWN) }.valid());
    assert!(Sent { destination: "ff02::1", ..advertisement(OWN, OWN) }.valid());
}

#[test]
fn routers_and_queriers_are_on_the_link() {
    for at in [0, 4, 7] {
        let sent = each()[at].clone();
        assert!(!Sent { source: PEER, ..sent.clone() }.valid(), "{}", sent.kind);
        assert!(!Sent { source: "::", ..sent.clone() }.valid(), "{}", sent.kind);
        assert!(
            Sent { source: "febf::1", ..sent.clone() }.valid()
                && !Sent { source: "fec0::1", ..sent }.valid()
        );
    }
}

#[test]
fn link_addresses() {
    assert_eq!(solicitation(OWN).option(1, MAC).read().link_source, Some(MAC));
    assert_eq!(solicitation(OWN).option(2, MAC).read().link_source, None); // the target's says nothing here
    assert_eq!(
        advertisement(OWN, OWN).option(1, OTHER).option(2, MAC).read().link_source,
        Some(MAC)
    );
    assert!(solicitation(OWN).option(1, MAC).option(1, MAC).valid());
    assert!(!solicitation(OWN).option(1, MAC).option(1, OTHER).valid());
    assert!(!solicitation(OWN).bytes(&[1, 2]).bytes(&[0; 14]).valid()); // no Ethernet address
}

#[test]
fn a_vnic_speaks_for_itself() {
    for source in ["::", OWN, OWN_LOCAL] {
        assert!(solicitation(source).may_send(), "{source}");
        assert!(Sent::new(133, source, "ff02::2").may_send(), "{source}");
    }
    for source in [PEER, "fe80::ff:fe00:b"] {
        assert!(!solicitation(source).may_send(), "{source}");
        assert!(!Sent::new(133, source, "ff02::2").may_send(), "{source}");
        assert!(!advertisement(source, OWN).may_send(), "{source}");
        assert!(!advertisement(OWN, source).may_send(), "{source}");
    }
    assert!(!advertisement("::", OWN).may_send() && !advertisement(OWN, "::").may_send());
    for target in [OWN, OWN_LOCAL] {
        assert!(
            advertisement(OWN, target).may_send() && advertisement(OWN_LOCAL, target).may_send()
        );
    }
}

/// RFC 4862, 5.4.3: a probe for an address denies it to other hosts that probe.
#[test]
fn with_anti_spoofing_a_vnic_probes_for_its_own_addresses() {
    let own = |address| [ip(OWN), ip(OWN_LOCAL)].contains(&address);
    let may = |target: &str, anti_spoof| {
        let sent = Sent::new(135, "::", "ff02::1:ff00:b").address(target);
        may_send(&sent.read(), MAC, anti_spoof, own)
    };
    assert!(may(OWN, true) && may(OWN_LOCAL, true) && !may(PEER, true) && may(PEER, false));
}

#[test]
fn a_vnic_gives_its_own_mac() {
    for (sent, kind) in
        [(solicitation(OWN), 1), (advertisement(OWN, OWN), 2), (Sent::new(133, OWN, "ff02::2"), 1)]
    {
        assert!(sent.clone().option(kind, MAC).may_send());
        assert!(!sent.option(kind, OTHER).may_send());
    }
}

#[test]
fn a_vnic_listens() {
    for (kind, body) in [(131, 16), (132, 16), (143, 0)] {
        for source in [OWN_LOCAL, "::"] {
            assert!(
                Sent::new(kind, source, "ff02::16").bytes(&vec![0; body]).may_send(),
                "{kind} {source}"
            );
        }
        for source in [OWN, "fe80::ff:fe00:b"] {
            assert!(
                !Sent::new(kind, source, "ff02::16").bytes(&vec![0; body]).may_send(),
                "{kind} {source}"
            );
        }
    }
}

#[test]
fn a_vnic_is_no_router() {
    let local = |at: usize| Sent { source: OWN_LOCAL, ..each()[at].clone() };
    for sent in [local(0), local(4), local(7)] {
        assert!(sent.valid() && !sent.may_send(), "{}", sent.kind);
    }
}

#[test]
fn what_a_host_hears() {
    let heard: Vec<u8> =
        each().iter().filter(|sent| may_receive(&sent.read())).map(|sent| sent.kind).collect();
    assert_eq!(heard, [130, 131, 132, 134, 135, 136, 143]);
    assert!(each().into_iter().all(|sent| !may_receive(&Sent { hop_limit: 64, ..sent }.read())));
}

#[test]
fn nothing_invalid_leaves() {
    for sent in each() {
        assert!(!Sent { hop_limit: 64, ..sent }.may_send());
    }
}

#[test]
fn options_out_of_sight() {
    let at_hand = |sent: &Sent, len: usize, more: bool| {
        let bytes = sent.message();
        Discovery::read(&bytes[..len], bytes.len(), more, &sent.envelope())
    };
    let sent = solicitation(OWN).option(14, MAC).option(1, OTHER);
    for len in [24, 28, 32, 39] {
        assert_eq!(at_hand(&sent, len, true), Err(Error::Truncated), "{len}");
        assert!(!at_hand(&sent, len, false).unwrap().valid, "{len}");
    }
    assert_eq!(at_hand(&sent, 40, true).unwrap().link_source, Some(OTHER));
    let router = each()[4].clone().option(1, MAC).option(3, MAC);
    for len in [16, 20, 24, 31] {
        assert_eq!(at_hand(&router, len, true), Err(Error::Truncated), "{len}");
        assert!(may_receive(&at_hand(&router, len, false).unwrap()), "{len}");
    }
    assert_eq!(at_hand(&router, 15, false), Err(Error::Truncated));
}

proptest! {
    #[test]
    fn never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..128),
        kind in 130u8..144, len in 0usize..300, more: bool, hop_limit in prop::sample::select(vec![1u8, 255]),
    ) {
        if let [first, code, ..] = bytes.as_mut_slice() {
            (*first, *code) = (kind, *code & 1);
        }
        let envelope = Envelope { source: ip(OWN), destination: ip(PEER), hop_limit, fragmented: false };
        if let Ok(found) = Discovery::read(&bytes, len, more, &envelope) {
            prop_assert!(may_receive(&found) <= found.valid);
            prop_assert!(may_send(&found, MAC, true, |_| true) <= found.valid);
        }
    }
}
