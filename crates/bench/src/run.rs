//! A run: attach, learn, warm up, measure, account for every frame.

mod connections;

use std::{
    io::{BufRead, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use butterfly_guest_driver::{
    Connection, FastGuest, Listener, Memory, MemoryConfig, Start, fast::BATCH,
};
use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    frames::{Frames, Kind, Part},
    histogram::{Histogram, Latency},
    inbox::Inbox,
    interface::Interface,
    live::Live,
    options::{Dir, End, Feature, Options},
    plot,
    report::{self, Connections, Counts, Report, Second},
    search::{Found, Search},
    vms::{is_client, mac, peer},
    watch::Watch,
};

/// Time without an arrival, after the switch took the last frame, until missing frames count as
/// lost. The switch may be off its core for a while on a busy machine. When no frame is missing the
/// generator does not wait.
const QUIET: Duration = Duration::from_secs(1);
/// Time that the switch has to take the frames it was given.
const DRAIN: Duration = Duration::from_secs(10);
/// A frame that takes longer is lost.
const LATENCY_LIMIT: Duration = Duration::from_millis(100);
/// Rounds of the sending loop between looks at the clock.
const ROUNDS: usize = 16;

/// Device behind the rings of a VM.
enum Device {
    Switch(Connection),
    Interface(Box<Interface>),
}

/// One VM.
struct Vm {
    nic: FastGuest,
    device: Device,
    /// Frames that it sends.
    frames: Frames,
    /// Frames the switch took.
    sent: u64,
    /// Frames that the host of its interface had no room for.
    missed: u64,
    inbox: Inbox,
    rx_bursts: u64,
    /// Beginning of the clock that frames carry, if they do.
    clock: Option<Instant>,
}

/// All VMs, A and B of each pair, and how they send.
struct Pair<'a> {
    options: &'a Options,
    vms: Vec<Vm>,
    /// Time at which a capture began to be played.
    began: Option<Instant>,
}

/// How a VM comes to its end.
enum Meeting<'a> {
    Listen(Listener),
    Connect(&'a Path),
    Open(&'a str),
}

/// Outcome of the measured part.
#[derive(Default)]
struct Measured {
    seconds: Vec<Second>,
    latency: Option<Latency>,
    found: Option<Found>,
    connections: Option<Connections>,
}

/// Runs as the options say, prints the result, and returns it.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    options.run_on_core()?;
    let watch = Watch::new(&options.watch_tid, &options.watch_pid)?;
    // Progress goes where it does not spoil JSON on standard output.
    let quiet = options.json.as_deref() == Some("-".as_ref());
    let mut out: Box<dyn Write> =
        if quiet { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };

    let mut pair = Pair::attach(options)?;
    pair.learn()?;
    pair.reset();
    let mut measured = Measured::default();
    match (options.dir, options.searched()) {
        _ if options.connections => {
            synchronise(options, &mut out)?;
            measured.connections = Some(pair.connect(&mut out)?);
        }
        (Dir::Lat | Dir::Ping, _) => {
            let warm = Duration::from_secs(options.warm);
            pair.measure_latency(warm, &mut Histogram::new(), &mut 0)?;
            synchronise(options, &mut out)?;
            let (mut times, mut timeouts) = (Histogram::new(), 0);
            let mut live = Live::begin(options, "us at the median");
            for _ in 0..options.secs {
                pair.measure_latency(Duration::from_secs(1), &mut times, &mut timeouts)?;
                if let Some(live) = &mut live {
                    live.show(times.latency(timeouts).p50_us);
                }
            }
            measured.latency = Some(times.latency(timeouts));
        }
        (_, Some(allowed)) => {
            pair.load(Duration::from_secs(options.warm), options.rate)?;
            synchronise(options, &mut out)?;
            measured.found = Some(pair.search(allowed, &mut out)?);
        }
        _ => {
            pair.load(Duration::from_secs(options.warm), options.rate)?;
            synchronise(options, &mut out)?;
            measured.seconds = pair.measure(&watch, &mut out)?;
        }
    }
    pair.settle()?;
    measured.latency = measured.latency.or_else(|| pair.latency());
    let report = pair.report(measured);
    report.print(&mut out)?;
    report.write(options)?;
    if let Some(path) = &options.svg {
        report::write(path, plot::svg(&report).trim_end())?;
    }
    Ok(report)
}

