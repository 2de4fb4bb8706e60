//! Behaviour over time, by a clock that the test moves; two endpoints that talk; garbage.

mod endpoint;
mod groups;
mod neighbours;

use std::net::Ipv6Addr;

use butterfly_packet::build;
use proptest::{collection::vec, prelude::*};

use crate::endpoint::control::{counts::Count, *};

pub(super) const A: Mac = Mac([2, 0xbf, 0, 0, 0, 0xa]);
pub(super) const B: Mac = Mac([2, 0xbf, 0, 0, 0, 0xb]);
pub(super) const C: Mac = Mac([2, 0xbf, 0, 0, 0, 0xc]);

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An endpoint and its clock.
pub(super) struct Host {
    pub control: Control,
    pub now: u64,
}

impl Host {
    /// Makes a host with 10.1.0.1/24 or fd00::1/64 and a gateway, started at 1000 s. Its first
    /// announcements are over.
    pub fn new(v6: bool, answers: bool) -> Host {
        let (endpoint, prefix) = if v6 { ("fd00::1", 64) } else { ("10.1.0.1", 24) };
        let gateways = vec![ip("10.1.0.254"), ip("10.1.0.253"), ip("fd00::fe"), ip("fd00::fd")];
        let group6 = "ff05::".parse().unwrap();
        let config = ControlConfig {
            mac: A,
            endpoint: ip(endpoint),
            prefix: Some(prefix),
            answers,
            gateways,
            group6,
        };
        let mut host = Host { control: Control::new(config), now: 1_000_000 };
        host.pass(20_000);
        host
    }

