//! Rate of two workers of one host, beside one worker and beside two hosts with one worker each:
//! in-memory rings, two processors, no generator.
//!
//! `worker_scaling udp|tcp|snat [SECONDS [FLOWS]]`
//!
//! Two filtered vnics have FLOWS established flows between them, each of which goes both ways, in
//! random order, 64-byte frames. With two workers each of them serves the ring of one vnic, so the
//! two directions of each session are at different workers, in one table. One worker serves both
//! rings. Two hosts share nothing: each worker has a host of its own, and serves the one ring of
//! it that sends.
//!
//! `snat`: UDP between a filtered vnic and a wire, behind which machines share an address of the
//! host; each flow has a port there. Two workers translate in one table, one there, one back.
//!
//! Guests are played by the other processor than their ring's worker, between the measured times:
//! in each round frames are made, then the workers take them at the same time, then the guests
//! read. Rounds in which the scheduler took a processor away are left out.

#[path = "common/joined.rs"]
mod joined;
#[path = "common/processors.rs"]
mod processors;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, VnicPolicy,
    harness::{Error, Host, LINUX, OneWorker},
};
use butterfly_guest_driver::{
    guest::{Guest, GuestConfig},
    memory::MemoryConfig,
};
use butterfly_mem::cpu;
use butterfly_model::{Cidr, Direction, GroupName, Nat, Rule, SecurityGroup};
use butterfly_packet::{
    build,
    tcp::{ACK, SYN},
};

use processors::{cores, involuntary_switches, pin};

/// Frames of one vnic in a round: batches of 64.
const FRAMES: u64 = 512;
/// Time for which one kind is measured before the next one has its turn.
const SLICE: Duration = Duration::from_millis(100);
/// Vnics: the first two speak with each other, and so do the others.
const IDS: [&str; 4] = ["a", "b", "c", "d"];
/// First port of a client, and of a server.
const CLIENT: u16 = 1024;
const SERVER: u16 = 5000;

/// Protocol, and whether the sender of a flow is translated.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Udp,
    Tcp,
    Snat,
}

/// A host, and by flow the port that its client has for the server.
type Loaded = (Host, Vec<u16>);

/// Spins until both processors are there: a wait in the kernel would take longer than a round.
#[derive(Default)]
struct Barrier(AtomicUsize);

impl Barrier {
    fn wait(&self, passed: &mut usize) {
        *passed += 2;
        self.0.fetch_add(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) < *passed {
            std::hint::spin_loop();
        }
    }
}

/// A vnic that sends in each round, by the numbers of its host and of the vnic.
type Sender = (usize, usize);

/// A load: hosts, and what each of the two processors does in a round.
struct Kind<'a> {
    name: &'static str,
    /// Guests of its hosts.
    hosts: Vec<Vec<Mutex<&'a mut Guest>>>,
    /// Ports of clients of each host, as servers see them.
    clients: Vec<&'a [u16]>,
    /// Its worker, if it has one here.
    workers: [Option<Mutex<OneWorker<'a>>>; 2],
    /// Vnics whose rings its worker serves.
    served: [Vec<Sender>; 2],
    /// Cycles of its worker for a frame, of each round.
    cycles: [Mutex<Vec<f64>>; 2],
}

