//! Explain, trace, capture, drops, metrics and events report of every packet what the guests saw.
//!
//! Each packet has a number, its source port. The test knows the expected outcome of each, and
//! compares the reports with what the guests received.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use butterfly_api::proto::{TraceTarget, TracedPacket, traced_packet::Verdict};
use butterfly_guest_driver::{GuestConfig, Refill};
use butterfly_packet::{Mac, build};
use butterfly_tests::{
    Daemon, eventually,
    frames::{Choices, mac},
    groups,
    metrics::Scrape,
    net::{Net, filtered, open},
    station::{features, machine},
};
use serde_json::Value;

use crate::tap::{begin_capture, begin_trace, end_capture, end_trace, tshark};

const A: u8 = 1;
const B: u8 = 2;
/// A filtered vnic that sends with a source address that it does not own.
const C: u8 = 3;
/// A vnic without filter that receives floods only.
const D: u8 = 4;
/// A vnic whose guest offers few buffers and refills none.
const SLOW: u8 = 5;
/// Number of an address that no vnic has.
const NOBODY: u8 = 77;
const BUFFERS: usize = 8;
const PACKETS: u16 = 400;
const FIRST: u16 = 10_000;
const RULE: &str = "web: in udp 53 from 10.0.0.0/24";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Admitted,
    Denied,
    Spoofed,
    TooLate,
    Unknown,
    Broadcast,
}

const KINDS: [Kind; 6] =
    [Kind::Admitted, Kind::Denied, Kind::Spoofed, Kind::TooLate, Kind::Unknown, Kind::Broadcast];

impl Kind {
    fn sender(self) -> &'static str {
        if self == Kind::Spoofed { "c" } else { "a" }
    }

    fn frame(self, number: u16) -> Vec<u8> {
        let (from, to) = match self {
            Kind::Admitted | Kind::Denied => (A, B),
            Kind::Spoofed => (C, B),
            Kind::TooLate => (A, SLOW),
            Kind::Unknown | Kind::Broadcast => (A, NOBODY),
        };
        let destination = if self == Kind::Broadcast { Mac::BROADCAST } else { mac(to.into()) };
        let link = build::ethernet(mac(from.into()), destination);
        let source = if self == Kind::Spoofed { 99 } else { from };
        let to = if self == Kind::Broadcast { [255; 4] } else { [10, 0, 0, to] };
        link.ipv4([10, 0, 0, source], to).udp(
            number,
            if self == Kind::Denied { 54 } else { 53 },
            &number.to_be_bytes(),
        )
    }

    /// Options of `butterfly explain` for this kind of packet.
    fn question(self) -> &'static str {
        match self {
            Kind::Admitted => "--from a --to b --proto udp --port 53",
            Kind::Denied => "--from a --to b --proto udp --port 54",
            Kind::Spoofed => "--from c --to b --proto udp --port 53 --src 10.0.0.99",
            Kind::TooLate => "--from a --to slow --proto udp --port 53",
            Kind::Unknown => {
                "--from a --to 10.0.0.77 --mac 02:b0:00:00:00:4d --proto udp --port 53"
            }
            Kind::Broadcast => "--from a --to 255.255.255.255 --proto udp --port 53",
        }
    }

    /// Vnics that drop the packet, with their reasons, if the vnics `got` received it.
    fn drops(self, got: &BTreeSet<&'static str>) -> BTreeSet<(&'static str, &'static str)> {
        let full = (!got.contains("slow")).then_some(("slow", "ring-full"));
        match self {
            Kind::Admitted => BTreeSet::new(),
            Kind::Denied => [("b", "ingress-denied")].into(),
            Kind::Spoofed => [("c", "spoofed-ip")].into(),
            Kind::TooLate | Kind::Unknown => full.into_iter().collect(),
            Kind::Broadcast => full.into_iter().chain([("c", "ingress-denied")]).collect(),
        }
    }

    /// Vnics that receive the packet, without the slow one.
    fn receivers(self) -> BTreeSet<&'static str> {
        match self {
            Kind::Admitted => ["b"].into(),
            Kind::Denied | Kind::Spoofed | Kind::TooLate => BTreeSet::new(),
            Kind::Unknown => ["d"].into(),
            Kind::Broadcast => ["b", "d"].into(),
        }
    }
}

/// True outcome of a packet.
struct Truth {
    kind: Kind,
    got: BTreeSet<&'static str>,
    drops: BTreeSet<(&'static str, &'static str)>,
}

type Story = BTreeMap<u16, Truth>;

