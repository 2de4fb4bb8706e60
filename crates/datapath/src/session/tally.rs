//! Number of sessions by state. The sweep counts, as it looks at each session anyway; reports do
//! not.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::state::State;

/// Numbers of states are below this.
const STATES: usize = 32;

/// Counts that the sweep writes, and any thread reads.
#[derive(Default)]
pub(crate) struct Tally {
    counting: [AtomicU32; STATES],
    counted: [AtomicU32; STATES],
}

impl Tally {
    /// Begins a sweep.
    pub fn begin(&self) {
        self.counting.iter().for_each(|cell| cell.store(0, Relaxed));
    }

    /// Counts a session that stays, in this state.
    pub fn add(&self, state: State) {
        if let Some(cell) = self.counting.get(usize::from(state.number())) {
            cell.store(cell.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// Publishes the counts at the end of a sweep.
    pub fn publish(&self) {
        for (counted, counting) in self.counted.iter().zip(&self.counting) {
            counted.store(counting.load(Relaxed), Relaxed);
        }
    }

    /// Clears the counts of an empty table.
    pub fn clear(&self) {
        self.begin();
        self.publish();
    }

    /// Returns protocol, state and number of sessions, for every state.
    pub fn list(&self) -> impl Iterator<Item = (&'static str, &'static str, u32)> {
        (0..STATES as u8).zip(&self.counted).filter_map(|(number, count)| {
            let state = State::from_number(number);
            (state.number() == number)
                .then(|| (state.protocol(), state.name(), count.load(Relaxed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::tcp::TcpState;
    use std::collections::HashSet;

    #[test]
    fn a_sweep_shows_when_it_is_complete() {
        let tally = Tally::default();
        let total = || tally.list().map(|(.., n)| n).sum::<u32>();
        tally.begin();
        tally.add(State::UdpNew);
        tally.add(State::UdpNew);
        tally.add(State::Tcp(TcpState::Cut));
        assert_eq!(total(), 0);
        tally.publish();
        let moved: Vec<_> = tally.list().filter(|(.., n)| *n > 0).collect();
        assert_eq!(moved, [("tcp", "cut", 1), ("udp", "new", 2)]);
        tally.begin();
        assert_eq!(total(), 3);
        tally.clear();
        assert_eq!(total(), 0);
    }

    #[test]
    fn states_of_a_protocol_have_their_own_names() {
        let names: Vec<_> =
            Tally::default().list().map(|(protocol, state, _)| (protocol, state)).collect();
        assert_eq!(names.len(), 16);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    }
}