fn each(guests: Vec<&mut Guest>) -> Vec<Mutex<&mut Guest>> {
    guests.into_iter().map(Mutex::new).collect()
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "worker_scaling udp|tcp|snat [SECONDS [FLOWS]]";
    let load = match args.first().map(String::as_str) {
        Some("udp") => Load::Udp,
        Some("tcp") => Load::Tcp,
        Some("snat") => Load::Snat,
        _ => return Err(usage.into()),
    };
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (seconds, flows) = (number(1, 10)?, number(2, 1000)?.clamp(1, 1 << 20));
    // A vnic has so many ports of an address.
    let flows = if load == Load::Snat { flows.min(4000) } else { flows };
    let cores = cores()?;
    if cores.0 == cores.1 {
        return Err("two processors are needed".into());
    }
    let mut ones = [host(1, flows, load)?, host(1, flows, load)?];
    let (mut two, mut four) = (host(2, flows, load)?, host(2, flows, load)?);
    let mut own = [host(1, flows, load)?, host(1, flows, load)?];

    let [first, second] = &mut own;
    let mut kinds = Vec::new();
    // On each of the two processors in turn, which are not always alike.
    for (processor, one) in ones.iter_mut().enumerate() {
        let (mut workers, guests) = one.0.apart();
        let mut kind = Kind {
            name: "one worker",
            hosts: vec![each(guests)],
            clients: vec![&one.1],
            workers: [None, None],
            served: [vec![], vec![]],
            cycles: Default::default(),
        };
        kind.workers[processor] = workers.pop().map(Mutex::new);
        kind.served[processor] = vec![(0, 0), (0, 1)];
        kinds.push(kind);
    }
    let (mut workers, guests) = two.0.apart();
    let last = workers.pop().map(Mutex::new);
    kinds.push(Kind {
        name: "two workers",
        hosts: vec![each(guests)],
        clients: vec![&two.1],
        workers: [workers.pop().map(Mutex::new), last],
        served: [vec![(0, 0)], vec![(0, 1)]],
        cycles: Default::default(),
    });
    // There is one wire.
    if load != Load::Snat {
        let (mut workers, guests) = four.0.apart();
        let last = workers.pop().map(Mutex::new);
        kinds.push(Kind {
            name: "two apart",
            hosts: vec![each(guests)],
            clients: vec![&four.1],
            workers: [workers.pop().map(Mutex::new), last],
            served: [vec![(0, 0)], vec![(0, 3)]],
            cycles: Default::default(),
        });
    }
    let ((mut workers, guests), (mut others, other)) = (first.0.apart(), second.0.apart());
    kinds.push(Kind {
        name: "two hosts",
        hosts: vec![each(guests), each(other)],
        clients: vec![&first.1, &second.1],
        workers: [workers.pop().map(Mutex::new), others.pop().map(Mutex::new)],
        served: [vec![(0, 0)], vec![(1, 1)]],
        cycles: Default::default(),
    });
    let frames = (0..IDS.len()).map(|vnic| make(vnic, load)).collect::<Result<Vec<_>, _>>()?;
    let barrier = Barrier::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(&kinds, 1, (cores.1, flows, &frames), &barrier, end));
        play(&kinds, 0, (cores.0, flows, &frames), &barrier, end)?;
        other.join().map_err(|_| "a thread panicked")?
    })?;
    report(&kinds);
    Ok(())
}

