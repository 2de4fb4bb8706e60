//! A daemon whose data path only remembers.

use super::{BYPASS, NIC};
use crate::{
    config::{Config, options::Options},
    dataplane::Dataplane,
    events::{Events, announce::Announcer},
    handlers::{Daemon, Reload},
    host::signals::Calls,
    log::{Level, LogLevel},
    recorder::Recorder,
    upgrade::{Upgrade, passage::Came},
};
use butterfly_api::{
    Envelope, Handler,
    proto::{Messages, Response},
    text,
};
use butterfly_datapath::{
    AddError, Admission, DeviceStatus, DropPlace, DropReport, DropRow, DroppedPacket, Explanation,
    ExportedVnic, Fate, FdbKind, FdbRow, Features, Front, GroupChange, GroupRow, GuestReport,
    Imported, Mac, Machine, Mark, Moved, MovedVnic, Negotiated, NeighbourRow, NetworkReport,
    NoAnswer, NotAHost, NotInEffect, OutsideEnd, PeerReport, Peers, Pings, PlaceDrops, PortsInUse,
    Question, Queue, Refused, RemoteMac, Rewritten, RingStatus, RoutingChange, SessionEnd,
    SessionFilter, SessionRow, SessionTable, SoughtNeighbour, SoughtState, Step, Target, Timeouts,
    Times, TunnelError, TunnelReport, UplinkReport, VnicPolicy, VnicReport, VnicSpec, Walk,
    WireReport, WorkerReport,
};
use butterfly_model::{
    Cidr, Direction, External, GroupName, Nat, Neighbour, Network, Router, RouterId, Rule,
    SecurityGroup, SocketDir, Vni, WireDevice,
};
use butterfly_vhost::{
    control::Detach,
    memory::RegionInfo,
    ring::{InterruptReport, TouchReport},
};
use clap::Parser;
use protobuf::Message;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::mpsc::Receiver,
    time::{Duration, UNIX_EPOCH},
};

/// Remembers vnics, groups and queries; refuses as the test tells it to.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) vnics: BTreeMap<String, VnicSpec>,
    pub(super) groups: BTreeMap<GroupName, SecurityGroup>,
    pub(super) networks: BTreeMap<Vni, Network>,
    pub(super) routers: BTreeMap<RouterId, Router>,
    pub(super) neighbours: BTreeMap<(Vni, IpAddr), Neighbour>,
    pub(super) wires: BTreeMap<Vni, External>,
    /// Ports in use of addresses that machines share.
    pub(super) ports: Vec<PortsInUse>,
    pub(super) nats: BTreeMap<(RouterId, Vni), Vec<Nat>>,
    /// Report of the guest behind every wire.
    pub(super) wire: Option<WireReport>,
    /// End outside of the opener of all sessions.
    pub(super) outside: Option<OutsideEnd>,
    /// An interface that this host does not have.
    pub(super) no_interface: Option<String>,
    /// True if a wire that cannot be had costs the former one.
    pub(super) loses_wires: bool,
    /// Router that translates nothing.
    pub(super) no_nat_of: Option<&'static str>,
    /// Last query about sessions, and its limit.
    pub(super) asked: RefCell<Option<(SessionFilter, usize)>>,
    /// The last packet that was to be explained.
    pub(super) question: RefCell<Option<Question>>,
    /// Reason for which vnics dropped something, if not the usual one, and the last packet.
    pub(super) reason: Option<&'static str>,
    pub(super) head: Vec<u8>,
    /// True if it has an uplink.
    pub(super) uplink: bool,
    pub(super) peers: Peers,
    /// Times of sessions, and ageing of addresses, if they were changed.
    pub(super) times: Option<(Timeouts, u32)>,
    pub(super) fdb_ageing: Option<u32>,
    pub(super) workers: Option<(usize, Vec<usize>)>,
    /// A peer for which there is no room.
    pub(super) full_for: Option<IpAddr>,
    /// Vnics whose own guests ended.
    pub(super) gone: BTreeSet<String>,
    pub(super) sockets_gone: BTreeSet<String>,
    /// Reason why no vnic can be made in place of another.
    pub(super) irreplaceable: Option<&'static str>,
    pub(super) inaddible: Option<&'static str>,
    /// Vnic whose address is kept.
    kept: Option<String>,
    calls: Vec<String>,
    /// The next calls that may fail: do they?
    pub(super) refusals: VecDeque<Option<&'static str>>,
}

