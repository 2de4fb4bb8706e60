//! Floods that take several turns: changes by their sender meanwhile, frames that wait for them,
//! and the decision by which they go on.

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{Guest, GuestConfig},
    memory::MemoryConfig,
    queue::{Buffer, Placement},
};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::{Features, NetHeader};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

fn rule(direction: Direction, protocol: i32, port: Option<u32>, block: (&str, u32)) -> Rule {
    Rule::new(direction, protocol, (port, port), Some(Cidr::new(block.0, block.1).unwrap()), None)
        .unwrap()
}

fn group(host: &Host, group: &str, rule: Rule) {
    let group = SecurityGroup::new(name(group), std::iter::empty::<&str>(), [rule]).unwrap();
    host.change_group(&group.name().clone(), GroupChange::Declare(group)).unwrap();
}

/// One TCP port of one address may be reached, and nothing else.
fn closed() -> Rule {
    rule(Direction::Outbound, 6, Some(80), ("10.0.0.1", 32))
}

/// Receivers.
fn crowd(host: &mut Host, vni: u32, n: usize) {
    let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(64);
    for i in 0..n {
        let id = format!("r{vni}-{i:04}");
        host.declare(&id, Mac([2, 0, vni as u8, 1, (i >> 8) as u8, i as u8]), vni, &bypass())
            .unwrap();
        host.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
}

fn filtered(host: &mut Host, id: &str, mac: Mac, ip: u8) {
    let policy = VnicPolicy {
        ips: vec![IpAddr::from([10, 0, 0, ip])],
        groups: vec![name(id)],
        ..VnicPolicy::default()
    };
    host.declare(id, mac, 1, &policy).unwrap();
    let config = GuestConfig::default();
    host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed() + (4 << 20)))
        .unwrap();
}

/// A DHCP message of 300 bytes with these options.
fn dhcp(kind: u8, transaction: u32, lease: [u8; 4], client: Mac, options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 1, 6, 0];
    bytes.extend(transaction.to_be_bytes());
    bytes.resize(16, 0);
    bytes.extend(lease);
    bytes.resize(28, 0);
    bytes.extend(client.0);
    bytes.resize(236, 0);
    bytes.extend([99, 130, 83, 99]);
    bytes.extend(options);
    bytes.push(255);
    bytes.resize(300, 0);
    bytes
}

fn discover(transaction: u32, client: Mac, to: Mac) -> Vec<u8> {
    let message = dhcp(1, transaction, [0; 4], client, &[53, 1, 1]);
    build::ethernet(client, to).ipv4([0; 4], [255; 4]).udp(68, 67, &message)
}

/// Puts a frame where a descriptor leads.
fn write(guest: &Guest, addr: u64, frame: &[u8]) {
    guest.memory().write(addr, &[[0; NetHeader::LEN].as_slice(), frame].concat()).unwrap();
}

/// Has a vnic begin a flood, with others behind it, and change it into `then` before it goes on.
fn change(host: &mut Host, id: &str, first: &[u8], behind: &[Vec<u8>], then: &[u8]) {
    assert!(behind.iter().all(|frame| frame.len() == first.len()) && then.len() == first.len());
    let guest = host.guest(id).unwrap();
    while guest.tx_mut().pop().unwrap().is_some() {}
    let len = (NetHeader::LEN + first.len()) as u32;
    let mut used = Vec::new();
    for (token, frame) in std::iter::once(first).chain(behind.iter().map(Vec::as_slice)).enumerate()
    {
        let addr = guest.memory().alloc(1024, 64).unwrap();
        write(guest, addr, frame);
        guest
            .tx_mut()
            .add(&[Buffer { addr, len, writable: false }], Placement::Direct, token as u64)
            .unwrap();
        used.push(addr);
    }
    guest.tx_mut().publish();
    guest.tx_mut().kick();
    host.turn();
    write(host.guest(id).unwrap(), used[0], then);
    host.settle();
    used.into_iter().for_each(|addr| host.guest(id).unwrap().memory().free(addr, 1024));
}

/// Eight requests at once and four per second, whatever a flood becomes while it is under way.
#[test]
fn a_flood_that_becomes_something_else_is_judged() {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    filtered(&mut host, "b", B, 2);
    crowd(&mut host, 1, 70);
    group(&host, "b", closed());
    host.settle();
    host.moved();
    let mut got = 0;
    for cycle in 0..10u32 {
        let request = |n: u32| discover(cycle * 64 + n, B, A);
        let mut question =
            build::ethernet(B, Mac::BROADCAST).arp_request([10, 0, 0, 2], [10, 0, 0, 9]);
        question.resize(request(0).len(), 0);
        let behind: Vec<_> = (1..64).map(request).collect();
        change(&mut host, "b", &question, &behind, &request(0));
        got += host.received().unwrap().get("a").map_or(0, |frames| {
            frames.iter().filter(|(_, frame)| frame[12] == 8 && frame[13] == 0).count()
        });
    }
    assert!((1..=8 + 4).contains(&got), "{got} requests left without a rule");
    assert!(host.moved()["b.drop.dhcp-limit"] > 600);
}

