//! Parameters of a guest.

use butterfly_vhost::net::NetHeader;

use crate::{guest::shape::Shape, queue::KickPolicy};

/// Time at which used receive buffers are given back to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Refill {
    /// Each as soon as its frame was taken.
    #[default]
    Immediately,
    /// Only by [`crate::Guest::refill`].
    Manually,
}

/// Parameters of a [`crate::Guest`].
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Entries of the receive ring: a power of two, unless it is packed.
    pub rx_size: u16,
    /// Entries of the transmit ring.
    pub tx_size: u16,
    /// Bytes of a receive chain, header included. Without MRG_RXBUF it must hold the largest
    /// frame.
    pub rx_buffer: usize,
    /// Largest frame that can be sent, without header.
    pub max_frame: usize,
    /// Position at which both rings begin, as SET_VRING_BASE says it, as after a migration; None:
    /// where a fresh ring begins. A device has to be told: [`crate::Connection`] does.
    pub first: Option<u16>,
    /// Layout of receive chains, as far as the features in force allow it.
    ///
    /// Without INDIRECT_DESC there are no indirect tables. On a packed ring a chain is in its table
    /// whole or not at all. A legacy guest without ANY_LAYOUT has
    /// the header apart unless buffers are merged (virtio 1.2, 5.1.6.6 and 2.7.4.1).
    pub rx_shape: Shape,
    /// Layout of transmit chains, as far as the features in force allow it.
    pub tx_shape: Shape,
    /// Receive buffers given to the device at the start; None: as many as fit.
    pub rx_fill: Option<usize>,
    /// Time at which receive buffers are given back.
    pub refill: Refill,
    /// Place a buffer across every boundary of regions, half of them for receiving.
    pub cross_regions: bool,
    /// Policy of notifying the device.
    pub kicks: KickPolicy,
    /// True if waiting sleeps until the device interrupts; else it polls.
    pub interrupts: bool,
    /// True if `num_buffers` must be 1 without MRG_RXBUF, as virtio 1.2, 5.1.6.4.1 wants it. DPDK
    /// leaves it as it was.
    pub strict: bool,
}

impl Default for GuestConfig {
    /// Rings of 256, 2 KiB receive buffers, frames up to 9,216 bytes, everything else as simple as
    /// possible.
    fn default() -> GuestConfig {
        GuestConfig {
            rx_size: 256,
            tx_size: 256,
            rx_buffer: 2048,
            max_frame: 9216,
            first: None,
            rx_shape: Shape::default(),
            tx_shape: Shape::default(),
            rx_fill: None,
            refill: Refill::Immediately,
            cross_regions: false,
            kicks: KickPolicy::Standard,
            interrupts: false,
            strict: true,
        }
    }
}

impl GuestConfig {
    /// Rings of `size` entries both ways.
    pub fn rings(mut self, size: u16) -> GuestConfig {
        (self.rx_size, self.tx_size) = (size, size);
        self
    }

    /// Bytes of guest memory that rings and buffers need, with room for indirect tables and
    /// alignment.
    pub fn memory_needed(&self) -> u64 {
        let rings = [self.rx_size, self.tx_size].map(|size| 26 * u64::from(size) + 3 * 4096);
        let rx = u64::from(self.rx_size) * self.rx_buffer.next_multiple_of(64) as u64;
        let tx =
            u64::from(self.tx_size) * (self.max_frame + NetHeader::LEN).next_multiple_of(64) as u64;
        let chain = |shape: &Shape| (shape.pieces as u64 + 2) * 16;
        let tables = u64::from(self.rx_size) * chain(&self.rx_shape)
            + u64::from(self.tx_size) * chain(&self.tx_shape);
        (rings[0] + rings[1] + rx + tx + 2 * tables + (1 << 20)).next_multiple_of(2 << 20)
    }
}