/// Lets the caller reset the switch's counters between warm-up and measurement.
fn synchronise(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    if options.sync {
        writeln!(out, "READY")?;
        out.flush()?;
        std::io::stdin()
            .lock()
            .read_line(&mut String::new())
            .context("cannot read standard input")?;
    }
    Ok(())
}

impl Vm {
    /// A VM that sends and receives through a network interface.
    fn outside(name: &str, options: &Options, vm: usize) -> anyhow::Result<Vm> {
        let largest = options.largest();
        let config = options.plain(largest);
        let memory = Memory::new(&MemoryConfig::new(config.memory_needed()))?;
        let nic = FastGuest::new(&memory, Features::VERSION_1, &config)?;
        let interface = Interface::open(name, &nic, mac(vm), largest)?;
        Ok(Vm::new(nic, Device::Interface(Box::new(interface)), options, vm))
    }

    fn attach(mut connection: Connection, options: &Options, vm: usize) -> anyhow::Result<Vm> {
        let wanted = options.wanted();
        let features = connection.negotiate(wanted, Connection::usual_protocol())?;
        let missing = wanted.without(features);
        ensure!(
            missing.0 == 0,
            "the switch does not offer {}: leave it out of --features",
            missing.names().join(", ")
        );
        let largest = options.largest();
        let needed = largest + NetHeader::LEN;
        let config = options.config(largest);
        ensure!(
            options.features.contains(&Feature::Mergeable) || config.rx_buffer >= needed,
            "without mergeable buffers a frame of {largest} bytes needs --rx-buffer {needed}"
        );
        let size = config.memory_needed();
        let memory =
            if options.identity { MemoryConfig::identity(size) } else { MemoryConfig::new(size) };
        let memory = Memory::new(&if options.huge { memory.huge() } else { memory })?;
        let nic = FastGuest::new(&memory, features, &config)?;
        connection.start(&nic, &Start::default())?;
        Ok(Vm::new(nic, Device::Switch(connection), options, vm))
    }

    fn new(nic: FastGuest, device: Device, options: &Options, vm: usize) -> Vm {
        Vm {
            nic,
            device,
            frames: Frames::new(options, vm, Kind::Data, Part::Learning),
            sent: 0,
            missed: 0,
            inbox: Inbox::learning(Frames::new(options, peer(vm), Kind::Data, Part::Learning)),
            rx_bursts: 0,
            clock: None,
        }
    }

    /// Has an interface send what is in the transmit ring. A switch does by itself.
    #[inline]
    fn flush(&mut self) -> anyhow::Result<()> {
        match &mut self.device {
            Device::Switch(_) => Ok(()),
            Device::Interface(interface) => interface.send(),
        }
    }

    /// Counts what an interface brought and this host had no room for.
    fn count_missed(&mut self) -> anyhow::Result<()> {
        if let Device::Interface(interface) = &self.device {
            self.missed += interface.missed()?;
        }
        Ok(())
    }

    /// Has an interface fill the receive ring.
    #[inline]
    fn fetch(&mut self) -> anyhow::Result<()> {
        match &mut self.device {
            Device::Switch(_) => Ok(()),
            Device::Interface(interface) => interface.receive(),
        }
    }

    /// Offers up to `max` frames; how many the ring had room for.
    #[inline]
    fn send(&mut self, max: usize) -> anyhow::Result<usize> {
        let frames = &mut self.frames;
        if let Some(clock) = self.clock {
            frames.stamp = Some(clock.elapsed().as_nanos() as u32);
        }
        let count = self.nic.tx.send(max, |out| frames.fill(&out))?;
        self.sent += count as u64 * self.frames.segments();
        self.flush()?;
        Ok(count)
    }

