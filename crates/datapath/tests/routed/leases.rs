//! DHCP of networks: vnics get their addresses from what is declared, and from nobody else.

use std::{collections::BTreeMap, net::Ipv4Addr};

use butterfly_datapath::{
    Fate, GroupChange, Mac, Origin, Question, RoutingChange, Target, VnicPolicy,
};
use butterfly_model::{
    Cidr, Dhcp, DhcpRoute, Direction, GroupName, Network, Rule, Subnet, service_mac,
};
use butterfly_packet::{
    build::{self, Checksum, Ip},
    dhcp::DhcpOptions,
    ethernet::Ethernet,
    ipv4::Ipv4,
    protocol::UDP,
    udp::Udp,
};
use butterfly_vhost::net::NetHeader;

use crate::{hosts, net::*};

const NOBODY: [u8; 4] = [0; 4];
const ALL: [u8; 4] = [255; 4];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

fn dhcp() -> Dhcp {
    Dhcp::new(Some(7200)).unwrap().with_dns(&["9.9.9.9".parse().unwrap()]).unwrap()
}

/// Network 42 with these subnets and gateways.
fn leasing(subnets: &[(&str, Option<&str>)], dhcp: Option<Dhcp>) -> RoutingChange {
    let read = |(block, gateway): &(&str, Option<&str>)| Subnet::parse(block, *gateway).unwrap();
    let network = Network::new(vni(42), subnets.iter().map(read).collect(), Some(1450)).unwrap();
    RoutingChange::DeclareNetwork(network.with_dhcp(dhcp).unwrap())
}

const SUBNET: (&str, Option<&str>) = ("10.0.0.0/24", Some("10.0.0.1"));

/// Machines in networks 42, which leases addresses, and 50; a router joins them.
fn net(machines: &[Machine], bypass: bool) -> Net {
    let net = Net::new(machines, bypass);
    net.host.change_routing(leasing(&[SUBNET], Some(dhcp())));
    net
}

/// A message of a client.
#[derive(Clone)]
struct Message {
    kind: u8,
    mac: Mac,
    client: [u8; 4],
    relay: [u8; 4],
    flags: u8,
    options: Vec<u8>,
}

impl Message {
    fn of(machine: Machine, kind: u8) -> Message {
        let mac = machine.1;
        Message { kind, mac, client: NOBODY, relay: NOBODY, flags: 0, options: Vec::new() }
    }

    fn option(mut self, code: u8, value: &[u8]) -> Message {
        self.options.extend([code, value.len() as u8]);
        self.options.extend(value);
        self
    }

