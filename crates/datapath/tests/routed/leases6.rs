//! DHCPv6 and router advertisements of networks: vnics get their addresses and routers from what is
//! declared, and from nobody else.

use std::{collections::BTreeMap, net::Ipv6Addr};

use butterfly_datapath::{Fate, Mac, Origin, Question, RoutingChange, Target, VnicPolicy};
use butterfly_model::{Dhcp, Network, Subnet, service_mac};
use butterfly_packet::{
    build::{self, Checksum, Ip},
    dhcp6::{Options6, server_id},
    ethernet::Ethernet,
    icmp::{NdOptions, v6},
    ipv6::{self, Ipv6},
    neighbour,
    protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ICMPV6, UDP},
    udp::Udp,
};
use butterfly_vhost::net::NetHeader;

use crate::{hosts, net::*};

type Six = [u16; 8];
type Options = BTreeMap<u16, Vec<u8>>;

const SIX_A: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xa];
const SIX_C: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xc];
const ROUTER: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 1];
const SERVERS: Six = [0xff02, 0, 0, 0, 0, 0, 1, 2];
const ALL_ROUTERS: Six = [0xff02, 0, 0, 0, 0, 0, 0, 2];
const ALL_NODES: Six = [0xff02, 0, 0, 0, 0, 0, 0, 1];

const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORM: u8 = 11;
const RELAY_FORWARD: u8 = 12;

/// The address that a host makes of its MAC address (RFC 4291, appendix A).
fn local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let part = |high, low| u16::from_be_bytes([high, low]);
    let end = [part(a ^ 2, b), part(c, 0xff), part(0xfe, d), part(e, f)];
    Ipv6Addr::from([0xfe80, 0, 0, 0, end[0], end[1], end[2], end[3]])
}

fn dhcp() -> Dhcp {
    let dns = ["9.9.9.9", "fd00::53"].map(|it| it.parse().unwrap());
    let dhcp = Dhcp::new(Some(7200)).unwrap().with_dns(&dns).unwrap();
    dhcp.with_search(&["example.com"]).unwrap()
}

fn leasing(dhcp: Option<Dhcp>) -> RoutingChange {
    let subnets = [("10.0.0.0/24", "10.0.0.1"), ("fd00:42::/64", "fd00:42::1")];
    let subnets = subnets.map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
    let network = Network::new(vni(42), subnets.into(), Some(1450)).unwrap();
    RoutingChange::DeclareNetwork(network.with_dhcp(dhcp).unwrap())
}

/// Machines in networks 42, which leases addresses, and 50.
fn apart(bypass: bool) -> Net {
    let mut net = Net::apart(&[], bypass);
    for ((id, mac, vni, ip), six) in [(A, Some(SIX_A)), (C, Some(SIX_C)), (B, None)] {
        let mut policy = policy(ip, bypass);
        policy.ips.extend(six.map(|six| std::net::IpAddr::from(Ipv6Addr::from(six))));
        net.host.vnic(id, mac, vni, &policy).unwrap();
    }
    net.host.change_routing(leasing(Some(dhcp())));
    net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
    net.host.settle();
    net.host.moved();
    net
}

/// The same, and a router that joins them.
fn net(bypass: bool) -> Net {
    let net = apart(bypass);
    net.host.change_routing(router("r", &[42, 50]));
    net
}

fn to_group(from: Machine, source: Ipv6Addr, group: Six) -> Ip {
    build::ethernet(from.1, Mac::of_group_v6(group.into())).ipv6(source, group)
}

/// A solicitation of a machine.
fn solicitation(from: Machine) -> Vec<u8> {
    let option = [&[1, 1][..], &from.1.0].concat();
    to_group(from, local(from.1), ALL_ROUTERS).ttl(255).icmp(133, 0, 0, &option)
}

/// An advertisement of a machine.
fn advertisement(from: Machine) -> Ip {
    to_group(from, local(from.1), ALL_NODES).ttl(255)
}

const ADVERTISED: u32 = 64 << 24 | 1800;

/// An advertisement of the network's, as a machine reads it.
#[derive(Debug, PartialEq)]
struct Told {
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    flags: u8,
    lifetime: u16,
    options: Vec<(u8, Vec<u8>)>,
}

fn told(frame: &[u8]) -> Told {
    let link = Ethernet::parse(frame).unwrap();
    let ip = Ipv6::parse(link.payload()).unwrap();
    assert!(neighbour::is_sum_right(link.payload()));
    assert_eq!((ip.hop_limit(), ip.next_header()), (255, ICMPV6));
    let message = ip.payload().unwrap();
    assert_eq!(message[..2], [134, 0]);
    let mut read = NdOptions::new(&message[16..]);
    let mut options = Vec::new();
    while let Some((kind, value)) = read.take_next().unwrap() {
        options.push((kind, value.to_vec()));
    }
    Told {
        from: (link.source(), ip.source()),
        to: (link.destination(), ip.destination()),
        flags: message[5],
        lifetime: u16::from_be_bytes([message[6], message[7]]),
        options,
    }
}

/// Sends a frame. Returns the one answer, which the sender alone gets.
#[track_caller]
fn answer(net: &mut Net, from: Machine, frame: &[u8]) -> Vec<u8> {
    let mut got = net.send(from, frame);
    let moved = net.host.moved();
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    assert_eq!(got.keys().collect::<Vec<_>>(), [from.0]);
    let frames = got.remove(from.0).unwrap();
    assert_eq!(frames.len(), 1);
    frames.into_iter().next().unwrap()
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
}

/// An association of addresses, number 7, that names these.
fn association(of: &[Six]) -> Vec<u8> {
    let mut value = [&7u32.to_be_bytes()[..], &[0; 8]].concat();
    for address in of {
        value.extend(option(5, &[&Ipv6Addr::from(*address).octets()[..], &[0; 8]].concat()));
    }
    option(3, &value)
}

