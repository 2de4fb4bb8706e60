use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use butterfly_packet::{build, mac::Mac};
use butterfly_uplink::{Counters, Info, Uplink};
use butterfly_vhost::net::NetHeader;

use super::*;
use crate::{VnicPolicy, harness::Host, tunnel::TunnelConfig};

/// An uplink that has nothing, and while the worker looks, somebody takes everything back.
struct TakesBack {
    event: OwnedFd,
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl Uplink for TakesBack {
    fn info(&self) -> &Info {
        unreachable!()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn receive(&mut self, _: usize) -> usize {
        if let Some(shared) = self.shared.get() {
            shared.snapshot.store(Arc::default());
            shared.epoch.fetch_add(1, Ordering::SeqCst);
        }
        0
    }

    fn frame(&self, _: usize) -> &[u8] {
        &[]
    }

    fn release(&mut self) {}

    fn room(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn send(&mut self) {}

    fn flush(&mut self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What was taken back while a worker was busy holds one batch later, not when it has looked at all rings.
#[test]
fn a_new_snapshot_does_not_wait_for_a_round_of_attackers() {
    const VNICS: u8 = 20;
    let shared = Arc::new(OnceLock::new());
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let wire = TakesBack { event, shared: shared.clone() };
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let mut host = Host::on_wire(&config, Box::new(wire)).unwrap();
    let mac = |n: u8| Mac([2, 0, 0, 0, 0, n]);
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for n in 0..=VNICS {
        host.vnic(&format!("v{n}"), mac(n), 42, &policy).unwrap();
    }
    host.settle();
    for n in 1..=VNICS {
        let frame = build::ethernet(mac(n), mac(0)).payload(0x88b5, &[0; 46]);
        host.guest(&format!("v{n}")).unwrap().enqueue(&frame, NetHeader::default()).unwrap();
        host.guest(&format!("v{n}")).unwrap().flush();
    }
    // The uplink is the first ring that is looked at.
    let (plane, worker) = host.inside();
    worker.polled.clear();
    worker.is_polled.fill(false);
    worker.add(UPLINK);
    (0..u32::from(VNICS) + 1).for_each(|slot| {
        let place = worker.snapshot.vnics.get(slot).map(|vnic| vnic.place);
        place.into_iter().for_each(|place| worker.add(place));
    });
    assert!(shared.set(plane.shared.clone()).is_ok());
    worker.turn();
    assert_eq!(worker.handle.seen.load(Ordering::SeqCst), plane.shared.epoch.load(Ordering::SeqCst));
    let delivered = host.received().unwrap().values().map(Vec::len).sum::<usize>();
    assert!(delivered <= 1, "{delivered} frames were judged by what was taken back");
}
