//! Machines that move between hosts: three hosts in one process, joined by a simulated wire.

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Imported, Mac, SessionConfig, SessionFilter, TunnelConfig, VnicPolicy,
    harness::Host,
};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build::{self, Ip, Tcp},
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
const IP_C: [u8; 4] = [10, 0, 0, 3];
const VNI: u32 = 42;

fn endpoint(n: u8) -> IpAddr {
    IpAddr::from([192, 168, 0, n])
}

fn name(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

/// A host whose tunnel endpoint has this number. Group "g" lets TCP port 80 and UDP port 53 in.
fn host(n: u8) -> Host {
    let config = TunnelConfig::new(endpoint(n), Mac([2, 0xbf, 0, 0, 0, n]));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let host = Host::with_tunnel(sessions, Some(&config)).unwrap();
    let any = Cidr::new("0.0.0.0", 0).unwrap();
    let rule = |protocol, port| {
        Rule::new(Direction::Inbound, protocol, (Some(port), Some(port)), Some(any), None).unwrap()
    };
    let rules = [rule(6, 80), rule(17, 53)];
    let group = SecurityGroup::new(name("g"), &[] as &[&str], rules).unwrap();
    host.change_group(&name("g"), GroupChange::Declare(group)).unwrap();
    host
}

fn policy(ip: [u8; 4], groups: &[&str]) -> VnicPolicy {
    VnicPolicy {
        ip_anti_spoof: true,
        ips: vec![ip.into()],
        groups: groups.iter().map(|group| name(group)).collect(),
        ..VnicPolicy::default()
    }
}

fn arrive(host: &mut Host, id: &str) {
    host.arrives(id).unwrap();
}

/// Carries frames between hosts, each to the host that its outer destination names, or to all.
fn carry(hosts: &mut [&mut Host]) -> usize {
    let mut count = 0;
    loop {
        let left: Vec<Vec<Vec<u8>>> = hosts.iter_mut().map(|host| host.left().unwrap()).collect();
        if left.iter().all(Vec::is_empty) {
            return count;
        }
        for (from, frames) in left.iter().enumerate() {
            count += frames.len();
            assert!(count < 1000, "frames go round");
            for (_, host) in hosts.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                host.arrive(frames).unwrap();
            }
        }
    }
}

fn frames_of(host: &mut Host, id: &str) -> Vec<Vec<u8>> {
    let frames = host.received().unwrap().remove(id).unwrap_or_default();
    frames.into_iter().map(|(_, frame)| frame).collect()
}

fn send(host: &mut Host, id: &str, frame: &[u8]) {
    host.send(id, frame, NetHeader::default()).unwrap();
}

fn ip(from: (Mac, [u8; 4]), to: (Mac, [u8; 4])) -> Ip {
    build::ethernet(from.0, to.0).ipv4(from.1, to.1)
}

fn a_to_b() -> Ip {
    ip((A, IP_A), (B, IP_B))
}

fn b_to_a() -> Ip {
    ip((B, IP_B), (A, IP_A))
}

/// Three hosts. "a" runs on the first and is declared on the second, "b" runs on the third, "c" on
/// the first beside "a". All are filtered and know each other's places.
struct Cloud {
    one: Host,
    two: Host,
    three: Host,
}

impl Cloud {
    fn new() -> Cloud {
        let (mut one, mut two, mut three) = (host(1), host(2), host(3));
        one.declare("a", A, VNI, &policy(IP_A, &[])).unwrap();
        one.declare("c", C, VNI, &policy(IP_C, &[])).unwrap();
        two.declare("a", A, VNI, &policy(IP_A, &[])).unwrap();
        three.declare("b", B, VNI, &policy(IP_B, &["g"])).unwrap();
        arrive(&mut one, "a");
        arrive(&mut one, "c");
        arrive(&mut three, "b");
        let mut cloud = Cloud { one, two, three };
        // The keeper of a daemon asks for the next hop to a host that was never heard.
        let meet = |host: &Host, n| {
            host.meets(endpoint(n), VNI, Mac([2, 0xbf, 0, 0, 0, n])).unwrap();
        };
        meet(&cloud.one, 2);
        meet(&cloud.two, 3);
        meet(&cloud.three, 1);
        cloud.three("b", &build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, IP_A));
        cloud.one("a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B));
        cloud.look();
        cloud
    }