/// One of the two processors: plays guests of the other one's worker, and runs its own.
fn play(
    kinds: &[Kind<'_>],
    me: usize,
    (core, flows, frames): (usize, u64, &[Vec<u8>]),
    barrier: &Barrier,
    end: Instant,
) -> Result<(), Error> {
    pin(core);
    let (mut passed, mut random) = (0, 0x9e37_79b9_7f4a_7c15u64 + me as u64);
    // Errors are told at the end: who left early would let the other one wait for ever.
    let mut outcome = Ok(());
    loop {
        for kind in kinds {
            // Both decide by the first one's clock.
            let begin = Instant::now();
            loop {
                let other = &kind.served[1 - me];
                for sender in other {
                    let sent = send(kind, *sender, flows, &frames[sender.1], &mut random);
                    outcome = outcome.and(sent);
                }
                let over = begin.elapsed() > SLICE;
                if me == 0 {
                    DECIDED.store(
                        usize::from(over) + 2 * usize::from(Instant::now() > end),
                        Ordering::Release,
                    );
                }
                barrier.wait(&mut passed);
                let decided = DECIDED.load(Ordering::Acquire);
                let switches = involuntary_switches().unwrap_or(0);
                barrier.wait(&mut passed);
                let start = cpu::tsc();
                if let Some(Ok(mut worker)) = kind.workers[me].as_ref().map(Mutex::lock) {
                    for _ in 0..FRAMES / 64 {
                        worker.turn();
                    }
                    let took = (cpu::tsc() - start) as f64;
                    if involuntary_switches().ok() == Some(switches)
                        && let Ok(mut cycles) = kind.cycles[me].lock()
                    {
                        cycles.push(took / (FRAMES * kind.served[me].len() as u64) as f64);
                    }
                }
                barrier.wait(&mut passed);
                for (host, from) in other {
                    outcome = outcome.and(receive(kind, *host, from ^ 1));
                }
                barrier.wait(&mut passed);
                if decided & 2 != 0 {
                    return outcome;
                }
                if decided & 1 != 0 {
                    break;
                }
            }
        }
    }
}

/// Written by the first processor for both: 1 if the slice is over, 2 if all is.
static DECIDED: AtomicUsize = AtomicUsize::new(0);

fn send(
    kind: &Kind<'_>,
    (host, from): Sender,
    flows: u64,
    frame: &[u8],
    random: &mut u64,
) -> Result<(), Error> {
    let mut guest = kind.hosts[host][from].lock().map_err(|_| "a thread panicked")?;
    guest.reclaim()?;
    let mut frame = frame.to_vec();
    for _ in 0..FRAMES {
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let flow = (*random >> 33) % flows;
        set_flow(flow, from, kind.clients.get(host).copied().unwrap_or(&[]), &mut frame);
        guest.enqueue(&frame, Default::default())?;
    }
    guest.flush();
    Ok(())
}

fn receive(kind: &Kind<'_>, host: usize, vnic: usize) -> Result<(), Error> {
    let mut guest = kind.hosts[host][vnic].lock().map_err(|_| "a thread panicked")?;
    let mut received = 0;
    while guest.recv()?.is_some() {
        received += 1;
    }
    if received == FRAMES {
        Ok(())
    } else {
        Err(format!("{} received {received} of {FRAMES}", IDS[vnic]).into())
    }
}

/// A flow has the same ports in both directions, the other way round, but for the client's, as the
/// server sees it, where its sender is translated. No checksums: see `make`.
fn set_flow(flow: u64, from: usize, clients: &[u16], frame: &mut [u8]) {
    let (own, server) = (CLIENT + (flow & 0x7fff) as u16, SERVER + (flow >> 15) as u16);
    let seen = clients.get(flow as usize).copied().unwrap_or(own);
    let (source, destination) = if from.is_multiple_of(2) { (own, server) } else { (server, seen) };
    frame[34..36].copy_from_slice(&source.to_be_bytes());
    frame[36..38].copy_from_slice(&destination.to_be_bytes());
}

/// A frame of 64 bytes, with its FCS, to the peer. Nobody looks at the checksum of its transport:
/// its ports are changed afterwards. Where it is translated, it has none.
fn make(from: usize, load: Load) -> Result<Vec<u8>, Error> {
    Ok(match load {
        Load::Tcp => link(from).tcp(&established(), b"sixbyt"),
        Load::Udp => link(from).udp(0, 0, &[0x5a; 18]),
        Load::Snat => {
            let router = joined::router_mac()?;
            let ip = match from {
                0 => build::ethernet(mac(0), router).ipv4(ip(0), joined::WORLD),
                _ => build::ethernet(joined::NEXT, joined::WIRE_MAC)
                    .ipv4(joined::WORLD, joined::OUTSIDE),
            };
            let mut frame = ip.udp(0, 0, &[0x5a; 18]);
            frame[40..42].fill(0);
            frame
        }
    })
}

fn mac(vnic: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, vnic as u8 + 1])
}

fn ip(vnic: usize) -> [u8; 4] {
    [10, 0, 0, vnic as u8 + 1]
}

/// From a vnic to its peer.
fn link(from: usize) -> build::Ip {
    build::ethernet(mac(from), mac(from ^ 1)).ipv4(ip(from), ip(from ^ 1))
}

/// Segment that both sides send once a connection stands: the marks stay where they are.
fn established() -> build::Tcp<'static> {
    build::Tcp { sequence: 1, acknowledgement: 1, ..build::Tcp::new(0, 0, ACK) }
}