/// Value of that association in an answer.
fn held(of: &[(Six, u32)]) -> Vec<u8> {
    let mut value = [7, 3600, 5760].map(u32::to_be_bytes).concat();
    for (address, seconds) in of {
        let times = [*seconds; 2].map(u32::to_be_bytes).concat();
        value.extend(option(5, &[&Ipv6Addr::from(*address).octets()[..], &times].concat()));
    }
    value
}

/// A message of a client with the identifiers that its kind has.
fn message(kind: u8, from: Machine, options: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![kind, 0xca, 0xfe, 1];
    bytes.extend(option(1, &[&[0, 3, 0, 1][..], &from.1.0].concat()));
    if [REQUEST, RENEW, RELEASE, DECLINE].contains(&kind) {
        bytes.extend(option(2, &server_id(gateway())));
    }
    bytes.extend(options.concat());
    bytes
}

/// A message as it is sent to all servers.
fn sent(from: Machine, message: &[u8]) -> Vec<u8> {
    to_group(from, local(from.1), SERVERS).udp(546, 547, message)
}

/// Sends a message. Returns the kind and the options of its answer.
#[track_caller]
fn asked(net: &mut Net, from: Machine, message: &[u8]) -> (u8, Options) {
    let frame = answer(net, from, &sent(from, message));
    read(&frame, from)
}

/// Reads an answer of the router's to a machine.
#[track_caller]
fn read(frame: &[u8], to: Machine) -> (u8, Options) {
    let link = Ethernet::parse(frame).unwrap();
    assert_eq!((link.source(), link.destination()), (gateway(), to.1));
    let ip = Ipv6::parse(link.payload()).unwrap();
    assert_eq!((ip.source(), ip.destination()), (local(gateway()), local(to.1)));
    let udp = Udp::parse(ip.payload().unwrap()).unwrap();
    assert_eq!((udp.source_port(), udp.destination_port()), (547, 546));
    let message = udp.payload().unwrap();
    assert_eq!(message[1..4], [0xca, 0xfe, 1]);
    let options = Options6::of_message(message).unwrap().map(Result::unwrap);
    (message[0], options.map(|(code, value)| (code, value.to_vec())).collect())
}

#[test]
fn a_machine_that_asks_is_told_of_its_router() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let got = told(&answer(&mut net, A, &solicitation(A)));
        let times = [86_400u32, 14_400, 0].map(u32::to_be_bytes).concat();
        let block = Ipv6Addr::from([0xfd00, 0x42, 0, 0, 0, 0, 0, 0]).octets();
        let server = "fd00::53".parse::<Ipv6Addr>().unwrap().octets();
        let lasts = [&[0, 0][..], &1800u32.to_be_bytes()].concat();
        let expected = Told {
            from: (gateway(), local(gateway())),
            to: (A.1, local(A.1)),
            flags: 0xc0,
            lifetime: 1800,
            options: vec![
                (1, gateway().0.to_vec()),
                (5, [&[0, 0][..], &1450u32.to_be_bytes()].concat()),
                (3, [&[64, 0x80][..], &times, &block].concat()),
                (25, [&lasts[..], &server].concat()),
                (31, [&lasts[..], b"\x07example\x03com\0\0\0\0"].concat()),
            ],
        };
        assert_eq!(got, expected);
        // Who has no address yet hears it as all do.
        let nobody = to_group(A, Ipv6Addr::UNSPECIFIED, ALL_ROUTERS).ttl(255).icmp(133, 0, 0, &[]);
        let got = told(&answer(&mut net, A, &nobody));
        assert_eq!(got.to, (Mac::of_group_v6(ipv6::ALL_NODES), ipv6::ALL_NODES));
        assert_eq!(net.sessions(), 0);
    }
}

/// Machines know the router by its link-local address, and look whether it is still there.
#[test]
fn the_router_answers_for_its_link_local_address() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let own = local(gateway());
        let body = [&own.octets()[..], &[1, 1], &A.1.0].concat();
        let asks = build::ethernet(A.1, gateway()).ipv6(local(A.1), own).ttl(255);
        let frame = answer(&mut net, A, &asks.icmp(v6::NEIGHBOUR_SOLICITATION, 0, 0, &body));
        assert_eq!(frame[..], neighbour::advertisement((A.1, local(A.1)), (gateway(), own)));
        // Nobody else has it.
        let body = [&own.octets()[..], &[2, 1], &C.1.0].concat();
        let claim = to_group(C, own, ALL_NODES).ttl(255).icmp(136, 0, 0x2000_0000, &body);
        net.drops(C, &claim, "gateway-claimed");
    }
}

#[test]
fn a_network_without_a_router_says_so() {
    let mut net = apart(false);
    let service = Mac(service_mac(vni(42), |_| false));
    let got = told(&answer(&mut net, A, &solicitation(A)));
    assert_eq!((got.from, got.flags, got.lifetime), ((service, local(service)), 0xc0, 0));
    // It leases addresses all the same.
    let frame = answer(&mut net, A, &sent(A, &message(SOLICIT, A, &[association(&[])])));
    assert_eq!(frame[6..12], service.0);
    // A router that joins it is told, and one that leaves as well.
    net.host.change_routing(router("r", &[42, 50]));
    assert_eq!(told(&answer(&mut net, A, &solicitation(A))).lifetime, 1800);
    net.host.change_routing(router("r", &[50]));
    assert_eq!(told(&answer(&mut net, A, &solicitation(A))).lifetime, 0);
}

