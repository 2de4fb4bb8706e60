//! Shares of sessions: vnics and networks that have all they may have, the sessions that may go for
//! new ones, and the counts for it.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_mem::cpu;

use crate::stages::filter::reasons::{SESSION_SHARE, SESSIONS_FULL};

use crate::engine::{bucket::Bucket, reason::DropReason};
use crate::ip::{Address, Tuple};
use crate::session::{Key, Record, Shares, Table, Zone, less};
use crate::stages::context::Context;
use crate::world::snapshot::{Network, Snapshot, Vnic};

/// Microseconds until the next search after one that found nothing. A search looks at 64 records,
/// some 2 us: so searches take a fiftieth of a processor at most.
const REST_US: u64 = 100;

/// A share that is used up.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// Reason for refusing a session; the refusal is charged to `slot`.
    pub reason: DropReason,
    pub slot: u32,
    whose: Whose,
    /// Network of the session.
    vni: u32,
}

/// Sessions that count in a share.
#[derive(Clone, Copy)]
enum Whose {
    /// Opened by the vnic in this slot.
    Opener(u32),
    /// Opened to the vnic in this slot by one opener: the vnic in a slot, or one address on other
    /// hosts.
    OpenerAt(u32, u32, Option<Address>),
    /// Opened to the vnic in this slot.
    Receiver(u32),
    /// Of the network.
    Network,
    /// Of all networks beyond their parts.
    Common,
}

impl Share {
    /// Returns whether a session is of this share and may go for another one.
    pub fn may_give(&self, record: &Record<'_>, context: &Context<'_>) -> bool {
        let of_these = |key: &Key| {
            let (opener, responder) = key.slots();
            let whose = match self.whose {
                Whose::Opener(slot) => opener == slot,
                Whose::OpenerAt(slot, at, address) => {
                    opener == slot
                        && responder == at
                        && address.is_none_or(|address| key.tuple().source == address)
                }
                Whose::Receiver(slot) => responder == slot,
                Whose::Network => true,
                Whose::Common => return gives_way(key, self.vni, context),
            };
            whose && key.vni() == self.vni
        };
        record.read().is_some_and(|(key, _)| of_these(&key)) && may_go(record, context)
    }
}

/// Returns the shares of a session that are used up. Each is checked when its turn comes: a session
/// that went for one share may have freed another, too. The opener's shares come first: it is the
/// opener's session.
pub(crate) fn full_shares<'a>(
    context: &'a Context<'_>,
    key: &'a Key,
) -> impl Iterator<Item = Share> + use<'a> {
    let (shares, snapshot, own) = (context.shares, context.snapshot, context.sender.place.slot);
    let (opener, responder) = key.slots();
    let most = |vnic: &Vnic| if vnic.is_trunk() { shares.network } else { shares.vnic };
    let home = home_of(key, context);
    let ends = move || Some((snapshot.vnics.get(opener)?, snapshot.vnics.get(responder)?));
    let share = move |reason, slot, whose| Share { reason, slot, whose, vni: home.vni };
    (0..5).filter_map(move |which| {
        let (from, to) = ends()?;
        let sessions = home.sessions.load(Relaxed);
        let (full, share) = match which {
            0 => (
                from.shared.sessions.opened.load(Relaxed) >= most(from),
                share(SESSION_SHARE, opener, Whose::Opener(opener)),
            ),
            1 => {
                let address = from.is_trunk().then(|| key.tuple().source);
                let whose = Whose::OpenerAt(opener, responder, address);
                // Other hosts are many: none of them is a receiver.
                let full = !to.is_trunk()
                    && shares.opener < u32::MAX
                    && to.shared.sessions.openers.count(opener_of(context.table, home, key))
                        >= shares.opener;
                (full, share(SESSION_SHARE, opener, whose))
            }
            2 => {
                let full = to.shared.sessions.received.load(Relaxed) >= most(to);
                (full, share(SESSION_SHARE, responder, Whose::Receiver(responder)))
            }
            3 => (sessions >= shares.network, share(SESSION_SHARE, own, Whose::Network)),
            _ => {
                let full = sessions >= shares.part(home.has_part()) && !shares.has_common();
                (full, share(SESSIONS_FULL, own, Whose::Common))
            }
        };
        full.then_some(share)
    })
}

