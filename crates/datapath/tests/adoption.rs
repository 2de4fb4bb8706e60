//! A host that finds the table of one that died, and goes on with its sessions.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use butterfly_datapath::{
    GroupChange, Mac, RoutingChange, SessionConfig, SessionFilter, TunnelConfig, VnicPolicy,
    harness::Host,
};
use butterfly_model::{
    Cidr, Direction, GroupName, Network, Router, RouterAddresses, RouterId, Rule, SecurityGroup,
    Subnet, Vni,
};
use butterfly_packet::{
    build::{self, Tcp},
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const CAPACITY: u32 = 4096;

/// A host with its table in a file of its own.
struct Net {
    host: Host,
    name: String,
}

fn settings(name: &str) -> SessionConfig {
    SessionConfig {
        capacity: CAPACITY,
        file: Some(name.to_owned()),
        adopt: true,
        ..SessionConfig::default()
    }
}

fn new_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("butterfly-test-adoption-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

fn file(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

impl Net {
    fn new() -> Net {
        let name = new_name();
        Net { host: Host::with_sessions(settings(&name)).unwrap(), name }
    }

    /// Dies at this moment: returns the host that finds what this one left.
    fn killed(&self) -> Net {
        self.killed_as(|_| ())
    }

    fn killed_as(&self, change: impl FnOnce(&mut SessionConfig)) -> Net {
        let name = new_name();
        std::fs::copy(self.host.session_file().unwrap(), file(&name)).unwrap();
        let mut settings = settings(&name);
        change(&mut settings);
        Net { host: Host::with_sessions(settings).unwrap(), name }
    }

    /// Declares a vnic with a guest. "*" is no filter.
    fn vnic(&mut self, id: &str, (mac, vni): (Mac, u32), last: u8, groups: &str) {
        let policy = VnicPolicy {
            bypass: groups == "*",
            ips: vec![[10, 0, 0, last].into()],
            groups: groups.split(',').filter(|name| *name != "*").map(name).collect(),
            ..VnicPolicy::default()
        };
        self.host.vnic(id, mac, vni, &policy).unwrap();
        self.host.settle();
        self.host.moved();
    }

    /// Declares group "g": so many rules that each let one port in.
    fn group(&self, ports: &[(u8, u16)]) {
        let any = ["0.0.0.0", "::"].map(|any| Cidr::new(any, 0).unwrap());
        let rule = |(protocol, port): &(u8, u16)| {
            let (protocol, ports) =
                (i32::from(*protocol), (Some((*port).into()), Some((*port).into())));
            any.map(|any| Rule::new(Direction::Inbound, protocol, ports, Some(any), None).unwrap())
        };
        let rules = ports.iter().flat_map(rule);
        let group = SecurityGroup::new(name("g"), &[] as &[&str], rules).unwrap();
        self.host.change_group(&name("g"), GroupChange::Declare(group)).unwrap();
    }

    /// Declares "a", which is not filtered, and "b", into which ports 80 and 53 lead.
    fn both(&mut self) {
        self.group(&[(6, 80), (17, 53)]);
        self.vnic("a", (A, 1), 1, "*");
        self.vnic("b", (B, 1), 2, "g");
    }

    /// Sends a frame. Returns the receivers, or the drop.
    fn send(&mut self, from: &str, frame: Vec<u8>) -> String {
        self.host.send(from, &frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        let moved = self.host.moved();
        let drops = moved
            .keys()
            .filter(|name| name.contains(".drop."))
            .map(|name| name.replace("drop.", ""));
        received.keys().cloned().chain(drops).collect::<Vec<_>>().join(" ")
    }

    /// Checks all counts. Returns the number of records.
    #[track_caller]
    fn whole(&self) -> u64 {
        self.host.count_sessions().unwrap()
    }

    /// Returns the sessions that were adopted, or why none was.
    fn adopted(&self) -> Result<u64, String> {
        let [former] = self.host.former_tables() else { panic!("{:?}", self.host.former_tables()) };
        assert_eq!(former.adopted.is_some(), former.found.is_ok(), "{former}");
        former.found.map(|found| found.sessions).map_err(|why| why.to_string())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(file(&self.name));
    }
}

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

fn tcp(from: &str, port: u16, flags: u8, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    let (macs, ips, ports) = match from {
        "a" => ((A, B), ([10, 0, 0, 1], [10, 0, 0, 2]), (port, 80)),
        _ => ((B, A), ([10, 0, 0, 2], [10, 0, 0, 1]), (80, port)),
    };
    let segment = Tcp { sequence, acknowledgement, ..Tcp::new(ports.0, ports.1, flags) };
    build::ethernet(macs.0, macs.1).ipv4(ips.0, ips.1).tcp(&segment, b"")
}

fn udp(from: &str, port: u16) -> Vec<u8> {
    match from {
        "a" => build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(port, 53, b"?"),
        _ => build::ethernet(B, A).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(53, port, b"!"),
    }
}

fn connect(net: &mut Net, port: u16) {
    assert_eq!(net.send("a", tcp("a", port, SYN, 100, 0)), "b");
    assert_eq!(net.send("b", tcp("b", port, SYN | ACK, 500, 101)), "a");
    assert_eq!(net.send("a", tcp("a", port, ACK, 101, 501)), "b");
}

/// A host with a connection and an answered question of "a" at "b".
fn talking() -> Net {
    let mut net = Net::new();
    net.both();
    connect(&mut net, 7);
    assert_eq!((net.send("a", udp("a", 9)), net.send("b", udp("b", 9))), ("b".into(), "a".into()));
    assert_eq!(net.whole(), 2);
    net
}

#[test]
fn filtered_conversations_go_on() {
    let first = talking();
    let before = first.host.sessions(&SessionFilter::default(), 10).1;
    let mut net = first.killed();
    assert_eq!(net.adopted(), Ok(2));
    net.both();
    assert_eq!(net.whole(), 2);
    assert_eq!(net.host.all_declared(), 0);
    assert_eq!(net.whole(), 2);
    // Neither end may open this one; with a window for picking up, the opener's frame would pass.
    assert_eq!(net.send("b", tcp("b", 7, ACK, 501, 101)), "a");
    assert_eq!(net.send("a", tcp("a", 7, ACK, 101, 501)), "b");
    // A window that was never seen is refused as before.
    assert_eq!(net.send("a", tcp("a", 7, ACK, 0x4000_0000, 501)), "b.tcp-window");
    assert_eq!((net.send("b", udp("b", 9)), net.send("a", udp("a", 9))), ("a".into(), "b".into()));
    assert_eq!(net.whole(), 2);
    let after = net.host.sessions(&SessionFilter::default(), 10).1;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.state, &before.rule), (after.state, &after.rule));
        assert!(after.packets.iter().zip(&before.packets).all(|(after, before)| after > before));
    }
    // New ones are as always.
    connect(&mut net, 8);
    assert_eq!(net.whole(), 3);
    // Once more: the successor's successor.
    let mut net = net.killed();
    assert_eq!(net.adopted(), Ok(3));
    net.both();
    net.host.all_declared();
    assert_eq!(net.send("b", tcp("b", 8, ACK, 501, 101)), "a");
    assert_eq!(net.whole(), 3);
}

/// No connection can be picked up that the table does not know, but of vnics that it does not know.
#[test]
fn the_window_for_picking_up_does_not_open_again() {
    let mut net = talking().killed();
    net.both();
    net.host.all_declared();
    assert_eq!(net.send("a", tcp("a", 99, ACK, 5, 6)), "a.tcp-no-session");
    net.vnic("c", (C, 1), 3, "*");
    let frame = build::ethernet(C, B)
        .ipv4([10, 0, 0, 3], [10, 0, 0, 2])
        .tcp(&Tcp { sequence: 5, acknowledgement: 6, ..Tcp::new(99, 80, ACK) }, b"");
    assert_eq!(net.send("c", frame), "b");
    // A guest that comes back once more is one like any other.
    let mut first = talking();
    assert_eq!(first.send("a", tcp("a", 99, ACK, 5, 6)), "b");
}

#[test]
fn what_the_rules_took_back_meanwhile_ends() {
    let mut net = talking().killed();
    net.both();
    net.group(&[(17, 53)]);
    net.host.all_declared();
    assert_eq!(net.send("a", tcp("a", 7, ACK, 101, 501)), "b.ingress-denied");
    assert_eq!(net.send("b", tcp("b", 7, ACK, 501, 101)), "b.tcp-no-session");
    assert_eq!(net.send("a", udp("a", 9)), "b");
    net.whole();
}

#[test]
fn a_connection_that_was_cut_stays_cut() {
    let mut first = talking();
    first.group(&[(17, 53)]);
    assert_eq!(first.send("a", tcp("a", 7, ACK, 101, 501)), "b.ingress-denied");
    let mut net = first.killed();
    assert_eq!(net.adopted(), Ok(1));
    net.both();
    net.host.all_declared();
    assert_eq!(net.whole(), 2);
    assert_eq!(net.send("a", tcp("a", 7, ACK, 101, 501)), "a.tcp-no-session");
    net.whole();
}

/// The same id in another network is another vnic, and so is any other id: whenever they come.
#[test]
fn nobody_inherits_another_one_s_sessions() {
    for early in [true, false] {
        let mut net = talking().killed();
        net.group(&[]);
        if !early {
            assert_eq!(net.host.all_declared(), 2);
            assert_eq!(net.whole(), 0);
        }
        // The addresses are the same, to be as much alike as can be.
        net.vnic("a", (A, 2), 1, "*");
        net.vnic("x", (B, 2), 2, "g");
        assert_eq!(net.send("a", tcp("a", 7, ACK, 101, 501)), "x.ingress-denied");
        assert_eq!(net.send("a", udp("a", 9)), "x.ingress-denied");
        net.vnic("y", (A, 1), 1, "*");
        net.vnic("z", (B, 1), 2, "g");
        assert_eq!(net.send("y", tcp("a", 7, ACK, 101, 501)), "z.ingress-denied");
        assert_eq!(net.send("y", udp("a", 9)), "z.ingress-denied");
        if early {
            assert_eq!(net.whole(), 2);
            assert_eq!(net.host.all_declared(), 2);
        }
        assert_eq!(net.whole(), 0);
        // Their slots are free for others from then on.
        for (n, id) in (1..).zip(["p", "q", "r"]) {
            net.vnic(id, (Mac([2, 0, 0, 0, 9, n]), 1), 100 + n, "*");
        }
        assert_eq!(net.whole(), 0);
        // Nothing of it is left to the next one.
        assert_eq!(net.killed().adopted(), Ok(0));
    }
}

/// Until all are declared, neither time nor others' frames take away what waits, but its time does.
#[test]
fn sessions_wait_for_their_vnics() {
    let mut net = talking().killed();
    net.host.pass(1);
    net.vnic("c", (C, 1), 3, "*");
    net.vnic("a", (A, 1), 1, "*");
    net.host.pass(1);
    assert_eq!(net.whole(), 2);
    // A death of the second one before all are declared loses nothing.
    let mut third = net.killed();
    assert_eq!(third.adopted(), Ok(2));
    third.both();
    third.host.all_declared();
    assert_eq!(third.send("b", tcp("b", 7, ACK, 501, 101)), "a");
    assert_eq!(third.whole(), 2);
    net.host.pass(61);
    assert_eq!(net.whole(), 1);
    net.group(&[(6, 80)]);
    net.vnic("b", (B, 1), 2, "g");
    assert_eq!(net.whole(), 1);
    net.host.all_declared();
    assert_eq!(net.send("b", tcp("b", 7, ACK, 501, 101)), "a");
    // What was removed before all are declared is another one when it comes back.
    let mut net = net.killed();
    net.both();
    net.host.remove("b");
    net.group(&[]);
    net.vnic("b", (B, 1), 2, "g");
    assert_eq!(net.send("a", tcp("a", 7, ACK, 101, 501)), "b.ingress-denied");
    net.host.all_declared();
    net.host.pass(1);
    assert_eq!(net.whole(), 0);
}

#[test]
fn a_table_of_another_kind_is_replaced() {
    let first = talking();
    let why = |net: Net| {
        assert_eq!(net.whole(), 0);
        net.adopted().unwrap_err()
    };
    assert_eq!(
        why(first.killed_as(|settings| settings.capacity = 8192)),
        "it has room for 4096 sessions, and this start is for 8192"
    );
    // Without the setting, it is told and replaced.
    let net = first.killed_as(|settings| settings.adopt = false);
    let [former] = net.host.former_tables() else { panic!() };
    assert!(former.adopted.is_none() && former.found.unwrap().sessions == 2, "{former}");
    assert_eq!(net.whole(), 0);
    let told = first.killed().host.former_tables()[0].to_string();
    assert!(told.contains("is adopted: 2 sessions go on with their vnics (last frame"), "{told}");
}

/// A table that was full when its process died works after that.
#[test]
fn a_full_table_goes_on() {
    let mut net = Net::new();
    net.both();
    let small = |settings: &mut SessionConfig| (settings.capacity, settings.share) = (64, 100);
    let name = new_name();
    let mut settings = settings(&name);
    small(&mut settings);
    net.host = Host::with_sessions(settings).unwrap();
    net.name = name;
    net.both();
    for port in 0..200 {
        net.send("a", udp("a", port));
    }
    assert_eq!(net.whole(), 64);
    let mut net = net.killed_as(small);
    let adopted = net.adopted().unwrap();
    assert!((60..=64).contains(&adopted), "{adopted}");
    net.both();
    net.host.all_declared();
    assert_eq!(net.whole(), adopted);
    for port in 1000..1200 {
        assert_eq!(net.send("a", udp("a", port)), "b", "{port}");
    }
    assert_eq!(net.whole(), 64);
    net.host.pass(31);
    assert_eq!(net.whole(), 0);
}

/// The host dies at any of many moments, with vnics that come, go, and come back in any order.
#[test]
fn counts_are_exact_whenever_it_dies() {
    let mut state = 5u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut net = Net::new();
    net.both();
    for round in 0..60 {
        for _ in 0..random(30) {
            let port = random(20) as u16;
            match random(6) {
                0 => _ = net.send("a", tcp("a", port, SYN, 100, 0)),
                1 => _ = net.send("b", tcp("b", port, SYN | ACK, 500, 101)),
                2 => _ = net.send("a", udp("a", port)),
                3 => _ = net.send("b", udp("b", port)),
                4 => net.host.pass(random(3) as u32),
                _ => net.group(&[(6, 80), (17, 53)][..=random(2) as usize]),
            }
            net.whole();
        }
        let before = net.whole();
        net = net.killed();
        let gone = random(4) == 0;
        if random(2) == 0 {
            net.vnic("c", (C, 1), 3, "*");
        }
        net.group(&[(6, 80), (17, 53)]);
        net.vnic("b", (B, 1), 2, "g");
        if gone {
            net.host.all_declared();
        }
        net.vnic("a", (A, 1), 1, "*");
        let after = net.whole();
        assert!(if gone { after == 0 } else { after <= before }, "{round}: {before}, then {after}");
        net.host.all_declared();
        assert_eq!(net.whole(), after);
    }
}

/// A network's other hosts are an end as vnics are.
#[test]
fn sessions_with_other_hosts_go_on() {
    let tunnel = |n: u8| TunnelConfig::new([192, 168, 0, n].into(), Mac([2, 0xbf, 0, 0, 0, n]));
    let with = |name: String, n| {
        let host = Host::with_tunnel(settings(&name), Some(&tunnel(n))).unwrap();
        Net { host, name }
    };
    let carry = |from: &mut Net, to: &mut Net| {
        let frames = from.host.left().unwrap();
        to.host.arrive(&frames).unwrap();
    };
    let (mut one, mut two) = (with(new_name(), 1), with(new_name(), 2));
    one.vnic("a", (A, 1), 1, "*");
    two.group(&[(6, 80)]);
    two.vnic("b", (B, 1), 2, "g");
    let mut talk = |two: &mut Net, from: &str, frame: Vec<u8>| {
        if from == "a" {
            one.send("a", frame);
            carry(&mut one, two);
            two.host.received().unwrap().contains_key("b")
        } else {
            two.send("b", frame);
            carry(two, &mut one);
            one.host.received().unwrap().contains_key("a")
        }
    };
    let arp = build::ethernet(A, Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
    assert!(talk(&mut two, "a", arp));
    assert!(talk(&mut two, "a", tcp("a", 7, SYN, 100, 0)));
    assert!(talk(&mut two, "b", tcp("b", 7, SYN | ACK, 500, 101)));
    assert!(talk(&mut two, "a", tcp("a", 7, ACK, 101, 501)));
    assert_eq!(two.whole(), 1);
    let name = new_name();
    std::fs::copy(two.host.session_file().unwrap(), file(&name)).unwrap();
    let mut two = with(name, 2);
    assert_eq!(two.adopted(), Ok(1));
    two.host.pass(1);
    two.group(&[(6, 80)]);
    two.vnic("b", (B, 1), 2, "g");
    assert_eq!((two.host.all_declared(), two.whole()), (0, 1));
    // The end of the session that may open none speaks first.
    let spoken = talk(&mut two, "b", tcp("b", 7, ACK, 501, 101));
    assert!(spoken && talk(&mut two, "a", tcp("a", 7, ACK, 101, 501)));
    assert!(!talk(&mut two, "a", tcp("a", 99, ACK, 101, 501)), "that one was never there");
    assert_eq!(two.whole(), 1);
    two.host.pass(90_000);
    assert_eq!(two.whole(), 0);
}

/// Networks of the routed ends, and a further one.
const LOWER: u32 = 42;
const UPPER: u32 = 50;
const OTHER: u32 = 60;

/// Ends of routed sessions: "a" has 10.N.0.10 in a network whose subnet is 10.N.0.0/24, "b"
/// 10.N.0.11; of IPv6 fd00:N::a and fd00:N::b.
struct Routed {
    net: Net,
    /// Both speak IPv6.
    six: bool,
    /// Network of "a", and of "b".
    vnis: [u32; 2],
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn address(id: &str, vni: u32) -> [u8; 4] {
    [10, vni as u8, 0, if id == "a" { 10 } else { 11 }]
}

fn address_six(id: &str, vni: u32) -> [u16; 8] {
    // As it is written: 42 is fd00:42::a.
    let number = u16::from_str_radix(&vni.to_string(), 16).unwrap();
    [0xfd00, number, 0, 0, 0, 0, 0, if id == "a" { 10 } else { 11 }]
}

/// The router's MAC address.
fn router() -> Mac {
    Mac(RouterId::new("r").unwrap().gateway_mac())
}

impl Routed {
    /// A host with a connection from "a" to "b", and an answered question.
    fn talking(vnis: [u32; 2], six: bool) -> Routed {
        let mut routed = Routed { net: Net::new(), six, vnis };
        routed.join(&[LOWER, UPPER]);
        routed.both(&["a", "b"]);
        for (from, flags, numbers) in
            [("a", SYN, (100, 0)), ("b", SYN | ACK, (500, 101)), ("a", ACK, (101, 501))]
        {
            routed.passes(from, |ip, ports| tcp_in(ip, ports, flags, numbers));
        }
        routed.passes("a", udp_in);
        routed.passes("b", udp_in);
        assert_eq!(routed.net.whole(), 2);
        routed
    }

    fn killed(&self) -> Routed {
        let net = self.net.killed();
        assert_eq!(net.adopted(), Ok(2));
        Routed { net, six: self.six, vnis: self.vnis }
    }

    /// Declares three networks, and a router that joins some of them.
    fn join(&self, joined: &[u32]) {
        for number in [LOWER, UPPER, OTHER] {
            let (block, gateway) = (format!("10.{number}.0.0/24"), format!("10.{number}.0.1"));
            let (six, own) = (format!("fd00:{number}::/64"), format!("fd00:{number}::1"));
            let subnets = [(block, gateway), (six, own)];
            let subnets = subnets.map(|(block, own)| Subnet::parse(&block, Some(&own)).unwrap());
            let network = Network::new(vni(number), subnets.into(), None).unwrap();
            self.net.host.change_routing(RoutingChange::DeclareNetwork(network));
        }
        let mut router = Router::new(RouterId::new("r").unwrap());
        for number in joined {
            router.attach(vni(*number), RouterAddresses::default());
        }
        self.net.host.change_routing(RoutingChange::DeclareRouter(router));
    }

    /// Declares both ends in this order: "a", which is not filtered, and "b", into which ports 80
    /// and 53 lead.
    fn both(&mut self, order: &[&str]) {
        self.net.group(&[(6, 80), (17, 53)]);
        for id in order {
            let (mac, vni, groups) = self.end(id);
            let policy = VnicPolicy {
                bypass: groups.is_empty(),
                ips: vec![address(id, vni).into(), address_six(id, vni).into()],
                groups,
                ..VnicPolicy::default()
            };
            self.net.host.vnic(id, mac, vni, &policy).unwrap();
            self.net.host.settle();
            self.net.host.moved();
        }
    }

    fn end(&self, id: &str) -> (Mac, u32, Vec<GroupName>) {
        match id {
            "a" => (A, self.vnis[0], Vec::new()),
            _ => (B, self.vnis[1], vec![name("g")]),
        }
    }

    /// Sends a packet by the router. Returns the receivers, or the drop, as [`Net::send`] does.
    fn send(&mut self, from: &str, make: impl Fn(build::Ip, (u16, u16)) -> Vec<u8>) -> String {
        self.send_to(router(), self.vnis, from, make)
    }

    /// As [`Self::send`], to any MAC address, and with the addresses of these networks.
    fn send_to(
        &mut self,
        mac: Mac,
        vnis: [u32; 2],
        from: &str,
        make: impl Fn(build::Ip, (u16, u16)) -> Vec<u8>,
    ) -> String {
        let (ends, ports) = if from == "a" { (["a", "b"], (7, 0)) } else { (["b", "a"], (0, 7)) };
        let link = build::ethernet(self.end(from).0, mac);
        let in_network = |id: &str| if id == "a" { vnis[0] } else { vnis[1] };
        let [four, other] = ends.map(|id| address(id, in_network(id)));
        let [six, other_six] = ends.map(|id| address_six(id, in_network(id)));
        let ip = if self.six { link.ipv6(six, other_six) } else { link.ipv4(four, other) };
        let outcome = self.net.send(from, make(ip, ports));
        // Of these the router also tells the sender.
        let told = ["no-route", "next-hop-unknown"].map(|reason| format!("{from}.{reason}"));
        match outcome.strip_prefix(&format!("{from} ")) {
            Some(drop) if told.iter().any(|told| told == drop) => drop.to_owned(),
            _ => outcome,
        }
    }

    #[track_caller]
    fn passes(&mut self, from: &str, make: impl Fn(build::Ip, (u16, u16)) -> Vec<u8>) {
        assert_eq!(self.send(from, make), if from == "a" { "b" } else { "a" });
    }

    /// Packets each way of the connection and of the question, and network that each counts in.
    fn counts(&self) -> Vec<(u8, u32, [u64; 2])> {
        let rows = self.net.host.sessions(&SessionFilter::default(), 10).1;
        let mut rows: Vec<_> =
            rows.iter().map(|row| (row.protocol, row.vni, row.packets)).collect();
        rows.sort_unstable();
        rows
    }
}

/// A segment of the connection; the ports are those of "a", and 0 for those of "b".
fn tcp_in(ip: build::Ip, (from, to): (u16, u16), flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    let port = |port| if port == 0 { 80 } else { port };
    let (sequence, acknowledgement) = numbers;
    let tcp = Tcp { sequence, acknowledgement, ..Tcp::new(port(from), port(to), flags) };
    ip.tcp(&tcp, b"")
}

fn udp_in(ip: build::Ip, (from, to): (u16, u16)) -> Vec<u8> {
    let port = |port| if port == 0 { 53 } else { port };
    ip.udp(port(from), port(to), b"?")
}

/// Next numbers of the connection, from either end.
const FROM_B: (u32, u32) = (501, 101);
const FROM_A: (u32, u32) = (101, 501);

/// Whichever end has the lower network, and whichever order the successor is told in, a session is
/// one of its zone's network. No end could open it anew.
#[test]
fn a_routed_session_goes_on() {
    let (up, down) = ([LOWER, UPPER], [UPPER, LOWER]);
    for (vnis, six) in [(up, false), (down, false), (up, true), (down, true)] {
        let first = Routed::talking(vnis, six);
        let counts = |net: &Routed, n: u64| {
            assert_eq!(net.counts(), [(6, LOWER, [2 + n, 1 + n]), (17, LOWER, [1 + n, 1 + n])]);
            assert_eq!(net.net.whole(), 2);
        };
        counts(&first, 0);
        for (router_first, order) in
            [(true, ["a", "b"]), (true, ["b", "a"]), (false, ["a", "b"]), (false, ["b", "a"])]
        {
            let mut next = first.killed();
            if router_first {
                next.join(&[LOWER, UPPER]);
            }
            next.both(&order);
            assert_eq!(next.net.whole(), 2);
            if !router_first {
                next.join(&[LOWER, UPPER]);
            }
            assert_eq!((next.net.host.all_declared(), next.net.whole()), (0, 2));
            next.passes("b", |ip, ports| tcp_in(ip, ports, ACK, FROM_B));
            next.passes("a", |ip, ports| tcp_in(ip, ports, ACK, FROM_A));
            next.passes("b", udp_in);
            next.passes("a", udp_in);
            counts(&next, 1);
            // A window that was never seen, and a connection that was never there.
            let wrong = next.send("a", |ip, ports| tcp_in(ip, ports, ACK, (0x4000_0000, 501)));
            assert_eq!(wrong, "b.tcp-window");
            let wrong = next.send("a", |ip, (_, to)| tcp_in(ip, (99, to), ACK, FROM_A));
            assert_eq!(wrong, "a.tcp-no-session");
            // A new one beside them counts with them, and all end.
            next.passes("a", |ip, (_, to)| udp_in(ip, (8, to)));
            assert_eq!(next.net.whole(), 3);
            next.net.host.pass(90_000);
            assert_eq!(next.net.whole(), 0);
        }
        // An end that goes takes them along, whichever network it is in.
        for gone in ["a", "b"] {
            let mut next = first.killed();
            next.join(&[LOWER, UPPER]);
            next.both(&["a", "b"]);
            next.net.host.all_declared();
            next.net.host.remove(gone);
            next.net.host.pass(2);
            assert_eq!(next.net.whole(), 0, "{gone}");
        }
    }
}

/// Without a router, or with one that does not join both, nothing is sent by the session. It is not
/// over: a router that comes back finds it, until its time is over.
#[test]
fn a_routed_session_without_its_router_is_not_used() {
    for joined in [&[][..], &[LOWER], &[UPPER], &[LOWER, OTHER], &[UPPER, OTHER]] {
        let first = Routed::talking([LOWER, UPPER], false);
        let before = first.counts();
        let mut next = first.killed();
        next.join(joined);
        next.both(&["a", "b"]);
        assert_eq!((next.net.host.all_declared(), next.net.whole()), (0, 2));
        for (end, vni, numbers) in [("a", LOWER, FROM_A), ("b", UPPER, FROM_B)] {
            let reason = if joined.contains(&vni) { "no-route" } else { "gateway-not-here" };
            let drop = format!("{end}.{reason}");
            assert_eq!(next.send(end, |ip, ports| tcp_in(ip, ports, ACK, numbers)), drop);
            assert_eq!(next.send(end, udp_in), drop);
        }
        assert_eq!(next.counts(), before, "{joined:?}");
        next.join(&[LOWER, UPPER]);
        next.passes("b", |ip, ports| tcp_in(ip, ports, ACK, FROM_B));
        next.join(joined);
        next.net.host.pass(90_000);
        assert_eq!(next.net.whole(), 0);
    }
}

/// A vnic in another network is another vnic, although a router joins it and everything else is as
/// it was: also if both ends are in one of the networks, or changed places.
#[test]
fn a_routed_session_of_other_networks_is_not_used() {
    let foreign = ("a.foreign-source", "b.foreign-source");
    for (vnis, drops) in [
        ([OTHER, UPPER], (foreign.0, "b.next-hop-unknown")),
        ([LOWER, OTHER], ("a.next-hop-unknown", foreign.1)),
        ([UPPER, LOWER], foreign),
        ([LOWER, LOWER], ("b.ingress-denied", "b.spoofed-ip")),
    ] {
        for late in [false, true] {
            let mut next = Routed::talking([LOWER, UPPER], false).killed();
            next.vnis = vnis;
            next.join(&[LOWER, UPPER, OTHER]);
            if late {
                assert_eq!((next.net.host.all_declared(), next.net.whole()), (2, 0));
            }
            next.both(&["a", "b"]);
            next.net.group(&[]);
            // With the addresses that the session knows, by the router or straight.
            let before = next.counts();
            for (from, drop) in [("a", drops.0), ("b", drops.1)] {
                let to = match (vnis[0] == vnis[1], from) {
                    (false, _) => router(),
                    (true, "a") => B,
                    (true, _) => A,
                };
                let old = [LOWER, UPPER];
                let tcp = |ip, ports| tcp_in(ip, ports, ACK, FROM_A);
                assert_eq!(next.send_to(to, old, from, tcp), drop, "{vnis:?}");
                assert_eq!(next.send_to(to, old, from, udp_in), drop, "{vnis:?}");
            }
            // With its own, which the group does not let in.
            if vnis[0] != vnis[1] {
                let outcome = next.send("a", |ip, ports| tcp_in(ip, ports, ACK, FROM_A));
                assert_eq!(outcome, "b.ingress-denied", "{vnis:?}");
                assert_eq!(next.send("a", udp_in), "b.ingress-denied", "{vnis:?}");
            }
            assert_eq!(next.counts(), before, "{vnis:?}");
            let ended = next.net.host.all_declared();
            assert_eq!((ended, next.net.whole()), (if late { 0 } else { 2 }, 0), "{vnis:?}");
        }
    }
}
