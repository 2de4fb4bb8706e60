//! Effect of ten attackers of ten kinds on a vnic that sends its fair share. Runs over in-memory
//! rings on one core, and counts only the processor time of the worker's thread.
//!
//! `attackers [SECONDS]`: microseconds from a frame's turn to be taken until it has arrived, alone,
//! beside ten vnics that send 64 frames at a time to ten others, and beside each attacker and all
//! of them. Exits with 1 if a frame of the fair vnic is lost.

use std::{collections::BTreeMap, time::Duration};

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Error, Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::{DEFAULT_GUEST_ADDR, MemoryConfig},
    queue::{Buffer, Placement},
};
use butterfly_mem::cpu;
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::{Features, NetHeader};

/// Receivers of the attackers' floods.
const CROWD: u8 = 200;
const FEW_OFFLOADS: Features = Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0);

/// The kinds, with what each sends at a time.
type Attack = (&'static str, fn(&mut Scene) -> Result<(), Error>);
const ATTACKS: [Attack; 10] = [
    ("new flows", new_flows),
    ("evil receivers", evil_receivers),
    ("small segments", small_segments),
    ("floods", floods),
    ("fragments", fragments),
    ("malformed chains", malformed),
    ("kicks", kicks),
    ("mirrors", mirrors),
    ("remote floods", remote),
    ("claims", claims),
];

struct Scene {
    host: Host,
    count: u32,
}

fn mac(group: u8, n: u8) -> Mac {
    Mac([2, 0, 0, 0, group, n])
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ip: [u8; 4]) -> Result<VnicPolicy, Error> {
    Ok(VnicPolicy {
        ip_anti_spoof: true,
        ips: vec![ip.into()],
        groups: vec![GroupName::new("open")?],
        ..VnicPolicy::default()
    })
}

impl Scene {
    fn new() -> Result<Scene, Error> {
        let tunnel = TunnelConfig::new([192, 168, 0, 2].into(), Mac([2, 0xbf, 0, 0, 0, 2]));
        let sessions = SessionConfig { capacity: 1 << 18, ..SessionConfig::default() };
        let mut scene = Scene { host: Host::with_tunnel(sessions, Some(&tunnel))?, count: 0 };
        let open =
            Rule::new(Direction::Inbound, -1, (None, None), Some(Cidr::new("0.0.0.0", 0)?), None)?;
        let name = GroupName::new("open")?;
        let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), [open])?;
        scene.host.change_group(&name, GroupChange::Declare(group))?;
        let usual = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(1024);
        let large = GuestConfig { max_frame: 65_000, ..GuestConfig::default() };
        scene.add("a", mac(1, 1), 1, &bypass(), LINUX, &usual)?;
        scene.add("b", mac(1, 2), 1, &bypass(), LINUX, &usual)?;
        for n in 0..10 {
            scene.add(&format!("h{n}"), mac(2, n), 2, &bypass(), LINUX, &usual)?;
            scene.add(&format!("g{n}"), mac(3, n), 2, &bypass(), LINUX, &usual)?;
        }
        for n in 1..=4 {
            scene.add(&format!("f{n}"), mac(4, n), 3, &filtered([10, 0, 0, n])?, LINUX, &usual)?;
        }
        let pieces = Shape { pieces: 300, ..Shape::HEADER_APART }.indirect();
        let evil =
            GuestConfig { rx_shape: pieces, max_frame: 1514, ..GuestConfig::default() }.rings(64);
        scene.add("e", mac(5, 200), 4, &bypass(), LINUX, &usual)?;
        for n in 0..32 {
            scene.add(&format!("e{n}"), mac(5, n), 4, &bypass(), LINUX, &evil)?;
        }
        scene.add("s", mac(6, 1), 5, &bypass(), LINUX, &large)?;
        scene.add("t", mac(6, 2), 5, &bypass(), FEW_OFFLOADS, &usual)?;
        let small = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(128);
        scene.add("d", mac(7, 250), 6, &bypass(), LINUX, &usual)?;
        for n in 0..CROWD {
            scene.add(&format!("d{n}"), mac(7, n), 6, &bypass(), LINUX, &small)?;
        }
        scene.add("x", mac(8, 1), 7, &bypass(), LINUX, &usual)?;
        scene.add("m", mac(9, 1), 8, &bypass(), LINUX, &usual)?;
        scene.add("n", mac(9, 2), 8, &bypass(), LINUX, &usual)?;
        for n in 0..3 {
            scene.host.declare_mirror(&format!("m{n}"), mac(9, 10 + n), 8, "m")?;
            scene.attach(&format!("m{n}"), LINUX, &usual)?;
        }
        scene.host.settle();
        scene.host.heed_prices();
        Ok(scene)
    }

    fn add(
        &mut self,
        id: &str,
        mac: Mac,
        vni: u32,
        policy: &VnicPolicy,
        has: Features,
        is: &GuestConfig,
    ) -> Result<(), Error> {
        self.host.declare(id, mac, vni, policy)?;
        self.attach(id, has, is)
    }

    fn attach(&mut self, id: &str, features: Features, config: &GuestConfig) -> Result<(), Error> {
        self.host.attach(
            id,
            features,
            config,
            &MemoryConfig::new(config.memory_needed() + (1 << 20)),
        )
    }

    /// Nanoseconds of the longest turn since the last look.
    fn longest_turn(&self) -> u64 {
        (u128::from(self.host.longest_turn()) * 1_000_000_000 / u128::from(cpu::tsc_hz())) as u64
    }

    /// Fills a guest's transmit ring up to so many frames.
    fn fill(
        &mut self,
        id: &str,
        most: usize,
        header: NetHeader,
        mut frame: impl FnMut(u32) -> Vec<u8>,
    ) -> Result<(), Error> {
        let guest = self.host.guest(id).ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..most {
            self.count += 1;
            if guest.enqueue(&frame(self.count), header).is_err() {
                break;
            }
        }
        guest.flush();
        Ok(())
    }
}

