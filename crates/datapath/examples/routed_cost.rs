//! Cost of routing and of translations beside switching and VXLAN, over in-memory rings on one
//! core: cycles of the switch per 64-byte UDP frame between filtered ends.
//!
//! `routed_cost FLOWS [ROUNDS]`
//!
//! All kinds take turns, each with a host of its own; in each round each has a slice of frames of
//! FLOWS established flows, in random order, a thousand of them from one port of the other end.
//! `switched`: between two vnics of a network. `routed`: between two networks that a router joins.
//! `vxlan out`, `vxlan in`: to and from another host. `snat out`: to a wire, the source is one that
//! machines share. `floating in`: from a wire to a floating address. Prints the median of all
//! slices, and the median of the ratios of each round.

#[path = "common/joined.rs"]
mod joined;
#[path = "common/processors.rs"]
mod processors;

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Error, Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{Guest, GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_mem::cpu;
use butterfly_model::{Cidr, Direction, GroupName, Nat, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use processors::{cores, involuntary_switches, pin};

const BATCH: usize = 64;
/// Batches of a slice, and of these the first ones, which find the caches as others left them.
const SLICE: usize = 400;
const COLD: usize = 100;
const SHAPE: Shape = Shape { header_apart: false, ..Shape::HEADER_APART };
const A: Mac = mac(1);
const B: Mac = mac(2);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];

const fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// Entry or exit of a host.
#[derive(Clone, Copy)]
enum End {
    /// A vnic, or the wire of an external.
    Port(&'static str),
    /// The underlay.
    Tunnel,
}

/// A kind of way, with its host.
struct Kind {
    name: &'static str,
    host: Host,
    from: End,
    to: End,
    /// A frame as it is sent, but for its ports.
    frame: Vec<u8>,
    /// Offset of the ports.
    ports: usize,
    /// Bytes that each frame has behind its way, and where.
    arrives: (usize, Vec<u8>),
    /// Cycles for a frame, by slice.
    cycles: Vec<f64>,
}

fn end(host: &mut Host, end: End) -> Result<&mut Guest, Error> {
    let guest = match end {
        End::Port(id) => host.guest(id),
        End::Tunnel => host.wire(),
    };
    Ok(guest.ok_or("no guest")?)
}

impl Kind {
    /// Sends a batch, and reads what arrives. Returns the cycles of the switch.
    fn batch(&mut self, mut flow: impl FnMut() -> u64) -> Result<u64, Error> {
        let guest = end(&mut self.host, self.from)?;
        guest.reclaim()?;
        for _ in 0..BATCH {
            let flow = flow();
            let [source, destination] = [1024 + flow % 1000, 5000 + flow / 1000];
            for (at, port) in [(self.ports, source), (self.ports + 2, destination)] {
                self.frame[at..at + 2].copy_from_slice(&(port as u16).to_be_bytes());
            }
            guest.enqueue(&self.frame, NetHeader::NONE)?;
        }
        guest.flush();
        let start = cpu::tsc();
        self.host.turn();
        let took = cpu::tsc() - start;
        let (at, expected) = (self.arrives.0, self.arrives.1.clone());
        let guest = end(&mut self.host, self.to)?;
        let mut received = 0;
        while let Some((_, bytes)) = guest.recv()? {
            if bytes.get(at..at + expected.len()) != Some(&expected[..]) {
                return Err(format!("{}: a frame of {} bytes", self.name, bytes.len()).into());
            }
            received += 1;
        }
        if received != BATCH {
            let moved = self.host.moved();
            return Err(format!("{}: {received} of {BATCH} arrived: {moved:?}", self.name).into());
        }
        Ok(took)
    }
}

/// A host with a group that lets everybody in.
fn host(flows: u64, tunnel: Option<&TunnelConfig>) -> Result<(Host, GroupName), Error> {
    let capacity = (flows * 4).max(65_536) as u32;
    let config = SessionConfig { capacity, share: 100, rate: u32::MAX, ..SessionConfig::default() };
    let host = Host::with_tunnel(config, tunnel)?;
    let name = GroupName::new("g")?;
    let all = Some(Cidr::new("0.0.0.0", 0)?);
    let rule = Rule::new(Direction::Inbound, 17, (Some(0), Some(65_535)), all, None)?;
    let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), [rule])?;
    host.change_group(&name, GroupChange::Declare(group))?;
    Ok((host, name))
}

fn vnic(
    (host, group): &mut (Host, GroupName),
    id: &str,
    mac: Mac,
    vni: u32,
    ip: [u8; 4],
) -> Result<(), Error> {
    let policy =
        VnicPolicy { ips: vec![ip.into()], groups: vec![group.clone()], ..VnicPolicy::default() };
    let config = GuestConfig { rx_shape: SHAPE, tx_shape: SHAPE, ..GuestConfig::default() };
    host.declare(id, mac, vni, &policy)?;
    host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
}

/// A frame of 64 bytes with its FCS. Its receiver looks at no sum, as its ports change.
fn udp((from, to): (Mac, Mac), source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut frame = build::ethernet(from, to).ipv4(source, destination).udp(0, 0, &[0x5a; 18]);
    frame[40..42].fill(0);
    frame
}

