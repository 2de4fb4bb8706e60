//! The store as the daemon sees it: changes on their way, births of vnics, trouble.

use butterfly_control::{Change, Desired, TunnelPeer};
use butterfly_model::{
    External, ExternalId, ForwardProtocol, Nat, NatPlace, NatRule, Neighbour, Nic, Vni, canonical,
    parse_ip,
};
use butterfly_store::{Client, Commit, Edit, Key, Sort};
use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};
use tracing::error;

/// Time after which a silent store is in trouble.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts to declare objects that the host refused.
const AGAIN: Duration = Duration::from_secs(5);

/// The numbers of a vnic that its declaration does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Never used for another vnic, nor for one of the same name that came later.
    pub number: u64,
    /// Place in the order of declaration: a birth number, too.
    pub place: u64,
}

/// Part of the store's content that this host does not take.
#[derive(Debug)]
pub struct Missing {
    /// The state to come to.
    pub state: Desired,
    /// Objects that were refused, and why.
    pub lost: Vec<String>,
    /// Time of the next attempt.
    pub again: Instant,
}

impl Missing {
    pub fn of(state: Desired, lost: Vec<String>) -> Self {
        Self { state, lost, again: Instant::now() + AGAIN }
    }
}

/// A place in the changes that wait for the store.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    changes: usize,
    replaced: usize,
}

/// Makes the content of a record: of the object `key` of a state.
pub type Encoded = fn(&Key, &Desired) -> Option<Vec<u8>>;

/// The connection to the store, and the changes between it and the daemon.
#[derive(Debug)]
pub struct Keeper {
    pub client: Client,
    /// Content of a record.
    encoded: Encoded,
    pub directory: PathBuf,
    /// The state that the store has.
    pub committed: Desired,
    /// Peers that the configuration names: they are not kept.
    configured: Vec<TunnelPeer>,
    pub births: HashMap<String, Birth>,
    pub next_birth: u64,
    /// Number of the last commit.
    pub sequence: u64,
    /// Layout of the store.
    pub layout: u32,
    /// Layout in which the store is to be rewritten.
    raising: Option<u32>,
    /// Changes since then, and the births that they replaced.
    pub changes: Vec<Change>,
    replaced: Vec<(String, Option<Birth>)>,
    made: u64,
    /// Commit in the store, and the time when it was handed over.
    pub in_store: Option<(u64, Instant)>,
    /// True while changes are those of the start or undo others: they are not noted.
    pub silent: bool,
    /// True while changes are those of the configuration: they are not kept.
    pub configuring: bool,
    /// True once the store was read.
    pub read: bool,
    /// Part of the store's content that this host does not take.
    pub missing: Option<Missing>,
    /// Objects of the store that are not valid.
    pub invalid: Vec<String>,
    /// Why the store cannot be used.
    pub closed: Option<String>,
    /// Name of a damaged store that this one replaces.
    pub aside: Option<String>,
    /// Trouble as it was told last.
    pub told: Option<String>,
}

impl Keeper {
    /// Begins to keep what is declared behind `client`. `committed`: what the configuration
    /// declares.
    pub fn new(client: Client, directory: PathBuf, committed: Desired, encoded: Encoded) -> Self {
        Self {
            client,
            encoded,
            directory,
            configured: committed.peers().iter().collect(),
            committed,
            births: HashMap::new(),
            next_birth: 1,
            sequence: 0,
            layout: butterfly_layout::in_force(),
            raising: None,
            changes: Vec::new(),
            replaced: Vec::new(),
            made: 0,
            in_store: None,
            silent: false,
            configuring: false,
            read: false,
            missing: None,
            invalid: Vec::new(),
            closed: None,
            aside: None,
            told: None,
        }
    }

    pub fn changes_made(&self) -> u64 {
        self.made
    }

    /// True if changes are made, or are to be refused: none is in the store that may still be done.
    pub fn may_change(&self) -> bool {
        self.in_store.is_none() || self.trouble().is_some()
    }

