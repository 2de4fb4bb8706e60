use butterfly_model::Cidr;
use proptest::prelude::*;

use super::*;
use crate::world::rules::number;
use std::net::IpAddr;

fn name(n: u32) -> GroupName {
    GroupName::new(&format!("g{n}")).unwrap()
}

/// Group, direction, number of the block (or of the group whose members are meant), port.
type Choice = (u32, bool, u8, u16);

fn rule(&(_, outbound, peer, port): &Choice) -> Rule {
    let direction = if outbound { Direction::Outbound } else { Direction::Inbound };
    let (cidr, group) = match peer {
        0..16 => (Some(Cidr::new(&format!("10.0.0.{}", peer * 16), 28).unwrap()), None),
        16..20 => (Some(Cidr::new("10.0.0.0", 4 + u32::from(peer)).unwrap()), None),
        _ => (None, Some(name(u32::from(peer % 8)))),
    };
    Rule::new(direction, 17, (Some(port.into()), Some(port.into())), cidr, group).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Large and small groups, together and alone, after any additions and removals.
    #[test]
    fn exactly_what_some_rule_of_some_group_allows(
        choices in prop::collection::vec((0u32..6, prop::bool::ANY, 0u8..24, 1u16..30), 0..900),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        sets in prop::collection::vec(prop::collection::btree_set(0u32..6, 0..6), 4),
        asked in prop::collection::vec((0u8..=255, 0u16..31), 40),
    ) {
        let cells = Cells::new().unwrap();
        let mut groups = Groups::default();
        let mut effects = Vec::new();
        for n in 0..8 {
            let member = GroupChange::AddMember(IpAddr::from([10, 0, 0, n * 32]).into());
            effects.push(groups.change(&name(n.into()), member, &cells).unwrap());
        }
        let names = |set: &std::collections::BTreeSet<u32>| set.iter().map(|n| name(*n)).collect::<Vec<_>>();
        // Sets that exist while the rules come: theirs are compiled again by each change.
        let mut kept: HashMap<Arc<[u32]>, Arc<Policy>> = sets.iter().map(|set| groups.policy(&names(set))).collect();
        let mut declared: Vec<Choice> = Vec::new();
        // The first group is large, the next less so.
        let choices: Vec<Choice> = choices.iter().map(|(group, b, c, d)| (group * group / 6, *b, *c, *d)).collect();
        for choice in &choices {
            effects.push(groups.change(&name(choice.0), GroupChange::AddRule(rule(choice)), &cells).unwrap());
            kept.extend(effects.last().unwrap().policies.iter().cloned());
            if !declared.contains(choice) {
                declared.push(*choice);
            }
        }
        for index in &removed {
            let Some(at) = declared.len().checked_sub(1).map(|last| index.index(last + 1)) else { continue };
            let choice = declared.swap_remove(at);
            effects.push(groups.change(&name(choice.0), GroupChange::RemoveRule(rule(&choice)), &cells).unwrap());
            kept.extend(effects.last().unwrap().policies.iter().cloned());
        }
        let mut members = Members::default();
        effects.iter().for_each(|effect| effect.change_members(&mut members));
        let by_cell = groups.rules_by_cell();
        for set in &sets {
            let (numbers, policy) = groups.policy(&names(set));
            prop_assert!(Arc::ptr_eq(&policy, &kept[&numbers]));
            for outbound in [false, true] {
                let of_set: Vec<&Choice> = declared.iter().filter(|(group, out, ..)| set.contains(group) && *out == outbound).collect();
                let side = if outbound { policy.egress.as_ref() } else { Some(&policy.ingress) };
                prop_assert_eq!(side.is_some(), !outbound || !of_set.is_empty());
                for (host, port) in &asked {
                    let allows = |choice: &Choice| choice.3 == *port && match choice.2 {
                        peer @ 0..16 => host / 16 == peer,
                        16..20 => true,
                        peer => host / 32 == peer % 8 && host % 32 == 0,
                    };
                    let peer = number(IpAddr::from([10, 0, 0, *host]));
                    let cell = side.and_then(|side| side.admits(peer, 17, *port, &members));
                    prop_assert_eq!(cell.is_some(), of_set.iter().any(|choice| allows(choice)), "{} {}", host, port);
                    if let Some(cell) = cell {
                        let (group, found) = &by_cell[&cell];
                        let that = of_set.iter().find(|choice| name(choice.0) == *group && rule(choice) == *found);
                        prop_assert!(that.is_some_and(|choice| allows(choice)), "{found:?}");
                    }
                }
            }
        }
    }
}