/// A server remembers its clients, although a neighbour floods it, by the same trick and by a rule.
#[test]
fn a_server_does_not_forget_who_asked_it() {
    for ruled in [false, true] {
        let mut host = Host::new().unwrap();
        filtered(&mut host, "s", C, 3);
        filtered(&mut host, "b", B, 2);
        filtered(&mut host, "v", A, 1);
        crowd(&mut host, 1, 70);
        group(
            &host,
            "b",
            if ruled { rule(Direction::Outbound, -1, None, ("0.0.0.0", 0)) } else { closed() },
        );
        group(&host, "v", closed());
        group(&host, "s", rule(Direction::Inbound, 17, Some(67), ("0.0.0.0", 0)));
        host.settle();
        host.moved();
        host.send("v", &discover(0x7777, A, C), NetHeader::default()).unwrap();
        assert_eq!(host.moved().get("s.out.packets"), Some(&1));
        for cycle in 0..60u32 {
            let request = |n: u32| discover(0x10_0000 + cycle * 64 + n, B, C);
            let mut question =
                build::ethernet(B, Mac::BROADCAST).arp_request([10, 0, 0, 2], [10, 0, 0, 9]);
            question.resize(request(0).len(), 0);
            let behind: Vec<_> = (1..64).map(request).collect();
            change(&mut host, "b", &question, &behind, &request(0));
            host.received().unwrap();
        }
        host.moved();
        let offer = dhcp(2, 0x7777, [10, 0, 0, 1], A, &[53, 1, 2, 54, 4, 10, 0, 0, 3]);
        let offer = build::ethernet(C, A).ipv4([10, 0, 0, 3], [10, 0, 0, 1]).udp(67, 68, &offer);
        host.send("s", &offer, NetHeader::default()).unwrap();
        let moved = host.moved();
        assert_eq!(moved.get("v.out.packets"), Some(&1), "the offer, by rule: {ruled}: {moved:?}");
    }
}

/// A sink of a machine gets each version of a frame that any vnic got.
#[test]
fn a_mirror_sees_what_was_sent() {
    let mut host = Host::new().unwrap();
    host.vnic("b", B, 1, &bypass()).unwrap();
    host.declare_mirror("m", C, 1, "b").unwrap();
    let config = GuestConfig::default();
    host.attach("m", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    crowd(&mut host, 1, 100);
    host.settle();
    host.moved();
    let frame = |n: u8| build::ethernet(B, Mac::BROADCAST).payload(0x88b5, &[n; 46]);
    change(&mut host, "b", &frame(1), &[], &frame(2));
    let received = host.received().unwrap();
    let mirror: Vec<u8> = received["m"].iter().map(|(_, frame)| frame[20]).collect();
    for n in [1, 2] {
        let got = received
            .iter()
            .filter(|(id, frames)| id.starts_with('r') && frames.iter().any(|(_, f)| f[20] == n))
            .count();
        assert_eq!(got > 0, mirror.contains(&n), "{got} got version {n}, the mirror {mirror:?}");
        assert!(n == 1 || got == 100, "the second one is a frame of its own: {got}");
    }
}

/// Multicast in fragments, to more vnics than a turn has time for.
#[test]
fn fragments_of_a_flood_reach_everybody() {
    for n in [40, 100] {
        let mut host = Host::new().unwrap();
        filtered(&mut host, "b", B, 2);
        crowd(&mut host, 1, n);
        group(&host, "b", rule(Direction::Outbound, -1, None, ("0.0.0.0", 0)));
        host.settle();
        host.moved();
        let link = || {
            build::ethernet(B, Mac([1, 0, 0x5e, 1, 1, 1]))
                .ipv4([10, 0, 0, 2], [239, 1, 1, 1])
                .ttl(4)
        };
        let whole =
            build::ethernet(B, A).ipv4([10, 0, 0, 2], [239, 1, 1, 1]).udp(5000, 5000, &[7; 2000]);
        let udp = &whole[34..];
        host.send(
            "b",
            &link().fragment(77, 0, true).payload(17, &udp[..1024]),
            NetHeader::default(),
        )
        .unwrap();
        host.send(
            "b",
            &link().fragment(77, 1024, false).payload(17, &udp[1024..]),
            NetHeader::default(),
        )
        .unwrap();
        let both = host.received().unwrap().values().filter(|frames| frames.len() == 2).count();
        assert_eq!(both, n, "of {n} receivers got both fragments: {:?}", host.moved());
    }
}

fn outer(vni: u32, inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), inner].concat();
    let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
    link.ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(50_000, 4789, &vxlan)
}