#[test]
fn a_vnic_gets_its_declared_address() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let wish = [option(6, &[0, 23, 0, 24]), association(&[])];
        let (kind, options) = asked(&mut net, A, &message(SOLICIT, A, &wish));
        let duid = [&[0, 3, 0, 1][..], &A.1.0].concat();
        let server = "fd00::53".parse::<Ipv6Addr>().unwrap().octets().to_vec();
        let expected = BTreeMap::from([
            (1, duid),
            (2, server_id(gateway()).to_vec()),
            (3, held(&[(SIX_A, 7200)])),
            (7, vec![255]),
            (23, server),
            (24, b"\x07example\x03com\0".to_vec()),
        ]);
        assert_eq!((kind, options), (ADVERTISE, expected));
        let rapid = [option(14, &[]), association(&[])];
        let (kind, options) = asked(&mut net, A, &message(SOLICIT, A, &rapid));
        assert_eq!(
            (kind, &options[&3], options.contains_key(&14)),
            (REPLY, &held(&[(SIX_A, 7200)]), true)
        );
        for kind in [REQUEST, RENEW, REBIND] {
            let own = message(kind, A, &[association(&[SIX_A])]);
            let (kind, options) = asked(&mut net, A, &own);
            assert_eq!((kind, &options[&3]), (REPLY, &held(&[(SIX_A, 7200)])));
        }
        net.host.pass(10);
        // What it had before it has no more.
        let (_, options) = asked(&mut net, A, &message(RENEW, A, &[association(&[SIX_C])]));
        assert_eq!(options[&3], held(&[(SIX_A, 7200), (SIX_C, 0)]));
        for (address, status) in [(SIX_A, 0), (SIX_C, 4), ([0xfd00, 1, 0, 0, 0, 0, 0, 1], 4)] {
            let confirm = message(CONFIRM, A, &[association(&[address])]);
            let (kind, options) = asked(&mut net, A, &confirm);
            assert_eq!((kind, &options[&13]), (REPLY, &vec![0, status]));
        }
        let release = message(RELEASE, A, &[association(&[SIX_A])]);
        let (kind, options) = asked(&mut net, A, &release);
        assert_eq!((kind, &options[&13], options.get(&3)), (REPLY, &vec![0, 0], None));
        let (kind, options) = asked(&mut net, A, &message(INFORM, A, &[option(6, &[0, 23])]));
        assert_eq!((kind, options.keys().copied().collect::<Vec<_>>()), (REPLY, vec![1, 2, 23]));
        // The next machine has an address of its own, and a sum may be left to others.
        let wish = message(SOLICIT, C, &[association(&[])]);
        let partial = to_group(C, local(C.1), SERVERS).checksum(Checksum::Partial);
        let (_, options) = read(&answer(&mut net, C, &partial.udp(546, 547, &wish)), C);
        assert_eq!(options[&3], held(&[(SIX_C, 7200)]));
        assert_eq!(net.sessions(), 0);
    }
}

/// The client is told no, and the operator sees it.
#[test]
fn what_cannot_be_given_is_refused_and_counted() {
    let mut net = net(false);
    let refused = |net: &mut Net, message: &[u8], reason: &str| {
        net.host.pass(10);
        let got = net.send(A, &sent(A, message));
        net.counts_one(A, reason);
        assert_eq!(got["a"].len(), 1);
        read(&got["a"][0], A).1
    };
    let decline = message(DECLINE, A, &[association(&[SIX_A])]);
    assert_eq!(refused(&mut net, &decline, "dhcp-declined")[&13], [0, 0]);
    // The gateway's own address is nobody's, nor is one of another network.
    for ips in [vec![], vec![ROUTER, [0xfd00, 0x50, 0, 0, 0, 0, 0, 9]]] {
        let ips = ips.into_iter().map(|six| Ipv6Addr::from(six).into()).collect();
        net.host.update("a", &VnicPolicy { ips, ..policy(A.3, false) }).unwrap();
        let none = [&7u32.to_be_bytes()[..], &[0; 8], &option(13, &[0, 2])].concat();
        for kind in [SOLICIT, REQUEST] {
            let wish = message(kind, A, &[option(14, &[]), association(&[])]);
            assert_eq!(refused(&mut net, &wish, "dhcp-no-lease")[&3], none);
        }
        let renew = message(RENEW, A, &[association(&[SIX_A])]);
        assert_eq!(refused(&mut net, &renew, "dhcp-no-lease")[&3], held(&[(SIX_A, 0)]));
    }
}

#[test]
fn what_gets_no_answer_is_heard_by_nobody() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let mut drops = |frame: &[u8], reason: &str| {
            net.host.pass(10);
            net.drops(A, frame, reason);
        };
        let wish = message(SOLICIT, A, &[association(&[])]);
        let relayed = [&[RELAY_FORWARD, 0][..], &[0; 32], &option(9, &wish)].concat();
        drops(&sent(A, &relayed), "dhcp-relayed");
        drops(&to_group(A, local(A.1), SERVERS).udp(547, 547, &relayed), "dhcp-relayed");
        let mut other = message(REQUEST, A, &[association(&[SIX_A])]);
        other[18 + 4 + 9] ^= 1;
        drops(&sent(A, &other), "dhcp-other-choice");
        drops(&sent(A, &message(CONFIRM, A, &[association(&[])])), "bad-dhcp");
        for len in [0, 1, 4, 15, wish.len() - 1] {
            drops(&sent(A, &wish[..len]), "bad-dhcp");
        }
        let sum = to_group(A, local(A.1), SERVERS).checksum(Checksum::Zero);
        drops(&sum.udp(546, 547, &wish), "bad-dhcp");
        // From its own link-local address alone (RFC 8415, 7.2).
        for source in [SIX_A.into(), Ipv6Addr::UNSPECIFIED] {
            drops(&to_group(A, source, SERVERS).udp(546, 547, &wish), "spoofed-ip");
        }
        // By unicast: some are told to use multicast, others are no such messages.
        let unicast = build::ethernet(A.1, gateway()).ipv6(local(A.1), local(gateway()));
        drops(&unicast.clone().udp(546, 547, &wish), "bad-dhcp");
        let renew = message(RENEW, A, &[association(&[SIX_A])]);
        let (kind, options) = read(&answer(&mut net, A, &unicast.udp(546, 547, &renew)), A);
        assert_eq!((kind, &options[&13], options.get(&3)), (REPLY, &vec![0, 5], None));
    }
}