    fn client(self, client: [u8; 4]) -> Message {
        Message { client, ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![1, 1, 6, 0, 0xca, 0xfe, 0, 1, 0, 0, self.flags, 0];
        bytes.extend([self.client, NOBODY, NOBODY, self.relay].concat());
        bytes.extend(self.mac.0);
        bytes.resize(236, 0);
        bytes.extend([99, 130, 83, 99, 53, 1, self.kind]);
        bytes.extend(&self.options);
        bytes.push(255);
        bytes.resize(bytes.len().max(300), 0);
        bytes
    }

    /// As it is sent without an address.
    fn broadcast(&self, from: Machine) -> Vec<u8> {
        broadcast(from).udp(68, 67, &self.bytes())
    }
}

fn broadcast(from: Machine) -> Ip {
    build::ethernet(from.1, Mac::BROADCAST).ipv4(NOBODY, ALL)
}

/// An answer, as a client reads it.
#[derive(Debug, PartialEq)]
struct Answer {
    kind: u8,
    yours: Ipv4Addr,
    server: Ipv4Addr,
    from: Mac,
    to: (Mac, Ipv4Addr),
    options: BTreeMap<u8, Vec<u8>>,
}

fn read(frame: &[u8]) -> Answer {
    let link = Ethernet::parse(frame).unwrap();
    let ip = Ipv4::parse(link.payload()).unwrap();
    let udp = Udp::parse(ip.payload().unwrap()).unwrap();
    assert_eq!((udp.source_port(), udp.destination_port()), (67, 68));
    let message = udp.payload().unwrap();
    assert_eq!(message[4..8], [0xca, 0xfe, 0, 1]);
    let options = DhcpOptions::of_message(message).unwrap().map(Result::unwrap);
    let options: BTreeMap<u8, Vec<u8>> = options.map(|(code, it)| (code, it.to_vec())).collect();
    let four = |bytes: &[u8]| Ipv4Addr::from(*bytes.first_chunk::<4>().unwrap());
    Answer {
        kind: options[&53][0],
        yours: four(&message[16..]),
        server: four(&options[&54]),
        from: link.source(),
        to: (link.destination(), ip.destination()),
        options,
    }
}

/// Sends a frame. Returns the one answer, which the sender alone gets.
#[track_caller]
fn answer(net: &mut Net, from: Machine, frame: &[u8]) -> Answer {
    let mut got = net.send(from, frame);
    let moved = net.host.moved();
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    assert_eq!(got.keys().collect::<Vec<_>>(), [from.0]);
    let frames = got.remove(from.0).unwrap();
    assert_eq!(frames.len(), 1);
    read(&frames[0])
}

#[test]
fn a_vnic_gets_its_declared_address() {
    for bypass in [true, false] {
        let mut net = net(&[A, B, C], bypass);
        let wish = Message::of(A, DISCOVER).option(55, &[1, 3, 6, 26, 28]);
        let offer = answer(&mut net, A, &wish.broadcast(A));
        assert_eq!((offer.kind, offer.yours), (OFFER, A.3.into()));
        assert_eq!((offer.server, offer.from), (GATEWAYS[0].into(), gateway()));
        assert_eq!(offer.to, (A.1, A.3.into()));
        let options: [(u8, &[u8]); 10] = [
            (1, &[255, 255, 255, 0]),
            (3, &GATEWAYS[0]),
            (6, &[9, 9, 9, 9]),
            (26, &[5, 170]),
            (28, &[10, 0, 0, 255]),
            (51, &7200u32.to_be_bytes()),
            (53, &[OFFER]),
            (54, &GATEWAYS[0]),
            (58, &3600u32.to_be_bytes()),
            (59, &6300u32.to_be_bytes()),
        ];
        let options = options.map(|(code, value)| (code, value.to_vec()));
        assert_eq!(offer.options, BTreeMap::from(options));
        let chosen = Message { flags: 0x80, ..Message::of(A, REQUEST) };
        let chosen = chosen.option(50, &A.3).option(54, &GATEWAYS[0]).broadcast(A);
        let ack = answer(&mut net, A, &chosen);
        assert_eq!((ack.kind, ack.yours), (ACK, A.3.into()));
        assert_eq!(ack.to, (Mac::BROADCAST, Ipv4Addr::BROADCAST));
        // It renews the lease at its server, of which it knows the MAC address.
        let renewal = Message::of(A, REQUEST).client(A.3).bytes();
        let unicast = build::ethernet(A.1, gateway()).ipv4(A.3, GATEWAYS[0]);
        let ack = answer(&mut net, A, &unicast.clone().udp(68, 67, &renewal));
        assert_eq!((ack.kind, ack.yours, ack.to), (ACK, A.3.into(), (A.1, A.3.into())));
        // Without a sum, and with one that is left to others.
        for checksum in [Checksum::Zero, Checksum::Partial] {
            let frame = unicast.clone().checksum(checksum).udp(68, 67, &renewal);
            assert_eq!(answer(&mut net, A, &frame).kind, ACK);
        }
        // Who is of another network gets nothing from this one.
        net.host.pass(10);
        let got = net.send(B, &Message::of(B, DISCOVER).broadcast(B));
        assert_eq!(got, BTreeMap::new());
        net.host.moved();
        // The next machine has an address of its own.
        let offer = answer(&mut net, C, &Message::of(C, DISCOVER).broadcast(C));
        assert_eq!(offer.yours.octets(), C.3);
        assert_eq!(net.sessions(), 0);
    }
}

/// No OUTBOUND rule is needed: a network gives its vnics their addresses itself.
#[test]
fn a_lease_needs_no_rule() {
    let mut net = net(&[A, B], false);
    let ports = (Some(443), Some(443));
    let everybody = Cidr::new("0.0.0.0", 0).unwrap();
    let rule = Rule::new(Direction::Outbound, 6, ports, Some(everybody), None).unwrap();
    net.host.change_group(&GroupName::new("open").unwrap(), GroupChange::AddRule(rule)).unwrap();
    let offer = answer(&mut net, A, &Message::of(A, DISCOVER).broadcast(A));
    assert_eq!(offer.yours.octets(), A.3);
}

/// RFC 3442.
#[test]
fn routes_are_told_with_the_default_route() {
    let mut net = net(&[A], false);
    let routes = |texts: &[&str]| {
        let routes: Vec<_> = texts.iter().map(|text| DhcpRoute::parse(text).unwrap()).collect();
        dhcp().with_routes(&routes).unwrap()
    };
    let other = ("10.7.0.0/24", Some("10.7.0.1"));
    let wish = Message::of(A, DISCOVER).option(55, &[3, 121, 249]).broadcast(A);
    let declared = routes(&["10.9.0.0/16=10.0.0.7", "10.8.0.0/16=10.7.0.7"]);
    net.host.change_routing(leasing(&[SUBNET, other], Some(declared)));
    let offer = answer(&mut net, A, &wish);
    let told = [&[16, 10, 9, 10, 0, 0, 7, 0][..], &GATEWAYS[0]].concat();
    assert_eq!((&offer.options[&121], &offer.options[&249]), (&told, &told));
    assert!(!offer.options.contains_key(&3));
    let declared = routes(&["0.0.0.0/0=10.0.0.7"]);
    net.host.change_routing(leasing(&[SUBNET], Some(declared)));
    assert_eq!(answer(&mut net, A, &wish).options[&121], [0, 10, 0, 0, 7]);
    net.host.change_routing(leasing(&[SUBNET], Some(routes(&[]))));
    let offer = answer(&mut net, A, &wish);
    assert_eq!(offer.options[&3], GATEWAYS[0]);
    assert!(!offer.options.contains_key(&121) && !offer.options.contains_key(&249));
}

/// The first address that is declared, and any other one that the client wants and the vnic has.
#[test]
fn a_vnic_with_many_addresses() {
    let mut net = net(&[A], false);
    let second = ("10.7.0.0/24", Some("10.7.0.1"));
    net.host.change_routing(leasing(&[SUBNET, second], Some(dhcp())));
    let ips = |ips: &[[u8; 4]]| {
        let ips = ips.iter().map(|ip| (*ip).into()).collect();
        VnicPolicy { ips, ..policy(A.3, false) }
    };
    let discover = |net: &mut Net, wanted: Option<[u8; 4]>| {
        net.host.pass(10);
        let message = Message::of(A, DISCOVER);
        let message = match wanted {
            Some(wanted) => message.option(50, &wanted),
            None => message,
        };
        let offer = answer(net, A, &message.broadcast(A));
        (offer.yours.octets(), offer.server.octets())
    };
    // Networks' own addresses, broadcasts, gateways and addresses elsewhere are not leased.
    let all = [
        [10, 0, 0, 0],
        [10, 0, 0, 255],
        [192, 0, 2, 1],
        [10, 7, 0, 20],
        [10, 0, 0, 20],
        [10, 0, 0, 10],
    ];
    net.host.update("a", &ips(&all)).unwrap();
    assert_eq!(discover(&mut net, None), ([10, 7, 0, 20], [10, 7, 0, 1]));
    assert_eq!(discover(&mut net, Some([10, 0, 0, 20])), ([10, 0, 0, 20], GATEWAYS[0]));
    for not_leased in [[10, 0, 0, 0], [10, 0, 0, 255], [192, 0, 2, 1], [10, 0, 0, 99]] {
        assert_eq!(discover(&mut net, Some(not_leased)).0, [10, 7, 0, 20]);
    }
    // Another order is another declaration.
    let mut other = all;
    other.reverse();
    net.host.update("a", &ips(&other)).unwrap();
    assert_eq!(discover(&mut net, None), ([10, 0, 0, 10], GATEWAYS[0]));
    // An address that it has already: all that goes with it.
    for (has, gateway) in [([10, 0, 0, 20], GATEWAYS[0]), ([10, 7, 0, 20], [10, 7, 0, 1])] {
        net.host.pass(10);
        let inform = Message::of(A, INFORM).client(has).option(55, &[3]).bytes();
        let frame = build::ethernet(A.1, Mac::BROADCAST).ipv4(has, ALL).udp(68, 67, &inform);
        let ack = answer(&mut net, A, &frame);
        assert_eq!((ack.kind, ack.yours, ack.server), (ACK, NOBODY.into(), gateway.into()));
        assert_eq!((&ack.options[&3][..], ack.to.1), (&gateway[..], has.into()));
        assert!(!ack.options.contains_key(&51) && !ack.options.contains_key(&58));
    }
    let inform = Message::of(A, INFORM).client([192, 0, 2, 1]).broadcast(A);
    net.drops(A, &inform, "dhcp-no-lease");
}

/// RFC 2131, 4.3.2: told so at once, the client looks for another address.
#[test]
fn what_cannot_be_leased_is_refused() {
    let mut net = net(&[A, C], false);
    let refused = |net: &mut Net, message: Message| {
        net.host.pass(10);
        let nak = answer(net, A, &message.broadcast(A));
        assert_eq!((nak.kind, nak.yours, nak.server), (NAK, NOBODY.into(), GATEWAYS[0].into()));
        let to = match message.client {
            NOBODY => (Mac::BROADCAST, Ipv4Addr::BROADCAST),
            renewed => (A.1, renewed.into()),
        };
        assert_eq!(nak.to, to);
        assert_eq!(nak.options.keys().copied().collect::<Vec<_>>(), [53, 54]);
    };
    let request = || Message::of(A, REQUEST);
    for address in [C.3, [10, 0, 0, 1], [10, 0, 0, 0], [192, 168, 1, 5]] {
        refused(&mut net, request().option(50, &address));
        refused(&mut net, request().option(50, &address).option(54, &GATEWAYS[0]));
        refused(&mut net, request().client(address));
    }
    // Also where nothing can be leased any more.
    net.host.update("a", &VnicPolicy { ips: Vec::new(), ..policy(A.3, false) }).unwrap();
    refused(&mut net, request().option(50, &A.3));
    refused(&mut net, request().client(A.3));
    let discover = Message::of(A, DISCOVER).broadcast(A);
    net.drops(A, &discover, "dhcp-no-lease");
    net.drops(A, &request().broadcast(A), "bad-dhcp");
    let chosen = request().option(50, &A.3).option(54, &[10, 0, 0, 99]).broadcast(A);
    net.drops(A, &chosen, "dhcp-other-choice");
}

/// dhcpcd and systemd-networkd renew from a socket at their address, and hear no broadcast there:
/// they would go on with it until seven eighths of the lease are over.
#[test]
fn a_renewal_by_unicast_is_refused_by_unicast() {
    for bypass in [true, false] {
        let mut net = net(&[A, C], bypass);
        let renewal = Message::of(A, REQUEST).client(A.3).bytes();
        let frame = build::ethernet(A.1, gateway()).ipv4(A.3, GATEWAYS[0]).udp(68, 67, &renewal);
        assert_eq!(answer(&mut net, A, &frame).kind, ACK);
        net.host.update("a", &policy([10, 0, 0, 77], bypass)).unwrap();
        let nak = answer(&mut net, A, &frame);
        assert_eq!((nak.kind, nak.to), (NAK, (A.1, A.3.into())));
    }
}

#[test]
fn what_gets_no_answer_is_heard_by_nobody() {
    for bypass in [true, false] {
        let mut net = net(&[A, C], bypass);
        let decline = Message::of(A, DECLINE).option(50, &A.3).option(54, &GATEWAYS[0]);
        net.drops(A, &decline.broadcast(A), "dhcp-declined");
        let release = Message::of(A, RELEASE).client(A.3).option(54, &GATEWAYS[0]).bytes();
        let unicast = build::ethernet(A.1, gateway()).ipv4(A.3, GATEWAYS[0]).udp(68, 67, &release);
        assert_eq!(net.send(A, &unicast), BTreeMap::new());
        let moved = net.host.moved();
        assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
        net.host.pass(10);
        let relayed = Message { relay: [10, 0, 0, 9], ..Message::of(A, DISCOVER) };
        net.drops(A, &relayed.broadcast(A), "dhcp-relayed");
        let frame = broadcast(A).udp(67, 67, &relayed.bytes());
        net.drops(A, &frame, "dhcp-relayed");
        // For another machine, as relay agents do; by the number of agents as well.
        let behind = Message { mac: C.1, ..relayed.clone() };
        net.drops(A, &broadcast(A).udp(67, 67, &behind.bytes()), "dhcp-relayed");
        let mut counted = Message { mac: C.1, ..Message::of(A, DISCOVER) }.bytes();
        counted[3] = 1;
        net.drops(A, &broadcast(A).udp(67, 67, &counted), "dhcp-relayed");
        let of_other = Message { mac: C.1, ..Message::of(A, DISCOVER) };
        net.drops(A, &of_other.broadcast(A), "dhcp-other-client");
        let as_other = Message::of(C, DISCOVER).broadcast(C);
        let reason = if bypass { "dhcp-other-client" } else { "spoofed-mac" };
        net.drops(A, &as_other, reason);
        // Malformed in its headers, and behind them.
        net.host.pass(10);
        let whole = Message::of(A, DISCOVER).broadcast(A);
        let mut wrong = whole.clone();
        wrong[24] ^= 1; // checksum of IP
        net.drops(A, &wrong, "bad-dhcp");
        let mut wrong = whole.clone();
        wrong[60] ^= 1; // under that of UDP
        net.drops(A, &wrong, "bad-dhcp");
        let short = broadcast(A).udp(68, 67, &Message::of(A, DISCOVER).bytes()[..200]);
        net.drops(A, &short, "bad-dhcp");
        let first = broadcast(A).fragment(7, 0, true).payload(UDP, &whole[34..34 + 304]);
        net.drops(A, &first, "bad-dhcp");
        net.host.pass(10);
        let bytes = Message::of(A, DISCOVER).option(12, &[b'x'; 250]).bytes();
        let mut long = bytes.clone();
        long.resize(1600, 0);
        net.drops(A, &broadcast(A).udp(68, 67, &long), "bad-dhcp");
    }
}

/// A header with options, and frames that end before a message begins: what a slot had before is
/// not read.
#[test]
fn headers_with_options_are_read_as_far_as_they_go() {
    let mut net = net(&[A, C], true);
    let whole = Message::of(A, DISCOVER);
    for options in [4, 20, 40] {
        net.host.pass(10);
        let frame = broadcast(A).options(&vec![1; options]).udp(68, 67, &whole.bytes());
        assert_eq!(answer(&mut net, A, &frame).yours.octets(), A.3);
        // The same frame, cut in each place before the message: it has stood in the slot.
        for len in 34 + options..34 + options + 8 {
            net.host.pass(10);
            let mut short = frame[..len].to_vec();
            short[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
            let got = net.send(A, &short);
            assert!(got.keys().all(|id| id == "c"), "{len}: no answer, {got:?}");
            let moved = net.host.moved();
            assert!(!moved.keys().any(|name| name.contains("dhcp")), "{len}: {moved:?}");
        }
    }
}

/// A priority names no VLAN; in a VLAN of their own machines do as they like.
#[test]
fn tags() {
    for bypass in [true, false] {
        let mut net = net(&[A, C], bypass);
        let tagged = |vlan: u16| {
            let mut frame = Message::of(A, DISCOVER).broadcast(A);
            let [high, low] = vlan.to_be_bytes();
            frame.splice(12..12, [0x81, 0, high, low]);
            frame
        };
        let offer = answer(&mut net, A, &tagged(0xe000));
        assert_eq!((offer.kind, offer.yours, offer.to), (OFFER, A.3.into(), (A.1, A.3.into())));
        // Receivers take off any number of priorities.
        let prioritised = |frame: Vec<u8>, count: usize| {
            let mut frame = frame;
            let tags = [0x88, 0xa8, 0xe0, 0, 0x81, 0, 0x20, 0].repeat(count.div_ceil(2));
            frame.splice(12..12, tags[..4 * count].iter().copied());
            frame
        };
        let own = Message::of(A, DISCOVER).broadcast(A);
        for count in [2, 3] {
            let offer = answer(&mut net, A, &prioritised(own.clone(), count));
            assert_eq!((offer.kind, offer.yours), (OFFER, A.3.into()));
        }
        let mut words = Message::of(A, OFFER).bytes();
        words[0] = 2;
        let words = build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, &words);
        // Of many tags the headers are read where they are at hand; else nobody knows.
        for count in [1, 2, 3, 20, 25, 28, 29, 40] {
            net.drops(C, &prioritised(words.clone(), count), "dhcp-other-server");
        }
        if bypass {
            let other = build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 69, &[2; 300]);
            let other = prioritised(other, 3);
            assert_eq!(net.send(C, &other)["a"], [other]);
            let mut inside = prioritised(words, 1);
            inside.splice(12..12, [0x81, 0, 0, 7]);
            assert_eq!(net.send(C, &inside)["a"], [inside], "two tags, one of a VLAN");
            net.host.moved();
        }
        // All the way: the request leaves, and the answer of another machine enters.
        let request = tagged(7);
        let got = net.send(A, &request);
        let heard = if bypass { vec!["c"] } else { Vec::new() };
        assert_eq!(got.keys().collect::<Vec<_>>(), heard, "{bypass}");
        let moved = net.host.moved();
        assert!(!moved.keys().any(|name| name.starts_with("a.drop.")), "{bypass}: {moved:?}");
        if bypass {
            let mut reply = build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, &[2; 300]);
            reply.splice(12..12, [0x81, 0, 0, 7]);
            assert_eq!(net.send(C, &reply)["a"], [reply]);
        }
    }
}

