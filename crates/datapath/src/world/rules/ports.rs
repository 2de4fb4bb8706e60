//! Protocols and destination ports that the rules with one peer allow.

use std::ops::RangeInclusive;

use butterfly_model::Protocol;
use butterfly_packet::protocol::{TCP, UDP};

/// Destination ports without overlap, ascending, each with the cell of the rule that admits.
type Ranges = Box<[(u16, u16, u32)]>;

/// Protocols and ports, compiled: one search, however many rules there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Cell of a rule for every protocol; 0 if there is none.
    any: u32,
    tcp: Ranges,
    udp: Ranges,
    /// Other protocols, and TCP or UDP with all ports; ascending.
    protocols: Box<[(u8, u32)]>,
}

/// One rule for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub protocol: Protocol,
    /// For TCP and UDP.
    pub ports: Option<RangeInclusive<u16>>,
    pub cell: u32,
}

impl Ports {
    pub fn new(rules: &[Allowed]) -> Ports {
        let mut ports = Ports::default();
        let (mut tcp, mut udp, mut protocols) = (Vec::new(), Vec::new(), Vec::new());
        for rule in rules {
            match (rule.protocol, &rule.ports) {
                (Protocol::Any, _) if ports.any == 0 => ports.any = rule.cell,
                (Protocol::Any, _) => {}
                (Protocol::Number(TCP), Some(range)) => tcp.push((range.clone(), rule.cell)),
                (Protocol::Number(UDP), Some(range)) => udp.push((range.clone(), rule.cell)),
                (Protocol::Number(number), _) => protocols.push((number, rule.cell)),
            }
        }
        protocols.sort_by_key(|(number, _)| *number);
        protocols.dedup_by_key(|(number, _)| *number);
        ports.tcp = disjoint(tcp);
        ports.udp = disjoint(udp);
        ports.protocols = protocols.into();
        ports
    }

    /// Returns the cell of a rule that allows this, if there is one.
    #[inline]
    pub fn admits(&self, protocol: u8, destination_port: u16) -> Option<u32> {
        if self.any != 0 {
            return Some(self.any);
        }
        match protocol {
            TCP => search(&self.tcp, destination_port),
            UDP => search(&self.udp, destination_port),
            _ => {
                let at =
                    self.protocols.binary_search_by_key(&protocol, |(number, _)| *number).ok()?;
                self.protocols.get(at).map(|(_, cell)| *cell)
            }
        }
    }
}

fn search(ranges: &[(u16, u16, u32)], port: u16) -> Option<u32> {
    let at = ranges.partition_point(|(start, ..)| *start <= port).checked_sub(1)?;
    ranges.get(at).filter(|(_, end, _)| port <= *end).map(|(.., cell)| *cell)
}

/// Cuts ranges where they overlap: the one that starts first has the common part, then the next one
/// as far as it goes.
fn disjoint(mut ranges: Vec<(RangeInclusive<u16>, u32)>) -> Ranges {
    ranges.sort_by_key(|(range, cell)| (*range.start(), *cell));
    let mut cut: Vec<(u16, u16, u32)> = Vec::with_capacity(ranges.len());
    for (range, cell) in ranges {
        let start = match cut.last() {
            Some((_, end, _)) if *end == u16::MAX => break,
            Some((_, end, _)) => (*range.start()).max(end + 1),
            None => *range.start(),
        };
        if start <= *range.end() {
            cut.push((start, *range.end(), cell));
        }
    }
    cut.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(protocol: i32, ports: Option<RangeInclusive<u16>>, cell: u32) -> Allowed {
        let protocol = u8::try_from(protocol).map_or(Protocol::Any, Protocol::Number);
        Allowed { protocol, ports, cell }
    }

    proptest! {
        #[test]
        fn exactly_what_some_rule_allows(rules in prop::collection::vec((0usize..6, 0u16..40, 0u16..20), 0..12), wanted in 0usize..5, port in 0u16..64) {
            let numbers = [6, 17, 1, 58, 132, -1];
            let rules: Vec<Allowed> = rules.iter().enumerate().map(|(n, (protocol, start, len))| {
                let protocol = numbers[*protocol];
                rule(protocol, matches!(protocol, 6 | 17).then(|| *start..=start + len), n as u32 + 1)
            }).collect();
            let protocol = numbers[wanted] as u8;
            let allows = |rule: &Allowed| match rule.protocol {
                Protocol::Any => true,
                Protocol::Number(number) => number == protocol && rule.ports.as_ref().is_none_or(|ports| ports.contains(&port)),
            };
            let cell = Ports::new(&rules).admits(protocol, port);
            prop_assert_eq!(cell.is_some(), rules.iter().any(allows));
            if let Some(cell) = cell {
                prop_assert!(allows(&rules[cell as usize - 1]), "the cell is that of a rule that allows");
            }
        }
    }

    #[test]
    fn the_last_port_is_one() {
        let ports = Ports::new(&[
            rule(6, Some(0..=65535), 1),
            rule(6, Some(65535..=65535), 2),
            rule(17, Some(65535..=65535), 3),
        ]);
        assert_eq!(
            (ports.admits(6, 65535), ports.admits(17, 65535), ports.admits(17, 65534)),
            (Some(1), Some(3), None)
        );
    }

    /// Of several rules that allow the same, the first one's cell; a rule for any protocol before
    /// all.
    #[test]
    fn the_first_of_several_rules_admits() {
        let all = [
            rule(47, None, 4),
            rule(47, None, 5),
            rule(6, Some(10..=20), 6),
            rule(6, Some(10..=30), 7),
            rule(17, Some(9..=9), 8),
        ];
        let ports = Ports::new(&all);
        assert_eq!(
            [ports.admits(47, 0), ports.admits(6, 20), ports.admits(6, 21), ports.admits(6, 31)],
            [Some(4), Some(6), Some(7), None]
        );
        assert_eq!(
            [ports.admits(6, 9), ports.admits(17, 9), ports.admits(17, 10), ports.admits(46, 0)],
            [None, Some(8), None, None]
        );
        let any = Ports::new(&[&all[..], &[rule(-1, None, 9), rule(-1, None, 10)]].concat());
        assert_eq!([any.admits(47, 0), any.admits(6, 20), any.admits(1, 0)], [Some(9); 3]);
    }
}