    fn carry(&mut self) -> usize {
        carry(&mut [&mut self.one, &mut self.two, &mut self.three])
    }

    fn one(&mut self, id: &str, frame: &[u8]) {
        send(&mut self.one, id, frame);
        self.carry();
    }

    fn two(&mut self, id: &str, frame: &[u8]) {
        send(&mut self.two, id, frame);
        self.carry();
    }

    fn three(&mut self, id: &str, frame: &[u8]) {
        send(&mut self.three, id, frame);
        self.carry();
    }

    /// Forgets what happened until now.
    fn look(&mut self) {
        for host in [&mut self.one, &mut self.two, &mut self.three] {
            let _ = host.received().unwrap();
            host.moved();
        }
    }

    /// Has "a" open a connection to port 80 of "b", by the host that it runs on.
    fn connect(&mut self, port: u16) {
        let segment = |from, to, flags, numbers: (u32, u32)| Tcp {
            sequence: numbers.0,
            acknowledgement: numbers.1,
            window: 0xffff,
            ..Tcp::new(from, to, flags)
        };
        self.one("a", &a_to_b().tcp(&segment(port, 80, SYN, (1000, 0)), b""));
        self.three("b", &b_to_a().tcp(&segment(80, port, SYN | ACK, (5000, 1001)), b""));
        self.one("a", &a_to_b().tcp(&segment(port, 80, ACK, (1001, 5001)), b""));
        assert_eq!(frames_of(&mut self.three, "b").len(), 2);
        assert_eq!(frames_of(&mut self.one, "a").len(), 1);
    }

    /// Has "a" leave the first host for the second, and returns what the second one took over.
    fn move_a(&mut self) -> Imported {
        self.one.leaves("a", Some(endpoint(2))).unwrap();
        self.one.depart("a").unwrap();
        let imported = self.import();
        arrive(&mut self.two, "a");
        imported
    }

    fn import(&mut self) -> Imported {
        let exported = self.one.export_vnic("a").unwrap();
        self.two.import_vnic(&exported.text).unwrap().unwrap()
    }
}

fn data(from: u16, to: u16, (sequence, acknowledgement): (u32, u32)) -> Tcp<'static> {
    Tcp { sequence, acknowledgement, window: 0xffff, ..Tcp::new(from, to, ACK) }
}

#[test]
fn a_connection_goes_on_at_the_other_host_without_pick_up() {
    let mut cloud = Cloud::new();
    cloud.connect(7777);
    let imported = cloud.move_a();
    assert_eq!((imported.sessions.taken, imported.sessions.known), (1, 0), "{imported:?}");
    assert!(imported.sessions.refused.is_empty(), "{imported:?}");
    cloud.look();
    // The third host has not heard: what it sends is passed on, once, and nobody is learnt there.
    let frame = b_to_a().tcp(&data(80, 7777, (5001, 1001)), b"x");
    cloud.three("b", &frame);
    assert_eq!(frames_of(&mut cloud.two, "a"), [frame]);
    assert_eq!(cloud.one.moved().get("a.passed-on"), Some(&1));
    assert_eq!(cloud.two.moved().get("42.learn-refused"), None);
    // The answer goes straight to the third host, which knows the place then.
    let frame = a_to_b().tcp(&data(7777, 80, (1001, 5002)), b"y");
    cloud.two("a", &frame);
    assert_eq!(frames_of(&mut cloud.three, "b"), [frame]);
    cloud.one.moved();
    let frame = b_to_a().tcp(&data(80, 7777, (5002, 1002)), b"z");
    cloud.three("b", &frame);
    assert_eq!(frames_of(&mut cloud.two, "a"), [frame]);
    assert_eq!(cloud.one.moved().get("a.passed-on"), None);
}

#[test]
fn without_an_import_the_peer_is_refused() {
    let mut cloud = Cloud::new();
    cloud.connect(7777);
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.one.depart("a").unwrap();
    arrive(&mut cloud.two, "a");
    cloud.look();
    cloud.three("b", &b_to_a().tcp(&data(80, 7777, (5001, 1001)), b"x"));
    assert_eq!(frames_of(&mut cloud.two, "a").len(), 0);
}

