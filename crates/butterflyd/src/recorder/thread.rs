//! The thread that takes packets from the workers and gives each to its consumers. It alone writes
//! files.

use super::{file::TraceFile, filter::Filter, live::Live};
use butterfly_datapath::{TapPacket, TapRead, TapSink, Taps};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError},
    },
    time::{Duration, Instant},
};

/// Pause after a look that found nothing. The workers' rings hold more than they can fill in that
/// time.
const PAUSE: Duration = Duration::from_millis(1);
/// Time for which packets wait, if there are several workers, for earlier ones of another worker.
/// A worker shows a batch's packets well within it, unless it loses its processor meanwhile.
const LATE: Duration = Duration::from_millis(1);
/// Time between two looks for clients that are gone.
const LOOK: Duration = Duration::from_secs(1);
/// A pass takes a quarter of a ring at most.
const LAST: u32 = 5;

/// Consumer of the packets of a sink.
pub enum Consumer {
    Live(Arc<Live>),
    File(Arc<Mutex<TraceFile>>),
}

/// Order to the thread.
pub enum Order {
    /// Gives packets of the sink with this number to a consumer from now on.
    Begin(u32, Consumer, Option<Filter>),
    /// No worker copies for this sink any more: when all is through, say so.
    End(u32, SyncSender<()>),
}

/// The sinks that workers copy for.
pub type Chosen = Mutex<Vec<Arc<TapSink>>>;

/// Works until every sender of orders is gone.
pub fn run(taps: &Taps, orders: &Receiver<Order>, chosen: &Chosen) {
    let mut desk = Desk {
        taps,
        orders,
        read: TapRead::default(),
        consumers: BTreeMap::new(),
        ends: Vec::new(),
    };
    let mut looked = Instant::now();
    loop {
        let more = desk.pass(LATE);
        let busy = more || !desk.ends.is_empty();
        let order = match (desk.consumers.is_empty(), busy) {
            // One last look is behind us: the workers' rings are gone.
            (true, false) => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (false, false) => orders.recv_timeout(PAUSE),
            (_, true) => orders.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        };
        match order {
            Ok(order) => desk.obey(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                desk.last_passes();
                return;
            }
        }
        desk.end();
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            desk.forget_abandoned(chosen);
        }
    }
}

struct Desk<'a> {
    taps: &'a Taps,
    orders: &'a Receiver<Order>,
    read: TapRead,
    consumers: BTreeMap<u32, (Consumer, Option<Filter>)>,
    /// Sinks that are to end, and the request that waits for each.
    ends: Vec<(u32, SyncSender<()>)>,
}

impl Desk<'_> {
    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin(number, consumer, filter) => {
                self.consumers.insert(number, (consumer, filter));
            }
            Order::End(number, done) => self.ends.push((number, done)),
        }
    }

    /// Ends what is to end, when what was copied for it is through.
    fn end(&mut self) {
        // Those that come meanwhile are for the next time: what is theirs may be under way still.
        let ends = std::mem::take(&mut self.ends);
        if !ends.is_empty() {
            self.last_passes();
        }
        for (number, done) in ends {
            self.consumers.remove(&number);
            let _ = done.try_send(());
        }
    }

    /// Takes what is under way: no more than the rings hold, as others may fill them for ever.
    fn last_passes(&mut self) {
        for _ in 0..LAST {
            if !self.pass(Duration::ZERO) {
                break;
            }
        }
    }

    /// Takes some packets and gives them out, but for those of the last `late`. Returns whether
    /// there may be more.
    fn pass(&mut self, late: Duration) -> bool {
        let more = self.taps.take(&mut self.read, late);
        // Orders first: a consumer begins before its packets are copied, and loses none of them.
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order);
        }
        let consumers = &mut self.consumers;
        self.taps.visit(&mut self.read, |packet| give(consumers, packet));
        if !more {
            for (consumer, _) in self.consumers.values() {
                if let Consumer::File(file) = consumer {
                    file.lock().unwrap_or_else(PoisonError::into_inner).settle();
                }
            }
        }
        more
    }

    /// Ends what no client asks for any more.
    fn forget_abandoned(&mut self, chosen: &Chosen) {
        let gone =
            |consumer: &Consumer| matches!(consumer, Consumer::Live(live) if live.is_abandoned());
        let numbers: Vec<u32> = self
            .consumers
            .iter()
            .filter(|(_, (consumer, _))| gone(consumer))
            .map(|(number, _)| *number)
            .collect();
        if !numbers.is_empty() {
            let mut chosen = chosen.lock().unwrap_or_else(PoisonError::into_inner);
            chosen.retain(|sink| !numbers.contains(&sink.number));
            self.taps.select(&chosen);
            self.consumers.retain(|number, _| !numbers.contains(number));
        }
    }
}

fn give(consumers: &mut BTreeMap<u32, (Consumer, Option<Filter>)>, packet: &TapPacket<'_>) {
    for (number, role, refused) in &packet.sinks {
        let Some((consumer, filter)) = consumers.get_mut(number) else { continue };
        let passes = filter.as_mut().is_none_or(|filter| filter.passes(packet.data, packet.len));
        match consumer {
            Consumer::Live(live) => live.add(packet, *role, passes),
            Consumer::File(file) if passes => {
                file.lock().unwrap_or_else(PoisonError::into_inner).add(packet, *role, *refused);
            }
            Consumer::File(_) => {}
        }
    }
}
