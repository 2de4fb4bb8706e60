//! An upgrade as the daemon that runs sees it: begun by a client, carried out between requests.

use super::Daemon;
use crate::{
    checkpoint::Kept,
    dataplane::Dataplane,
    events::{Kind, Note},
    holding::Holding,
    poison::Poison,
    upgrade::{Case, Step, passage, program::Program, prove},
};
use butterfly_api::{
    Answer, Failure,
    proto::{Response, UpgradeCommitRes, UpgradeReq},
};
use butterfly_datapath::LinkState;
use butterfly_holder::protocol;
use protobuf::MessageField;
use std::{io, os::unix::ffi::OsStringExt, path::PathBuf};
use tracing::{error, info, warn};

impl<D: Dataplane> Daemon<D> {
    /// Hears that somebody called: SIGHUP, or the end of a proof.
    pub(super) fn hear_calls(&mut self) {
        if self.upgrade.hung_up() {
            self.reload();
        }
        if self.upgrade.calls().take_uplink() {
            self.begin_anew();
        }
        self.hear_proof();
    }

    /// Begins an upgrade at a client's wish.
    pub(super) fn begin_upgrade(&mut self, request: &UpgradeReq) -> Answer {
        let path = request.program.as_ref().map_or_else(|| self.upgrade.usual(), PathBuf::from);
        self.begin_upgrade_to(|| Program::open(&path))
    }

    /// Has this program begin anew, as the uplink can be opened now.
    fn begin_anew(&mut self) {
        info!("the uplink can be opened now: this program begins anew with it");
        let own = || Program::own().map_err(|why| format!("it cannot be read: {why}"));
        if let Err(failure) = self.begin_upgrade_to(own) {
            warn!("not now: {}", failure.description.unwrap_or_default());
        }
    }

    fn begin_upgrade_to(&mut self, program: impl FnOnce() -> Result<Program, String>) -> Answer {
        let refused =
            |why: &str| Failure::new(format!("no upgrade: {why}")).with_help("nothing has changed");
        if self.holding.is_none() {
            return Err(refused(
                "without --state-dir nothing outlasts the daemon: stop it and start the other one",
            ));
        }
        if let Some(step) = self.upgrade.step.name() {
            return Err(refused(&format!("another one is under way: {step}")));
        }
        let Some(keeper) = &self.keeper else { return Err(refused("there is no store")) };
        if let Some(why) = keeper.trouble() {
            return Err(refused(&why));
        }
        // What is proved on one layout would find another.
        if keeper.is_raising() {
            return Err(refused("the store is being rewritten in the newest layout: ask again"));
        }
        let program = program().map_err(|why| refused(&why))?;
        let text = format!("an upgrade to {} began", program.named().display());
        info!("{text}");
        keeper.client.copy(&keeper.directory.join(butterfly_store::COPY));
        self.upgrade.failed = None;
        self.upgrade.step = Step::Copying(program);
        self.note(Kind::UpgradeBegan, text);
        Ok(Response::new())
    }

    /// Has the store rewritten in the newest layout. The answer waits for that. From then on the
    /// release before cannot go on any more.
    pub(super) fn commit_upgrade(&mut self) -> Answer {
        let refused =
            |why: &str| Failure::new(format!("no commit: {why}")).with_help("nothing has changed");
        if let Some(step) = self.upgrade.step.name() {
            return Err(refused(&format!("an upgrade is under way: {step}")));
        }
        let Some(keeper) = &mut self.keeper else {
            return Err(refused("without --state-dir there is no store"));
        };
        let (from, to) = (keeper.layout, butterfly_layout::newest());
        if from != to {
            keeper.raise(to);
        }
        let records = keeper.records_of(&self.desired) as u64;
        let done = UpgradeCommitRes {
            from: Some(from),
            to: Some(to),
            records: Some(records),
            ..Default::default()
        };
        Ok(Response { upgrade_commit: MessageField::some(done), ..Default::default() })
    }

