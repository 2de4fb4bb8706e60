//! Requests about security groups.
//!
//! The data path is asked first and the registry follows: what it refuses has not happened. What
//! changes one member or one rule never touches the others, of which there may be 100,000.

use super::{
    Daemon,
    meant::suggest,
    nic::refusal,
    record::{member_of, rule_of},
};
use crate::{
    convert,
    dataplane::Dataplane,
    events::{Kind, counted},
};
use butterfly_api::{
    Answer, Failure,
    proto::{
        Response, Sg, SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq, SgRuleStats,
    },
};
use butterfly_datapath::GroupChange;
use butterfly_model::{Direction, GroupName, Nic, Rule, SecurityGroup};
use protobuf::MessageField;
use std::collections::HashMap;
use tracing::warn;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn sg_add(&mut self, declared: &Sg) -> Answer {
        let group = convert::security_group(declared)?;
        if self.groups.get(group.name()) != Some(&group) {
            self.declare(group)?;
        }
        Ok(Response::new())
    }

    /// Vnics and rules keep naming it, and mean it again when it comes back.
    pub(super) fn sg_del(&mut self, id: &str) -> Answer {
        match self.groups.get(id) {
            Some(group) => {
                let limited = limits_egress(group);
                self.dataplane.change_group(group.name(), GroupChange::Forget).map_err(refusal)?;
                self.groups.remove(id);
                self.tell(Kind::SgRemoved, format!("security group {id:?} deleted"));
                self.tell_of_egress(id, limited);
            }
            None => warn!("security group {id:?} does not exist and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn sg_list(&self) -> Answer {
        let sg_list = self.groups.keys().map(|name| name.as_str().to_owned()).collect();
        Ok(Response { sg_list, ..Default::default() })
    }

    pub(super) fn sg_rule_add(&mut self, request: &SgRuleAddReq) -> Answer {
        let rule = convert::rule(&request.rule)?;
        match self.groups.get_mut(request.sg_id()) {
            Some(group) if group.has_rule(&rule) => {}
            Some(group) => {
                self.dataplane
                    .change_group(group.name(), GroupChange::AddRule(rule.clone()))
                    .map_err(refusal)?;
                let text = rule_of(request.sg_id(), &rule);
                group.add_rule(rule);
                self.note(Kind::SgRuleAdded, text);
            }
            None => {
                let mut group = SecurityGroup::empty(convert::group_name(request.sg_id())?);
                group.add_rule(rule);
                self.declare(group)?;
            }
        }
        Ok(Response::new())
    }

    pub(super) fn sg_rule_del(&mut self, request: &SgRuleDelReq) -> Answer {
        let wanted = convert::rule(&request.rule)?;
        // Ports that mean nothing are not listed: who deletes what was listed means the rule
        // whatever they are.
        let alike = |rule: &&Rule| rule.ports().is_none() && rule.is_but_for_ports(&wanted);
        let doomed: Vec<Rule> = match self.groups.get(request.sg_id()) {
            Some(group) if group.has_rule(&wanted) => vec![wanted],
            Some(group) => group.rules().filter(alike).cloned().collect(),
            None => Vec::new(),
        };
        let limited = self.groups.get(request.sg_id()).is_some_and(limits_egress);
        for rule in doomed {
            let Some(group) = self.groups.get_mut(request.sg_id()) else { break };
            self.dataplane
                .change_group(group.name(), GroupChange::RemoveRule(rule.clone()))
                .map_err(refusal)?;
            group.remove_rule(&rule);
            self.note(Kind::SgRuleRemoved, rule_of(request.sg_id(), &rule));
        }
        self.tell_of_egress(request.sg_id(), limited);
        Ok(Response::new())
    }

    pub(super) fn sg_rule_list(&self, id: &str) -> Answer {
        let sg_rule_list = self.group(id)?.rules().map(convert::rule_details).collect();
        Ok(Response { sg_rule_list, ..Default::default() })
    }

    pub(super) fn sg_member_add(&mut self, request: &SgMemberAddReq) -> Answer {
        let member = convert::member(request.member())?;
        match self.groups.get_mut(request.sg_id()) {
            Some(group) if group.members().contains(member) => {}
            Some(group) => {
                self.dataplane
                    .change_group(group.name(), GroupChange::AddMember(member))
                    .map_err(refusal)?;
                group.add_member(member);
                self.note(Kind::SgMemberAdded, member_of(request.sg_id(), member));
            }
            None => {
                let mut group = SecurityGroup::empty(convert::group_name(request.sg_id())?);
                group.add_member(member);
                self.declare(group)?;
            }
        }
        Ok(Response::new())
    }

    pub(super) fn sg_member_del(&mut self, request: &SgMemberDelReq) -> Answer {
        let member = convert::member(request.member())?;
        if let Some(group) = self.groups.get_mut(request.sg_id())
            && group.members().contains(member)
        {
            self.dataplane
                .change_group(group.name(), GroupChange::RemoveMember(member))
                .map_err(refusal)?;
            group.remove_member(member);
            self.note(Kind::SgMemberRemoved, member_of(request.sg_id(), member));
        }
        Ok(Response::new())
    }

    pub(super) fn sg_member_list(&self, id: &str) -> Answer {
        Ok(Response { sg_member_list: self.group(id)?.members().texts(), ..Default::default() })
    }

    pub(super) fn sg_details(&self, id: &str) -> Answer {
        let sg_details = if id.is_empty() {
            self.groups.values().map(convert::group_details).collect()
        } else {
            let group = self.groups.get(id).ok_or_else(|| Failure::new("Sg not found"))?;
            vec![convert::group_details(group)]
        };
        Ok(Response { sg_details, ..Default::default() })
    }

    pub(super) fn sg_rule_stats(&self, id: &str) -> Answer {
        let names = self.groups.keys().map(GroupName::as_str);
        let group = self.group(id).map_err(|failure| suggest(failure, id, names))?;
        let counted = self.dataplane.rule_admissions(group.name()).into_iter();
        let counts: HashMap<_, u64> = counted.map(|(rule, count)| (rule.key(), count)).collect();
        let stats = |rule: &Rule| SgRuleStats {
            rule: MessageField::some(convert::rule_details(rule)),
            sessions: Some(counts.get(&rule.key()).copied().unwrap_or(0)),
            ..Default::default()
        };
        Ok(Response { sg_rule_stats: group.rules().map(stats).collect(), ..Default::default() })
    }

    fn group(&self, id: &str) -> Result<&SecurityGroup, Failure> {
        self.groups.get(id).ok_or_else(|| Failure::new("Security Group not found"))
    }

    /// Makes `group`, or gives the one of its name its content.
    fn declare(&mut self, group: SecurityGroup) -> Result<(), Failure> {
        let limited = self.groups.get(group.name().as_str()).is_some_and(limits_egress);
        self.dataplane
            .change_group(group.name(), GroupChange::Declare(group.clone()))
            .map_err(refusal)?;
        let rules = counted(group.rules().len() as u64, "rule");
        let members = counted(group.members().len() as u64, "member");
        let name = group.name().as_str();
        let text = format!("security group {name:?} has {rules} and {members}");
        let name = group.name().clone();
        self.groups.insert(name.clone(), group);
        self.tell(Kind::SgDeclared, text);
        self.tell_of_egress(name.as_str(), limited);
        Ok(())
    }

    /// Tells which vnics of a group may send anything now, if it `limited` what they send before
    /// and does not any more.
    fn tell_of_egress(&self, id: &str, limited: bool) {
        /// Vnics that have an event of their own.
        const NAMED: usize = 16;
        let limits = |name: &GroupName| self.groups.get(name.as_str()).is_some_and(limits_egress);
        if !limited || self.groups.get(id).is_some_and(limits_egress) {
            return;
        }
        let opened = self.nics.iter().filter(|nic| {
            let names = nic.security_groups.names();
            !nic.bypass_filtering
                && names.iter().any(|name| name.as_str() == id)
                && !names.iter().any(limits)
        });
        let opened: Vec<&Nic> = opened.collect();
        let text = format!(
            "may send anything now: security group {id:?} has no OUTBOUND rule any more, nor has another of its groups"
        );
        for nic in opened.iter().take(NAMED) {
            self.tell_nic(Kind::EgressOpened, nic, text.clone());
        }
        if let Some(more) = opened.len().checked_sub(NAMED).filter(|more| *more > 0) {
            self.tell(Kind::EgressOpened, format!("{more} more nics: each {text}"));
        }
    }
}

/// Whether what the vnics of a group send needs a rule.
fn limits_egress(group: &SecurityGroup) -> bool {
    group.rules().any(|rule| rule.direction() == Direction::Outbound)
}
