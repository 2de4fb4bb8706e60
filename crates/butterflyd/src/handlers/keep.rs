//! Everything declared is kept in a store: changes go there in groups, and come back at the start.
//!
//! A change is made at once in [`Daemon::desired`] and in the data path, and noted in the
//! [`Keeper`]. While its group waits for the store, others see the state before. If the commit
//! fails, the daemon goes back to that.

use super::{
    Daemon,
    apply::{come_again, name_of},
    convert,
    records::object,
};
use crate::{
    dataplane::Dataplane,
    events::{Kind, Note},
    keeper::{Keeper, Missing, peer_name, read_nat_key, read_neighbour_key},
};
use butterfly_api::{Action, Failure};
use butterfly_control::{Declaration, Desired, Unnamed, plan};
use butterfly_layout::rehearsal;
use butterfly_model::{NatRule, Vni};
use butterfly_point::{Point, pass};
use butterfly_store::{Client, Contents, Key, Report, Sort};
use protobuf::Message;
use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};
use tracing::{error, info, warn};

/// Most objects that a text names.
pub(super) const NAMES: usize = 20;

impl<D: Dataplane> Daemon<D> {
    /// Commits a change of the desired state.
    pub(super) fn commit(&mut self, prepared: butterfly_control::Prepared) {
        if let Some(keeper) = &mut self.keeper {
            keeper.note(prepared.change(), &self.desired);
        }
        self.desired.commit(prepared);
    }

    /// Says that changes are those of the configuration, which are not kept, or are not any more.
    pub(super) fn configuring(&mut self, configuring: bool) {
        if let Some(keeper) = &mut self.keeper {
            keeper.configuring = configuring;
        }
    }

    pub(super) fn hand_over_changes(&mut self) {
        if let Some(keeper) = &mut self.keeper
            && keeper.in_store.is_none()
            && keeper.differs()
        {
            keeper.hand_over(&self.desired);
        }
    }

    /// Refuses a change that the store cannot keep.
    pub(super) fn is_kept(&self) -> Result<(), Failure> {
        match self.store_trouble() {
            Some(why) => Err(refused(&why)),
            None => Ok(()),
        }
    }

    /// Deletes a vnic that this host does not take, which is the way out if it never will.
    pub(super) fn gives_up(&mut self, action: &Action<'_>) -> bool {
        let Action::NicDel(id) = action else { return false };
        let given_up = self.degraded.is_none()
            && self.keeper.as_mut().is_some_and(|keeper| keeper.give_up(id, &self.desired));
        if given_up {
            let text = format!("nic {id:?}, which this host did not take, is declared no more");
            info!("{text}");
            self.note(Kind::NicRemoved, text);
        }
        given_up
    }

    /// Returns why changes are refused, if they are.
    pub(super) fn store_trouble(&self) -> Option<String> {
        let degraded = self.degraded.as_ref().map(|degraded| degraded.why().to_owned());
        degraded.or_else(|| self.keeper.as_ref().and_then(Keeper::trouble))
    }

    /// Hears what the store says.
    pub(super) fn hear_store(&mut self) -> Option<Result<(), Failure>> {
        let mut outcome = None;
        while outcome.is_none()
            && let Some(report) = self.keeper.as_ref().and_then(|keeper| keeper.client.next())
        {
            outcome = self.hear(report);
        }
        self.try_again();
        self.tell_of_trouble();
        outcome
    }

    /// Keeps what is declared behind `client`, from now on. Reads the store; see
    /// [`read_store`](Self::read_store).
    ///
    /// `configured`: the state that the configuration declares.
    pub fn keep(
        &mut self,
        client: Client,
        directory: PathBuf,
        configured: Desired,
        patience: Duration,
    ) {
        self.keeper = Some(Keeper::new(client, directory, configured, encoded));
        self.read_store(patience);
    }

    /// Reads the store at the start. A store that does not answer within `patience` is read when it
    /// does.
    fn read_store(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        while let Some(keeper) = self.keeper.as_ref().filter(|keeper| !keeper.read) {
            let left = end.saturating_duration_since(Instant::now());
            match keeper.client.wait(left) {
                Some(report) => drop(self.hear(report)),
                None => break,
            }
            // Another process may be about to end that has it.
            if self.keeper.as_ref().is_some_and(|keeper| keeper.is_hopeless()) {
                break;
            }
        }
        self.tell_of_trouble();
    }

