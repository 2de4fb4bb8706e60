//! The control side of the packet path: puts vnics into the snapshot and takes them out, and waits for the workers.

use std::{
    collections::HashMap,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use butterfly_packet::mac::Mac;
use butterfly_vhost::port::{Port, PortEvents};

use crate::{
    clock::Clock,
    counters::{Counters, Totals},
    fdb::{Fdb, Learnt},
    headers::number,
    slab::Slab,
    snapshot::{MacTable, Network, PortRef, Rules, Shared as VnicShared, Snapshot, Vnic},
    worker::{Handle, MAX_SLOTS, Shared},
};

/// What a vnic is let do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VnicPolicy {
    /// No filter and no source checks; such a vnic may have any number of addresses.
    pub bypass: bool,
    /// Check the sender of ARP packets against `ips`.
    pub ip_anti_spoof: bool,
    /// The vnic's addresses.
    pub ips: Vec<IpAddr>,
}

impl VnicPolicy {
    fn rules(&self) -> Rules {
        Rules::new(self.bypass, self.ip_anti_spoof, &self.ips)
    }
}

/// Why a vnic could not be added or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum AddError {
    #[error("there is a vnic with id {0} already")]
    Exists(String),
    #[error("no vnic with id {0}")]
    Unknown(String),
    #[error(
        "MAC address {mac} belongs to vnic {owner} of VNI {vni}; two vnics may share an address only if both bypass filtering"
    )]
    MacTaken { mac: Mac, owner: String, vni: u32 },
    #[error("{0} is not the address of a station: a vnic needs a unicast MAC address other than zero")]
    BadMac(Mac),
    #[error("VNI {0} is above 16777215")]
    BadVni(u32),
    #[error("{MAX_SLOTS} vnics are the most one host can have")]
    TooMany,
    #[error("{0}")]
    Device(String),
}

/// What changes under the lock.
struct State {
    by_id: HashMap<Arc<str>, PortRef>,
    incarnation: u32,
    /// Counters of vnics that are gone.
    gone: Totals,
}

/// The shared part and who may change it.
pub(crate) struct Plane {
    pub shared: Arc<Shared>,
    pub workers: Vec<Arc<Handle>>,
    state: Mutex<State>,
}

/// Tells a vnic's worker when its transmit ring starts and stops.
pub(crate) struct Attachment {
    worker: Arc<Handle>,
    place: PortRef,
}

impl PortEvents for Attachment {
    fn tx_started(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.started(self.place, kick);
    }

    fn tx_stopped(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.stopped(self.place, kick);
    }
}