/// A rule more in a large group that many vnics have beside one of their own: it is compiled once.
#[test]
fn what_many_have_is_compiled_once() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    let many: Vec<Choice> =
        (0..24).flat_map(|peer| (1..20).map(move |port| (100, false, peer, port))).collect();
    for choice in &many {
        groups.change(&name(100), GroupChange::AddRule(rule(choice)), &cells).unwrap();
    }
    for own in 0..50 {
        groups
            .change(&name(own), GroupChange::AddRule(rule(&(own, false, 1, 99))), &cells)
            .unwrap();
    }
    let kept: Vec<_> = (0..50).map(|own| groups.policy(&[name(100), name(own)])).collect();
    let before = kept[0].1.ingress.shared[0].clone();
    let effect = groups
        .change(&name(100), GroupChange::AddRule(rule(&(100, false, 2, 99))), &cells)
        .unwrap();
    assert_eq!(effect.policies.len(), 50);
    let after = &effect.policies[0].1.ingress.shared[0];
    assert!(!Arc::ptr_eq(&before, after));
    for (_, policy) in &effect.policies {
        assert_eq!(policy.ingress.shared.len(), 1);
        assert!(Arc::ptr_eq(&policy.ingress.shared[0], after));
    }
    // A small group: it affects no other vnic's, and nothing of the large one.
    let effect =
        groups.change(&name(7), GroupChange::AddRule(rule(&(7, false, 3, 99))), &cells).unwrap();
    assert_eq!(effect.policies.len(), 1);
    assert!(Arc::ptr_eq(&effect.policies[0].1.ingress.shared[0], after));
}

/// The rule that replaces another one may have its cell.
#[test]
fn a_full_table_of_rules_takes_a_replacement() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups { used_cells: MAX_CELLS - 3, ..Groups::default() };
    let group = |ports: &[u16]| {
        let rules = ports.iter().map(|port| rule(&(1, false, 1, *port)));
        SecurityGroup::new(name(1), [""; 0], rules).unwrap()
    };
    groups.change(&name(1), GroupChange::Declare(group(&[1, 2])), &cells).unwrap();
    assert!(groups.change(&name(1), GroupChange::Declare(group(&[1, 2, 3])), &cells).is_err());
    assert!(
        groups.change(&name(2), GroupChange::AddRule(rule(&(2, false, 1, 1))), &cells).is_err()
    );
    groups.change(&name(1), GroupChange::Declare(group(&[2, 3])), &cells).unwrap();
    assert_eq!(groups.rules_of(&name(1)).count(), 2);
}

fn fill(groups: &mut Groups, cells: &Cells, group: u32, rules: u16) {
    for port in 1..=rules {
        groups
            .change(
                &name(group),
                GroupChange::AddRule(rule(&(group, false, group as u8, port))),
                cells,
            )
            .unwrap();
    }
}

/// From 64 rules on, and three at most: each costs a search for every new session.
#[test]
fn the_largest_groups_are_compiled_for_all() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    for (group, rules) in [(1, 63), (2, 64), (3, 70), (4, 80), (5, 90)] {
        fill(&mut groups, &cells, group, rules);
    }
    let members = Members::default();
    let apart = |groups: &mut Groups, of: &[u32]| {
        let policy = groups.policy(&of.iter().map(|n| name(*n)).collect::<Vec<_>>()).1;
        let merged = |group: &u32| {
            let peer = number(IpAddr::from([10, 0, 0, *group as u8 * 16]));
            policy.ingress.merged.admits(peer, 17, 1, &members).is_some()
        };
        (policy.ingress.shared.len(), of.iter().copied().filter(merged).collect::<Vec<_>>())
    };
    assert_eq!(apart(&mut groups, &[1]), (0, vec![1]));
    assert_eq!(apart(&mut groups, &[2]), (1, vec![]));
    assert_eq!(apart(&mut groups, &[1, 2, 3, 4]), (3, vec![1]));
    assert_eq!(apart(&mut groups, &[1, 2, 3, 4, 5]), (3, vec![1, 2]));
}

/// Policies that no vnic has any more cost nothing.
#[test]
fn what_nobody_has_is_not_compiled_again() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    let kept = groups.policy(&[name(1), name(2)]);
    drop(groups.policy(&[name(1)]));
    drop(groups.policy(&[name(1), name(3)]));
    let effect =
        groups.change(&name(1), GroupChange::AddRule(rule(&(1, false, 1, 1))), &cells).unwrap();
    assert_eq!(
        effect.policies.iter().map(|(numbers, _)| numbers.clone()).collect::<Vec<_>>(),
        [kept.0]
    );
    // The next policy that is asked for clears them away.
    groups.policy(&[name(7)]);
    assert!(groups.compiled.len() <= 2);
}

