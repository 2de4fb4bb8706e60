//! Reports of the switch, in words.

use super::{
    kind::Kind,
    note::{Note, counted},
};
use butterfly_datapath::{About, Features, Happening, QueueKind};

/// Makes the note of an event, for the record and the log.
pub fn note(about: About<'_>, what: Happening<'_>) -> Note {
    let (kind, text) = match what {
        Happening::Attached => (Kind::GuestAttached, "a virtual machine attached".to_owned()),
        Happening::Detached(reason) => {
            (Kind::GuestDetached, format!("the virtual machine detached: {reason}"))
        }
        Happening::Negotiated { accepted, refused } => (
            Kind::FeaturesNegotiated,
            format!("took {}; refused {}", listed(accepted), listed(refused)),
        ),
        Happening::Driving(true) => {
            (Kind::QueuesStarted, "the driver started both queues".to_owned())
        }
        Happening::Driving(false) => {
            (Kind::QueuesStopped, "the driver stopped its queues".to_owned())
        }
        Happening::Trouble(why) => (Kind::QueueTrouble, why.to_owned()),
        Happening::Broken(kind) => (Kind::QueueBroken, broken(kind)),
        Happening::SlowInterrupts(worst) => (
            Kind::SlowInterrupts,
            format!(
                "interrupting it took up to {} us: a thread of their own sends its interrupts",
                worst.as_micros()
            ),
        ),
        Happening::FirstTouches(pages) => (
            Kind::FirstTouches,
            format!(
                "the switch was the first to touch {pages} pages of its memory, so it has to rest: its memory back end needs prealloc=on"
            ),
        ),
        Happening::MemoryStalled(time) => (
            Kind::MemoryStalled,
            format!(
                "the switch slept for pages of its memory, {} ms in all: it has to rest twenty times as long",
                time.as_millis()
            ),
        ),
        Happening::Dropped(reason, frames) => {
            let text = format!("{} dropped: {}", counted(frames, "frame"), reason.description);
            (Kind::of_drops(reason.name).unwrap_or(Kind::BadChain), text)
        }
        Happening::LearnRefused(frames) => {
            // Frames from other hosts belong to no vnic.
            let hosts = if about.nic.is_none() { ", or too many hosts" } else { "" };
            (
                Kind::LearnRefused,
                format!(
                    "the source of {} was not learnt: too many addresses{hosts}",
                    counted(frames, "frame")
                ),
            )
        }
        Happening::Sessions { used, capacity, nearly_full: true } => {
            let text = format!(
                "{used} of {capacity} sessions are in use: when all are, new ones are refused; see --sessions"
            );
            (Kind::SessionsNearlyFull, text)
        }
        Happening::Sessions { used, capacity, nearly_full: false } => {
            (Kind::SessionsRoom, format!("{used} of {capacity} sessions are in use"))
        }
        Happening::PeersFull(true) => (
            Kind::PeersFull,
            "the table of other hosts is full: new ones are not learnt".to_owned(),
        ),
        Happening::PeersFull(false) => {
            (Kind::PeersRoom, "the table of other hosts has room again".to_owned())
        }
        Happening::PeerLearnt(peer) => {
            (Kind::PeerLearnt, format!("host {peer} was heard for the first time"))
        }
        Happening::PeerForgotten(peer) => {
            (Kind::PeerForgotten, format!("host {peer} was silent for too long"))
        }
        Happening::NextHopFound(peer, mac) => {
            (Kind::NextHopFound, format!("host {peer} is reached by way of {mac}"))
        }
        Happening::NextHopMoved(peer, old, new) => (
            Kind::NextHopMoved,
            format!("host {peer} is reached by way of {new}, no longer of {old}"),
        ),
        Happening::NextHopLost(peer) => (
            Kind::NextHopLost,
            format!("the next hop to host {peer} does not answer: frames for it are dropped"),
        ),
        Happening::UplinkUp(text) => (Kind::UplinkUp, text.to_owned()),
        Happening::UplinkDown(text) => (Kind::UplinkDown, text.to_owned()),
        Happening::UplinkMtu(mtu) => (
            Kind::UplinkMtu,
            format!(
                "the uplink's MTU is {mtu} now: virtual machines need another host_mtu=, interfaces in network namespaces another mtu"
            ),
        ),
    };
    Note { nic: about.nic.map(Into::into), vni: about.vni, ..Note::new(kind, text) }
}

fn broken(kind: QueueKind) -> String {
    format!(
        "the guest's {} queue says something impossible: it rests until the driver sets it up anew",
        kind.name()
    )
}

fn listed(features: Features) -> String {
    match features.names() {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_under_its_name() {
        for reason in butterfly_datapath::watched_drops() {
            let about = About { nic: Some("n"), vni: Some(7) };
            let told = note(about, Happening::Dropped(reason, 3));
            assert_eq!(
                (told.kind.name(), told.nic.as_deref(), told.vni),
                (reason.name, Some("n"), Some(7))
            );
            assert_eq!(told.text, format!("3 frames dropped: {}", reason.description));
        }
    }

    #[test]
    fn features_are_named() {
        let accepted = Features::VERSION_1;
        let told =
            note(About::default(), Happening::Negotiated { accepted, refused: Features::NONE });
        assert_eq!(told.text, "took version-1; refused none");
    }
}