/// A host with filtered vnics, all flows of which are established.
fn host(workers: usize, flows: u64, load: Load) -> Result<Loaded, Error> {
    let capacity = (flows * 5 / 4).max(65_536) as u32;
    let sessions =
        SessionConfig { capacity, share: 100, rate: u32::MAX, ..SessionConfig::default() };
    let mut host = Host::with(sessions, None, workers)?;
    let group = GroupName::new("g")?;
    let all = Some(Cidr::new("10.0.0.0", 24)?);
    let protocol = if load == Load::Tcp { 6 } else { 17 };
    let rule = Rule::new(Direction::Inbound, protocol, (Some(5000), Some(6000)), all, None)?;
    let declared = SecurityGroup::new(group.clone(), Vec::<String>::new(), [rule])?;
    host.change_group(&group, GroupChange::Declare(declared))?;
    let ids = if load == Load::Snat { &IDS[..1] } else { &IDS[..] };
    for (n, id) in ids.iter().enumerate() {
        let policy = VnicPolicy {
            ips: vec![ip(n).into()],
            groups: vec![group.clone()],
            ..VnicPolicy::default()
        };
        let config = GuestConfig::default().rings(1024);
        host.declare(id, mac(n), 1, &policy)?;
        host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))?;
    }
    if load == Load::Snat {
        let clients = translated(&mut host, flows)?;
        host.settle();
        return Ok((host, clients));
    }
    let opening = [
        build::Tcp { sequence: 0, ..build::Tcp::new(0, 0, SYN) },
        build::Tcp { sequence: 0, acknowledgement: 1, ..build::Tcp::new(0, 0, SYN | ACK) },
        established(),
    ];
    for flow in 0..flows {
        for first in [0, 2] {
            if load == Load::Tcp {
                for (from, segment) in [first, first + 1, first].into_iter().zip(&opening) {
                    let mut frame = link(from).tcp(segment, b"");
                    set_flow(flow, from, &[], &mut frame);
                    host.send(IDS[from], &frame, Default::default())?;
                }
            } else {
                for from in [first, first + 1] {
                    let mut frame = make(from, load)?;
                    set_flow(flow, from, &[], &mut frame);
                    frame[40..42].fill(0); // no checksum
                    host.send(IDS[from], &frame, Default::default())?;
                }
            }
        }
        host.received()?;
    }
    host.settle();
    Ok((host, Vec::new()))
}

/// Lays the wire, and opens all flows there and back. Returns the port that each client has
/// outside.
fn translated(host: &mut Host, flows: u64) -> Result<Vec<u16>, Error> {
    joined::outside(host, Nat::snat(joined::OUTSIDE.into())?)?;
    // With rings for the frames of a round.
    host.detach(joined::WIRE);
    let config = GuestConfig::default().rings(1024);
    host.attach(joined::WIRE, LINUX, &config, &MemoryConfig::new(config.memory_needed()))?;
    let mut clients = Vec::new();
    for flow in 0..flows {
        let mut frame = make(0, Load::Snat)?;
        set_flow(flow, 0, &[], &mut frame);
        host.send(IDS[0], &frame, Default::default())?;
        let left = host.received()?;
        let (_, bytes) = left.get(joined::WIRE).and_then(|of| of.first()).ok_or("nothing left")?;
        clients.push(u16::from_be_bytes([bytes[34], bytes[35]]));
        let mut back = make(1, Load::Snat)?;
        set_flow(flow, 1, &clients, &mut back);
        host.send(joined::WIRE, &back, Default::default())?;
        host.received()?;
    }
    Ok(clients)
}

fn report(kinds: &[Kind<'_>]) {
    let mut rates = Vec::new();
    for kind in kinds {
        let mut rate = 0.0;
        for cycles in &kind.cycles {
            let Ok(mut cycles) = cycles.lock() else { continue };
            cycles.sort_by(f64::total_cmp);
            let Some(median) = cycles.get(cycles.len() / 2) else { continue };
            rate += cpu::tsc_hz() as f64 / median / 1e6;
            println!(
                "{:12} {median:6.1} cycles a frame, median of {} rounds",
                kind.name,
                cycles.len()
            );
        }
        println!("{:12} {rate:6.2} million frames a second", kind.name);
        rates.push(rate);
    }
    if let [one, other, two, .., own] = rates[..] {
        let one = (one + other) / 2.0;
        if let [_, _, _, apart, _] = rates[..] {
            println!("two apart / two hosts: {:.3}", apart / own);
        }
        println!(
            "two workers / one worker: {:.3}; two workers / two hosts: {:.3}",
            two / one,
            two / own
        );
    }
}