    /// Writes all that outlasts this process in the layout of the store, if that is another one by
    /// now.
    pub(super) fn follow_layout(&mut self) {
        let Some(layout) = self.keeper.as_ref().map(|keeper| keeper.layout) else { return };
        let before = butterfly_layout::known();
        if before == Some(layout) || !butterfly_layout::put_in_force(layout) {
            return;
        }
        // Each part that has a layout says which: whenever this ends, a successor reads all.
        let kept = self.holding.as_ref().map(Holding::keep_layout);
        if let Some(Err(why)) = kept {
            let text = format!("the layout is not kept for a restart: {why}");
            error!("{text}");
            self.note(Kind::NotKept, text);
        }
        self.kept.iter().for_each(Kept::keep_all);
        self.poison.iter().for_each(Poison::follow_layout);
        self.dataplane.follow_layout();
        if let Some(before) = before {
            let text = format!(
                "the upgrade is committed: what is kept has layout {layout}, and had layout {before}"
            );
            info!("{text}");
            self.events.note(Note::new(Kind::UpgradeCommitted, text));
        }
    }

    /// Hears that the store was copied, or not.
    pub(super) fn store_copied(&mut self, outcome: Result<(), String>) {
        let Step::Copying(program) = std::mem::take(&mut self.upgrade.step) else { return };
        let begun = outcome.map_err(|why| format!("the store cannot be copied: {why}"));
        let begun = begun.and_then(|()| {
            let case = self.case().map_err(|why| format!("what is kept cannot be read: {why}"))?;
            let calls = self.upgrade.calls();
            let told = move || calls.call();
            prove(program, &case, told).map_err(|why| format!("it cannot be started: {why}"))
        });
        match begun {
            Ok(outcome) => self.upgrade.step = Step::Proving(outcome),
            Err(why) => self.upgrade_failed(&why),
        }
    }

    /// Copies all that a successor finds.
    fn case(&self) -> io::Result<Case> {
        let lease = self.holding.as_ref().map(|holding| holding.lease());
        let directory = self.keeper.as_ref().map(|keeper| keeper.directory.clone());
        let directory = directory.unwrap_or_default();
        Ok(Case {
            words: passage::words().into_iter().map(OsStringExt::into_vec).collect(),
            layout: butterfly_layout::in_force(),
            holder: protocol::VERSION,
            store: directory.join(butterfly_store::COPY),
            state_dir: directory,
            listens: self.reload.listens(),
            socket_dir: self.socket_dir.path().to_owned(),
            declaration: self.declaration_bytes()?,
            front_ends: lease.map(|lease| lease.states()).transpose()?.unwrap_or_default(),
            checkpoint: self.kept.as_ref().map(|kept| kept.texts()).unwrap_or_default(),
            sessions: self.upgrade.sessions(),
            uplink_is_open: self.has_uplink(),
        })
    }

    fn has_uplink(&self) -> bool {
        self.dataplane.uplink().is_some_and(|it| it.state != Some(LinkState::NotOpen))
    }

    /// Hears how the proof ended, if it did.
    fn hear_proof(&mut self) {
        let Step::Proving(outcome) = &self.upgrade.step else { return };
        let outcome = outcome.take();
        match outcome {
            None => {}
            Some(Ok(program)) => self.upgrade.step = Step::Proved(program),
            Some(Err(why)) => self.upgrade_failed(&why),
        }
    }

    /// Says that an upgrade failed: this program goes on.
    pub fn upgrade_failed(&mut self, why: &str) {
        let text = format!("the upgrade failed, and this program goes on: {why}");
        error!("{text}");
        self.upgrade.step = Step::None;
        self.upgrade.failed = Some(why.to_owned());
        self.origin = None;
        self.note(Kind::UpgradeFailed, text);
    }

    /// True if another program is to go on, as soon as no change waits for the store.
    pub(super) fn is_proved(&self) -> bool {
        let idle = self.keeper.as_ref().is_none_or(|it| it.in_store.is_none() && !it.differs());
        idle && matches!(self.upgrade.step, Step::Proved(_))
    }

    /// Takes the program that is to go on.
    pub fn take_proved(&mut self) -> Option<Program> {
        match std::mem::take(&mut self.upgrade.step) {
            Step::Proved(program) => Some(program),
            other => {
                self.upgrade.step = other;
                None
            }
        }
    }
}
