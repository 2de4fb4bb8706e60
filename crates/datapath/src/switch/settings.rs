//! Settings that change while frames pass.

use crate::session::{SessionTimes, Timeouts};
use crate::switch::Switch;

impl Switch {
    /// Gives sessions other time-outs, and other seconds after an attachment in which connections
    /// may be picked up. Sessions that there are obey them, too. When it returns, no worker judges
    /// by the ones before.
    pub fn set_session_times(&self, timeouts: Timeouts, tcp_pickup: u32) {
        let timeouts = timeouts.with_pickup(tcp_pickup);
        self.plane().set_session_times(SessionTimes { timeouts, tcp_pickup });
    }

    /// Gives learnt addresses, and other hosts that were learnt, so many silent seconds.
    pub fn set_fdb_ageing(&self, seconds: u32) {
        self.plane().shared.fdb.set_ageing(seconds);
    }
}