    /// Takes and checks what arrived; how many frames.
    #[inline]
    fn receive(&mut self) -> anyhow::Result<usize> {
        self.fetch()?;
        let inbox = &mut self.inbox;
        if let Some(clock) = self.clock {
            inbox.now = clock.elapsed().as_nanos() as u32;
        }
        let count = self.nic.rx.poll(|frame| inbox.take(&frame))?;
        self.rx_bursts += u64::from(count > 0);
        Ok(count)
    }
}

impl<'a> Pair<'a> {
    fn attach(options: &'a Options) -> anyhow::Result<Pair<'a>> {
        options.check()?;
        // All of them listen before the first one is waited for.
        let prepared = options.ends().into_iter().map(|end| match end {
            End::Socket(path) if options.serve => Ok(Meeting::Listen(Listener::bind(path)?)),
            End::Socket(path) => Ok(Meeting::Connect(path)),
            End::Interface(name) => Ok(Meeting::Open(name)),
        });
        let prepared = prepared.collect::<anyhow::Result<Vec<_>>>()?;
        let attach = |(vm, meeting): (usize, &Meeting<'_>)| {
            let connection = match meeting {
                Meeting::Listen(listener) => listener.accept(options.wait()),
                Meeting::Connect(path) => Connection::connect(path, options.wait()),
                Meeting::Open(name) => return Vm::outside(name, options, vm),
            };
            Vm::attach(connection?, options, vm)
        };
        let named = |(vm, meeting): (usize, &Meeting<'_>)| {
            attach((vm, meeting)).with_context(|| format!("VM {}", name(vm)))
        };
        let vms = prepared.iter().enumerate().map(named).collect::<anyhow::Result<_>>()?;
        Ok(Pair { options, vms, began: None })
    }

    fn receive(&mut self) -> anyhow::Result<usize> {
        self.vms.iter_mut().try_fold(0, |sum, vm| Ok(sum + vm.receive()?))
    }

    /// Takes what arrives for so long.
    fn receive_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.receive()?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Says why nothing moves, if the switch has gone.
    fn check_connections(&self) -> anyhow::Result<()> {
        for (number, vm) in self.vms.iter().enumerate() {
            let name = name(number);
            if let Device::Switch(connection) = &vm.device {
                ensure!(!connection.is_closed(), "the switch closed the connection of VM {name}");
            }
        }
        Ok(())
    }

    /// Slowly, so that nothing is lost: the switch learns addresses, every flow is set up in both
    /// directions.
    fn learn(&mut self) -> anyhow::Result<()> {
        if self.options.learn == 0 {
            return Ok(());
        }
        // First until anything comes through: a switch needs a moment after its ports are up.
        let deadline = Instant::now() + self.options.wait();
        if self.options.tcp {
            self.set_kind(Kind::Open, Kind::Accept);
        }
        while self.vms.iter().any(|vm| vm.inbox.received == 0) {
            self.check_connections()?;
            if Instant::now() > deadline {
                let of = |vm: usize| self.vms.get(vm).map_or(0, |vm| vm.inbox.received);
                let silent = self.vms.iter().position(|vm| vm.inbox.received == 0);
                let first = silent.unwrap_or_default() & !1;
                let (a, b) = (of(first), of(peer(first)));
                bail!(
                    "nothing comes through after {} s: {a} frames arrived at A, {b} at B. Does the switch forward between the \
                     two, as --help says?",
                    self.options.wait
                );
            }
            for first in [0, 1] {
                for vm in self.vms.iter_mut().skip(first).step_by(2) {
                    vm.send(1)?;
                }
                self.receive_for(Duration::from_millis(1))?;
            }
        }
        // Then each flow, handshake first; the other frames that a flow has seen so far do no harm.
        let gap = Duration::from_secs(1) / u32::try_from(self.options.learn).unwrap_or(u32::MAX);
        let flows = if self.options.new_sessions { 0 } else { u64::from(self.options.flows) };
        if self.options.tcp {
            self.set_kind(Kind::Open, Kind::Accept);
            self.paced(flows, gap)?;
        }
        self.set_kind(Kind::Data, Kind::Data);
        self.paced((2 * flows).max(2000), gap)?;
        self.settle()
    }

    /// Sets the kind of frames of both VMs while learning, from now on.
    fn set_kind(&mut self, a: Kind, b: Kind) {
        for (number, vm) in self.vms.iter_mut().enumerate() {
            let kind = if is_client(number) { a } else { b };
            vm.frames = Frames::new(self.options, number, kind, Part::Learning);
        }
    }

    /// One frame each way in each pair, `steps` times, `gap` apart.
    fn paced(&mut self, steps: u64, gap: Duration) -> anyhow::Result<()> {
        let mut due = Instant::now();
        for _ in 0..steps {
            for vm in 0..self.vms.len() {
                while self.vms[vm].send(1)? == 0 {
                    self.receive()?;
                    self.check_connections()?;
                }
                due += gap / 2;
                self.receive()?;
                while Instant::now() < due {
                    self.receive()?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the switch has taken every frame, and every frame has arrived or is given up.
    fn settle(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + DRAIN;
        let mut last = Instant::now();
        loop {
            let arrived = self.receive()?;
            let mut held = 0;
            for vm in &mut self.vms {
                vm.flush()?;
                vm.nic.tx.reclaim()?;
                held += vm.nic.tx.outstanding();
            }
            if held > 0 {
                self.check_connections()?;
                ensure!(
                    Instant::now() < deadline,
                    "the switch does not take {held} frames it was given"
                );
            }
            if arrived > 0 || held > 0 {
                last = Instant::now();
            } else if self.counts().iter().all(|counts| counts.lost == 0) || last.elapsed() > QUIET
            {
                return self.vms.iter_mut().try_for_each(Vm::count_missed);
            }
        }
    }

    /// Counting begins.
    fn reset(&mut self) {
        let kind = if self.options.new_sessions { Kind::Open } else { Kind::Data };
        let clock = self.options.latency.then(Instant::now);
        for (number, vm) in self.vms.iter_mut().enumerate() {
            vm.frames = Frames::new(self.options, number, kind, Part::Counted);
            let awaited = Frames::new(self.options, peer(number), kind, Part::Counted);
            vm.inbox = Inbox::new(awaited, self.options.verify);
            vm.sent = 0;
            vm.missed = 0;
            vm.clock = clock;
        }
    }

    /// Forgets the times on the way that were measured so far.
    fn begin_latency(&mut self) {
        for vm in self.vms.iter_mut().filter(|_| self.options.latency) {
            vm.inbox.latency = Some(Histogram::new());
        }
    }

    /// Returns the times on the way of frames under load, if they were measured.
    fn latency(&self) -> Option<Latency> {
        let mut all = Histogram::new();
        let own: Vec<_> = self.vms.iter().filter_map(|vm| vm.inbox.latency.as_ref()).collect();
        own.iter().for_each(|own| all.join(own));
        (!own.is_empty()).then(|| all.latency(0))
    }

    /// Sends at a rate, and receives, for so long.
    fn load(&mut self, time: Duration, rate: Option<u64>) -> anyhow::Result<()> {
        let burst = usize::from(self.options.burst);
        let dir = self.options.dir;
        let start = Instant::now();
        let mut pace = rate.map(|rate| Pace::new(rate, burst));
        loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(());
            }
            let timed = pace.is_some() || self.options.pcap.is_some();
            let rounds = if timed { 1 } else { ROUNDS };
            let due = match (&mut pace, &self.vms[0].frames.replay) {
                (Some(pace), _) => pace.due(elapsed),
                (None, Some(replay)) => {
                    let began = *self.began.get_or_insert(start);
                    replay.due(began.elapsed().mul_f64(self.options.speed), burst)
                }
                (None, None) => burst,
            };
            let mut moved = 0;
            for _ in 0..rounds {
                for (number, vm) in self.vms.iter_mut().enumerate() {
                    if dir.sends(number) && due > 0 {
                        moved += vm.send(due)?;
                    }
                }
                moved += self.receive()?;
            }
            if let Some(pace) = &mut pace {
                pace.sent(due);
            }
            if moved == 0 {
                self.check_connections()?;
            }
        }
    }

    /// Searches for the highest rate with no more than some loss.
    fn search(&mut self, allowed: f64, out: &mut dyn Write) -> anyhow::Result<Found> {
        let time = Duration::from_secs(self.options.secs);
        let precision = self.options.precision / 100.0;
        let mut search = Search::new(allowed, precision, self.options.rate);
        let sends = |vm: &usize| self.options.dir.sends(*vm);
        let ways = (0..self.vms.len()).filter(sends).count() as f64;
        while let Some(rate) = search.next() {
            self.settle()?;
            self.reset();
            self.begin_latency();
            let begin = Instant::now();
            self.load(time, rate)?;
            let seconds = begin.elapsed().as_secs_f64();
            let sent: u64 = self.vms.iter().map(|vm| vm.sent).sum();
            self.settle()?;
            let lost: u64 = self.counts().iter().map(|counts| counts.lost).sum();
            let (offered, loss) = (sent as f64 / seconds / ways, lost as f64 / sent.max(1) as f64);
            let trial = search.tried(rate, offered, loss);
            writeln!(
                out,
                "  {:.3} Mpps offered, {:.4} % lost: {}",
                trial.offered / 1e6,
                trial.loss * 100.0,
                if trial.passed { "passed" } else { "failed" }
            )?;
            out.flush()?;
        }
        Ok(search.found())
    }

    fn measure(&mut self, watch: &Watch, out: &mut dyn Write) -> anyhow::Result<Vec<Second>> {
        self.begin_latency();
        let mut live = Live::begin(self.options, "Mpps");
        let mut seconds = Vec::new();
        for t in 1..=self.options.secs {
            let before = self.totals();
            let span = watch.start();
            self.load(Duration::from_secs(1), self.options.rate)?;
            let shares = watch.end(&span);
            let after = self.totals();
            let [received, sent, bytes, bursts] =
                [0, 1, 2, 3].map(|i| (after[i] - before[i]) as f64);
            let second = Second {
                t,
                rx_mpps: received / shares.secs / 1e6,
                tx_mpps: sent / shares.secs / 1e6,
                rx_gbps: bytes * 8.0 / shares.secs / 1e9,
                cpu: shares.own,
                switch_cpu: shares.watched,
                rx_burst: if bursts > 0.0 { received / bursts } else { 0.0 },
                valid: shares.are_valid(),
            };
            match &mut live {
                Some(live) => live.show(second.rx_mpps),
                None => second.print(out)?,
            }
            out.flush()?;
            seconds.push(second);
        }
        Ok(seconds)
    }

    /// Frames received, sent, bytes received, batches received; of both VMs.
    fn totals(&self) -> [u64; 4] {
        self.vms.iter().fold([0; 4], |sum, vm| {
            let of = [vm.inbox.received, vm.sent, vm.inbox.received_bytes, vm.rx_bursts];
            [0, 1, 2, 3].map(|i| sum[i] + of[i])
        })
    }

    /// One frame at a time, from A to B, or to B and back. Adds to `times`, and to the frames that
    /// did not come.
    fn measure_latency(
        &mut self,
        time: Duration,
        times: &mut Histogram,
        timeouts: &mut u64,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        let back = self.options.dir == Dir::Ping;
        loop {
            let start = Instant::now();
            if start >= end {
                return Ok(());
            }
            if self.vms[0].send(1)? == 0 {
                self.check_connections()?;
                continue;
            }
            let before = [0, 1].map(|vm| self.vms[vm].inbox.received);
            let mut answered = false;
            loop {
                self.vms[1].receive()?;
                let reached = self.vms[1].inbox.received > before[1];
                let arrived = if back {
                    if reached && !answered {
                        answered = self.vms[1].send(1)? == 1;
                    }
                    self.vms[0].receive()?;
                    self.vms[0].inbox.received > before[0]
                } else {
                    reached
                };
                let took = start.elapsed();
                if arrived {
                    times.add(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
                    break;
                }
                if took > LATENCY_LIMIT {
                    *timeouts += 1;
                    self.check_connections()?;
                    // A late frame must not be taken for the next one.
                    self.settle()?;
                    break;
                }
            }
        }
    }

    /// Returns what each VM sent and got.
    fn counts(&self) -> Vec<Counts> {
        let of = |(number, vm): (usize, &Vm)| {
            let others = self.vms.get(peer(number)).map_or(0, |other| other.sent);
            let kicks = vm.nic.tx.kicks() + vm.nic.rx.kicks();
            Counts { sent: vm.sent, kicks, missed: vm.missed, ..vm.inbox.counts(others) }
        };
        self.vms.iter().enumerate().map(of).collect()
    }

    fn report(&self, measured: Measured) -> Report {
        let Measured { seconds, latency, found, connections } = measured;
        let options = self.options;
        let counts = self.counts();
        let [a, b] =
            [0, 1].map(|first| counts.iter().copied().skip(first).step_by(2).sum::<Counts>());
        Report {
            size: match &options.pcap {
                Some(_) => format!("up to {}", options.largest()),
                None => options.size.to_string(),
            },
            pairs: self.vms.len() / 2,
            flows: options.flows,
            new_sessions: options.new_sessions,
            dir: format!("{:?}", options.dir).to_lowercase(),
            proto: if options.tcp { "tcp" } else { "udp" },
            verify: options.verify,
            seed: options.seed,
            rate: options.rate,
            features: options.wanted().names(),
            queue_size: options.queue_size,
            valid_seconds: seconds.iter().filter(|second| second.valid).count(),
            mpps: report::rates(&seconds),
            seconds,
            latency,
            search: found,
            connections,
            failures: report::failures(options, &a, &b),
            a,
            b,
        }
    }
}

/// Returns the name of a VM: A or B, and the number of its pair from the second one on.
fn name(vm: usize) -> String {
    let letter = if is_client(vm) { "A" } else { "B" };
    match vm / 2 {
        0 => letter.to_owned(),
        pair => format!("{letter} of pair {}", pair + 1),
    }
}

/// Spreads frames over time. What could not be sent in time is not made up for in a burst, which a
/// switch could not be blamed for dropping.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rate: f64,
    most: f64,
    sent: f64,
}

impl Pace {
    fn new(rate: u64, burst: usize) -> Pace {
        Pace { rate: rate as f64, most: burst.min(BATCH) as f64, sent: 0.0 }
    }

    /// Frames to be sent now.
    fn due(&mut self, elapsed: Duration) -> usize {
        let due = elapsed.as_secs_f64() * self.rate - self.sent;
        if due > self.most {
            self.sent += due - self.most;
            return self.most as usize;
        }
        due as usize
    }

    fn sent(&mut self, count: usize) {
        self.sent += count as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_keeps_the_rate_and_forgives_stalls() {
        let mut pace = Pace::new(1_000_000, 32);
        let mut total = 0;
        for us in 0..1000 {
            let due = pace.due(Duration::from_micros(us));
            pace.sent(due);
            total += due;
        }
        assert!((998..=1000).contains(&total), "{total}");
        let due = pace.due(Duration::from_millis(500));
        pace.sent(due);
        assert_eq!(due, 32, "half a million were due");
        assert!(pace.due(Duration::from_millis(500)) == 0);
    }
}