/// Returns the network that a session counts in: that of its zone.
#[inline(always)]
fn home_of<'a>(key: &Key, context: &Context<'a>) -> &'a Network {
    if key.vni() == context.entry.vni {
        return context.entry;
    }
    context.snapshot.network(key.vni()).map_or(context.entry, |network| network)
}

/// Returns whether a session may go for another one of its kind: it is over, or not established.
fn may_go(record: &Record<'_>, context: &Context<'_>) -> bool {
    is_over(record, context) || !record.seen().1.is_established()
}

fn is_over(record: &Record<'_>, context: &Context<'_>) -> bool {
    let (seen, state) = record.seen();
    context.timeouts().over(state, seen, context.now)
}

/// Returns whether a session may go for another one, of this network, when the table is full.
pub(crate) fn may_give_way(record: &Record<'_>, vni: u32, context: &Context<'_>) -> bool {
    let may = |key: &Key, stamp| {
        // The network is gone, and the sweep has not come by yet.
        let network = context.snapshot.network(key.vni()).filter(|network| network.born <= stamp);
        let (opener, responder) = key.slots();
        // A session whose vnics are not declared again yet ends as others do.
        let waits = |slot| context.snapshot.waits(slot).is_some();
        (network.is_none() && !waits(opener) && !waits(responder))
            || (may_go(record, context) && gives_way(key, vni, context))
    };
    is_over(record, context)
        || record.read().is_some_and(|(key, admission)| may(&key, admission.stamp))
}

/// Returns whether a session is of this network, or of one that has more than its part.
fn gives_way(key: &Key, vni: u32, context: &Context<'_>) -> bool {
    let part = |network: &Network| context.shares.part(network.has_part());
    let beyond = |network: &Network| network.sessions.load(Relaxed) > part(network);
    key.vni() == vni || context.snapshot.network(key.vni()).is_none_or(|network| beyond(network))
}

/// Returns whether the sender's rate allows another session now.
pub(super) fn may_open(source: Address, context: &Context<'_>) -> bool {
    let rate = context.shares.rate;
    // What comes in a second, half of it at once. A part of a small rate is one at least, and of
    // none nothing.
    let least = rate.min(1);
    let take = |bucket: &Bucket, parts: u32| {
        bucket.take((rate / parts).max(least).into(), (rate / 2 / parts).max(least).into())
    };
    if let Some(crowd) = &context.sender.shared.crowd {
        return rate == u32::MAX || crowd.sessions.take(source, context.now, take);
    }
    rate == u32::MAX || take(&context.sender.shared.sessions.budget, 1)
}

/// Returns whether a search for the sender is to be skipped, as the last one was in vain a moment
/// ago.
pub(crate) fn rests(context: &Context<'_>) -> bool {
    let until = context.sender.shared.sessions.rests.load(Relaxed);
    until != 0 && cpu::tsc() < until
}

/// Notes that a search was in vain.
pub(super) fn rest(context: &Context<'_>) {
    let until = cpu::tsc().saturating_add(cpu::tsc_hz() / 1_000_000 * REST_US);
    context.sender.shared.sessions.rests.store(until, Relaxed);
}

/// Returns a number of the opener of a session, which guests cannot choose: of a vnic, or of one
/// address on other hosts.
fn opener_of(table: &Table, network: &Network, key: &Key) -> u64 {
    let (slot, _) = key.slots();
    opener_number(table, key, network.remote.as_ref().is_some_and(|remote| remote.slot == slot))
}

