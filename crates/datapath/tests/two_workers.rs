//! Two workers at once: what they share loses no count and no frame, and opens nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use butterfly_datapath::{
    GroupChange, Mac, SessionFilter, VnicPolicy,
    harness::{Guests, Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, SendError},
    memory::MemoryConfig,
};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build::{self, Ip},
    tcp::{ACK, FIN, SYN},
};
use butterfly_vhost::net::NetHeader;

const VNI: u32 = 42;
/// Vnics 0 to 3 bypass filters; 4 to 7 are filtered. Even ones have the first worker, odd ones the
/// second.
const VNICS: u8 = 8;
/// Frames of a round that one vnic's rules refuse.
const DENIED: usize = 48;
const LASTS: Duration = Duration::from_secs(4);

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn id(n: u8) -> String {
    format!("v{n}")
}

fn from_to(from: u8, to: u8) -> Ip {
    build::ethernet(mac(from), mac(to)).ipv4([10, 0, 0, from], [10, 0, 0, to])
}

/// A host with two workers. Rules let UDP to port 7 and TCP to port 80 into filtered vnics.
fn host() -> Host {
    let mut host = Host::with_workers(2).unwrap();
    let name = GroupName::new("g").unwrap();
    let all = Some(Cidr::new("0.0.0.0", 0).unwrap());
    let rule = Rule::new(Direction::Inbound, 17, (Some(7), Some(7)), all, None).unwrap();
    let tcp = Rule::new(Direction::Inbound, 6, (Some(80), Some(80)), all, None).unwrap();
    let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), [rule, tcp]).unwrap();
    host.change_group(&name, GroupChange::Declare(group)).unwrap();
    for n in 0..VNICS {
        let filtered = n >= 4;
        let groups = if filtered { vec![name.clone()] } else { Vec::new() };
        let ips = vec![[10, 0, 0, n].into()];
        let policy = VnicPolicy { bypass: !filtered, ips, groups, ..VnicPolicy::default() };
        host.vnic(&id(n), mac(n), VNI, &policy).unwrap();
    }
    host.settle();
    host.moved();
    host
}

/// Frames of a round: of every vnic to every other one, with a flood, a spoofed frame, and a packet
/// in fragments; some come by a rule, and some by none.
fn frames(from: u8, round: u16) -> Vec<Vec<u8>> {
    let udp = |to: u8, port: u16| from_to(from, to).udp(1000 + round % 500, port, b"at once");
    let mut frames: Vec<Vec<u8>> =
        (0..VNICS).filter(|to| *to != from).flat_map(|to| [udp(to, 7), udp(to, 9)]).collect();
    // Both workers count these at one vnic, without its ring's lock.
    frames.extend((0..DENIED).map(|_| udp(if from == 4 { 5 } else { 4 }, 9)));
    let flood = build::ethernet(mac(from), Mac::BROADCAST);
    frames.push(flood.arp_request([10, 0, 0, from], [10, 0, 0, from ^ 1]));
    // Another vnic's address: noted with the packets that were dropped last.
    frames.push(build::ethernet(mac(from ^ 1), mac(0)).payload(0x88b5, &[0; 46]));
    let to = (from + 3) % VNICS;
    frames.extend([0, 24].map(|offset| {
        let payload = if offset == 0 { [0, 9, 0, 7, 0, 56, 0, 0].repeat(3) } else { vec![1; 32] };
        from_to(from, to).fragment(round.into(), offset, offset == 0).payload(17, &payload)
    }));
    frames
}

#[derive(Default)]
struct Sums {
    sent: BTreeMap<String, u64>,
    got: BTreeMap<String, u64>,
    /// Frames for filtered vnics that no rule lets in.
    wrong: u64,
}

