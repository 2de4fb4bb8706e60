//! Counters of the frames that the control thread got, for the operator.

/// Declares the counters: `counts! { /// Meaning. Name = "name"; .. }`.
macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        /// Counters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Count { $($(#[doc = $doc])+ $name),+ }

        const COUNTS: &[(Count, &str, &str)] = &[$((Count::$name, $text, concat!($($doc),+).trim_ascii())),+];
    };
}

counts! {
    /// ARP requests and neighbour solicitations for the endpoint that were answered.
    Answered = "answered";
    /// Pings of the endpoint that were answered.
    Echo = "echo";
    /// Pings of the endpoint beyond what is answered in a second.
    EchoLimit = "echo-limit";
    /// Queries for members of groups.
    Query = "query";
    /// Reports of other hosts that made an answer of our own needless.
    Suppressed = "suppressed";
    /// Another station claims the endpoint's address.
    Conflict = "conflict";
    /// A station claims the address of a neighbour that is known elsewhere: both are asked.
    Claim = "claim";
    /// ICMP errors that say that VXLAN for a peer arrives nowhere.
    Refused = "refused";
    /// Answers without a question.
    Unasked = "unasked";
    /// Frames that were dropped while the next hop to a peer was asked for: it did not answer, or
    /// newer ones took their place.
    NoAnswer = "no-answer";
    /// Frames that were dropped because too many wait for next hops.
    WaitingFull = "waiting-full";
    /// Next hops that were forgotten for others, because the table is full.
    NeighboursFull = "neighbours-full";
    /// Groups that were not joined, because the table is full.
    GroupsFull = "groups-full";
    /// Peers that cannot be sent to: of the other IP version, groups, or the endpoint itself.
    BadPeer = "bad-peer";
    /// Frames that are cut short, or contradict themselves.
    Malformed = "malformed";
    /// Frames with a wrong checksum.
    BadChecksum = "bad-checksum";
    /// Discovery from beyond the link, or membership messages that may have come from there (hop
    /// limit, Router Alert, source).
    NotLocal = "not-local";
    /// Fragments: nothing is put together here.
    Fragment = "fragment";
    /// Frames to or from other stations than they should be.
    Misdirected = "misdirected";
    /// Frames that came from the endpoint itself.
    Own = "own";
    /// Everything that is none of the endpoint's protocols, or that another station answers for it.
    Ignored = "ignored";
}

/// The counters.
#[derive(Clone, Debug)]
pub(crate) struct ControlCounts([u64; COUNTS.len()]);

impl Default for ControlCounts {
    fn default() -> ControlCounts {
        ControlCounts([0; COUNTS.len()])
    }
}

impl ControlCounts {
    /// Adds one to a counter.
    pub fn add(&mut self, count: Count) {
        if let Some(cell) = self.0.get_mut(count as usize) {
            *cell = cell.wrapping_add(1);
        }
    }

    /// Returns name, meaning and value of each counter.
    pub fn list(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        COUNTS.iter().zip(&self.0).map(|((_, name, meaning), value)| (*name, *meaning, *value))
    }

    /// Returns the value of one counter.
    pub fn of(&self, count: Count) -> u64 {
        self.0.get(count as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn counters_have_their_own_places_and_names() {
        let names: HashSet<&str> = COUNTS.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(names.len(), COUNTS.len());
        let mut counts = ControlCounts::default();
        for (n, (count, ..)) in COUNTS.iter().enumerate() {
            for _ in 0..=n {
                counts.add(*count);
            }
        }
        assert!(
            counts
                .list()
                .enumerate()
                .all(|(n, (_, meaning, value))| value == n as u64 + 1 && meaning.ends_with('.'))
        );
        assert_eq!(counts.of(Count::Ignored), COUNTS.len() as u64);
    }
}
