//! Membership in the groups of networks: IGMPv2 (RFC 2236) and MLDv1 (RFC 2710) as a host speaks
//! them.
//!
//! Reports are repeated without a query, because a switch that snoops forgets members on a link
//! without a querier. Another host's report never replaces such a repetition, since the switch
//! wants to know of each port. It does replace an answer to a query.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use butterfly_packet::{
    icmp::v6,
    igmp::{self, Igmp},
    ipv4::Ipv4,
    ipv6::{self, Ipv6},
    mld::{self, Mld},
    protocol, vxlan,
};

use crate::endpoint::control::{
    Membership, Output,
    counts::{ControlCounts, Count},
    link::Link,
};

/// Most groups joined at once. One more is refused, and counted.
pub(super) const MAX_GROUPS: usize = 1 << 16;
/// Reports after the one at the beginning, in case it is lost.
const REPEATS: u8 = 2;
/// Range of milliseconds until each of them: both are sent within the 10 s of RFC 2236, 8.10.
const SOON: (u64, u64) = (1000, 5000);
/// Range of milliseconds between later ones.
const LATER: (u64, u64) = (55_000, 60_000);
/// Shortest time over which answers to a query for all groups are spread, even if the query asks
/// for less: there may be thousands.
const SPREAD: u64 = 1000;
/// Milliseconds between two reports of a group, however often it is queried.
const PAUSE: u64 = 500;
/// Milliseconds between two looks at all groups: with thousands of them, some report is always due.
const REST: u64 = 20;

struct Member {
    vni: Option<u32>,
    /// Reports still to be sent of those at the beginning.
    early: u8,
    /// Time of the next report without a query.
    repeat: u64,
    /// Time of the next answer to a query.
    answer: Option<u64>,
    last: u64,
}

/// The groups that are joined, all of the endpoint's family.
pub(super) struct JoinedGroups {
    prefix6: Ipv6Addr,
    members: BTreeMap<IpAddr, Member>,
    random: Random,
    /// Time before which nothing is to be sent.
    wake: u64,
}

impl JoinedGroups {
    pub fn new(prefix6: Ipv6Addr, seed: u64) -> JoinedGroups {
        JoinedGroups {
            prefix6,
            members: BTreeMap::new(),
            random: Random::new(seed),
            wake: u64::MAX,
        }
    }

    /// Returns the time at which [`Self::tick`] has something to do.
    pub fn wake(&self) -> u64 {
        self.wake
    }

    fn of(&self, link: &Link, vni: u32) -> IpAddr {
        match link.endpoint {
            IpAddr::V4(_) => vxlan::group_v4(vni).into(),
            IpAddr::V6(_) => vxlan::group_v6(self.prefix6, vni).into(),
        }
    }

    /// Joins the group of a network, unless it is joined. Returns whether it is joined now: false
    /// if there are too many groups.
    pub fn join(
        &mut self,
        link: &Link,
        vni: u32,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) -> bool {
        self.join_group(link, self.of(link, vni), Some(vni), now, counts, out)
    }

    /// Joins a group of a network, or a group that the endpoint itself needs.
    pub fn join_group(
        &mut self,
        link: &Link,
        group: IpAddr,
        vni: Option<u32>,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) -> bool {
        if self.members.contains_key(&group) {
            return true;
        }
        if self.members.len() >= MAX_GROUPS {
            counts.add(Count::GroupsFull);
            return false;
        }
        let repeat = now + self.random.between(SOON);
        self.members.insert(group, Member { vni, early: REPEATS, repeat, answer: None, last: now });
        self.wake = self.wake.min(repeat);
        out.frames.push(report(link, group));
        true
    }

    /// Leaves the group of a network, if it was joined.
    pub fn leave(&mut self, link: &Link, vni: u32, out: &mut Output) {
        let group = self.of(link, vni);
        if self.members.remove(&group).is_none() {
            return;
        }
        out.frames.push(match (link.endpoint, group) {
            (IpAddr::V4(me), IpAddr::V4(group)) => igmp::leave(link.mac, me, group),
            (_, group) => mld::done(link.mac, six(group)),
        });
    }

