//! Sessions for the operator: listed, counted, flushed, swept.

use std::net::IpAddr;

use butterfly_model::{GroupName, Rule};

use crate::ip::{Address, tcp::TcpState};
use crate::plane::Plane;
use crate::session::{Admitted, Key, Record, SessionTimes, State, Timeouts};
use crate::world::{rules::address, snapshot::Snapshot, ways::has_ports};

/// Selection of sessions: all given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// A vnic at either end.
    pub nic: Option<String>,
    /// The network, of either end.
    pub vni: Option<u32>,
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// An address of either end.
    pub address: Option<IpAddr>,
    /// A port of either end.
    pub port: Option<u16>,
}

/// One end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// The vnic; `None` if it is not on this host.
    pub nic: Option<String>,
    /// Its address.
    pub address: IpAddr,
    /// Its port. For an echo, the identifier and the type of the request; 0 where the protocol has
    /// none.
    pub port: u16,
    /// The same end outside of an external, if a router translates it.
    pub outside: Option<OutsideEnd>,
}

/// Address and port of a machine outside of an external.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideEnd {
    /// Number of the external's network.
    pub vni: u32,
    /// Its address there.
    pub address: IpAddr,
    /// Its port there.
    pub port: u16,
}

/// Returns the outside end of a machine of network `vni`, which speaks with `far`: its address and
/// port at the external by which a router of its network leads there. `None` if it leads by none,
/// or nothing is translated. All translations are looked up here, for the operator.
fn outside_end(
    snapshot: &Snapshot,
    vni: u32,
    (protocol, now): (u8, u32),
    (inside, port): (Address, u16),
    far: Address,
) -> Option<OutsideEnd> {
    let routing = snapshot.network(vni)?.routing.as_ref()?;
    routing.all_beyond(far, vni).find_map(|(gateway, exit)| {
        let outside = snapshot.network(exit)?.routing.as_ref()?.outside.as_ref()?;
        let ports = has_ports(protocol).then_some(port);
        let translations = outside.nat.of(gateway.mac)?;
        let own = translations.outside_of(inside, protocol, ports);
        let (own, other) = own.or_else(|| {
            let public = snapshot.network(vni)?.routing.as_ref()?.public;
            let (own, other) = translations.shared_of((inside, protocol, port), now)?;
            (!public).then_some((own, Some(other)))
        })?;
        Some(OutsideEnd { vni: exit, address: address(own), port: other.unwrap_or(port) })
    })
}

/// Reason for admitting a session at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The vnic is not filtered.
    Bypass,
    /// The end is on another host, which decides about it.
    OtherHost,
    /// The vnic has no OUTBOUND rule, so everything may leave.
    DefaultEgress,
    /// A rule.
    Rule {
        /// The rule's group.
        group: GroupName,
        /// The rule.
        rule: Rule,
    },
    /// A rule or a vnic that is gone: the session's next frame is decided again.
    Gone,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Network.
    pub vni: u32,
    /// VLAN id of the tag that its frames carry.
    pub vlan: Option<u16>,
    /// IP protocol.
    pub protocol: u8,
    /// Sender of the first frame.
    pub opener: SessionEnd,
    /// The other end.
    pub responder: SessionEnd,
    /// State.
    pub state: &'static str,
    /// Seconds since it was made.
    pub age: u32,
    /// Seconds since its last frame.
    pub idle: u32,
    /// Seconds until it ends without another frame.
    pub expires: u32,
    /// Frames from the opener, and from the other end.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Reasons for admitting it at the opener's egress and at the other end's ingress.
    pub rule: [Admission; 2],
}

/// The table of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTable {
    /// Most sessions that the table can hold.
    pub capacity: u32,
    /// Sessions in it.
    pub used: u32,
    /// Kind of its memory.
    pub memory: String,
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
    /// Seconds after an attachment in which TCP connections may be picked up.
    pub tcp_pickup: u32,
    /// Most sessions of one network; a vnic has half of that.
    pub share: u32,
}

/// A filter with the vnic looked up; `None` if no vnic has that name.
struct Wanted<'a> {
    filter: &'a SessionFilter,
    snapshot: &'a Snapshot,
    slot: Option<(u32, u32)>,
}