impl Fake {
    fn outcome(&mut self) -> Result<(), AddError> {
        match self.refusals.pop_front().flatten() {
            Some(reason) => Err(AddError::Device(reason.into())),
            None => Ok(()),
        }
    }

    fn named(&mut self, vni: Option<Vni>) -> &mut Vec<IpAddr> {
        match vni {
            Some(vni) => self.peers.of.entry(vni.number()).or_default(),
            None => &mut self.peers.all,
        }
    }

    pub(super) fn take_calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

impl Dataplane for Fake {
    fn follow_layout(&self) {}

    fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer> {
        *self.question.borrow_mut() = Some(question.clone());
        match &question.to {
            Target::Address(ip) if question.destination_mac.is_none() => {
                Err(NoAnswer::NeedsMac(*ip))
            }
            Target::Vnic(id) if self.waits_for(id).is_some() => {
                Err(NoAnswer::Waits(id.clone(), self.waits_for(id).unwrap_or_default()))
            }
            _ => Ok(explanation()),
        }
    }

    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError> {
        self.calls.push(format!("add {}", spec.id));
        self.outcome()?;
        self.gone.remove(&spec.id);
        self.sockets_gone.remove(&spec.id);
        assert!(self.vnics.insert(spec.id.clone(), spec).is_none(), "added twice");
        Ok(())
    }

    fn may_replace(&self, spec: &VnicSpec) -> Result<(), AddError> {
        assert!(self.vnics.contains_key(&spec.id));
        match self.irreplaceable {
            Some(why) => Err(AddError::Device(why.into())),
            None => Ok(()),
        }
    }

    fn may_add(&self, _: &VnicSpec) -> Result<(), AddError> {
        match self.inaddible {
            Some(why) => Err(AddError::Device(why.into())),
            None => Ok(()),
        }
    }

    fn socket_is_gone(&self, id: &str) -> bool {
        self.sockets_gone.contains(id)
    }

    fn keep_address(&mut self, id: &str) {
        assert!(self.vnics.contains_key(id) && self.kept.replace(id.to_owned()).is_none());
    }

    fn give_up_address(&mut self) {
        assert!(self.kept.take().is_some(), "nothing is kept");
    }

    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        self.calls.push(format!("update {id}"));
        self.outcome()?;
        self.vnics.get_mut(id).unwrap().policy = policy;
        Ok(())
    }

    fn vnic_leaves(&self, _: &str, to: Option<IpAddr>) -> Result<(), NotAHost> {
        match to {
            Some(to) if to.is_ipv6() => Err(NotAHost::Family),
            _ => Ok(()),
        }
    }

    /// The text that a vnic without sessions has.
    fn export_vnic(&self, vnic: MovedVnic) -> Option<ExportedVnic> {
        let plain = format!("{vnic:?}");
        assert!(!plain.is_empty());
        let text = format!(
            r#"{{"kind":"butterfly-vnic","layout":1,"vnic":{}}}"#,
            serde_json::to_string(&vnic).unwrap()
        );
        Some(ExportedVnic { text: text.into(), sessions: 0, left_out: 0 })
    }

    fn import_vnic(&self, _: &Moved) -> Option<Imported> {
        Some(Imported::default())
    }

    fn remove_vnic(&mut self, id: &str) {
        self.calls.push(format!("remove {id}"));
        // A vnic that is made anew keeps its address; else none does.
        assert!(self.kept.as_deref().is_none_or(|kept| kept == id));
        assert!(self.vnics.remove(id).is_some(), "{id} is not there");
    }

