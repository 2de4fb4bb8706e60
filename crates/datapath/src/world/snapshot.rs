//! Snapshot: an immutable picture of vnics and networks for workers. It is replaced as a whole, and
//! copies share all that did not change.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use butterfly_packet::mac::Mac;
use butterfly_vhost::port::Port;

use crate::engine::{
    bucket::{Bucket, Purse},
    counters::{Counters, Totals},
    crowd::Crowd,
    numbers::Numbers,
    pace::Pace,
    place::{NetworkRef, PeerRef, PortRef},
    slab::Slab,
    tap::Selection,
};
use crate::ip::{Address, upper};
use crate::session::{SessionTimes, VnicSessions};
use crate::world::{
    adopted::{Adopted, Waiting},
    announcing::Announcing,
    asking::{ArpProbes, AskPaces},
    bound::Bound,
    claim::Claim,
    dhcp::DhcpState,
    found::FoundTable,
    holders::Holders,
    limits::{Limit, Limiters, WayLimits},
    neighbours::Directory,
    policy::VnicPolicy,
    presence::Presence,
    relay::Relay,
    routing::Routing,
    rules::{Members, Policy, number as number_of_ip},
    serving::Serving,
    steering::Steering,
};

/// Policy of a vnic, compiled.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// True for a vnic without filter and source checks.
    pub bypass: bool,
    /// True if ARP senders are checked against `arp`.
    pub ip_anti_spoof: bool,
    /// True if it forwards: it may send packets from addresses of other vnics.
    pub forwards: bool,
    /// True if vnics of other hosts have its addresses, too.
    pub shared_ip: bool,
    /// True if it may send messages of routers, if a rule names those.
    pub router: bool,
    /// Limits of its traffic.
    pub limits: WayLimits,
    /// The vnic's IPv4 addresses, sorted.
    pub arp: Vec<Ipv4Addr>,
    /// The same in the order of their declaration.
    pub declared: Box<[Ipv4Addr]>,
    /// All its addresses, sorted.
    pub own: Box<[Address]>,
    /// Upper halves of all addresses of blocks that are its own, sorted.
    pub prefixes: Box<[u64]>,
    /// The groups it is filtered by, by number, sorted.
    pub groups: Arc<[u32]>,
    /// The compiled rules of those groups.
    pub policy: Arc<Policy>,
}

impl Rules {
    pub fn new(declared: &VnicPolicy, (groups, policy): (Arc<[u32]>, Arc<Policy>)) -> Rules {
        let VnicPolicy { bypass, ip_anti_spoof, forwards, shared_ip, router, ref ips, .. } =
            *declared;
        let declared_prefixes = &declared.prefixes;
        let limits = WayLimits {
            from_guest: Limit::of(&declared.limits.from_guest),
            to_guest: Limit::of(&declared.limits.to_guest),
        };
        let mut arp: Vec<Ipv4Addr> = ips
            .iter()
            .filter_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            })
            .collect();
        let declared = arp.clone().into();
        arp.sort_unstable();
        arp.dedup();
        let mut own: Vec<Address> = ips.iter().copied().map(number_of_ip).collect();
        own.sort_unstable();
        own.dedup();
        let mut prefixes: Vec<u64> = declared_prefixes.iter().map(|it| it.bits()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        Rules {
            bypass,
            ip_anti_spoof,
            forwards,
            shared_ip,
            router,
            limits,
            arp,
            declared,
            own: own.into(),
            prefixes: prefixes.into(),
            groups,
            policy,
        }
    }

    /// Returns whether an address is the vnic's: by itself, or by a prefix.
    #[inline]
    pub fn owns(&self, address: Address) -> bool {
        self.declares(address) || !self.prefixes.is_empty() && self.has_prefix(upper(address))
    }

    /// Returns whether an address is one of those that the vnic declares by themselves.
    #[inline]
    pub fn declares(&self, address: Address) -> bool {
        self.own.binary_search(&address).is_ok()
    }

    /// Returns whether all addresses with this upper half are the vnic's.
    pub fn has_prefix(&self, upper: u64) -> bool {
        self.prefixes.binary_search(&upper).is_ok()
    }

    /// Returns whether nothing changed except, maybe, the rules of the groups.
    pub fn declared_like(&self, other: &Rules) -> bool {
        let flags = |rules: &Rules| {
            [rules.bypass, rules.ip_anti_spoof, rules.forwards, rules.shared_ip, rules.router]
        };
        (flags(self), &self.own, &self.prefixes, &self.declared, &self.groups, &self.limits)
            == (
                flags(other),
                &other.own,
                &other.prefixes,
                &other.declared,
                &other.groups,
                &other.limits,
            )
    }

    /// Returns whether `old` may have allowed something that is not allowed any more, for another
    /// reason than a rule that went.
    pub fn takes_back(&self, old: &Rules) -> bool {
        (old.bypass && !self.bypass)
            || (old.forwards && !self.forwards)
            || (old.router && !self.router)
            || old.own.iter().any(|address| !self.owns(*address))
            || old.prefixes.iter().any(|upper| !self.has_prefix(*upper))
            || old.groups.iter().any(|group| self.groups.binary_search(group).is_err())
            || (old.policy.egress.is_none() && self.policy.egress.is_some())
    }
}

