//! A run: attach, learn, warm up, measure, account for every frame.

use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use butterfly_guest_driver::{
    Connection, FastConfig, FastGuest, Listener, Memory, MemoryConfig, Start, fast::BATCH,
};
use butterfly_vhost::net::NetHeader;

use crate::{
    frames::{Frames, Kind, Part},
    inbox::Inbox,
    options::{Dir, Feature, Options},
    report::{self, Counts, Latency, Report, Second},
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
/// Most latencies kept.
const MAX_SAMPLES: usize = 10_000_000;
/// Rounds of the sending loop between looks at the clock.
const ROUNDS: usize = 16;

/// One VM.
struct Vm {
    nic: FastGuest,
    connection: Connection,
    /// Frames that it sends.
    frames: Frames,
    /// Frames the switch took.
    sent: u64,
    inbox: Inbox,
    rx_bursts: u64,
}

/// Both VMs, and how they send.
struct Pair<'a> {
    options: &'a Options,
    vms: [Vm; 2],
}

/// Runs as the options say, prints the result, and returns it.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    if let Some(core) = options.pin {
        let mut set = rustix::thread::CpuSet::new();
        ensure!(core < rustix::thread::CpuSet::MAX_CPU, "there is no core {core}");
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)
            .with_context(|| format!("cannot run on core {core}"))?;
    }
    let watch = Watch::new(&options.watch_tid, &options.watch_pid)?;
    // Progress goes where it does not spoil JSON on standard output.
    let quiet = options.json.as_deref() == Some("-".as_ref());
    let mut out: Box<dyn Write> =
        if quiet { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };

    let mut pair = Pair::attach(options)?;
    pair.learn()?;
    pair.reset();
    let (seconds, latency) = match options.dir {
        Dir::Lat => {
            synchronise(options, &mut out)?;
            (Vec::new(), Some(pair.measure_latency()?))
        }
        _ => {
            pair.load(Duration::from_secs(options.warm))?;
            synchronise(options, &mut out)?;
            (pair.measure(&watch, &mut out)?, None)
        }
    };
    pair.settle()?;
    let report = pair.report(seconds, latency);
    report.print(&mut out)?;
    if let Some(path) = &options.json {
        report.write_json(path)?;
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
    fn attach(mut connection: Connection, options: &Options, vm: usize) -> anyhow::Result<Vm> {
        let wanted = options.wanted();
        let features = connection.negotiate(wanted, Connection::usual_protocol())?;
        let missing = wanted.without(features);
        ensure!(
            missing.0 == 0,
            "the switch does not offer {}: leave it out of --features",
            missing.names().join(", ")
        );
        let largest = usize::from(options.size.largest());
        let mergeable = options.features.contains(&Feature::Mergeable);
        let needed = largest + NetHeader::LEN;
        let rx_buffer = options
            .rx_buffer
            .map_or(if mergeable { 2048 } else { needed.max(2048) }, |bytes| bytes as usize);
        ensure!(
            mergeable || rx_buffer >= needed,
            "without mergeable buffers a frame of {largest} bytes needs --rx-buffer {needed}"
        );
        let config = FastConfig {
            queue_size: options.queue_size,
            max_frame: largest,
            rx_buffer,
            header_apart: options.header_apart,
            indirect: options.features.contains(&Feature::Indirect),
        };
        let size = config.memory_needed();
        let memory =
            if options.identity { MemoryConfig::identity(size) } else { MemoryConfig::new(size) };
        let memory = Memory::new(&if options.huge { memory.huge() } else { memory })?;
        let nic = FastGuest::new(&memory, features, &config)?;
        connection.start(&nic, &Start::default())?;
        Ok(Vm {
            nic,
            connection,
            frames: Frames::new(options, vm, Kind::Data, Part::Learning),
            sent: 0,
            inbox: Inbox::learning(Frames::new(options, 1 - vm, Kind::Data, Part::Learning)),
            rx_bursts: 0,
        })
    }

    /// Offers up to `max` frames; how many the ring had room for.
    #[inline]
    fn send(&mut self, max: usize) -> anyhow::Result<usize> {
        let frames = &mut self.frames;
        let count = self.nic.tx.send(max, |out| frames.fill(&out))?;
        self.sent += count as u64;
        Ok(count)
    }

    /// Takes and checks what arrived; how many frames.
    #[inline]
    fn receive(&mut self) -> anyhow::Result<usize> {
        let inbox = &mut self.inbox;
        let count = self.nic.rx.poll(|frame| inbox.take(&frame))?;
        self.rx_bursts += u64::from(count > 0);
        Ok(count)
    }
}