    /// Takes only changes that are some.
    fn change_group(&mut self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        let what = match &change {
            GroupChange::Declare(_) => "declare",
            GroupChange::Forget => "forget",
            GroupChange::AddMember(_) => "add member",
            GroupChange::RemoveMember(_) => "remove member",
            GroupChange::AddRule(_) => "add rule",
            GroupChange::RemoveRule(_) => "remove rule",
        };
        self.calls.push(format!("group {name}: {what}"));
        self.outcome()?;
        if let GroupChange::Declare(group) = change {
            assert_eq!(group.name(), name);
            let before = self.groups.insert(name.clone(), group.clone());
            assert_ne!(before, Some(group), "it was so already");
            return Ok(());
        }
        let group = self.groups.get_mut(name).expect("a group that is there");
        let changed = match change {
            GroupChange::AddMember(address) => group.add_member(address),
            GroupChange::RemoveMember(address) => group.remove_member(address),
            GroupChange::AddRule(rule) => group.add_rule(rule),
            GroupChange::RemoveRule(rule) => group.remove_rule(&rule),
            _ => self.groups.remove(name).is_some(),
        };
        assert!(changed, "{what} changes nothing");
        Ok(())
    }

    fn vnic(&self, id: &str) -> Option<VnicReport> {
        let spec = self.vnics.get(id)?.clone();
        let ring = RingStatus {
            size: 256,
            enabled: true,
            next_avail: 3,
            avail_idx: 5,
            used_idx: 2,
            packed: false,
            waiting: 2,
            held: false,
            broken: true,
        };
        let attached = Negotiated {
            since: UNIX_EPOCH + Duration::from_secs(1000),
            peer_pid: Some(77),
            offered: Features::OFFERED,
            features: Some(Features::OFFERED.without(Features::IN_ORDER)),
            protocol_features: Some(1 << 3),
            memory: vec![RegionInfo { guest_addr: 0x1000, size: 0x2000, page_size: 4096 }],
            logging: true,
            troubles: vec![(Queue::RX, "no memory".into())],
            memory_trouble: None,
        };
        let device = DeviceStatus {
            socket: match &spec.front {
                Front::Socket { role, path } => Some((*role, path.clone())),
                Front::Inside(_) => None,
            },
            offered: Features::OFFERED,
            attached: Some(attached).filter(|_| !self.gone.contains(id)),
            rx: None,
            tx: Some(ring),
            further: Vec::new(),
            others_waiting: true,
            attach_count: 4,
            last_detach: Some(Detach {
                reason: "it crashed".into(),
                at: UNIX_EPOCH + Duration::from_secs(900),
            }),
            trouble: Some("trouble".into()),
            interrupts: InterruptReport {
                costly: 2,
                confirmed: 1,
                apart: true,
                worst_ns: 94_000_000,
            },
            touches: TouchReport {
                pages: 70_000,
                rests: 3,
                stalls: 1,
                stalled: Duration::from_millis(306),
            },
        };
        let drops = butterfly_datapath::reasons().zip(1..).collect();
        let guest = match &spec.front {
            Front::Socket { .. } => None,
            Front::Inside(Machine::Tap { .. }) => Some(GuestReport::Tap {
                interface: format!("tap-{id}"),
                refused: 9,
                state: butterfly_datapath::StationState::Up,
            }),
            Front::Inside(Machine::Wire(_) | Machine::WireTap { .. }) => {
                self.wire.clone().map(GuestReport::Wire)
            }
            Front::Inside(Machine::Echo) => Some(GuestReport::Bench(Pings::default())),
            Front::Inside(Machine::Ping { .. }) => {
                let micros = Duration::from_micros;
                let times = Times { count: 2, min: micros(10), sum: micros(40), max: micros(30) };
                Some(GuestReport::Bench(Pings { requests: 3, times: Some(times) }))
            }
        };
        // The first of several has the address, as long as none bypasses filters.
        let first = self
            .vnics
            .values()
            .filter(|other| (other.vni, other.mac) == (spec.vni, spec.mac))
            .min_by_key(|other| other.order);
        let waits_for = first
            .filter(|first| first.id != id && !(first.policy.bypass && spec.policy.bypass))
            .map(|first| first.id.clone());
        Some(VnicReport {
            spec,
            waits_for,
            device,
            guest,
            received: (1, 100),
            delivered: (2, 200),
            flooded: 5,
            learn_refused: 6,
            announced: 7,
            passed_on: 9,
            limit_waits: 10,
            sessions: 8,
            drops,
        })
    }

    fn waits_for(&self, id: &str) -> Option<String> {
        self.vnic(id)?.waits_for
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        let row = |vni, kind, idle| FdbRow {
            vni,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            id: "n".into(),
            peer: None,
            kind,
            idle,
        };
        let remote = FdbRow {
            id: String::new(),
            peer: Some(ip("2001:db8::2")),
            ..row(4, FdbKind::Learnt, Some(8))
        };
        let all = [row(1, FdbKind::Static, None), row(2, FdbKind::Learnt, Some(7)), remote];
        all.into_iter().filter(|row| vni.is_none_or(|vni| vni == row.vni)).collect()
    }