/// State that stays with a vnic when its rules change.
pub(crate) struct VnicShared {
    pub port: Arc<Port>,
    pub counters: Counters,
    /// Addresses learnt behind it.
    pub learnt: AtomicU32,
    /// Copies that its floods may still cause.
    pub floods: Purse,
    pub limits: Limiters,
    /// Budgets of the machines behind it, if it stands for other hosts.
    pub crowd: Option<Box<Budgets>>,
    /// Sessions that it is an end of.
    pub sessions: VnicSessions,
    /// Second in which its guest attached; 0 if none did. An attachment of [`Self::inherits`] does
    /// not count.
    pub attached: AtomicU32,
    /// True if its sessions were adopted, and its guest has not attached since: that one comes
    /// back, and no connection of its is older than the sessions.
    pub inherits: AtomicBool,
    pub presence: Presence,
    /// True if its machine has not run here yet, or left for another host: its addresses may be
    /// there.
    pub elsewhere: AtomicBool,
    /// True if its machine is about to leave for another host.
    pub leaving: AtomicBool,
    /// The host for which it leaves, or left, if that was said.
    pub relay: Relay,
    /// Its counters on another host, as they were counted here last.
    pub counted: Mutex<Option<Box<Totals>>>,
    /// Its link-local addresses besides that of its MAC address.
    pub bound: Bound,
    /// True if its guest's driver uses both rings: the machine runs here, and nowhere else.
    pub driving: AtomicBool,
    pub announcing: Announcing,
    /// Which of its pairs of queues gets a flow, once a second pair ran.
    pub steering: OnceLock<Arc<Steering>>,
    /// Workers of its transmit rings.
    pub serving: Arc<Serving>,
    /// Tokens for frames that may still be answered "too big".
    pub answered: Pace,
    /// Tokens for fragments into which routers may cut its packets.
    pub cuts: Pace,
    /// Memory of its DHCP exchanges.
    pub dhcp: DhcpState,
    /// Messages of neighbour and listener discovery that it may send, by their receivers.
    pub discovery: Crowd<Pace>,
    /// Budgets of its packets without a next hop.
    pub asks: AskPaces,
    /// Addresses for which its guest probed a moment ago.
    pub probed: ArpProbes,
}

impl VnicShared {
    /// Notes that a guest attached at this second: its connections may be older than the vnic.
    pub fn guest_came(&self, now: u32) {
        if !self.inherits.swap(false, Relaxed) {
            self.attached.store(now, Relaxed);
        }
    }
}

/// Kinds of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    /// Leads to a guest.
    Vnic,
    /// Gets copies of the frames of the vnic with this id, which need not exist, and nothing else.
    /// Its guest's frames are dropped.
    Mirror(Arc<str>),
    /// Stands for the network's vnics on other hosts; has no guest and no id.
    Trunk,
    /// Leads to the outside of an external: many machines are behind it.
    Wire,
    /// Sends what the routers of this host ask; is in no snapshot, and has no guest and no id.
    Router,
}

/// Budgets that the machines of other hosts share, each by its own address.
#[derive(Default)]
pub(crate) struct Budgets {
    /// By IP address.
    pub sessions: Crowd<Bucket>,
    /// By MAC address.
    pub floods: Crowd<Purse>,
    /// By the client.
    pub dhcp: Crowd<Pace>,
}