    fn hear(&mut self, report: Report) -> Option<Result<(), Failure>> {
        let keeper = self.keeper.as_mut()?;
        match report {
            Report::Opened(contents, aside) => return self.opened(contents, aside),
            Report::Closed(why) => {
                let path = keeper.directory.display();
                keeper.closed = Some(format!("the store in {path} cannot be used: {why}"));
            }
            // The commit that it has, if any, is looked for when the next one has the store open.
            Report::Died => {
                keeper.closed = Some("the writer of the store ended".to_owned());
                self.store_copied(Err("its writer ended".to_owned()));
            }
            Report::Copied(outcome) => self.store_copied(outcome),
            Report::Done(sequence) => {
                if keeper.in_store.is_some_and(|(number, _)| number == sequence) {
                    pass(Point::CommitHeard);
                    let before = keeper.layout;
                    keeper.committed(sequence, &self.desired);
                    if keeper.layout != before {
                        rehearsal::pass("raised");
                    }
                    self.follow_layout();
                    self.keep_declared();
                    pass(Point::CommitKept);
                    return Some(Ok(()));
                }
            }
            Report::Failed(sequence, why) => {
                if keeper.in_store.is_some_and(|(number, _)| number == sequence) {
                    keeper.in_store = None;
                    // Until it is open again.
                    keeper.closed = Some(format!("the store failed: {why}"));
                    return Some(Err(self.undo(&why)));
                }
            }
        }
        None
    }

    /// The store is open, for the first time or after trouble.
    fn opened(&mut self, contents: Contents, aside: Option<String>) -> Option<Result<(), Failure>> {
        let keeper = self.keeper.as_mut()?;
        keeper.closed = None;
        if let Some(aside) = aside {
            let text = format!("the store was damaged and is set aside as {aside}");
            error!("{text}");
            self.events.note(Note::new(Kind::StoreSetAside, text));
            keeper.aside = Some(aside);
        }
        if !keeper.read {
            // A new one in place of a damaged one gets what the daemon before this one had
            // declared: never is that replaced by nothing.
            let layout = contents.layout;
            if contents.sequence == 0 && contents.records.is_empty() {
                keeper.layout = butterfly_layout::known().unwrap_or(layout);
                keeper.adopt(&self.desired, layout);
            } else {
                keeper.layout = layout;
                self.load(contents);
            }
            self.follow_layout();
            self.keep_declared();
            return None;
        }
        let here = contents.sequence;
        match keeper.in_store.take() {
            Some((sequence, _)) if sequence == here => {
                keeper.committed(sequence, &self.desired);
                self.follow_layout();
                self.keep_declared();
                Some(Ok(()))
            }
            in_store => {
                let expected = keeper.sequence;
                // One that was damaged, or that has what was undone, is written anew.
                keeper.sequence = expected.max(here);
                let outcome = in_store.map(|_| Err(self.undo("its writer ended")));
                if here != expected {
                    self.keeper.as_mut()?.write_anew();
                }
                outcome
            }
        }
    }

    /// Goes back to the committed state. Returns the answer to the requests that are undone.
    fn undo(&mut self, why: &str) -> Failure {
        let Some(keeper) = &mut self.keeper else { return refused(why) };
        let undone = keeper.changes.len();
        keeper.restore_births();
        let before = keeper.committed.clone();
        keeper.silent = true;
        let lost = self.carry_out_all(&before);
        let text = format!("a commit failed and {undone} changes are undone: {why}");
        error!("{text}");
        self.events.note(Note::new(Kind::StoreTrouble, text));
        let Some(keeper) = &mut self.keeper else { return refused(why) };
        keeper.silent = false;
        keeper.missing = None;
        if lost.is_empty() {
            return refused(&format!("the store failed: {why}"));
        }
        keeper.missing = Some(Missing::of(before, lost.clone()));
        Failure::new(format!("the store failed: {why}"))
            .with_help(format!("this could not be undone: {}", lost.join("; ")))
    }

    /// Makes all changes to `state` that this host takes; the others in words.
    pub(super) fn carry_out_all(&mut self, state: &Desired) -> Vec<String> {
        // What is declared already is not refused for what this host lacks.
        self.missing_wires.restoring = true;
        let changes = plan(&self.desired, state);
        let again = come_again(&changes);
        let mut lost = Vec::new();
        for change in changes {
            self.turns.taken();
            let about = name_of(&change);
            if let Err(failure) = self.change_of_plan(change, &again) {
                let text = about.failure(failure).description.unwrap_or_default();
                warn!("not as declared: {text}");
                if lost.len() < NAMES {
                    lost.push(text);
                }
            }
        }
        self.missing_wires.restoring = false;
        lost
    }