    /// Returns hosts of both families.
    pub fn both() -> [(Host, &'static str, &'static str, &'static str); 2] {
        // A neighbour, and two hosts behind the gateway.
        let v4 = (Host::new(false, false), "10.1.0.2", "192.0.2.1", "192.0.2.2");
        [v4, (Host::new(true, false), "fd00::2", "fd01::1", "fd01::2")]
    }

    pub fn call<R>(&mut self, f: impl FnOnce(&mut Control, u64, &mut Output) -> R) -> Output {
        let mut out = Output::default();
        f(&mut self.control, self.now, &mut out);
        out
    }

    pub fn hears(&mut self, frame: &[u8]) -> Output {
        self.call(|control, now, out| control.input(frame, now, out))
    }

    /// Hears a frame that must change nothing but one counter.
    pub fn refuses(&mut self, frame: &[u8], count: Count, what: &str) {
        let before = self.count(count);
        let out = self.hears(frame);
        assert_eq!((out.frames.len(), out.events.len()), (0, 0), "{what}");
        assert_eq!(self.count(count), before + 1, "{what}");
    }

    pub fn resolve(&mut self, peer: &str, waiting: Option<Vec<u8>>) -> Output {
        self.call(|control, now, out| control.resolve(ip(peer), waiting, now, out))
    }

    pub fn used(&mut self, peer: &str) -> Output {
        self.call(|control, now, out| control.used(ip(peer), now, out))
    }

    pub fn confirmed(&mut self, peer: &str, mac: Mac) -> Output {
        self.call(|control, now, out| control.confirmed(ip(peer), mac, now, out))
    }

    /// Lets time pass, tick by tick. Returns the outputs with their times.
    pub fn pass(&mut self, ms: u64) -> Vec<(u64, Output)> {
        let (start, end) = (self.now, self.now + ms);
        let mut happened = Vec::new();
        while let Some(next) = self.control.next_tick().filter(|next| *next <= end) {
            assert!(next >= self.now || self.now == start, "a tick did not do what was due");
            self.now = next.max(self.now);
            let out = self.call(|control, now, out| control.tick(now, out));
            assert!(
                self.control.next_tick().is_none_or(|next| next > self.now),
                "it would never sleep"
            );
            if !out.frames.is_empty() || !out.events.is_empty() {
                happened.push((self.now - start, out));
            }
        }
        self.now = end;
        happened
    }

    pub fn count(&self, count: Count) -> u64 {
        self.control.counts().of(count)
    }

    /// Returns state and link address of a next hop.
    pub fn state(&self, hop: &str) -> Option<(&'static str, Option<Mac>)> {
        let rows = self.control.neighbours(self.now);
        rows.into_iter().find(|row| row.address == ip(hop)).map(|row| (row.state, row.mac))
    }
}

/// Returns the answer of the station `mac` when 10.1.0.1 or fd00::1 asks it for `owner`.
pub(super) fn answer(mac: Mac, owner: &str) -> Vec<u8> {
    match ip(owner) {
        IpAddr::V4(owner) => build::ethernet(mac, A).arp_reply(owner, [10, 1, 0, 1]),
        IpAddr::V6(owner) => advertisement(mac, A, owner, "fd00::1", 0x6000_0000),
    }
}

/// Returns the station's unasked claim of `owner`.
pub(super) fn claim(mac: Mac, owner: &str) -> Vec<u8> {
    match ip(owner) {
        IpAddr::V4(owner) => build::ethernet(mac, Mac::BROADCAST).arp_request(owner, owner),
        IpAddr::V6(owner) => {
            advertisement(mac, Mac([0x33, 0x33, 0, 0, 0, 1]), owner, "ff02::1", 0x2000_0000)
        }
    }
}

fn advertisement(mac: Mac, to: Mac, owner: Ipv6Addr, destination: &str, flags: u32) -> Vec<u8> {
    let body = [&owner.octets()[..], &[2, 1], &mac.0].concat();
    build::ethernet(mac, to)
        .ipv6(owner, destination.parse::<Ipv6Addr>().unwrap())
        .ttl(255)
        .icmp(136, 0, flags, &body)
}

/// Carries frames between endpoints until none is left, and counts them.
fn talk(hosts: &mut [&mut Host], from: usize, first: Output) -> (usize, Vec<ControlEvent>) {
    let mut queue: Vec<(usize, Vec<u8>)> =
        first.frames.into_iter().map(|frame| (from, frame)).collect();
    let (mut carried, mut events) = (0, first.events);
    while let Some((from, frame)) = queue.pop() {
        carried += 1;
        assert!(carried < 1000, "they never stop");
        for (index, host) in hosts.iter_mut().enumerate().filter(|(index, _)| *index != from) {
            let out = host.hears(&frame);
            queue.extend(out.frames.into_iter().map(|frame| (index, frame)));
            events.extend(out.events);
        }
    }
    (carried, events)
}

fn two(v6: bool) -> [Host; 2] {
    let addresses = if v6 { ["fd00::1", "fd00::2"] } else { ["10.1.0.1", "10.1.0.2"] };
    [(A, addresses[0]), (B, addresses[1])].map(|(mac, address)| {
        let group6 = "ff05::".parse().unwrap();
        let config = ControlConfig {
            mac,
            endpoint: ip(address),
            prefix: None,
            answers: true,
            gateways: Vec::new(),
            group6,
        };
        Host { control: Control::new(config), now: 5000 }
    })
}

#[test]
fn two_endpoints_find_each_other() {
    for v6 in [false, true] {
        let [mut a, mut b] = two(v6);
        let (address_a, address_b) = (a.control.link.endpoint, b.control.link.endpoint);
        // Their announcements and reports are no conflict, and change nothing.
        for round in 0..10 {
            for index in 0..2 {
                let said = if index == 0 { a.pass(5000) } else { b.pass(5000) };
                for (_, out) in said {
                    let (_, events) = talk(&mut [&mut a, &mut b], index, out);
                    assert_eq!(events, [], "round {round}");
                }
            }
        }
        let frame = build::ethernet(A, Mac::ZERO).payload(0x88b5, b"waits");
        let out = a.call(|control, now, out| control.resolve(address_b, Some(frame), now, out));
        // Question, answer, and the frame that waited.
        assert_eq!(
            talk(&mut [&mut a, &mut b], 0, out),
            (3, vec![ControlEvent::Resolved(address_b, B)])
        );
        let out = b.call(|control, now, out| control.resolve(address_a, None, now, out));
        assert_eq!(
            talk(&mut [&mut a, &mut b], 1, out),
            (2, vec![ControlEvent::Resolved(address_a, A)])
        );
        // A minute later, one asks the other whether it is still there.
        a.pass(60_000);
        b.pass(60_000);
        let out = a.call(|control, now, out| control.used(address_b, now, out));
        assert_eq!(out.frames[0][..6], B.0);
        assert_eq!(talk(&mut [&mut a, &mut b], 0, out), (2, vec![]));
        assert_eq!(a.control.neighbours(a.now)[0].state, "reachable");
        for host in [&a, &b] {
            let refused: Vec<_> = host
                .control
                .counts()
                .list()
                .filter(|(name, _, n)| *n > 0 && !["answered", "ignored"].contains(name))
                .collect();
            assert!(refused.is_empty(), "{refused:?}");
        }
    }
}

#[test]
fn an_address_that_two_have_is_defended_at_a_bounded_pace() {
    for v6 in [false, true] {
        let [mut a, mut b] = two(v6);
        let group6 = "ff05::".parse().unwrap();
        let endpoint = a.control.link.endpoint;
        let config = ControlConfig {
            mac: B,
            endpoint,
            prefix: None,
            answers: true,
            gateways: Vec::new(),
            group6,
        };
        b.control = Control::new(config);
        let mut carried = 0;
        for _ in 0..60 {
            for index in 0..2 {
                let said = if index == 0 { a.pass(1000) } else { b.pass(1000) };
                for (_, out) in said {
                    carried += talk(&mut [&mut a, &mut b], index, out).0;
                }
            }
        }
        assert!(a.count(Count::Conflict) > 0 && b.count(Count::Conflict) > 0);
        assert!(carried <= 2 * (2 + 4 + 6), "{carried}");
    }
}

/// Frames that are right but for a few bytes get further than noise.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let right = vec![
        answer(B, "10.1.0.2"),
        claim(C, "10.1.0.2"),
        answer(B, "fd00::2"),
        claim(C, "fd00::2"),
        build::ethernet(B, Mac::BROADCAST).arp_request([10, 1, 0, 2], [10, 1, 0, 1]),
        build::ethernet(B, A).vlan(0).ipv4([10, 1, 0, 2], [10, 1, 0, 1]).ping(1, 1, b"abc"),
        build::ethernet(B, A)
            .ipv6([0xfd00, 0, 0, 0, 0, 0, 0, 2], [0xfd00, 0, 0, 0, 0, 0, 0, 1])
            .ping(1, 1, b"abc"),
        groups::query4([224, 0, 0, 1], 10, [0; 4], &[]),
        groups::query6("ff02::1", 100, "::", &[]),
        butterfly_packet::igmp::report(B, [10, 1, 0, 2].into(), [230, 0, 0, 42].into()),
        butterfly_packet::mld::report(B, "ff05::2a".parse().unwrap()),
    ];
    (proptest::sample::select(right), vec((0usize..100, any::<u8>()), 0..3), 0usize..120).prop_map(
        |(mut frame, flips, len)| {
            for (at, byte) in flips {
                if let Some(to) = frame.get_mut(at) {
                    *to = byte;
                }
            }
            frame.truncate(len);
            frame
        },
    )
}