/// Returns the number of [`opener_of`], for an opener of this host or of another one.
pub(crate) fn opener_number(table: &Table, key: &Key, remote: bool) -> u64 {
    let (slot, _) = key.slots();
    let source = if remote { key.tuple().source } else { slot.into() };
    let tuple = Tuple {
        source,
        destination: remote.into(),
        source_port: 0,
        destination_port: 0,
        vlan: 0,
        protocol: 0,
    };
    table.hash(&Key::new(&tuple, Zone::of(0), 0, 0))
}

/// Counts a session that was made: with its opener, its receiver, and their network.
pub(super) fn acquired(context: &Context<'_>, key: &Key) {
    let Context { snapshot, table, shares, .. } = *context;
    counted(snapshot, table, shares, home_of(key, context), key);
}

/// Returns whether a session that came from another host fits all shares. None goes for it.
pub(crate) fn has_room(
    snapshot: &Snapshot,
    table: &Table,
    shares: &Shares,
    network: &Network,
    key: &Key,
) -> bool {
    let (opener, responder) = key.slots();
    let (Some(from), Some(to)) = (snapshot.vnics.get(opener), snapshot.vnics.get(responder)) else {
        return false;
    };
    let most = |vnic: &Vnic| if vnic.is_trunk() { shares.network } else { shares.vnic };
    let sessions = network.sessions.load(Relaxed);
    let one_too_many = !to.is_trunk()
        && shares.opener < u32::MAX
        && to.shared.sessions.openers.count(opener_of(table, network, key)) >= shares.opener;
    from.shared.sessions.opened.load(Relaxed) < most(from)
        && to.shared.sessions.received.load(Relaxed) < most(to)
        && !one_too_many
        && sessions < shares.network
        && (sessions < shares.part(network.has_part()) || shares.has_common())
}

/// Counts a session, as [`acquired`] does.
pub(crate) fn counted(
    snapshot: &Snapshot,
    table: &Table,
    shares: &Shares,
    network: &Network,
    key: &Key,
) {
    let (opener, responder) = key.slots();
    if let Some(vnic) = snapshot.vnics.get(opener) {
        vnic.shared.sessions.opened.fetch_add(1, Relaxed);
    }
    if let Some(vnic) = snapshot.vnics.get(responder) {
        vnic.shared.sessions.received.fetch_add(1, Relaxed);
        vnic.shared.sessions.openers.add(opener_of(table, network, key));
    }
    let before = network.sessions.fetch_add(1, Relaxed);
    shares.entered(network.has_part(), before);
}