/// A change without a difference has no effect, and each effect is about the rules in question.
#[test]
fn effects_are_those_of_the_change() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    let mut change = |group: u32, change| groups.change(&name(group), change, &cells).unwrap();
    let (address, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    // Two rules about members of group 4, and one about a block.
    let [first, second, block] =
        [(1, false, 20, 5), (2, false, 20, 6), (1, false, 3, 7)].map(|choice| rule(&choice));
    change(1, GroupChange::AddRule(first.clone()));
    change(2, GroupChange::AddRule(second.clone()));
    change(1, GroupChange::AddRule(block.clone()));
    assert!(change(1, GroupChange::AddRule(block.clone())).is_nothing());
    assert!(change(3, GroupChange::RemoveRule(block.clone())).is_nothing());
    assert!(change(4, GroupChange::RemoveMember(address.into())).is_nothing());
    let come = change(4, GroupChange::AddMember(address.into()));
    assert!(!come.is_nothing() && come.taken_back.is_empty() && come.policies.is_empty());
    assert!(change(4, GroupChange::AddMember(address.into())).is_nothing());
    change(4, GroupChange::AddMember(other.into()));
    // A member that goes takes back the admissions of rules about the group, and of no others.
    let mut taken_back = change(4, GroupChange::RemoveMember(address.into())).taken_back;
    taken_back.sort_unstable();
    assert_eq!(taken_back, [1, 2]);
    assert_eq!(change(1, GroupChange::RemoveRule(first)).taken_back, [1]);
    assert_eq!(change(4, GroupChange::RemoveMember(other.into())).taken_back, [2]);
    assert_eq!(change(1, GroupChange::Forget).taken_back, [3]);
}

/// A cell's next rule counts from zero, and its last rule's admissions do not count for it.
#[test]
fn the_cell_of_a_rule_that_went_is_used_again() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    let rules = [1, 2, 3].map(|port| rule(&(1, false, 1, port)));
    for rule in &rules[..2] {
        groups.change(&name(1), GroupChange::AddRule(rule.clone()), &cells).unwrap();
    }
    let of = |groups: &Groups| {
        let mut of: Vec<_> = groups
            .rules_of(&name(1))
            .map(|(rule, cell)| (*rule.ports().unwrap().start(), cell))
            .collect();
        of.sort_unstable();
        of
    };
    assert_eq!(of(&groups), [(1, 1), (2, 2)]);
    (0..5).for_each(|_| cells.count(1));
    groups.change(&name(1), GroupChange::RemoveRule(rules[0].clone()), &cells).unwrap();
    groups.change(&name(1), GroupChange::AddRule(rules[2].clone()), &cells).unwrap();
    assert_eq!((of(&groups), cells.counted(1)), (vec![(2, 2), (3, 1)], 0));
    assert_eq!(groups.rules_by_cell().len(), 2);
}

/// Nothing is kept of a deleted group.
#[test]
fn a_group_that_is_forgotten_takes_no_room() {
    let cells = Cells::new().unwrap();
    let mut groups = Groups::default();
    for n in 0..3 {
        groups.change(&name(n), GroupChange::AddRule(rule(&(n, false, 0, 1))), &cells).unwrap();
        groups
            .change(&name(n), GroupChange::AddMember(IpAddr::from([10, 0, 0, 1]).into()), &cells)
            .unwrap();
    }
    (0..3).for_each(|n| drop(groups.change(&name(n), GroupChange::Forget, &cells).unwrap()));
    assert!(groups.declared.is_empty() && groups.rules_by_cell().is_empty());
}

/// UDP with 16 ports at most, a server's or a client's among them; ICMP of either family; each in
/// its direction only.
#[test]
fn rules_of_infrastructure() {
    use Direction::{Inbound, Outbound};
    let is = |direction, protocol, ports| {
        is_infrastructure(direction, &Allowed { protocol, ports, cell: 1 })
    };
    let udp = |direction, ports| is(direction, Protocol::Number(UDP), Some(ports));
    for (server, client) in [(67, 68), (547, 546)] {
        assert!(udp(Inbound, server..=server) && udp(Outbound, client..=client));
        assert!(!udp(Inbound, client..=client) && !udp(Outbound, server..=server));
        assert!(udp(Inbound, server - 15..=server) && !udp(Inbound, server - 16..=server));
        assert!(udp(Outbound, client..=client + 15) && !udp(Outbound, client..=client + 16));
    }
    assert!(
        !is(Inbound, Protocol::Number(6), Some(67..=67))
            && !is(Outbound, Protocol::Number(6), Some(68..=68))
    );
    assert!(!is(Inbound, Protocol::Any, None) && !is(Outbound, Protocol::Any, None));
    for icmp in [ICMP, ICMPV6] {
        assert!(
            is(Outbound, Protocol::Number(icmp), None)
                && !is(Inbound, Protocol::Number(icmp), None)
        );
    }
}