proptest! {
    #[test]
    fn no_frame_brings_it_down_or_makes_it_talkative(
        v6: bool, answers: bool,
        frames in vec((prop_oneof![vec(any::<u8>(), 0..100), nearly_right(), nearly_right()], 0u64..2000), 0..60),
    ) {
        let mut host = Host::new(v6, answers);
        host.call(|control, now, out| control.join(42, now, out));
        host.resolve("10.1.0.2", None);
        host.resolve("fd00::2", None);
        for (frame, ms) in frames {
            let before: u64 = host.control.counts().list().map(|(.., n)| n).sum();
            let out = host.hears(&frame);
            prop_assert!(out.frames.len() <= 2 && out.events.len() <= 1);
            let after: u64 = host.control.counts().list().map(|(.., n)| n).sum();
            prop_assert!(after > before || !out.events.is_empty() || host.control.neighbours(host.now).iter().any(|row| row.age == Some(0)));
            // To no address more than what is due by itself: a report of the group there and an
            // answer to a query about it, a request for the neighbour there, an announcement to
            // all. There are two groups, one neighbour and all others.
            let mut said = std::collections::BTreeMap::<Vec<u8>, u64>::new();
            for frame in host.pass(ms).iter().flat_map(|(_, out)| &out.frames) {
                *said.entry(frame[..6].to_vec()).or_default() += 1;
            }
            prop_assert!(said.values().all(|count| *count <= 2 + ms / 400) && said.len() <= 4, "{said:02x?} in {ms} ms");
        }
    }
}