/// Undoes [`acquired`] for a session that was last decided by version `stamp`. A later vnic in the
/// place of one of its ends never had it.
pub(crate) fn released(snapshot: &Snapshot, table: &Table, shares: &Shares, key: &Key, stamp: u32) {
    let (opener, responder) = key.slots();
    let network = snapshot.network(key.vni()).filter(|network| network.born <= stamp);
    // Its vnics are gone with it, but of a routed session only one.
    if network.is_none() && snapshot.adopted.is_none() && !key.zone().is_routed() {
        return;
    }
    if let Some(counts) = snapshot.counts_of(opener, stamp) {
        less(&counts.opened);
    }
    if let Some(counts) = snapshot.counts_of(responder, stamp) {
        less(&counts.received);
        let trunk = network.and_then(|network| network.remote.as_ref()).map(|remote| remote.slot);
        let remote = trunk == Some(opener)
            || snapshot.waits(opener).is_some_and(|waiting| waiting.id.is_empty());
        counts.openers.remove(opener_number(table, key, remote));
    }
    match network {
        Some(network) => shares.left(network.has_part(), less(&network.sessions)),
        // Its vnics are not declared again yet.
        None => {
            let waiting = snapshot.adopted.as_ref();
            let sessions = waiting.and_then(|adopted| adopted.sessions_in(key.vni()));
            sessions.into_iter().for_each(|sessions| _ = less(sessions));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use butterfly_packet::{Mac, build};
    use butterfly_vhost::net::NetHeader;

    use super::*;
    use crate::harness::Host;
    use crate::session::SessionConfig;
    use crate::world::policy::VnicPolicy;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);

    /// "b" is filtered, and may ask "a" anything.
    fn host(capacity: u32) -> Host {
        with(SessionConfig { capacity, ..SessionConfig::default() })
    }

    fn with(config: SessionConfig) -> Host {
        let mut host = Host::with_sessions(config).unwrap();
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

    fn send(host: &mut Host, from: &str, port: u16) {
        let frame = match from {
            "b" => build::ethernet(B, A).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(port, 53, b"?"),
            _ => build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(53, port, b"!"),
        };
        host.send(from, &frame, NetHeader::default()).unwrap();
    }

    /// Calls `act` with the session counts of a vnic.
    fn of<T>(host: &mut Host, id: &str, act: impl FnOnce(&crate::session::VnicSessions) -> T) -> T {
        let snapshot = host.inside().0.shared.snapshot.load_full();
        let found = snapshot.vnics.iter().find(|(_, vnic)| &*vnic.id == id);
        act(&found.unwrap().1.shared.sessions)
    }

    /// Half of what comes in a second.
    #[test]
    fn a_small_rate_allows_a_small_burst() {
        for (rate, burst) in [(1, 1), (2, 1), (7, 3), (640, 320)] {
            let config = SessionConfig { capacity: 4096, rate, ..SessionConfig::default() };
            let mut host = with(config);
            send(&mut host, "b", 1);
            let left = of(&mut host, "b", |sessions| {
                (0..300_000).filter(|_| sessions.budget.take(0, 0)).count()
            });
            assert_eq!(left, burst - 1, "{rate}");
        }
    }

    /// The text of "session-rate" promises it: 100,000 at once.
    #[test]
    fn a_vnic_opens_so_many_sessions_at_once() {
        let mut host = host(4096);
        send(&mut host, "b", 1);
        // Tokens that are left: none comes in between without a rate.
        let left = |host: &mut Host, id| {
            of(host, id, |sessions| (0..300_000).filter(|_| sessions.budget.take(0, 0)).count())
        };
        assert_eq!(left(&mut host, "b"), 99_999);
        // An answer, and a frame of a session that is known, open nothing.
        send(&mut host, "b", 2);
        let before = of(&mut host, "b", |sessions| sessions.budget.copy());
        (0..5).for_each(|_| send(&mut host, "a", 2));
        (0..5).for_each(|_| send(&mut host, "b", 2));
        let before = (0..300_000).filter(|_| before.take(0, 0)).count();
        assert_eq!((left(&mut host, "b"), left(&mut host, "a")), (before, 0));
    }

    /// After a search in vain the next one is 100 us later, and until then there is none.
    #[test]
    fn who_searched_in_vain_rests() {
        let mut host = host(64);
        let most = host.inside().0.shared.shares.opener;
        for port in 0..most as u16 {
            send(&mut host, "b", port);
            send(&mut host, "a", port);
        }
        assert_eq!(of(&mut host, "b", |sessions| sessions.rests.load(Relaxed)), 0);
        let before = cpu::tsc();
        send(&mut host, "b", 1000);
        let after = cpu::tsc();
        let until = of(&mut host, "b", |sessions| sessions.rests.load(Relaxed));
        let rest = cpu::tsc_hz() / 10_000;
        let slack = rest / 50;
        assert!(
            before + rest - slack <= until && until <= after + rest + slack,
            "{before} {until} {after}, {rest}"
        );
        assert_eq!(host.sessions(&Default::default(), 0).0, u64::from(most));
        // A search that is not in vain is made once the rest is over, and not before.
        host.inside().0.shared.clock.pass(61);
        of(&mut host, "b", |sessions| sessions.rests.store(u64::MAX, Relaxed));
        host.moved();
        send(&mut host, "b", 1001);
        assert_eq!(host.moved().get("b.drop.session-share"), Some(&1));
        of(&mut host, "b", |sessions| sessions.rests.store(1, Relaxed));
        send(&mut host, "b", 1002);
        assert_eq!(host.moved().get("b.drop.session-share"), None);
    }
}
