//! Mirrors in packet walks: a mirror gets every frame that its target sends and receives, and no
//! other one. No other vnic notices.

use std::sync::Arc;

use butterfly_datapath::{
    GroupChange, Mac, Origin, Question, SessionConfig, TapSink, TapWhat, Target, TunnelConfig,
    VnicPolicy,
    harness::{Host, LINUX, WIRE},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Refill},
    memory::MemoryConfig,
};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build,
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::{Features, NetHeader};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const M: Mac = Mac([2, 0, 0, 0, 0, 0x77]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ip: [u8; 4]) -> VnicPolicy {
    VnicPolicy {
        ip_anti_spoof: true,
        ips: vec![ip.into()],
        groups: vec![GroupName::new("web").unwrap()],
        ..VnicPolicy::default()
    }
}

/// The group `web` lets port 80 in.
fn web(host: &Host) {
    let cidr = Cidr::new("0.0.0.0", 0).unwrap();
    let rule = Rule::new(Direction::Inbound, 6, (Some(80), Some(80)), Some(cidr), None).unwrap();
    let name = GroupName::new("web").unwrap();
    let group = SecurityGroup::new(name.clone(), &[] as &[String], vec![rule]).unwrap();
    host.change_group(&name, GroupChange::Declare(group)).unwrap();
}

