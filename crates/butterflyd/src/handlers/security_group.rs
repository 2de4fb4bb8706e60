//! Requests about security groups.

use super::{Daemon, meant::suggest};
use crate::{dataplane::Dataplane, events::Kind, handlers::convert};
use butterfly_api::{
    Answer, Failure,
    proto::{
        Response, Sg, SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq, SgRuleStats,
    },
};
use butterfly_control::Change;
use butterfly_model::{Direction, GroupName, Nic, Rule, SecurityGroup};
use protobuf::MessageField;
use std::collections::HashMap;
use tracing::warn;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn sg_add(&mut self, declared: &Sg) -> Answer {
        let group = convert::security_group(declared)?;
        if self.desired.groups().get(group.name()) != Some(&group) {
            self.change(Change::DeclareGroup(group))?;
        }
        Ok(Response::new())
    }

    /// Vnics and rules keep naming it, and mean it again when it comes back.
    pub(super) fn sg_del(&mut self, id: &str) -> Answer {
        match self.desired.groups().get(id) {
            Some(group) => self.change(Change::RemoveGroup(group.name().clone()))?,
            None => warn!("security group {id:?} does not exist and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn sg_list(&self) -> Answer {
        let sg_list = self.desired.groups().keys().map(|name| name.as_str().to_owned()).collect();
        Ok(Response { sg_list, ..Default::default() })
    }

    pub(super) fn sg_rule_add(&mut self, request: &SgRuleAddReq) -> Answer {
        let rule = convert::rule(&request.rule)?;
        match self.desired.groups().get(request.sg_id()) {
            Some(group) if group.has_rule(&rule) => {}
            Some(group) => self.change(Change::AddRule(group.name().clone(), rule))?,
            None => {
                let mut group = SecurityGroup::empty(convert::group_name(request.sg_id())?);
                group.add_rule(rule);
                self.change(Change::DeclareGroup(group))?;
            }
        }
        Ok(Response::new())
    }

    pub(super) fn sg_rule_del(&mut self, request: &SgRuleDelReq) -> Answer {
        let wanted = convert::rule(&request.rule)?;
        // Ports that mean nothing are not listed: an operator who deletes a listed rule means it
        // with any ports.
        let alike = |rule: &&Rule| rule.ports().is_none() && rule.is_but_for_ports(&wanted);
        let Some(group) = self.desired.groups().get(request.sg_id()) else {
            return Ok(Response::new());
        };
        let doomed: Vec<Rule> = match group.has_rule(&wanted) {
            true => vec![wanted],
            false => group.rules().filter(alike).cloned().collect(),
        };
        let name = group.name().clone();
        for rule in doomed {
            self.change(Change::RemoveRule(name.clone(), rule))?;
        }
        Ok(Response::new())
    }

    pub(super) fn sg_rule_list(&self, id: &str) -> Answer {
        let sg_rule_list = self.group(id)?.rules().map(convert::rule_details).collect();
        Ok(Response { sg_rule_list, ..Default::default() })
    }

    pub(super) fn sg_member_add(&mut self, request: &SgMemberAddReq) -> Answer {
        let member = convert::member(request.member())?;
        match self.desired.groups().get(request.sg_id()) {
            Some(group) if group.members().contains(member) => {}
            Some(group) => self.change(Change::AddMember(group.name().clone(), member))?,
            None => {
                let mut group = SecurityGroup::empty(convert::group_name(request.sg_id())?);
                group.add_member(member);
                self.change(Change::DeclareGroup(group))?;
            }
        }
        Ok(Response::new())
    }

    pub(super) fn sg_member_del(&mut self, request: &SgMemberDelReq) -> Answer {
        let member = convert::member(request.member())?;
        if let Some(group) = self.desired.groups().get(request.sg_id())
            && group.members().contains(member)
        {
            self.change(Change::RemoveMember(group.name().clone(), member))?;
        }
        Ok(Response::new())
    }

    pub(super) fn sg_member_list(&self, id: &str) -> Answer {
        Ok(Response { sg_member_list: self.group(id)?.members().texts(), ..Default::default() })
    }

    pub(super) fn sg_details(&self, id: &str) -> Answer {
        let sg_details = if id.is_empty() {
            self.desired.groups().values().map(convert::group_details).collect()
        } else {
            let group =
                self.desired.groups().get(id).ok_or_else(|| Failure::new("Sg not found"))?;
            vec![convert::group_details(group)]
        };
        Ok(Response { sg_details, ..Default::default() })
    }

    pub(super) fn sg_rule_stats(&self, id: &str) -> Answer {
        let names = self.desired.groups().keys().map(GroupName::as_str);
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
        self.desired.groups().get(id).ok_or_else(|| Failure::new("Security Group not found"))
    }

    /// Tells which vnics of a group may send anything now, if it `limited` what they send before
    /// and does not any more.
    pub(super) fn tell_of_egress(&self, id: &str, limited: bool) {
        /// Vnics that have an event of their own.
        const NAMED: usize = 16;
        let limits =
            |name: &GroupName| self.desired.groups().get(name.as_str()).is_some_and(limits_egress);
        if !limited || self.desired.groups().get(id).is_some_and(limits_egress) {
            return;
        }
        let opened = self.desired.vnics().iter().filter(|nic| {
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

/// True if the vnics of a group need a rule to send.
pub(super) fn limits_egress(group: &SecurityGroup) -> bool {
    group.rules().any(|rule| rule.direction() == Direction::Outbound)
}
