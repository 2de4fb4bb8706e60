//! Networks that a router joins, in whole daemons: what is declared in any order is routed, and
//! goes on when the daemon dies; what the router does is told truly, and a hostile guest harms only
//! itself.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use butterfly_api::proto::{SessionFilter, TraceTarget};
use butterfly_model::RouterId;
use butterfly_packet::{
    build::{self, Ip},
    checksum::Sum,
    mac::Mac,
    tcp::{ACK, SYN},
};
use butterfly_tests::{
    Nic, PATIENCE, Station, eventually,
    frames::{mac, pattern},
    net::{Net, segment},
};
use serde_json::Value;

use crate::{
    lasting::{Place, die, is_attached, kill},
    tap::{begin_trace, end_trace},
};

/// A machine: its id, the last byte of its addresses, and its network. In network N it has the
/// address 10.N.0.LAST.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) id: &'static str,
    last: u8,
    pub(crate) vni: u32,
}

pub(crate) const A: Machine = Machine { id: "a", last: 10, vni: 42 };
pub(crate) const B: Machine = Machine { id: "b", last: 11, vni: 50 };
/// A neighbour of [`A`].
const C: Machine = Machine { id: "c", last: 12, vni: 42 };

/// Commands that join both networks. Each needs others before it, as [`needs`] tells.
pub(crate) const LINES: [&str; 5] = [
    "network add --vni 42 --subnet 10.42.0.0/24 --gateway 10.42.0.1",
    "network add --vni 50 --subnet 10.50.0.0/24 --gateway 10.50.0.1",
    "router add r",
    "router attach r --vni 42",
    "router attach r --vni 50",
];

fn needs(line: usize) -> &'static [usize] {
    match line {
        3 => &[0, 2],
        4 => &[1, 2],
        _ => &[],
    }
}

impl Machine {
    pub(crate) fn mac(self) -> Mac {
        mac(self.last.into())
    }

    fn ip(self) -> [u8; 4] {
        [10, self.vni as u8, 0, self.last]
    }

    /// The address of its gateway.
    fn gateway(self) -> [u8; 4] {
        [10, self.vni as u8, 0, 1]
    }

    pub(crate) fn address(self) -> String {
        std::net::Ipv4Addr::from(self.ip()).to_string()
    }

    /// Its vnic, filtered by these groups.
    pub(crate) fn filtered(self, groups: &[&str]) -> Nic {
        Nic::filtered(self.id, self.mac(), self.vni).ips(&[&self.address()]).groups(groups)
    }

    /// Its vnic, without a filter.
    fn open(self) -> Nic {
        Nic { bypass: true, ..self.filtered(&[]) }
    }
}

/// The MAC address of the router in both networks.
fn router() -> Mac {
    Mac(RouterId::new("r").unwrap().gateway_mac())
}

/// A packet to the gateway, and the one that the router makes of it.
pub(crate) fn routed(from: Machine, to: Machine, make: impl Fn(Ip) -> Vec<u8>) -> [Vec<u8>; 2] {
    let sent = make(build::ethernet(from.mac(), router()).ipv4(from.ip(), to.ip()));
    let mut arrives = sent.clone();
    arrives[..6].copy_from_slice(&to.mac().0);
    arrives[6..12].copy_from_slice(&router().0);
    arrives[22] -= 1;
    arrives[24..26].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&arrives[14..34]).checksum();
    arrives[24..26].copy_from_slice(&sum.to_be_bytes());
    [sent, arrives]
}

/// A question to port 53, and an answer from there.
fn ask(ip: Ip) -> Vec<u8> {
    ip.udp(1000, 53, b"?")
}

fn answer(ip: Ip) -> Vec<u8> {
    ip.udp(53, 1000, b"!")
}

/// The group of [`B`]: it lets in what comes from the network of [`A`], and nothing lets in
/// anything else.
const WEB: [&str; 2] = ["in udp 53 10.42.0.0/24", "in tcp 80 10.42.0.0/24"];

/// A host, its machines, and its counters when it was last looked at.
struct Joined {
    net: Net,
    before: BTreeMap<String, u64>,
    /// Machines that came back are announced in their networks, where nobody else is.
    announces: bool,
}

impl Joined {
    /// A host with [`A`] and [`B`], both filtered, and a router between them.
    fn new() -> Option<Joined> {
        let mut joined = Joined::on(Net::with(&["--tcp-pickup", "0"], &[])?);
        joined.pair();
        joined.run(&LINES);
        Some(joined)
    }

    fn on(net: Net) -> Joined {
        Joined { before: net.host.counters(), net, announces: false }
    }