impl Wanted<'_> {
    fn new<'a>(filter: &'a SessionFilter, snapshot: &'a Snapshot) -> Option<Wanted<'a>> {
        let slot = match &filter.nic {
            None => None,
            Some(id) => {
                let (slot, vnic) = snapshot.vnics.iter().find(|(_, vnic)| *vnic.id == **id)?;
                Some((slot, vnic.born))
            }
        };
        Some(Wanted { filter, snapshot, slot })
    }

    fn matches(&self, key: &Key, admission: &Admitted) -> bool {
        let (tuple, slots) = (key.tuple(), key.slots());
        let SessionFilter { vni, protocol, address, port, .. } = self.filter;
        let ends = [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)];
        // A routed session is of both networks.
        let is_of = |slot, vni| self.snapshot.vnics.get(slot).is_some_and(|vnic| vnic.vni == vni);
        let routed = |vni| key.zone().is_routed() && (is_of(slots.0, vni) || is_of(slots.1, vni));
        vni.is_none_or(|vni| vni == key.vni() || routed(vni))
            && protocol.is_none_or(|protocol| protocol == tuple.protocol)
            && address.is_none_or(|wanted| {
                ends.iter().any(|(at, _)| *at == crate::world::rules::number(wanted))
            })
            && port.is_none_or(|wanted| ends.iter().any(|(_, port)| *port == wanted))
            && self.slot.is_none_or(|(slot, born)| {
                (slots.0 == slot || slots.1 == slot) && admission.stamp >= born
            })
    }
}