    pub fn news(&self) -> std::os::fd::BorrowedFd<'_> {
        self.client.news()
    }

    /// True if the desired state has what the store has not.
    pub fn differs(&self) -> bool {
        !self.changes.is_empty() || self.raising.is_some()
    }

    /// Exchanges the committed state with another one.
    pub fn exchange(&mut self, state: &mut Desired) {
        std::mem::swap(&mut self.committed, state);
    }

    /// Returns why changes are refused, if they are.
    pub fn trouble(&self) -> Option<String> {
        if let Some(why) = &self.closed {
            return Some(why.clone());
        }
        if self.in_store.is_some_and(|(_, since)| since.elapsed() > PATIENCE) {
            let seconds = PATIENCE.as_secs();
            return Some(format!("the store does not answer for {seconds} s: disk?"));
        }
        if !self.read {
            return Some("the store was not read yet".to_owned());
        }
        if !self.invalid.is_empty() {
            return Some(format!("the store has objects that are not valid: {}", self.invalid()));
        }
        let lost = self.missing.as_ref()?.lost.join("; ");
        Some(format!("this host does not take what the store has: {lost}"))
    }

    /// Gives up a vnic that this host does not take: it is declared no more. False if there is no
    /// such vnic, or the store is in trouble for another reason.
    pub fn give_up(&mut self, id: &str, desired: &Desired) -> bool {
        let Some(mut missing) = self.missing.take() else { return false };
        let lost = missing.state.vnics().get(id).filter(|_| desired.vnics().get(id).is_none());
        let change = lost.map(|nic| Change::RemoveVnic(nic.id.clone()));
        let prepared = change.filter(|_| self.trouble().is_none()).and_then(|change| {
            let prepared = missing.state.prepare(change.clone()).ok()?;
            self.note(&change, desired);
            Some(prepared)
        });
        let given_up = prepared.is_some();
        if let Some(prepared) = prepared {
            missing.state.commit(prepared);
            // The rest is looked at anew.
            missing.again = Instant::now();
        }
        self.missing = Some(missing);
        given_up
    }

    fn invalid(&self) -> String {
        self.invalid.join("; ")
    }

    /// Notes a change that is being made. `desired`: the state before it.
    pub fn note(&mut self, change: &Change, desired: &Desired) {
        if self.silent {
            return;
        }
        if self.configuring {
            return self.configured(change);
        }
        match change {
            Change::AddVnic(nic) => self.born(nic, None),
            Change::RemakeVnic(nic) => {
                let old = desired.vnics().get(nic.id.as_str());
                let stays = old.is_some_and(|old| station(old) == station(nic));
                let birth = self.births.get(nic.id.as_str());
                let place = birth.filter(|_| stays).map(|birth| birth.place);
                self.born(nic, place);
            }
            Change::RemoveVnic(id) => {
                let old = self.births.remove(id.as_str());
                self.replaced.push((id.as_str().to_owned(), old));
            }
            _ => {}
        }
        self.changes.push(change.clone());
        self.made += 1;
    }

    /// A change of the configuration is made at once, in what is committed, too.
    fn configured(&mut self, change: &Change) {
        match change {
            Change::NamePeer(peer) => self.configured.push(*peer),
            Change::UnnamePeer(peer) => self.configured.retain(|other| other != peer),
            _ => {}
        }
        // What this host lacks is declared beside it.
        let missing = self.missing.as_mut().map(|missing| &mut missing.state);
        for state in std::iter::once(&mut self.committed).chain(missing) {
            if let Ok(prepared) = state.prepare(change.clone()) {
                state.commit(prepared);
            }
        }
    }

    fn born(&mut self, nic: &Nic, place: Option<u64>) {
        let number = self.next_birth;
        self.next_birth = number.saturating_add(1);
        let birth = Birth { number, place: place.unwrap_or(number) };
        let id = nic.id.as_str().to_owned();
        let old = self.births.insert(id.clone(), birth);
        self.replaced.push((id, old));
    }

    /// Has the store rewritten in another layout, with the next changes or alone.
    pub fn raise(&mut self, layout: u32) {
        self.raising = Some(layout);
        self.made += 1;
    }

    /// Hands all changes to the store.
    pub fn hand_over(&mut self, desired: &Desired) {
        // What this host does not take stays declared.
        let missing = self.missing.as_ref().map(|missing| missing.state.clone());
        let state = missing.as_ref().unwrap_or(desired);
        if self.raising.is_some() {
            return self.send_all(state);
        }
        let keys: BTreeSet<Key> = self.changes.iter().flat_map(|it| self.keys_of(it)).collect();
        let edits = keys.into_iter().map(|key| self.edit(key, state)).collect();
        self.send(false, edits);
    }

    /// Has an empty store hold a state that a daemon before this one left.
    /// `layout`: that of the store, which gets ours.
    pub fn adopt(&mut self, state: &Desired, layout: u32) {
        self.read = true;
        self.committed = state.clone();
        let mut vnics: Vec<&Nic> = state.vnics().iter().collect();
        vnics.sort_by_key(|nic| state.vnics().order(nic));
        vnics.into_iter().for_each(|nic| self.born(nic, None));
        self.replaced.clear();
        if self.records_of(state) > 0 || layout != self.layout {
            self.write_anew();
        }
    }

    /// Number of records that a state has.
    pub fn records_of(&self, state: &Desired) -> usize {
        keys_of(state).filter(|key| !self.is_configured(key)).count()
    }

    /// Has the store hold the committed state, whatever it has.
    pub fn write_anew(&mut self) {
        let state = self.committed.clone();
        self.send_all(&state);
    }

    fn send_all(&mut self, state: &Desired) {
        let keys = keys_of(state).filter(|key| !self.is_configured(key));
        let edits = keys.map(|key| self.edit(key, state)).collect();
        self.send(true, edits);
    }

    fn send(&mut self, whole: bool, edits: Vec<Edit>) {
        let sequence = self.sequence.saturating_add(1);
        self.in_store = Some((sequence, Instant::now()));
        let layout = self.written();
        self.client.commit(Commit { sequence, next_birth: self.next_birth, layout, whole, edits });
    }

    /// True while the store is to be rewritten in another layout, or is being rewritten.
    pub fn is_raising(&self) -> bool {
        self.raising.is_some()
    }

    /// Layout of what is handed over.
    fn written(&self) -> u32 {
        self.raising.unwrap_or(self.layout)
    }

    /// Returns the records that a change is about.
    fn keys_of(&self, change: &Change) -> Vec<Key> {
        if let Change::DeclareNat(router, external, nats) = change {
            let new: BTreeSet<&Nat> = nats.iter().collect();
            let old: BTreeSet<&Nat> = self.committed.routed().nats(router, external).collect();
            let name = |nat: &&Nat| nat_key(external, &nat.place());
            let names = old.symmetric_difference(&new).map(name);
            return names.map(|name| Key { sort: Sort::Nat, name }).collect();
        }
        self.key_of(change).into_iter().collect()
    }

    /// Returns the record that a change of one object is about.
    fn key_of(&self, change: &Change) -> Option<Key> {
        let (sort, name) = match change {
            Change::AddVnic(nic) | Change::ChangeVnic(nic) | Change::RemakeVnic(nic) => {
                (Sort::Vnic, nic.id.as_str().to_owned())
            }
            Change::RemoveVnic(id) => (Sort::Vnic, id.as_str().to_owned()),
            Change::DeclareGroup(group) => (Sort::Group, group.name().as_str().to_owned()),
            Change::RemoveGroup(name)
            | Change::AddRule(name, _)
            | Change::RemoveRule(name, _)
            | Change::AddMember(name, _)
            | Change::RemoveMember(name, _) => (Sort::Group, name.as_str().to_owned()),
            Change::NamePeer(peer) | Change::UnnamePeer(peer) => (Sort::Peer, peer_name(peer)),
            Change::DeclareNetwork(network) => (Sort::Network, network.vni().to_string()),
            Change::RemoveNetwork(vni) => (Sort::Network, vni.to_string()),
            Change::DeclareRouter(router) => (Sort::Router, router.id().as_str().to_owned()),
            Change::RemoveRouter(id) => (Sort::Router, id.as_str().to_owned()),
            Change::DeclareNeighbour(neighbour) => {
                (Sort::Neighbour, neighbour_key(neighbour.vni(), neighbour.address()))
            }
            Change::RemoveNeighbour(vni, address) => {
                (Sort::Neighbour, neighbour_key(*vni, *address))
            }
            Change::DeclareExternal(external) => {
                (Sort::External, external.id().as_str().to_owned())
            }
            Change::RemoveExternal(id) => (Sort::External, id.as_str().to_owned()),
            Change::DeclareNat(..) => return None,
        };
        let key = Key { sort, name };
        (!self.is_configured(&key)).then_some(key)
    }

    fn is_configured(&self, key: &Key) -> bool {
        key.sort == Sort::Peer && self.configured.iter().any(|peer| peer_name(peer) == key.name)
    }

    fn edit(&self, key: Key, state: &Desired) -> Edit {
        let content = || {
            let mut value = Vec::new();
            if key.sort == Sort::Vnic {
                let birth = self.births.get(&key.name)?;
                value.extend_from_slice(&birth.number.to_le_bytes());
                value.extend_from_slice(&birth.place.to_le_bytes());
                let rehearsed = butterfly_layout::rehearsed(self.written());
                value.extend(rehearsed.into_iter().flat_map(u32::to_le_bytes));
            }
            value.extend((self.encoded)(&key, state)?);
            Some(value)
        };
        let value = content();
        Edit { key, value }
    }

    /// The changes are in the store.
    pub fn committed(&mut self, sequence: u64, desired: &Desired) {
        self.sequence = sequence;
        self.layout = self.written();
        self.raising = None;
        self.in_store = None;
        self.replaced.clear();
        for change in std::mem::take(&mut self.changes) {
            match self.committed.prepare(change) {
                Ok(prepared) => self.committed.commit(prepared),
                Err(why) => {
                    error!("the committed state is copied, please report this: {why}");
                    let missing = self.missing.as_ref().map(|missing| &missing.state);
                    self.committed = missing.unwrap_or(desired).clone();
                    break;
                }
            }
        }
    }

    /// The births as they were before the changes.
    pub fn restore_births(&mut self) {
        self.take_back(Mark { changes: 0, replaced: 0 });
        self.raising = None;
    }

    /// The end of the changes, for [`take_back`](Self::take_back).
    pub fn mark(&self) -> Mark {
        Mark { changes: self.changes.len(), replaced: self.replaced.len() }
    }

    /// Drops the changes since `mark`, with their births.
    pub fn take_back(&mut self, mark: Mark) {
        let since = self.replaced.len().min(mark.replaced);
        for (id, old) in self.replaced.split_off(since).into_iter().rev() {
            match old {
                Some(birth) => drop(self.births.insert(id, birth)),
                None => drop(self.births.remove(&id)),
            }
        }
        let dropped = self.changes.len().saturating_sub(mark.changes);
        self.changes.truncate(mark.changes);
        self.made = self.made.saturating_sub(dropped as u64);
    }

    /// True if waiting for it at the start would not help.
    pub fn is_hopeless(&self) -> bool {
        self.closed.as_ref().is_some_and(|why| !why.contains("locked"))
    }
}