    fn pair(&mut self) {
        self.net.group("web", &WEB, &[]);
        self.attach(&A.filtered(&[]));
        self.attach(&B.filtered(&["web"]));
    }

    fn attach(&mut self, nic: &Nic) {
        self.net.attach(nic);
        self.before = self.net.host.counters();
    }

    /// Runs commands of the client. Each must succeed.
    fn run(&self, lines: &[&str]) {
        for line in lines {
            self.client(line);
        }
    }

    /// Runs a command of the client. Returns its output.
    fn client(&self, line: &str) -> String {
        self.net.host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Returns all that is declared, without the directory of the sockets.
    fn declared(&self) -> String {
        self.client("dump").replace(&self.net.host.dir().display().to_string(), "DIR")
    }

    /// Sends a packet by the router. Asserts that exactly the one that it makes of it comes to
    /// `to`, and nothing to anybody else.
    #[track_caller]
    fn passes(&mut self, from: Machine, to: Machine, make: impl Fn(Ip) -> Vec<u8>) {
        let [sent, arrives] = routed(from, to, make);
        self.net.station(from.id).send(&sent);
        self.net.station(to.id).expect(&arrives);
        let (sent, got) = (format!("{}.in", from.id), format!("{}.out", to.id));
        self.moved(&[(&sent, 1), (&got, 1)]);
    }

    /// Sends a frame. Asserts that nobody gets it, and that one drop is counted. Of a missing route
    /// the sender's gateway tells it.
    #[track_caller]
    fn drops(&mut self, from: Machine, frame: &[u8], drop: &str) {
        self.net.station(from.id).send(frame);
        let (sent, (nic, reason)) = (format!("{}.in", from.id), drop.split_once('.').unwrap());
        let (dropped, told) = (format!("{nic}.drop.{reason}"), format!("{nic}.out"));
        let mut moves = vec![(&*sent, 1), (&*dropped, 1)];
        if reason == "no-route" {
            let gateway = build::ethernet(router(), from.mac()).ipv4(from.gateway(), from.ip());
            let error = gateway.tos(0xc0).dont_fragment().icmp(3, 0, 0, &frame[14..]);
            self.net.station(from.id).expect(&error);
            moves.push((&*told, 1));
        }
        self.moved(&moves);
    }

    /// Waits until these counters moved. Asserts that no other did, and that nobody has a frame.
    #[track_caller]
    fn moved(&mut self, expected: &[(&str, u64)]) {
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let end = Instant::now() + PATIENCE;
        let (now, moved) = loop {
            let now = self.net.host.counters();
            let of = |name: &str| {
                now.get(name).copied().unwrap_or(0) - self.before.get(name).copied().unwrap_or(0)
            };
            let mut moved: BTreeMap<String, u64> =
                now.keys().map(|name| (name.clone(), of(name))).filter(|(_, n)| *n > 0).collect();
            for id in self.net.stations.keys().filter(|_| self.announces) {
                let names = [format!("{id}.flooded"), format!("{id}.drop.no-receiver")];
                if of(&names[0]) == of(&names[1]) {
                    names.iter().for_each(|name| _ = moved.remove(name));
                }
            }
            if moved == expected || Instant::now() > end {
                break (now, moved);
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(moved, expected);
        self.before = now;
        for (id, station) in &mut self.net.stations {
            assert_eq!(station.pending().len(), 0, "{id} got more");
        }
    }

    /// A question from a passes, its answer, and nothing that b would open.
    #[track_caller]
    fn is_routed(&mut self) {
        self.passes(A, B, ask);
        self.passes(B, A, answer);
        let [stranger, _] = routed(B, A, |ip| ip.udp(53, 99, b"?"));
        self.drops(B, &stranger, "a.ingress-denied");
    }

    /// The one session that there is.
    #[track_caller]
    fn session(&self) -> Value {
        let text = self.client("sessions --json");
        let told: Value = serde_json::from_str(&text).unwrap();
        let all = told["sessions"].as_array().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(all.len(), 1, "{text}");
        all[0].clone()
    }
}

/// Every order in which [`LINES`] can be carried out.
fn orders() -> Vec<Vec<usize>> {
    fn go_on(begun: &[usize], all: &mut Vec<Vec<usize>>) {
        if begun.len() == LINES.len() {
            all.push(begun.to_vec());
        }
        for line in 0..LINES.len() {
            if !begun.contains(&line) && needs(line).iter().all(|it| begun.contains(it)) {
                go_on(&[begun, &[line]].concat(), all);
            }
        }
    }
    let mut all = Vec::new();
    go_on(&[], &mut all);
    all
}

/// Vnics before, between and after what joins their networks; in one file, backwards; and from the
/// store, once with the guests' connections and once without. All end in the same routing.
#[test]
fn declared_in_any_order() {
    let Some(mut place) = Place::new() else { return };
    place.1 = ["--tcp-pickup", "0"].map(str::to_owned).to_vec();
    let mut joined = Joined::on(Net::of(place.start()));
    joined.net.group("web", &WEB, &[]);
    let [first, _] = routed(A, B, ask);
    let (mut declared, mut count) = (None, 0);
    for order in orders() {
        for (a, b) in [(0, 5), (3, 3), (5, 1)] {
            for step in 0..=LINES.len() {
                if a == step {
                    joined.attach(&A.filtered(&[]));
                }
                if b == step {
                    joined.attach(&B.filtered(&["web"]));
                }
                if let Some(line) = order.get(step) {
                    // Nothing passes before all is there.
                    if joined.net.stations.len() == 2 {
                        let joined_42 = order[..step].contains(&3);
                        let reason = if joined_42 { "no-route" } else { "gateway-not-here" };
                        joined.drops(A, &first, &format!("a.{reason}"));
                    }
                    joined.run(&[LINES[*line]]);
                }
            }
            joined.is_routed();
            let now = joined.declared();
            assert_eq!(&now, declared.get_or_insert(now.clone()), "{order:?}, {a}, {b}");
            count += 1;
            if count == 16 * 3 {
                break;
            }
            joined.run(&["router del r", "network del --vni 50", "network del --vni 42"]);
            for id in ["a", "b"] {
                joined.net.stations.remove(id);
                joined.net.host.remove(id);
            }
        }
    }
    assert_eq!(count, 16 * 3);
    let declared = declared.unwrap();

    // One file, and the same backwards.
    let (head, blocks) = declared.split_once("messages {").unwrap();
    let (blocks, end) = blocks.rsplit_once("}\n").unwrap();
    let mut blocks: Vec<String> =
        blocks.split("messages {").map(|block| format!("messages {{{block}")).collect();
    if let Some(last) = blocks.last_mut() {
        last.push_str("}\n");
    }
    for backwards in [false, true] {
        if backwards {
            blocks.reverse();
        }
        let mut other = Joined::on(Net::with(&["--tcp-pickup", "0"], &[]).unwrap());
        let file = other.net.host.dir().join("declared");
        let text = format!("{head}{}{end}", blocks.concat());
        let text = text.replace("DIR", &other.net.host.dir().display().to_string());
        std::fs::write(&file, text).unwrap();
        other.client(&format!("apply {}", file.display()));
        assert_eq!(other.declared(), declared);
        // What is there already is not made anew.
        other.attach(&A.filtered(&[]));
        other.attach(&B.filtered(&["web"]));
        assert_eq!(other.declared(), declared);
        other.is_routed();
        let again = other.client(&format!("apply {} --prune", file.display()));
        assert_eq!(again, "nothing differs from the file\n");
    }

    // From the store: the daemon dies, and then the holder with it.
    let Joined { net: Net { mut host, stations, .. }, .. } = joined;
    die(&mut host);
    let mut net = Net::of(place.start());
    net.stations = stations;
    let mut joined = Joined::on(net);
    assert_eq!(joined.declared(), declared);
    assert!(joined.net.stations.values().all(is_attached));
    joined.is_routed();
    let Joined { net: Net { mut host, stations, .. }, .. } = joined;
    place.holder().into_iter().for_each(kill);
    die(&mut host);
    let gone: Vec<_> = stations
        .into_values()
        .map(|station| {
            assert!(station.vm.connection.wait_closed(PATIENCE));
            station.crash()
        })
        .collect();
    let mut net = Net::of(place.start());
    net.stations = gone.into_iter().map(|gone| (gone.nic.id.clone(), gone.back())).collect();
    let mut joined = Joined { announces: true, ..Joined::on(net) };
    assert_eq!(joined.declared(), declared);
    joined.is_routed();
    joined.net.host.daemon_mut().quit();
}

/// Ends the traffic when it is dropped, also after a panic.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A TCP stream from [`A`] to [`B`], as far as a filter sees it: what is lost is sent again.
pub(crate) struct Stream {
    /// Bytes sent, received in order, and acknowledged.
    sent: u32,
    got: u32,
    pub(crate) acked: u32,
}

/// Bytes of a segment, and most that are under way: the window is 1,000.
pub(crate) const LEN: u32 = 100;
const WINDOW: u32 = 8 * LEN;

impl Stream {
    /// Opens the connection between machines of any hosts.
    pub(crate) fn between(a: &mut Station, b: &mut Station) -> Stream {
        for (from_a, flags, (sequence, acknowledgement)) in
            [(true, SYN, (100, 0)), (false, SYN | ACK, (500, 101)), (true, ACK, (101, 501))]
        {
            let (from, to, ports) = if from_a { (A, B, (4000, 80)) } else { (B, A, (80, 4000)) };
            let segment = segment(ports, flags, sequence, acknowledgement);
            let [sent, arrives] = routed(from, to, |ip| ip.tcp(&segment, b""));
            let (sender, receiver) = if from_a { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            sender.send(&sent);
            receiver.expect(&arrives);
        }
        Stream { sent: 0, got: 0, acked: 0 }
    }

    /// Opens the connection.
    fn open(joined: &mut Joined) -> Stream {
        joined.passes(A, B, |ip| ip.tcp(&segment((4000, 80), SYN, 100, 0), b""));
        joined.passes(B, A, |ip| ip.tcp(&segment((80, 4000), SYN | ACK, 500, 101), b""));
        joined.passes(A, B, |ip| ip.tcp(&segment((4000, 80), ACK, 101, 501), b""));
        Stream { sent: 0, got: 0, acked: 0 }
    }

    /// The segment that begins at so many bytes.
    fn data(at: u32) -> [Vec<u8>; 2] {
        let segment = segment((4000, 80), ACK, 101 + at, 501);
        routed(A, B, |ip| ip.tcp(&segment, &pattern(at.into(), LEN as usize)))
    }

    /// The answer to so many bytes.
    fn ack(got: u32) -> [Vec<u8>; 2] {
        routed(B, A, |ip| ip.tcp(&segment((80, 4000), ACK, 501, 101 + got), b""))
    }

    /// Sends and receives until it is told to end. Every byte of what arrives is checked.
    pub(crate) fn go_on(
        &mut self,
        a: &mut Station,
        b: &mut Station,
        ended: &AtomicBool,
        moved: &AtomicU64,
    ) {
        const ETHERNET_AND_IP: usize = 14 + 20;
        let word = |frame: &[u8], at: usize| {
            let at = ETHERNET_AND_IP + at;
            frame.get(at..at + 4).map_or(0, |it| u32::from_be_bytes(it.try_into().unwrap()))
        };
        let mut last = Instant::now();
        while !ended.load(Relaxed) || self.acked < self.sent {
            while self.sent < self.acked + WINDOW && !ended.load(Relaxed) {
                a.send(&Stream::data(self.sent)[0]);
                self.sent += LEN;
            }
            for frame in b.pending() {
                let at = word(&frame, 4).wrapping_sub(101);
                assert_eq!(frame, Stream::data(at)[1], "{at}");
                self.got += if at == self.got { LEN } else { 0 };
                b.send(&Stream::ack(self.got)[0]);
            }
            for frame in a.pending() {
                let acked = word(&frame, 8).wrapping_sub(101);
                assert_eq!(frame, Stream::ack(acked)[1], "{acked}");
                if acked > self.acked {
                    (self.acked, last) = (acked, Instant::now());
                    moved.store(acked.into(), Relaxed);
                }
            }
            if self.acked < self.sent && last.elapsed() > Duration::from_millis(30) {
                (self.sent, last) = (self.acked, Instant::now());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A connection between two filtered vnics goes on when the daemon dies, and another program takes
/// its place: without pick-up no segment in its middle is admitted as a new one, and no rule lets
/// in what comes back.
#[test]
fn a_routed_connection_survives_a_crash() {
    let Some(mut place) = Place::new() else { return };
    place.1 = ["--tcp-pickup", "0"].map(str::to_owned).to_vec();
    let mut joined = Joined::on(Net::of(place.start()));
    joined.pair();
    joined.run(&LINES);
    let mut stream = Stream::open(&mut joined);
    let middle =
        |port| routed(A, B, |ip| ip.tcp(&segment((port, 80), ACK, 101, 501), b"x"))[0].clone();
    joined.drops(A, &middle(4001), "a.tcp-no-session");
    let begun = joined.session();
    let Joined { net: Net { mut host, mut stations, .. }, .. } = joined;
    let (mut a, mut b) = (stations.remove("a").unwrap(), stations.remove("b").unwrap());
    let (ended, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&ended);
        scope.spawn(|| stream.go_on(&mut a, &mut b, &ended, &moved));
        let moves = || {
            let enough = moved.load(Relaxed) + u64::from(50 * LEN);
            eventually("the stream goes on", || moved.load(Relaxed) >= enough);
        };
        for _ in 0..4 {
            moves();
            die(&mut host);
            host = place.start();
            moves();
            host.daemon().client_ok(&["upgrade"]);
        }
        moves();
    });
    assert!(is_attached(&a) && is_attached(&b));
    let mut net = Net::of(host);
    net.stations = [("a".to_owned(), a), ("b".to_owned(), b)].into();
    let mut joined = Joined::on(net);
    joined.drops(A, &middle(4001), "a.tcp-no-session");
    // One session all the time, which has counted all of it.
    let now = joined.session();
    let packets = |session: &Value, end: &str| session[format!("{end}_packets")].as_u64().unwrap();
    let segments = u64::from(stream.acked / LEN);
    assert!(packets(&now, "opener") >= packets(&begun, "opener") + segments, "{begun} {now}");
    assert!(packets(&now, "responder") > packets(&begun, "responder"), "{begun} {now}");
    for part in ["vni", "state", "opener", "responder", "egress", "ingress"] {
        assert!(now[part] == begun[part] && !now[part].is_null(), "{part}: {begun} {now}");
    }
    let at = stream.acked;
    joined.passes(A, B, |ip| ip.tcp(&segment((4000, 80), ACK, 101 + at, 501), b"last"));
    // What admitted it goes.
    joined.net.group("web", &WEB[..1], &[]);
    let [next, _] = routed(A, B, |ip| ip.tcp(&segment((4000, 80), ACK, 105 + at, 501), b"x"));
    joined.drops(A, &next, "b.ingress-denied");
    joined.net.host.daemon_mut().quit();
}

/// Frames of a flow that may be under way.
const BURST: u64 = 16;

/// Frames of [`A`] to [`B`], each with its number, as fast as they are delivered. `sent` is the
/// number of those that were sent. Returns the numbers of those that arrived.
fn flow(a: &mut Station, b: &mut Station, ended: &AtomicBool, sent: &AtomicU64) -> Vec<u64> {
    const PAYLOAD: usize = 14 + 20 + 8;
    let frame = |number: u64| {
        let payload = [&number.to_be_bytes()[..], &pattern(number, 60)].concat();
        routed(A, B, |ip| ip.udp(1000, 53, &payload))
    };
    let mut arrived = Vec::new();
    let mut take = |b: &mut Station| {
        for got in b.pending() {
            let number = got.get(PAYLOAD..PAYLOAD + 8).unwrap_or_else(|| panic!("{got:02x?}"));
            let number = u64::from_be_bytes(number.try_into().unwrap());
            assert_eq!(got, frame(number)[1], "{number}");
            assert!(arrived.last().is_none_or(|last| *last < number), "{number} comes late");
            arrived.push(number);
        }
    };
    while !ended.load(Relaxed) {
        for _ in 0..BURST {
            let number = sent.fetch_add(1, Relaxed);
            a.send(&frame(number)[0]);
        }
        assert!(a.vm.guest.drain(PATIENCE).unwrap());
        take(b);
    }
    take(b);
    arrived
}

/// Once the client has its answer, not one packet passes: of a router that was detached on either
/// side, or is gone, or whose network is. What was sent before has passed, or was dropped by name.
#[test]
fn a_router_that_goes_takes_its_way() {
    let Some(joined) = Joined::new() else { return };
    let Joined { net: Net { host, mut stations, .. }, .. } = joined;
    let (mut a, mut b) = (stations.remove("a").unwrap(), stations.remove("b").unwrap());
    let run = |line: &str| host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>());
    let refused = host.daemon().client(&["network", "del", "--vni", "42"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && said.contains("router \"r\" is attached"),
        "{said}"
    );
    for (take, reason, give) in [
        (&["router detach r --vni 50"][..], "no-route", &["router attach r --vni 50"][..]),
        (&["router detach r --vni 42"], "gateway-not-here", &["router attach r --vni 42"]),
        (&["router del r"], "gateway-not-here", &LINES[2..]),
        (&["router add r"], "gateway-not-here", &LINES[3..]),
        (&["router detach r --vni 50", "network del --vni 50"], "no-route", &[LINES[1], LINES[4]]),
    ] {
        let before = (host.show("a"), host.show("b"));
        let (ended, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let (arrived, bounds) = std::thread::scope(|scope| {
            let ending = Ending(&ended);
            let flow = scope.spawn(|| flow(&mut a, &mut b, &ended, &sent));
            let more = |n| {
                let enough = sent.load(Relaxed) + n;
                eventually("more is sent", || sent.load(Relaxed) >= enough);
            };
            more(2000);
            // What was under way before this number has passed.
            let first = sent.load(Relaxed).saturating_sub(BURST);
            take.iter().for_each(|line| drop(run(line)));
            let none = sent.load(Relaxed);
            more(2000);
            let back = sent.load(Relaxed);
            give.iter().for_each(|line| drop(run(line)));
            let all = sent.load(Relaxed);
            more(2000);
            drop(ending);
            (flow.join().unwrap(), [first, none, back, all])
        });
        let [first, none, back, all] = bounds;
        let between = |from: u64, to: u64| {
            arrived.iter().filter(|number| (from..to).contains(number)).count() as u64
        };
        let total = sent.load(Relaxed);
        assert_eq!(between(0, first), first, "{take:?}");
        assert_eq!(between(none + 1, back), 0, "{take:?}");
        assert_eq!(between(all + 1, total), total - all - 1, "{take:?}");
        assert!(back - none > 1000 && total - all > 1000, "{bounds:?} of {total}");
        // Nothing is lost without a name.
        let (a, b) = (host.show("a"), host.show("b"));
        assert_eq!(a.received.0 - before.0.received.0, total);
        assert_eq!(b.delivered.0 - before.1.delivered.0, arrived.len() as u64);
        let dropped = |reason: &str| a.drops(reason) - before.0.drops(reason);
        let all = dropped("no-route") + dropped("gateway-not-here");
        assert_eq!(all, total - arrived.len() as u64, "{take:?}: {:?}", a.dropped());
        assert_eq!(all, a.all_drops() - before.0.all_drops(), "{:?}", a.dropped());
        assert!(dropped(reason) >= back - none - 1, "{take:?}: {:?}", a.dropped());
        assert_eq!(b.all_drops(), 0, "{:?}", b.dropped());
    }
}

/// Answers of the client about a packet that passes, about the answer to it, and about those that
/// are refused.
#[test]
fn a_routed_packet_is_told_truly() {
    let Some(mut joined) = Joined::new() else { return };
    let parsed = |text: String| -> Value { serde_json::from_str(&text).unwrap() };
    // What will be.
    let question = "explain --json --from a --to 10.50.0.11 --proto udp --sport 1000 --port 53";
    let told = parsed(joined.client(&format!("{question} --reply")));
    assert_eq!(told["allowed"], true, "{told:#}");
    let walks = told["hosts"][0]["walks"].as_array().unwrap();
    let ways: Vec<_> = walks.iter().map(|walk| walk["nics"][0].as_str()).collect();
    assert_eq!(ways, [Some("b"), Some("a")], "{told:#}");
    let stages = |walk: &Value| -> Vec<String> {
        let steps = walk["steps"].as_array().unwrap().iter();
        steps.map(|step| step["stage"].as_str().unwrap().to_owned()).collect()
    };
    for walk in walks {
        let stages = stages(walk);
        assert!(stages.iter().any(|stage| stage == "route"), "{told:#}");
        assert!(stages.iter().any(|stage| stage == "masquerade"), "{told:#}");
    }
    let page = joined.client(&question.replace(" --json", ""));
    for words in [
        "udp 10.42.0.10:1000 > 10.50.0.11:53",
        "the gateway of VNI 42 passes it on to VNI 50",
        "b may get it by group web: udp 53 from 10.42.0.0/24",
        &format!("it goes on from {} to {}, with a hop less to go", router(), B.mac()),
        "delivered to b",
    ] {
        assert!(page.contains(words), "{words} is not in:\n{page}");
    }
    let refused = "explain --from a --to 192.0.2.1 --proto udp --port 53";
    let refused = joined.net.host.daemon().client(&refused.split(' ').collect::<Vec<_>>());
    let page = String::from_utf8(refused.stdout).unwrap();
    assert!(refused.status.code() == Some(2) && page.contains("no-route"), "{page}");
    assert_eq!(joined.net.host.daemon().sessions(SessionFilter::default()).0, 0, "it was asked");
    joined.moved(&[]);

    // What is, as it passes: with the addresses with which it goes on, or was sent.
    let number = begin_trace(joined.net.host.daemon(), TraceTarget::default(), "");
    joined.passes(A, B, ask);
    joined.passes(B, A, answer);
    let [stranger, _] = routed(B, A, |ip| ip.udp(53, 99, b"?"));
    joined.drops(B, &stranger, "a.ingress-denied");
    let nowhere = build::ethernet(A.mac(), router()).ipv4(A.ip(), [192, 0, 2, 1]).udp(1, 2, b"x");
    joined.drops(A, &nowhere, "a.no-route");
    let told = end_trace(joined.net.host.daemon(), number);
    let link = |from: Mac, to: Mac| format!("{from} > {to}");
    let lines = [
        (A, "b", "", link(router(), B.mac()), "udp 10.42.0.10:1000 > 10.50.0.11:53"),
        (B, "a", "", link(router(), A.mac()), "udp 10.50.0.11:53 > 10.42.0.10:1000"),
        (B, "", "ingress-denied", link(B.mac(), router()), "udp 10.50.0.11:53 > 10.42.0.10:99"),
        (A, "", "no-route", link(A.mac(), router()), "udp 10.42.0.10:1 > 192.0.2.1:2"),
    ];
    let (answers, packets): (Vec<_>, Vec<_>) =
        told.packet.iter().partition(|packet| packet.point() == "answer");
    let [error] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((error.to_nic(), error.vni()), ("a", 42));
    assert!(error.summary().contains("10.42.0.1 > 10.42.0.10"), "{error:?}");
    let seen = packets.iter().map(|packet| {
        let ends = (packet.from_nic().to_owned(), packet.vni(), packet.to_nic().to_owned());
        (ends, packet.reason().to_owned(), packet.summary().to_owned())
    });
    let expected = lines.iter().map(|(from, to, reason, link, packet)| {
        let ends = (from.id.to_owned(), from.vni, (*to).to_owned());
        (ends, (*reason).to_owned(), format!("{link}, {packet}, 43 bytes"))
    });
    assert_eq!(seen.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let replies: Vec<_> = packets.iter().map(|packet| packet.reply).collect();
    assert_eq!(replies[..2], [Some(false), Some(true)]);
    // The client's own trace, of the receiver alone.
    std::thread::scope(|scope| {
        let daemon = joined.net.host.daemon();
        let words = ["trace", "b", "udp", "port", "53", "--count", "1", "--seconds", "20"];
        let trace = scope.spawn(move || daemon.client_ok(&words));
        let station = joined.net.stations.get_mut("a").unwrap();
        while !trace.is_finished() {
            station.send(&routed(A, B, ask)[0]);
            std::thread::sleep(Duration::from_millis(20));
        }
        let line = trace.join().unwrap();
        let packet = format!("{}, udp 10.42.0.10:1000 > 10.50.0.11:53", link(router(), B.mac()));
        for words in [" a -> b vni 42 | ", &packet, "delivered", "rule web: in udp 53"] {
            assert!(line.contains(words), "{words} is not in: {line}");
        }
    });

    // And what was: one session, of both vnics and of the smaller network.
    let session = joined.session();
    assert_eq!((&session["vni"], &session["state"]), (&42.into(), &"answered".into()));
    for (end, machine, port) in [("opener", A, 1000), ("responder", B, 53)] {
        let wanted = serde_json::json!({
            "nic_id": machine.id, "address": machine.address(), "port": port, "outside": null
        });
        assert_eq!(session[end], wanted);
    }
    assert_eq!(session["ingress"]["security_group"], "web");
    assert!(session["opener_packets"].as_u64() > session["responder_packets"].as_u64());
    for words in ["sessions a", "sessions b", "sessions --vni 42"] {
        assert_eq!(joined.client(&format!("{words} --count")).trim(), "1", "{words}");
    }
    let page = joined.client("sessions");
    let row = page.lines().find(|line| line.contains("answered")).unwrap_or_default();
    assert!(row.starts_with("42 "), "{page}");
    assert!(row.contains("a 10.42.0.10:1000  b 10.50.0.11:53"), "{page}");
    let page = joined.client("drops");
    let packet = format!("vni 42: {}, {}, 43 bytes", lines[3].3, lines[3].4);
    assert!(page.contains("no-route") && page.contains(&packet), "{page}");
    let packet = format!("{}, {}, 43 bytes", lines[2].3, lines[2].4);
    assert!(page.contains("ingress-denied") && page.contains(&packet), "{page}");
    assert!(page.starts_with("drops of the whole host: 2 frames"), "{page}");
}

/// Guests that speak as the gateway, or ask it without end, are named, and a neighbour's routed
/// traffic loses nothing.
#[test]
fn nobody_speaks_as_the_gateway_or_wears_it_out() {
    let Some(mut joined) = Joined::new() else { return };
    let villain = Machine { id: "villain", last: 66, vni: 42 };
    let filtered = Machine { id: "filtered", last: 67, vni: 42 };
    joined.attach(&C.open());
    joined.attach(&villain.open());
    joined.attach(&filtered.filtered(&[]));
    let host_address = Mac([0xb2, 0xf1, 10, 0, 0, 1]);
    for source in [router(), host_address] {
        for to in [C.mac(), Mac::BROADCAST, router(), A.mac()] {
            let link = build::ethernet(source, to);
            for frame in [
                link.clone().ipv4(villain.ip(), C.ip()).udp(1, 2, b"x"),
                link.arp_reply(C.gateway(), C.ip()),
                link.payload(0x88b5, &[0; 46]),
            ] {
                joined.drops(villain, &frame, "villain.router-mac");
                joined.drops(filtered, &frame, "filtered.spoofed-mac");
            }
        }
    }
    for machine in [villain, filtered] {
        for to in [C.mac(), A.mac(), Mac::BROADCAST, router()] {
            let link = build::ethernet(machine.mac(), to);
            for frame in [
                link.arp_reply(C.gateway(), C.ip()),
                link.arp_request(C.gateway(), C.gateway()),
                link.arp_request(C.gateway(), C.ip()),
            ] {
                joined.drops(machine, &frame, &format!("{}.gateway-claimed", machine.id));
            }
        }
    }
    // Nothing of it was learnt.
    let learnt = joined.net.host.learnt(42);
    assert!(!learnt.contains_key(&router().to_string()), "{learnt:?}");

    // Both flood the gateway with questions while a's traffic passes.
    let Joined { net: Net { host, mut stations, .. }, .. } = joined;
    let mut of = |id: &str| stations.remove(id).unwrap();
    let (mut a, mut b, mut c) = (of("a"), of("b"), of("c"));
    let mut floods = [(villain, of("villain")), (filtered, of("filtered"))];
    let (ended, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let ending = Ending(&ended);
        let flow = scope.spawn(|| flow(&mut a, &mut b, &ended, &sent));
        let floods: Vec<_> = floods
            .iter_mut()
            .map(|(machine, station)| scope.spawn(|| flood(*machine, station, &ended)))
            .collect();
        // A neighbour that asks once a moment is answered.
        for _ in 0..20 {
            let ask = build::ethernet(C.mac(), Mac::BROADCAST).arp_request(C.ip(), C.gateway());
            c.send(&ask);
            c.expect(&build::ethernet(router(), C.mac()).arp_reply(C.gateway(), C.ip()));
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(ending);
        let arrived = flow.join().unwrap();
        assert_eq!(arrived.len() as u64, sent.load(Relaxed));
        assert!(arrived.len() > 1000, "{}", arrived.len());
        let floods = floods.into_iter().map(|flood| flood.join().unwrap());
        // A hundred at once, and a hundred as each second of the clock begins.
        let most = 100 + 100 * begun.elapsed().as_millis().div_ceil(1000) as u64;
        for ((asked, answers), id) in floods.zip(["villain", "filtered"]) {
            let full = host.show(id).drops("born-full");
            assert_eq!(answers + full, asked, "{id}: {:?}", host.show(id).dropped());
            println!("{id}: {asked} asked, {answers} answers of at most {most}");
            assert!((200..=most).contains(&answers), "{id}: {answers} answers, most {most}");
            assert!(full > 1000, "{id}: {full} of {asked}");
        }
    });
    for id in ["a", "b", "c"] {
        let show = host.show(id);
        assert!(show.dropped().is_empty(), "{id}: {:?}", show.dropped());
    }
}

/// Asks for its gateway without end. Returns the numbers of questions and of answers.
fn flood(machine: Machine, station: &mut Station, ended: &AtomicBool) -> (u64, u64) {
    let link = build::ethernet(machine.mac(), Mac::BROADCAST);
    let ask = link.arp_request(machine.ip(), machine.gateway());
    let answer =
        build::ethernet(router(), machine.mac()).arp_reply(machine.gateway(), machine.ip());
    let (mut asked, mut answers) = (0, 0);
    let mut take = |station: &mut Station| {
        for frame in station.pending() {
            assert_eq!(frame, answer);
            answers += 1;
        }
    };
    while !ended.load(Relaxed) {
        for _ in 0..64 {
            station.send(&ask);
            asked += 1;
        }
        take(station);
    }
    assert!(station.vm.guest.drain(PATIENCE).unwrap());
    // The last answer may come a little later than its question is done with.
    std::thread::sleep(Duration::from_millis(100));
    take(station);
    (asked, answers)
}
