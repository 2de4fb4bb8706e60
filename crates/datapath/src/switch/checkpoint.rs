//! Checkpoints of a switch, and their takeover by its successor: see [`crate::checkpoint`].

use crate::checkpoint::{Former, Noted, TakenOver, counters, rules, stations, take_over};
use crate::switch::Switch;

impl Switch {
    /// Notes all counters, in at most `room` bytes. A number that was read before this call is not
    /// larger than the one that is noted. Takes no lock that a request holds while it waits for
    /// workers.
    pub fn note_counters(&self, room: usize) -> Noted {
        counters::note(self.plane(), self.side(), room)
    }

    /// Notes the sessions that each rule admitted, in at most `room` bytes.
    pub fn note_rules(&self, room: usize) -> Noted {
        rules::note(self.plane(), room)
    }

    /// Notes all learnt addresses, in at most `room` bytes.
    pub fn note_stations(&self, room: usize) -> Noted {
        stations::note(self.plane(), room)
    }

    /// Gives the table of sessions the version of the layout in force. All else is noted anew.
    pub fn follow_layout(&self) {
        self.plane().shared.table.follow_layout();
    }

    /// Goes on with what a former process noted. The caller has declared everything, and the switch
    /// does not [go](Switch::go) yet. Fails if it does, and has changed nothing then.
    pub fn take_over(&self, former: Former<'_>) -> Result<TakenOver, std::io::Error> {
        let runs = || std::io::Error::other("the switch runs already");
        let handle = self.plane().board.first().ok_or_else(runs)?;
        // The worker's right to write its cells: it cannot start meanwhile.
        let id = handle.claim().ok_or_else(runs)?;
        let taken = take_over(self.plane(), self.side(), id.writer(), former);
        handle.give_back(id);
        Ok(taken)
    }
}
