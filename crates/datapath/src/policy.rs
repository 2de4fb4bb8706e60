//! Policy: what may pass to and from a filtered vnic.
//!
//! Without security groups nothing of IP may; frames that are not IP pass, as every filter of this kind lets them (ARP, LLDP).

use crate::{
    batch::{Batch, Context, Verdict},
    drops::{DropReason, drop_reasons},
    headers::Inside,
    snapshot::Vnic,
};

drop_reasons! { 4;
    /// No rule of the sending vnic's security groups lets it out.
    EGRESS_DENIED = "egress-denied";
    /// No rule of the receiving vnic's security groups lets it in.
    INGRESS_DENIED = "ingress-denied";
    /// IP to or from a filtered vnic behind several VLAN tags or LLC, or with a type that contradicts its version.
    IP_HIDDEN = "ip-hidden";
}

/// Applies the sender's policy to all frames, and the receiver's to those with one receiver. Floods meet each receiver's policy
/// when they are delivered.
#[inline(never)] // one call per batch; measurements tell stages apart by it
pub(crate) fn policy(batch: &mut Batch<'_>, context: &Context<'_>) {
    if !context.network.filtered {
        return;
    }
    let sender = context.sender;
    let (_, metas) = batch.parts();
    for meta in metas {
        if matches!(meta.verdict, Verdict::Drop(..)) {
            continue;
        }
        if !sender.rules.bypass
            && let Err(reason) = check(meta.inside, EGRESS_DENIED)
        {
            meta.verdict = Verdict::Drop(reason, sender.place.slot);
            continue;
        }
        if let Verdict::Deliver(slot) = meta.verdict
            && let Some(receiver) = context.snapshot.vnics.get(slot)
            && let Err(reason) = admits(receiver, meta.inside)
        {
            // Who hides IP is to blame, else whose policy refuses.
            let charged = if reason == IP_HIDDEN { sender.place.slot } else { slot };
            meta.verdict = Verdict::Drop(reason, charged);
        }
    }
}

/// Whether a receiver's policy lets a frame in.
pub(crate) fn admits(receiver: &Vnic, inside: Inside) -> Result<(), DropReason> {
    if receiver.rules.bypass { Ok(()) } else { check(inside, INGRESS_DENIED) }
}

fn check(inside: Inside, denied: DropReason) -> Result<(), DropReason> {
    match inside {
        Inside::Arp(_) | Inside::Rarp | Inside::NonIp => Ok(()),
        Inside::HiddenIp => Err(IP_HIDDEN),
        // Unknown cannot be: headers() looks inside when someone is filtered. If it were, it would not pass.
        Inside::Ip | Inside::Unknown => Err(denied),
    }
}
