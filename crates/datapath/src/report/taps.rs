//! The reading side of the tap: sets the selection, takes copies from the workers, and adds names
//! to them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use butterfly_mem::cpu;
use butterfly_model::{GroupName, Rule};

use crate::engine::tap::{
    TapPoint, TapRole, TapSink,
    record::{FrameFate, TapRecord},
    ring::Ring,
    selection::Selection,
};
use crate::engine::writer::PerWorker;
use crate::engine::{
    place::{PeerRef, PortRef},
    reason::DropReason,
};
use crate::overlay::TOO_BIG;
use crate::plane::Plane;
use crate::world::snapshot::Snapshot;

/// Words of a worker's ring: 8 MiB, allocated only while there are sinks.
const RING: usize = Ring::OWN;
/// Words that are taken at once: a quarter of the ring. The rest is for records that come
/// meanwhile.
const TAKEN: usize = RING / 4;
/// Longest time for which names of rules are kept.
const RULES_FOR: Duration = Duration::from_secs(1);

/// Sender or receiver of a frame, or the end that a drop is charged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapEnd {
    /// A vnic.
    Vnic(Arc<str>),
    /// Another host, by its tunnel endpoint if that is known.
    Host(Option<IpAddr>),
    /// A network, for drops that are no vnic's fault.
    Network(u32),
    /// This host's tunnel endpoint.
    Endpoint,
    /// A vnic that is gone.
    Gone,
}

/// Fate of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapVerdict {
    /// Delivered to a vnic.
    Delivered(TapEnd),
    /// Sent to another host.
    Tunnelled(TapEnd),
    /// For a router of this host itself.
    Answered,
    /// Sent to several receivers.
    Flooded {
        /// Vnics that got it.
        vnics: u32,
        /// Copies to other hosts.
        hosts: u32,
        /// Copies that were dropped.
        refused: u32,
        /// Reason for the first of those drops.
        reason: Option<DropReason>,
    },
    /// Dropped.
    Dropped {
        /// The reason.
        reason: DropReason,
        /// The end that is charged.
        charged: TapEnd,
    },
    /// Seen on the uplink; the inner frame is seen separately.
    Seen,
}

/// A rule that admitted a session.
#[derive(Clone, Debug)]
pub struct TapRule {
    /// The rule's group.
    pub group: GroupName,
    /// The rule.
    pub rule: Rule,
}

/// A frame and its fate.
#[derive(Clone, Debug)]
pub struct TapPacket<'a> {
    /// Time at which its batch was delivered.
    pub time: SystemTime,
    /// Point at which it was seen.
    pub point: TapPoint,
    /// Its network; `None` on the uplink.
    pub vni: Option<u32>,
    /// Sender.
    pub from: TapEnd,
    /// Fate.
    pub verdict: TapVerdict,
    /// For a frame of a session: true if the frame is for the session's opener.
    pub session: Option<bool>,
    /// Rules that admitted the session: at the opener's egress, and at the other end's ingress.
    pub rules: [Option<Arc<TapRule>>; 2],
    /// Cycles that the stages and the delivery of its batch took, per frame.
    pub cycles: Option<u32>,
    /// Its length.
    pub len: u32,
    /// Its first bytes.
    pub data: &'a [u8],
    /// Sinks that want it: number of the sink, role of its vnic, and reason for which that vnic did
    /// not get it.
    pub sinks: Vec<(u32, TapRole, Option<DropReason>)>,
}

/// A record that was taken: its time, no earlier than that of its worker's record before; its
/// place among the words; its length.
#[derive(Clone, Copy)]
struct TakenRecord {
    time: u64,
    at: usize,
    len: usize,
}

/// Records that were taken from the workers.
#[derive(Default)]
pub struct TapRead {
    words: Vec<u64>,
    /// By time.
    records: Vec<TakenRecord>,
    /// Number of records, from the first, that are to be visited. The others wait.
    ready: usize,
    /// Time of the last record, by worker.
    last: Vec<u64>,
    rules: HashMap<u32, Arc<TapRule>>,
    rules_of: Option<Instant>,
    bytes: Vec<u8>,
}

