//! Ways of a route: the machines by which a router leads to a block, and which one a flow takes.
//!
//! Each flow, and its answers, take the way that has the highest score with it (rendezvous hashing:
//! Thaler, Ravishankar, 1998). So when a way goes, its flows alone move, and they come back with
//! it. Scores are made of fixed keys: all hosts choose alike, and so does the next process.

use std::cmp::Reverse;

use arrayvec::ArrayVec;
use butterfly_packet::protocol::{SCTP, TCP, UDP};

use crate::ip::Address;
use crate::world::steering::mix;

/// Most ways of a route.
pub(crate) const MAX_WAYS: usize = 16;

/// Digits of pi. Part of what hosts agree on: they never change.
const OF_END: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
const OF_FLOW: [u64; 2] = [0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
const OF_WAY: [u64; 2] = [0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c];

/// A machine by which a router leads somewhere, in a network that the router joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passage {
    pub address: Address,
    pub vni: u32,
    /// Hash of the address.
    mark: u64,
}

impl Passage {
    pub fn new(address: Address, vni: u32) -> Passage {
        Passage { address, vni, mark: mix(OF_WAY, halves(address)) }
    }
}

/// Receiver of what is for a block.
#[derive(Debug)]
pub(crate) enum Leads {
    /// To the machine that has the address, in the network of this number.
    Connected(u32),
    /// By one of these machines, [`MAX_WAYS`] at most, in the order in which they were declared.
    Via(Box<[Passage]>),
    /// By another host, which leads out. In a box, so that entries of routes stay a cache line.
    Over(Box<OtherHost>),
    /// To nobody.
    Nowhere,
}

/// Host that leads out what a router here does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OtherHost {
    /// Its tunnel endpoint.
    pub endpoint: Address,
    /// Its router address, as [`crate::engine::mac::number`].
    pub mac: u64,
    /// Longest IP packet that goes there, in bytes, if the tunnel takes it.
    pub mtu: u32,
}

/// Flow of a packet, as far as its way depends on it. Both directions have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Course(u64);

impl Course {
    /// Makes one of both ends and the protocol. Ports count of TCP, UDP and SCTP. Of fragments the
    /// addresses alone may count, with the protocol 0: later ones have no ports.
    pub fn new(ends: [(Address, u16); 2], protocol: u8) -> Course {
        let has_ports = has_ports(protocol);
        let end = |(address, port): (Address, u16)| {
            let [high, low] = halves(address);
            let port = if has_ports { port } else { 0 };
            mix(OF_END, [high.rotate_left(17) ^ u64::from(port), low])
        };
        let sum = ends.into_iter().map(end).fold(0_u64, u64::wrapping_add);
        Course(mix(OF_FLOW, [sum, protocol.into()]))
    }

    /// Returns the ways of a route in the order in which the flow takes them: the second one if the
    /// first does not work, and so on.
    pub fn order<'a>(&self, ways: &'a [Passage]) -> ArrayVec<&'a Passage, MAX_WAYS> {
        let mut order: ArrayVec<&Passage, MAX_WAYS> = ways.iter().take(MAX_WAYS).collect();
        let score = |way: &&Passage| (mix(OF_FLOW, [self.0, way.mark]), way.address);
        order.sort_unstable_by_key(|way| Reverse(score(way)));
        order
    }
}

/// Returns whether a protocol has ports, which tell flows apart.
pub(crate) fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

fn halves(address: Address) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(count: u32) -> Vec<Passage> {
        (0..count).map(|n| Passage::new(0xffff_0a00_0000 + u128::from(n), 50)).collect()
    }

    fn courses() -> impl Iterator<Item = Course> {
        (0..16_000).map(|n: u32| {
            let source = 0xffff_0a01_0000 + u128::from(n % 7);
            Course::new([(source, 1024 + (n % 8000) as u16), (0xffff_0808_0808, 53)], 17)
        })
    }

    #[test]
    fn both_directions_have_one_course() {
        let (one, other) = ((7, 1000), (1 << 100, 53));
        let course = Course::new([one, other], 17);
        assert_eq!(Course::new([other, one], 17), course);
        for others in [([(7, 1001), other], 17), ([(8, 1000), other], 17), ([one, other], 6)] {
            assert_ne!(Course::new(others.0, others.1), course, "{others:?}");
        }
    }

    /// Flows of few machines, whose ports follow each other, are spread over ways whose addresses
    /// follow each other.
    #[test]
    fn flows_are_spread_over_all_ways() {
        for count in [2, 3, 16] {
            let ways = ways(count);
            let mut got = vec![0_u32; count as usize];
            for course in courses() {
                let order = course.order(&ways);
                assert_eq!(order.len(), count as usize);
                got[(order[0].address - 0xffff_0a00_0000) as usize] += 1;
            }
            let fair = 16_000 / count;
            let is_near = |flows: &u32| (fair * 8 / 10..fair * 12 / 10).contains(flows);
            assert!(got.iter().all(is_near), "{got:?}");
        }
    }

    /// When a way goes its flows take their second one; no other flow moves. The order in which
    /// ways are declared counts for nothing.
    #[test]
    fn a_way_that_goes_takes_its_own_flows_along() {
        let all = ways(5);
        let left: Vec<Passage> = all.iter().rev().filter(|way| **way != all[2]).copied().collect();
        for course in courses() {
            let (before, after) = (course.order(&all), course.order(&left));
            let first = before.iter().find(|way| ***way != all[2]).unwrap();
            assert_eq!(after[0], *first);
        }
    }

    /// Hosts agree on it, and so does the next process: so these never change.
    #[test]
    fn the_choice_never_changes() {
        let ways = ways(4);
        let chosen = courses().take(16).map(|course| course.order(&ways)[0].address as u8);
        assert_eq!(chosen.collect::<Vec<_>>(), [1, 2, 1, 1, 3, 0, 0, 2, 2, 2, 2, 3, 2, 0, 3, 2]);
    }
}