fn flood(vni: u32) -> Vec<u8> {
    outer(vni, &build::ethernet(A, Mac::BROADCAST).payload(0x88b5, &[1; 46]))
}

fn tunnel_host() -> Host {
    let config = TunnelConfig::new([192, 168, 0, 2].into(), Mac([2, 0xbf, 0, 0, 0, 2]));
    Host::with_tunnel(SessionConfig { capacity: 4096, ..SessionConfig::default() }, Some(&config))
        .unwrap()
}

/// Puts frames of other hosts into the uplink as one batch.
fn arrive(host: &mut Host, frames: impl Iterator<Item = Vec<u8>>) {
    let wire = host.wire().unwrap();
    wire.reclaim().unwrap();
    for frame in frames {
        let _ = wire.enqueue(&frame, NetHeader::default());
    }
    wire.flush();
    host.turn();
}

/// Puts a frame into the uplink and waits until it finds room.
fn arrives(host: &mut Host, frame: &[u8]) {
    while host.wire().unwrap().enqueue(frame, NetHeader::default()).is_err() {
        host.turn();
        host.wire().unwrap().reclaim().unwrap();
    }
}

/// Eight networks flood without end; a ninth, which asks something now and then, is heard.
#[test]
fn floods_of_many_networks_leave_room_for_another() {
    for (networks, members) in [(7, 70), (8, 70), (8, 140)] {
        let mut host = tunnel_host();
        (1..=networks).for_each(|vni| crowd(&mut host, vni, members));
        crowd(&mut host, 99, 70);
        host.settle();
        host.moved();
        for turn in 0..400u32 {
            if turn % 32 == 0 {
                arrives(&mut host, &flood(99));
            }
            arrive(&mut host, (0..48).map(|n| flood(1 + n % networks)));
            host.received().unwrap();
        }
        host.settle();
        let moved = host.moved();
        let heard = (
            moved["vni-99.in.packets"],
            moved.get("vni-99.drop.flood-limit"),
            moved["r99-0069.out.packets"],
        );
        assert_eq!(heard, (13, None, 13), "{networks} networks of {members}");
        assert!(
            moved["vni-1.drop.flood-limit"] > 100,
            "there was a reason to be afraid: {moved:?}"
        );
    }
}

/// A machine that has migrated here is announced during floods of any vnic.
#[test]
fn announcements_do_not_wait_for_floods() {
    let mut host = tunnel_host();
    (1..=8).for_each(|vni| crowd(&mut host, vni, 140));
    host.vnic("b", B, 50, &bypass()).unwrap();
    host.vnic("c", C, 50, &bypass()).unwrap();
    host.settle();
    host.moved();
    let when = (0..100).find(|turn| {
        if *turn == 10 {
            host.announce_once("b").unwrap();
        }
        arrive(&mut host, (0..48).map(|n| flood(1 + n % 8)));
        host.received().unwrap();
        host.moved().contains_key("b.announced")
    });
    assert!(when.is_some_and(|turn| (10..40).contains(&turn)), "{when:?}");
}

/// One batch from the uplink is one turn, however many networks it is for.
#[test]
fn an_uplink_batch_of_many_networks_is_one_turn() {
    for networks in [1u32, 2, 16] {
        let mut host = tunnel_host();
        (1..=networks).for_each(|vni| crowd(&mut host, vni, 60));
        host.settle();
        host.moved();
        let mut all = 0;
        let mut frames = Some((0..64).map(|n| flood(1 + n % networks)));
        for _ in 0..2000 {
            match frames.take() {
                Some(frames) => arrive(&mut host, frames),
                None if !host.turn() => break,
                None => {}
            }
            let moved = host.moved();
            let got: Vec<u64> = moved
                .iter()
                .filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"))
                .map(|(_, n)| *n)
                .collect();
            let copies: u64 = got.iter().sum();
            // The uplink's turn, and one of what waits.
            assert!(
                copies <= 2 * 1024 && got.len() <= 2 * 64,
                "{copies} copies, {} rings, {networks} networks",
                got.len()
            );
            all += copies;
            host.received().unwrap();
        }
        assert!(all >= 8 * 60, "{all}");
    }
}

