//! `butterfly drops` shows the real drops: the vnic, the count, the packet and the remedy.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use butterfly_guest_driver::{GuestConfig, Refill};
use butterfly_packet::{build, mac::Mac, tcp};
use butterfly_tests::{
    eventually,
    frames::mac,
    net::{Net, VNI, filtered, open, segment, v4},
    programs::program,
    station::{features, machine},
};
use butterfly_vhost::net::Features;
use serde_json::Value;

const A: u8 = 1;
const B: u8 = 2;
/// A vnic without a guest.
const EMPTY: u8 = 3;
/// A vnic whose guest offers four buffers.
const SLOW: u8 = 4;
/// A vnic whose guest has small buffers.
const SMALL: u8 = 5;

/// A drop that `butterfly drops` must show.
struct Told {
    nic: &'static str,
    reason: &'static str,
    count: u64,
    packet: String,
    /// A part of the remedy.
    remedy: &'static str,
}

/// Returns vnics a and b, and others that receive frames or drop them.
fn net() -> Option<Net> {
    let mut net = Net::new(&[open("a", A), filtered("b", B, "web")])?;
    net.group("web", &["in tcp 80-80 10.0.0.0/24"], &[]);
    net.host.add(&open("empty", EMPTY)).unwrap();
    let mut slow = machine(features::MODERN, 1600);
    slow.guest = GuestConfig { refill: Refill::Manually, rx_fill: Some(4), ..slow.guest };
    let small = machine(features::MODERN.without(Features::MRG_RXBUF), 300);
    for (nic, config) in [(open("slow", SLOW), slow), (open("small", SMALL), small)] {
        let station = net.host.station(&nic, &config);
        net.stations.insert(nic.id, station);
    }
    Some(net)
}

/// Sends frames that are dropped for all kinds of reasons. Returns the expected drops.
fn drop_everything(net: &mut Net) -> Vec<Told> {
    let link = |from: u8, to: u8| format!("vni {VNI}: {} > {}, ", mac(from.into()), mac(to.into()));
    let mut told = Vec::new();
    let mut send = |from: &str, frame: &[u8], n: u64, nic, reason, packet: String, remedy| {
        for _ in 0..n {
            net.station(from).send(frame);
        }
        net.received(from);
        told.push(Told {
            nic,
            reason,
            count: n,
            packet: format!("{packet}, {} bytes", frame.len()),
            remedy,
        });
    };
    let raw = |from: Mac, to: u8, len: usize| {
        build::ethernet(from, mac(to.into())).payload(0x88b5, &vec![7; len])
    };
    send(
        "a",
        &v4(A, B).tcp(&segment((4000, 443), tcp::SYN, 1, 0), b""),
        3,
        "b",
        "ingress-denied",
        link(A, B) + "tcp 10.0.0.1:4000 > 10.0.0.2:443 SYN",
        "one of its groups (web): `butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32`",
    );
    send(
        "b",
        &raw(mac(77), A, 50),
        1,
        "b",
        "spoofed-mac",
        format!("vni {VNI}: {} > {}, type 0x88b5", mac(77), mac(A.into())),
        "`butterfly nic show b`",
    );
    send(
        "b",
        &build::ethernet(mac(B.into()), mac(A.into()))
            .ipv4([10, 0, 0, 99], [10, 0, 0, A])
            .udp(53, 5353, b"spoof"),
        2,
        "b",
        "spoofed-ip",
        link(B, A) + "udp 10.0.0.99:53 > 10.0.0.1:5353",
        "`butterfly nic update --id b --ip ADDRESS..`",
    );
    send(
        "b",
        &v4(B, A).tcp(&segment((80, 4001), tcp::ACK, 9, 9), b"late"),
        1,
        "b",
        "tcp-no-session",
        link(B, A) + "tcp 10.0.0.2:80 > 10.0.0.1:4001 ACK",
        "open the connection anew",
    );
    send(
        "a",
        &raw(mac(A.into()), EMPTY, 60),
        5,
        "empty",
        "not-attached",
        link(A, EMPTY) + "type 0x88b5",
        "`butterfly nic show empty`",
    );
    send(
        "a",
        &raw(mac(B.into()), SMALL, 60),
        1,
        "a",
        "mac-claimed",
        link(B, SMALL) + "type 0x88b5",
        "`butterfly fdb 1`",
    );
    let stacked = build::ethernet(mac(A.into()), mac(B.into()))
        .vlan(7)
        .vlan(8)
        .ipv4([10, 0, 0, A], [10, 0, 0, B]);
    send(
        "a",
        &stacked.udp(1, 2, b"hidden"),
        1,
        "a",
        "ip-hidden",
        link(A, B) + "vlan 7, vlan 8, udp 10.0.0.1:1 > 10.0.0.2:2",
        "one VLAN tag at most",
    );
    send(
        "a",
        &raw(mac(A.into()), SMALL, 900),
        2,
        "small",
        "rx-too-large",
        link(A, SMALL) + "type 0x88b5",
        "`mrg_rxbuf=on`",
    );
    send(
        "a",
        &build::ethernet(mac(A.into()), Mac([1, 0x80, 0xc2, 0, 0, 0]))
            .payload(0x88cc, b"neighbours"),
        1,
        "a",
        "link-local-group",
        format!("vni {VNI}: {} > 01:80:c2:00:00:00, lldp", mac(A.into())),
        "nothing",
    );
    // The guest has four buffers.
    send(
        "a",
        &raw(mac(A.into()), SLOW, 100),
        10,
        "slow",
        "ring-full",
        link(A, SLOW) + "type 0x88b5",
        "`rx_queue_size=1024`",
    );
    if let Some(last) = told.last_mut() {
        last.count -= 4;
    }
    told
}