impl TapRead {
    /// Drops what was visited, and keeps what waits.
    fn drop_ready(&mut self) {
        let mut words = Vec::new();
        self.records.drain(..self.ready.min(self.records.len()));
        for record in &mut self.records {
            let at = words.len();
            words.extend(self.words.iter().skip(record.at).take(record.len));
            record.at = at;
        }
        self.ready = 0;
        if words.is_empty() {
            self.words.clear(); // keeps its room
        } else {
            self.words = words;
        }
    }

    /// Notes the record of a worker at the end of the words.
    fn note(&mut self, worker: usize, len: usize) {
        let at = self.words.len() - len;
        if self.last.len() <= worker {
            self.last.resize(worker + 1, 0);
        }
        let Some(last) = self.last.get_mut(worker) else { return };
        *last = self.words.get(at..).and_then(TapRecord::time).unwrap_or(0).max(*last);
        self.records.push(TakenRecord { time: *last, at, len });
    }

    /// Returns the time of a worker's last record.
    fn last_of(&self, worker: usize) -> u64 {
        self.last.get(worker).copied().unwrap_or(0)
    }
}

/// The sinks, and the copies for them.
#[derive(Clone)]
pub struct Taps(Arc<Plane>);

impl Taps {
    pub(crate) fn new(plane: Arc<Plane>) -> Taps {
        Taps(plane)
    }

    /// Sets the sinks. When this returns, every worker copies for them and for no others. Vnics are
    /// found by their ids now, so the caller repeats this when a vnic was added or removed.
    pub fn select(&self, sinks: &[Arc<TapSink>]) {
        if sinks.is_empty() {
            return self.0.set_selection(|_| None);
        }
        let mut rings = self.0.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = self.0.board.handles().len();
        let made = || Arc::new(PerWorker::new(workers, Ring::own));
        let rings = rings.get_or_insert_with(made).clone();
        rings.grow(workers, Ring::own);
        let rings = Some(rings);
        self.0.set_selection(|slot| Some(Arc::new(Selection::new(rings, sinks, slot))));
    }

    /// Takes some of the copies, in place of those in `to` that were ready. Returns whether there
    /// may be more. With several workers, those of the last `late` wait for the next time: another
    /// worker may still write one that is earlier.
    pub fn take(&self, to: &mut TapRead, late: Duration) -> bool {
        let late = u64::try_from(late.as_nanos() * u128::from(cpu::tsc_hz()) / 1_000_000_000);
        let mut settled = cpu::tsc().saturating_sub(late.unwrap_or(0));
        to.drop_ready();
        let mut rings = self.0.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let off = !self
            .0
            .shared
            .snapshot
            .load()
            .selection
            .as_ref()
            .is_some_and(|selection| selection.has_sinks());
        let mut more = false;
        let mut workers = 0;
        for ring in rings.iter().flat_map(|rings| rings.iter()) {
            let most = to.words.len() + TAKEN;
            while let Some(len) = ring.take(&mut to.words) {
                to.note(workers, len);
                if to.words.len() >= most {
                    // What is left in it is later than that, and may be early for others.
                    (more, settled) = (true, settled.min(to.last_of(workers)));
                    break;
                }
            }
            workers += 1;
        }
        to.records.sort_by_key(|record| record.time);
        // What waits is bounded.
        let all = workers < 2 || off || late.is_ok_and(|late| late == 0) || to.words.len() > RING;
        to.ready = match all {
            true => to.records.len(),
            false => to.records.partition_point(|record| record.time <= settled),
        };
        if off && !more {
            // No worker writes any more, and all was read.
            *rings = None;
        }
        more
    }