    fn ports_in_use(&self) -> Vec<PortsInUse> {
        self.ports.clone()
    }

    fn sought_neighbours(&self) -> Vec<SoughtNeighbour> {
        let row = |vni, last, state, age: Option<u32>| SoughtNeighbour {
            vni,
            address: ip(&format!("10.0.1.{last}")),
            mac: age.map(|_| Mac([2, 0, 0, 0, 0, 0xab])),
            state,
            age,
        };
        let all = [
            row(42, 7, SoughtState::Asked, None),
            row(51, 8, SoughtState::Found, Some(9)),
            row(51, 9, SoughtState::Silent, None),
        ];
        all.into()
    }

    fn workers(&self) -> Vec<WorkerReport> {
        vec![WorkerReport {
            index: 0,
            core: Some(1),
            poll: true,
            rings: vec![("vm".to_owned(), 3)],
            uplink_queues: vec![0, 4],
            load: 500,
            moves: 18,
            busy_cycles: 10,
            packets: 11,
            batches: 12,
            sleeps: 13,
            idle_polls: 14,
            active_rings: 15,
            batch_sizes: vec![1, 2],
            tsc_hz: 16,
            longest_turn: 17,
        }]
    }

    fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        *self.asked.borrow_mut() = Some((filter.clone(), limit));
        let end = |nic: Option<&str>, address: &str, port| SessionEnd {
            nic: nic.map(str::to_owned),
            address: address.parse().unwrap(),
            port,
            outside: None,
        };
        let block = Cidr::new("1.2.3.0", 24).unwrap();
        let rule =
            Rule::new(Direction::Inbound, 17, (Some(0), Some(65535)), Some(block), None).unwrap();
        let first = SessionRow {
            vni: 1,
            vlan: Some(2),
            protocol: 17,
            opener: SessionEnd {
                outside: self.outside.clone(),
                ..end(Some("n"), "10.0.0.1", 4000)
            },
            responder: end(None, "::1:0", 53),
            state: "answered",
            age: 3,
            idle: 4,
            expires: 5,
            packets: [6, 7],
            bytes: [8, 9],
            rule: [
                Admission::DefaultEgress,
                Admission::Rule { group: GroupName::new("web").unwrap(), rule },
            ],
        };
        let second =
            SessionRow { vlan: None, rule: [Admission::Bypass, Admission::Gone], ..first.clone() };
        (70, [first, second].into_iter().take(limit).collect())
    }

    fn flush_sessions(&mut self, filter: &SessionFilter) -> u64 {
        *self.asked.borrow_mut() = Some((filter.clone(), 0));
        71
    }

    /// Counts admissions of the outbound rules of a group only, in some order.
    fn rule_admissions(&self, name: &GroupName) -> Vec<(Rule, u64)> {
        let rules = self.groups[name]
            .rules()
            .filter(|rule| rule.direction() == Direction::Outbound)
            .cloned();
        rules.zip(72..).collect::<Vec<_>>().into_iter().rev().collect()
    }

    fn set_session_times(&mut self, timeouts: Timeouts, tcp_pickup: u32) {
        self.times = Some((timeouts, tcp_pickup));
    }

    fn set_workers(&mut self, workers: usize, cores: &[usize]) -> Result<(), String> {
        if workers > 8 {
            return Err("no room for more than 8 workers".to_owned());
        }
        self.workers = Some((workers, cores.to_vec()));
        Ok(())
    }

    fn set_fdb_ageing(&mut self, seconds: u32) {
        self.fdb_ageing = Some(seconds);
    }

    fn session_table(&self) -> SessionTable {
        let timeouts = Timeouts { other: 77, ..Timeouts::default() };
        SessionTable {
            capacity: 73,
            used: 74,
            memory: "memory".into(),
            timeouts,
            tcp_pickup: 75,
            share: 76,
        }
    }

    /// Three other hosts: one named for all networks, one for network 7, one learnt in network 1.
    fn tunnel(&self) -> Option<TunnelReport> {
        let peer = |address, named, vnis: &[u32]| PeerReport {
            address: ip(address),
            mac: None,
            named,
            vnis: vnis.into(),
            of_neighbours: false,
            idle: None,
            received: (0, 0),
            sent: (0, 0),
            drops: 0,
            unanswered: None,
            refusal: None,
        };
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let learnt = PeerReport {
            mac: Some(mac),
            idle: Some(80),
            received: (81, 82),
            sent: (83, 84),
            drops: 85,
            unanswered: Some((86, 87)),
            refusal: Some((butterfly_datapath::PeerRefusal::Forbidden, 88)),
            ..peer("10.0.0.4", false, &[])
        };
        let network = |vni| NetworkReport {
            vni,
            received: (90, 91),
            sent: (92, 93),
            drops: butterfly_datapath::reasons().take(1).zip(94..).collect(),
        };
        let neighbour = |address, mac, age| NeighbourRow {
            address: ip(address),
            mac,
            state: "state".into(),
            age,
        };
        self.uplink.then(|| TunnelReport {
            endpoint: ip("10.0.0.1"),
            mac: Mac([2, 0, 0, 0, 0, 8]),
            answers: true,
            strict_peers: false,
            inner_mtu: 1450,
            groups: [1, 7]
                .map(|vni| GroupRow { vni, group: IpAddr::from([230, 0, 0, vni as u8]) })
                .into(),
            peers: vec![peer("10.0.0.2", true, &[]), peer("10.0.0.3", true, &[7]), learnt],
            learnt: vec![RemoteMac { vni: 1, mac, peer: ip("10.0.0.4"), idle: 86 }],
            neighbours: vec![
                neighbour("10.0.0.4", Some(mac), Some(87)),
                neighbour("10.0.0.2", None, None),
            ],
            networks: vec![network(1), network(7)],
            control: vec![("answered", "ARP requests.", 88)],
        })
    }

    fn uplink(&self) -> Option<UplinkReport> {
        self.uplink.then(|| UplinkReport {
            kind: "af_xdp".into(),
            interface: "eth0".into(),
            mode: "native, copy".into(),
            note: Some("why".into()),
            queues: 2,
            mac: Mac([2, 0, 0, 0, 0, 8]),
            mtu: 1500,
            inner_mtu: 1450,
            offloads: vec!["tx-csum".into()],
            received: (100, 101),
            sent: (102, 103),
            drops: butterfly_datapath::reasons().take(1).zip(104..).collect(),
            counters: vec![("tx-full", "Frames lost.", 105)],
            attached: None,
            state: Some(butterfly_datapath::LinkState::NoCarrier),
            vlan: 42,
            vlan_doubt: Some("a veth hides tags".into()),
        })
    }

    /// Something everywhere, and of a vnic as much as its name is long.
    fn drops(&self, id: Option<&str>) -> Option<DropReport> {
        let info = |n| butterfly_datapath::reasons().nth(n).unwrap();
        let of_vnics = butterfly_datapath::reasons()
            .find(|info| Some(info.name) == self.reason)
            .unwrap_or_else(|| info(3));
        let packet =
            DroppedPacket { age: Duration::from_millis(300), summary: Some("a packet".into()) };
        let vnic = |id: &String| {
            let row = DropRow {
                info: of_vnics,
                count: id.len() as u64,
                recent: Some(1),
                last: Some(packet.clone()),
                head: self.head.clone(),
            };
            let place = DropPlace::Vnic { id: id.clone(), vni: self.vnics[id].vni.number() };
            PlaceDrops { place, rows: vec![row] }
        };
        let other = |place, n, last| PlaceDrops {
            place,
            rows: vec![DropRow { info: info(n), count: 106, recent: None, last, head: Vec::new() }],
        };
        let unread = DroppedPacket { age: Duration::ZERO, summary: None };
        let places = match id {
            Some(id) => vec![vnic(self.vnics.keys().find(|other| *other == id)?)],
            None => {
                let others = [
                    (DropPlace::Network(7), 4, Some(unread)),
                    (DropPlace::Uplink, 4, None),
                    (DropPlace::Gone, 5, None),
                ];
                self.vnics
                    .keys()
                    .map(vnic)
                    .chain(others.map(|(place, n, last)| other(place, n, last)))
                    .collect()
            }
        };
        Some(DropReport {
            at: Duration::from_millis(107_000),
            window: Duration::from_millis(7_500),
            places,
        })
    }

    fn inner_mtu(&self) -> Option<u32> {
        self.uplink.then_some(1450)
    }

    fn endpoint(&self) -> Option<IpAddr> {
        self.uplink.then(|| ip("10.0.0.1"))
    }

    fn change_routing(&mut self, change: RoutingChange) -> Result<(), NotInEffect> {
        self.calls.push(match change {
            RoutingChange::DeclareNetwork(network) => {
                let vni = network.vni();
                self.networks.insert(vni, network);
                format!("network {vni}: declare")
            }
            RoutingChange::RemoveNetwork(vni) => {
                self.networks.remove(&vni);
                format!("network {vni}: remove")
            }
            RoutingChange::DeclareRouter(router) => {
                let joined: Vec<_> = router.attachments().map(|(vni, _)| vni.to_string()).collect();
                let over = router.second_hop().map(|it| format!(", out by {}", it.host));
                let over = over.unwrap_or_default();
                let text = format!("router {}: joins {}{over}", router.id(), joined.join(" "));
                self.routers.insert(router.id().clone(), router);
                text
            }
            RoutingChange::RemoveRouter(id) => {
                self.routers.remove(&id);
                format!("router {id}: remove")
            }
            RoutingChange::DeclareNeighbour(neighbour) => {
                let at = (neighbour.vni(), neighbour.address());
                let text = format!("network {}: {neighbour}", at.0);
                self.neighbours.insert(at, neighbour);
                text
            }
            RoutingChange::RemoveNeighbour(vni, address) => {
                self.neighbours.remove(&(vni, address));
                format!("neighbour {address} of network {vni}: remove")
            }
            RoutingChange::DeclareWire(external) => {
                let device = external.wire().and_then(WireDevice::name).unwrap_or_default();
                if self.no_interface.as_deref() == Some(device) {
                    if self.loses_wires {
                        self.wires.remove(&external.vni());
                    }
                    let text = format!("there is no interface {device:?} on this host");
                    return Err(NotInEffect(text));
                }
                let vni = external.network().vni();
                let text = format!("network {vni}: leads out by {device:?}");
                self.wires.insert(vni, external);
                text
            }
            RoutingChange::RemoveWire(vni) => {
                self.wires.remove(&vni);
                format!("network {vni}: leads out no more")
            }
            RoutingChange::DeclareNat(router, vni, nats) => {
                if self.no_nat_of == Some(router.as_str()) {
                    return Err(NotInEffect("nothing is translated".to_owned()));
                }
                let texts: Vec<String> = nats.iter().map(Nat::to_string).collect();
                let text = format!("router {router} at {vni}: [{}]", texts.join(", "));
                match nats.is_empty() {
                    true => self.nats.remove(&(router, vni)),
                    false => self.nats.insert((router, vni), nats),
                };
                text
            }
        });
        Ok(())
    }

    fn leads_out(&self, vni: Vni) -> bool {
        self.wires.contains_key(&vni)
    }

    fn add_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        if !self.uplink {
            return Err(TunnelError::NoUplink);
        }
        if self.full_for == Some(peer) {
            return Err(TunnelError::Full(peer));
        }
        let list = self.named(vni);
        let new = !list.contains(&peer);
        list.retain(|other| *other != peer);
        list.push(peer);
        Ok(new)
    }

    fn remove_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        if !self.uplink {
            return Err(TunnelError::NoUplink);
        }
        let list = self.named(vni);
        let before = list.len();
        list.retain(|other| *other != peer);
        Ok(list.len() < before)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A daemon and what it said.