/// A large broadcast that each receiver needs cut: its segments count like those for one receiver.
#[test]
fn segments_of_floods_count_too() {
    let mut host = Host::new().unwrap();
    let large = GuestConfig { max_frame: 65_000, ..GuestConfig::default() };
    host.declare("a", A, 1, &bypass()).unwrap();
    host.attach("a", LINUX, &large, &MemoryConfig::new(large.memory_needed())).unwrap();
    let plain = Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0);
    let config = GuestConfig::default().rings(512);
    for r in 0..12 {
        host.declare(&format!("r{r}"), Mac([2, 0, 0, 1, 0, r]), 1, &bypass()).unwrap();
        host.attach(&format!("r{r}"), plain, &config, &MemoryConfig::new(config.memory_needed()))
            .unwrap();
    }
    host.settle();
    host.moved();
    let ip = build::ethernet(A, Mac::BROADCAST)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .checksum(build::Checksum::Partial);
    let frame = ip.tcp(&build::Tcp::new(1, 2, 0), &vec![7; 64_800]);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 432,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    };
    let guest = host.guest("a").unwrap();
    guest.enqueue(&frame, header).unwrap();
    guest.flush();
    let mut all = 0;
    while host.turn() {
        let moved = host.moved();
        let segments: u64 = moved
            .iter()
            .filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"))
            .map(|(_, n)| *n)
            .sum();
        assert!(segments <= 256, "{segments} in one turn");
        all += segments;
        host.received().unwrap();
    }
    assert_eq!(all, 12 * 150);
}

/// A change while a flood is under way holds for receivers that do not have it yet.
#[test]
fn a_rule_that_is_taken_back_ends_a_flood() {
    let mut host = Host::new().unwrap();
    filtered(&mut host, "b", B, 2);
    crowd(&mut host, 1, 100);
    group(&host, "b", rule(Direction::Outbound, -1, None, ("0.0.0.0", 0)));
    host.settle();
    host.moved();
    let frame = build::ethernet(B, Mac::BROADCAST).ipv4([10, 0, 0, 2], [10, 0, 0, 255]).udp(
        1,
        2,
        b"to everybody",
    );
    let guest = host.guest("b").unwrap();
    guest.enqueue(&frame, NetHeader::default()).unwrap();
    guest.flush();
    host.turn();
    let before = host.received().unwrap().len();
    assert!((1..=64).contains(&before), "{before} have it after a turn");
    group(&host, "b", closed());
    host.settle();
    assert_eq!(host.received().unwrap().len(), 0, "others get it though the rule is gone");
    assert_eq!(host.moved().get("b.drop.egress-denied"), Some(&1));
}

/// A tenant whose vnics ask to be announced all the time keeps no other vnic from it.
#[test]
fn announcements_of_many_leave_room_for_another() {
    const ASKING: usize = 200;
    let mut host = tunnel_host();
    crowd(&mut host, 1, ASKING);
    host.vnic("b", B, 50, &bypass()).unwrap();
    host.vnic("c", C, 50, &bypass()).unwrap();
    host.settle();
    host.moved();
    let crowd: Vec<String> = (0..ASKING).map(|i| format!("r1-{i:04}")).collect();
    let announced = (0..8).position(|tick| {
        let once = (tick == 0).then(|| "b".to_owned());
        let asking: Vec<String> = crowd.iter().cloned().chain(once).collect();
        host.announce_in_a_tick(&asking).unwrap();
        host.received().unwrap();
        host.moved().contains_key("b.announced")
    });
    // 64 in each tick: within four.
    assert!(announced.is_some_and(|tick| tick < 4), "{announced:?}");
}

/// More vnics than the worker keeps at once are to be announced while it is busy elsewhere for all
/// their rounds: each is announced all the same. (A round that had no place and was forgotten left
/// 344 of them unannounced.)
#[test]
fn announcements_for_which_there_is_no_place_come_later() {
    const MANY: usize = 600;
    let mut host = tunnel_host();
    crowd(&mut host, 1, MANY);
    host.settle();
    host.moved();
    let crowd: Vec<String> = (0..MANY).map(|i| format!("r1-{i:04}")).collect();
    host.announce_while_busy(&crowd, 45).unwrap();
    let moved = host.moved();
    let counts: Vec<u64> = crowd
        .iter()
        .map(|id| moved.get(&format!("{id}.announced")).copied().unwrap_or(0))
        .collect();
    assert!(counts.iter().all(|count| (1..=4).contains(count)), "{counts:?}");
}