#[test]
fn solicitations_that_are_wrong() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let from_a = |source: Ipv6Addr| to_group(A, source, ALL_ROUTERS);
        let own = [&[1, 1][..], &A.1.0].concat();
        net.drops(A, &from_a(local(A.1)).icmp(133, 0, 0, &own), "bad-solicitation");
        let nobody = from_a(Ipv6Addr::UNSPECIFIED).ttl(255);
        net.drops(A, &nobody.icmp(133, 0, 0, &own), "bad-solicitation");
        net.drops(A, &from_a(local(A.1)).ttl(255).icmp(133, 1, 0, &[]), "bad-solicitation");
        let mut sum = solicitation(A);
        sum[57] ^= 1;
        net.drops(A, &sum, "bad-solicitation");
        let other = [&[1, 1][..], &C.1.0].concat();
        net.drops(A, &from_a(local(A.1)).ttl(255).icmp(133, 0, 0, &other), "dhcp-other-client");
    }
}

/// A bridge in a machine: the network answers its vnics alone.
#[test]
fn others_behind_a_vnic_are_not_answered() {
    let mut net = net(true);
    let inner: Machine = ("a", Mac([2, 0, 0, 0, 9, 9]), 42, [10, 0, 0, 99]);
    net.drops(A, &solicitation(inner), "dhcp-other-client");
    net.drops(A, &sent(inner, &message(SOLICIT, inner, &[association(&[])])), "dhcp-other-client");
}

#[test]
fn other_routers_and_servers_are_not_heard() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let body = [&[0; 8][..], &[1, 1], &A.1.0].concat();
        let foreign = |ip: Ip| ip.icmp(134, 0, ADVERTISED, &body);
        net.drops(A, &foreign(advertisement(A)), "foreign-advertisement");
        let one = build::ethernet(A.1, C.1).ipv6(local(A.1), local(C.1)).ttl(255);
        net.drops(A, &foreign(one.clone()), "foreign-advertisement");
        // RFC 7113: extension headers hide nothing, however long, nor does a first fragment.
        for body in [vec![1, 4, 0, 0, 0, 0], vec![0; 150]] {
            let hidden = advertisement(A).extension(DESTINATION_OPTIONS, &body);
            net.drops(A, &foreign(hidden), "foreign-advertisement");
        }
        let endless =
            (0..8).fold(advertisement(A), |ip, _| ip.extension(DESTINATION_OPTIONS, &[0; 38]));
        net.drops(A, &foreign(endless), "foreign-advertisement");
        let message = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &body].concat();
        let first = advertisement(A).fragment(7, 0, true).payload(ICMPV6, &message);
        net.drops(A, &first, "foreign-advertisement");
        let empty = advertisement(A).extension(HOP_BY_HOP, &[]).fragment(7, 0, true);
        net.drops(A, &empty.payload(ICMPV6, &[]), "foreign-advertisement");
        // To a client's port, from any other.
        let offer = [&[ADVERTISE, 0xca, 0xfe, 1][..], &option(2, &[0, 3, 0, 1, 2, 2])].concat();
        for port in [547, 546, 4000] {
            let server = build::ethernet(A.1, C.1).ipv6(local(A.1), local(C.1));
            net.drops(A, &server.udp(port, 546, &offer), "dhcp-other-server");
        }
        let server = build::ethernet(A.1, C.1).ipv6(SIX_A, SIX_C);
        let first = server.fragment(7, 0, true).payload(UDP, &[2, 35, 2, 34, 0, 60, 0, 0]);
        net.drops(A, &first, "dhcp-other-server");
    }
}

/// A priority tag names no VLAN, and receivers take it off.
#[test]
fn tags_hide_nothing() {
    let mut net = net(true);
    let body = [&[0; 8][..], &[1, 1], &A.1.0].concat();
    let all = Mac::of_group_v6(ipv6::ALL_NODES);
    let tagged = |ids: &[u16]| {
        let link = ids.iter().fold(build::ethernet(A.1, all), |link, id| link.vlan(*id));
        link.ipv6(local(A.1), ALL_NODES).ttl(255).icmp(134, 0, ADVERTISED, &body)
    };
    net.drops(A, &tagged(&[0]), "foreign-advertisement");
    net.drops(A, &tagged(&[0, 0, 0]), "foreign-advertisement");
    // In a VLAN of their own machines do as they like.
    assert_eq!(net.send(A, &tagged(&[5])).keys().collect::<Vec<_>>(), ["c"]);
}

