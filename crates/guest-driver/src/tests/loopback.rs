//! A device that sends everything a guest transmits back to it, on rings of either layout.

use std::collections::VecDeque;

use butterfly_vhost::net::{Features, NetHeader};

use super::{packed_device::PackedDevice, split_device::DeviceQueue};
use crate::{ring::AnyRing, *};

/// A chain that a device took.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceChain {
    /// Head, or buffer id.
    pub(super) id: u16,
    /// Descriptors in the ring, of a packed one.
    pub(super) descs: u16,
    pub(super) readable: Vec<(u64, usize)>,
    pub(super) writable: Vec<(u64, usize)>,
}

impl DeviceChain {
    pub(super) fn new(id: u16) -> DeviceChain {
        DeviceChain { id, ..DeviceChain::default() }
    }

    pub(super) fn push(&mut self, addr: u64, len: u32, writable: bool) {
        let list = if writable { &mut self.writable } else { &mut self.readable };
        list.push((addr, len as usize));
        assert!(writable || self.writable.is_empty(), "readable before writable");
    }
}

/// The device's half of a ring: one chain at a time, addresses resolved through the driver's own
/// memory.
pub(super) trait DeviceHalf: Send {
    fn features(&self) -> Features;
    fn memory(&self) -> &Memory;
    /// Chooses whether a used entry stands for all chains that are published together.
    fn set_batch_used(&mut self, on: bool);
    fn take(&mut self) -> Option<DeviceChain>;
    /// Counts a chain as used, which [`Self::publish`] shows.
    fn push_used(&mut self, chain: &DeviceChain, len: u32);
    fn publish(&mut self);
    /// Returns where it is, for [`Self::go_back`].
    fn mark(&mut self) -> u64;
    /// Forgets what was taken and used, but not published, since then.
    fn go_back(&mut self, mark: u64);

    fn read(&self, chain: &DeviceChain) -> Vec<u8> {
        let pieces = chain.readable.iter();
        pieces.flat_map(|(addr, len)| self.memory().read_vec(*addr, *len).unwrap()).collect()
    }

    /// Writes into a chain as much as fits; returns what is left.
    fn write<'a>(&self, chain: &DeviceChain, mut bytes: &'a [u8]) -> &'a [u8] {
        for (addr, len) in &chain.writable {
            let (now, rest) = bytes.split_at(bytes.len().min(*len));
            self.memory().write(*addr, now).unwrap();
            bytes = rest;
        }
        bytes
    }
}

/// Sends everything a guest transmits back to it.
pub(super) struct Loopback {
    rx: Box<dyn DeviceHalf>,
    tx: Box<dyn DeviceHalf>,
    backlog: VecDeque<Vec<u8>>,
    /// Sent frames are used last first.
    pub(super) backwards: bool,
}

impl Loopback {
    pub(super) fn of(nic: &impl Nic) -> Loopback {
        let half = |index| -> Box<dyn DeviceHalf> {
            match nic.link(index).ring {
                AnyRing::Split(_) => Box::new(DeviceQueue::of(nic, index)),
                AnyRing::Packed(_) => Box::new(PackedDevice::of(nic, index)),
            }
        };
        Loopback { rx: half(RX), tx: half(TX), backlog: VecDeque::new(), backwards: false }
    }

    /// One used entry for a whole batch of sent frames, with IN_ORDER.
    pub(super) fn set_batch_used(&mut self, on: bool) {
        self.tx.set_batch_used(on);
    }

    pub(super) fn run(&mut self) {
        let mut taken: Vec<DeviceChain> = std::iter::from_fn(|| self.tx.take()).collect();
        self.backlog.extend(taken.iter().map(|chain| self.tx.read(chain)));
        if self.backwards {
            taken.reverse();
        }
        taken.iter().for_each(|chain| self.tx.push_used(chain, 0));
        if !taken.is_empty() {
            self.tx.publish();
        }
        while let Some(stream) = self.backlog.front().cloned() {
            if !self.deliver(&stream) {
                break;
            }
            self.backlog.pop_front();
        }
    }

    fn deliver(&mut self, stream: &[u8]) -> bool {
        let header_len = self.rx.features().header_len();
        let mark = self.rx.mark();
        let mut first: Option<DeviceChain> = None;
        let (mut rest, mut count) = (stream, 0u16);
        while !rest.is_empty() || count == 0 {
            let Some(chain) = self.rx.take() else {
                self.rx.go_back(mark);
                return false;
            };
            let left = self.rx.write(&chain, rest);
            self.rx.push_used(&chain, (rest.len() - left.len()) as u32);
            rest = left;
            count += 1;
            assert!(
                rest.is_empty() || self.rx.features().has(Features::MRG_RXBUF),
                "the frame fits one chain"
            );
            first.get_or_insert(chain);
        }
        if header_len == NetHeader::LEN {
            let mut header: [u8; NetHeader::LEN] = stream[..NetHeader::LEN].try_into().unwrap();
            header[10..].copy_from_slice(&count.to_le_bytes());
            self.rx.write(&first.unwrap(), &header);
        }
        self.rx.publish();
        true
    }
}
