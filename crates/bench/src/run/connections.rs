//! TCP connections, opened and closed: SYN, SYN and ACK, ACK, FIN, FIN, ACK. Neither end keeps
//! anything about one: what a segment says, with its ports, leads to the next one.

use std::{
    collections::VecDeque,
    io::Write,
    time::{Duration, Instant},
};

use butterfly_guest_driver::fast::BATCH;

use super::{Pace, Pair, Vm};
use crate::{
    flows::Ports,
    frames::{Kind, Segments},
    live::Live,
    report::Connections,
};

/// Time without a connection that ends, after which the end of those that are open is not awaited.
const PATIENCE: Duration = Duration::from_millis(50);
/// Frames read at a look at one VM.
const HEAD: usize = 64;

/// Both ends of all connections.
struct Ends {
    segments: [Segments; 2],
    /// Segments that wait for room in the ring of each VM.
    waiting: [VecDeque<(Kind, Ports)>; 2],
    next: u64,
    counts: Connections,
    /// Time at which the last one ended, and those that are not waited for any more.
    last: Instant,
    given_up: u64,
}

impl Pair<'_> {
    /// Opens and closes connections at the wanted rate, for the measured seconds.
    pub(super) fn connect(&mut self, out: &mut dyn Write) -> anyhow::Result<Connections> {
        let mut ends = Ends {
            segments: [0, 1].map(|vm| Segments::new(self.options, vm)),
            waiting: Default::default(),
            // The first flow has been used while learning.
            next: 1,
            counts: Connections::default(),
            last: Instant::now(),
            given_up: 0,
        };
        self.connect_for(&mut ends, Duration::from_secs(self.options.warm))?;
        let mut live = Live::begin(self.options, "thousand connections a second");
        for second in 1..=self.options.secs {
            let before = ends.counts.closed;
            let begin = Instant::now();
            self.connect_for(&mut ends, Duration::from_secs(1))?;
            let closed = (ends.counts.closed - before) as f64 / begin.elapsed().as_secs_f64();
            ends.counts.per_second.push(closed as u64);
            match &mut live {
                Some(live) => live.show(closed / 1000.0),
                None => writeln!(out, "  t={second} {:.3} thousand connections", closed / 1000.0)?,
            }
            out.flush()?;
        }
        // No new ones, until all have ended or nothing comes any more.
        ends.last = Instant::now();
        while ends.counts.closed < ends.counts.opened && ends.last.elapsed() < PATIENCE {
            self.exchange(&mut ends)?;
        }
        // The last ACKs.
        let mut quiet = Instant::now();
        while quiet.elapsed() < PATIENCE {
            if self.exchange(&mut ends)? > 0 {
                quiet = Instant::now();
            }
        }
        ends.counts.lost = ends.counts.opened - ends.counts.closed;
        Ok(ends.counts)
    }

    fn connect_for(&mut self, ends: &mut Ends, time: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        let burst = usize::from(self.options.burst).min(BATCH);
        let mut pace = self.options.rate.map(|rate| Pace::new(rate, burst));
        loop {
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(());
            }
            if ends.open() > 0 && ends.last.elapsed() > PATIENCE {
                self.check_connections()?;
                // They leave their places to others, and count as lost if they do not come.
                ends.given_up += ends.open();
                ends.last = Instant::now();
            }
            let room = u64::from(self.options.window).saturating_sub(ends.open()) as usize;
            let due = pace.as_mut().map_or(burst, |pace| pace.due(elapsed));
            let wanted = due.min(room);
            if wanted > 0 {
                let Ends { segments, next, .. } = ends;
                let mut number = *next;
                let opened = self.vms[0].nic.tx.send(wanted, |frame| {
                    let ports = Ports::of_session(number, None);
                    number += 1;
                    segments[0].fill(&frame, Kind::Open, ports)
                })?;
                self.vms[0].flush()?;
                *next += opened as u64;
                ends.counts.opened += opened as u64;
            }
            if let Some(pace) = &mut pace {
                // Those for which there was no room are not made up for.
                pace.sent(due);
            }
            self.exchange(ends)?;
        }
    }

    /// Takes what arrives at both ends, and sends what follows. Returns how many frames came.
    fn exchange(&mut self, ends: &mut Ends) -> anyhow::Result<usize> {
        let mut came = 0;
        for vm in [1, 0] {
            came += ends.receive(vm, &mut self.vms[vm])?;
            ends.answer(vm, &mut self.vms[vm])?;
        }
        Ok(came)
    }
}

impl Ends {
    /// Returns the connections that were opened and have not ended.
    fn open(&self) -> u64 {
        self.counts.opened.saturating_sub(self.counts.closed + self.given_up)
    }

    fn receive(&mut self, at: usize, vm: &mut Vm) -> anyhow::Result<usize> {
        let Ends { segments, waiting, counts, last, .. } = self;
        vm.fetch()?;
        let came = vm.nic.rx.poll(|frame| {
            let mut head = [0; HEAD];
            let len = frame.read(&mut head);
            let Some((kind, ports)) = segments[1 - at].read(&head[..len]) else { return };
            let queue = &mut waiting[at];
            match (at, kind) {
                (1, Kind::Open) => queue.push_back((Kind::Accept, ports)),
                (1, Kind::Finish) => queue.push_back((Kind::Answer, ports)),
                (0, Kind::Accept) => {
                    counts.established += 1;
                    queue.push_back((Kind::Data, ports));
                    queue.push_back((Kind::Finish, ports));
                }
                (0, Kind::Answer) => {
                    counts.closed += 1;
                    *last = Instant::now();
                    queue.push_back((Kind::Last, ports));
                }
                _ => {}
            }
        })?;
        Ok(came)
    }

    fn answer(&mut self, at: usize, vm: &mut Vm) -> anyhow::Result<()> {
        let (segments, queue) = (&self.segments[at], &mut self.waiting[at]);
        while !queue.is_empty() {
            let mut waiting = queue.iter();
            let sent = vm.nic.tx.send(queue.len().min(BATCH), |frame| {
                let (kind, ports) =
                    waiting.next().copied().unwrap_or((Kind::Last, Ports::of_flow(0, 1)));
                segments.fill(&frame, kind, ports)
            })?;
            queue.drain(..sent);
            vm.flush()?;
            if sent == 0 {
                break;
            }
        }
        Ok(())
    }
}