fn net() -> Option<Net> {
    let nics = [
        filtered("a", A, "clients"),
        filtered("b", B, "web"),
        filtered("c", C, "clients"),
        open("d", D),
    ];
    let mut net = Net::with(&["--metrics", "127.0.0.1:0"], &nics)?;
    net.group("web", &["in udp 53 10.0.0.0/24"], &[]);
    let mut slow = machine(features::MODERN, 1600);
    slow.guest = GuestConfig { refill: Refill::Manually, rx_fill: Some(BUFFERS), ..slow.guest };
    let station = net.host.station(&open("slow", SLOW), &slow);
    net.stations.insert("slow".to_owned(), station);
    Some(net)
}

/// Sends all packets and collects what the guests received.
fn tell(net: &mut Net) -> Story {
    let mut choices = Choices::new(5);
    let mut kinds: Vec<Kind> = (0..PACKETS).map(|_| choices.one(&KINDS)).collect();
    // All spoofed packets come together at the end, as an event covers ten seconds.
    kinds.sort_by_key(|kind| *kind == Kind::Spoofed);
    let mut story: Story = BTreeMap::new();
    for (number, kind) in (FIRST..).zip(kinds) {
        net.station(kind.sender()).send(&kind.frame(number));
        story.insert(number, Truth { kind, got: BTreeSet::new(), drops: BTreeSet::new() });
        if number % 16 == 0 {
            // Empty the other receivers' rings in time, so that only one is too slow.
            listen(net, &mut story, &["b", "d"]);
        }
    }
    listen(net, &mut story, &["a", "b", "c", "d", "slow"]);
    for truth in story.values_mut() {
        truth.drops = truth.kind.drops(&truth.got);
        let mut others = truth.got.clone();
        others.remove("slow");
        assert_eq!(others, truth.kind.receivers(), "{:?}", truth.kind);
    }
    assert_eq!(
        story.values().filter(|truth| truth.got.contains("slow")).count(),
        BUFFERS,
        "it had no more buffers"
    );
    assert_eq!(story.values().map(|truth| truth.kind).collect::<BTreeSet<_>>().len(), KINDS.len());
    story
}