/// A vnic as workers see it.
pub(crate) struct Vnic {
    pub id: Arc<str>,
    pub place: PortRef,
    pub mac: Mac,
    /// Order of declaration: of several vnics, the first one has their MAC address.
    pub order: u64,
    pub vni: u32,
    /// Place of its network in [`Snapshot::networks`].
    pub network: u32,
    pub kind: PortKind,
    /// Version of the snapshot that it came with: older decisions were about another vnic in its
    /// place.
    pub born: u32,
    /// Version since which its permissions were not taken back, except by a rule that went.
    pub since: u32,
    pub rules: Rules,
    pub shared: Arc<VnicShared>,
}

impl Vnic {
    /// Returns whether it stands for other hosts.
    #[inline(always)]
    pub fn is_trunk(&self) -> bool {
        matches!(self.kind, PortKind::Trunk)
    }

    /// Returns whether the outside of an external is behind it.
    #[inline(always)]
    pub fn is_wire(&self) -> bool {
        matches!(self.kind, PortKind::Wire)
    }

    /// Returns whether it only gets copies.
    #[inline(always)]
    pub fn is_mirror(&self) -> bool {
        matches!(self.kind, PortKind::Mirror(_))
    }
}

/// The vnics of a VNI on this host. There may be none, if a router leads by it to other hosts.
#[derive(Clone)]
pub(crate) struct Network {
    pub vni: u32,
    /// Slots of its vnics, without mirrors and those that wait, ascending.
    pub members: Vec<u32>,
    /// Slots of vnics that wait for their MAC address, which another one has, ascending.
    pub waiting: Box<[u32]>,
    /// True if any of them is filtered.
    pub filtered: bool,
    /// Declaration of it, and those who route there.
    pub routing: Option<Arc<Routing>>,
    /// True if it is declared or has other hosts: a router may have to do with its frames.
    pub may_be_routed: bool,
    /// True if a vnic of it may have addresses that are not declared.
    pub open: bool,
    /// Slots of the vnics that own MAC addresses.
    pub macs: Numbers,
    /// Holders of IP addresses.
    pub holders: Holders,
    /// IPv4 addresses that its vnics get by DHCP, by their slots.
    pub leases: imbl::HashMap<u32, Ipv4Addr>,
    /// Slot of its wire, if it is an external that has one.
    pub wire: Option<u32>,
    /// Its other hosts, if there is an uplink.
    pub remote: Option<Remote>,
    /// Addresses learnt in it.
    pub learnt: Arc<AtomicU32>,
    /// Second until which frames are passed on for a vnic of it that left.
    pub relaying: Arc<AtomicU32>,
    /// Sessions in it.
    pub sessions: Arc<AtomicU32>,
    /// Version of the snapshot that it came with: older decisions were made in another network of
    /// this VNI.
    pub born: u32,
}

impl Network {
    /// Returns whether stages ask for the contents of frames that come by it.
    #[inline(always)]
    pub fn is_read(&self) -> bool {
        self.filtered || self.routing.is_some()
    }

    /// Returns whether sessions are counted in it, so that it has its part of the table: those of
    /// its own filtered vnics, or of others' to which a router leads.
    pub fn has_part(&self) -> bool {
        let leads = |routing: &Arc<Routing>| !routing.gateways.is_empty();
        let is_home = !self.members.is_empty();
        self.filtered || is_home && self.routing.as_ref().is_some_and(leads)
    }

    /// Returns the address that the vnic in a slot gets by DHCP, unless it wants another one.
    pub fn leased(&self, slot: u32) -> Option<Ipv4Addr> {
        self.leases.get(&slot).copied()
    }

    /// Returns whether frames of other hosts may have to be passed on.
    #[inline(always)]
    pub fn relays(&self, now: u32) -> bool {
        now < self.relaying.load(Relaxed)
    }
}

/// The other hosts of a network.
#[derive(Clone)]
pub(crate) struct Remote {
    /// Slot of the trunk.
    pub slot: u32,
    /// Peers that get floods and frames for unknown receivers. If no peer is named, the network's
    /// group gets them.
    pub peers: Arc<[PeerRef]>,
}

