//! Peers that get frames and send none back, and reports that frames to them arrive nowhere.
//!
//! Silence by itself is no fault: traffic may go one way only, and both sides may have nothing to
//! say. So silence is only reported. A fault is a report by the peer's own host, a router or the
//! link about our frames.

use std::collections::BTreeMap;

use crate::engine::place::PeerRef;
use crate::overlay::peers::PeerRow;

/// Seconds for which a refusal holds that is not repeated. Guests soon ask by broadcast only, and
/// no host refuses packets to multicast groups. Peers that were learnt are forgotten after that
/// time.
const HOLDS: u32 = 300;
/// Seconds with frames but without a refusal after which the refusal is over. Hosts refuse about
/// one frame per second.
const ARRIVED: u32 = 5;
/// Seconds without frames after which both sides count as silent: the next frame starts a new
/// count.
const RESTS: u32 = 60;

/// Reason for which frames to a peer arrive nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its host has no program that takes VXLAN (ICMP port or protocol unreachable).
    NobodyListens,
    /// A router says that the peer cannot be reached (ICMP net or host unreachable).
    Unreachable,
    /// A firewall refuses the frames (ICMP administratively prohibited).
    Forbidden,
    /// Its next hop does not answer ARP or neighbour solicitations.
    NoNextHop,
}

impl Refusal {
    /// Returns the meaning and the remedy, for the operator.
    pub fn told(self) -> &'static str {
        match self {
            Refusal::NobodyListens => {
                "its host takes no VXLAN (ICMP port unreachable): start butterflyd there, or see why it ended"
            }
            Refusal::Unreachable => {
                "a router cannot reach it (ICMP host unreachable): is the host up, and the route right?"
            }
            Refusal::Forbidden => {
                "a firewall refuses VXLAN for it (ICMP prohibited): let UDP 4789 pass"
            }
            Refusal::NoNextHop => {
                "nobody answers for its next hop (ARP, neighbour discovery): is the host up, and butterflyd there?"
            }
        }
    }
}

/// Silence and refusals of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Told {
    /// Seconds since the first frame without an answer, and the number of such frames.
    pub unanswered: Option<(u32, u64)>,
    /// Reason for which frames arrive nowhere, and the seconds since it was first reported.
    pub refusal: Option<(Refusal, u32)>,
}

#[derive(Clone, Copy)]
struct Refused {
    why: Refusal,
    since: u32,
    last: u32,
    /// Seconds with frames since the refusal.
    arrived: u32,
}

#[derive(Default)]
struct Silence {
    /// Second of the last frame from the peer.
    heard: Option<u32>,
    /// Frames sent up to that second, or up to the first look.
    answered: u64,
    /// Frames sent up to the last look.
    sent: u64,
    /// First and last second with a frame since.
    unanswered: Option<(u32, u32)>,
    refused: Option<Refused>,
    had_next_hop: bool,
}

/// Silence of all peers. Seconds are those of the packet path's clock.
#[derive(Default)]
pub(crate) struct Silences(BTreeMap<PeerRef, Silence>);

impl Silences {
    /// Compares with the last look, about a second ago.
    pub fn look(&mut self, rows: &[PeerRow], now: u32) {
        let mut before = std::mem::take(&mut self.0);
        for row in rows {
            let sent = row.sent();
            let first = || Silence { answered: sent, sent, ..Silence::default() };
            let mut silence = before.remove(&row.at).unwrap_or_else(first);
            silence.look(row, sent, now);
            self.0.insert(row.at, silence);
        }
    }

    /// Notes a report that frames for a peer arrive nowhere.
    pub fn refused(&mut self, at: PeerRef, why: Refusal, now: u32) {
        let Some(silence) = self.0.get_mut(&at) else { return };
        let since = silence.refused.filter(|said| said.why == why).map_or(now, |said| said.since);
        silence.refused = Some(Refused { why, since, last: now, arrived: 0 });
    }

    /// Notes that the next hop of a peer answers.
    pub fn answers(&mut self, at: PeerRef) {
        if let Some(silence) = self.0.get_mut(&at) {
            silence.refused = silence.refused.filter(|said| said.why != Refusal::NoNextHop);
        }
    }

    /// Returns the state of a peer.
    pub fn told(&self, at: PeerRef, now: u32) -> Told {
        let Some(silence) = self.0.get(&at) else { return Told::default() };
        let frames = silence.sent.saturating_sub(silence.answered);
        let ago = |second: u32| now.saturating_sub(second);
        Told {
            unanswered: silence.unanswered.map(|(since, _)| (ago(since), frames)),
            refusal: silence.refused.map(|said| (said.why, ago(said.since))),
        }
    }
}