/// Takes the frames that these guests received, which must be as they were sent.
fn listen(net: &mut Net, story: &mut Story, who: &[&'static str]) {
    let mut senders: Vec<_> = net
        .stations
        .iter_mut()
        .filter(|(id, _)| ["a", "c"].contains(&id.as_str()))
        .map(|(_, station)| station)
        .collect();
    net.host.settle(&mut senders);
    for id in who {
        for frame in net.station(id).pending() {
            let number = u16::from_be_bytes([frame[34], frame[35]]);
            let truth = story.get_mut(&number).unwrap_or_else(|| panic!("nobody sent {number}"));
            assert!(truth.kind.frame(number) == frame, "{id} got {number} changed");
            assert!(truth.got.insert(id), "{id} got {number} again");
        }
    }
}

/// Checks that the trace has each packet once, with its outcome.
fn trace_agrees(packets: &[TracedPacket], story: &Story) {
    let mut seen = BTreeSet::new();
    for packet in packets {
        // ..., udp 10.0.0.1:10000 > 10.0.0.2:53, 44 bytes
        let port = packet.summary().split(" > ").nth(1).and_then(|text| text.rsplit(':').next());
        let number: u16 =
            port.unwrap_or_default().parse().unwrap_or_else(|_| panic!("{}", packet.summary()));
        let truth = &story[&number];
        assert!(seen.insert(number), "{number} is told twice");
        let frame = truth.kind.frame(number);
        assert_eq!((packet.from_nic(), packet.length()), (truth.kind.sender(), frame.len() as u32));
        let charged = format!("nic {}", truth.drops.first().map_or("", |(nic, _)| nic));
        let reason = truth.drops.first().map_or("", |(_, reason)| reason);
        let (rule, tried): (&[&str], &[&str]) = match (truth.kind, reason) {
            (Kind::Admitted, _) => (&[RULE], &[]),
            (_, "ingress-denied") if truth.kind == Kind::Denied => (&[], &["web"]),
            _ => (&[], &[]),
        };
        assert_eq!(
            (&packet.rule[..], &packet.tried[..]),
            (&strings(rule)[..], &strings(tried)[..]),
            "{:?}",
            truth.kind
        );
        match packet.verdict.unwrap().unwrap() {
            Verdict::DELIVERED => {
                assert_eq!(
                    (BTreeSet::from([packet.to_nic()]), truth.drops.len()),
                    (truth.got.clone(), 0)
                );
            }
            Verdict::DROPPED => assert_eq!(
                (packet.reason(), packet.charged(), truth.got.len()),
                (reason, charged.as_str(), 0)
            ),
            Verdict::FLOODED => {
                assert!(matches!(truth.kind, Kind::Unknown | Kind::Broadcast), "{:?}", truth.kind);
                let told = (packet.flooded_nics(), packet.flooded_hosts(), packet.refused());
                assert_eq!(
                    told,
                    (truth.got.len() as u32, 0, truth.drops.len() as u32),
                    "{:?}",
                    truth.kind
                );
                assert!(
                    truth.drops.iter().any(|(_, reason)| *reason == packet.reason())
                        || truth.drops.is_empty()
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen.len(), story.len());
}

fn strings(of: &[&str]) -> Vec<String> {
    of.iter().map(|text| (*text).to_owned()).collect()
}

/// Checks the same in the packet comments of the capture, as tshark reads them.
fn capture_agrees(rows: &[Vec<String>], story: &Story) {
    let mut seen = BTreeSet::new();
    for row in rows {
        let [port, payload, comment] = &row[..] else { panic!("{row:?}") };
        let number: u16 = port.parse().unwrap();
        let truth = &story[&number];
        assert!(seen.insert(number), "{number} is there twice");
        assert_eq!(*payload, format!("{number:04x}"));
        let drop = truth
            .drops
            .first()
            .map(|(nic, reason)| format!("dropped: {reason}, charged to nic {nic}"));
        let expected = match (truth.kind, drop) {
            (Kind::Admitted, _) => format!("delivered to nic b; rule {RULE}"),
            (Kind::Unknown | Kind::Broadcast, _) => {
                let start = format!("flooded to {} nics and 0 hosts", truth.got.len());
                let reason = comment.rsplit(' ').next().unwrap_or_default();
                match truth.drops.len() {
                    0 => start,
                    n => {
                        assert!(
                            truth.drops.iter().any(|(_, dropped)| *dropped == reason),
                            "{comment}"
                        );
                        format!("{start}, {n} copies dropped: {reason}")
                    }
                }
            }
            (Kind::TooLate, None) => "delivered to nic slow".to_owned(),
            (_, drop) => drop.unwrap_or_default(),
        };
        assert_eq!(*comment, expected, "{:?}", truth.kind);
    }
    assert_eq!(seen.len(), story.len());
}

/// Counts the drops by vnic and reason.
fn counted(story: &Story) -> BTreeMap<(String, String), u64> {
    let mut all = BTreeMap::new();
    for (nic, reason) in story.values().flat_map(|truth| &truth.drops) {
        *all.entry(((*nic).to_owned(), (*reason).to_owned())).or_default() += 1;
    }
    all
}

fn json(daemon: &Daemon, line: &str) -> Value {
    let text = daemon.client(&line.split(' ').collect::<Vec<_>>()).stdout;
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Checks every count of drops, and that the last packet of each reason is one of that reason.
fn drops_agree(daemon: &Daemon, story: &Story) {
    let told = json(daemon, "drops --json");
    let mut all = BTreeMap::new();
    for place in told["places"].as_array().unwrap() {
        for row in place["drops"].as_array().unwrap() {
            let (nic, reason) =
                (place["nic_id"].as_str().unwrap(), row["reason"].as_str().unwrap());
            // Of many drops in a tenth of a second, the daemon keeps the first packet.
            let packet = row["last_packet"].as_str().unwrap();
            let told = story.iter().filter(|(_, truth)| truth.drops.contains(&(nic, reason)));
            assert_eq!(
                told.filter(|(number, _)| packet.contains(&format!(":{number} > "))).count(),
                1,
                "{row}"
            );
            all.insert((nic.to_owned(), reason.to_owned()), row["count"].as_u64().unwrap());
        }
    }
    assert_eq!(all, counted(story));
    assert_eq!(told["total"].as_u64(), Some(counted(story).values().sum()));
}

fn metrics_agree(daemon: &Daemon, story: &Story) {
    let total = story.len() as u64;
    // The daemon reuses a page for some milliseconds.
    eventually("the page is of now", || {
        Scrape::of(daemon).of_workers("packets_total", "") == total
    });
    let scrape = Scrape::of(daemon);
    for nic in ["a", "b", "c", "d", "slow"] {
        let of = |metric: &str| {
            scrape.count(&format!("butterfly_nic_{metric}_total{{nic=\"{nic}\",vni=\"1\"}}"))
        };
        let sent = story.values().filter(|truth| truth.kind.sender() == nic).count();
        let got = story.values().filter(|truth| truth.got.contains(nic)).count();
        assert_eq!((of("in_packets"), of("out_packets")), (sent as u64, got as u64), "{nic}");
    }
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, reason), count) in counted(story) {
        *reasons.entry(format!("{reason}\"}}")).or_default() += count;
    }
    let told = scrape.starting("butterfly_drops_total{reason=\"").filter(|(_, count)| *count > 0.0);
    assert_eq!(
        told.map(|(reason, count)| (reason.to_owned(), count as u64)).collect::<BTreeMap<_, _>>(),
        reasons
    );
    let count = |kind: Kind| story.values().filter(|truth| truth.kind == kind).count() as u64;
    let admitted = count(Kind::Admitted);
    // The filter also admitted the packets for the slow vnic: its ring comes after the filter.
    assert_eq!(scrape.count("butterfly_session_table_used"), admitted + count(Kind::TooLate));
    assert_eq!(daemon.rule_stats("web"), [(groups::rule("in udp 53 10.0.0.0/24"), admitted)]);
}

/// Checks that events name the vnic that sent spoofed frames, and their number.
fn events_agree(daemon: &Daemon, story: &Story) {
    let spoofed = counted(story)[&("c".to_owned(), "spoofed-ip".to_owned())];
    let told = || {
        let text = daemon.client_ok(&["events", "--since", "0", "--json"]);
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events = events.filter(|event| event["kind"] == "spoofed-ip");
        let of = |event: &Value| {
            assert_eq!(event["nic_id"], "c", "{event}");
            event["text"].as_str().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        events.map(|event| of(&event)).sum::<u64>()
    };
    eventually("all are told", || told() == spoofed);
}

/// Checks the explanation of one more packet of each kind, with its rule. The slow guest's ring is
/// full now.
fn explain_agrees(daemon: &Daemon, story: &Story) {
    for kind in KINDS {
        let answer = json(daemon, &format!("explain --json {}", kind.question()));
        let walk = &answer["hosts"][0]["walks"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let got: BTreeSet<String> = walk["nics"].as_array().unwrap().iter().map(text).collect();
        let drops = walk["drops"]
            .as_array()
            .unwrap()
            .iter()
            .map(|drop| (text(&drop["nic_id"]), text(&drop["reason"])));
        let last = story
            .values()
            .rfind(|truth| truth.kind == kind && !truth.got.contains("slow"))
            .unwrap();
        let owned = |(nic, reason): &(&str, &str)| ((*nic).to_owned(), (*reason).to_owned());
        assert_eq!(
            got,
            last.got.iter().map(|nic| (*nic).to_owned()).collect(),
            "{kind:?}: {walk:#}"
        );
        assert_eq!(
            drops.collect::<BTreeSet<_>>(),
            last.drops.iter().map(owned).collect(),
            "{kind:?}: {walk:#}"
        );
        let step = walk["steps"].as_array().unwrap().iter().find(|step| step["stage"] == "ingress");
        match kind {
            Kind::Admitted => {
                assert_eq!(walk["ingress"]["security_group"], "web");
                assert_eq!(
                    step.unwrap()["text"],
                    "b may get it by group web: udp 53 from 10.0.0.0/24"
                );
            }
            Kind::Denied => assert_eq!(
                step.unwrap()["details"][1],
                "  fits but for its ports: udp 53 from 10.0.0.0/24"
            ),
            _ => {}
        }
    }
}

#[test]
fn all_tell_the_same_story() {
    let Some(mut net) = net() else { return };
    let daemon = net.host.daemon();
    let file = net.host.dir().join("all.pcapng");
    let trace = begin_trace(daemon, TraceTarget::default(), "");
    let capture = begin_capture(daemon, TraceTarget::default());
    let story = tell(&mut net);
    let daemon = net.host.daemon();
    let told = end_trace(daemon, trace);
    assert_eq!((told.lost(), told.suppressed(), told.seen()), (0, 0, story.len() as u64));
    trace_agrees(&told.packet, &story);
    let (data, packets, lost) = end_capture(daemon, capture);
    assert_eq!((packets, lost), (story.len() as u64, 0));
    fs::write(&file, data).unwrap();
    capture_agrees(&tshark(&file, &["udp.srcport", "udp.payload", "frame.comment"]), &story);
    drops_agree(daemon, &story);
    metrics_agree(daemon, &story);
    events_agree(daemon, &story);
    explain_agrees(daemon, &story);
}