    /// Declares what the store has.
    fn load(&mut self, contents: Contents) {
        let Contents { sequence, next_birth, layout, records } = contents;
        let (mut objects, mut invalid, mut births) = (Vec::new(), Vec::new(), HashMap::new());
        let count = records.len();
        for (key, value) in records {
            match object(&key, &value, layout, &self.socket_dir) {
                Ok((object, birth)) => {
                    births.extend(birth.map(|birth| (key.name, birth)));
                    objects.push((birth.map_or(0, |birth| birth.place), object));
                }
                Err(why) => invalid.push(format!("{:?} {:?}: {why}", key.sort, key.name)),
            }
        }
        objects.sort_by_key(|(place, _)| *place);
        let objects = objects.into_iter().map(|(_, object)| object);
        let configured = self.keeper.as_ref().map(|keeper| keeper.committed.clone());
        let state = valid(configured.unwrap_or_default(), objects.collect(), &mut invalid);
        let Some(keeper) = &mut self.keeper else { return };
        keeper.sequence = sequence;
        let highest = births.values().map(|birth| birth.number.max(birth.place)).max();
        keeper.next_birth = next_birth.max(highest.map_or(1, |highest| highest.saturating_add(1)));
        keeper.births = births;
        invalid.truncate(NAMES);
        keeper.invalid = invalid;
        keeper.read = true;
        keeper.silent = true;
        let lost = self.carry_out_all(&state);
        let Some(keeper) = &mut self.keeper else { return };
        keeper.silent = false;
        keeper.committed = state.clone();
        let path = keeper.directory.display().to_string();
        if !lost.is_empty() {
            keeper.missing = Some(Missing::of(state, lost));
        }
        let text = format!("{count} objects declared from the store in {path}, commit {sequence}");
        info!("{text}");
        self.events.note(Note::new(Kind::StoreOpened, text));
    }

    /// Notes that this host has not all of `state`, which stays declared, and that it is tried
    /// again. False if nothing is kept, so that what is lost is gone.
    pub(super) fn note_missing(&mut self, state: Desired, lost: Vec<String>) -> bool {
        match &mut self.keeper {
            Some(keeper) => keeper.missing = Some(Missing::of(state, lost)),
            None => return false,
        }
        true
    }

    /// Declares what this host did not take, if it is time.
    fn try_again(&mut self) {
        let due = |missing: &mut Missing| missing.again <= Instant::now();
        let Some(keeper) = &mut self.keeper else { return };
        let Some(Missing { state, .. }) = keeper.missing.take_if(due) else { return };
        keeper.silent = true;
        let lost = self.carry_out_all(&state);
        let Some(keeper) = &mut self.keeper else { return };
        keeper.silent = false;
        if !lost.is_empty() {
            keeper.missing = Some(Missing::of(state, lost));
        }
    }

    /// Tells of trouble when it comes and when it goes.
    fn tell_of_trouble(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let trouble = keeper.trouble();
        if trouble == keeper.told {
            return;
        }
        let text = match &trouble {
            Some(why) => format!("changes are refused: {why}"),
            None => "the store keeps changes again".to_owned(),
        };
        keeper.told = trouble;
        warn!("{text}");
        self.events.note(Note::new(Kind::StoreTrouble, text));
    }
}

/// The content of a record, behind the numbers of a vnic.
pub(super) fn encoded(key: &Key, state: &Desired) -> Option<Vec<u8>> {
    let name = key.name.as_str();
    let bytes = match key.sort {
        Sort::Vnic => convert::nic_details(state.vnics().get(name)?, None).write_to_bytes(),
        Sort::Group => convert::group_details(state.groups().get(name)?).write_to_bytes(),
        Sort::Peer => {
            let peer = state.peers().iter().find(|peer| peer_name(peer) == name)?;
            convert::peer_details(peer).write_to_bytes()
        }
        Sort::Network => {
            let vni = Vni::new(name.parse().ok()?).ok()?;
            convert::network_details(state.routed().network(vni)?).write_to_bytes()
        }
        Sort::Router => convert::router_details(state.routed().router(name)?).write_to_bytes(),
        Sort::External => {
            convert::external_details(state.routed().external(name)?).write_to_bytes()
        }
        Sort::Nat => {
            let (external, place) = read_nat_key(name)?;
            let (router, nat) = state.routed().nat(&external, &place)?;
            let rule = NatRule { router: router.clone(), external, nat: *nat };
            convert::nat_details(&rule).write_to_bytes()
        }
        Sort::Neighbour => {
            let (vni, address) = read_neighbour_key(name)?;
            convert::neighbour_details(state.routed().neighbour(vni, address)?).write_to_bytes()
        }
    };
    bytes.ok()
}

fn refused(why: &str) -> Failure {
    Failure::new(format!("not kept: {why}")).with_help("nothing was changed")
}

/// Returns `state` with all objects that are valid beside those before them. Tells why others are
/// not.
pub(super) fn valid(
    mut state: Desired,
    objects: Vec<Declaration>,
    invalid: &mut Vec<String>,
) -> Desired {
    // Halves of what is refused, down to single objects: there may be 262,144 neighbours, and each
    // attempt copies the state.
    let mut parts: Vec<&[Declaration]> = vec![&objects];
    while let Some(part) = parts.pop() {
        let mut all = Declaration::default();
        part.iter().for_each(|object| all.join(object.clone()));
        match state.with(all, Unnamed::Stay) {
            Ok(next) => state = next,
            Err(why) if part.len() <= 1 => invalid.push(why.to_string()),
            Err(_) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
        }
    }
    state
}