    /// Reports all groups from the next [`Self::tick`] on, as often as if they were joined now.
    pub fn report_again(&mut self, now: u64) {
        for member in self.members.values_mut() {
            // One more report than usual: the first one, which joining sends at once.
            (member.early, member.repeat) = (REPEATS + 1, now.max(member.last + PAUSE));
            self.wake = self.wake.min(member.repeat);
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, link: &Link, now: u64, out: &mut Output) {
        if self.wake > now {
            return;
        }
        self.wake = u64::MAX;
        for (&group, member) in &mut self.members {
            if member.next() <= now {
                out.frames.push(report(link, group));
                if member.repeat <= now {
                    member.early = member.early.saturating_sub(1);
                }
                if member.repeat <= now || member.early == 0 {
                    member.repeat =
                        now + self.random.between(if member.early > 0 { SOON } else { LATER });
                }
                (member.answer, member.last) = (None, now);
            }
            self.wake = self.wake.min(member.next());
        }
        self.wake = self.wake.max(now + REST);
    }

    /// Hears an IGMP message.
    pub fn igmp(&mut self, ip: &Ipv4<'_>, payload: &[u8], now: u64) -> Count {
        let Ok(message) = Igmp::parse(payload) else { return Count::Malformed };
        if !message.checksum_is_valid() {
            return Count::BadChecksum;
        }
        if ip.ttl() != 1 {
            return Count::NotLocal;
        }
        match (message.query(), message.kind()) {
            (Some(query), _) => self.query(
                ip.destination().into(),
                igmp::ALL_SYSTEMS.into(),
                query.group.map(IpAddr::V4),
                query.max_response,
                now,
            ),
            (_, igmp::REPORT_V1 | igmp::REPORT) => {
                self.reported(ip.destination().into(), message.group().into())
            }
            _ => Count::Ignored,
        }
    }

    /// Hears an ICMPv6 message of MLD. Its checksum was looked at.
    pub fn mld(&mut self, ip: &Ipv6<'_>, message: &[u8], now: u64) -> Count {
        let Ok(message) = Mld::parse(message) else { return Count::Malformed };
        // RFC 3810, 6.2, asks for all three.
        let first = ip.extensions().take_next();
        let alert = matches!(first, Ok(Some(first)) if first.kind == protocol::HOP_BY_HOP && mld::has_router_alert(first.bytes));
        if ip.hop_limit() != 1 || !alert || !ip.source().is_unicast_link_local() {
            return Count::NotLocal;
        }
        match (message.query(), message.kind()) {
            (Some(query), _) => self.query(
                ip.destination().into(),
                ipv6::ALL_NODES.into(),
                query.group.map(IpAddr::V6),
                query.max_response,
                now,
            ),
            (_, v6::LISTENER_REPORT) => {
                self.reported(ip.destination().into(), message.group().into())
            }
            _ => Count::Ignored,
        }
    }

    /// Takes a query for members. The answer comes at a random time, so that not all hosts speak at
    /// once, and one answer is enough.
    fn query(
        &mut self,
        to: IpAddr,
        everyone: IpAddr,
        group: Option<IpAddr>,
        max_response: u32,
        now: u64,
    ) -> Count {
        let max = u64::from(max_response);
        match group {
            None if to == everyone => {
                let max = max.max(SPREAD);
                for member in self.members.values_mut() {
                    member.ask(now, max, &mut self.random);
                    self.wake = self.wake.min(member.next());
                }
            }
            Some(group) if to == everyone || to == group => {
                if let Some(member) = self.members.get_mut(&group) {
                    member.ask(now, max, &mut self.random);
                    self.wake = self.wake.min(member.next());
                }
            }
            _ => return Count::Misdirected,
        }
        Count::Query
    }

    /// Takes the report of another host that is a member too.
    fn reported(&mut self, to: IpAddr, group: IpAddr) -> Count {
        if to != group {
            return Count::Misdirected;
        }
        match self.members.get_mut(&group).and_then(|member| member.answer.take()) {
            Some(_) => Count::Suppressed,
            None => Count::Ignored,
        }
    }

    /// Returns the groups for the operator, by address.
    pub fn list(&self, now: u64) -> Vec<Membership> {
        let row = |(address, member): (&IpAddr, &Member)| Membership {
            address: *address,
            vni: member.vni,
            reported: now.saturating_sub(member.last),
        };
        self.members.iter().map(row).collect()
    }
}

impl Member {
    fn next(&self) -> u64 {
        self.repeat.min(self.answer.unwrap_or(u64::MAX))
    }

    /// Makes an answer due within `max`. One already due within that time stays (RFC 2236, 3).
    fn ask(&mut self, now: u64, max: u64, random: &mut Random) {
        if self.answer.is_none_or(|answer| answer > now + max) {
            self.answer = Some((now + random.between((0, max))).max(self.last + PAUSE));
        }
    }
}

fn report(link: &Link, group: IpAddr) -> Vec<u8> {
    match (link.endpoint, group) {
        (IpAddr::V4(me), IpAddr::V4(group)) => igmp::report(link.mac, me, group),
        (_, group) => mld::report(link.mac, six(group)),
    }
}

fn six(group: IpAddr) -> Ipv6Addr {
    match group {
        IpAddr::V4(group) => group.to_ipv6_mapped(), // groups are of the endpoint's family
        IpAddr::V6(group) => group,
    }
}

/// xorshift64* (Vigna, 2014): times that differ between hosts need no more.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// A number from the first to the second, both included.
    fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        low + (number >> 32) % (high - low + 1)
    }
}
