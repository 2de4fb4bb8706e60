//! Frames and counters: what a guest sends, what arrives, what moved.

use std::collections::BTreeMap;

use butterfly_vhost::net::NetHeader;

use crate::engine::counters::{Counter, Totals};
use crate::harness::{Host, Received, error::Error};
use crate::stages::reasons::reasons;

impl Host {
    /// Puts a frame into a guest's ring and lets the switch work.
    pub fn send(&mut self, id: &str, frame: &[u8], header: NetHeader) -> Result<(), Error> {
        self.guest(id).ok_or("no guest")?.send(frame, header)?;
        self.settle();
        Ok(())
    }

    /// Returns the frames that arrived at each guest since the last call, in order.
    pub fn received(&mut self) -> Result<Received, Error> {
        let mut all = BTreeMap::new();
        for (id, attached) in &mut self.vnics {
            let Some(guest) = &mut attached.guest else { continue };
            let mut frames = Vec::new();
            while let Some(frame) = guest.recv()? {
                frames.push(frame);
            }
            if !frames.is_empty() {
                all.insert(id.clone(), frames);
            }
        }
        Ok(all)
    }

    /// Returns every counter that changed since the last call, by name, with its increase.
    pub fn moved(&mut self) -> BTreeMap<String, u64> {
        let mut now = BTreeMap::new();
        for (id, attached) in &self.vnics {
            named(id, &attached.vnic.shared.counters.totals(), &mut now);
        }
        for (_, trunk) in
            self.plane.shared.snapshot.load().vnics.iter().filter(|(_, vnic)| vnic.is_trunk())
        {
            named(&format!("vni-{}", trunk.vni), &trunk.shared.counters.totals(), &mut now);
        }
        if let Some(tunnel) = &self.plane.shared.tunnel {
            named("uplink", &tunnel.totals(), &mut now);
        }
        let moved = now
            .iter()
            .filter_map(|(name, n)| {
                let increase = n - self.last.get(name).copied().unwrap_or(0);
                (increase > 0).then(|| (name.clone(), increase))
            })
            .collect();
        self.last = now;
        moved
    }
}

fn named(id: &str, totals: &Totals, into: &mut BTreeMap<String, u64>) {
    let plain = [
        ("in.packets", Counter::InPackets),
        ("in.bytes", Counter::InBytes),
        ("out.packets", Counter::OutPackets),
        ("out.bytes", Counter::OutBytes),
        ("flooded", Counter::Flooded),
        ("learn-refused", Counter::LearnRefused),
        ("announced", Counter::Announced),
        ("passed-on", Counter::PassedOn),
    ];
    for (name, counter) in plain {
        into.insert(format!("{id}.{name}"), totals.get(counter));
    }
    for info in reasons() {
        into.insert(format!("{id}.drop.{}", info.name), totals.drops(info.reason));
    }
}