impl<'a> Pair<'a> {
    fn attach(options: &'a Options) -> anyhow::Result<Pair<'a>> {
        let paths = [&options.a, &options.b];
        let names = ["A", "B"];
        let vms = if options.serve {
            let listeners = [Listener::bind(paths[0])?, Listener::bind(paths[1])?];
            [0, 1].map(|vm| {
                let connection = listeners[vm]
                    .accept(options.wait())
                    .with_context(|| format!("VM {}", names[vm]))?;
                Vm::attach(connection, options, vm).with_context(|| format!("VM {}", names[vm]))
            })
        } else {
            [0, 1].map(|vm| {
                let connection = Connection::connect(paths[vm], options.wait())
                    .with_context(|| format!("VM {}", names[vm]))?;
                Vm::attach(connection, options, vm).with_context(|| format!("VM {}", names[vm]))
            })
        };
        let [a, b] = vms;
        Ok(Pair { options, vms: [a?, b?] })
    }

    fn receive(&mut self) -> anyhow::Result<usize> {
        Ok(self.vms[0].receive()? + self.vms[1].receive()?)
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
        for (vm, name) in self.vms.iter().zip(["A", "B"]) {
            ensure!(!vm.connection.is_closed(), "the switch closed the connection of VM {name}");
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
                let [a, b] = self.vms.each_ref().map(|vm| vm.inbox.received);
                bail!(
                    "nothing comes through after {} s: {a} frames arrived at A, {b} at B. Does the switch forward between the \
                     two, as --help says?",
                    self.options.wait
                );
            }
            self.vms[0].send(1)?;
            self.receive_for(Duration::from_millis(1))?;
            self.vms[1].send(1)?;
            self.receive_for(Duration::from_millis(1))?;
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
        for (vm, kind) in [a, b].into_iter().enumerate() {
            self.vms[vm].frames = Frames::new(self.options, vm, kind, Part::Learning);
        }
    }

    /// One frame each way, `steps` times, `gap` apart.
    fn paced(&mut self, steps: u64, gap: Duration) -> anyhow::Result<()> {
        let mut due = Instant::now();
        for _ in 0..steps {
            for vm in 0..2 {
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
                return Ok(());
            }
        }
    }

    /// Counting begins.
    fn reset(&mut self) {
        let kind = if self.options.new_sessions { Kind::Open } else { Kind::Data };
        for (vm, other) in [(0, 1), (1, 0)] {
            self.vms[vm].frames = Frames::new(self.options, vm, kind, Part::Counted);
            let awaited = Frames::new(self.options, other, kind, Part::Counted);
            self.vms[vm].inbox = Inbox::new(awaited, self.options.verify);
            self.vms[vm].sent = 0;
        }
    }

    /// Sends at the wanted rate, and receives, for so long.
    fn load(&mut self, time: Duration) -> anyhow::Result<()> {
        let burst = usize::from(self.options.burst);
        let sends = [0, 1].map(|vm| self.options.dir.sends(vm));
        let start = Instant::now();
        let mut pace = self.options.rate.map(|rate| Pace::new(rate, burst));
        loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(());
            }
            let rounds = if pace.is_some() { 1 } else { ROUNDS };
            let due = pace.as_mut().map_or(burst, |pace| pace.due(elapsed));
            let mut moved = 0;
            for _ in 0..rounds {
                for (vm, sends) in self.vms.iter_mut().zip(sends) {
                    if sends && due > 0 {
                        moved += vm.send(due)?;
                    }
                }
                moved += self.vms[1].receive()?;
                moved += self.vms[0].receive()?;
            }
            if let Some(pace) = &mut pace {
                pace.sent(due);
            }
            if moved == 0 {
                self.check_connections()?;
            }
        }
    }

    fn measure(&mut self, watch: &Watch, out: &mut dyn Write) -> anyhow::Result<Vec<Second>> {
        let mut seconds = Vec::new();
        for t in 1..=self.options.secs {
            let before = self.totals();
            let span = watch.start();
            self.load(Duration::from_secs(1))?;
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
            second.print(out)?;
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

    /// One frame at a time from A to B.
    fn measure_latency(&mut self) -> anyhow::Result<Latency> {
        let end = Instant::now() + Duration::from_secs(self.options.secs);
        let mut samples: Vec<u32> = Vec::with_capacity(1 << 20);
        let mut timeouts = 0;
        while Instant::now() < end && samples.len() < MAX_SAMPLES {
            let start = Instant::now();
            if self.vms[0].send(1)? == 0 {
                self.check_connections()?;
                continue;
            }
            let before = self.vms[1].inbox.received;
            loop {
                self.vms[1].receive()?;
                let took = start.elapsed();
                if self.vms[1].inbox.received > before {
                    samples.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
                    break;
                }
                if took > LATENCY_LIMIT {
                    timeouts += 1;
                    self.check_connections()?;
                    // A late frame must not be taken for the next one.
                    self.settle()?;
                    break;
                }
            }
        }
        samples.sort_unstable();
        let at = |share: f64| {
            let index = (samples.len() as f64 * share) as usize;
            samples
                .get(index.min(samples.len().saturating_sub(1)))
                .map_or(0.0, |ns| f64::from(*ns) / 1000.0)
        };
        let (p50_us, p90_us, p99_us, p999_us) = (at(0.5), at(0.9), at(0.99), at(0.999));
        Ok(Latency { p50_us, p90_us, p99_us, p999_us, samples: samples.len(), timeouts })
    }

    fn counts(&self) -> [Counts; 2] {
        [(0, 1), (1, 0)].map(|(vm, other)| {
            let (vm, other) = (&self.vms[vm], &self.vms[other]);
            let kicks = vm.nic.tx.kicks() + vm.nic.rx.kicks();
            Counts { sent: vm.sent, kicks, ..vm.inbox.counts(other.sent) }
        })
    }

    fn report(&self, seconds: Vec<Second>, latency: Option<Latency>) -> Report {
        let options = self.options;
        let [a, b] = self.counts();
        Report {
            size: options.size.to_string(),
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
            failures: report::failures(options, &a, &b),
            a,
            b,
        }
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