impl Sums {
    /// Takes what arrived.
    fn read(&mut self, guests: &mut Guests<'_>) {
        for n in 0..VNICS {
            let guest = guests.guest(&id(n)).unwrap();
            while let Some((_, frame)) = guest.recv().unwrap() {
                *self.got.entry(id(n)).or_default() += 1;
                let port = frame.get(36..38);
                let whole_udp =
                    frame.get(12..14) == Some(&[8, 0]) && frame.get(20..22) == Some(&[0, 0]);
                self.wrong += u64::from(n >= 4 && whole_udp && port == Some(&[0, 9]));
            }
        }
    }

    fn play(&mut self, guests: &mut Guests<'_>) {
        let start = Instant::now();
        let mut round = 0u16;
        while start.elapsed() < LASTS {
            round = round.wrapping_add(1);
            for n in 0..VNICS {
                let frames = frames(n, round);
                for frame in &frames {
                    loop {
                        match guests.guest(&id(n)).unwrap().enqueue(frame, NetHeader::default()) {
                            Ok(()) => break,
                            Err(SendError::Full) => {
                                guests.guest(&id(n)).unwrap().flush();
                                self.read(guests);
                            }
                            Err(why) => panic!("{why}"),
                        }
                    }
                }
                *self.sent.entry(id(n)).or_default() += frames.len() as u64;
                guests.guest(&id(n)).unwrap().flush();
            }
            self.read(guests);
        }
    }
}

#[test]
fn no_count_is_lost_and_nothing_passes_that_no_rule_admits() {
    let mut host = host();
    let mut sums = Sums::default();
    host.at_once(|guests| sums.play(guests));
    all_is_counted(&mut host, sums);
}

#[test]
fn nor_while_rings_go_from_worker_to_worker() {
    let mut host = host();
    let mut sums = Sums::default();
    let ((), moves) = host.at_once_moving(&[], |guests| sums.play(guests));
    println!("{moves} moves");
    assert!(moves > 500, "{moves} moves");
    all_is_counted(&mut host, sums);
}

fn all_is_counted(host: &mut Host, mut sums: Sums) {
    host.at_once(|guests| sums.read(guests));
    let moved = host.moved();
    let of = |name: String| moved.get(&name).copied().unwrap_or(0);
    for n in 0..VNICS {
        let id = id(n);
        // Each worker counts its own senders, and both count what they deliver to a vnic.
        assert_eq!(of(format!("{id}.in.packets")), sums.sent[&id], "{id} sent");
        assert_eq!(of(format!("{id}.out.packets")), sums.got[&id], "{id} got");
        assert!(sums.sent[&id] > 1000, "{id} sent {}", sums.sent[&id]);
    }
    // Every frame is delivered or dropped, once for each of its receivers.
    let rounds: u64 = sums.sent.values().sum::<u64>() / frames(0, 0).len() as u64;
    let floods = rounds * u64::from(VNICS - 1);
    let others = sums.sent.values().sum::<u64>() - rounds;
    let ends =
        moved.iter().filter(|(name, _)| name.ends_with(".out.packets") || name.contains(".drop."));
    let ends: u64 = ends.map(|(_, n)| n).sum();
    let limited: u64 =
        moved.iter().filter(|(name, _)| name.ends_with("flood-limit")).map(|(_, n)| n).sum();
    // A flood beyond its vnic's share is one drop instead of one for each receiver.
    assert_eq!(ends + limited * u64::from(VNICS - 2), floods + others, "{moved:?}");
    assert_eq!(sums.wrong, 0);
}

