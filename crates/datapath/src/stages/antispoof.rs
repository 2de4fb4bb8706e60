//! Anti-spoofing: a filtered vnic speaks only with addresses it owns.
//!
//! Decides on frames *from* a vnic, before anything learns from them. RFC 826 (ARP sender fields),
//! RFC 903 (reverse ARP).

use crate::engine::{
    batch::{Batch, BatchOrigin, Verdict},
    inside::Inside,
    mac::number,
    reason::{DropReason, ReasonInfo, drop_reasons},
};
use crate::ip::frame::{arp, inside};
use crate::stages::{
    context::Context,
    forward::MAC_CLAIMED,
    stage::{Stage, StageConfig},
};
use crate::world::snapshot::Vnic;

drop_reasons! { 1;
    /// The source MAC address is not the vnic's own.
    SPOOFED_MAC = "spoofed-mac" {
        cause: "a bridge, a container network or another machine inside the machine, an address that was changed in it, or a wrong `--mac`",
        remedy: "give the machine's interface the address that `butterfly nic show NIC` tells; if it has to forward for others, declare it again with `butterfly nic add --id NIC ... --bypass-filtering --forwards`",
        charged: "the sender",
    }
    /// The vnic is a mirror, which receives copies and sends nothing.
    MIRROR_SENDS = "mirror-sends" {
        harmless: true,
        cause: "the analyser's machine asks for an address or answers to its own",
        remedy: "take the address off the analyser's interface (`ip address flush`) and switch IPv6 off on it; a vnic that has to talk is declared without `--sniff-target`",
        charged: "the sender",
    }
    /// Reverse ARP, which only hosts that do not know their address speak.
    RARP = "rarp" {
        harmless: true,
        cause: "a boot program that looks for its address in the way of the eighties",
        remedy: "nothing; only a machine that boots by reverse ARP needs `butterfly nic add --id NIC ... --bypass-filtering`",
        charged: "the sender",
    }
    /// The ARP sender is not the vnic's MAC address with one of its IPv4 addresses, or it is no ARP
    /// for IPv4 over Ethernet.
    SPOOFED_ARP = "spoofed-arp" {
        cause: "an address that was not declared, with `--enable-antispoof`; the probes of a guest that starts (from 0.0.0.0) are among them, and harmless",
        remedy: "declare all of its addresses, as the new list replaces the old one: `butterfly nic update --id NIC --ip ADDRESS..`",
        charged: "the sender",
    }
}

/// Checks source addresses. The switch itself may send frames that guests may not.
pub(crate) struct Antispoof;

impl Stage for Antispoof {
    const NAME: &'static str = "antispoof";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        let free = context.sender.rules.bypass && context.entry.waiting.is_empty();
        if !free && batch.origin != BatchOrigin::Own {
            antispoof(batch, context);
        }
    }
}

/// Drops frames whose source the vnic does not own; all others stay as they are.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn antispoof(batch: &mut Batch<'_>, context: &Context<'_>) {
    if context.entry.waits(context.sender.place.slot) {
        return silence(batch, context, MAC_CLAIMED);
    }
    if context.sender.rules.bypass {
        return;
    }
    if context.sender.is_mirror() {
        return silence(batch, context, MIRROR_SENDS);
    }
    batch.read(inside);
    let (frames, metas) = batch.parts();
    for (index, meta) in metas.iter_mut().enumerate() {
        if meta.verdict == Verdict::Undecided
            && let Err(reason) =
                check(meta.source, meta.inside, || frames.head(index), context.sender)
        {
            meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
            meta.offload = false; // nobody will look at what it claims
        }
    }
}

/// Drops all frames of a mirror, or of a vnic that waits for its address.
#[cold]
fn silence(batch: &mut Batch<'_>, context: &Context<'_>, reason: DropReason) {
    let (_, metas) = batch.parts();
    for meta in metas.iter_mut().filter(|meta| meta.verdict == Verdict::Undecided) {
        meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
        meta.offload = false;
    }
}

#[inline(always)]
fn check<'a>(
    source: u64,
    inside: Inside,
    head: impl FnOnce() -> &'a [u8],
    sender: &Vnic,
) -> Result<(), DropReason> {
    if source != number(sender.mac) {
        return Err(SPOOFED_MAC);
    }
    match inside {
        Inside::Rarp => Err(RARP),
        Inside::Arp(at) if sender.rules.ip_anti_spoof => {
            let arp = arp(head(), at).ok_or(SPOOFED_ARP)?;
            let owned = arp.sender_mac() == sender.mac
                && sender.rules.arp.binary_search(&arp.sender_ip()).is_ok();
            if owned { Ok(()) } else { Err(SPOOFED_ARP) }
        }
        _ => Ok(()),
    }
}