impl Plane {
    pub fn new(workers: usize, ageing: u32) -> Result<Plane, rustix::io::Errno> {
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::default()),
            epoch: AtomicU64::new(0),
            fdb: Fdb::new(ageing),
            clock: Clock::new(),
            stop: AtomicBool::new(false),
        };
        Ok(Plane {
            shared: Arc::new(shared),
            workers: (0..workers.max(1)).map(|index| Handle::new(index).map(Arc::new)).collect::<Result<_, _>>()?,
            state: Mutex::new(State { by_id: HashMap::new(), incarnation: 0, gone: Totals::default() }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a vnic into the snapshot. When this returns, every worker filters it; its rings may start.
    pub fn insert(&self, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) -> Result<(Arc<Vnic>, Attachment), AddError> {
        if mac.is_group() || mac == Mac::ZERO {
            return Err(AddError::BadMac(mac));
        }
        if vni > 0xff_ffff {
            return Err(AddError::BadVni(vni));
        }
        let mut state = self.state();
        if state.by_id.contains_key(id) {
            return Err(AddError::Exists(id.to_owned()));
        }
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        check_mac(&next, None, mac, vni, policy.bypass)?;
        let slot = next.vnics.vacant();
        if slot >= MAX_SLOTS {
            return Err(AddError::TooMany);
        }
        state.incarnation = state.incarnation.wrapping_add(1);
        let place = PortRef { slot, incarnation: state.incarnation };
        let network = next.by_vni.get(&vni).copied().unwrap_or_else(|| next.networks.vacant());
        let vnic = Arc::new(Vnic {
            id: id.into(),
            place,
            mac,
            vni,
            network,
            rules: policy.rules(),
            shared: Arc::new(VnicShared {
                port: Arc::new(Port::default()),
                counters: Counters::new(self.workers.len()),
                learnt: AtomicU32::new(0),
                flood_tokens: AtomicU64::new(0),
                flood_filled: AtomicU64::new(0),
            }),
        });
        next.vnics.set(slot, Some(vnic.clone()));
        rebuild_network(&mut next, vni, network);
        state.by_id.insert(vnic.id.clone(), place);
        self.publish(next);
        if !vnic.rules.bypass {
            // Its address is its own from now on.
            self.forget(|learnt| learnt.vni == vni && learnt.mac == number(mac));
        }
        let worker = self.worker_of(slot);
        Ok((vnic, Attachment { worker, place }))
    }

    fn worker_of(&self, slot: u32) -> Arc<Handle> {
        let index = slot as usize % self.workers.len();
        // There is at least one, and index is below their number.
        #[allow(clippy::indexing_slicing)]
        self.workers[index].clone()
    }

    /// Gives a vnic another policy. When this returns, no worker uses the old one.
    pub fn update(&self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let place = state.by_id.get(id).copied();
        let Some(old) = place.and_then(|place| next.vnic(place).cloned()) else { return Err(AddError::Unknown(id.to_owned())) };
        check_mac(&next, place, old.mac, old.vni, policy.bypass)?;
        let rules = policy.rules();
        if rules == old.rules {
            return Ok(());
        }
        let vnic = Vnic {
            id: old.id.clone(),
            place: old.place,
            mac: old.mac,
            vni: old.vni,
            network: old.network,
            rules,
            shared: old.shared.clone(),
        };
        next.vnics.set(old.place.slot, Some(Arc::new(vnic)));
        rebuild_network(&mut next, old.vni, old.network);
        self.publish(next);
        if !policy.bypass && old.rules.bypass {
            self.forget(|learnt| learnt.place == old.place || (learnt.vni == old.vni && learnt.mac == number(old.mac)));
        }
        Ok(())
    }

    /// Takes a vnic out of the snapshot. Its rings must have stopped. When this returns, no worker knows it.
    pub fn remove(&self, id: &str) -> bool {
        let mut state = self.state();
        let Some(place) = state.by_id.remove(id) else { return false };
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(vnic) = next.vnic(place).cloned() else { return false };
        next.vnics.set(place.slot, None);
        rebuild_network(&mut next, vnic.vni, vnic.network);
        self.publish(next);
        self.forget(|learnt| learnt.place == place);
        state.gone.merge(&vnic.shared.counters.totals());
        true
    }

    /// The vnic with an id.
    pub fn vnic(&self, id: &str) -> Option<Arc<Vnic>> {
        let place = self.state().by_id.get(id).copied()?;
        self.shared.snapshot.load().vnic(place).cloned()
    }

    /// Counters of the whole host, vnics that are gone included.
    pub fn totals(&self) -> Totals {
        let state = self.state();
        let mut totals = state.gone.clone();
        for (_, vnic) in self.shared.snapshot.load().vnics.iter() {
            totals.merge(&vnic.shared.counters.totals());
        }
        totals
    }

    /// Exchanges the snapshot and waits until every worker uses the new one: at most one batch, or the time to wake up.
    fn publish(&self, next: Snapshot) {
        let old = self.shared.snapshot.swap(Arc::new(next));
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        // The other half is where a worker says that it runs.
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            worker.wake();
        }
        for worker in &self.workers {
            let mut spins = 0u32;
            while worker.running.load(Ordering::Acquire) && worker.seen.load(Ordering::Acquire) < epoch {
                // Nothing to wait on: a worker that told us would have to make a system call.
                spins += 1;
                if spins < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(20)) }
            }
        }
        drop(old);
    }

    /// Removes learnt addresses that are too old.
    pub fn expire(&self) {
        self.forget(|_| false);
    }

    fn forget(&self, gone: impl FnMut(&Learnt) -> bool) {
        let snapshot = self.shared.snapshot.load();
        self.shared.fdb.remove(self.shared.clock.now(), gone, |learnt| {
            if let Some(vnic) = snapshot.vnic(learnt.place) {
                vnic.shared.learnt.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(network) = snapshot.by_vni.get(&learnt.vni).and_then(|at| snapshot.networks.get(*at)) {
                network.learnt.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

/// A network may have an address twice only if nobody who has it is filtered.
fn check_mac(snapshot: &Snapshot, own: Option<PortRef>, mac: Mac, vni: u32, bypass: bool) -> Result<(), AddError> {
    let members = snapshot.by_vni.get(&vni).and_then(|at| snapshot.networks.get(*at));
    for slot in members.iter().flat_map(|network| &network.members) {
        if let Some(other) = snapshot.vnics.get(*slot)
            && other.mac == mac
            && own != Some(other.place)
            && !(bypass && other.rules.bypass)
        {
            return Err(AddError::MacTaken { mac, owner: other.id.to_string(), vni });
        }
    }
    Ok(())
}

fn rebuild_network(snapshot: &mut Snapshot, vni: u32, at: u32) {
    let vnics: &Slab<Vnic> = &snapshot.vnics;
    let members: Vec<&Arc<Vnic>> = vnics.iter().map(|(_, vnic)| vnic).filter(|vnic| vnic.vni == vni).collect();
    let learnt = snapshot.networks.get(at).map(|network| network.learnt.clone()).unwrap_or_default();
    let network = (!members.is_empty()).then(|| {
        Arc::new(Network {
            members: members.iter().map(|vnic| vnic.place.slot).collect(),
            filtered: members.iter().any(|vnic| !vnic.rules.bypass),
            macs: MacTable::new(members.iter().map(|vnic| (vnic.mac, vnic.place.slot))),
            learnt,
        })
    });
    let mut by_vni = HashMap::clone(&snapshot.by_vni);
    if network.is_some() {
        by_vni.insert(vni, at)
    } else {
        by_vni.remove(&vni)
    };
    snapshot.by_vni = Arc::new(by_vni);
    snapshot.networks.set(at, network);
}
