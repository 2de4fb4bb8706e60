//! The uplink's interface: up, down, with another MTU, or with another station behind it.

use std::sync::atomic::Ordering;

use crate::endpoint::{
    keeper::{HostSide, LeftSockets, State},
    link::{LinkState, News},
};
use crate::engine::events::{About, Happening};
use crate::overlay::Tunnel;

/// Milliseconds after which the groups of all networks are joined, and those of a former process
/// are let go.
const JOINED: u64 = 10_000;

impl State {
    /// Looks whether the interface has changed.
    pub(super) fn watch_link(&mut self, tunnel: &Tunnel, now: u64) {
        let Some(HostSide { kernel, link, left, .. }) = &mut self.host else { return };
        if now >= JOINED
            && let Some(LeftSockets { former, keep }) = left.take()
        {
            // The kernel waits for all processors before it lets go of such a socket.
            let _ = std::thread::Builder::new().spawn(move || {
                keep();
                drop(former);
            });
        }
        let Some(News { told, carries, returned, mtu }) = link.look(kernel) else { return };
        let uplink = link.name();
        let down = |text: &str| {
            tracing::warn!(uplink, "{text}");
            self.events.happened(About::default(), Happening::UplinkDown(text));
        };
        match told {
            Some(LinkState::Up) => {
                const TEXT: &str = "the uplink's interface is up";
                tracing::info!(uplink, "{TEXT}");
                self.events.happened(About::default(), Happening::UplinkUp(TEXT));
            }
            Some(LinkState::NoCarrier) => {
                down("the uplink's interface has no carrier: nothing leaves this host")
            }
            Some(LinkState::Down) => {
                down("the uplink's interface is down: nothing leaves this host")
            }
            Some(LinkState::Removed) => down(
                "the uplink's interface was removed: nothing leaves this host; without --state-dir, restart butterflyd when it is back",
            ),
            Some(LinkState::Elsewhere) => {
                tracing::warn!(
                    uplink,
                    "the TAP device is in another network namespace, or was deleted"
                );
            }
            Some(LinkState::NotOpen) | None => {}
        }
        tunnel.down.store(!carries, Ordering::Relaxed);
        if let Some(mtu) = mtu
            && tunnel.mtu.swap(mtu, Ordering::Relaxed) != mtu
        {
            tracing::warn!(
                uplink,
                mtu,
                "the uplink's MTU has changed: virtual machines need another host_mtu=, interfaces in network namespaces another mtu"
            );
            self.events.happened(About::default(), Happening::UplinkMtu(mtu));
        }
        if returned {
            self.returned(now);
        }
    }

    /// Repeats all reports, announcements and questions, because stations on the link may have
    /// forgotten us or never heard of us.
    pub(super) fn returned(&mut self, now: u64) {
        self.control.returned(now);
        self.unmet.clear();
    }
}
