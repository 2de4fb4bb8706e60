//! Ports that lead out of the host, behind one small trait: AF_XDP on a network interface
//! ([`xdp`]), or a TAP device ([`tap`]).
//!
//! Packet workers have the halves of an [`Uplink`] and move bursts of frames through them. All else
//! is for control threads:
//!
//! - [`kernel`] asks the host what it knows of interfaces, routes and neighbours.
//! - [`packet`] sees copies of the frames that keep an address reachable.
//! - [`groups`] keeps a network card listening to multicast groups.
//! - A [`Meter`] reads counters while the worker runs.
//!
//! [`tun`] makes TAP devices, also those that are not ports but guests of ours.
//!
//! All of it belongs to the network namespace of the thread that opened it.
//!
//! `unsafe` is in five files: memory, rings and frames shared with the kernel (`xdp/memory.rs`,
//! `xdp/ring.rs`, `xdp/queue.rs`), the system call `bpf` (`xdp/bpf.rs`), and the few requests that
//! rustix does not know (`sys.rs`).

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod counters;
mod error;
pub mod groups;
pub mod kernel;
mod netlink;
pub mod packet;
mod sys;
pub mod tap;
pub mod tun;
pub mod xdp;

use std::os::fd::BorrowedFd;

use butterfly_packet::Mac;

pub use counters::{Counters, Meter};
pub use error::Error;

/// The most frames an uplink holds for its worker at a time.
pub const BURST: usize = 64;

/// Properties of an uplink when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// `af_xdp` or `tap`.
    pub kind: &'static str,
    /// Name of the network interface.
    pub interface: String,
    /// Its index in the kernel.
    pub index: u32,
    /// Way in which frames move: `native, zero-copy`, `native, copy`, `generic` or `tap`.
    pub mode: &'static str,
    /// Reason why the mode is not a better one, if the kernel gave it.
    pub note: Option<String>,
    /// Reason why frames may arrive without the VLAN tag that they had on the wire, if they may.
    pub tags: Option<String>,
    /// Receive queues served.
    pub queues: u32,
    /// The address that frames we send carry as their source.
    pub mac: Mac,
    /// The largest IP packet the interface carries, in bytes.
    pub mtu: u32,
}

/// The half of an uplink by which frames arrive, in bursts.
///
/// Frames are complete Ethernet frames without preamble and checksum sequence, at least 14 bytes.
/// Between [`Self::receive`] and [`Self::release`] they are private memory: nothing else changes
/// them.
///
/// All methods are for the packet path, and so are those of [`Outward`]: they never allocate,
/// block, panic or log. The only system calls are those that move frames: a wake-up where the
/// kernel wants one (AF_XDP), one per frame (TAP). Each half may have a thread of its own.
pub trait Inward: Send {
    /// Takes frames that arrived, until `max` (at most [`BURST`]) are held. Returns how many are
    /// held now.
    fn receive(&mut self, max: usize) -> usize;

    /// A held frame, by its position in order of arrival; empty if `index` is not below what
    /// [`Self::receive`] returned.
    fn frame(&self, index: usize) -> &[u8];

    /// Gives all held frames back.
    fn release(&mut self);

    /// Becomes readable, and stays so, while frames wait to be received.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// The half of an uplink by which frames leave, in bursts.
pub trait Outward: Send {
    /// Returns a frame of exactly `len` bytes. The caller writes all of it in place: its contents
    /// are not defined.
    ///
    /// [`Self::send`] queues it; asked for again before that, it is the same frame anew.
    ///
    /// `None` if there is no room now, which counts as `tx_full`. Also `None` for a length that
    /// never fits: shorter than an Ethernet header, longer than the MTU allows. That counts as
    /// `tx_bad_length`. Both lose the frame.
    fn room(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Queues the frame that [`Self::room`] returned last.
    fn send(&mut self);

    /// Shows what is queued to the kernel. Forgets a frame that [`Self::room`] gave out and that
    /// was not sent.
    fn flush(&mut self);

    /// True if frames are queued that the kernel does not take by itself. After a flush that means
    /// it was busy: flush again soon.
    ///
    /// An interface that is down, or stands still for long, is not waited for. Then this is
    /// `false`, the frames stay queued, and the next flush that finds it working sends them.
    fn pending(&self) -> bool {
        false
    }

    /// Returns the number of frames that were queued so far, which wraps.
    fn queued(&self) -> u32 {
        0
    }

    /// Returns whether the interface is through with the frames that were queued when
    /// [`Self::queued`] returned this number, as far as the kernel tells. An uplink with one such
    /// half need not know.
    fn is_through(&self, _queued: u32) -> bool {
        true
    }
}

/// A port that leads out of the host, whole.
pub trait Uplink: Inward + Outward {
    /// Returns its properties.
    fn info(&self) -> &Info;

    /// Returns the counts so far. Asks the kernel: for a control thread, which uses a [`Meter`]
    /// while workers own the uplink.
    fn counters(&self) -> Counters;

    /// Returns its halves, which go on without each other.
    fn split(self) -> Halves;
}

/// Halves of an uplink. Those that receive are to be dropped in their order, before those that
/// send: the first one ends what brings the others their frames.
pub struct Halves {
    /// One for each receive queue, by number. At least one.
    pub inward: Vec<Box<dyn Inward>>,
    /// One for each queue that sends. At least one.
    pub outward: Vec<Box<dyn Outward>>,
}

/// Makes a port of two fields, its halves, and of a method that takes it apart.
macro_rules! uplink {
    ($type:ty) => {
        impl Inward for $type {
            fn receive(&mut self, max: usize) -> usize {
                self.inward.receive(max)
            }

            fn frame(&self, index: usize) -> &[u8] {
                self.inward.frame(index)
            }

            fn release(&mut self) {
                self.inward.release();
            }

            fn descriptor(&self) -> BorrowedFd<'_> {
                self.inward.descriptor()
            }
        }

        impl Outward for $type {
            fn room(&mut self, len: usize) -> Option<&mut [u8]> {
                self.outward.room(len)
            }

            fn send(&mut self) {
                self.outward.send();
            }

            fn flush(&mut self) {
                self.outward.flush();
            }

            fn pending(&self) -> bool {
                self.outward.pending()
            }
        }

        impl Uplink for $type {
            fn info(&self) -> &Info {
                &self.info
            }

            fn counters(&self) -> Counters {
                self.meter().read()
            }

            fn split(self) -> crate::Halves {
                self.apart()
            }
        }
    };
}
use uplink;