/// Numbers of a vnic that is moved a thousand times arrive in order and once each, also floods.
#[test]
fn order_holds_while_a_ring_is_moved() {
    let mut host = Host::with_workers(2).unwrap();
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for n in 0..VNICS {
        host.vnic(&id(n), mac(n), VNI, &policy).unwrap();
    }
    host.settle();
    let ((sent, got), moves) = host.at_once_moving(&[], |guests| {
        let start = Instant::now();
        let mut sent = 0u32;
        let mut got = BTreeMap::<String, Vec<u32>>::new();
        let mut read = |guests: &mut Guests<'_>| {
            for n in 1..VNICS {
                while let Some((_, frame)) = guests.guest(&id(n)).unwrap().recv().unwrap() {
                    let number = frame[14..18].try_into().unwrap();
                    got.entry(id(n)).or_default().push(u32::from_be_bytes(number));
                }
            }
        };
        while start.elapsed() < LASTS {
            // A receiver that has no buffers left would drop.
            for _ in 0..64 {
                let to = if sent % 16 == 5 { Mac::BROADCAST } else { mac(1) };
                let mut payload = [0u8; 46];
                payload[..4].copy_from_slice(&sent.to_be_bytes());
                let frame = build::ethernet(mac(0), to).payload(0x88b5, &payload);
                guests.guest(&id(0)).unwrap().enqueue(&frame, NetHeader::default()).unwrap();
                sent += 1;
            }
            guests.guest(&id(0)).unwrap().flush();
            let limit = Instant::now() + Duration::from_secs(20);
            while !guests.guest(&id(0)).unwrap().drain(Duration::ZERO).unwrap() {
                assert!(Instant::now() < limit, "nobody serves the ring");
                read(guests);
            }
            read(guests);
        }
        (sent, got)
    });
    println!("{sent} frames, {moves} moves");
    assert!(moves > 500 && sent > 10_000, "{sent} frames, {moves} moves");
    let mut late = BTreeMap::new();
    host.at_once(|guests| {
        for n in 1..VNICS {
            let waits = guests.guest(&id(n)).unwrap();
            let frames = std::iter::from_fn(|| waits.recv().unwrap());
            let numbers = frames.map(|(_, frame)| frame[14..18].try_into().unwrap());
            late.insert(id(n), numbers.map(u32::from_be_bytes).collect::<Vec<_>>());
        }
    });
    let limited =
        host.moved().iter().filter(|(name, _)| name.contains("drop")).map(|it| *it.1).sum::<u64>();
    for n in 1..VNICS {
        let numbers = [got.get(&id(n)).cloned().unwrap_or_default(), late[&id(n)].clone()].concat();
        // Floods of a batch are delivered before the rest of it: those of each kind are in order.
        let (floods, others): (Vec<u32>, Vec<u32>) = numbers.iter().partition(|n| **n % 16 == 5);
        for kind in [floods, others] {
            let wrong = kind.windows(2).find(|pair| pair[0] >= pair[1]);
            assert!(wrong.is_none(), "{} got numbers twice or out of order: {wrong:?}", id(n));
        }
        let all = if n == 1 { sent } else { sent.div_ceil(16) };
        assert_eq!(limited, 0, "{:?}", host.moved());
        assert!(numbers.len() as u32 + 1 >= all, "{} got {} of {all}", id(n), numbers.len());
    }
}

/// Openers and responders, of different workers.
const PAIRS: [(u8, u8); 3] = [(4, 5), (7, 6), (6, 5)];
/// Connections of each pair, how many of them there are at a time, and segments with data that each
/// end sends.
const CONNECTIONS: u16 = 400;
const AT_A_TIME: usize = 8;
const SEGMENTS: u32 = 4;

/// One end of a connection. It sends without waiting for the other one, but for its first segment.
struct End {
    local: u8,
    remote: u8,
    ports: (u16, u16),
    /// Number of its next byte, and the one that it expects.
    next: u32,
    expected: u32,
    /// True once it may send data.
    connected: bool,
    segments: u32,
    /// Flags of an answer that it owes.
    owes: Option<u8>,
    fin: bool,
    fin_acknowledged: bool,
    fin_seen: bool,
    sent: u64,
}

impl End {
    fn pair(n: usize, (from, to): (u8, u8), port: u16) -> [End; 2] {
        let end = |local, remote, ports, next| End {
            local,
            remote,
            ports,
            next,
            expected: 0,
            connected: false,
            segments: SEGMENTS,
            owes: None,
            fin: false,
            fin_acknowledged: false,
            fin_seen: false,
            sent: 0,
        };
        // Some numbers go round.
        let first = (n as u32).wrapping_mul(0x1234_5678) | 0xffff_ff00;
        let mut opener = end(from, to, (port, 80), first);
        opener.owes = Some(SYN);
        [opener, end(to, from, (80, port), !first)]
    }

