//! Chooses the 5-tuple of the next frame.
//!
//! Flow `i` has source port 1024 + (i mod 32768) and destination port 5001 + i / 32768 from A to B.
//! B answers with the same 5-tuple reversed, so that a stateful switch sees established
//! connections.

use crate::rng::Rng;

/// Most flows: ports 5001 to 65535 with 32,768 client ports each, as far as memory for their order
/// goes.
pub const MAX_FLOWS: u32 = 1 << 24;

/// Client and server port of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// A's.
    pub client: u16,
    /// B's.
    pub server: u16,
}

impl Ports {
    pub fn of_flow(flow: u32) -> Ports {
        Ports { client: 1024 + (flow & 0x7fff) as u16, server: (5001 + (flow >> 15)) as u16 }
    }

    /// The `n`-th of 64,512 x 60,535 5-tuples, all different.
    pub fn of_session(n: u64) -> Ports {
        Ports { client: 1024 + (n % 64_512) as u16, server: 5001 + (n / 64_512 % 60_535) as u16 }
    }
}

/// An endless sequence of 5-tuples.
#[derive(Clone, Debug)]
pub enum Order {
    /// All flows in random order, again and again; and the position.
    Cycle(Vec<Ports>, usize),
    /// Each 5-tuple once; and its number.
    Sessions(u64),
}

impl Order {
    pub fn cycle(flows: u32, seed: u64) -> Order {
        let mut all: Vec<Ports> = (0..flows.max(1)).map(Ports::of_flow).collect();
        Rng::new(seed).shuffle(&mut all);
        Order::Cycle(all, 0)
    }

    #[inline]
    pub fn next(&mut self) -> Ports {
        match self {
            Order::Cycle(all, at) => {
                let ports = all[*at];
                *at += 1;
                if *at == all.len() {
                    *at = 0;
                }
                ports
            }
            Order::Sessions(n) => {
                let ports = Ports::of_session(*n);
                *n += 1;
                ports
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flow_once_a_round() {
        let mut order = Order::cycle(100_000, 1);
        for _ in 0..2 {
            let round: HashSet<_> =
                (0..100_000).map(|_| order.next()).map(|p| (p.client, p.server)).collect();
            assert_eq!(round.len(), 100_000);
            assert!(
                round
                    .iter()
                    .all(|(client, server)| *client >= 1024 && (5001..=5004).contains(server))
            );
        }
    }

    #[test]
    fn sessions_do_not_repeat() {
        let mut order = Order::Sessions(0);
        let seen: HashSet<_> =
            (0..1_000_000).map(|_| order.next()).map(|p| (p.client, p.server)).collect();
        assert_eq!(seen.len(), 1_000_000);
        assert_eq!(Ports::of_session(64_512 * 60_535 - 1), Ports { client: 65535, server: 65535 });
    }

    #[test]
    fn the_same_seed_makes_the_same_order() {
        let take = |seed| {
            let mut order = Order::cycle(1000, seed);
            (0..1000).map(|_| order.next().client).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}
