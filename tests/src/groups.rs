//! Security groups over the API of a whole daemon, in a short notation.

use butterfly_api::proto::{
    self, Cidr, NicUpdateReq, Request, Rule, Session, SessionFilter, SessionListReq, Sg,
    SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq, SgRuleStats, rule::Direction,
};
use protobuf::MessageField;

use crate::daemon::Daemon;

/// Reads a rule: `in tcp 80-90 10.0.0.0/8`, `out udp 53 @dns`, `in icmp - ::/0`. `@` precedes the
/// name of a group.
pub fn rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split(' ').collect();
    let [direction, protocol, ports, peer] = words[..] else { panic!("no rule: {text}") };
    let protocol = match protocol {
        "any" => -1,
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" => 58,
        "sctp" => 132,
        number => number.parse().unwrap(),
    };
    let mut rule = Rule { protocol: Some(protocol), ..Rule::default() };
    rule.set_direction(if direction == "in" { Direction::INBOUND } else { Direction::OUTBOUND });
    if ports != "-" {
        let (start, end) = ports.split_once('-').unwrap_or((ports, ports));
        (rule.port_start, rule.port_end) =
            (Some(start.parse().unwrap()), Some(end.parse().unwrap()));
    }
    match peer.strip_prefix('@') {
        Some(group) => rule.security_group = Some(group.to_owned()),
        None => {
            let (address, bits) = peer.split_once('/').unwrap();
            let cidr = Cidr {
                address: Some(address.to_owned()),
                mask_size: Some(bits.parse().unwrap()),
                ..Cidr::default()
            };
            rule.cidr = MessageField::some(cidr);
        }
    }
    rule
}

/// The request that adds a member.
pub fn member_add(group: &str, member: &str) -> Request {
    let add = SgMemberAddReq {
        sg_id: Some(group.to_owned()),
        member: Some(member.to_owned()),
        ..SgMemberAddReq::default()
    };
    Request { sg_member_add: MessageField::some(add), ..Request::default() }
}

/// The request that removes a member.
pub fn member_del(group: &str, member: &str) -> Request {
    let del = SgMemberDelReq {
        sg_id: Some(group.to_owned()),
        member: Some(member.to_owned()),
        ..SgMemberDelReq::default()
    };
    Request { sg_member_del: MessageField::some(del), ..Request::default() }
}

/// The request that adds a rule.
pub fn rule_add(group: &str, text: &str) -> Request {
    let add = SgRuleAddReq {
        sg_id: Some(group.to_owned()),
        rule: MessageField::some(rule(text)),
        ..SgRuleAddReq::default()
    };
    Request { sg_rule_add: MessageField::some(add), ..Request::default() }
}

/// The request that removes a rule.
pub fn rule_del(group: &str, text: &str) -> Request {
    let del = SgRuleDelReq {
        sg_id: Some(group.to_owned()),
        rule: MessageField::some(rule(text)),
        ..SgRuleDelReq::default()
    };
    Request { sg_rule_del: MessageField::some(del), ..Request::default() }
}

/// The request that makes a group, or gives it this content.
pub fn group_set(group: &str, rules: &[&str], members: &[&str]) -> Request {
    let group = Sg {
        id: Some(group.to_owned()),
        member: members.iter().map(|member| (*member).to_owned()).collect(),
        rule: rules.iter().map(|text| rule(text)).collect(),
        ..Sg::default()
    };
    Request { sg_add: MessageField::some(group), ..Request::default() }
}

/// The request that deletes a group.
pub fn group_del(group: &str) -> Request {
    Request { sg_del: Some(group.to_owned()), ..Request::default() }
}

/// The request that gives a vnic these groups instead of its own.
pub fn nic_groups(id: &str, groups: &[&str]) -> Request {
    let groups = if groups.is_empty() { &[""][..] } else { groups };
    let update = NicUpdateReq {
        id: Some(id.to_owned()),
        security_group: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..NicUpdateReq::default()
    };
    Request { nic_update: MessageField::some(update), ..Request::default() }
}

impl Daemon {
    /// Returns the number of sessions that match a filter, and the first 10,000 of them.
    pub fn sessions(&self, filter: SessionFilter) -> (u64, Vec<Session>) {
        let request = SessionListReq {
            filter: MessageField::some(filter),
            limit: Some(10_000),
            ..SessionListReq::default()
        };
        let answer = self
            .ask(Request { session_list: MessageField::some(request), ..Request::default() })
            .unwrap();
        (answer.session_list.matching(), answer.session_list.session.clone())
    }

    /// Ends the sessions that match a filter. Returns their number.
    pub fn flush_sessions(&self, filter: SessionFilter) -> u64 {
        let answer = self
            .ask(Request { session_flush: MessageField::some(filter), ..Request::default() })
            .unwrap();
        answer.session_flush.flushed()
    }

    /// Returns the rules of a group in order, each with the number of sessions that it admitted.
    pub fn rule_stats(&self, group: &str) -> Vec<(Rule, u64)> {
        let answer = self
            .ask(Request { sg_rule_stats: Some(group.to_owned()), ..Request::default() })
            .unwrap();
        let row = |stats: SgRuleStats| (stats.rule.clone().unwrap_or_default(), stats.sessions());
        answer.sg_rule_stats.into_iter().map(row).collect()
    }

    /// Returns the state of the session table.
    pub fn session_table(&self) -> proto::SessionTable {
        let answer = self.ask(Request { session_table: Some(true), ..Request::default() }).unwrap();
        answer.session_table.unwrap_or_default()
    }
}
