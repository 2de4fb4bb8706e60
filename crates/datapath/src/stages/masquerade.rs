//! Writes what routers decided: MAC addresses, hop limit and header checksum.
//!
//! Behind the filter: what is dropped, recorded or waits is the packet as it was sent. RFC 1812,
//! 5.3.1 (time to live); RFC 1624 (checksum).

use butterfly_packet::{checksum::update, ethernet};

use crate::engine::{
    batch::{Batch, Hop, Verdict},
    reason::ReasonInfo,
};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

/// Offset of IP behind Ethernet.
const L3: usize = ethernet::HEADER_LEN;

/// Rewrites packets that routers pass on.
pub(crate) struct Masquerade;

impl Stage for Masquerade {
    const NAME: &'static str = "masquerade";
    const REASONS: &'static [ReasonInfo] = &[];
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, _: &Context<'_>, _: &mut ()) {
        if batch.routed() != 0 {
            masquerade(batch);
        }
    }
}

/// Rewrites the headers of packets that pass; all other frames stay as they are.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn masquerade(batch: &mut Batch<'_>) {
    let mut left = batch.routed();
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let passes = |batch: &Batch<'_>| {
            matches!(batch.metas().get(index).map(|meta| meta.verdict), Some(Verdict::Deliver(_)))
        };
        if let Some(hop) = batch.hop(index).filter(|_| passes(batch)) {
            rewrite(batch.frames.head_mut(index), &hop);
        }
    }
}

/// Rewrites a header. The stage `route` has read it: it is whole, and its time to live is above 1.
#[inline(always)]
fn rewrite(head: &mut [u8], hop: &Hop) {
    let [destination @ .., _, _] = hop.destination.to_le_bytes();
    let [source @ .., _, _] = hop.source.to_le_bytes();
    let Some((ethernet, ip)) = head.split_at_mut_checked(L3) else { return };
    if let Some((to, rest)) = ethernet.split_first_chunk_mut::<6>()
        && let Some(from) = rest.first_chunk_mut::<6>()
    {
        (*to, *from) = (destination, source);
    }
    if let Some([_, _, _, _, _, _, _, _, ttl, protocol, high, low]) = ip.first_chunk_mut::<12>() {
        let old = u16::from_be_bytes([*ttl, *protocol]);
        *ttl = ttl.saturating_sub(1);
        let new = u16::from_be_bytes([*ttl, *protocol]);
        let sum = update(u16::from_be_bytes([*high, *low]), old, new);
        [*high, *low] = sum.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use butterfly_packet::{Mac, build, checksum::Sum};

    use super::*;
    use crate::engine::{mac::number, place::NetworkRef};

    /// Offsets in a header of IPv4.
    const TTL: usize = 8;
    const SUM: usize = 10;

    #[test]
    fn the_header_is_right_for_every_time_to_live() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([0xb2, 0xf0, 0, 0, 0, 2]));
        let (to, from) = (Mac([2, 0, 0, 0, 0, 3]), Mac([0xb2, 0xf0, 4, 5, 6, 7]));
        let hop = Hop { exit: NetworkRef(1), destination: number(to), source: number(from) };
        for ttl in 2..=255 {
            for id in [0u16, 1, 0x00ff, 0xfeff, 0xffff] {
                let mut frame =
                    build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 1, 0, 1]).udp(1, 2, b"x");
                frame[L3 + 4..L3 + 6].copy_from_slice(&id.to_be_bytes());
                frame[L3 + TTL] = ttl;
                frame[L3 + SUM..L3 + SUM + 2].copy_from_slice(&[0, 0]);
                let sum = Sum::of(&frame[L3..L3 + 20]).checksum();
                frame[L3 + SUM..L3 + SUM + 2].copy_from_slice(&sum.to_be_bytes());
                let before = frame.clone();
                rewrite(&mut frame, &hop);
                assert_eq!((&frame[..6], &frame[6..12]), (&to.0[..], &from.0[..]));
                assert_eq!(frame[L3 + TTL], ttl - 1);
                assert!(Sum::of(&frame[L3..L3 + 20]).is_valid(), "{ttl} {id}");
                assert_eq!(frame[L3..L3 + TTL], before[L3..L3 + TTL]);
                assert_eq!(frame[L3 + SUM + 2..], before[L3 + SUM + 2..]);
            }
        }
    }
}