/// A server of another network is not heard through a router.
#[test]
fn servers_behind_routers_are_not_heard() {
    let mut net = net(true);
    let four = Subnet::parse("10.1.0.0/24", Some("10.1.0.1")).unwrap();
    let fifty = Subnet::parse("fd00:50::/64", Some("fd00:50::1")).unwrap();
    let network = Network::new(vni(50), vec![four, fifty], None).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(network));
    let b = Ipv6Addr::from([0xfd00, 0x50, 0, 0, 0, 0, 0, 0xb]);
    let ips = vec![B.3.into(), b.into()];
    net.host.update("b", &VnicPolicy { ips, ..policy(B.3, true) }).unwrap();
    let through = build::ethernet(B.1, gateway()).ipv6(b, SIX_A);
    net.drops(B, &through.clone().udp(547, 546, &[2, 0, 0, 1]), "dhcp-other-server");
    let plain = through.clone().udp(547, 545, b"x");
    assert_eq!(net.send(B, &plain).keys().collect::<Vec<_>>(), ["a"]);
    // Nothing hides it: no extension headers, and no first fragment without its ports.
    let hidden = through.clone().extension(DESTINATION_OPTIONS, &[0; 38]);
    net.drops(B, &hidden.udp(547, 546, &[2, 0, 0, 1]), "dhcp-other-server");
    let first = through.clone().fragment(7, 0, true).payload(UDP, &[2, 35, 2, 34, 0, 60, 0, 0]);
    net.drops(B, &first, "dhcp-other-server");
    let empty = through.clone().fragment(7, 0, true).payload(UDP, &[]);
    net.drops(B, &empty, "dhcp-other-server");
    let more = through.clone().fragment(7, 0, true);
    let more = more.payload(DESTINATION_OPTIONS, &[17, 0, 1, 4, 0, 0, 0, 0]);
    net.drops(B, &more, "dhcp-other-server");
    let endless = (0..5).fold(through.clone(), |ip, _| ip.extension(DESTINATION_OPTIONS, &[0; 38]));
    net.drops(B, &endless.udp(547, 546, &[2, 0, 0, 1]), "dhcp-other-server");
    // Nor where no subnet is of IPv4.
    net.host.change_routing(with_blocks(&[0x42], Some(dhcp())));
    net.drops(B, &through.clone().udp(547, 546, &[2, 0, 0, 1]), "dhcp-other-server");
    // Without DHCP all of it passes.
    net.host.change_routing(with_blocks(&[0x42], None));
    for frame in [through.udp(547, 546, &[2, 0, 0, 1]), empty] {
        assert_eq!(net.send(B, &frame).keys().collect::<Vec<_>>(), ["a"]);
    }
}

#[test]
fn without_dhcp_all_is_as_before() {
    let mut net = net(true);
    net.host.change_routing(leasing(None));
    // Whoever asked before is told that this is over.
    net.host.seek();
    assert_eq!(net.host.received().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
    let body = [&[0; 8][..], &[1, 1], &A.1.0].concat();
    let foreign = advertisement(A).icmp(134, 0, ADVERTISED, &body);
    let wish = sent(A, &message(SOLICIT, A, &[association(&[])]));
    for frame in [solicitation(A), foreign, wish] {
        assert_eq!(net.send(A, &frame), BTreeMap::from([("c".to_owned(), vec![frame])]));
    }
    // Nor where no subnet is of IPv6: machines have what they like there.
    let four = Subnet::parse("10.0.0.0/24", Some("10.0.0.1")).unwrap();
    let network = Network::new(vni(42), vec![four], None).unwrap().with_dhcp(Some(dhcp())).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(network));
    let frame = solicitation(A);
    assert_eq!(net.send(A, &frame), BTreeMap::from([("c".to_owned(), vec![frame])]));
    net.host.pass(3);
    net.host.seek();
    assert_eq!(net.host.received().unwrap(), BTreeMap::new());
}

/// A flood costs its sender alone: others are answered.
#[test]
fn each_vnic_has_a_budget() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let wish = sent(A, &message(SOLICIT, A, &[association(&[])]));
        let mut limited = |frame: &[u8], sent: u64, reason: &str| {
            let answers: usize = (0..sent).map(|_| net.send(A, frame).len()).sum();
            let drops = net.host.moved().get(&format!("a.drop.{reason}")).copied().unwrap_or(0);
            assert_eq!(answers as u64 + drops, sent);
            answers
        };
        assert_eq!(limited(&wish, 20, "dhcp-limit"), 8);
        assert_eq!(limited(&solicitation(A), 200, "born-full"), 80);
        net.host.pass(1);
        net.host.moved();
        let answers = (0..20).filter(|_| !net.send(A, &wish).is_empty()).count();
        assert_eq!(answers, 4);
        net.host.moved();
        told(&answer(&mut net, C, &solicitation(C)));
        asked(&mut net, C, &message(SOLICIT, C, &[association(&[])]));
        // Its router is still found beside a flood of solicitations.
        for _ in 0..200 {
            net.send(A, &solicitation(A));
        }
        net.host.moved();
        let own = local(gateway());
        let body = [&own.octets()[..], &[1, 1], &A.1.0].concat();
        let asks = build::ethernet(A.1, gateway()).ipv6(local(A.1), own).ttl(255);
        answer(&mut net, A, &asks.icmp(v6::NEIGHBOUR_SOLICITATION, 0, 0, &body));
    }
}