/// The line in which a vnic stands.
fn station(nic: &Nic) -> (Vni, [u8; 6], bool) {
    (nic.vni, nic.mac.octets(), nic.sniff_target.is_some())
}

/// Name of a peer's record.
pub fn peer_name(peer: &TunnelPeer) -> String {
    match peer.vni() {
        Some(vni) => format!("{} {vni}", peer.address()),
        None => peer.address().to_string(),
    }
}

/// Name of a translation's record: its address, of a forwarded port with protocol and port, and the
/// external.
pub fn nat_key(external: &ExternalId, place: &NatPlace) -> String {
    let address = canonical(place.0);
    match place.1 {
        None => format!("{address} {external}"),
        Some((protocol, port)) => format!("{address}/{}/{port} {external}", protocol.name()),
    }
}

/// Reads the name of a translation's record.
pub fn read_nat_key(name: &str) -> Option<(ExternalId, NatPlace)> {
    let (place, external) = name.split_once(' ')?;
    let mut parts = place.split('/');
    let address = parse_ip(parts.next()?).ok()?;
    let port = match parts.next() {
        None => None,
        Some(name) => {
            let all = [ForwardProtocol::Tcp, ForwardProtocol::Udp];
            let protocol = all.into_iter().find(|it| it.name() == name)?;
            Some((protocol, parts.next()?.parse().ok()?))
        }
    };
    Some((ExternalId::new(external).ok()?, (address, port)))
}

