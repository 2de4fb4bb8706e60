//! Cost of changes of a security group for vnics that they do not concern: the time of a worker's
//! rounds, alone and while another thread adds and removes members of a group as fast as it can.
//!
//! `change_gap [SECONDS [VNICS [MEMBERS]]]`
//!
//! VNICS filtered vnics let in packets from the members of one group of MEMBERS. One of them sends
//! batches of 64 frames to another, in 1,000 sessions that this rule admitted, so a removal has
//! each decided again. Slices alone and slices with changes take turns for SECONDS; slices in which
//! the scheduler took the worker's processor away are left out. Each round is timed alone: the
//! guest's work in between is not counted.

#[path = "common/processors.rs"]
mod processors;

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, VnicPolicy,
    harness::{Changes, Error, Host, LINUX, Turns},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_mem::cpu;
use butterfly_model::{Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;

use processors::{cores, involuntary_switches, pin};

const BATCH: usize = 64;
const FLOWS: u16 = 1000;
const SLICE: Duration = Duration::from_millis(10);
/// Vnics per network: changes cost by vnic, not by network.
const PER_NETWORK: u64 = 250;

/// Results of the slices of one kind.
#[derive(Default)]
struct Slices {
    count: u32,
    undisturbed: u32,
    /// Cycles of each round of the undisturbed ones.
    rounds: Vec<u32>,
    changes: u64,
}

fn main() -> Result<(), Error> {
    let args: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, default| args.get(at).copied().unwrap_or(default);
    let (seconds, vnics, members) = (number(0, 10), number(1, 1000), number(2, 100_000));
    let (host, friends) = &mut world(vnics.max(2), members)?;
    let cores = cores()?;
    let (changing, done, changes_made) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (changes, mut turns) = host.halves();
    let mut all = [Slices::default(), Slices::default()];
    std::thread::scope(|scope| -> Result<(), Error> {
        scope.spawn(|| {
            pin(cores.0);
            while !done.load(Ordering::Relaxed) {
                if changing.load(Ordering::Relaxed) {
                    change(&changes, friends, changes_made.fetch_add(2, Ordering::Relaxed));
                } else {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        pin(cores.1);
        let mut frames = frames();
        let start = Instant::now();
        let mut outcome = Ok(());
        while outcome.is_ok() && start.elapsed() < Duration::from_secs(seconds) {
            for (kind, slices) in all.iter_mut().enumerate() {
                let before = changes_made.load(Ordering::Relaxed);
                changing.store(kind == 1, Ordering::Relaxed);
                outcome = outcome.and_then(|()| slice(&mut turns, &mut frames, slices));
                changing.store(false, Ordering::Relaxed);
                slices.changes += changes_made.load(Ordering::Relaxed) - before;
            }
        }
        // Or the other thread waits for ever.
        done.store(true, Ordering::Relaxed);
        drop(turns);
        outcome
    })?;
    println!(
        "{vnics} vnics, {members} members, worker on processor {}, changes on {}",
        cores.1, cores.0
    );
    for (name, slices) in ["alone", "changing"].into_iter().zip(&mut all) {
        report(name, slices);
    }
    Ok(())
}

/// Filtered vnics of one group that lets members of another one in; guests of the first two.
fn world(vnics: u64, members: u64) -> Result<(Host, GroupName), Error> {
    let mut host = Host::with_sessions(SessionConfig {
        capacity: 65_536,
        share: 100,
        ..SessionConfig::default()
    })?;
    let (web, friends) = (GroupName::new("web")?, GroupName::new("friends")?);
    let rule =
        Rule::new(Direction::Inbound, 17, (Some(0), Some(65_535)), None, Some(friends.clone()))?;
    host.change_group(
        &web,
        GroupChange::Declare(SecurityGroup::new(web.clone(), Vec::<String>::new(), [rule])?),
    )?;
    let all =
        (0..members).map(|n| IpAddr::from((0x0a00_0001 + n as u32).to_be_bytes()).to_string());
    host.change_group(
        &friends,
        GroupChange::Declare(SecurityGroup::new(friends.clone(), all, [])?),
    )?;
    for n in 0..vnics {
        let [.., b, c, d] = (n as u32 + 1).to_be_bytes();
        let policy = VnicPolicy {
            ips: vec![[10, b, c, d].into()],
            groups: vec![web.clone()],
            ..VnicPolicy::default()
        };
        host.declare(&format!("v{n}"), Mac([2, 0, 0, b, c, d]), (n / PER_NETWORK) as u32, &policy)?;
        if n < 2 {
            let config = GuestConfig::default();
            host.attach(
                &format!("v{n}"),
                LINUX,
                &config,
                &MemoryConfig::new(config.memory_needed()),
            )?;
        }
    }
    Ok((host, friends))
}

/// One more member and one less.
fn change(changes: &Changes<'_>, friends: &GroupName, number: u64) {
    let member = IpAddr::from((0xac10_0000 + (number % 65_536) as u32).to_be_bytes());
    for change in [GroupChange::AddMember(member.into()), GroupChange::RemoveMember(member.into())]
    {
        if let Err(why) = changes.change_group(friends, change) {
            eprintln!("a change was refused: {why}");
            std::process::exit(1);
        }
    }
}

/// Batches of all flows, in turn.
fn frames() -> impl FnMut() -> Vec<u8> {
    let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let all: Vec<Vec<u8>> = (0..FLOWS).map(|flow| link.udp(1000 + flow, 80, &[0x5a; 22])).collect();
    let mut next = 0;
    move || {
        next = (next + 1) % all.len();
        all[next].clone()
    }
}

fn slice(
    turns: &mut Turns<'_>,
    frame: &mut impl FnMut() -> Vec<u8>,
    slices: &mut Slices,
) -> Result<(), Error> {
    let known = slices.rounds.len();
    let switches = involuntary_switches()?;
    let start = Instant::now();
    while start.elapsed() < SLICE {
        let guest = turns.guest("v0").ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..BATCH {
            guest.enqueue(&frame(), Default::default())?;
        }
        guest.flush();
        let begin = cpu::tsc();
        turns.turn();
        slices.rounds.push((cpu::tsc() - begin).try_into().unwrap_or(u32::MAX));
        let guest = turns.guest("v1").ok_or("no guest")?;
        let mut received = 0;
        while guest.recv()?.is_some() {
            received += 1;
        }
        if received != BATCH {
            return Err(format!("{BATCH} frames sent, {received} received").into());
        }
    }
    slices.count += 1;
    if involuntary_switches()? == switches {
        slices.undisturbed += 1;
    } else {
        slices.rounds.truncate(known);
    }
    Ok(())
}

fn report(name: &str, slices: &mut Slices) {
    let Slices { count, undisturbed, rounds, changes } = slices;
    rounds.sort_unstable();
    let us =
        |at: usize| f64::from(rounds.get(at).copied().unwrap_or(0)) / (cpu::tsc_hz() as f64 / 1e6);
    let last = rounds.len().saturating_sub(1);
    println!(
        "{name:8} {} rounds of {BATCH} frames, us: median {:.1}, 99 % {:.1}, 99.99 % {:.1}, longest {:.1}; {:.0} changes a second; \
         {undisturbed} of {count} slices undisturbed",
        rounds.len(),
        us(last / 2),
        us(last * 99 / 100),
        us(last * 9_999 / 10_000),
        us(last),
        *changes as f64 / (f64::from(*count).max(1.0) * SLICE.as_secs_f64()),
    );
}