/// A filtered client asks a server in a VLAN of its own, and hears the answer to its request.
#[test]
fn in_a_vlan_a_filtered_client_has_its_own_server() {
    let mut net = net(&[A, C], false);
    net.host.update("c", &policy(C.3, true)).unwrap();
    let in_vlan = |mut frame: Vec<u8>| {
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    let mut offer = Message::of(A, OFFER).option(54, &C.3).bytes();
    offer[0] = 2;
    offer[16..20].copy_from_slice(&A.3);
    let offer = in_vlan(build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, &offer));
    assert_eq!(net.send(C, &offer), BTreeMap::new(), "nobody asked");
    let request = in_vlan(Message::of(A, DISCOVER).broadcast(A));
    assert_eq!(net.send(A, &request)["c"], [request]);
    assert_eq!(net.send(C, &offer)["a"], [offer]);
}

/// Messages to clients are judged by the network by which they leave.
#[test]
fn routers_lead_no_other_server_in() {
    for bypass in [true, false] {
        let mut net = net(&[A, B], bypass);
        let mut words = Message::of(A, OFFER).bytes();
        words[0] = 2;
        for port in [67, 1067] {
            let [sent, _] = routed(B, A, |ip| ip.udp(port, 68, &words));
            net.drops(B, &sent, "dhcp-other-server");
        }
        if !bypass {
            continue;
        }
        // Beside others of the same ends in one batch.
        let [first, arrives] = routed(B, A, |ip| ip.udp(67, 69, b"x"));
        let [second, _] = routed(B, A, |ip| ip.udp(67, 68, &words));
        let guest = net.host.guest("b").unwrap();
        for frame in [&first, &second, &first, &second] {
            guest.enqueue(frame, NetHeader::default()).unwrap();
        }
        guest.flush();
        while net.host.turn() {}
        let got: Vec<Vec<u8>> =
            net.host.received().unwrap()["a"].iter().map(|it| it.1.clone()).collect();
        assert_eq!(got, [arrives.clone(), arrives]);
        assert_eq!(net.host.moved()["b.drop.dhcp-other-server"], 2);
        // Out of the network, to one that leases nothing.
        let [sent, arrives] = routed(A, B, |ip| ip.udp(67, 68, &words));
        net.passes(A, &sent, B, &arrives);
        net.host.change_routing(leasing(&[SUBNET], None));
        let [sent, arrives] = routed(B, A, |ip| ip.udp(67, 68, &words));
        net.passes(B, &sent, A, &arrives);
    }
}