/// Sixteen answers of one batch, and four for leases.
#[test]
fn a_batch_has_room_for_so_many() {
    let mut net = net(true);
    let wish = sent(A, &message(SOLICIT, A, &[association(&[])]));
    let asks = solicitation(A);
    let guest = net.host.guest("a").unwrap();
    for frame in std::iter::repeat_n(&asks, 20).chain(std::iter::repeat_n(&wish, 6)) {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    while net.host.turn() {}
    let moved = net.host.moved();
    assert_eq!(net.host.received().unwrap()["a"].len(), 20, "{moved:?}");
    assert_eq!(moved["a.drop.born-full"], 6, "{moved:?}");
}

#[test]
fn vnics_are_told_without_asking() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let heard = |net: &mut Net| {
            net.host.seek();
            let got = net.host.received().unwrap();
            let moved = net.host.moved();
            assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
            got
        };
        net.host.pass(1);
        let got = heard(&mut net);
        assert_eq!(got.keys().collect::<Vec<_>>(), ["a", "c"], "not in network 50");
        for (id, mac) in [("a", A.1), ("c", C.1)] {
            assert_eq!(got[id].len(), 1);
            let got = told(&got[id][0].1);
            assert_eq!((got.from, got.lifetime), ((gateway(), local(gateway())), 1800));
            assert_eq!(got.to, (mac, ipv6::ALL_NODES), "for nobody else");
        }
        for _ in 0..199 {
            net.host.pass(1);
            assert_eq!(heard(&mut net), BTreeMap::new());
        }
        let mut counts = BTreeMap::new();
        for _ in 0..1200 {
            net.host.pass(1);
            for (id, frames) in heard(&mut net) {
                *counts.entry(id).or_insert(0) += frames.len();
            }
        }
        assert!(counts.len() == 2 && counts.values().all(|n| (2..=7).contains(n)), "{counts:?}");
        // A change is told at once, but for a second one within three seconds.
        net.host.change_routing(router("r", &[50]));
        net.host.pass(3);
        let got = heard(&mut net);
        assert_eq!(got.len(), 2);
        // By the router that left, too: else machines go on with it.
        let of_a: Vec<Told> = got["a"].iter().map(|(_, frame)| told(frame)).collect();
        assert!(of_a.len() == 2 && of_a.iter().all(|told| told.lifetime == 0), "{of_a:?}");
        assert!(of_a.iter().any(|told| told.from == (gateway(), local(gateway()))), "{of_a:?}");
        net.host.change_routing(router("r", &[42, 50]));
        net.host.pass(1);
        assert_eq!(heard(&mut net), BTreeMap::new());
        net.host.pass(2);
        let got = heard(&mut net);
        assert_eq!((got["c"].len(), told(&got["c"][0].1).lifetime), (1, 1800));
    }
}

/// Has what is due told. Returns it, by who got it: nothing is dropped.
fn heard(net: &mut Net) -> BTreeMap<String, Vec<Told>> {
    net.host.seek();
    let got = net.host.received().unwrap();
    let moved = net.host.moved();
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    let tell = |frames: Vec<(NetHeader, Vec<u8>)>| {
        frames.iter().map(|(_, frame)| told(frame)).collect::<Vec<_>>()
    };
    got.into_iter().map(|(id, frames)| (id, tell(frames))).collect()
}

/// Guests go on with a router until it says that it is none.
#[test]
fn what_is_told_no_more_is_taken_back() {
    let four = Subnet::parse("10.0.0.0/24", Some("10.0.0.1")).unwrap();
    let four = Network::new(vni(42), vec![four], None).unwrap().with_dhcp(Some(dhcp())).unwrap();
    for change in [leasing(None), RoutingChange::DeclareNetwork(four)] {
        for bypass in [true, false] {
            let mut net = net(bypass);
            net.host.pass(1);
            assert_eq!(heard(&mut net).len(), 2);
            net.host.change_routing(change.clone());
            net.host.pass(3);
            let got = heard(&mut net);
            assert_eq!(got.keys().collect::<Vec<_>>(), ["a", "c"]);
            for told in got.values() {
                assert_eq!((told.len(), told[0].lifetime), (1, 0), "{told:?}");
                assert_eq!(told[0].from, (gateway(), local(gateway())));
            }
            // Once, and nothing else any more: not to those that come either.
            let late: Machine = ("late", Mac([2, 0, 0, 0, 0, 0x1a]), 42, [10, 0, 0, 26]);
            net.host.vnic(late.0, late.1, late.2, &policy(late.3, bypass)).unwrap();
            net.host.settle();
            net.host.moved();
            for _ in 0..700 {
                net.host.pass(1);
                assert_eq!(heard(&mut net), BTreeMap::new());
            }
        }
    }
}

/// Guests that were given it by hand, or before `--dhcp` was taken back, look whether it is there.
#[test]
fn a_link_local_gateway_is_there_without_dhcp() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        net.host.change_routing(leasing(None));
        let own = local(gateway());
        let body = [&own.octets()[..], &[1, 1], &A.1.0].concat();
        let asks = build::ethernet(A.1, gateway()).ipv6(local(A.1), own).ttl(255);
        let frame = answer(&mut net, A, &asks.icmp(v6::NEIGHBOUR_SOLICITATION, 0, 0, &body));
        assert_eq!(frame[..], neighbour::advertisement((A.1, local(A.1)), (gateway(), own)));
        let body = [&own.octets()[..], &[2, 1], &C.1.0].concat();
        let claim = to_group(C, own, ALL_NODES).ttl(255).icmp(136, 0, 0x2000_0000, &body);
        net.drops(C, &claim, "gateway-claimed");
    }
}

/// Blocks of an advertisement, and for how many seconds they are of the link, and preferred.
fn blocks(told: &Told) -> Vec<(Ipv6Addr, u32, u32)> {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let of = |value: &[u8]| {
        assert_eq!(value[..2], [64, 0x80]);
        let block: [u8; 16] = value[14..30].try_into().unwrap();
        (block.into(), word(&value[2..6]), word(&value[6..10]))
    };
    let options = told.options.iter().filter(|(kind, _)| *kind == 3);
    options.map(|(_, value)| of(value)).collect()
}

/// Network 42 with these subnets of IPv6, each 64 bits long.
fn with_blocks(numbers: &[u16], dhcp: Option<Dhcp>) -> RoutingChange {
    let subnet =
        |n: &u16| Subnet::parse(&format!("fd00:{n:x}::/64"), Some(&format!("fd00:{n:x}::1")));
    let subnets = numbers.iter().map(|n| subnet(n).unwrap()).collect();
    let network = Network::new(vni(42), subnets, None).unwrap();
    RoutingChange::DeclareNetwork(network.with_dhcp(dhcp).unwrap())
}

