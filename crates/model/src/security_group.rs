//! Security groups.

use crate::{
    prefix::{Member, MemberError, MemberSet},
    rule::Rule,
};
use std::{borrow::Borrow, collections::BTreeMap, fmt};

/// The name of a security group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Box<str>);

/// Error of a text that cannot name a security group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a security group is empty")]
pub struct GroupNameError;

impl GroupName {
    /// Checks a name: any text that is not empty. In updates the empty text means "no group". Fails
    /// for the empty text.
    pub fn new(name: &str) -> Result<Self, GroupNameError> {
        if name.is_empty() { Err(GroupNameError) } else { Ok(Self(name.into())) }
    }

    /// Returns the name as it was declared.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for GroupName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Groups to which a vnic refers, which need not exist: each once, in the order of declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupNames(Vec<GroupName>);

impl GroupNames {
    /// Reads `names`; the second and later mention of a group is dropped. Fails if one is empty.
    pub fn parse<T: AsRef<str>>(
        names: impl IntoIterator<Item = T>,
    ) -> Result<Self, GroupNameError> {
        let mut set = Self::default();
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let name = GroupName::new(name.as_ref())?;
            if seen.insert(name.clone()) {
                set.0.push(name);
            }
        }
        Ok(set)
    }

    /// Returns the names.
    pub fn names(&self) -> &[GroupName] {
        &self.0
    }

    /// Returns the names as they are echoed.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(|name| name.as_str().to_owned()).collect()
    }
}

/// A named list of rules, and of the addresses and prefixes that rules of other groups mean when
/// they name this one.
///
/// ```
/// use butterfly_model::{GroupName, Member, SecurityGroup};
/// let mut web = SecurityGroup::new(GroupName::new("web").unwrap(), ["10.0.0.1"], [])?;
/// assert!(web.add_member(Member::parse("10.0.0.2").unwrap()));
/// assert_eq!(web.members().texts(), ["10.0.0.1", "10.0.0.2"]);
/// # Ok::<(), butterfly_model::MemberError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    name: GroupName,
    members: MemberSet,
    rules: BTreeMap<(u64, String), Rule>,
}

impl SecurityGroup {
    /// Makes a group of `members`, which are addresses and prefixes, and `rules`; repeated ones
    /// count once. Fails for a member that is neither.
    pub fn new<T: AsRef<str>>(
        name: GroupName,
        members: impl IntoIterator<Item = T>,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Self, MemberError> {
        let members = MemberSet::parse(members)?;
        let rules = rules.into_iter().map(|rule| (rule.key(), rule)).collect();
        Ok(Self { name, members, rules })
    }

    /// Makes a group without members and rules.
    pub fn empty(name: GroupName) -> Self {
        Self { name, members: MemberSet::default(), rules: BTreeMap::new() }
    }

    /// Returns its name.
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// Returns the members, in the order they were added.
    pub fn members(&self) -> &MemberSet {
        &self.members
    }

    /// Adds a member. Returns whether it was not one already.
    pub fn add_member(&mut self, member: Member) -> bool {
        self.members.insert(member)
    }

    /// Removes a member. Returns whether it was one.
    pub fn remove_member(&mut self, member: Member) -> bool {
        self.members.remove(member)
    }

    /// Returns the rules, in the order of their [keys](Rule::key).
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.values()
    }

    /// True if it has `rule`.
    pub fn has_rule(&self, rule: &Rule) -> bool {
        self.rules.contains_key(&rule.key())
    }

    /// Adds a rule. Returns whether it was not there already.
    pub fn add_rule(&mut self, rule: Rule) -> bool {
        self.rules.insert(rule.key(), rule).is_none()
    }

    /// Removes a rule. Returns whether it was there.
    pub fn remove_rule(&mut self, rule: &Rule) -> bool {
        self.rules.remove(&rule.key()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cidr::Cidr, rule::Direction};

    #[test]
    fn names_are_kept_once_in_order() {
        let names = GroupNames::parse(["web", "db", "web"]).unwrap();
        assert_eq!(names.texts(), ["web", "db"]);
        assert_eq!(GroupNames::parse(["web", ""]), Err(GroupNameError));
    }

    #[test]
    fn rules_are_in_the_order_of_their_hashes_whatever_the_order_of_declaration() {
        let rule = |protocol| {
            let all = Cidr::new("0.0.0.0", 0).unwrap();
            Rule::new(Direction::Inbound, protocol, (Some(1), Some(2)), Some(all), None).unwrap()
        };
        let group = |protocols: &[i32]| {
            let name = GroupName::new("g").unwrap();
            SecurityGroup::new(name, ["::1", "0::1"], protocols.iter().copied().map(rule)).unwrap()
        };
        let one = group(&[6, 17, 1, -1, 58]);
        assert_eq!(one, group(&[58, -1, 17, 1, 6, 6]));
        let hashes: Vec<_> = one.rules().map(|rule| rule.key().0).collect();
        assert_eq!(hashes.len(), 5);
        assert!(hashes.is_sorted(), "{hashes:x?}");
        assert_eq!(one.members().texts(), ["::1"]);
    }

    #[test]
    fn members_and_rules_come_and_go_once() {
        let all = Cidr::new("::", 0).unwrap();
        let rule = Rule::new(Direction::Outbound, -1, (None, None), Some(all), None).unwrap();
        let member = Member::parse("10.0.0.1").unwrap();
        let mut group = SecurityGroup::empty(GroupName::new("g").unwrap());
        let empty = group.clone();
        assert!(
            !group.has_rule(&rule) && !group.remove_rule(&rule) && !group.remove_member(member)
        );
        assert!(
            group.add_rule(rule.clone()) && !group.add_rule(rule.clone()) && group.has_rule(&rule)
        );
        assert!(group.add_member(member) && !group.add_member(member));
        assert_eq!(
            group,
            SecurityGroup::new(GroupName::new("g").unwrap(), ["10.0.0.1"], [rule.clone()]).unwrap()
        );
        assert!(group.remove_rule(&rule) && group.remove_member(member));
        assert_eq!(group, empty);
    }
}