/// Name of a neighbour's record.
pub fn neighbour_key(vni: Vni, address: IpAddr) -> String {
    format!("{vni} {}", canonical(address))
}

/// Reads the name of a neighbour's record.
pub fn read_neighbour_key(name: &str) -> Option<(Vni, IpAddr)> {
    let (vni, address) = name.split_once(' ')?;
    Some((Vni::new(vni.parse().ok()?).ok()?, parse_ip(address).ok()?))
}

fn keys_of(state: &Desired) -> impl Iterator<Item = Key> + '_ {
    let key = |sort, name: String| Key { sort, name };
    let vnics = state.vnics().iter().map(move |nic| key(Sort::Vnic, nic.id.as_str().to_owned()));
    let groups = state.groups().keys().map(move |name| key(Sort::Group, name.as_str().to_owned()));
    let peers = state.peers().iter().map(move |peer| key(Sort::Peer, peer_name(&peer)));
    let routed = state.routed();
    let networks = routed.networks().map(move |it| key(Sort::Network, it.vni().to_string()));
    let routers = routed.routers().map(move |it| key(Sort::Router, it.id().as_str().to_owned()));
    let neighbour =
        move |it: &Neighbour| key(Sort::Neighbour, neighbour_key(it.vni(), it.address()));
    let neighbours = routed.neighbours().map(neighbour);
    let external = move |it: &External| key(Sort::External, it.id().as_str().to_owned());
    let externals = routed.externals().map(external);
    let nat = move |it: NatRule| key(Sort::Nat, nat_key(&it.external, &it.nat.place()));
    let nats = routed.all_nats().map(nat);
    let outside = externals.chain(nats);
    vnics.chain(groups).chain(peers).chain(networks).chain(routers).chain(outside).chain(neighbours)
}