impl Silence {
    fn look(&mut self, row: &PeerRow, sent: u64, now: u32) {
        let spoke = sent != self.sent;
        // A peer's place may have been given to another one, whose counters start at zero.
        let anew = sent < self.sent;
        self.sent = sent;
        let heard = row.idle.map(|idle| now.saturating_sub(idle));
        // The clock may have gone on since the table was read, so one second of difference is no
        // news.
        let came = match (self.heard, heard) {
            (Some(before), Some(heard)) => heard > before,
            (None, heard) => heard.is_some(),
            (Some(_), None) => false,
        };
        if came || anew {
            *self = Silence { heard, answered: sent, sent, ..Silence::default() };
        } else if spoke {
            let since = self.unanswered.map_or(now, |(since, _)| since);
            self.unanswered = Some((since, now));
        } else if self.unanswered.is_some_and(|(_, last)| now.saturating_sub(last) > RESTS) {
            (self.answered, self.unanswered) = (sent, None);
        }
        let found =
            row.mac.is_some() && !std::mem::replace(&mut self.had_next_hop, row.mac.is_some());
        if let Some(said) = &mut self.refused {
            said.arrived += u32::from(spoke);
            let over = match said.why {
                Refusal::NoNextHop => found,
                _ => said.arrived > ARRIVED,
            };
            if over || now.saturating_sub(said.last) > HOLDS {
                self.refused = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::writer::WorkerId;
    use crate::overlay::peers::{PeerCounter, PeerTable};
    use butterfly_packet::mac::Mac;

    const PEER: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// A table with one named peer, which is looked at every second.
    struct Host {
        peers: PeerTable,
        at: PeerRef,
        silences: Silences,
        now: u32,
    }

    impl Host {
        fn new() -> Host {
            let peers = PeerTable::new(1);
            let at = peers.configure(PEER).unwrap();
            let mut host = Host { peers, at, silences: Silences::default(), now: 1000 };
            host.second(0, false);
            host
        }

        /// A second passes in which so many frames are sent, and something is heard or not.
        fn second(&mut self, sends: u64, hears: bool) {
            self.now += 1;
            let peer = self.peers.get(self.at).unwrap();
            peer.count(WorkerId::new(0).writer(), PeerCounter::OutPackets, sends);
            if hears {
                peer.heard(MAC, self.now);
            }
            self.silences.look(&self.peers.list(self.now), self.now);
        }

        fn seconds(&mut self, count: u32, sends: u64, hears: bool) {
            (0..count).for_each(|_| self.second(sends, hears));
        }

        fn refused(&mut self, why: Refusal) {
            self.silences.refused(self.at, why, self.now);
        }

        fn told(&self) -> Told {
            self.silences.told(self.at, self.now)
        }
    }

    #[test]
    fn frames_that_nothing_comes_back_after_are_counted() {
        let mut host = Host::new();
        host.seconds(10, 3, true);
        assert_eq!(host.told(), Told::default());
        host.seconds(30, 3, false);
        assert_eq!(host.told().unanswered, Some((29, 90)));
        host.second(3, true);
        assert_eq!(host.told(), Told::default());
        // The same holds for a peer that never said anything.
        let mut host = Host::new();
        host.seconds(5, 1, false);
        assert_eq!(host.told().unanswered, Some((4, 5)));
    }

    #[test]
    fn silence_on_both_sides_is_nothing() {
        let mut host = Host::new();
        host.second(1, true);
        host.seconds(1000, 0, false);
        assert_eq!(host.told(), Told::default());
        // The last word of a conversation is not answered.
        host.second(1, false);
        host.seconds(RESTS, 0, false);
        assert_eq!(host.told().unanswered, Some((RESTS, 1)));
        host.second(0, false);
        assert_eq!(host.told(), Told::default());
    }

    #[test]
    fn what_is_heard_ends_a_refusal() {
        let mut host = Host::new();
        host.seconds(3, 1, true);
        host.seconds(3, 1, false);
        host.refused(Refusal::NobodyListens);
        host.seconds(2, 1, false);
        host.refused(Refusal::NobodyListens);
        assert_eq!(host.told().refusal, Some((Refusal::NobodyListens, 2)));
        host.second(0, true);
        assert_eq!(host.told(), Told::default());
    }

    /// A daemon is back and has one-way traffic only: its frames are not refused any more.
    #[test]
    fn frames_that_are_not_refused_end_a_refusal() {
        let mut host = Host::new();
        host.second(1, false);
        for _ in 0..20 {
            host.refused(Refusal::NobodyListens);
            host.seconds(ARRIVED, 1, false);
            assert!(host.told().refusal.is_some());
        }
        host.second(1, false);
        assert_eq!(host.told().refusal, None);
        assert!(host.told().unanswered.is_some());
        // Nothing is sent, so the refusal stays.
        host.refused(Refusal::Unreachable);
        host.seconds(HOLDS, 0, false);
        assert!(host.told().refusal.is_some());
        host.second(0, false);
        assert_eq!(host.told().refusal, None);
    }

    #[test]
    fn a_next_hop_that_answers_ends_a_refusal() {
        let mut host = Host::new();
        let missing = |host: &mut Host| {
            host.refused(Refusal::NoNextHop);
            host.seconds(20, 1, false);
            assert_eq!(host.told().refusal.map(|(why, _)| why), Some(Refusal::NoNextHop));
        };
        missing(&mut host);
        host.peers.get(host.at).unwrap().set_mac(Some(MAC));
        host.second(1, false);
        assert_eq!(host.told().refusal, None);
        missing(&mut host);
        host.silences.answers(host.at);
        assert_eq!(host.told().refusal, None);
    }
}