/// Guests would look for machines of a former subnet on their link for a day.
#[test]
fn blocks_that_left_the_link_are_taken_back() {
    let block = |n: u16| Ipv6Addr::from([0xfd00, n, 0, 0, 0, 0, 0, 0]);
    let is_there = |n: u16| (block(n), 86_400, 14_400);
    let is_gone = |n: u16| (block(n), 0, 0);
    let mut net = net(true);
    let told_of = |net: &mut Net, change: RoutingChange| {
        net.host.change_routing(change);
        net.host.pass(3);
        let got = heard(net);
        assert_eq!(got.keys().collect::<Vec<_>>(), ["a", "c"]);
        got["a"].iter().map(blocks).collect::<Vec<_>>()
    };
    let first = told_of(&mut net, with_blocks(&[0x42, 0x43], Some(dhcp())));
    assert_eq!(first, [[is_there(0x42), is_there(0x43)]]);
    let left = told_of(&mut net, with_blocks(&[0x43], Some(dhcp())));
    assert_eq!(left, [[is_there(0x43), is_gone(0x42)]]);
    // Whoever comes later may have heard of it before.
    net.host.pass(600);
    assert_eq!(blocks(&heard(&mut net)["c"][0]), [is_there(0x43), is_gone(0x42)]);
    let back = told_of(&mut net, with_blocks(&[0x42, 0x43], Some(dhcp())));
    assert_eq!(back, [[is_there(0x42), is_there(0x43)]]);
    // The farewell of a router takes back what the network has no longer.
    let quiet = told_of(&mut net, with_blocks(&[0x42], None));
    assert_eq!(quiet, [[is_gone(0x43)]]);
    // After a day all forgot it.
    told_of(&mut net, with_blocks(&[0x42, 0x43], Some(dhcp())));
    told_of(&mut net, with_blocks(&[0x43], Some(dhcp())));
    net.host.pass(86_400);
    assert_eq!(blocks(&heard(&mut net)["a"][0]), [is_there(0x43)]);
}

/// A machine that asks hears of what may be gone before its vnic is due again.
#[test]
fn what_was_asked_for_is_taken_back_too() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        net.host.change_routing(router("r", &[50]));
        net.host.change_routing(with_blocks(&[0x42], Some(dhcp())));
        net.host.pass(1);
        let told_at_first = heard(&mut net);
        assert!(told_at_first.values().flatten().all(|told| told.lifetime == 0));
        // Both come and go within three seconds, in which nothing is told unasked.
        net.host.change_routing(router("r", &[42, 50]));
        net.host.change_routing(with_blocks(&[0x42, 0x43], Some(dhcp())));
        let got = told(&answer(&mut net, A, &solicitation(A)));
        assert_eq!((got.from.0, got.lifetime, blocks(&got).len()), (gateway(), 1800, 2));
        net.host.pass(1);
        assert_eq!(heard(&mut net), BTreeMap::new());
        net.host.change_routing(with_blocks(&[0x42], Some(dhcp())));
        net.host.change_routing(router("r", &[50]));
        net.host.pass(2);
        let got = heard(&mut net);
        assert_eq!(got.keys().collect::<Vec<_>>(), ["a", "c"], "each may have asked");
        for told in got.values() {
            assert!(told.iter().all(|told| told.lifetime == 0), "{told:?}");
            assert!(told.iter().any(|told| told.from.0 == gateway()), "{told:?}");
            let gone = (Ipv6Addr::from([0xfd00, 0x43, 0, 0, 0, 0, 0, 0]), 0, 0);
            assert!(told.iter().all(|told| blocks(told).contains(&gone)), "{told:?}");
        }
        // Once.
        for _ in 0..100 {
            net.host.pass(1);
            assert_eq!(heard(&mut net), BTreeMap::new());
        }
    }
}

/// Vnics of several networks that lease addresses, and which are not told yet.
fn crowd(networks: &[(u32, u8)]) -> Net {
    let mut net = Net::apart(&[], true);
    for (number, vnics) in networks {
        for n in 0..*vnics {
            let mac = Mac([2, 0, 0, 1, *number as u8, n]);
            let own = policy([10, 0, 0, 100 + n], true);
            net.host.vnic(&format!("{number}-{n}"), mac, *number, &own).unwrap();
        }
        let subnet = Subnet::parse("fd00:42::/64", Some("fd00:42::1")).unwrap();
        let network = Network::new(vni(*number), vec![subnet], None).unwrap();
        let network = network.with_dhcp(Some(dhcp())).unwrap();
        net.host.change_routing(RoutingChange::DeclareNetwork(network));
    }
    net.host.settle();
    net.host.received().unwrap();
    net.host.moved();
    net
}

/// Numbers of advertisements that networks heard.
fn by_network(got: &BTreeMap<String, Vec<Told>>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (id, told) in got {
        *counts.entry(id.split('-').next().unwrap().to_owned()).or_default() += told.len();
    }
    counts
}

/// A network with many vnics keeps no other one waiting, and takes what others leave.
#[test]
fn a_crowd_leaves_room_for_other_networks() {
    let mut networks = vec![(60, 150)];
    networks.extend((61..=66).map(|number| (number, 40)));
    networks.push((67, 5));
    let mut net = crowd(&networks);
    let mut sums = BTreeMap::<String, usize>::new();
    net.host.pass(1);
    let got = by_network(&heard(&mut net));
    assert_eq!(got.values().sum::<usize>(), 256, "{got:?}");
    assert_eq!(got["67"], 5, "{got:?}");
    assert!((61..=66).all(|number: u32| got[&number.to_string()] >= 32), "{got:?}");
    for (network, count) in got {
        *sums.entry(network).or_default() += count;
    }
    net.host.pass(1);
    for (network, count) in by_network(&heard(&mut net)) {
        *sums.entry(network).or_default() += count;
    }
    let all = networks.iter().map(|(vni, vnics)| (vni.to_string(), usize::from(*vnics)));
    assert_eq!(sums, all.collect(), "each is told once");
}

