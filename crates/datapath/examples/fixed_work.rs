//! A fixed amount of switching over in-memory rings, to count instructions and to compare cycles of
//! one build with those of another.
//!
//! `fixed_work [CASE] [BATCHES]`: cases are printed by `fixed_work list`, the stages that may be
//! counted by `fixed_work stages`. Prints cycles per packet
//! of the switch alone (generator and receiver run on the same core, so caches are warmer than with
//! real guests). Under callgrind, collect only inside `Worker::round`: see tests/instructions/run.
//! sh.

#[path = "common/joined.rs"]
mod joined;

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Error, Host, LINUX, stages},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_mem::cpu;
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build,
    checksum::Sum,
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::{Features, NetHeader};

struct Case {
    name: &'static str,
    size: usize,
    features: Features,
    shape: Shape,
    batch: usize,
    to: To,
}

#[derive(PartialEq)]
enum To {
    Known,
    /// The same between filtered vnics, by a session that is known: UDP, TCP.
    Filtered,
    FilteredTcp,
    /// Filtered, in another network, by a router of this host.
    Routed,
    /// Filtered, to the outside, by a port of an address that machines share.
    Shared,
    Learnt,
    Broadcast,
    /// Filtered, to another host, and from there.
    Out,
    In,
    /// The same of a TCP stream: large frames are cut into segments, and joined.
    OutCut,
    InJoined,
}

const PLAIN: Shape = Shape { header_apart: false, ..Shape::HEADER_APART };
const CASES: &[Case] = &[
    Case { name: "64", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Known },
    Case { name: "64-batch-1", size: 64, features: LINUX, shape: PLAIN, batch: 1, to: To::Known },
    Case {
        name: "64-indirect",
        size: 64,
        features: LINUX,
        shape: Shape::HEADER_APART.indirect(),
        batch: 64,
        to: To::Known,
    },
    Case {
        name: "64-filtered",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 64,
        to: To::Filtered,
    },
    Case {
        name: "64-filtered-batch-1",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 1,
        to: To::Filtered,
    },
    Case {
        name: "64-filtered-tcp",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 64,
        to: To::FilteredTcp,
    },
    Case { name: "64-routed", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Routed },
    Case { name: "64-shared", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Shared },
    Case {
        name: "64-encapsulated",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 64,
        to: To::Out,
    },
    Case {
        name: "64-decapsulated",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 64,
        to: To::In,
    },
    Case { name: "64-learnt", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Learnt },
    Case {
        name: "64-broadcast",
        size: 64,
        features: LINUX,
        shape: PLAIN,
        batch: 64,
        to: To::Broadcast,
    },
    Case {
        name: "64-legacy",
        size: 64,
        features: Features::NONE,
        shape: Shape::HEADER_APART,
        batch: 64,
        to: To::Known,
    },
    Case { name: "1400", size: 1400, features: LINUX, shape: PLAIN, batch: 64, to: To::Known },
    Case { name: "9000", size: 9000, features: LINUX, shape: PLAIN, batch: 16, to: To::Known },
    Case {
        name: "segments-cut",
        size: LARGE,
        features: LINUX,
        shape: PLAIN,
        batch: 16,
        to: To::OutCut,
    },
    Case {
        name: "segments-joined",
        size: LARGE,
        features: LINUX,
        shape: PLAIN,
        batch: 16,
        to: To::InJoined,
    },
];

