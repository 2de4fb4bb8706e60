//! Headers: reads frames, with their addresses and contents, and drops those that cannot be read.
//!
//! IEEE 802.3 clause 3.2; contents: [`crate::engine::inside`].

use butterfly_packet::ethernet;
use butterfly_vhost::ring::FrameFault;

use crate::engine::{
    batch::{Batch, Verdict},
    inside::PLAIN_IP,
    reason::{ReasonInfo, drop_reasons},
};
use crate::ip::frame::inside;
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

drop_reasons! { 0;
    /// The sender's descriptor chain has a loop, an index or address out of range, or wrong flags.
    BAD_CHAIN = "bad-chain" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "look into the machine's kernel log and replace its virtio-net driver; `butterfly nic show NIC` tells the state of its rings",
        charged: "the sender",
    }
    /// The frame is shorter than an Ethernet header.
    SHORT = "short" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "replace the machine's virtio-net driver, or the program in it that writes raw frames",
        charged: "the sender",
    }
    /// The frame is longer than the largest IP packet.
    OVERSIZED = "oversized" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "replace the machine's virtio-net driver, or the program in it that writes raw frames",
        charged: "the sender",
    }
    /// The frame was in a transmit ring that the front end had disabled for half a second or more.
    TX_DISABLED = "tx-disabled" {
        cause: "a network card that was switched off from outside (`set_link NAME off` in QEMU's monitor), or a driver that takes its link down and goes on sending",
        remedy: "switch it on again: `set_link NAME on` in QEMU's monitor, or set the interface up in the machine",
        charged: "the sender",
    }
}

/// Reads addresses.
pub(crate) struct Headers;

impl Stage for Headers {
    const NAME: &'static str = "headers";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        headers(batch, context);
    }
}

/// Drops frames that could not be taken from the ring. Reads the addresses of all others, and their
/// contents if the network has a filter, which will ask: the first bytes are at hand.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn headers(batch: &mut Batch<'_>, context: &Context<'_>) {
    let classify = context.entry.is_read();
    let (mut unusual, mut offloads) = (false, false);
    let (frames, metas) = batch.parts();
    for (index, (meta, (frame, slot))) in metas.iter_mut().zip(frames.each()).enumerate() {
        let &[
            d0,
            d1,
            d2,
            d3,
            d4,
            d5,
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            t0,
            t1,
            first,
            _,
            _,
            _,
            _,
            _,
            _,
            hops,
            ..,
        ] = slot.bytes();
        meta.destination = u64::from_le_bytes([d0, d1, d2, d3, d4, d5, 0, 0]);
        meta.source = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, 0, 0]);
        meta.offload = frame.offload;
        offloads |= frame.offload;
        meta.verdict = match frame.fault {
            None => Verdict::Undecided,
            Some(fault) => Verdict::Drop(reason(fault), context.sender.place.slot),
        };
        if classify {
            meta.inside = match ([t0, t1], first >> 4) {
                // The commonest frame.
                ([0x08, 0x00], 4) if frame.len > ethernet::HEADER_LEN as u32 => PLAIN_IP,
                ([0x86, 0xdd], 6) if frame.len > ethernet::HEADER_LEN as u32 => {
                    // Discovery with another hop limit is no discovery (RFC 4861, 3.1).
                    unusual |= hops == 255;
                    PLAIN_IP
                }
                _ => {
                    unusual = true;
                    inside(frames.head(index))
                }
            };
        }
    }
    batch.offloads = offloads;
    if classify {
        batch.unusual = unusual;
        batch.was_read();
    }
}

#[cold]
fn reason(fault: FrameFault) -> crate::engine::reason::DropReason {
    match fault {
        FrameFault::BadChain => BAD_CHAIN,
        FrameFault::Short => SHORT,
        FrameFault::Oversized => OVERSIZED,
    }
}