fn client(net: &Net, line: &str) -> String {
    net.host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>())
}

fn drops(net: &Net, line: &str) -> Value {
    let text = client(net, line);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// Returns every row of an answer with its vnic.
fn rows(found: &Value) -> Vec<(&str, &Value)> {
    let places = found["places"].as_array().unwrap();
    let rows = |place: &'_ Value| place["drops"].as_array().unwrap().len();
    let mut all = Vec::new();
    for place in places {
        let name = place["nic_id"].as_str().unwrap_or_else(|| place["kind"].as_str().unwrap());
        all.extend((0..rows(place)).map(|n| (name, &place["drops"][n])));
    }
    all
}

#[test]
fn every_drop_is_told_with_its_packet_and_what_to_do() {
    let Some(mut net) = net() else { return };
    assert_eq!(client(&net, "drops"), "drops of the whole host: none\n");
    let told = drop_everything(&mut net);
    // In the first tenth of a second there is no rate yet.
    eventually("there is a rate", || drops(&net, "drops --json")["rate_window_ms"] != 0);
    let found = drops(&net, "drops --json");
    let all = rows(&found);
    for want in &told {
        let of = all.iter().find(|(nic, row)| *nic == want.nic && row["reason"] == want.reason);
        let (_, row) =
            of.unwrap_or_else(|| panic!("no {} of {} in {found:#}", want.reason, want.nic));
        assert_eq!(row["count"], want.count, "{}", want.reason);
        assert_eq!(row["last_packet"], want.packet.as_str(), "{}", want.reason);
        assert!(row["last_age_ms"].as_u64().unwrap() < 60_000, "{row}");
        assert!(row["rate"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["remedy"].as_str().unwrap().contains(want.remedy), "{row}");
        assert_eq!(net.host.show(want.nic).drops(want.reason), want.count, "{}", want.reason);
    }
    assert_eq!(all.len(), told.len(), "nothing else was dropped: {found:#}");
    assert_eq!(found["total"], told.iter().map(|drop| drop.count).sum::<u64>());
    assert!(
        found["places"]
            .as_array()
            .unwrap()
            .iter()
            .all(|place| place["kind"] == "nic" && place["vni"] == VNI)
    );

    // The drops of one vnic, as JSON and as text.
    let of_b = drops(&net, "drops b --json");
    assert_eq!(rows(&of_b).len(), told.iter().filter(|drop| drop.nic == "b").count());
    let page = client(&net, "drops b");
    for want in told.iter().filter(|drop| drop.nic == "b") {
        for words in [want.reason, &want.packet, want.remedy] {
            assert!(page.contains(words), "{words} is not in:\n{page}");
        }
        // `--explain` prints the same remedy, with placeholders for names and values of the packet.
        let section = client(&net, &format!("drops --explain {}", want.reason));
        let general = want.remedy.replace("(web)", "(`butterfly nic sg list NIC`)").replace(
            "sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32",
            "sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32",
        );
        assert!(
            section.contains(&general.replace(" b`", " NIC`").replace(" b ", " NIC ")),
            "{section}"
        );
    }
    let unknown = net.host.daemon().client(&["drops", "nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("NIC does not exist with id nobody"));

    // The host's sum keeps the drops of a removed vnic.
    net.stations.remove("slow");
    net.host.remove("slow");
    let after = drops(&net, "drops --json");
    assert_eq!(after["total"], found["total"]);
    let gone: Vec<_> = rows(&after)
        .into_iter()
        .filter(|(name, _)| *name == "gone")
        .map(|(_, row)| row.clone())
        .collect();
    assert_eq!(gone.len(), 1, "{after:#}");
    assert_eq!(
        (&gone[0]["reason"], &gone[0]["count"], &gone[0]["rate"]),
        (&"ring-full".into(), &6.into(), &Value::Null)
    );
    assert!(client(&net, "drops").contains("\nvnics and networks that are gone\n  ring-full"));
}

/// `--watch` prints a line per second with the drops since the line before, until an interrupt.
#[test]
fn drops_are_watched_while_they_come() {
    let Some(mut net) = net() else { return };
    let frame = build::ethernet(mac(A.into()), mac(EMPTY.into())).payload(0x88b5, &[1; 60]);
    // A shell that runs tests in the background makes them and their children ignore Ctrl-C.
    let mut watch = Command::new("env")
        .arg("--default-signal=INT")
        .arg(program("butterfly"))
        .args(["drops", "empty", "--watch", "--json", "-e", net.host.daemon().endpoint()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["places"].as_array().map(Vec::len), Some(0));
    (0..30).for_each(|_| net.station("a").send(&frame));
    net.received("a");
    let mut second = next();
    eventually("the drops are told", || {
        let told = second["total"] == 30;
        if !told {
            second = next();
        }
        told
    });
    let row = &second["places"][0]["drops"][0];
    let window = second["rate_window_ms"].as_f64().unwrap();
    assert_eq!(row["rate"].as_f64().unwrap(), 30.0 * 1000.0 / window, "{second}");
    assert!((500.0..10_000.0).contains(&window), "{second}");
    // Without new drops the line has none.
    let third = next();
    assert_eq!(
        (&third["total"], &third["places"][0]["drops"][0]["rate"]),
        (&30.into(), &0.0.into())
    );
    Command::new("kill").args(["-INT", &watch.id().to_string()]).status().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&watch.wait().unwrap()), Some(2));
}