impl Plane {
    /// Visits sessions that have not ended. Leaves out those that were cut: they are only
    /// remembered, and let nothing pass.
    fn sessions(&self, mut visit: impl FnMut(u32, Record<'_>, Key, Admitted)) {
        let shared = &self.shared;
        let now = shared.clock.now();
        let timeouts = shared.snapshot.load().times.timeouts;
        shared.table.for_each(|index, record, key, admission| {
            let (seen, state) = record.seen();
            if state != State::Tcp(TcpState::Cut) && !timeouts.over(state, seen, now) {
                visit(index, record, key, admission);
            }
        });
    }

    /// Removes the sessions of part `n` of `parts` that have ended, or whose vnics are gone, and
    /// counts the others.
    ///
    /// A vnic that left may have gone to another host. Its TCP connections with vnics that are here
    /// stay for as long as they may be picked up on that host.
    pub fn sweep(&self, n: u64, parts: u64) {
        let shared = &self.shared;
        if shared.table.used() == 0 {
            self.tally.clear();
            return;
        }
        if n == 0 {
            self.tally.begin();
        }
        let now = shared.clock.now();
        let departed = self.departed();
        let snapshot = shared.snapshot.load();
        if n == 0 {
            shared.divide(&snapshot);
        }
        shared.table.for_part(n, parts, |index, record, key, admission| {
            let (seen, state) = record.seen();
            let (opener, responder) = key.slots();
            let alive = |slot| snapshot.vnics.get(slot).filter(|vnic| vnic.born <= admission.stamp);
            let (opener, responder) = ((opener, alive(opener)), (responder, alive(responder)));
            let stays = match (opener, responder) {
                ((_, Some(_)), (_, Some(_))) => true,
                // Vnics of an adopted table that are not declared again yet.
                ((from, here), (to, there))
                    if (here.is_some() || snapshot.waits(from).is_some())
                        && (there.is_some() || snapshot.waits(to).is_some()) =>
                {
                    true
                }
                ((_, Some(here)), (left, None)) | ((left, None), (_, Some(here))) => {
                    matches!(state, State::Tcp(tcp) if tcp != TcpState::Cut)
                        && !here.is_trunk()
                        && snapshot
                            .networks
                            .get(here.network)
                            .is_some_and(|network| network.remote.is_some())
                        && departed.had(left, admission.stamp, now, snapshot.times.tcp_pickup)
                }
                _ => false,
            };
            if (!stays || snapshot.times.timeouts.over(state, seen, now))
                && shared.table.remove(index, &key)
            {
                shared.released(&snapshot, &key, admission.stamp);
            } else {
                self.tally.add(state);
            }
        });
        if n + 1 == parts {
            self.tally.publish();
        }
    }

    /// Returns the number of sessions that match, and the first `limit` of them.
    pub fn list_sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        let snapshot = self.shared.snapshot.load_full();
        let Some(wanted) = Wanted::new(filter, &snapshot) else { return (0, Vec::new()) };
        let rules = self.rules_by_cell();
        let now = self.shared.clock.now();
        let (mut count, mut rows) = (0, Vec::new());
        self.sessions(|_, record, key, admission| {
            if !wanted.matches(&key, &admission) {
                return;
            }
            count += 1;
            if rows.len() >= limit {
                return;
            }
            let (tuple, (opener, responder)) = (key.tuple(), key.slots());
            let [near, far] =
                [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)];
            let vnic = |slot| snapshot.vnics.get(slot).filter(|vnic| vnic.born <= admission.stamp);
            let end = |slot, own: (Address, u16), other: (Address, u16)| {
                let nic = vnic(slot).filter(|vnic| !vnic.is_trunk());
                let inside = nic.filter(|_| key.zone().is_routed());
                SessionEnd {
                    nic: nic.map(|vnic| vnic.id.to_string()),
                    address: address(own.0),
                    port: own.1,
                    outside: inside.and_then(|vnic| {
                        outside_end(&snapshot, vnic.vni, (tuple.protocol, now), own, other.0)
                    }),
                }
            };
            let [egress, ingress] = admission.cells;
            let by = |slot, cell: u32, cell_zero: Admission| match (vnic(slot), rules.get(&cell)) {
                (None, _) => Admission::Gone,
                (Some(vnic), _) if vnic.is_trunk() => Admission::OtherHost,
                (Some(vnic), _) if vnic.rules.bypass => Admission::Bypass,
                (Some(vnic), _) if vnic.since > admission.stamp => Admission::Gone,
                (Some(_), _) if cell == 0 => cell_zero,
                (Some(_), Some((group, rule)))
                    if self.shared.cells.taken_back(cell) <= admission.stamp =>
                {
                    Admission::Rule { group: group.clone(), rule: rule.clone() }
                }
                _ => Admission::Gone,
            };
            let line = record.line2();
            // A worker may have read the clock after this thread did.
            let idle = now.saturating_sub(line.seen);
            rows.push(SessionRow {
                vni: key.vni(),
                vlan: (tuple.vlan & crate::ip::TAGGED != 0).then_some(tuple.vlan & 0xfff),
                protocol: tuple.protocol,
                opener: end(opener, near, far),
                responder: end(responder, far, near),
                state: line.state.name(),
                age: now.saturating_sub(line.made),
                idle,
                expires: snapshot.times.timeouts.of(line.state).saturating_sub(idle),
                packets: line.packets,
                bytes: line.bytes,
                rule: [
                    by(opener, egress, Admission::DefaultEgress),
                    by(responder, ingress, Admission::Gone),
                ],
            });
        });
        (count, rows)
    }

    /// Removes sessions. Returns their number.
    pub fn flush_sessions(&self, filter: &SessionFilter) -> u64 {
        let snapshot = self.shared.snapshot.load_full();
        let Some(wanted) = Wanted::new(filter, &snapshot) else { return 0 };
        let mut count = 0;
        self.sessions(|index, _, key, admission| {
            if wanted.matches(&key, &admission) && self.shared.table.remove(index, &key) {
                self.shared.released(&snapshot, &key, admission.stamp);
                count += 1;
            }
        });
        count
    }

    /// Puts other times of sessions in force. No worker uses the ones before when it returns.
    pub fn set_session_times(&self, times: SessionTimes) {
        let _state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        next.times = times;
        self.shared.fragments.retime(&times.timeouts);
        self.shared.nat_fragments.retime(&times.timeouts);
        self.publish(next);
    }

    /// Returns the state of the table.
    pub fn session_table(&self) -> SessionTable {
        let shared = &self.shared;
        let SessionTimes { timeouts, tcp_pickup } = shared.snapshot.load().times;
        SessionTable {
            capacity: shared.table.capacity(),
            used: shared.table.used(),
            memory: shared.table.units().memory().name().to_owned(),
            timeouts,
            tcp_pickup,
            share: shared.shares.network,
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use butterfly_packet::{Mac, build};
    use butterfly_vhost::net::NetHeader;

    use super::*;
    use crate::harness::Host;
    use crate::world::policy::VnicPolicy;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);

    /// "b" is filtered, and may ask "a" anything.
    fn host() -> Host {
        let mut host = Host::new().unwrap();
        for (id, mac, ip) in [("a", A, 1), ("b", B, 2)] {
            let policy = VnicPolicy {
                bypass: id == "a",
                ips: vec![[10, 0, 0, ip].into()],
                ..VnicPolicy::default()
            };
            host.vnic(id, mac, 1, &policy).unwrap();
        }
        host.settle();
        host
    }

    fn ask(host: &mut Host, port: u16) {
        let frame = build::ethernet(B, A).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(port, 53, b"?");
        host.send("b", &frame, NetHeader::default()).unwrap();
    }

    /// Returns the number of sessions that a sweep counted, and the number that there are.
    fn counted(host: &mut Host) -> (u32, u32) {
        let (plane, _) = host.inside();
        let all: Vec<_> = plane.tally.list().filter(|(.., n)| *n > 0).collect();
        assert!(
            all.iter().all(|(protocol, state, _)| (*protocol, *state) == ("udp", "new")),
            "{all:?}"
        );
        (all.iter().map(|(.., n)| n).sum(), plane.shared.table.used())
    }

    /// Each part looks at its own sessions. The count shows when the last part is done.
    #[test]
    fn a_sweep_in_parts_counts_each_session_once() {
        const PARTS: u64 = 8;
        let mut host = host();
        (0..100).for_each(|port| ask(&mut host, port));
        for _ in 0..2 {
            let before = counted(&mut host);
            for part in 0..PARTS {
                assert_eq!(counted(&mut host), before, "{part}");
                host.inside().0.sweep(part, PARTS);
            }
            assert_eq!(counted(&mut host), (100, 100));
        }
        // An ended session goes with its part, and is not counted.
        host.inside().0.shared.clock.pass(20);
        (100..150).for_each(|port| ask(&mut host, port));
        host.inside().0.shared.clock.pass(11);
        let mut used = vec![150];
        for part in 0..PARTS {
            host.inside().0.sweep(part, PARTS);
            used.push(counted(&mut host).1);
        }
        assert!(used.is_sorted_by(|a, b| a >= b) && used[1] < 150 && used[7] > 50, "{used:?}");
        assert_eq!(counted(&mut host), (50, 50));
        // Of an empty table nothing is left to count.
        host.flush_sessions(&SessionFilter::default());
        host.inside().0.sweep(3, PARTS);
        assert_eq!(counted(&mut host), (0, 0));
    }

    /// The counts of a vnic's sessions go with the sessions, however those end.
    #[test]
    fn counts_of_vnics_and_networks_go_with_their_sessions() {
        let mut host = host();
        let counts = |host: &mut Host| {
            let snapshot = host.inside().0.shared.snapshot.load_full();
            let of = |id: &str| {
                let vnic = snapshot.vnics.iter().find(|(_, vnic)| &*vnic.id == id).unwrap().1;
                let sessions = &vnic.shared.sessions;
                (sessions.opened.load(Relaxed), sessions.received.load(Relaxed))
            };
            let network = snapshot.network(1).unwrap().sessions.load(Relaxed);
            (of("a"), of("b"), network)
        };
        (0..10).for_each(|port| ask(&mut host, port));
        assert_eq!(counts(&mut host), ((0, 10), (10, 0), 10));
        let port = SessionFilter { port: Some(3), ..SessionFilter::default() };
        assert_eq!(host.flush_sessions(&port), 1);
        assert_eq!(counts(&mut host), ((0, 9), (9, 0), 9));
        host.pass(31);
        assert_eq!(counts(&mut host), ((0, 0), (0, 0), 0));
        ask(&mut host, 3);
        assert_eq!(counts(&mut host), ((0, 1), (1, 0), 1));
    }
}