/// A document from before the switch-over: the stream is megabytes ahead of its marks.
#[test]
fn a_connection_that_went_on_meanwhile_catches_up_once() {
    for from_peer in [true, false] {
        let mut cloud = Cloud::new();
        // Its own host does not mind.
        let free = VnicPolicy { bypass: true, ..policy(IP_B, &[]) };
        cloud.three.update("b", &free).unwrap();
        cloud.connect(7777);
        assert_eq!(cloud.import().sessions.taken, 1);
        let far = 3_000_000_000_u32;
        cloud.one.leaves("a", Some(endpoint(2))).unwrap();
        cloud.one.depart("a").unwrap();
        arrive(&mut cloud.two, "a");
        cloud.look();
        let (b, a) = (5001_u32.wrapping_add(far), 1001);
        if from_peer {
            let frame = b_to_a().tcp(&data(80, 7777, (b, a)), b"x");
            cloud.three("b", &frame);
            assert_eq!(frames_of(&mut cloud.two, "a"), [frame]);
        } else {
            cloud.two("a", &a_to_b().tcp(&data(7777, 80, (a, b)), b"x"));
        }
        // Its marks are known now: another jump is not believed.
        cloud.two.moved();
        cloud.three("b", &b_to_a().tcp(&data(80, 7777, (b.wrapping_add(far), a)), b"x"));
        assert_eq!(frames_of(&mut cloud.two, "a").len(), 0, "{from_peer}");
        assert_eq!(cloud.two.moved().get("a.drop.tcp-window"), Some(&1), "{from_peer}");
    }
}

/// Frames that are passed on never go back, nor round.
#[test]
fn what_is_passed_on_makes_no_circle() {
    let mut cloud = Cloud::new();
    cloud.two.declare("d", Mac([2, 0, 0, 0, 0, 0xd]), VNI, &policy([10, 0, 0, 4], &[])).unwrap();
    cloud.three.declare("a", A, VNI, &policy(IP_A, &[])).unwrap();
    // Each of three hosts believes that the next one has it.
    cloud.one.depart("a").unwrap();
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.two.leaves("a", Some(endpoint(3))).unwrap();
    cloud.three.leaves("a", Some(endpoint(1))).unwrap();
    cloud.look();
    send(&mut cloud.three, "b", &b_to_a().udp(1, 2, b"x"));
    assert!(cloud.carry() <= 2);
    // What comes from the host that has it stays.
    cloud.look();
    let passed = cloud.three.left().unwrap();
    assert!(passed.is_empty());
}

#[test]
fn a_machine_that_stays_has_its_addresses_at_once() {
    let mut cloud = Cloud::new();
    cloud.connect(7777);
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.import();
    cloud.one.depart("a").unwrap();
    cloud.look();
    // A neighbour on the old host finds it at the new one.
    let to_a = ip((C, IP_C), (A, IP_A)).udp(1, 2, b"?");
    send(&mut cloud.one, "c", &to_a);
    assert_eq!(cloud.one.left().unwrap().len(), 1, "it goes to the other host");
    // The migration is given up.
    arrive(&mut cloud.one, "a");
    cloud.look();
    let frame = b_to_a().tcp(&data(80, 7777, (5001, 1001)), b"x");
    cloud.three("b", &frame);
    assert_eq!(frames_of(&mut cloud.one, "a"), [frame]);
    send(&mut cloud.one, "c", &to_a);
    assert_eq!(cloud.one.left().unwrap().len(), 0, "it is here");
    assert_eq!(cloud.one.moved().get("a.passed-on"), None);
}

#[test]
fn passing_on_ends_after_half_a_minute() {
    let mut cloud = Cloud::new();
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.one.depart("a").unwrap();
    cloud.look();
    let frame = b_to_a().udp(1, 2, b"x");
    cloud.one.pass(29);
    cloud.three("b", &frame);
    assert_eq!(cloud.one.moved().get("a.passed-on"), Some(&1));
    cloud.one.pass(1);
    cloud.three("b", &frame);
    assert_eq!(cloud.one.moved().get("a.passed-on"), None);
}