fn honest(scene: &mut Scene) -> Result<(), Error> {
    for n in 0..10 {
        let frame = build::ethernet(mac(2, n), mac(3, n)).payload(0x88b5, &[0x5a; 46]);
        scene.fill(&format!("h{n}"), 64, NetHeader::NONE, |_| frame.clone())?;
    }
    Ok(())
}

fn new_flows(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("f1", 256, NetHeader::NONE, |n| {
        let ip = build::ethernet(mac(4, 1), mac(4, 2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        ip.udp((n >> 16) as u16 | 0x400, n as u16, b"new")
    })
}

fn evil_receivers(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("e", 256, NetHeader::NONE, |n| {
        build::ethernet(mac(5, 200), mac(5, (n % 32) as u8)).payload(0x88b5, &[1; 900])
    })
}

fn small_segments(scene: &mut Scene) -> Result<(), Error> {
    let ip = build::ethernet(mac(6, 1), mac(6, 2))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .checksum(build::Checksum::Partial);
    let frame = ip.tcp(&build::Tcp::new(1, 2, 0), &vec![7; 64_000]);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 432,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::NONE
    };
    scene.fill("s", 8, header, |_| frame.clone())
}

fn floods(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("d", 256, NetHeader::NONE, |_| {
        build::ethernet(mac(7, 250), Mac::BROADCAST).payload(0x88b5, &[2; 46])
    })
}

fn fragments(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("f3", 256, NetHeader::NONE, |n| {
        let ip = build::ethernet(mac(4, 3), mac(4, 4)).ipv4([10, 0, 0, 3], [10, 0, 0, 4]);
        let mut whole = ip.udp(n as u16, 2, &[3; 64]);
        // More fragments follow, of a packet of its own.
        whole[18..20].copy_from_slice(&(n as u16).to_be_bytes());
        whole[20] = 0x20;
        whole[24..26].fill(0);
        let sum = butterfly_packet::checksum::Sum::of(&whole[14..34]).checksum();
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        whole
    })
}

fn malformed(scene: &mut Scene) -> Result<(), Error> {
    let guest = scene.host.guest("x").ok_or("no guest")?;
    while guest.tx_mut().pop()?.is_some() {}
    let addr = DEFAULT_GUEST_ADDR;
    for token in 0..256 {
        // Writable descriptors in a transmit ring, some of them 300 in a table.
        let many = if token % 16 == 0 { 200 } else { 2 };
        let chain = vec![Buffer { addr, len: 1, writable: token % 2 == 0 }; many];
        if guest.tx_mut().add(&chain, Placement::Indirect, token).is_err() {
            break;
        }
    }
    guest.tx_mut().publish();
    Ok(())
}

fn kicks(scene: &mut Scene) -> Result<(), Error> {
    for n in 0..10 {
        let guest = scene.host.guest(&format!("g{n}")).ok_or("no guest")?;
        let _ = rustix::io::write(&**guest.tx().kick_fd(), &1u64.to_ne_bytes());
    }
    Ok(())
}

fn mirrors(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("m", 256, NetHeader::NONE, |_| {
        build::ethernet(mac(9, 1), mac(9, 2)).payload(0x88b5, &[4; 1400])
    })
}

fn remote(scene: &mut Scene) -> Result<(), Error> {
    let guest = scene.host.wire().ok_or("no uplink")?;
    guest.reclaim()?;
    let inner = build::ethernet(Mac([2, 9, 9, 9, 9, 9]), Mac::BROADCAST).payload(0x88b5, &[5; 46]);
    let vxlan = [&[8, 0, 0, 0][..], &(6u32 << 8).to_be_bytes(), &inner].concat();
    let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
    let frame = link.ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(50_000, 4789, &vxlan);
    for _ in 0..64 {
        if guest.enqueue(&frame, NetHeader::NONE).is_err() {
            break;
        }
    }
    guest.flush();
    Ok(())
}

fn claims(scene: &mut Scene) -> Result<(), Error> {
    scene.fill("f2", 256, NetHeader::NONE, |n| match n % 2 {
        0 => build::ethernet(mac(4, 2), Mac::BROADCAST)
            .arp_request([10, 0, 0, 1], [10, 0, (n >> 8) as u8, n as u8]),
        _ => build::ethernet(mac(4, 2), mac(4, 1)).arp_reply([10, 0, 0, 4], [10, 0, 0, 1]),
    })
}

/// Processor time of this thread.
fn spent() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Results of the rounds.
struct Seen {
    /// Nanoseconds that the fair vnic's frames took, and those of the longest turn in each round,
    /// in ascending order.
    took: Vec<u64>,
    turns: Vec<u64>,
    /// Frames of the fair vnic that did not arrive.
    lost: u64,
}

fn measure(scene: &mut Scene, attacks: &[Attack], seconds: f64) -> Result<Seen, Error> {
    let until = std::time::Instant::now() + Duration::from_secs_f64(seconds);
    let warm = std::time::Instant::now() + Duration::from_secs_f64(seconds / 2.0);
    let until = until + Duration::from_secs_f64(seconds / 2.0);
    let mut cold = true;
    let fair = build::ethernet(mac(1, 1), mac(1, 2)).payload(0x88b5, &[0x5a; 46]);
    let (mut took, mut sent, mut got) = (Vec::new(), 0u64, 0u64);
    let mut turns = Vec::new();
    while std::time::Instant::now() < until {
        // Pages that are touched for the first time are another subject.
        if cold && std::time::Instant::now() > warm {
            cold = false;
            took.clear();
            turns.clear();
        }
        for (_, attack) in attacks {
            attack(scene)?;
        }
        // A frame comes at any moment of the attackers' work, and is there when it is looked for.
        for step in 0..4 {
            if step == sent % 4 {
                scene.fill("a", 1, NetHeader::NONE, |_| fair.clone())?;
                sent += 1;
                let begun = spent();
                let arrived = (0..10_000).any(|_| {
                    scene.host.turn();
                    turns.push(scene.longest_turn());
                    scene.host.guest("b").is_some_and(|guest| guest.rx().has_used())
                });
                if arrived {
                    took.push((spent() - begun).as_nanos() as u64);
                }
            } else {
                scene.host.turn();
                turns.push(scene.longest_turn());
            }
        }
        got += scene.host.received()?.get("b").map_or(0, |frames| frames.len() as u64);
    }
    scene.host.settle();
    got += scene.host.received()?.get("b").map_or(0, |frames| frames.len() as u64);
    took.sort_unstable();
    turns.sort_unstable();
    Ok(Seen { took, turns, lost: sent - got })
}

/// Returns the time that such a part of them took at most, in microseconds.
fn at(ascending: &[u64], part: f64) -> f64 {
    let index = (ascending.len() as f64 * part) as usize;
    ascending
        .get(index.min(ascending.len().saturating_sub(1)))
        .map_or(0.0, |ns| *ns as f64 / 1000.0)
}

fn main() -> Result<(), Error> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(2.0), |word| word.parse())?;
    println!(
        "| beside | frames | median | 99 % | 99.99 % | longest | turn 99 % | turn 99.99 % | longest turn |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut all: Vec<(String, Vec<Attack>)> =
        vec![("nobody".into(), vec![]), ("ten honest vnics".into(), vec![("", honest)])];
    all.extend(ATTACKS.iter().map(|attack| (attack.0.to_owned(), vec![*attack])));
    all.push(("all ten attackers".into(), ATTACKS.to_vec()));
    let mut lost = BTreeMap::new();
    for (name, attacks) in all {
        let seen = measure(&mut Scene::new()?, &attacks, seconds)?;
        let frames = [0.5, 0.99, 0.9999, 1.0].map(|part| format!("{:.1}", at(&seen.took, part)));
        let turns = [0.99, 0.9999, 1.0].map(|part| format!("{:.1}", at(&seen.turns, part)));
        println!(
            "| {name} | {} | {} | {} |",
            seen.took.len(),
            frames.join(" | "),
            turns.join(" | ")
        );
        if seen.lost > 0 {
            lost.insert(name, seen.lost);
        }
    }
    if lost.is_empty() { Ok(()) } else { Err(format!("frames are lost: {lost:?}").into()) }
}
