//! Counters of an uplink. A control thread reads them while a worker counts on.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::net::sockopt;

/// Declares the counters once: fields, names for operators, the worker's own copies.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal,)+) => {
        /// Counts of an uplink since it was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Counters {
            /// All counters with their names and meanings, in a fixed order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($name, concat!($($doc),+).trim_ascii_start(), self.$field),)+].into_iter()
            }
        }

        /// The side of a half. Only the worker that has the half writes.
        #[derive(Default, Debug)]
        pub(crate) struct Counts {
            $(pub $field: Count,)+
        }

        impl Counts {
            fn add_to(&self, counters: &mut Counters) {
                $(counters.$field += self.$field.get();)+
            }
        }
    };
}

counters! {
    /// Frames received.
    received = "received",
    /// Bytes of frames received.
    received_bytes = "received-bytes",
    /// Frames queued for sending.
    sent = "sent",
    /// Bytes of frames queued for sending.
    sent_bytes = "sent-bytes",
    /// Frames the kernel dropped on their way to us: too long for a frame buffer, mostly.
    rx_dropped = "rx-dropped",
    /// Frames the kernel dropped since the receive ring was full: the worker is too slow.
    rx_ring_full = "rx-ring-full",
    /// Times the kernel had no frame buffer to receive into: the worker is too slow.
    rx_no_buffer = "rx-no-buffer",
    /// Frames or descriptors that made no sense.
    rx_invalid = "rx-invalid",
    /// Receiving failed: the interface is gone or down.
    rx_failed = "rx-failed",
    /// Frames lost since no transmit buffer was free: the interface is too slow.
    tx_full = "tx-full",
    /// Frames lost since they were longer than the MTU, or shorter than an Ethernet header.
    tx_bad_length = "tx-bad-length",
    /// Descriptors the kernel refused to send.
    tx_invalid = "tx-invalid",
    /// Sending failed: the interface is gone or down.
    tx_failed = "tx-failed",
}

/// A number that one thread writes at a time, and others read.
#[derive(Default, Debug)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds. There is one writer, so this needs no locked instruction.
    #[inline]
    pub fn add(&self, value: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads the counters of an uplink from any thread, also after the uplink is closed: then the
/// kernel's own counts are missing.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Of each half.
    counts: Vec<Arc<Counts>>,
    /// AF_XDP sockets. Weak: a meter must not keep a socket bound to its queue.
    sockets: Vec<Weak<OwnedFd>>,
}

impl Meter {
    pub(crate) fn new<'a>(
        counts: impl IntoIterator<Item = &'a Arc<Counts>>,
        sockets: impl IntoIterator<Item = Weak<OwnedFd>>,
    ) -> Meter {
        Meter {
            counts: counts.into_iter().cloned().collect(),
            sockets: sockets.into_iter().collect(),
        }
    }

    /// The counters as of now.
    pub fn read(&self) -> Counters {
        let mut counters = Counters::default();
        self.counts.iter().for_each(|counts| counts.add_to(&mut counters));
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            let Ok(kernel) = sockopt::xdp_statistics(&*socket) else { continue };
            counters.rx_dropped += kernel.rx_dropped;
            counters.rx_ring_full += kernel.rx_ring_full.unwrap_or(0);
            counters.rx_no_buffer += kernel.rx_fill_ring_empty_descs.unwrap_or(0);
            counters.rx_invalid += kernel.rx_invalid_descs;
            counters.tx_invalid += kernel.tx_invalid_descs;
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_reads_what_the_worker_counts_by_name() {
        let halves = [Arc::new(Counts::default()), Arc::default()];
        let meter = Meter::new(&halves, []);
        halves[0].tx_full.add(2);
        halves[1].tx_full.add(3);
        assert_eq!(meter.read(), Counters { tx_full: 5, ..Counters::default() });
        let moved: Vec<_> = meter
            .read()
            .named()
            .filter(|(_, _, value)| *value != 0)
            .map(|(name, _, value)| (name, value))
            .collect();
        assert_eq!(moved, [("tx-full", 5)]);
        assert!(
            meter
                .read()
                .named()
                .all(|(_, meaning, _)| meaning.ends_with('.') && !meaning.starts_with(' '))
        );
    }
}