    /// Visits the copies that are ready, by their time, and in the order in which each worker saw
    /// them.
    pub fn visit(&self, read: &mut TapRead, mut visit: impl FnMut(&TapPacket<'_>)) {
        let (now, tsc, hz) = (SystemTime::now(), cpu::tsc(), cpu::tsc_hz().max(1));
        let snapshot = self.0.shared.snapshot.load_full();
        for TakenRecord { at, len, .. } in read.records.iter().take(read.ready) {
            let Some(record) = read.words.get(*at..*at + *len) else { return };
            let Some((record, sinks, data)) = TapRecord::get(record) else { continue };
            if record.session && read.rules_of.is_none_or(|then| then.elapsed() > RULES_FOR) {
                let rules = self.0.rules_by_cell().into_iter();
                read.rules = rules
                    .map(|(cell, (group, rule))| (cell, Arc::new(TapRule { group, rule })))
                    .collect();
                read.rules_of = Some(Instant::now());
            }
            read.bytes.clear();
            read.bytes.extend(data.iter().flat_map(|word| word.to_ne_bytes()));
            read.bytes.truncate(record.data as usize);
            let age = u128::from(tsc.saturating_sub(record.time)) * 1_000_000_000 / u128::from(hz);
            let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
            let packet = TapPacket {
                time: now.checked_sub(age).unwrap_or(now),
                session: record.session.then_some(record.reply),
                rules: record
                    .cells
                    .map(|cell| read.rules.get(&cell).filter(|_| record.session).cloned()),
                cycles: (record.point == TapPoint::Network).then_some(record.cycles),
                len: record.len,
                data: &read.bytes,
                sinks: sinks.map(|entry| (entry.sink, entry.role, entry.reason)).collect(),
                ..self.name(&record, &snapshot)
            };
            visit(&packet);
        }
    }

    /// Returns a record with names in place of numbers.
    fn name(&self, record: &TapRecord, snapshot: &Snapshot) -> TapPacket<'static> {
        let host = |peer: u32| {
            let tunnel = self.0.shared.tunnel.as_ref();
            TapEnd::Host(
                tunnel
                    .and_then(|tunnel| tunnel.peers.get(PeerRef(peer)))
                    .map(|peer| crate::world::rules::address(peer.address())),
            )
        };
        let end = |place: PortRef, peer: u32| match snapshot.vnic(place) {
            Some(vnic) if vnic.is_trunk() => host(peer),
            Some(vnic) => TapEnd::Vnic(vnic.id.clone()),
            None => TapEnd::Gone,
        };
        // A drop behind a trunk is charged to its network.
        let charged = |place: PortRef| match snapshot.vnic(place) {
            _ if record.point == TapPoint::UplinkIn => TapEnd::Endpoint,
            Some(vnic) if vnic.is_trunk() => TapEnd::Network(vnic.vni),
            _ => end(place, 0),
        };
        let from = match record.point {
            TapPoint::Network => end(record.from, record.peer),
            TapPoint::Answer | TapPoint::UplinkOut => TapEnd::Endpoint,
            TapPoint::UplinkIn => TapEnd::Host(None),
        };
        let verdict = match (record.fate, record.reason) {
            (FrameFate::Flood, reason) => TapVerdict::Flooded {
                vnics: record.delivered,
                hosts: record.to.slot,
                refused: record.refused,
                reason,
            },
            (FrameFate::Deliver, None) => TapVerdict::Delivered(end(record.to, 0)),
            (FrameFate::Tunnel, None) => TapVerdict::Tunnelled(host(record.to_peer)),
            (FrameFate::Tunnel, Some(reason)) if reason == TOO_BIG => {
                TapVerdict::Dropped { reason, charged: charged(record.from) }
            }
            (FrameFate::Tunnel, Some(reason)) => {
                TapVerdict::Dropped { reason, charged: TapEnd::Network(record.vni) }
            }
            (FrameFate::Consume, None) => TapVerdict::Answered,
            (_, Some(reason)) => TapVerdict::Dropped { reason, charged: charged(record.to) },
            (FrameFate::Drop | FrameFate::Open, None) => TapVerdict::Seen,
        };
        let on_uplink = matches!(record.point, TapPoint::UplinkIn | TapPoint::UplinkOut);
        TapPacket {
            time: SystemTime::UNIX_EPOCH,
            point: record.point,
            vni: (!on_uplink).then_some(record.vni),
            from,
            verdict,
            session: None,
            rules: [None, None],
            cycles: None,
            len: 0,
            data: &[],
            sinks: Vec::new(),
        }
    }
}