    fn is_over(&self) -> bool {
        self.fin_acknowledged && self.fin_seen && self.owes.is_none()
    }

    /// Returns the next segment, if there is one to send now.
    fn segment(&self) -> Option<(u8, u32)> {
        match (self.owes, self.connected) {
            (Some(flags), false) => Some((flags, 0)),
            (_, true) if self.segments > 0 => Some((ACK, 100)),
            (_, true) if !self.fin => Some((FIN | ACK, 0)),
            (Some(flags), true) => Some((flags, 0)),
            _ => None,
        }
    }

    /// Sends a segment, if the ring has room. Returns whether it did.
    fn send(&mut self, guests: &mut Guests<'_>) -> bool {
        let Some((flags, len)) = self.segment() else { return true };
        let acknowledgement = if flags & ACK == 0 { 0 } else { self.expected };
        let tcp = build::Tcp {
            sequence: self.next,
            acknowledgement,
            ..build::Tcp::new(self.ports.0, self.ports.1, flags)
        };
        let frame = from_to(self.local, self.remote).tcp(&tcp, &vec![1; len as usize]);
        let guest = guests.guest(&id(self.local)).unwrap();
        match guest.enqueue(&frame, NetHeader::default()) {
            Ok(()) => {}
            Err(SendError::Full) => return false,
            Err(why) => panic!("{why}"),
        }
        self.next = self.next.wrapping_add(len + u32::from(flags & (SYN | FIN) != 0));
        self.segments -= u32::from(len > 0);
        self.fin |= flags & FIN != 0;
        self.connected |= flags == ACK;
        self.owes = None;
        self.sent += 1;
        true
    }

    /// Takes a segment, all of which come in order.
    fn take(&mut self, sequence: u32, acknowledgement: u32, flags: u8, len: u32) {
        if flags & SYN != 0 {
            self.expected = sequence.wrapping_add(1);
            self.owes = Some(if flags & ACK == 0 { SYN | ACK } else { ACK });
            return;
        }
        assert_eq!(sequence, self.expected, "a segment is lost");
        self.connected = true;
        self.expected = sequence.wrapping_add(len + u32::from(flags & FIN != 0));
        if flags & FIN != 0 {
            self.fin_seen = true;
            self.owes = Some(ACK);
        }
        self.fin_acknowledged |= self.fin && acknowledgement == self.next;
    }
}

/// Reads what arrived for the ends of a pair of vnics, and gives it to the one that it is for.
fn deliver(
    guests: &mut Guests<'_>,
    ends: &mut [End],
    places: &BTreeMap<(u8, u8, u16, u16), usize>,
) {
    for n in 4..VNICS {
        while let Some((_, frame)) = guests.guest(&id(n)).unwrap().recv().unwrap() {
            let at = |at: usize| frame[at];
            let two = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            let four = |at: usize| u32::from(two(at)) << 16 | u32::from(two(at + 2));
            let end = places[&(at(33), at(29), two(36), two(34))];
            ends[end].take(four(38), four(42), at(47), u32::from(two(16)) - 40);
        }
    }
}

