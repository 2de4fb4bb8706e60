//! Cost of filtering, over in-memory rings on one core: cycles of the switch per 64-byte UDP frame
//! from a filtered vnic to another one.
//!
//! `filter_cost established|routed|new|refused FLOWS RULES GROUPS MEMBERS [BATCHES]`
//!
//! `established`: FLOWS flows in random order, each known. `routed`: the same, between vnics of two
//! networks that a router joins. `new`: every frame is a new flow; at the
//! end of FLOWS the table is emptied, outside the measured time. RULES rules in GROUPS groups of
//! the receiver; the last one matches. If MEMBERS is not 0, it is about the members of a group that
//! has so many. `refused`: as `new`, but the sender has its share of the table, all of it
//! established, and is refused each one.

#[path = "common/joined.rs"]
mod joined;

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, SessionFilter, VnicPolicy,
    harness::{Error, Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_mem::cpu;
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;

const BATCH: usize = 64;
const SHAPE: Shape = Shape { header_apart: false, ..Shape::HEADER_APART };

fn inbound(ports: (u32, u32), cidr: Option<Cidr>, group: Option<GroupName>) -> Result<Rule, Error> {
    Ok(Rule::new(Direction::Inbound, 17, (Some(ports.0), Some(ports.1)), cidr, group)?)
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "filter_cost established|routed|new|refused FLOWS RULES GROUPS MEMBERS [BATCHES]";
    let number = |at: usize| -> Result<u64, Error> { Ok(args.get(at).ok_or(usage)?.parse()?) };
    let (new, refused) = match args.first().map(String::as_str) {
        Some("established" | "routed") => (false, false),
        Some("new") => (true, false),
        Some("refused") => (true, true),
        _ => return Err(usage.into()),
    };
    let routed = args.first().is_some_and(|mode| mode == "routed");
    let (flows, rules, groups, members) =
        (number(1)?.max(1), number(2)?.max(1), number(3)?.max(1), number(4)?);
    let batches = if args.len() > 5 { number(5)? } else { 20_000 };

    let capacity = (flows * 5 / 4).max(65_536) as u32;
    let share = if refused { 1 } else { 100 };
    let mut host = Host::with_sessions(SessionConfig {
        capacity,
        share,
        rate: u32::MAX,
        ..SessionConfig::default()
    })?;
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let names =
        (0..groups).map(|n| GroupName::new(&format!("g{n}"))).collect::<Result<Vec<_>, _>>()?;
    let (vni, there) = if routed { (2, [10, 1, 0, 2]) } else { (1, [10, 0, 0, 2]) };
    for (id, mac, vni, ip, groups) in
        [("a", a, 1, [10, 0, 0, 1], &[][..]), ("b", b, vni, there, &names)]
    {
        let policy =
            VnicPolicy { ips: vec![ip.into()], groups: groups.to_vec(), ..VnicPolicy::default() };
        let config = GuestConfig { rx_shape: SHAPE, tx_shape: SHAPE, ..GuestConfig::default() };
        host.declare(id, mac, vni, &policy)?;
        host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))?;
    }
    // Blocks and ports of all sizes that do not match, spread over the groups, and one that does.
    let mut declared: Vec<Vec<Rule>> = vec![Vec::new(); names.len()];
    for n in 0..rules - 1 {
        let cidr = Cidr::new(
            &format!("{}.{}.{}.0", 11 + n % 200, n / 200 % 256, n / 51_200),
            8 + (n % 25) as u32,
        )?;
        let port = 1 + (n % 50_000) as u32;
        declared[(n % groups) as usize].push(inbound((port, port + 10), Some(cidr), None)?);
    }
    let friends = GroupName::new("friends")?;
    let last = match members {
        0 => inbound((0, 65_535), Some(Cidr::new("10.0.0.0", 24)?), None)?,
        _ => inbound((0, 65_535), None, Some(friends.clone()))?,
    };
    declared[(groups - 1) as usize].push(last);
    for (name, rules) in names.iter().zip(declared) {
        let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), rules)?;
        host.change_group(name, GroupChange::Declare(group))?;
    }
    if members > 0 {
        let all =
            (0..members).map(|n| IpAddr::from((0x0a00_0001 + n as u32).to_be_bytes()).to_string());
        host.change_group(
            &friends,
            GroupChange::Declare(SecurityGroup::new(friends.clone(), all, [])?),
        )?;
        // One more and one less, as an orchestrator does it.
        let one: IpAddr = "172.16.0.1".parse()?;
        let start = std::time::Instant::now();
        host.change_group(&friends, GroupChange::AddMember(one.into()))?;
        host.change_group(&friends, GroupChange::RemoveMember(one.into()))?;
        println!("a member added and removed: {:?}", start.elapsed());
    }

    let to = if routed { joined::join(&host)? } else { b };
    let mut frame = build::ethernet(a, to).ipv4([10, 0, 0, 1], there).udp(0, 0, &[0x5a; 22]);
    let set = |flow: u64, frame: &mut Vec<u8>| {
        frame[34..36].copy_from_slice(&((flow & 0xffff) as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&(5000 + (flow >> 16) as u16).to_be_bytes());
        frame[40..42].fill(0); // no checksum
    };
    if refused {
        // More than one opener may have of 1 % at one receiver; each is answered at once.
        for port in 0..2 * capacity / 800 {
            let header = Default::default();
            host.send(
                "a",
                &build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(port as u16, 1, b""),
                header,
            )?;
            host.send(
                "b",
                &build::ethernet(b, a).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(1, port as u16, b""),
                header,
            )?;
            host.received()?;
        }
    }
    let (mut cycles, mut measured, mut received) = (0, 0, 0u64);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let learning = if new { 0 } else { flows.div_ceil(BATCH as u64) };
    let mut next = 0;
    for batch in 0..batches + learning {
        if new && next + BATCH as u64 > flows {
            if !refused {
                host.flush_sessions(&SessionFilter::default());
            }
            next = 0;
        }
        let guest = host.guest("a").ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..BATCH {
            let flow = if new || batch < learning {
                next += 1;
                (next - 1) % flows
            } else {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % flows
            };
            set(flow, &mut frame);
            guest.enqueue(&frame, Default::default())?;
        }
        guest.flush();
        let start = cpu::tsc();
        host.turn();
        if batch >= learning {
            cycles += cpu::tsc() - start;
            measured += BATCH as u64;
        }
        let guest = host.guest("b").ok_or("no guest")?;
        while guest.recv()?.is_some() {
            received += 1;
        }
    }
    let sent = if refused { 0 } else { (batches + learning) * BATCH as u64 };
    if received != sent {
        return Err(format!("{sent} frames sent, {received} received: {:?}", host.moved()).into());
    }
    let per_packet = cycles as f64 / measured as f64;
    let rate = cpu::tsc_hz() as f64 / per_packet / 1e6;
    println!(
        "{} flows={flows} rules={rules} groups={groups} members={members}: {per_packet:.1} cycles/packet, {rate:.2} Mpps",
        args[0]
    );
    Ok(())
}