/// The next second begins with the networks that had no turn.
#[test]
fn networks_take_turns() {
    let networks: Vec<(u32, u8)> = (60..80).map(|number| (number, 20)).collect();
    let mut net = crowd(&networks);
    let mut heard_by = |router: &str| {
        for (number, _) in &networks {
            net.host.change_routing(router_of(router, *number));
        }
        net.host.pass(3);
        let got = by_network(&heard(&mut net));
        let all: usize = got.values().sum();
        assert!(all > 250 && all <= 256, "farewells count, too: {got:?}");
        got
    };
    // Each time all that is told changes, and there is room for 12 networks, and for most of one.
    let first = heard_by("r1");
    let second = heard_by("r2");
    let third = heard_by("r3");
    assert!(first.len() < 20, "{first:?}");
    for (number, _) in &networks {
        let number = number.to_string();
        let turns = [&first, &second, &third].iter().filter(|it| it.contains_key(&number)).count();
        assert!(turns >= 1, "{number}");
    }
}

/// A router of one network, which no other has.
fn router_of(id: &str, number: u32) -> RoutingChange {
    router(&format!("{id}-{number}"), &[number])
}

/// A worker that has much to announce sends them as soon as it has room.
#[test]
fn a_worker_without_room_advertises_later() {
    let mut net = net(true);
    for _ in 0..600 {
        net.host.announce_once("b").unwrap();
    }
    net.host.pass(1);
    net.host.seek();
    // Workers of tests look at their orders when others come.
    for _ in 0..4 {
        net.host.announce_once("b").unwrap();
        net.host.settle();
    }
    let got = net.host.received().unwrap();
    for id in ["a", "c"] {
        let frames = got.get(id).into_iter().flatten().map(|(_, frame)| frame);
        let adverts = frames.filter(|frame| frame.len() > 54 && frame[12..14] == [0x86, 0xdd]);
        assert_eq!(adverts.filter(|frame| frame[54] == 134).count(), 1, "{id}");
    }
    // They wait no longer, and others have room.
    net.host.moved();
    net.host.pass(600);
    assert_eq!(heard(&mut net).len(), 2);
}

/// Advertisements of other hosts count for the network; those of this one stay here.
#[test]
fn other_hosts_are_no_routers_either() {
    let mut net = hosts::host(1, &[A, C], true);
    net.host.change_routing(leasing(Some(dhcp())));
    let far: Machine = ("far", Mac([2, 0, 0, 0, 0, 9]), 42, [10, 0, 0, 9]);
    let body = [&[0; 8][..], &[1, 1], &far.1.0].concat();
    let foreign = advertisement(far).icmp(134, 0, ADVERTISED, &body);
    assert_eq!(net.gets(&[hosts::outer((2, 1), 42, &foreign)]), BTreeMap::new());
    assert_eq!(net.drops_counted(), [("vni-42.drop.foreign-advertisement".to_owned(), 1)]);
    let server = build::ethernet(far.1, A.1).ipv6(local(far.1), local(A.1));
    let offer = server.udp(547, 546, &[2, 0, 0, 1]);
    assert_eq!(net.gets(&[hosts::outer((2, 1), 42, &offer)]), BTreeMap::new());
    assert_eq!(net.drops_counted(), [("vni-42.drop.dhcp-other-server".to_owned(), 1)]);
    for frame in [solicitation(A), sent(A, &message(SOLICIT, A, &[association(&[])]))] {
        assert_eq!(net.leaves(A, &frame), Vec::<Vec<u8>>::new());
        assert_eq!(net.host.received().unwrap()["a"].len(), 1);
    }
    net.host.pass(1);
    net.host.seek();
    assert_eq!(net.host.received().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn explanations_say_who_answers() {
    let mut net = net(false);
    let question = Question {
        from: Origin::Vnic("a".into()),
        to: Target::Address(Ipv6Addr::from(SERVERS).into()),
        source: Some(local(A.1).into()),
        source_mac: None,
        destination_mac: None,
        protocol: UDP,
        source_port: Some(546),
        destination_port: Some(547),
        flags: None,
        icmp: None,
        length: None,
        reply: false,
    };
    let explained = |net: &mut Net, question: &Question, texts: &[&str]| {
        let told = net.host.explain(question).unwrap();
        assert_eq!(told.walks[0].fate, Fate::Answered, "{told:?}");
        let steps = &told.walks[0].steps;
        for text in texts {
            assert!(steps.iter().any(|step| step.text == *text), "{steps:?}");
        }
    };
    let itself = "VNI 42 gives its vnics their addresses itself";
    explained(&mut net, &question, &[itself, "it offers fd00:42::a to a"]);
    let solicits = Question {
        to: Target::Address(Ipv6Addr::from(ALL_ROUTERS).into()),
        protocol: ICMPV6,
        source_port: None,
        destination_port: None,
        icmp: Some((133, 0)),
        ..question.clone()
    };
    let router = format!("{} advertises itself to a as a router, for 1800 s", local(gateway()));
    explained(&mut net, &solicits, &["VNI 42 tells its vnics of its routers itself", &router]);
    let foreign = Question {
        to: Target::Address(Ipv6Addr::from(ALL_NODES).into()),
        icmp: Some((134, 0)),
        ..solicits
    };
    let told = net.host.explain(&foreign).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "foreign-advertisement");
    net.host.update("a", &policy(A.3, false)).unwrap();
    let told = net.host.explain(&question).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "dhcp-no-lease");
}
