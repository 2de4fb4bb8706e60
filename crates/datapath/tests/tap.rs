//! The tap in packet walks: the copies for each sink, and their records. Only the sinks notice the
//! tap.

use std::sync::Arc;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TapEnd, TapPoint, TapRole, TapSink, TapVerdict, TapWhat,
    TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build,
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const D: Mac = Mac([2, 0, 0, 0, 0, 0xd]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
const WHOLE: u32 = 65_535;

/// A copy, without the parts that differ from run to run.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    point: TapPoint,
    from: TapEnd,
    verdict: TapVerdict,
    /// By sink: its vnic's part, and why that did not get it.
    sinks: Vec<(u32, TapRole, Option<&'static str>)>,
    len: u32,
    data: Vec<u8>,
    rules: Vec<String>,
    reply: Option<bool>,
}

fn sink(number: u32, what: TapWhat) -> Arc<TapSink> {
    Arc::new(TapSink::new(number, what, 1, WHOLE))
}

fn nic(number: u32, id: &str) -> Arc<TapSink> {
    sink(number, TapWhat::Nic(id.into()))
}

fn seen(host: &Host) -> Vec<Seen> {
    let mut all = Vec::new();
    host.watched(|packet| {
        let age = packet.time.elapsed().unwrap_or_default();
        assert!(age.as_secs() < 60, "{age:?}");
        all.push(Seen {
            point: packet.point,
            from: packet.from.clone(),
            verdict: packet.verdict.clone(),
            sinks: packet
                .sinks
                .iter()
                .map(|(sink, role, why)| (*sink, *role, why.map(|why| why.name())))
                .collect(),
            len: packet.len,
            data: packet.data.to_vec(),
            rules: packet.rules.iter().flatten().map(|rule| rule.group.to_string()).collect(),
            reply: packet.session,
        });
    });
    all
}

fn vnic(id: &str) -> TapEnd {
    TapEnd::Vnic(id.into())
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ip: [u8; 4], groups: &[&str]) -> VnicPolicy {
    let groups = groups.iter().map(|name| GroupName::new(name).unwrap()).collect();
    VnicPolicy { ip_anti_spoof: true, ips: vec![ip.into()], groups, ..VnicPolicy::default() }
}

fn allow(host: &Host, group: &str, port: u32) {
    let cidr = Cidr::new("0.0.0.0", 0).unwrap();
    let rule =
        Rule::new(Direction::Inbound, 6, (Some(port), Some(port)), Some(cidr), None).unwrap();
    let name = GroupName::new(group).unwrap();
    let group = SecurityGroup::new(name.clone(), &[] as &[String], vec![rule]).unwrap();
    host.change_group(&name, GroupChange::Declare(group)).unwrap();
}

fn ping(from: Mac, to: Mac) -> Vec<u8> {
    build::ethernet(from, to).ipv4(IP_A, IP_B).ping(1, 1, b"butterfly")
}

fn tcp(from: (Mac, [u8; 4], u16), to: (Mac, [u8; 4], u16), flags: u8, payload: &[u8]) -> Vec<u8> {
    build::ethernet(from.0, to.0).ipv4(from.1, to.1).tcp(
        &build::Tcp {
            sequence: 1,
            acknowledgement: 2,
            window: 1000,
            ..build::Tcp::new(from.2, to.2, flags)
        },
        payload,
    )
}

fn send(host: &mut Host, id: &str, frame: &[u8]) {
    host.send(id, frame, NetHeader::default()).unwrap();
}

#[test]
fn each_sees_its_own_and_nobody_sees_what_nobody_wants() {
    let mut host = Host::new().unwrap();
    for (id, mac, vni) in [("a", A, 1), ("b", B, 1), ("c", C, 1), ("d", D, 2), ("e", A, 2)] {
        host.vnic(id, mac, vni, &bypass()).unwrap();
    }
    send(&mut host, "a", &ping(A, B));
    assert_eq!(seen(&host), []);
    host.watch(&[
        nic(1, "a"),
        nic(2, "b"),
        nic(3, "c"),
        sink(4, TapWhat::Vni(2)),
        sink(5, TapWhat::All),
    ]);
    let (one, two) = (ping(A, B), ping(A, D));
    send(&mut host, "a", &one);
    send(&mut host, "e", &two);
    let [first, second] = &seen(&host)[..] else { panic!() };
    assert_eq!((&first.from, &first.verdict), (&vnic("a"), &TapVerdict::Delivered(vnic("b"))));
    assert_eq!(
        first.sinks,
        [(5, TapRole::Neither, None), (1, TapRole::Sent, None), (2, TapRole::Received, None)]
    );
    assert_eq!((first.len as usize, &first.data), (one.len(), &one));
    assert_eq!(second.sinks, [(5, TapRole::Neither, None), (4, TapRole::Neither, None)]);
    assert_eq!(second.data, two);
    // A vnic that is removed and comes again is found again, and not in another vnic's place.
    host.remove("a");
    host.vnic("z", A, 1, &bypass()).unwrap();
    host.watch(&[nic(1, "a")]);
    send(&mut host, "z", &one);
    assert_eq!(seen(&host), []);
    host.watch(&[]);
    send(&mut host, "z", &one);
    assert_eq!(seen(&host), []);
}

/// Each worker has a ring of its own for copies.
#[test]
fn copies_of_several_workers_come_in_the_order_of_time() {
    let mut host = Host::with_workers(2).unwrap();
    for (id, mac) in [("a", A), ("b", B), ("c", C)] {
        host.vnic(id, mac, 1, &bypass()).unwrap();
    }
    host.settle();
    host.watch(&[sink(1, TapWhat::All)]);
    for n in 0..8 {
        let (id, from) = if n % 2 == 0 { ("a", A) } else { ("b", B) };
        send(&mut host, id, &build::ethernet(from, C).payload(0x88b5, &[n; 46]));
    }
    let order: Vec<u8> = seen(&host).iter().map(|seen| seen.data[14]).collect();
    assert_eq!(order, (0..8).collect::<Vec<_>>());
}

#[test]
fn floods_say_who_got_them_and_who_did_not() {
    let mut host = Host::new().unwrap();
    for (id, mac) in [("a", A), ("b", B)] {
        host.vnic(id, mac, 1, &bypass()).unwrap();
    }
    host.vnic("c", C, 1, &filtered(IP_B, &[])).unwrap();
    host.declare("d", D, 1, &bypass()).unwrap();
    host.settle();
    host.watch(&[nic(1, "a"), nic(2, "b"), nic(3, "c"), nic(4, "d")]);
    // c refuses IP, and d has no guest.
    send(&mut host, "a", &ping(A, Mac::BROADCAST));
    let all = seen(&host);
    let [one] = &all[..] else { panic!("{all:?}") };
    let TapVerdict::Flooded { vnics: 1, hosts: 0, refused: 2, reason: Some(_) } = one.verdict
    else {
        panic!("{one:?}")
    };
    let expected = [
        (1, TapRole::Sent, None),
        (2, TapRole::Received, None),
        (3, TapRole::Received, Some("ingress-denied")),
        (4, TapRole::Received, Some("not-attached")),
    ];
    assert_eq!(one.sinks, expected);
    // A frame for an unknown address is not for a filtered vnic.
    send(&mut host, "a", &ping(A, Mac([2, 0, 0, 0, 7, 7])));
    let all = seen(&host);
    assert_eq!(all[0].sinks.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn drops_have_their_reason_and_sessions_their_rule() {
    let mut host = Host::new().unwrap();
    allow(&host, "web", 80);
    host.vnic("a", A, 1, &filtered(IP_A, &["clients"])).unwrap();
    host.vnic("b", B, 1, &filtered(IP_B, &["web"])).unwrap();
    host.settle();
    host.watch(&[nic(1, "a"), nic(2, "b")]);
    let (a, b) = ((A, IP_A, 4000), (B, IP_B, 80));
    send(&mut host, "a", &tcp(a, b, SYN, b""));
    send(&mut host, "b", &tcp(b, a, SYN | ACK, b""));
    send(&mut host, "a", &tcp(a, (B, IP_B, 81), SYN, b""));
    send(&mut host, "a", &tcp((A, [10, 9, 9, 9], 1), b, SYN, b""));
    let all = seen(&host);
    let [syn, answer, denied, spoofed] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&syn.rules[..], syn.reply), (&["web".to_owned()][..], Some(false)));
    assert_eq!((&answer.rules[..], answer.reply), (&["web".to_owned()][..], Some(true)));
    let dropped = |seen: &Seen| match &seen.verdict {
        TapVerdict::Dropped { reason, charged } => (reason.name(), charged.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(dropped(denied), ("ingress-denied", vnic("b")));
    let expected = [
        (1, TapRole::Sent, Some("ingress-denied")),
        (2, TapRole::Received, Some("ingress-denied")),
    ];
    assert_eq!(denied.sinks, expected);
    assert_eq!(dropped(spoofed), ("spoofed-ip", vnic("a")));
    assert_eq!(spoofed.sinks, [(1, TapRole::Sent, Some("spoofed-ip"))]);
}

#[test]
fn what_delivery_finds_out_is_told_and_long_frames_are_whole() {
    let mut host = Host::new().unwrap();
    let config = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
    for (id, mac) in [("a", A), ("b", B)] {
        host.declare(id, mac, 1, &bypass()).unwrap();
        host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.settle();
    host.watch(&[nic(1, "b")]);
    let payload: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
    let long = tcp((A, IP_A, 1), (B, IP_B, 2), ACK, &payload);
    send(&mut host, "a", &long);
    assert_eq!(seen(&host)[0].data, long);
    host.watch(&[Arc::new(TapSink::new(2, TapWhat::Nic("b".into()), 1, 200))]);
    send(&mut host, "a", &long);
    let cut = seen(&host).remove(0);
    assert_eq!((cut.len as usize, &cut.data[..]), (long.len(), &long[..200]));
    host.detach("b");
    send(&mut host, "a", &long);
    let all = seen(&host);
    assert_eq!(all[0].sinks, [(2, TapRole::Received, Some("not-attached"))]);
}

#[test]
fn a_full_ring_costs_copies_and_no_packet() {
    let mut host = Host::new().unwrap();
    let config = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
    for (id, mac) in [("a", A), ("b", B)] {
        host.declare(id, mac, 1, &bypass()).unwrap();
        host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.settle();
    let sinks = [nic(1, "b"), Arc::new(TapSink::new(2, TapWhat::All, 10, 64))];
    host.watch(&sinks);
    let frame = tcp((A, IP_A, 1), (B, IP_B, 2), ACK, &[7; 15_000]);
    const SENT: u64 = 1000;
    let mut got = 0;
    for _ in 0..SENT {
        send(&mut host, "a", &frame);
        got += host.received().unwrap().get("b").map_or(0, Vec::len) as u64;
    }
    assert_eq!(got, SENT, "nobody who is not watching notices");
    let mut copied = [0, 0];
    host.watched(|packet| {
        packet.sinks.iter().for_each(|(sink, ..)| copied[*sink as usize - 1] += 1)
    });
    assert!(sinks[0].lost() > 0 && copied[0] > 0, "{copied:?}");
    assert_eq!(copied[0] + sinks[0].lost(), SENT);
    assert_eq!(copied[1] + sinks[1].lost(), SENT / 10, "one in ten");
    // There is room again.
    send(&mut host, "a", &frame);
    assert_eq!(seen(&host).len(), 1);
}

#[test]
fn the_uplink_is_seen_with_outer_headers_and_networks_without() {
    let endpoint = |n: u8| std::net::IpAddr::from([192, 168, 0, n]);
    let link = |n: u8| Mac([2, 0xbf, 0, 0, 0, n]);
    let sessions = || SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut hosts: Vec<Host> = [1, 2]
        .map(|n| {
            Host::with_tunnel(sessions(), Some(&TunnelConfig::new(endpoint(n), link(n)))).unwrap()
        })
        .into();
    for (n, (host, (id, mac))) in hosts.iter_mut().zip([("a", A), ("b", B)]).enumerate() {
        let config = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
        host.declare(id, mac, 42, &bypass()).unwrap();
        host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        let other = 2 - n as u8;
        host.set_peers(vec![endpoint(other)], Default::default()).unwrap();
        host.set_neighbour(endpoint(other), link(other)).unwrap();
        host.settle();
        host.watch(&[sink(1, TapWhat::Uplink), sink(2, TapWhat::All)]);
    }
    let [one, two] = &mut hosts[..] else { panic!() };
    let frame = ping(A, B);
    send(one, "a", &frame);
    let left = one.left().unwrap();
    let [outer] = &left[..] else { panic!("{left:?}") };
    let all = seen(one);
    let [out, inner] = &all[..] else { panic!("{all:?}") };
    assert_eq!(
        (out.point, &out.data, &out.sinks[..]),
        (TapPoint::UplinkOut, outer, &[(1, TapRole::Neither, None)][..])
    );
    assert_eq!(inner.verdict, TapVerdict::Flooded { vnics: 0, hosts: 1, refused: 0, reason: None });
    assert_eq!(inner.data, frame);
    two.arrive(&left).unwrap();
    let all = seen(two);
    let [arrived, inner] = &all[..] else { panic!("{all:?}") };
    assert_eq!((arrived.point, &arrived.data), (TapPoint::UplinkIn, outer));
    assert_eq!((&inner.from, &inner.data), (&TapEnd::Host(Some(endpoint(1))), &frame));
    assert_eq!(inner.verdict, TapVerdict::Delivered(vnic("b")));
    // Back: known by now, so it goes to one host.
    send(two, "b", &ping(B, A));
    assert!(
        seen(two)
            .iter()
            .any(|seen| seen.verdict == TapVerdict::Tunnelled(TapEnd::Host(Some(endpoint(1)))))
    );
    // Too big for the uplink: dropped at the sender's expense, and answered by the switch.
    let large = tcp((B, IP_B, 1), (A, IP_A, 2), ACK, &[1; 3000]);
    let mut large = large;
    large[20] = 0x40; // do not fragment
    let sum =
        butterfly_packet::checksum::Sum::of(&[&large[14..24], &[0, 0], &large[26..34]].concat())
            .checksum();
    large[24..26].copy_from_slice(&sum.to_be_bytes());
    send(two, "b", &large);
    let all = seen(two);
    let dropped = all.iter().find(|seen| seen.point == TapPoint::Network).unwrap();
    assert!(
        matches!(&dropped.verdict, TapVerdict::Dropped { reason, charged } if reason.name() == "too-big" && *charged == vnic("b"))
    );
    let answer = all.iter().find(|seen| seen.point == TapPoint::Answer).unwrap();
    assert_eq!(answer.verdict, TapVerdict::Delivered(vnic("b")));
    // What is no network's has a reason, too.
    let mut strange = outer.clone();
    strange[36..38].copy_from_slice(&1u16.to_be_bytes());
    two.arrive(&[strange.clone()]).unwrap();
    let all = seen(two);
    let dropped = all.iter().find(|seen| seen.sinks[0].0 == 2).unwrap();
    assert!(
        matches!(&dropped.verdict, TapVerdict::Dropped { reason, charged: TapEnd::Endpoint } if reason.name() == "not-ours"),
        "{dropped:?}"
    );
    assert_eq!(dropped.data, strange);
}