pub(super) struct Host {
    pub(super) envelope: Envelope<Daemon<Fake>>,
    pub(super) levels: Receiver<Level>,
}

impl Host {
    /// Has the daemon hear SIGHUP.
    pub(super) fn hang_up(&mut self) {
        let daemon = self.envelope.handler_mut();
        daemon.upgrade.calls().hang_up();
        daemon.called();
    }

    pub(super) fn new() -> Self {
        Self::configured("-s /tmp -i 192.0.2.1 --uplink eth0")
    }

    /// One that was started with these options.
    pub(super) fn configured(options: &str) -> Self {
        let words = ["butterflyd"].into_iter().chain(options.split_whitespace());
        let options = Options::parse_from(words);
        let config = Config::load(options.clone()).unwrap();
        let (sender, levels) = std::sync::mpsc::channel();
        let events = Events::default();
        let (announcer, _) = Announcer::start(std::io::sink(), events.clone()).unwrap();
        let (calls, _) = Calls::start().expect("a pair of sockets");
        let daemon = Daemon {
            upgrade: Upgrade::new(calls, &Came::New, None),
            dataplane: Fake::default(),
            desired: Default::default(),
            turns: Default::default(),
            socket_dir: SocketDir::new("/run/b".into()),
            ip: "192.0.2.1".parse().unwrap(),
            announcer,
            events,
            origin: None,
            recorder: Recorder::idle(),
            kept: None,
            log_level: LogLevel::recorded(sender),
            reload: Reload::new(options, config),
            open_endpoint: None,
            condition: Default::default(),
            start_date: 1_700_000_000,
            keeper: None,
            quit: false,
            holding: None,
            service: None,
            poison: None,
            degraded: None,
            missing_wires: Default::default(),
        };
        Self { envelope: Envelope::new(daemon), levels }
    }