/// Payload of a segment, and their number in a large frame.
const SEGMENT: usize = 1400;
const SEGMENTS: usize = 4;
const LARGE: usize = 54 + SEGMENTS * SEGMENT;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "64".to_owned());
    let batches: u64 = args.next().map_or(Ok(20_000), |n| n.parse())?;
    if name == "list" {
        CASES.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    if name == "stages" {
        stages().iter().for_each(|stage| println!("{stage}"));
        return Ok(());
    }
    let case =
        CASES.iter().find(|case| case.name == name).ok_or("no such case; see: fixed_work list")?;
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let behind_b = Mac([2, 0, 0, 0, 1, 2]);
    if matches!(case.to, To::Out | To::In | To::OutCut | To::InJoined) {
        return between_hosts(case, batches);
    }
    let mut host = Host::new()?;
    let bypass = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    let filtered = matches!(case.to, To::Filtered | To::FilteredTcp | To::Routed | To::Shared);
    let routed = matches!(case.to, To::Routed | To::Shared);
    let there = if routed { [10, 1, 0, 2] } else { [10, 0, 0, 2] };
    for (id, mac, vni, ip) in
        [("a", a, 1, [10, 0, 0, 1]), ("b", b, if routed { 2 } else { 1 }, there)]
    {
        let config = GuestConfig {
            rx_shape: if case.shape == PLAIN { PLAIN } else { case.shape },
            tx_shape: case.shape,
            ..GuestConfig::default()
        };
        let policy = VnicPolicy {
            ips: vec![ip.into()],
            groups: vec![GroupName::new("g")?],
            ..VnicPolicy::default()
        };
        host.declare(id, mac, vni, if filtered { &policy } else { &bypass })?;
        host.attach(id, case.features, &config, &MemoryConfig::new(config.memory_needed()))?;
    }
    let to = match case.to {
        To::Learnt => behind_b,
        To::Broadcast => Mac::BROADCAST,
        To::Routed => joined::join(&host)?,
        To::Shared => joined::share(&host)?,
        _ => b,
    };
    let udp = |(from, to): (Mac, Mac), source: [u8; 4], ttl| {
        let payload = vec![0x5a; case.size - 42];
        build::ethernet(from, to).ipv4(source, there).ttl(ttl).udp(4000, 5001, &payload)
    };
    let own = [10, 0, 0, 1];
    let frame = udp((a, to), own, 64);
    let addressed = build::ethernet(a, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let frame = if case.to == To::FilteredTcp {
        let ack =
            build::Tcp { sequence: 1, acknowledgement: 1, ..build::Tcp::new(4000, 5001, ACK) };
        addressed.tcp(&ack, &[0x5a; 10])
    } else {
        frame
    };
    let arrives = match case.to {
        To::Routed => udp((to, b), own, 63),
        To::Shared => udp((to, b), joined::SHARED, 63),
        _ => frame.clone(),
    };
    if filtered {
        let rule = Rule::new(
            Direction::Inbound,
            -1,
            (None, None),
            Some(Cidr::new("10.0.0.0", 24)?),
            None,
        )?;
        let name = GroupName::new("g")?;
        host.change_group(
            &name,
            GroupChange::Declare(SecurityGroup::new(name.clone(), Vec::<String>::new(), [rule])?),
        )?;
        // The session, so that everything after is established.
        if case.to == To::FilteredTcp {
            host.send(
                "a",
                &addressed.tcp(&build::Tcp::new(4000, 5001, SYN), &[]),
                Default::default(),
            )?;
            let back = build::ethernet(b, a).ipv4([10, 0, 0, 2], [10, 0, 0, 1]);
            let ack = build::Tcp { acknowledgement: 1, ..build::Tcp::new(5001, 4000, SYN | ACK) };
            host.send("b", &back.tcp(&ack, &[]), Default::default())?;
        }
        host.send("a", &frame, Default::default())?;
        host.received()?;
    }
    let hello =
        build::ethernet(behind_b, a).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5001, 4000, b"");
    if !filtered {
        host.send("b", &hello, Default::default())?;
    }

    let mut cycles = 0;
    let mut received = 0;
    let mut rounds = 0;
    for _ in 0..batches {
        let guest = host.guest("a").ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..case.batch {
            guest.enqueue(&frame, Default::default())?;
        }
        guest.flush();
        let start = cpu::tsc();
        rounds += u64::from(host.turn());
        cycles += cpu::tsc() - start;
        let guest = host.guest("b").ok_or("no guest")?;
        while let Some((_, bytes)) = guest.recv()? {
            if bytes != arrives {
                return Err("a frame was changed on its way".into());
            }
            received += 1;
        }
    }
    let sent = batches * case.batch as u64;
    if received < sent && case.to != To::Broadcast {
        return Err(format!("{sent} frames sent, {received} received: {:?}", host.moved()).into());
    }
    println!(
        "{}: {} packets in {rounds} batches, {:.1} cycles/packet",
        case.name,
        sent,
        cycles as f64 / sent as f64
    );
    Ok(())
}