/// A plan has a network in between whose gateway changes: it leases nothing, and nobody else does.
#[test]
fn while_gateways_change_nobody_leases() {
    let declared = |gateway| {
        let subnet = Subnet::parse("10.0.0.0/24", Some(gateway)).unwrap();
        let network = Network::new(vni(42), vec![subnet], None).unwrap();
        network.with_dhcp(Some(dhcp())).unwrap()
    };
    let mut net = Net::apart(&[A, C], true);
    let between = declared("10.0.0.1").in_common(&declared("10.0.0.2"));
    net.host.change_routing(RoutingChange::DeclareNetwork(between));
    net.drops(A, &Message::of(A, DISCOVER).broadcast(A), "dhcp-no-lease");
    let request = Message::of(A, REQUEST).client(A.3).broadcast(A);
    net.drops(A, &request, "dhcp-no-lease");
    let mut words = Message::of(A, OFFER).bytes();
    words[0] = 2;
    let words = build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, &words);
    net.drops(C, &words, "dhcp-other-server");
    net.host.change_routing(RoutingChange::DeclareNetwork(declared("10.0.0.2")));
    let ack = answer(&mut net, A, &request);
    assert_eq!((ack.kind, ack.server), (ACK, [10, 0, 0, 2].into()));
}

/// Of several addresses the one that no other vnic has, whoever came first.
#[test]
fn an_address_of_its_own_comes_first() {
    let shared = [10, 0, 0, 50];
    let ips = |ips: &[[u8; 4]]| {
        let ips = ips.iter().map(|ip| (*ip).into()).collect();
        VnicPolicy { ips, ..policy(A.3, true) }
    };
    let mut net = net(&[A, C], true);
    let gets = |net: &mut Net, machine: Machine| {
        net.host.pass(10);
        let wish = Message::of(machine, DISCOVER).broadcast(machine);
        answer(net, machine, &wish).yours.octets()
    };
    net.host.update("a", &ips(&[shared, A.3])).unwrap();
    assert_eq!(gets(&mut net, A), shared);
    net.host.update("c", &ips(&[shared])).unwrap();
    assert_eq!((gets(&mut net, A), gets(&mut net, C)), (A.3, shared));
    net.host.update("c", &ips(&[C.3, shared])).unwrap();
    assert_eq!((gets(&mut net, A), gets(&mut net, C)), (A.3, C.3));
    net.host.remove("c");
    assert_eq!(gets(&mut net, A), shared);
    // One that waited for the MAC address has its own when it gets it.
    net.host.vnic("d", A.1, 42, &ips(&[[10, 0, 0, 77]])).unwrap();
    net.host.settle();
    assert_eq!(gets(&mut net, A), shared);
    net.host.remove("a");
    net.host.settle();
    net.host.moved();
    let d: Machine = ("d", A.1, 42, [10, 0, 0, 77]);
    assert_eq!(gets(&mut net, d), d.3);
    // Another declaration of the network counts for all at once.
    net.host.change_routing(leasing(&[("10.7.0.0/24", Some("10.7.0.1"))], Some(dhcp())));
    net.drops(d, &Message::of(d, DISCOVER).broadcast(d), "dhcp-no-lease");
    net.host.change_routing(leasing(&[SUBNET], Some(dhcp())));
    assert_eq!(gets(&mut net, d), d.3);
}