    /// One with the vnic `n` of network 1, filtered, with an address and a group, and `bypass` of
    /// network 2.
    pub(super) fn with_nics() -> Self {
        let mut host = Self::new();
        host.succeeds(NIC);
        host.succeeds(BYPASS);
        host.fake().take_calls();
        host
    }

    pub(super) fn fake(&mut self) -> &mut Fake {
        &mut self.envelope.handler_mut().dataplane
    }

    pub(super) fn ask(&mut self, request: &str) -> Response {
        let envelope =
            format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}");
        let envelope: Messages = text::parse(&envelope).expect(request);
        let reply = self.envelope.answer(&envelope.write_to_bytes().unwrap());
        let reply = Messages::parse_from_bytes(&reply).unwrap();
        reply.messages[0].message_0.response.clone().unwrap()
    }

    /// The response without its status, on one line.
    #[track_caller]
    pub(super) fn succeeds(&mut self, request: &str) -> String {
        let mut response = self.ask(request);
        assert!(response.status.status(), "{request}: {response}");
        assert!(response.status.error.is_none(), "{request}: {response}");
        response.status.clear();
        one_line(&text::print(&response))
    }

    /// Description and help.
    #[track_caller]
    pub(super) fn fails(&mut self, request: &str) -> (String, String) {
        let response = self.ask(request);
        assert!(!response.status.status(), "{request} succeeded: {response}");
        let error = &response.status.error;
        (error.description().to_owned(), error.help().to_owned())
    }

    /// Everything that was declared.
    pub(super) fn declared(&mut self) -> String {
        let all = [
            "nic_details: \"\"",
            "sg_details: \"\"",
            "network_list: true",
            "router_list: true",
            "neighbour_list { }",
        ];
        all.map(|request| self.succeeds(request)).concat()
    }
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A packet that several get, and its answer, which is dropped.
fn explanation() -> Explanation {
    let refused =
        Refused { reason: butterfly_datapath::reasons().next().unwrap(), charged: String::new() };
    let step = Step {
        stage: "lookup",
        mark: Mark::Note,
        text: "because of VNI 51".into(),
        details: vec!["more of VNI 510, VNI 51: VNI x".into()],
    };
    let flooded = Fate::Flooded {
        here: vec!["n".into()],
        away: vec![ip("192.0.2.9")],
        refused: vec![refused.clone()],
    };
    let walk = |fate| Walk {
        packet: "a packet".into(),
        frame: Vec::new(),
        steps: vec![step.clone()],
        admitted: [Some(Admission::DefaultEgress), None],
        routed: Some(Rewritten {
            vni: 51,
            source: Mac([0xb2, 0xf0, 0, 0, 0, 1]),
            destination: Mac([2, 0, 0, 0, 0, 10]),
        }),
        fate,
    };
    let refused = Refused { charged: "n".into(), ..refused };
    Explanation {
        vni: 1,
        destination_mac: Mac([2, 0, 0, 0, 0, 9]),
        walks: vec![walk(flooded), walk(Fate::Dropped(refused))],
    }
}