fn guest(host: &mut Host, id: &str, features: Features, config: &GuestConfig) {
    host.attach(id, features, config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
}

fn mirror(host: &mut Host, id: &str, vni: u32, target: &str) {
    host.declare_mirror(id, M, vni, target).unwrap();
    guest(host, id, LINUX, &GuestConfig { max_frame: 70_000, ..GuestConfig::default() });
}

fn ping(from: Mac, to: Mac) -> Vec<u8> {
    build::ethernet(from, to).ipv4(IP_A, IP_B).ping(1, 1, b"butterfly")
}

fn tcp(from: (Mac, [u8; 4], u16), to: (Mac, [u8; 4], u16), flags: u8) -> Vec<u8> {
    build::ethernet(from.0, to.0).ipv4(from.1, to.1).tcp(
        &build::Tcp {
            sequence: 1,
            acknowledgement: 2,
            window: 1000,
            ..build::Tcp::new(from.2, to.2, flags)
        },
        b"",
    )
}

/// Sends a frame. Returns the number that each vnic got, in the order of ids. Checks that all of
/// them got this frame.
fn send(host: &mut Host, from: &str, frame: &[u8]) -> Vec<(String, usize)> {
    host.send(from, frame, NetHeader::default()).unwrap();
    let received = host.received().unwrap();
    for (id, frames) in &received {
        assert!(frames.iter().all(|(_, bytes)| bytes == frame), "{id} got something else");
    }
    received.into_iter().map(|(id, frames)| (id, frames.len())).collect()
}

/// Each of these got one.
fn one(ids: &[&str]) -> Vec<(String, usize)> {
    ids.iter().map(|id| ((*id).to_owned(), 1)).collect()
}

#[test]
fn it_gets_what_its_target_sends_and_receives_and_nothing_else() {
    let mut host = Host::new().unwrap();
    for (id, mac, vni) in [("a", A, 1), ("b", B, 1), ("c", C, 1), ("e", A, 2), ("f", B, 2)] {
        host.vnic(id, mac, vni, &bypass()).unwrap();
    }
    mirror(&mut host, "m", 1, "b");
    let nobody = Mac([2, 0, 0, 0, 9, 9]);
    let cases: &[(&str, Mac, Mac, &[&str])] = &[
        ("a", A, B, &["b", "m"]),
        ("b", B, A, &["a", "m"]),
        ("a", A, C, &["c"]),
        ("c", C, A, &["a"]),
        ("a", A, Mac::BROADCAST, &["b", "c", "m"]),
        ("b", B, Mac::BROADCAST, &["a", "c", "m"]),
        ("a", A, nobody, &["b", "c", "m"]),
        // A mirror is no station: a frame for its address is for no vnic.
        ("a", A, M, &["b", "c", "m"]),
        // A frame without a receiver was sent all the same.
        ("b", B, B, &["m"]),
        ("b", B, Mac([1, 0x80, 0xc2, 0, 0, 0]), &["m"]),
        ("a", A, Mac([1, 0x80, 0xc2, 0, 0, 0]), &[]),
        ("e", A, B, &["f"]),
        ("e", A, Mac::BROADCAST, &["f"]),
    ];
    for (from, source, destination, to) in cases {
        assert_eq!(
            send(&mut host, from, &ping(*source, *destination)),
            one(to),
            "{from} to {destination}"
        );
    }
    // Several frames of one batch for several receivers: copies keep their order.
    let frames: Vec<Vec<u8>> =
        [A, C, Mac::BROADCAST, nobody, A, Mac::BROADCAST].iter().map(|to| ping(B, *to)).collect();
    for frame in &frames {
        host.guest("b").unwrap().send(frame, NetHeader::default()).unwrap();
    }
    host.settle();
    let copies: Vec<Vec<u8>> =
        host.received().unwrap().remove("m").unwrap().into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(copies, frames);
}

#[test]
fn what_the_filter_refuses_was_sent_and_not_received() {
    let mut host = Host::new().unwrap();
    web(&host);
    for (id, mac, ip) in [("a", A, IP_A), ("b", B, IP_B)] {
        host.vnic(id, mac, 1, &filtered(ip)).unwrap();
    }
    host.declare_mirror("m", M, 1, "a").unwrap();
    host.declare_mirror("n", M, 1, "b").unwrap();
    for id in ["m", "n"] {
        guest(&mut host, id, LINUX, &GuestConfig::default());
    }
    let (a, b) = ((A, IP_A, 4000), (B, IP_B, 80));
    assert_eq!(send(&mut host, "a", &tcp(a, b, SYN)), one(&["b", "m", "n"]));
    assert_eq!(send(&mut host, "b", &tcp(b, a, SYN | ACK)), one(&["a", "m", "n"]));
    host.moved();
    assert_eq!(send(&mut host, "a", &tcp(a, (B, IP_B, 81), SYN)), one(&["m"]));
    assert_eq!(
        send(&mut host, "a", &tcp((A, [10, 9, 9, 9], 1), b, SYN)),
        one(&["m"]),
        "a wrong IP address"
    );
    assert_eq!(
        send(&mut host, "a", &tcp((C, IP_A, 1), b, SYN)),
        one(&["m"]),
        "a wrong MAC address"
    );
    let broadcast = |port| {
        build::ethernet(A, Mac::BROADCAST)
            .ipv4(IP_A, [255; 4])
            .tcp(&build::Tcp::new(1, port, SYN), b"")
    };
    assert_eq!(send(&mut host, "a", &broadcast(81)), one(&["m"]));
    assert_eq!(
        send(&mut host, "a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B)),
        one(&["b", "m", "n"])
    );
    let moved = host.moved();
    let drops: Vec<_> = moved.iter().filter(|(name, _)| name.contains(".drop.")).collect();
    assert_eq!(
        drops.iter().filter(|(name, _)| name.starts_with("m.") || name.starts_with("n.")).count(),
        0,
        "{drops:?}"
    );
    assert_eq!((moved["m.out.packets"], moved["n.out.packets"]), (5, 1));
}

#[test]
fn it_sends_nothing() {
    let mut host = Host::new().unwrap();
    for (id, mac) in [("a", A), ("b", B)] {
        host.vnic(id, mac, 1, &bypass()).unwrap();
    }
    mirror(&mut host, "m", 1, "b");
    host.moved();
    let lying =
        NetHeader { flags: NetHeader::FLAG_NEEDS_CSUM, csum_start: 60_000, ..NetHeader::default() };
    for (source, header) in [(M, NetHeader::default()), (A, NetHeader::default()), (C, lying)] {
        for destination in [A, B, Mac::BROADCAST, C] {
            host.send("m", &ping(source, destination), header).unwrap();
        }
    }
    assert!(host.received().unwrap().is_empty());
    let moved = host.moved();
    assert_eq!((moved["m.in.packets"], moved["m.drop.mirror-sends"]), (12, 12), "{moved:?}");
    assert_eq!(moved.keys().filter(|name| !name.starts_with("m.")).count(), 0, "{moved:?}");
    assert_eq!(host.learnt(), 0);
    let walk = host.explain_frame(&Origin::Vnic("m".into()), &ping(M, A)).unwrap();
    assert!(format!("{:?}", walk.fate).contains("mirror-sends"), "{walk:?}");
    let question = Question {
        from: Origin::Vnic("a".into()),
        to: Target::Vnic("m".into()),
        source: None,
        source_mac: None,
        destination_mac: None,
        protocol: 6,
        source_port: None,
        destination_port: Some(80),
        flags: None,
        icmp: None,
        length: None,
        reply: false,
    };
    assert_eq!(
        host.explain(&question).unwrap_err().to_string(),
        "m is a mirror of b: it gets copies of that one's frames and nothing else, and sends nothing"
    );
}

#[test]
fn targets_come_and_go_and_are_of_the_same_network() {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    mirror(&mut host, "m", 1, "b");
    let talk = |host: &mut Host| send(host, "a", &ping(A, Mac::BROADCAST));
    assert_eq!(talk(&mut host), []);
    host.vnic("b", B, 2, &bypass()).unwrap();
    assert_eq!(send(&mut host, "b", &ping(B, A)), [], "another network");
    host.remove("b");
    host.vnic("b", B, 1, &filtered(IP_B)).unwrap();
    assert_eq!(
        send(&mut host, "b", &build::ethernet(B, A).arp_request(IP_B, IP_A)),
        one(&["a", "m"])
    );
    host.update("b", &bypass()).unwrap();
    assert_eq!(talk(&mut host), one(&["b", "m"]));
    // A second one, and one of a mirror.
    host.declare_mirror("n", M, 1, "b").unwrap();
    host.declare_mirror("o", M, 1, "m").unwrap();
    host.declare_mirror("p", M, 1, "p").unwrap();
    for id in ["n", "o", "p"] {
        guest(&mut host, id, WIRE, &GuestConfig::default());
    }
    assert_eq!(talk(&mut host), one(&["b", "m", "n"]));
    host.update("m", &VnicPolicy { ips: vec![IP_A.into()], ..bypass() }).unwrap();
    assert_eq!(send(&mut host, "m", &ping(A, B)), [], "it does not stop to be one");
    host.remove("m");
    assert_eq!(talk(&mut host), one(&["b", "n"]));
    host.remove("b");
    assert_eq!(talk(&mut host), []);
    // Nothing but mirrors left, then nothing.
    host.remove("a");
    host.vnic("b", B, 1, &bypass()).unwrap();
    assert_eq!(send(&mut host, "b", &ping(B, A)), one(&["n"]));
    for id in ["b", "n", "o", "p"] {
        host.remove(id);
    }
    host.vnic("a", A, 1, &bypass()).unwrap();
    assert_eq!(talk(&mut host), []);
}

#[test]
fn offloads_are_for_those_who_take_them() {
    let mut host = Host::new().unwrap();
    web(&host);
    let config = GuestConfig { max_frame: 70_000, ..GuestConfig::default() };
    for (id, mac, policy) in [("a", A, filtered(IP_A)), ("b", B, bypass())] {
        host.declare(id, mac, 1, &policy).unwrap();
        guest(&mut host, id, LINUX, &config);
    }
    mirror(&mut host, "m", 1, "a");
    host.declare_mirror("n", M, 1, "a").unwrap();
    guest(&mut host, "n", WIRE, &GuestConfig::default());
    let segment = |source: [u8; 4]| {
        build::ethernet(A, B).ipv4(source, IP_B).tcp(&build::Tcp::new(5, 80, ACK), &[7; 30_000])
    };
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 1448,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    host.send("a", &segment(IP_A), header).unwrap();
    let got = host.received().unwrap();
    let [(net, whole)] = &got["m"][..] else { panic!("{} frames", got["m"].len()) };
    assert_eq!((NetHeader { num_buffers: 0, ..*net }, whole), (header, &segment(IP_A)));
    assert_eq!(got["b"], got["m"]);
    assert_eq!(got["n"].len(), 30_000usize.div_ceil(1448));
    assert!(
        got["n"]
            .iter()
            .all(|(net, bytes)| net.gso_type == NetHeader::GSO_NONE && bytes.len() <= 1448 + 54)
    );
    // Refused before its offload was checked: the mirror gets its bytes as they are, where they
    // fit.
    let lying = NetHeader { csum_start: 65_000, ..header };
    for (frame, header) in [(segment([10, 9, 9, 9]), header), (segment(IP_A), lying)] {
        host.moved();
        host.send("a", &frame, header).unwrap();
        let got = host.received().unwrap();
        assert!(!got.contains_key("b"));
        assert!(
            got["m"].iter().all(|(net, _)| net.gso_size == 0 || net.gso_size == 1448),
            "no header of another frame"
        );
        assert_eq!(got["m"].iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), frame.len());
    }
}

#[test]
fn a_mirror_that_does_not_read_loses_copies_and_nobody_else_does() {
    let mut host = Host::new().unwrap();
    for (id, mac) in [("a", A), ("b", B)] {
        host.vnic(id, mac, 1, &bypass()).unwrap();
    }
    host.declare_mirror("m", M, 1, "b").unwrap();
    host.declare_mirror("none", M, 1, "b").unwrap();
    guest(
        &mut host,
        "m",
        LINUX,
        &GuestConfig { rx_size: 64, refill: Refill::Manually, ..GuestConfig::default() },
    );
    host.moved();
    for n in 0..100 {
        let frame = ping(A, if n % 2 == 0 { B } else { Mac::BROADCAST });
        host.send("a", &frame, NetHeader::default()).unwrap();
        assert_eq!(host.received().unwrap()["b"].len(), 1);
    }
    let moved = host.moved();
    assert_eq!(
        (moved["b.out.packets"], moved["m.out.packets"], moved["m.drop.ring-full"]),
        (100, 64, 36),
        "{moved:?}"
    );
    assert_eq!(moved["none.drop.not-attached"], 100);
    // The other way round: what the target had no room for it did not get.
    host.remove("m");
    host.detach("b");
    guest(
        &mut host,
        "b",
        LINUX,
        &GuestConfig { rx_size: 64, refill: Refill::Manually, ..GuestConfig::default() },
    );
    mirror(&mut host, "m", 1, "b");
    host.moved();
    for n in 0..100 {
        host.guest("a")
            .unwrap()
            .send(&ping(A, if n % 2 == 0 { B } else { Mac::BROADCAST }), NetHeader::default())
            .unwrap();
        if n % 25 == 24 {
            host.settle();
        }
    }
    let moved = host.moved();
    assert_eq!(
        (moved["b.out.packets"], moved["b.drop.ring-full"], moved["m.out.packets"]),
        (64, 36, 64),
        "{moved:?}"
    );
}

#[test]
fn what_comes_from_other_hosts_and_what_the_switch_answers() {
    let endpoint = |n: u8| std::net::IpAddr::from([192, 168, 0, n]);
    let link = |n: u8| Mac([2, 0xbf, 0, 0, 0, n]);
    let sessions = || SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut hosts: Vec<Host> = [1, 2]
        .map(|n| {
            Host::with_tunnel(sessions(), Some(&TunnelConfig::new(endpoint(n), link(n)))).unwrap()
        })
        .into();
    for (n, (host, (id, mac))) in hosts.iter_mut().zip([("a", A), ("b", B)]).enumerate() {
        host.declare(id, mac, 42, &bypass()).unwrap();
        guest(host, id, LINUX, &GuestConfig { max_frame: 20_000, ..GuestConfig::default() });
        let other = 2 - n as u8;
        host.set_peers(vec![endpoint(other)], Default::default()).unwrap();
        host.set_neighbour(endpoint(other), link(other)).unwrap();
        mirror(host, "m", 42, id);
    }
    let [one_host, two] = &mut hosts[..] else { panic!() };
    // Beside an operator's trace, whose sink sees each frame once.
    one_host.watch(&[Arc::new(TapSink::new(1, TapWhat::All, 1, 64))]);
    let frame = ping(A, B);
    assert_eq!(send(one_host, "a", &frame), one(&["m"]));
    let mut seen = 0;
    one_host.watched(|_| seen += 1);
    assert_eq!(seen, 1);
    let left = one_host.left().unwrap();
    two.arrive(&left).unwrap();
    let received = two.received().unwrap();
    assert_eq!(received.keys().collect::<Vec<_>>(), ["b", "m"]);
    assert!(received.values().all(|frames| frames.len() == 1 && frames[0].1 == frame));
    // Too big for the uplink: the answer is something that the sender got.
    let reply = ping(B, A);
    two.send("b", &reply, NetHeader::default()).unwrap();
    let left = two.left().unwrap();
    one_host.arrive(&left).unwrap();
    one_host.received().unwrap();
    let big = build::ethernet(A, B).ipv4(IP_A, IP_B).dont_fragment().ping(1, 1, &[0; 9000]);
    one_host.send("a", &big, NetHeader::default()).unwrap();
    let received = one_host.received().unwrap();
    let [(_, answer)] = &received["a"][..] else { panic!("{received:?}") };
    let [(_, sent), (_, copy)] = &received["m"][..] else { panic!() };
    assert_eq!((sent, copy), (&big, answer));
}

/// No announcement is sent for a mirror: it would be from a MAC address that the mirror may share
/// with a station.
#[test]
fn a_mirror_is_not_announced() {
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let mut host = Host::with_tunnel(SessionConfig::default(), Some(&config)).unwrap();
    host.vnic("a", A, 7, &filtered(IP_A)).unwrap();
    host.vnic("c", C, 7, &filtered(IP_B)).unwrap();
    host.declare_mirror("m", C, 7, "c").unwrap();
    guest(&mut host, "m", LINUX, &GuestConfig::default());
    let peer: std::net::IpAddr = [192, 168, 0, 9].into();
    host.set_peers(vec![peer], Default::default()).unwrap();
    host.set_neighbour(peer, Mac([2, 0xbf, 0, 0, 0, 9])).unwrap();
    host.settle();
    host.left().unwrap();
    host.received().unwrap();
    host.moved();
    for policy in [bypass(), filtered(IP_A)] {
        host.update("m", &policy).unwrap();
        host.announce("m").unwrap();
        host.settle();
        assert!(host.left().unwrap().is_empty() && host.received().unwrap().is_empty());
        assert!(!host.moved().contains_key("m.announced"));
    }
    // A station is.
    host.announce("c").unwrap();
    host.settle();
    assert!(!host.left().unwrap().is_empty() && host.moved().contains_key("c.announced"));
}
