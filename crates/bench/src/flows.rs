//! Chooses the 5-tuple of the next frame.
//!
//! Flow `i` has source port 1024 + (i mod 32768) and destination port 5001 + i / 32768 from A to B.
//! B answers with the same 5-tuple reversed, so that a stateful switch sees established
//! connections.

use std::str::FromStr;

use crate::rng::Rng;

/// Most flows: ports 5001 to 65535 with 32,768 client ports each, as far as memory for their order
/// goes.
pub const MAX_FLOWS: u32 = 1 << 24;

/// Ports of A, of which flow 0 has the first one, 1024.
pub const CLIENT_PORTS: u32 = 32_768;

/// Client and server port of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// A's.
    pub client: u16,
    /// B's.
    pub server: u16,
}

impl Ports {
    /// Of the flow with this number, of those that so many ports of the client have.
    pub fn of_flow(flow: u32, clients: u32) -> Ports {
        let clients = clients.max(1);
        Ports { client: 1024 + (flow % clients) as u16, server: (5001 + flow / clients) as u16 }
    }

    /// The `n`-th of 64,512 x 60,535 5-tuples, all different, or of those of fewer clients.
    pub fn of_session(n: u64, clients: Option<u32>) -> Ports {
        let clients = clients.map_or(64_512, |clients| u64::from(clients.max(1)));
        Ports { client: 1024 + (n % clients) as u16, server: 5001 + (n / clients % 60_535) as u16 }
    }
}

/// Order in which flows are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Choice {
    /// All, shuffled once, again and again.
    Shuffled,
    /// All by their number, again and again.
    Sequential,
    /// Each frame's drawn anew, all alike.
    Random,
    /// Each frame's drawn anew: flow n with a chance of 1 / n^s (Zipf's law), as few flows have
    /// most of the traffic.
    Zipf(f64),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        let exponent = |text: &str| match text.parse() {
            Ok(exponent) if (0.1..=4.0).contains(&exponent) => Ok(Choice::Zipf(exponent)),
            _ => Err(format!("\"{text}\" is not an exponent from 0.1 to 4")),
        };
        match text {
            "shuffled" => Ok(Choice::Shuffled),
            "sequential" => Ok(Choice::Sequential),
            "random" => Ok(Choice::Random),
            "zipf" => Ok(Choice::Zipf(1.0)),
            _ => match text.strip_prefix("zipf:") {
                Some(text) => exponent(text),
                None => Err("want shuffled, sequential, random, zipf or zipf:EXPONENT".into()),
            },
        }
    }
}

/// Frames after which what was drawn comes again.
const DRAWN: usize = 1 << 20;

/// An endless sequence of 5-tuples.
#[derive(Clone, Debug)]
pub enum Order {
    /// All flows in random order, again and again; and the position.
    Cycle(Vec<Ports>, usize),
    /// Each 5-tuple once; and its number, and the ports of the client, if these are fewer than all.
    Sessions(u64, Option<u32>),
}

impl Order {
    pub fn cycle((flows, clients): (u32, u32), choice: Choice, seed: u64) -> Order {
        let flows = flows.max(1);
        let ports = |flow| Ports::of_flow(flow, clients);
        let mut rng = Rng::new(seed);
        let all = match choice {
            Choice::Sequential => (0..flows).map(ports).collect(),
            Choice::Shuffled => {
                let mut all: Vec<Ports> = (0..flows).map(ports).collect();
                rng.shuffle(&mut all);
                all
            }
            Choice::Random => {
                let draw = |_| ports(rng.below(flows.into()) as u32);
                (0..DRAWN).map(draw).collect()
            }
            Choice::Zipf(exponent) => {
                let mut sum = 0.0;
                let weight = |flow: u32| {
                    sum += f64::from(flow + 1).powf(-exponent);
                    sum
                };
                let sums: Vec<f64> = (0..flows).map(weight).collect();
                let draw = |_| {
                    let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
                    ports((sums.partition_point(|sum| *sum <= at) as u32).min(flows - 1))
                };
                (0..DRAWN).map(draw).collect()
            }
        };
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
            Order::Sessions(n, clients) => {
                let ports = Ports::of_session(*n, *clients);
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
        let mut order = Order::cycle((100_000, CLIENT_PORTS), Choice::Shuffled, 1);
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
    fn flows_are_drawn_as_said() {
        let drawn = |choice: &str, flows: u32| {
            let mut order = Order::cycle((flows, CLIENT_PORTS), choice.parse().unwrap(), 5);
            let mut counts = vec![0u32; flows as usize];
            for _ in 0..DRAWN {
                counts[usize::from(order.next().client) - 1024] += 1;
            }
            counts
        };
        assert_eq!(drawn("sequential", 4), [DRAWN as u32 / 4; 4]);
        assert!(drawn("random", 64).iter().all(|count| (14_000..19_000).contains(count)));
        // Ten flows by 1 / n: the first one has a share of 1 / 2.929, and twice the second's.
        let zipf = drawn("zipf", 10);
        let share = f64::from(zipf[0]) / DRAWN as f64;
        assert!((share - 1.0 / 2.929).abs() < 0.005, "{share}");
        assert!((f64::from(zipf[0]) / f64::from(zipf[1]) - 2.0).abs() < 0.03, "{zipf:?}");
        assert!(drawn("zipf:2", 10)[9] > 0);
        for bad in ["", "zipf:", "zipf:9", "zipf:x", "up"] {
            assert!(bad.parse::<Choice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sessions_do_not_repeat() {
        let mut order = Order::Sessions(0, None);
        let seen: HashSet<_> =
            (0..1_000_000).map(|_| order.next()).map(|p| (p.client, p.server)).collect();
        assert_eq!(seen.len(), 1_000_000);
        assert_eq!(
            Ports::of_session(64_512 * 60_535 - 1, None),
            Ports { client: 65535, server: 65535 }
        );
    }

    #[test]
    fn few_ports_of_clients_have_all_flows() {
        let mut order = Order::cycle((1000, 10), Choice::Sequential, 1);
        let mut new = Order::Sessions(0, Some(10));
        for n in 0..1000 {
            let ports = Ports { client: 1024 + n % 10, server: 5001 + n / 10 };
            assert_eq!([order.next(), new.next()], [ports; 2]);
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_order() {
        let take = |seed| {
            let mut order = Order::cycle((1000, CLIENT_PORTS), Choice::Shuffled, seed);
            (0..1000).map(|_| order.next().client).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}