/// The whole snapshot.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub vnics: Slab<Vnic>,
    pub networks: Slab<Network>,
    /// Places of VNIs in `networks`. For the threads that change the snapshot; workers go through
    /// [`Vnic::network`].
    pub by_vni: Arc<HashMap<u32, u32>>,
    /// Places of VNIs in `networks`, for workers.
    pub vnis: Arc<Numbers>,
    /// Counts changes of policy: decisions of an older version may have to be made again.
    pub version: u32,
    /// Groups of which an address is a member.
    pub members: Members,
    /// Sinks and mirrors; none, most of the time.
    pub selection: Option<Arc<Selection>>,
    /// Claim of a vnic that is being made again.
    pub kept: Option<Claim>,
    /// Times of sessions.
    pub times: SessionTimes,
    /// Routing of declared networks by VNI, also of those without vnics here. For the threads that
    /// change the snapshot; workers go through [`Network::routing`].
    pub routings: Arc<HashMap<u32, Arc<Routing>>>,
    /// Declared machines that are not vnics of this host.
    pub neighbours: Directory,
    /// Machines that nobody declared, and that answered.
    pub found: FoundTable,
    /// Vnics of an adopted table of sessions, until all are declared.
    pub adopted: Option<Arc<Adopted<VnicShared>>>,
}

impl Snapshot {
    /// Returns the vnic at a place, unless the place has a new user.
    #[inline(always)]
    pub fn vnic(&self, place: PortRef) -> Option<&Arc<Vnic>> {
        self.vnics.get(place.slot).filter(|vnic| vnic.place.incarnation == place.incarnation)
    }

    /// Returns the vnic or trunk behind which an address was learnt. For a trunk, the incarnation
    /// is a peer.
    pub fn behind(&self, place: PortRef) -> Option<&Arc<Vnic>> {
        self.vnics
            .get(place.slot)
            .filter(|vnic| vnic.is_trunk() || vnic.place.incarnation == place.incarnation)
    }

    /// Returns the place of a VNI's network, for frames that leave by it.
    pub fn network_ref(&self, vni: u32) -> Option<NetworkRef> {
        self.vnis.get(vni.into()).map(NetworkRef)
    }

    /// Returns the network of a VNI.
    #[inline(always)]
    pub fn network(&self, vni: u32) -> Option<&Arc<Network>> {
        self.networks.get(self.vnis.get(vni.into())?)
    }

    /// Returns the slot of a vnic that is declared: with its state, if it had that slot in the
    /// adopted table.
    pub fn take_slot(&mut self, id: &str, vni: u32) -> (u32, Option<Arc<VnicShared>>) {
        let own = self.adopted.as_mut().and_then(|adopted| Arc::make_mut(adopted).take(id, vni));
        match own {
            Some((slot, shared)) => (slot, Some(shared)),
            None => (self.vnics.vacant_but(|slot| self.waits(slot).is_some()), None),
        }
    }

    /// Returns the vnic of an adopted table that waits for a slot.
    #[inline]
    pub fn waits(&self, slot: u32) -> Option<&Waiting<VnicShared>> {
        self.adopted.as_deref()?.waiting(slot)
    }

    /// Returns the session counts of an end of a session that was decided in this version, if it is
    /// the vnic of that time.
    pub fn counts_of(&self, slot: u32, stamp: u32) -> Option<&VnicSessions> {
        let here = self.vnics.get(slot).filter(|vnic| vnic.born <= stamp).map(|vnic| &vnic.shared);
        let counted = here.or_else(|| self.waits(slot).map(|waiting| &waiting.shared));
        counted.map(|shared| &shared.sessions)
    }

    /// Returns whether a router joins a network.
    pub fn is_joined(&self, vni: u32) -> bool {
        self.routings.get(&vni).is_some_and(|routing| !routing.gateways.is_empty())
    }

    /// Returns the network of a VNI, with its trunk.
    #[inline(always)]
    pub fn trunk(&self, vni: u32) -> Option<(&Arc<Network>, &Arc<Vnic>)> {
        let network = self.network(vni)?;
        Some((network, self.vnics.get(network.remote.as_ref()?.slot)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::mac::number;

    #[test]
    fn every_owner_is_found_and_nobody_else() {
        let mac = |n: u32| Mac([2, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        for n in [0u32, 1, 2, 3, 100, 1000] {
            let table = Numbers::new((0..n).map(|i| (number(mac(i * 7)), i)));
            for i in 0..n {
                assert_eq!(table.get(number(mac(i * 7))), Some(i));
            }
            assert_eq!(table.get(number(mac(n * 7 + 1))), None);
        }
        assert_eq!(Numbers::default().get(5), None);
    }

    #[test]
    fn the_first_owner_has_it() {
        assert_eq!(Numbers::new([(5, 7), (5, 8)].into_iter()).get(5), Some(7));
    }
}