/// Both ends of a connection are at different workers, and send at once, their FINs as well.
#[test]
fn connections_between_two_workers_lose_nothing() {
    let mut host = host();
    let mut ends = Vec::new();
    for port in 0..CONNECTIONS {
        for pair in PAIRS {
            ends.extend(End::pair(ends.len(), pair, 1024 + port));
        }
    }
    let places: BTreeMap<_, _> = ends
        .iter()
        .enumerate()
        .map(|(at, end)| ((end.local, end.remote, end.ports.0, end.ports.1), at))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    host.at_once(|guests| {
        let (mut begun, all) = (0, ends.len());
        let mut alive: Vec<usize> = Vec::new();
        while begun < all || !alive.is_empty() {
            assert!(Instant::now() < deadline, "{} of {begun} wait", alive.len());
            while begun < all && alive.len() < AT_A_TIME * 2 * PAIRS.len() {
                alive.extend([begun, begun + 1]);
                begun += 2;
            }
            for at in &alive {
                ends[*at].send(guests);
            }
            (4..VNICS).for_each(|n| guests.guest(&id(n)).unwrap().flush());
            deliver(guests, &mut ends, &places);
            alive.retain(|at| !(ends[*at].is_over() && ends[*at ^ 1].is_over()));
        }
    });
    host.at_once(|guests| deliver(guests, &mut ends, &places));
    let drops: Vec<_> =
        host.moved().into_iter().filter(|(name, _)| name.contains(".drop.")).collect();
    assert!(drops.is_empty(), "{drops:?}");
    let filter = SessionFilter { protocol: Some(6), ..SessionFilter::default() };
    let (count, rows) = host.sessions(&filter, ends.len());
    assert_eq!((count as usize, rows.len()), (ends.len() / 2, ends.len() / 2));
    for row in rows {
        let [local, remote] = [&row.opener, &row.responder].map(|end| match end.address {
            std::net::IpAddr::V4(address) => address.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        });
        let opener = places[&(local, remote, row.opener.port, row.responder.port)];
        assert_eq!(row.state, "time-wait", "{row:?}");
        assert_eq!(row.packets, [ends[opener].sent, ends[opener ^ 1].sent], "{row:?}");
        let bytes = |end: &End| end.sent * 54 + u64::from(SEGMENTS) * 100;
        assert_eq!(row.bytes, [bytes(&ends[opener]), bytes(&ends[opener ^ 1])], "{row:?}");
    }
}

/// Receivers of a flood that takes three turns: 64 that may want an interrupt are one.
const CROWD: u8 = 150;

/// A flood that some receivers have goes on at the next worker where it was.
#[test]
fn a_flood_goes_on_at_the_next_worker() {
    let mut host = Host::with_workers(2).unwrap();
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(64);
    for n in 0..=CROWD {
        host.declare(&id(n), mac(n), VNI, &policy).unwrap();
        host.attach(&id(n), LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.settle();
    let (floods, moves) = host.at_once_moving(&["v0"], |guests| {
        let start = Instant::now();
        let mut sent = 0u32;
        let mut got = [0u32; CROWD as usize + 1];
        while start.elapsed() < LASTS {
            for _ in 0..16 {
                let mut payload = [0u8; 46];
                payload[..4].copy_from_slice(&sent.to_be_bytes());
                let frame = build::ethernet(mac(0), Mac::BROADCAST).payload(0x88b5, &payload);
                guests.guest("v0").unwrap().enqueue(&frame, NetHeader::default()).unwrap();
                sent += 1;
            }
            let limit = Instant::now() + Duration::from_secs(20);
            guests.guest("v0").unwrap().flush();
            while !guests.guest("v0").unwrap().drain(Duration::ZERO).unwrap() {
                assert!(Instant::now() < limit, "nobody serves the ring");
                std::thread::yield_now();
            }
            for (n, got) in (0..=CROWD).zip(&mut got).skip(1) {
                let limit = Instant::now() + Duration::from_secs(20);
                while *got < sent {
                    assert!(Instant::now() < limit, "{} has {got} of {sent}", id(n));
                    let Some((_, frame)) = guests.guest(&id(n)).unwrap().recv().unwrap() else {
                        continue;
                    };
                    let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
                    assert_eq!(number, *got, "{} gets each flood once, in order", id(n));
                    *got += 1;
                }
            }
            // Within what a vnic may flood: 1,000,000 copies a second.
            std::thread::sleep(Duration::from_millis(2));
        }
        sent
    });
    println!("{floods} floods, {moves} moves");
    assert!(moves > 500 && floods > 1000, "{floods} floods, {moves} moves");
    for n in 1..=CROWD {
        assert!(host.guest(&id(n)).unwrap().recv().unwrap().is_none(), "{} has one more", id(n));
    }
}