/// The word of other servers reaches nobody, from whichever port it comes; without DHCP of the
/// network it does.
#[test]
fn other_servers_are_not_heard() {
    for bypass in [true, false] {
        let mut net = net(&[A, C], bypass);
        let mut offer = Message::of(A, OFFER).bytes();
        offer[0] = 2;
        let frames = |offer: &[u8]| {
            [
                build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, offer),
                build::ethernet(C.1, Mac::BROADCAST).ipv4(C.3, ALL).udp(67, 68, offer),
                build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(1067, 68, offer),
                build::ethernet(C.1, A.1).ipv4(C.3, A.3).options(&[1; 8]).udp(67, 68, offer),
            ]
        };
        for frame in frames(&offer) {
            net.drops(C, &frame, "dhcp-other-server");
        }
        let whole = build::ethernet(C.1, A.1).ipv4(C.3, A.3).udp(67, 68, &offer);
        let first = build::ethernet(C.1, A.1).ipv4(C.3, A.3).fragment(7, 0, true);
        net.drops(C, &first.payload(UDP, &whole[34..34 + 304]), "dhcp-other-server");
        net.host.change_routing(leasing(&[SUBNET], None));
        let moved: Vec<_> = frames(&offer).iter().map(|frame| net.send(C, frame).len()).collect();
        let expected = if bypass { [1, 1, 1, 1] } else { [0, 0, 0, 0] };
        assert_eq!(moved, expected);
        let discover = Message::of(A, DISCOVER).broadcast(A);
        let heard = net.send(A, &discover);
        assert!(!heard.contains_key("a"), "nobody answers");
        assert_eq!(heard.contains_key("c"), bypass);
        let drops = net.host.moved();
        assert!(!drops.keys().any(|name| name.contains("dhcp-")), "{drops:?}");
    }
}