fn kinds(flows: u64) -> Result<Vec<Kind>, Error> {
    let mut kinds = Vec::new();
    let mut add = |name, host, ends: (End, End), frame: Vec<u8>, ports, arrives| {
        let (from, to) = ends;
        kinds.push(Kind { name, host, from, to, frame, ports, arrives, cycles: Vec::new() });
    };
    let (a, b) = (End::Port("a"), End::Port("b"));

    let mut one = host(flows, None)?;
    vnic(&mut one, "a", A, 1, IP_A)?;
    vnic(&mut one, "b", B, 1, IP_B)?;
    add("switched", one.0, (a, b), udp((A, B), IP_A, IP_B), 34, (26, IP_A.to_vec()));

    let mut one = host(flows, None)?;
    let far = [10, 1, 0, 2];
    vnic(&mut one, "a", A, 1, IP_A)?;
    vnic(&mut one, "b", B, 2, far)?;
    let router = joined::join(&one.0)?;
    add("routed", one.0, (a, b), udp((A, router), IP_A, far), 34, (6, router.0.to_vec()));

    let [out, into] = tunnel(flows)?;
    let outer = out.1;
    add("vxlan out", out.0, (a, End::Tunnel), udp((A, B), IP_A, IP_B), 34, (50, B.0.to_vec()));
    add("vxlan in", into.0, (End::Tunnel, b), outer, 84, (0, B.0.to_vec()));

    let mut one = host(flows, None)?;
    vnic(&mut one, "a", A, 1, IP_A)?;
    let router = joined::outside(&mut one.0, Nat::snat(joined::OUTSIDE.into())?)?;
    let ends = (a, End::Port(joined::WIRE));
    add(
        "snat out",
        one.0,
        ends,
        udp((A, router), IP_A, joined::WORLD),
        34,
        (26, joined::OUTSIDE.to_vec()),
    );

    let mut one = host(flows, None)?;
    vnic(&mut one, "a", A, 1, IP_A)?;
    joined::outside(&mut one.0, Nat::floating(joined::OUTSIDE.into(), IP_A.into())?)?;
    let ends = (End::Port(joined::WIRE), a);
    add(
        "floating in",
        one.0,
        ends,
        udp((joined::NEXT, joined::WIRE_MAC), joined::WORLD, joined::OUTSIDE),
        34,
        (30, IP_A.to_vec()),
    );
    Ok(kinds)
}

/// Two hosts: the first, of vnic `a`, sends to the second, of vnic `b`, and with it comes what left
/// it.
fn tunnel(flows: u64) -> Result<[(Host, Vec<u8>); 2], Error> {
    let endpoints = [1, 2].map(|n| IpAddr::from([192, 168, 0, n]));
    let mut hosts = Vec::new();
    for (n, (id, mac, ip)) in [("a", A, IP_A), ("b", B, IP_B)].into_iter().enumerate() {
        let own = TunnelConfig::new(endpoints[n], Mac([2, 0xbf, 0, 0, 0, n as u8]));
        let mut one = host(flows, Some(&own))?;
        vnic(&mut one, id, mac, 1, ip)?;
        hosts.push(one.0);
    }
    // Each learns where the other one is.
    let (there, back) = (udp((A, B), IP_A, IP_B), udp((B, A), IP_B, IP_A));
    let mut left = Vec::new();
    for (from, id, frame) in [(0, "a", &there), (1, "b", &back), (0, "a", &there)] {
        hosts[from].send(id, frame, NetHeader::NONE)?;
        left = hosts[from].left()?;
        hosts[1 - from].arrive(&left)?;
    }
    let outer = left.pop().ok_or("no frame left the first host")?;
    for host in &mut hosts {
        host.received()?;
        host.settle();
    }
    let (into, out) = (hosts.pop().ok_or("two hosts")?, hosts.pop().ok_or("two hosts")?);
    Ok([(out, outer), (into, Vec::new())])
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "routed_cost FLOWS [ROUNDS]";
    let flows = args.first().ok_or(usage)?.parse::<u64>()?.clamp(1, 10_000_000);
    let rounds = args.get(1).map_or(Ok(60), |text| text.parse::<u64>())?;
    pin(cores()?.1);
    let mut kinds = kinds(flows)?;
    for kind in &mut kinds {
        let mut next = 0;
        for _ in 0..flows.div_ceil(BATCH as u64) {
            kind.batch(|| {
                next += 1;
                (next - 1) % flows
            })?;
        }
    }
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..rounds {
        for kind in &mut kinds {
            let mut flow = || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % flows
            };
            let (mut took, mut undisturbed) = (0, 0);
            for batch in 0..SLICE {
                let switches = involuntary_switches()?;
                let cycles = kind.batch(&mut flow)?;
                if batch >= COLD && involuntary_switches()? == switches {
                    took += cycles;
                    undisturbed += BATCH as u64;
                }
            }
            kind.cycles.push(took as f64 / undisturbed.max(1) as f64);
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    println!("{flows} flows, {rounds} rounds");
    for kind in &kinds {
        println!("{:12} {:6.1} cycles a frame", kind.name, median(kind.cycles.clone()));
    }
    for (one, other) in [(1, 0), (4, 2), (5, 3)] {
        let both = kinds[one].cycles.iter().zip(&kinds[other].cycles);
        let ratio = median(both.map(|(one, other)| one / other).collect());
        println!("{} / {}: {ratio:.2}", kinds[one].name, kinds[other].name);
    }
    Ok(())
}