/// A filtered vnic on one host, one on another, and frames that cross. Cycles are those of the host
/// that the case is about.
fn between_hosts(case: &Case, batches: u64) -> Result<(), Error> {
    let rule =
        Rule::new(Direction::Inbound, -1, (None, None), Some(Cidr::new("10.0.0.0", 24)?), None)?;
    let name = GroupName::new("g")?;
    let mut hosts = Vec::new();
    let endpoints = [IpAddr::from([192, 168, 0, 1]), IpAddr::from([192, 168, 0, 2])];
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    for (n, (id, ip)) in [("a", "10.0.0.1"), ("b", "10.0.0.2")].into_iter().enumerate() {
        let sessions = SessionConfig { capacity: 65_536, ..SessionConfig::default() };
        let tunnel = TunnelConfig::new(endpoints[n], Mac([2, 0xbf, 0, 0, 0, n as u8]));
        let mut host = Host::with_tunnel(sessions, Some(&tunnel))?;
        let policy = VnicPolicy {
            ips: vec![ip.parse()?],
            groups: vec![name.clone()],
            ..VnicPolicy::default()
        };
        host.vnic(id, macs[n], 1, &policy)?;
        host.change_group(
            &name,
            GroupChange::Declare(SecurityGroup::new(
                name.clone(),
                Vec::<String>::new(),
                [rule.clone()],
            )?),
        )?;
        hosts.push(host);
    }
    let [a, b] = &mut hosts[..] else { return Err("two hosts".into()) };
    // Each learns where the other is, and of the session.
    let cut = matches!(case.to, To::OutCut | To::InJoined);
    let there = build::ethernet(macs[0], macs[1]).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let back = build::ethernet(macs[1], macs[0]).ipv4([10, 0, 0, 2], [10, 0, 0, 1]);
    let (frame, header) = if cut {
        large()
    } else {
        (there.udp(4000, 5001, &vec![0x5a; case.size - 42]), NetHeader::NONE)
    };
    let (first, answer) = if cut {
        let answer = build::Tcp { acknowledgement: 1, ..build::Tcp::new(5001, 4000, SYN | ACK) };
        (there.tcp(&build::Tcp::new(4000, 5001, SYN), b""), back.tcp(&answer, b""))
    } else {
        (frame.clone(), back.udp(5001, 4000, b""))
    };
    a.send("a", &first, NetHeader::NONE)?;
    b.arrive(&a.left()?)?;
    b.send("b", &answer, NetHeader::NONE)?;
    a.arrive(&b.left()?)?;
    a.send("a", &frame, header)?;
    let outer = a.left()?;
    if outer.len() != if cut { SEGMENTS } else { 1 } {
        return Err(format!("{} frames left the first host: {:?}", outer.len(), a.moved()).into());
    }
    b.arrive(&outer)?;
    b.received()?;
    let out = matches!(case.to, To::Out | To::OutCut);
    let inner = vec![frame.clone()];
    let (host, sent_frames, expected) = if out { (a, &inner, &outer) } else { (b, &outer, &inner) };
    let header = if out { header } else { NetHeader::NONE };
    let (mut cycles, mut received) = (0, 0);
    for _ in 0..batches {
        let guest = if out { host.guest("a") } else { host.wire() }.ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..case.batch {
            for frame in sent_frames {
                guest.enqueue(frame, header)?;
            }
        }
        guest.flush();
        let start = cpu::tsc();
        host.turn();
        while cut && host.turn() {}
        cycles += cpu::tsc() - start;
        let guest = if out { host.wire() } else { host.guest("b") }.ok_or("no guest")?;
        let mut whole = expected.iter().cycle();
        while let Some((_, bytes)) = guest.recv()? {
            if whole.next().is_none_or(|whole| whole.len() != bytes.len()) {
                return Err(format!("a frame of {} bytes", bytes.len()).into());
            }
            received += 1;
        }
    }
    let sent = batches * case.batch as u64;
    if received < sent * expected.len() as u64 {
        return Err(format!("{sent} frames sent, {received} received: {:?}", host.moved()).into());
    }
    println!("{}: {sent} packets, {:.1} cycles/packet", case.name, cycles as f64 / sent as f64);
    Ok(())
}

/// A frame of several segments, and what its sender says about it.
fn large() -> (Vec<u8>, NetHeader) {
    let ack = build::Tcp { sequence: 1, acknowledgement: 1, ..build::Tcp::new(4000, 5001, ACK) };
    let (from, to) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let mut frame = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4(from, to)
        .tcp(&ack, &vec![0x5a; SEGMENTS * SEGMENT]);
    let sum = Sum::pseudo_v4(from.into(), to.into(), 6, (LARGE - 34) as u16).fold();
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: SEGMENT as u16,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::NONE
    };
    (frame, header)
}
