//! Serving, and the ways in which that ends.

use super::Running;
use crate::{
    checkpoint::Kept,
    events::{Kind, Note},
    handlers::Daemon,
    host::signals::Stop,
    recorder::Recorder,
    upgrade::{passage, program::Program},
};
use butterfly_api::server::ServerError;
use butterfly_datapath::Switch;
use butterfly_layout::rehearsal;
use butterfly_mem::linger;
use std::{os::fd::AsFd, sync::Arc, time::Duration};
use tracing::{debug, error, info, warn};

/// Time in which what is recorded has to be written before another program goes on.
const RECORDER_PATIENCE: Duration = Duration::from_secs(2);

/// Time in which the program that goes on should be forwarding. Then the memory of this one is
/// unmapped beside it.
const KEPT: Duration = Duration::from_millis(500);

/// Way in which serving ended.
pub(super) enum Ended {
    /// A signal asked for it.
    Signal,
    /// A client asked for it.
    Quit,
    /// It cannot go on.
    Failed(ServerError),
    /// Another program goes on.
    Upgraded(Program),
}

impl Running {
    /// Answers clients until that ends.
    pub(super) fn serve(&mut self) -> Ended {
        loop {
            let served =
                self.server.serve(&mut self.envelope, self.stop.as_fd(), |daemon| daemon.quit);
            let daemon = self.envelope.handler_mut();
            if let Err(why) = served {
                return Ended::Failed(why);
            }
            if daemon.quit {
                return Ended::Quit;
            }
            // Whoever stops the daemon wants no other program in its place.
            if self.stop.is_asked() {
                return Ended::Signal;
            }
            let Some(program) = daemon.take_proved() else { return Ended::Signal };
            // A disk that hangs shall not keep the traffic.
            if !daemon.recorder.gets_on(RECORDER_PATIENCE) {
                daemon.upgrade_failed("what is recorded cannot be written: disk?");
                continue;
            }
            return match self.stop.is_asked() {
                true => Ended::Signal,
                false => Ended::Upgraded(program),
            };
        }
    }

    /// Ends the process, or the service.
    pub(super) fn end(self, ended: Ended) -> Result<(), Box<dyn std::error::Error>> {
        let Running { server, envelope, watchdog, writing, releasing, end, .. } = self;
        let (quit, outcome) = match ended {
            Ended::Upgraded(program) => {
                server.leave_files();
                drop(server);
                drop(writing);
                drop(end);
                pass_on(envelope.into_handler(), &program, &self.stop);
            }
            Ended::Signal => (false, Ok(())),
            Ended::Quit => (true, Ok(())),
            Ended::Failed(why) => (false, Err(why)),
        };
        info!("stopping");
        envelope.handler().upgrade.end_proof();
        if let Some(notify) = &self.notify {
            notify.say("STOPPING=1\nSTATUS=stopping");
        }
        if !quit {
            let told = "a signal asked the daemon to stop";
            self.events.note(Note::new(Kind::DaemonStopping, told));
        }
        let mut daemon = envelope.into_handler();
        // They are told before the API goes: who finds nobody there may start another daemon.
        let goes_on = daemon.holding.as_ref().filter(|_| !quit).map(|it| it.lease().stopping());
        if let Some(Ok(())) = goes_on {
            server.leave_files();
        }
        // The client that asked to quit gets the reply while the rest is taken down.
        drop(server);
        // They hold the switch, too.
        drop(watchdog);
        drop(writing);
        drop(releasing);
        daemon.kept = None;
        match goes_on {
            Some(Ok(())) => {
                // Another one goes on: nothing is taken down, as after a death.
                std::mem::forget(daemon);
                self.writer.finish();
                return Ok(outcome?);
            }
            Some(Err(why)) => {
                warn!("nothing outlasts this stop, as the holder is gone: {why}");
            }
            None => {}
        }
        daemon.remove_all();
        if let Some(holding) = daemon.holding.take() {
            // Without a holder everything has ended.
            let _ = holding.lease().end();
        }
        // The switch, which the metrics hold, too, holds the last announcer.
        drop(daemon);
        self.writer.finish();
        Ok(outcome?)
    }
}

/// Has this process become another program. Nothing is taken down: that goes on with all.
///
/// A signal that came until then stops the daemon, as at any time.
fn pass_on(mut daemon: Daemon<Arc<Switch>>, program: &Program, stop: &Stop) -> ! {
    info!("{} goes on in the place of this program", program.named().display());
    // What is recorded is in its files. While that takes time, frames are forwarded.
    daemon.recorder = Recorder::idle();
    // The store's writer ends: the next one gets the lock.
    daemon.keeper = None;
    // All that can be done while frames are forwarded.
    daemon.dataplane.rest();
    if daemon.dataplane.memory_may_stay()
        && let Err(why) = linger::keep_memory(KEPT)
    {
        debug!("the memory of guests is unmapped on the way: {why}");
    }
    let since = passage::now();
    daemon.dataplane.halt();
    daemon.kept.iter().for_each(Kept::keep_all);
    let renewed = daemon.holding.iter().try_for_each(|holding| holding.lease().renew());
    rehearsal::pass("boundary");
    if stop.is_asked() {
        let text = "a signal asked the daemon to stop";
        info!("stopping: {text}");
        daemon.events.note(Note::new(Kind::DaemonStopping, text));
        daemon.kept.iter().for_each(Kept::keep_all);
        if let Some(Err(why)) = daemon.holding.as_ref().map(|it| it.lease().stopping()) {
            warn!("nothing outlasts this stop, as the holder is gone: {why}");
        }
        std::process::exit(0);
    }
    let failed = passage::become_program(program, since);
    error!("{} cannot be executed: {failed}", program.named().display());
    if renewed.is_ok() {
        let why = format!("it cannot be executed: {failed}");
        error!("nor can this program begin again: {}", passage::begin_again(&why));
    }
    // As after a crash: the service manager starts another one.
    std::process::exit(1)
}
