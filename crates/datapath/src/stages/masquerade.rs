//! Writes what routers decided: MAC addresses, hop limit and header checksum.
//!
//! Behind the filter: what is dropped or waits is the packet as it was sent. What passes is traced
//! and mirrored as it goes on. RFC 1812, 5.3.1 (time to live); RFC 1624 (checksum); RFC 8200, 3
//! (hop limit).

use butterfly_vhost::ring::HEAD_MAX;

use crate::engine::{
    batch::{Batch, Hop, Verdict},
    reason::ReasonInfo,
};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

/// First byte of the Ethernet type of IPv6.
const V6: u8 = 0x86;

/// Rewrites packets that routers pass on.
pub(crate) struct Masquerade;

impl Stage for Masquerade {
    const NAME: &'static str = "masquerade";
    const REASONS: &'static [ReasonInfo] = &[];
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        if batch.crossed() != 0 {
            masquerade(batch, context);
        }
    }
}

/// Rewrites the headers of packets that pass; all other frames stay as they are.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn masquerade(batch: &mut Batch<'_>, context: &Context<'_>) {
    if context.sender.is_trunk() {
        return of_far_routers(batch);
    }
    let crossed = batch.crossed();
    let (frames, metas, hops) = batch.parts_and_hops();
    let each = frames.each_mut().zip(metas.iter()).zip(hops.iter()).enumerate();
    for (index, (((_, slot), meta), hop)) in each {
        let crossed = crossed.wrapping_shr(index as u32) & 1 == 1;
        let passes = matches!(meta.verdict, Verdict::Deliver(_) | Verdict::Tunnel(_));
        if crossed && hop.is_routed() && passes {
            rewrite(slot.bytes_mut(), hop);
        }
    }
}

/// Gives packets that routers of other hosts passed on the source address of the gateway here, to
/// which their receivers answer. All else of them was written there.
#[cold]
#[inline(never)]
fn of_far_routers(batch: &mut Batch<'_>) {
    let crossed = batch.crossed();
    let (frames, metas, hops) = batch.parts_and_hops();
    let each = frames.each_mut().zip(metas.iter()).zip(hops.iter()).enumerate();
    for (index, (((_, slot), meta), hop)) in each {
        let crossed = crossed.wrapping_shr(index as u32) & 1 == 1;
        let [_, _, _, _, _, _, gateway @ ..] = hop.macs;
        if crossed && gateway != [0; 6] && matches!(meta.verdict, Verdict::Deliver(_)) {
            let places = slot.bytes_mut().iter_mut().zip(hop.macs).skip(6);
            places.take(6).for_each(|(place, byte)| *place = byte);
        }
    }
}

/// Rewrites a header. The stage `route` has read it: it is whole, and it has a hop left.
#[inline(always)]
fn rewrite(head: &mut [u8; HEAD_MAX], hop: &Hop) {
    let Some((macs, rest)) = head.split_first_chunk_mut::<12>() else { return };
    *macs = hop.macs;
    let [kind, _, _, _, _, _, _, _, _, hops, ttl, _, high, low, ..] = rest else { return };
    if *kind == V6 {
        *hops = hops.wrapping_sub(1);
        return;
    }
    *ttl = ttl.wrapping_sub(1);
    // The time to live is the upper half of a word: a hop less adds 0x100 to the checksum.
    let sum = u32::from(u16::from_be_bytes([*high, *low])) + 0x100;
    [*high, *low] = ((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes();
}

#[cfg(test)]
mod tests {
    use butterfly_packet::{Mac, build, checksum::Sum};

    use super::*;
    use crate::engine::place::NetworkRef;

    /// Offset of IP behind Ethernet, and offsets in a header of IPv4.
    const L3: usize = 14;
    const TTL: usize = 8;
    const SUM: usize = 10;

    #[test]
    fn the_header_is_right_for_every_time_to_live() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([0xb2, 0xf0, 0, 0, 0, 2]));
        let (to, from) = (Mac([2, 0, 0, 0, 0, 3]), Mac([0xb2, 0xf0, 4, 5, 6, 7]));
        let macs: Vec<u8> = [to.0, from.0].concat();
        let hop = Hop { exit: NetworkRef(1), macs: macs.try_into().unwrap() };
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
                let mut head = [0; HEAD_MAX];
                head[..frame.len()].copy_from_slice(&frame);
                rewrite(&mut head, &hop);
                frame.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
                assert_eq!((&frame[..6], &frame[6..12]), (&to.0[..], &from.0[..]));
                assert_eq!(frame[L3 + TTL], ttl - 1);
                assert!(Sum::of(&frame[L3..L3 + 20]).is_valid(), "{ttl} {id}");
                assert_eq!(frame[L3..L3 + TTL], before[L3..L3 + TTL]);
                assert_eq!(frame[L3 + SUM + 2..], before[L3 + SUM + 2..]);
            }
        }
    }
}