/// Conversations without sequence numbers, with a neighbour that stays on the old host.
#[test]
fn a_neighbour_that_stays_goes_on_talking() {
    let mut cloud = Cloud::new();
    cloud.one.update("a", &policy(IP_A, &["g"])).unwrap();
    cloud.two.update("a", &policy(IP_A, &["g"])).unwrap();
    let ask = ip((C, IP_C), (A, IP_A)).udp(5353, 53, b"?");
    let tell = ip((A, IP_A), (C, IP_C)).udp(53, 5353, b"!");
    cloud.one("c", &ask);
    cloud.one("a", &tell);
    assert_eq!(frames_of(&mut cloud.one, "c").len(), 1);
    let imported = cloud.move_a();
    assert_eq!(imported.sessions.taken, 1, "{imported:?}");
    cloud.look();
    // The machine says more: its old neighbour did not ask again.
    cloud.two.announce_once("a").unwrap();
    cloud.two.settle();
    cloud.carry();
    cloud.look();
    cloud.two("a", &tell);
    assert_eq!(frames_of(&mut cloud.one, "c"), [tell]);
}

/// A document cannot open what stands beside the vnic that it names.
#[test]
fn an_invented_session_opens_no_other_vnic() {
    let mut cloud = Cloud::new();
    cloud.two.declare("d", Mac([2, 0, 0, 0, 0, 0xd]), VNI, &policy([10, 0, 0, 4], &[])).unwrap();
    arrive(&mut cloud.two, "d");
    let text = |sessions: &str| {
        format!(
            r#"{{"kind":"butterfly-vnic","layout":1,"vnic":{{"id":"a","mac":"","vni":42,"addresses":[],"groups":[],"bypass":false}},"sessions":[{sessions}]}}"#
        )
    };
    let life = "[17,5,5,[1,1],[1,1]]";
    for (session, why) in [
        // As if "d" had asked "a", so that "a" may answer.
        (
            format!(r#"[false,[17,"10.0.0.4",9,"10.0.0.1",9,0],{life},null]"#),
            "unknown to the vnic here",
        ),
        (
            format!(r#"[true,[17,"10.0.0.1",9,"10.0.0.4",9,0],{life},null]"#),
            "unknown to the vnic here",
        ),
        // Of somebody else.
        (
            format!(r#"[true,[17,"10.0.0.4",9,"10.0.0.9",9,0],{life},null]"#),
            "not from an address of the vnic",
        ),
        (
            format!(r#"[true,[17,"10.0.0.1",9,"10.0.0.1",9,0],{life},null]"#),
            "its other end cannot be",
        ),
        (
            format!(r#"[true,[17,"10.0.0.1",9,"224.0.0.1",9,0],{life},null]"#),
            "its other end cannot be",
        ),
        (format!(r#"[true,[6,"10.0.0.1",9,"10.0.0.9",9,0],{life},null]"#), "its state cannot be"),
        (
            r#"[true,[17,"10.0.0.1",9,"10.0.0.9",9,0],[17,5000,4000,[0,0],[0,0]],null]"#.into(),
            "it is over",
        ),
        (
            r#"[true,[17,"10.0.0.1",9,"10.0.0.9",9,0],[17,5,6,[0,0],[0,0]],null]"#.into(),
            "it is over",
        ),
        (
            r#"[true,[6,"10.0.0.1",9,"10.0.0.9",9,0],[3,5,5,[0,0],[0,0]],[3,[99,0],[0,0],[0,0],[0,0]]]"#.into(),
            "its state cannot be",
        ),
        (
            r#"[true,[6,"10.0.0.1",9,"::1",9,0],[3,5,5,[0,0],[0,0]],null]"#.into(),
            "its ends are of two families",
        ),
    ] {
        let imported = cloud.two.import_vnic(text(&session).as_bytes()).unwrap().unwrap();
        let refused: Vec<_> = imported.sessions.refused.into_iter().collect();
        assert_eq!((imported.sessions.taken, refused), (0, vec![(why, 1)]), "{session}");
    }
    // Whoever wrote it: not even the text is believed.
    for bad in ["", "{}", "[]", "nonsense"] {
        assert!(cloud.two.import_vnic(bad.as_bytes()).is_err(), "{bad}");
    }
    let other = text("").replace("\"layout\":1", "\"layout\":2");
    assert!(cloud.two.import_vnic(other.as_bytes()).unwrap_err().contains("layout 2"));
    assert_eq!(cloud.two.sessions(&SessionFilter::default(), 0).0, 0);
}

/// The rules of the new host decide, not those of the old one.
#[test]
fn each_session_is_decided_again() {
    let mut cloud = Cloud::new();
    cloud.one.update("a", &policy(IP_A, &["g"])).unwrap();
    // "b" asks; here "a" lets it in, on the new host it does not.
    cloud.three("b", &b_to_a().udp(5353, 53, b"?"));
    cloud.one("a", &a_to_b().udp(53, 5353, b"!"));
    let imported = cloud.move_a();
    assert_eq!(imported.sessions.taken, 1);
    cloud.look();
    cloud.three("b", &b_to_a().udp(5353, 53, b"?"));
    assert_eq!(frames_of(&mut cloud.two, "a").len(), 0);
    assert_eq!(cloud.two.moved().get("a.drop.ingress-denied"), Some(&1));
    assert_eq!(cloud.two.sessions(&SessionFilter::default(), 0).0, 0);
}

#[test]
fn imports_replace_each_other_until_the_machine_runs() {
    let mut cloud = Cloud::new();
    cloud.connect(7777);
    cloud.connect(7778);
    assert_eq!(cloud.import().sessions.taken, 2);
    let port = SessionFilter { port: Some(7777), ..SessionFilter::default() };
    assert_eq!(cloud.one.flush_sessions(&port), 1);
    let again = cloud.import().sessions;
    assert_eq!((again.taken, again.known, again.ended), (1, 0, 1));
    let counts = |host: &mut Host| host.sessions(&SessionFilter::default(), 10);
    let (n, rows) = counts(&mut cloud.two);
    assert_eq!((n, rows[0].packets, rows[0].state), (1, [2, 1], "established"));
    cloud.connect(7779);
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.one.depart("a").unwrap();
    arrive(&mut cloud.two, "a");
    // Later ones only join.
    let late = cloud.import().sessions;
    assert_eq!((late.taken, late.known, late.ended), (1, 1, 0));
    assert_eq!(counts(&mut cloud.two).0, 2);
}

/// The vnic stayed declared on the first host, with what was true when the machine left.
#[test]
fn a_machine_that_returns_brings_its_sessions_back() {
    let mut cloud = Cloud::new();
    cloud.connect(7777);
    cloud.move_a();
    // Further on, at the second host.
    for n in 0..3_u32 {
        let (a, b) = (1001 + n, 5001 + n);
        cloud.two("a", &a_to_b().tcp(&data(7777, 80, (a, b)), b"x"));
        cloud.three("b", &b_to_a().tcp(&data(80, 7777, (b, a + 1)), b"x"));
    }
    cloud.one.pass(60);
    cloud.two.leaves("a", Some(endpoint(1))).unwrap();
    cloud.two.depart("a").unwrap();
    let exported = cloud.two.export_vnic("a").unwrap();
    let back = cloud.one.import_vnic(&exported.text).unwrap().unwrap();
    assert_eq!((back.sessions.taken, back.sessions.known, back.sessions.ended), (1, 0, 0));
    let (n, rows) = cloud.one.sessions(&SessionFilter::default(), 10);
    assert_eq!((n, rows[0].packets), (1, [5, 4]));
    arrive(&mut cloud.one, "a");
    cloud.look();
    let frame = b_to_a().tcp(&data(80, 7777, (5004, 1004)), b"x");
    cloud.three("b", &frame);
    assert_eq!(frames_of(&mut cloud.one, "a"), [frame]);
}

#[test]
fn counters_are_added_once() {
    let mut cloud = Cloud::new();
    let total = |host: &Host| {
        let seen = host.observe();
        let vnic = seen.vnics.iter().find(|vnic| &*vnic.id == "a").unwrap();
        vnic.received.0
    };
    let there = total(&cloud.one);
    assert!(there > 0);
    for _ in 0..3 {
        cloud.import();
        assert_eq!(total(&cloud.two), there);
    }
    cloud.connect(7777);
    cloud.one.leaves("a", Some(endpoint(2))).unwrap();
    cloud.one.depart("a").unwrap();
    arrive(&mut cloud.two, "a");
    cloud.two("a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B));
    for _ in 0..3 {
        cloud.import();
        assert_eq!(total(&cloud.two), there + 2 + 1);
    }
}

#[test]
fn a_host_that_cannot_be_is_refused() {
    let cloud = Cloud::new();
    for (to, why) in [
        ("192.168.0.1", "own tunnel endpoint"),
        ("224.0.0.1", "no station"),
        ("fd00::1", "other family"),
    ] {
        let refused = cloud.one.leaves("a", Some(to.parse().unwrap())).unwrap_err().to_string();
        assert!(refused.contains(why), "{to}: {refused}");
    }
    assert!(cloud.one.leaves("x", None).is_err());
}
