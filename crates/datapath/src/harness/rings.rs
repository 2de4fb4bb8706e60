//! Rings of simulated guests, set up as a front end does it, and vnics with them.

use std::sync::Arc;

use butterfly_guest_driver::guest::{Guest, RX, TX};
use butterfly_vhost::{
    dirty,
    memory::{GuestMemory, RegionSpec},
    net::Features,
    port::{Port, PortEvents, Queue},
    ring::{CallFd, NoteTable, RingSetup},
};

use crate::harness::error::Error;
use crate::plane::attachment::Attachment;
use crate::world::snapshot::Vnic;

pub(super) struct Attached {
    pub(super) vnic: Arc<Vnic>,
    pub(super) attachment: Attachment,
    pub(super) guest: Option<Guest>,
}

/// Returns a guest's setups of its rings: receive, transmit.
pub(super) fn setups(
    guest: &Guest,
    features: Features,
    log: Option<&Arc<dirty::DirtyLog>>,
) -> Result<[RingSetup; 2], Error> {
    let specs = guest
        .memory()
        .regions()
        .iter()
        .map(|region| {
            Ok(RegionSpec {
                guest_addr: region.guest_addr,
                size: region.size,
                user_addr: region.user_addr,
                mmap_offset: region.file_offset,
                file: region.file.try_clone()?.into(),
            })
        })
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    let memory = Arc::new(GuestMemory::map(specs)?);
    let notes = if features.has(Features::RING_PACKED) {
        Some(NoteTable::create()?.1.take().ok_or("no block of notes")?)
    } else {
        None
    };
    let setup = |index| -> Result<RingSetup, Error> {
        let ring = guest.queue(index);
        let addr = ring.ring_addr();
        Ok(RingSetup {
            memory: memory.clone(),
            log: log.cloned(),
            features,
            size: ring.size(),
            desc: addr.desc,
            avail: addr.avail,
            used: addr.used,
            used_log: log.map(|_| addr.used),
            note: notes.as_ref().map(|notes| notes.note(index, 1)).transpose()?,
            call: Some(Arc::new(CallFd::new(ring.call_fd().try_clone()?, Arc::default())?)),
        })
    };
    Ok([setup(RX)?, setup(TX)?])
}

pub(super) fn attach_rings(
    port: &Port,
    attachment: &Attachment,
    guest: &Guest,
    features: Features,
) -> Result<(), Error> {
    attach_pair(port, attachment, (guest, 0), features)
}

/// Attaches a guest's queues as a pair of this number.
pub(super) fn attach_pair(
    port: &Port,
    attachment: &Attachment,
    (guest, pair): (&Guest, u32),
    features: Features,
) -> Result<(), Error> {
    for (index, setup) in (2 * pair..).zip(setups(guest, features, None)?) {
        let queue = Queue::from_index(index).ok_or("no such pair")?;
        let first = guest.queue(index as usize % 2).first();
        port.start(queue, &setup, first, true)?;
    }
    attachment.tx_started(pair as usize, Some(guest.queue(TX).kick_fd()));
    Ok(())
}
