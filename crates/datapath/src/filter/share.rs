//! Who has as many sessions as anyone may have, and which of them may go.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    batch::Context,
    session::{Key, Record},
    snapshot::Vnic,
};

/// Somebody who has all the sessions that are his share.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// Whom a refusal is charged to.
    pub slot: u32,
    /// The whole network's, of which that is one.
    network: bool,
}

impl Share {
    /// Whether a session is of this share and may go for another one.
    pub fn may_give(&self, record: &Record<'_>, context: &Context<'_>) -> bool {
        let of_these = |key: &Key| {
            let (opener, responder) = key.slots();
            key.vni() == context.sender.vni && (self.network || opener == self.slot || responder == self.slot)
        };
        record.read().is_some_and(|(key, _)| of_these(&key)) && may_go(record, context)
    }
}

/// The shares that a session between two vnics is of. Each is full or not when its turn comes: what was given up for one may have been of
/// others, too.
pub(crate) fn full_shares<'a>(context: &'a Context<'_>, receiver: &'a Vnic) -> impl Iterator<Item = Share> + use<'a> {
    let (most, own) = (context.session_share, context.sender.place.slot);
    let counts = [
        (&context.sender.shared.sessions, Share { slot: own, network: false }),
        (&receiver.shared.sessions, Share { slot: receiver.place.slot, network: false }),
        (&*context.network.sessions, Share { slot: own, network: true }),
    ];
    counts.into_iter().filter(move |(sessions, _)| sessions.load(Relaxed) >= most).map(|(_, share)| share)
}

/// Whether a session may go for another one: it is over, or not established.
pub(crate) fn may_go(record: &Record<'_>, context: &Context<'_>) -> bool {
    let (seen, state) = record.seen();
    context.timeouts.over(state, seen, context.now) || !state.is_established()
}