/// Eight at once and four a second, whatever comes of them. What is not the vnic's own takes
/// nothing of it.
#[test]
fn requests_have_a_budget() {
    for kind in [DISCOVER, DECLINE, RELEASE] {
        let mut net = net(&[A, C], true);
        let of_other = Message { mac: C.1, ..Message::of(A, kind) }.broadcast(A);
        let own = Message::of(A, kind).client(A.3).broadcast(A);
        for _ in 0..20 {
            net.send(A, &of_other);
        }
        net.host.moved();
        let limited = |net: &mut Net, sent: u64| {
            for _ in 0..sent {
                net.send(A, &own);
            }
            let moved = net.host.moved();
            let count = |name: &str| moved.get(name).copied().unwrap_or(0);
            assert_eq!(count("a.drop.dhcp-other-client"), 0);
            count("a.drop.dhcp-limit")
        };
        assert_eq!(limited(&mut net, 20), 12, "{kind}");
        net.host.pass(1);
        assert_eq!(limited(&mut net, 20), 16, "{kind}");
        // Others have their own.
        assert_eq!(answer(&mut net, C, &Message::of(C, DISCOVER).broadcast(C)).kind, OFFER);
    }
}

/// Sixteen pings before it in one batch take all answers but those of DHCP, which takes no token
/// where it finds no room.
#[test]
fn a_lease_is_renewed_beside_a_flood_of_pings() {
    let mut net = net(&[A, C], true);
    let ping = build::ethernet(A.1, gateway()).ipv4(A.3, GATEWAYS[0]).ping(7, 1, b"x");
    let own = Message::of(A, DISCOVER).broadcast(A);
    let guest = net.host.guest("a").unwrap();
    let frames = std::iter::repeat_n(&ping, 20).chain(std::iter::repeat_n(&own, 6));
    for frame in frames {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    while net.host.turn() {}
    let moved = net.host.moved();
    let got: Vec<Vec<u8>> =
        net.host.received().unwrap().remove("a").unwrap().into_iter().map(|it| it.1).collect();
    let offers = got.iter().filter(|frame| frame.len() > 300).count();
    assert_eq!((offers, got.len()), (4, 20), "{moved:?}");
    assert_eq!(moved["a.drop.born-full"], 6, "{moved:?}");
    // Four of eight tokens are left.
    for _ in 0..4 {
        assert_eq!(answer(&mut net, A, &own).kind, OFFER);
    }
    net.drops(A, &own, "dhcp-limit");
}

/// A turn that floods fill leaves requests in their ring, and reads none of them: each takes one
/// token, however many turns it waits.
#[test]
fn requests_behind_a_flood_are_read_once() {
    let mut net = net(&[A], true);
    for n in 0..200u8 {
        let id = format!("m{n}");
        net.host.vnic(&id, Mac([2, 0, 0, 0, 1, n]), 42, &policy([10, 0, 0, n], true)).unwrap();
    }
    net.host.settle();
    net.host.received().unwrap();
    net.host.moved();
    let flood = build::ethernet(A.1, Mac::BROADCAST).ipv4(A.3, ALL).udp(9, 9, b"x");
    let own = Message::of(A, DISCOVER).broadcast(A);
    let guest = net.host.guest("a").unwrap();
    for frame in std::iter::repeat_n(&flood, 20).chain(std::iter::repeat_n(&own, 8)) {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    let mut turns = 0;
    while net.host.turn() {
        turns += 1;
    }
    assert!(turns >= 8, "{turns} turns");
    let got = net.host.received().unwrap();
    assert_eq!(got["a"].len(), 8, "each has its answer");
    assert!(!net.host.moved().contains_key("a.drop.dhcp-limit"));
}

/// Without a router an answer comes from an address that no router of the network ever has.
#[test]
fn without_a_router_answers_have_an_address_of_their_own() {
    let mut net = Net::apart(&[A, C], false);
    net.host.change_routing(leasing(&[SUBNET], Some(dhcp())));
    let offer = answer(&mut net, A, &Message::of(A, DISCOVER).broadcast(A));
    let service = Mac(service_mac(vni(42), |_| false));
    assert_eq!((offer.server, offer.from), (GATEWAYS[0].into(), service));
    // It is the server, although no router has its address.
    let relayed = Message { relay: [10, 0, 0, 9], mac: C.1, ..Message::of(A, DISCOVER) };
    let unicast = build::ethernet(A.1, service).ipv4(A.3, GATEWAYS[0]);
    net.drops(A, &unicast.udp(67, 67, &relayed.bytes()), "dhcp-relayed");
    net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
    net.host.change_routing(router("r", &[42, 50]));
    let offer = answer(&mut net, A, &Message::of(A, DISCOVER).broadcast(A));
    assert_eq!(offer.from, gateway());
}

/// Vnics may come before their network, and after it.
#[test]
fn the_order_of_declarations_means_nothing() {
    let mut net = net(&[A], false);
    net.host.vnic("c", C.1, 42, &policy(C.3, false)).unwrap();
    net.host.settle();
    net.host.moved();
    for machine in [A, C] {
        let offer = answer(&mut net, machine, &Message::of(machine, DISCOVER).broadcast(machine));
        assert_eq!(offer.yours.octets(), machine.3);
    }
    net.host.remove("c");
    net.host.vnic("d", C.1, 42, &policy([10, 0, 0, 77], true)).unwrap();
    net.host.settle();
    net.host.moved();
    let d: Machine = ("d", C.1, 42, [10, 0, 0, 77]);
    let offer = answer(&mut net, d, &Message::of(d, DISCOVER).broadcast(d));
    assert_eq!(offer.yours.octets(), d.3);
}

#[test]
fn explanations_say_who_answers() {
    let mut net = net(&[A, C], false);
    let question = Question {
        from: Origin::Vnic("a".into()),
        to: Target::Address(ALL.into()),
        source: Some(NOBODY.into()),
        source_mac: None,
        destination_mac: None,
        protocol: UDP,
        source_port: Some(68),
        destination_port: Some(67),
        flags: None,
        icmp: None,
        length: None,
        reply: false,
    };
    let told = net.host.explain(&question).unwrap();
    assert_eq!(told.walks[0].fate, Fate::Answered, "{told:?}");
    let texts: Vec<&str> = told.walks[0].steps.iter().map(|step| step.text.as_str()).collect();
    assert!(texts.contains(&"VNI 42 gives its vnics their addresses itself"), "{texts:?}");
    assert!(texts.contains(&"it offers 10.0.0.10 to a"), "{texts:?}");
    // With an address it renews the lease, and is told what comes of that.
    for (source, text) in [
        (A.3, "it leases 10.0.0.10 to a"),
        ([10, 0, 0, 99], "it refuses: that address is not for a, which looks for another one"),
    ] {
        let question = Question { source: Some(source.into()), ..question.clone() };
        let told = net.host.explain(&question).unwrap();
        assert_eq!(told.walks[0].fate, Fate::Answered, "{told:?}");
        let steps = &told.walks[0].steps;
        assert!(steps.iter().any(|step| step.text == text), "{steps:?}");
    }
    // Over its budget, of which the question takes nothing.
    for _ in 0..8 {
        answer(&mut net, A, &Message::of(A, DISCOVER).broadcast(A));
    }
    let told = net.host.explain(&question).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!((refused.reason.name, refused.charged.as_str()), ("dhcp-limit", "a"));
    net.host.pass(10);
    net.host.update("a", &VnicPolicy { ips: Vec::new(), ..policy(A.3, false) }).unwrap();
    let told = net.host.explain(&question).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "dhcp-no-lease");
}

/// Answers from other hosts count for the network. Requests leave for none of them: each host
/// answers its own vnics.
#[test]
fn other_hosts_are_no_servers_either() {
    let mut net = hosts::host(1, &[A, C], true);
    net.host.change_routing(leasing(&[SUBNET], Some(dhcp())));
    let far: Machine = ("far", Mac([2, 0, 0, 0, 0, 9]), 42, [10, 0, 0, 9]);
    let mut offer = Message::of(A, OFFER).bytes();
    offer[0] = 2;
    let unicast = build::ethernet(far.1, A.1).ipv4(far.3, A.3).udp(67, 68, &offer);
    let all = build::ethernet(far.1, Mac::BROADCAST).ipv4(far.3, ALL).udp(67, 68, &offer);
    for frame in [unicast, all] {
        assert_eq!(net.gets(&[hosts::outer((2, 1), 42, &frame)]), BTreeMap::new());
        assert_eq!(net.drops_counted(), [("vni-42.drop.dhcp-other-server".to_owned(), 1)]);
    }
    let request = Message::of(far, DISCOVER).broadcast(far);
    let heard = net.gets(&[hosts::outer((2, 1), 42, &request)]);
    assert_eq!(heard.keys().collect::<Vec<_>>(), ["a", "c"], "as it was sent");
    let own = Message::of(A, DISCOVER).broadcast(A);
    assert_eq!(net.leaves(A, &own), Vec::<Vec<u8>>::new());
    assert_eq!(net.host.received().unwrap()["a"].len(), 1);
    net.host.change_routing(leasing(&[SUBNET], None));
    assert_eq!(net.leaves(A, &own).len(), 1, "to servers elsewhere");
}
