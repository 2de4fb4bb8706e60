//! A vnic between the sockets of a front end and of a daemon, for fuzzing. Nothing else of the
//! holder runs: nobody comes to its listening socket, there is no closer, and time does not pass.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Left, PARTS, Registered, TRIES, Vnic, What};
use crate::{
    closer::Closer,
    protocol::{MAX_KEPT, MAX_MESSAGE, MAX_STATE, Role},
    server::{
        passing::{Giver, Pass, Taker, copy_of},
        times::Times,
    },
};

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1 << 20);

/// A vnic whose front ends and daemons are the test's.
pub struct Between {
    vnic: Vnic,
    closer: Closer,
    times: Times,
}

/// Both ends of a new connection.
fn pair(kind: SocketType) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

impl Between {
    /// Makes a vnic that nobody has connected to.
    pub fn new(role: Role) -> Between {
        let registered = Registered { birth: 1, role, path: "/nowhere".into() };
        let times = Times { patience: NEVER, returns: NEVER, stays: NEVER, ..Times::default() };
        let (listener, _) = pair(SocketType::STREAM).expect("a pair of sockets");
        let listener = (role == Role::Server).then_some(listener);
        Between { vnic: Vnic::new(registered, listener), closer: Closer::default(), times }
    }

    /// Has the vnic pass to a successor of the holder, as far as one process can play both.
    pub fn hand_over(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        let mut given = Giver::new(now);
        self.vnic.give(&mut given);
        let bytes = given.whole();
        let copies = given.files.iter().map(|file| Ok((file.as_raw_fd(), copy_of(file)?)));
        let copies = copies.collect::<std::io::Result<_>>()?;
        let mut from = Taker::new(&bytes, copies, now)?;
        let vnic = Vnic::take(&mut from)?;
        assert!(from.end()?.is_empty(), "a descriptor is nobody's");
        let mut again = Giver::new(now);
        vnic.give(&mut again);
        assert!(again.is_like(&given), "it is not as it was");
        self.vnic = vnic;
        Ok(())
    }

    /// Lets a front end come. Returns its end.
    pub fn connect(&mut self) -> std::io::Result<OwnedFd> {
        let (ours, theirs) = pair(SocketType::STREAM)?;
        self.vnic.came(ours, &mut self.closer);
        Ok(theirs)
    }

    /// Gives the vnic to a new daemon; the one before is gone. Returns its end.
    pub fn lease(&mut self) -> std::io::Result<OwnedFd> {
        let (ours, theirs) = pair(SocketType::SEQPACKET)?;
        self.vnic.get_daemon(ours);
        Ok(theirs)
    }

    /// Takes the vnic from its daemon, which died or not.
    pub fn lose_daemon(&mut self, died: bool) {
        self.vnic.lose_daemon(if died { Left::Died } else { Left::InOrder });
    }

    /// Does what can be done without waiting.
    pub fn turn(&mut self) {
        let deaf = self.vnic.channel.is_none();
        self.vnic.turn(&self.times, deaf, &mut self.closer, &mut None);
    }

    /// Returns what is wrong with the vnic, if something is: bounds, and what a successor gets.
    pub fn fault(&self) -> Option<String> {
        let vnic = &self.vnic;
        let (state, kept) = vnic.state();
        let wrong = |what: &str| Some(what.to_owned());
        if vnic.state.len() > MAX_STATE || vnic.kept.len() > MAX_KEPT {
            return wrong("more is kept than a packet holds");
        }
        if state.is_some() && vnic.connection().is_none() || state.is_none() && !kept.is_empty() {
            return wrong("a state of nobody");
        }
        match &vnic.pending {
            Some(pending) if pending.number > vnic.number => wrong("a number of the future"),
            Some(pending) => match &pending.what {
                What::Message { bytes, .. } if bytes.len() > MAX_MESSAGE => wrong("too long"),
                What::Message { .. } if pending.blame >= (TRIES + 1) * PARTS => {
                    wrong("it killed more daemons than it may")
                }
                What::Message { .. } if pending.handed && pending.blame < PARTS => {
                    wrong("a daemon has it that does not count")
                }
                What::Message { .. } | What::Connected { .. } if vnic.front.is_none() => {
                    wrong("a message of nobody")
                }
                _ => None,
            },
            None => None,
        }
    }
}
