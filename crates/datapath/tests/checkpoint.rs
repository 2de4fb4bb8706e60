//! Crashes: a second host goes on with what a first one noted.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use butterfly_datapath::{
    Former, GroupChange, Mac, Noted, Observation, Role, SessionConfig, Switch, SwitchConfig,
    TakenOver, TunnelConfig, TunnelSpec, UplinkSpec, VnicPolicy, harness::Host,
};
use butterfly_mem::halves::HalvesFile;
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{build, tcp::SYN};
use butterfly_vhost::net::NetHeader;
use proptest::prelude::*;
use serde_json::{Value, json};

const ROOM: usize = 16 << 20;
const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
/// A machine on another host.
const FAR: Mac = Mac([2, 0, 0, 0, 0, 0xf]);
const OTHER: [u8; 4] = [192, 168, 0, 2];

fn link_mac(n: u8) -> Mac {
    Mac([2, 0xbf, 0, 0, 0, n])
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn endpoint() -> TunnelConfig {
    TunnelConfig::new(IpAddr::from([192, 168, 0, 1]), link_mac(1))
}

fn sessions() -> SessionConfig {
    SessionConfig { capacity: 4096, ..SessionConfig::default() }
}

/// A host as it is declared: before its crash and after.
fn host() -> Host {
    let mut host = Host::with_tunnel(sessions(), Some(&endpoint())).unwrap();
    host.vnic("a", A, 42, &bypass()).unwrap();
    host.vnic("b", B, 42, &filtered()).unwrap();
    host.declare("other", A, 43, &bypass()).unwrap();
    host.declare_mirror("mirror", Mac([2, 0, 0, 0, 0, 0x1f]), 42, "a").unwrap();
    let name = GroupName::new("web").unwrap();
    let everywhere = Cidr::new("0.0.0.0", 0).unwrap();
    let ports = (Some(80), Some(80));
    let rule = Rule::new(Direction::Inbound, 6, ports, Some(everywhere), None).unwrap();
    let group = SecurityGroup::new(name.clone(), &[] as &[&str], [rule]).unwrap();
    host.change_group(&name, GroupChange::Declare(group)).unwrap();
    host
}

fn filtered() -> VnicPolicy {
    let groups = vec![GroupName::new("web").unwrap()];
    VnicPolicy { ips: vec![[10, 0, 0, 2].into()], groups, ..VnicPolicy::default() }
}

/// A frame of a network from another host.
fn outer(vni: u32, inner: &[u8]) -> Vec<u8> {
    let [_, b1, b2, b3] = vni.to_be_bytes();
    let mut vxlan = vec![8, 0, 0, 0, b1, b2, b3, 0];
    vxlan.extend_from_slice(inner);
    build::ethernet(link_mac(2), link_mac(1))
        .ipv4(OTHER, [192, 168, 0, 1])
        .udp(50_000, 4789, &vxlan)
}

fn plain(from: Mac, to: Mac) -> Vec<u8> {
    build::ethernet(from, to).payload(0x88b5, &[0; 46])
}

fn syn(port: u16) -> Vec<u8> {
    let tcp = build::Tcp::new(port, 80, SYN);
    build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(&tcp, &[])
}

fn send(host: &mut Host, frame: &[u8]) {
    host.send("a", frame, NetHeader::default()).unwrap();
    host.received().unwrap();
}

/// Traffic that moves all kinds of counters, and stations behind a vnic and another host.
fn traffic(host: &mut Host) {
    for n in 0..20 {
        send(host, &plain(Mac([6, 0, 0, 0, 0, n]), Mac::BROADCAST));
        send(host, &syn(1000 + u16::from(n)));
        host.arrive(&[outer(42, &plain(FAR, A)), outer(7, &plain(FAR, A))]).unwrap();
        send(host, &plain(A, FAR));
        send(host, &plain(A, B));
    }
    host.left().unwrap();
}

#[derive(Clone, Default)]
struct Texts([Vec<u8>; 3]);

impl Texts {
    fn of(host: &Host) -> Texts {
        let notes = [host.note_counters(ROOM), host.note_rules(ROOM), host.note_stations(ROOM)];
        assert!(notes.iter().all(|noted| noted.left_out == 0));
        Texts(notes.map(|noted| noted.text))
    }

    fn former(&self) -> Former<'_> {
        let Texts([counters, rules, stations]) = self;
        Former { counters, rules, stations }
    }

    fn stations(text: &Value) -> Texts {
        Texts([vec![], vec![], serde_json::to_vec(text).unwrap()])
    }
}

/// Every counter that monitoring tells, by name.
fn told(observed: &Observation) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut add = |name: String, (packets, bytes): (u64, u64)| {
        all.insert(format!("{name}.packets"), packets);
        all.insert(format!("{name}.bytes"), bytes);
    };
    for vnic in &observed.vnics {
        let of = |what: &str| format!("{}.{what}", vnic.id);
        add(of("in"), vnic.received);
        add(of("out"), vnic.delivered);
        add(of("announced"), (vnic.announced, vnic.attachments));
        add(of("flooded"), (vnic.flooded, vnic.learn_refused));
        vnic.drops.iter().for_each(|(reason, n)| add(of(reason), (*n, 0)));
    }
    for network in &observed.networks {
        let Some(tunnel) = &network.tunnel else { continue };
        let of = |what: &str| format!("{}.{what}", network.vni);
        add(of("in"), tunnel.received);
        add(of("out"), tunnel.sent);
        tunnel.drops.iter().for_each(|(reason, n)| add(of(reason), (*n, 0)));
    }
    observed.drops.iter().for_each(|(info, n)| add(format!("host.{}", info.name), (*n, 0)));
    observed.updates.iter().for_each(|(kind, n)| add(format!("update.{kind}"), (*n, 0)));
    all
}

fn take_over(host: &mut Host, texts: &Texts) -> TakenOver {
    host.take_over(texts.former()).unwrap()
}

#[test]
fn a_successor_goes_on_with_counters_and_stations() {
    let mut first = host();
    traffic(&mut first);
    let texts = Texts::of(&first);
    let mut second = host();
    let taken = take_over(&mut second, &texts);
    assert_eq!(taken.refused, BTreeMap::new(), "{taken}");
    assert_eq!((taken.vnics, taken.vnics_gone, taken.peers, taken.rules), (4, 0, 1, 1), "{taken}");
    assert_eq!(taken.stations, 21, "{taken}");
    let without_updates = |host: &Host| {
        let mut told = told(&host.observe());
        told.retain(|name, _| !name.starts_with("update."));
        told
    };
    assert_eq!(without_updates(&second), without_updates(&first));
    let learnt = |host: &Host| {
        let observed = host.observe();
        let vnics = observed.vnics.iter().map(|vnic| vnic.learnt);
        vnics.chain(observed.networks.iter().map(|network| network.learnt)).collect::<Vec<_>>()
    };
    assert_eq!(learnt(&second), learnt(&first));
    assert_eq!(second.note_rules(ROOM), first.note_rules(ROOM));
    assert_eq!(second.note_stations(ROOM), first.note_stations(ROOM));
    // A frame to a machine on the other host goes there and nowhere else; in a host that knows
    // nothing, everywhere.
    for (host, flooded) in [(&mut second, false), (&mut self::host(), true)] {
        host.set_peers(vec![], BTreeMap::new()).unwrap();
        host.moved();
        send(host, &plain(A, FAR));
        let left = host.left().unwrap();
        let to: BTreeSet<&[u8]> = left.iter().map(|frame| &frame[30..34]).collect();
        let expected: &[u8] = if flooded { &[230, 0, 0, 42] } else { &OTHER };
        assert_eq!(to, BTreeSet::from([expected]), "{:?}", host.moved());
        assert_eq!(host.moved().contains_key("a.flooded"), flooded);
    }
}

/// A named host that was sent to and never heard keeps its next hop: the first frame waits for no
/// answer.
#[test]
fn the_next_hop_of_a_silent_host_goes_on() {
    let mut first = host();
    traffic(&mut first);
    let good: Value = serde_json::from_slice(&first.note_stations(ROOM).text).unwrap();
    let hop = 0x0706_0504_0302u64;
    for (boot, expected) in [(good["boot"].clone(), true), (json!([1, 2]), false)] {
        let peer = json!({"address": IpAddr::from(OTHER), "vni": 42, "next_hop": hop,
            "counted": {"out-packets": 1}});
        let text = json!({"layout": 1, "boot": boot, "peers": [peer]});
        let mut second = host();
        second.set_peers(vec![IpAddr::from(OTHER)], BTreeMap::new()).unwrap();
        let bytes = serde_json::to_vec(&text).unwrap();
        take_over(&mut second, &Texts([bytes, vec![], vec![]]));
        second.moved();
        send(&mut second, &plain(A, FAR));
        let left = second.left().unwrap();
        let to: Vec<&[u8]> = left.iter().map(|frame| &frame[..6]).collect();
        let wanted: &[&[u8]] = if expected { &[&[2, 3, 4, 5, 6, 7]] } else { &[] };
        assert_eq!(to, wanted, "{:?}", second.moved());
    }
}

/// Rates and events are about what happens now.
#[test]
fn what_was_dropped_before_is_no_news() {
    let mut first = host();
    traffic(&mut first);
    let mut second = host();
    take_over(&mut second, &Texts::of(&first));
    let report = second.drop_report(None).unwrap();
    let rows: Vec<_> = report.places.iter().flat_map(|place| &place.rows).collect();
    assert!(rows.iter().any(|row| row.count >= 20));
    assert!(rows.iter().all(|row| row.recent.unwrap_or(0) == 0), "{rows:?}");
}

/// The sums of the host hold for vnics, networks and an uplink that are not declared any more.
#[test]
fn what_is_gone_counts_for_the_host() {
    let mut first = host();
    traffic(&mut first);
    let before = first.observe();
    let texts = Texts::of(&first);
    for tunnel in [None, Some(endpoint())] {
        let mut second = Host::with_tunnel(sessions(), tunnel.as_ref()).unwrap();
        // The same name in another network is another vnic.
        second.declare("a", A, 99, &bypass()).unwrap();
        let taken = take_over(&mut second, &texts);
        assert_eq!((taken.vnics, taken.vnics_gone, taken.stations), (0, 4, 0), "{taken}");
        let after = second.observe();
        assert_eq!(after.drops, before.drops);
        assert_eq!((after.vnics[0].received, after.vnics[0].drops.len()), ((0, 0), 0));
        // A third one still has them.
        let mut third = Host::with_tunnel(sessions(), tunnel.as_ref()).unwrap();
        take_over(&mut third, &Texts::of(&second));
        assert_eq!(third.observe().drops, before.drops);
    }
}

#[test]
fn names_of_another_release_are_told_and_left_out() {
    let mut host = host();
    let text = json!({
        "layout": 1,
        "vnics": [
            {"id": "a", "vni": 42, "counted": {"in-packets": 7, "in-wagons": 8}, "soul": [1]},
            {"id": "a", "vni": 42, "counted": {"in-packets": 7}},
            {"id": "b", "vni": 42, "dropped": {"bad-mood": 3, "short": 4}},
        ],
        "gone": {"dropped": {"short": u64::MAX}},
        "updates": {"nic-sold": 1},
        "workers": [{"packets": 5, "yawns": 6}, {"packets": 9}],
        "weather": "fine",
    });
    let texts = Texts([serde_json::to_vec(&text).unwrap(), vec![], vec![]]);
    let taken = take_over(&mut host, &texts);
    let refused = [("impossible count", 1), ("told twice", 1), ("unknown name", 4)];
    assert_eq!(taken.refused, BTreeMap::from(refused));
    assert_eq!(
        taken.to_string(),
        "counters of 2 vnics and of 0 that are gone, 0 learnt addresses, 0 hosts, 0 link-local addresses, admissions of 0 rules; not taken over: 1 (impossible count), 1 (told twice), 4 (unknown name); there is no counter \"in-wagons\" here; there is no drop reason \"bad-mood\" here; there is no kind of change \"nic-sold\" here; there is no counter of a worker \"yawns\" here"
    );
    let observed = host.observe();
    assert_eq!(observed.vnics[0].received, (7, 0));
    assert_eq!(observed.vnics[1].drops, [("short", 4)]);
}

#[test]
fn a_text_that_is_none_changes_nothing() {
    let deep = "[".repeat(1 << 20);
    for text in
        ["{", "{\"layout\": 2}", "[]", "{}", &deep, "{\"layout\": 1, \"vnics\": 5}", "\u{0}"]
    {
        let mut host = host();
        let before = told(&host.observe());
        let texts = Texts([text, text, text].map(|text| text.as_bytes().to_vec()));
        let taken = take_over(&mut host, &texts);
        assert!(!taken.problems.is_empty(), "{text:.20}: {taken}");
        assert_eq!((taken.vnics, taken.stations, taken.peers), (0, 0, 0));
        assert_eq!(told(&host.observe()), before);
    }
}

/// Each entry that could not have been learnt here and now is left out, with its reason.
#[test]
fn a_station_is_believed_only_if_it_could_be_learnt_now() {
    let mut first = host();
    traffic(&mut first);
    let good: Value = serde_json::from_slice(&first.note_stations(ROOM).text).unwrap();
    let now = first.now();
    let mac = 0x0706_0504_0302u64;
    let behind = |vnic: &str, vni: u32, seen: Value| json!({"layout": 1, "boot": good["boot"], "behind": [{"vnic": vnic, "vni": vni, "seen": seen}]});
    let peer = |address: &str, vni: u32, mac: u64, seen: u32| {
        json!({"layout": 1, "boot": good["boot"],
            "peers": [{"address": address, "vni": vni, "next_hop": mac, "seen": seen}]})
    };
    let far = |peer: &str| {
        json!({"layout": 1, "boot": good["boot"],
            "behind": [{"peer": peer, "vni": 42, "seen": [[mac, now]]}]})
    };
    let bound = |vnic: &str, bound: Value| {
        json!({"layout": 1, "boot": good["boot"],
            "bound": [{"vnic": vnic, "vni": 42, "bound": bound}]})
    };
    let a_number = u64::from_le_bytes([2, 0, 0, 0, 0, 0xb, 0, 0]);
    let cases = [
        (behind("nobody", 42, json!([[mac, now]])), "vnic that is gone"),
        (behind("other", 42, json!([[mac, now]])), "vnic of another network"),
        (behind("a", 44, json!([[mac, now]])), "network that is gone"),
        (behind("b", 42, json!([[mac, now]])), "vnic that is filtered now"),
        (behind("mirror", 42, json!([[mac, now]])), "mirror"),
        (behind("a", 42, json!([[mac, now + 100]])), "seen in the future"),
        (behind("a", 42, json!([[mac, now - 300]])), "silent for too long"),
        (behind("a", 42, json!([[mac, 0]])), "never seen"),
        (behind("a", 42, json!([[1, now]])), "not a station's address"),
        (behind("a", 42, json!([[1u64 << 48, now]])), "not a station's address"),
        (behind("a", 42, json!([[a_number, now]])), "address of a filtered vnic"),
        (far("192.168.0.3"), "host that is not known"),
        (far("::1"), "host that is not known"),
        (peer("192.168.0.1", 42, 2, now), "no other host's address"),
        (peer("224.0.0.1", 42, 2, now), "no other host's address"),
        (peer("fd00::1", 42, 2, now), "no other host's address"),
        (peer("192.168.0.3", 44, 2, now), "network that is gone"),
        (peer("192.168.0.3", 42, 1, now), "not a station's address"),
        (peer("192.168.0.3", 42, 2, now + 100), "seen in the future"),
        (bound("b", json!([[0, now, true]])), "not an address that a machine may make up"),
        (bound("a", json!([[5, 0, false]])), "not a station's address"),
        (bound("nobody", json!([[5, 2, false]])), "vnic that is gone"),
    ];
    for (text, why) in cases {
        let mut second = host();
        let bytes = serde_json::to_vec(&text).unwrap();
        // Other hosts are a part of the counters.
        let texts = if text.get("peers").is_some() {
            Texts([bytes, vec![], vec![]])
        } else {
            Texts([vec![], vec![], bytes])
        };
        let taken = take_over(&mut second, &texts);
        assert_eq!(taken.refused, BTreeMap::from([(why, 1)]), "{text}");
        assert_eq!((taken.stations, taken.peers, taken.bound), (0, 0, 0), "{text}");
        let observed = second.observe();
        assert!(observed.vnics.iter().all(|vnic| vnic.learn_refused == 0), "{text}");
    }
    // And of another start of the host, nothing.
    let mut other = good.clone();
    other["boot"] = json!([1, 2]);
    let taken = take_over(&mut host(), &Texts::stations(&other));
    assert_eq!((taken.stations, taken.problems.len()), (0, 1));
}

/// A machine keeps the link-local address that it made up, against another one.
#[test]
fn a_made_up_address_stays_with_its_machine() {
    let text = |first: &Host, owner: &str| -> Value {
        let mut text: Value = serde_json::from_slice(&first.note_stations(ROOM).text).unwrap();
        let (mine, others) = (json!([[5, 1, true]]), json!([[5, 9, true], [6, 1, true]]));
        text["bound"] = json!([{"vnic": owner, "vni": 42, "bound": mine},
            {"vnic": "c", "vni": 42, "bound": others}]);
        text
    };
    let with_c = || {
        let mut host = host();
        host.declare("c", Mac([2, 0, 0, 0, 0, 0xc]), 42, &filtered()).unwrap();
        host
    };
    let mut second = with_c();
    let text = text(&second, "b");
    let taken = take_over(&mut second, &Texts::stations(&text));
    assert_eq!(taken.bound, 2, "{taken}");
    assert_eq!(taken.refused, BTreeMap::from([("address that another machine has", 1)]));
    let noted: Value = serde_json::from_slice(&second.note_stations(ROOM).text).unwrap();
    let expected = json!([{"vni": 42, "vnic": "b", "bound": [[5, 1, true]]},
        {"vni": 42, "vnic": "c", "bound": [[6, 1, true]]}]);
    assert_eq!(noted["bound"], expected);
}

/// Other hosts find no room first, then vnics, which count for the host; of the stations the most
/// silent ones.
#[test]
fn what_finds_no_room_is_left_out_by_rule() {
    let mut first = host();
    traffic(&mut first);
    first.pass(10);
    send(&mut first, &plain(Mac([6, 1, 1, 1, 1, 1]), B));
    let whole = first.note_counters(ROOM).text.len();
    let drops = first.observe().drops;
    let mut left_before = 0;
    for room in (0..whole).rev().step_by(100) {
        let Noted { text, left_out } = first.note_counters(room);
        assert!(text.len() <= room && left_out >= left_before);
        left_before = left_out;
        if text.is_empty() {
            continue;
        }
        let mut second = host();
        second.pass(10);
        let taken = take_over(&mut second, &Texts([text, vec![], vec![]]));
        let (peers, vnics) = (left_out.min(1), left_out.saturating_sub(1));
        assert_eq!((taken.vnics, taken.peers), (4 - vnics, 1 - peers), "{taken}");
        assert_eq!(taken.refused, BTreeMap::new());
        assert_eq!(second.observe().drops, drops, "in {room} bytes");
    }
    assert!(left_before >= 4, "{left_before}");
    let whole = first.note_stations(ROOM).text.len();
    let Noted { text, left_out } = first.note_stations(whole - 100);
    assert!(text.len() <= whole - 100 && (4..20).contains(&left_out), "{left_out}");
    let mut second = host();
    second.pass(10);
    let texts = Texts([first.note_counters(ROOM).text, vec![], text.clone()]);
    let taken = take_over(&mut second, &texts);
    assert_eq!((taken.stations, taken.peers), (22 - left_out, 1), "{taken}");
    assert!(String::from_utf8(text).unwrap().contains(&0x0101_0101_0106u64.to_string()));
    assert_eq!(first.note_stations(1).text, b"");
}

/// An hour without a daemon: the stations are as old as they are.
#[test]
fn time_goes_on_while_no_daemon_runs() {
    let mut first = host();
    traffic(&mut first);
    let texts = Texts::of(&first);
    for (passed, stations) in [(290, 21), (301, 0)] {
        let mut second = host();
        second.pass(passed);
        assert_eq!(take_over(&mut second, &texts).stations, stations, "after {passed} s");
        second.pass(15);
        assert_eq!(second.observe().networks[0].learnt, 0);
    }
}

/// A whole switch: with the counters of its worker and of its endpoint, before it goes and not
/// after.
#[test]
fn a_switch_takes_over_before_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let prepare = |name: &str| {
        let uplink = UplinkSpec::VhostUser { path: folder.path().join(name), role: Role::Server };
        let tunnel = TunnelSpec {
            endpoint: IpAddr::from([192, 168, 0, 1]),
            prefix: None,
            uplink,
            peers: vec![],
            gateways: vec![],
            group6: std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
            udp6_checksum: false,
            strict_peers: false,
            vlan: 0,
            mtu: None,
        };
        let config = SwitchConfig { sessions: 64, tunnel: Some(tunnel), ..SwitchConfig::default() };
        Switch::prepare(config, None, std::sync::Arc::new(())).unwrap()
    };
    let text = serde_json::to_vec(&json!({
        "layout": 1,
        "control": {"echo": 5, "singing": 6},
        "port": {},
        "uplink": {"counted": {"in-packets": 7}, "dropped": {"not-ours": 8}},
        "workers": [{"packets": 9, "batches": 3, "batches-of-4": 3}],
        "updates": {"nic-added": 4},
    }));
    let text = text.unwrap();
    let former = Former { counters: &text, ..Former::default() };
    let mut first = prepare("first");
    let taken = first.take_over(former).unwrap();
    assert_eq!(taken.problems, ["there is no counter of the uplink \"singing\" here"]);
    for next in ["second", "third"] {
        let observed = first.observe();
        let uplink = observed.uplink.unwrap();
        // What the uplink itself drops meanwhile stands beside it.
        assert_eq!(uplink.received.0, 7);
        assert!(uplink.drops.contains(&("not-ours", 8)), "{:?}", uplink.drops);
        assert_eq!(uplink.control.iter().find(|(name, _)| *name == "echo"), Some(&("echo", 5)));
        let worker = &observed.workers[0];
        assert_eq!((worker.packets, worker.batches, worker.batch_sizes[2]), (9, 3, 3));
        assert_eq!(observed.updates[0], ("nic-added", 4));
        first.go().unwrap();
        assert!(first.take_over(former).is_err(), "workers count already");
        // The same again, after the next crash.
        let text = first.note_counters(ROOM).text;
        first = prepare(next);
        assert_eq!(
            first.take_over(Former { counters: &text, ..former }).unwrap().problems,
            [] as [String; 0]
        );
    }
}

/// A hundred vnics with counters, 10,000 stations.
#[test]
fn a_note_takes_little_time() {
    let declared = || {
        let mut host = Host::new().unwrap();
        for n in 0..100u8 {
            host.declare(
                &format!("vnic-{n}"),
                Mac([2, 0, 0, 0, 1, n]),
                1 + u32::from(n / 20),
                &bypass(),
            )
            .unwrap();
        }
        host
    };
    let mut first = declared();
    let now = serde_json::from_slice::<Value>(&first.note_stations(ROOM).text).unwrap();
    // Made by texts, too: a hundred guests would be a test of guests.
    let behind: Vec<Value> = (0..100u64)
        .map(|n| {
            let seen: Vec<_> = (0..100).map(|at| (6 | n << 40 | at << 16, first.now())).collect();
            json!({"vnic": format!("vnic-{n}"), "vni": 1 + n / 20, "seen": seen})
        })
        .collect();
    let stations = json!({"layout": 1, "boot": now["boot"], "behind": behind});
    let counts = json!({"in-packets": 123_456_789, "in-bytes": 123_456_789_012u64,
        "out-packets": 123_456_789, "out-bytes": 123_456_789_012u64, "flooded": 12_345});
    let dropped: BTreeMap<&str, u64> =
        butterfly_datapath::reasons().take(10).map(|info| (info.name, 123_456)).collect();
    let vnics: Vec<Value> = (0..100)
        .map(|n| {
            json!({"id": format!("vnic-{n}"), "vni": 1 + n / 20, "counted": counts, "dropped": dropped})
        })
        .collect();
    let counters = json!({"layout": 1, "vnics": vnics});
    let made = Texts([counters, json!(null), stations].map(|text| match text {
        Value::Null => vec![],
        text => serde_json::to_vec(&text).unwrap(),
    }));
    let taken = take_over(&mut first, &made);
    assert_eq!((taken.vnics, taken.stations, taken.not_taken()), (100, 10_000, 0), "{taken}");
    let file = HalvesFile::create("times", 64 << 20).unwrap();
    let mut sheets = [0, 32 << 20].map(|from| file.halves(from, ROOM));
    let mut times = [[Duration::MAX; 2]; 3];
    let mut best = |n: usize, way: usize, body: &mut dyn FnMut()| {
        let begun = Instant::now();
        body();
        times[n][way] = times[n][way].min(begun.elapsed());
    };
    let mut sizes = [0; 2];
    for _ in 0..5 {
        best(0, 0, &mut || {
            let text = first.note_counters(ROOM).text;
            sheets[0].write(&text).unwrap();
            sizes[0] = text.len();
        });
        best(1, 0, &mut || {
            let text = first.note_stations(ROOM).text;
            sheets[1].write(&text).unwrap();
            sizes[1] = text.len();
        });
        let mut second = declared();
        best(2, 0, &mut || {
            let [counters, stations] = sheets.each_ref().map(|sheet| sheet.newest().unwrap().text);
            let taken = take_over(&mut second, &Texts([counters, vec![], stations]));
            assert_eq!((taken.vnics, taken.stations), (100, 10_000));
        });
    }
    let [counters, stations, all] = times.map(|[best, _]| best);
    println!(
        "100 vnics: counters noted in {counters:?} ({} bytes); 10,000 stations in {stations:?} ({} bytes); all read and taken over in {all:?}",
        sizes[0], sizes[1]
    );
    // A scrape may take some milliseconds; this is not the machine's best hour, maybe.
    assert!(counters < Duration::from_millis(20) && stations < Duration::from_millis(200));
}

/// Part of a life.
#[derive(Clone, Debug)]
enum Act {
    Traffic(u8),
    /// The vnic "b" goes, or comes back.
    Remake,
    /// Numbers are told: noted first.
    Tell,
    /// Noted, and not told.
    Tick,
    /// Dies; in the middle of a note, of which only so many bytes were written, if it is some.
    Crash(Option<u16>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..4u8).prop_map(Act::Traffic),
        1 => Just(Act::Remake),
        3 => Just(Act::Tell),
        1 => Just(Act::Tick),
        2 => proptest::option::of(any::<u16>()).prop_map(Act::Crash),
    ]
}

const HALF: usize = 64 << 10;

fn bytes(file: &HalvesFile) -> Vec<u8> {
    let mut bytes = vec![0; 2 * HALF];
    assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Leaves only the first `cut` bytes of a write, which writes a text and then its header.
fn tear(file: &HalvesFile, before: &[u8], cut: usize) {
    let after = bytes(file);
    let half = (0..2 * HALF).find(|at| before[*at] != after[*at]).map_or(0, |at| at / HALF * HALF);
    let order = (half + 32..half + HALF).chain(half..half + 32);
    let written = order.filter(|at| before[*at] != after[*at]);
    let mut torn = before.to_vec();
    written.take(cut).for_each(|at| torn[at] = after[at]);
    assert_eq!(rustix::io::pwrite(file.as_fd(), &torn, 0).unwrap(), torn.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// No number that was told is ever larger than one that is told later, however often and
    /// whenever the process dies.
    #[test]
    fn no_counter_that_was_told_ever_falls(acts in proptest::collection::vec(act(), 1..40)) {
        let file = HalvesFile::create("checkpoint", 2 * HALF as u64).unwrap();
        let mut sheet = file.halves(0, HALF);
        let mut now = host();
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Traffic(n) => {
                    for n in 0..n {
                        send(&mut now, &plain(A, Mac::BROADCAST));
                        send(&mut now, &syn(n.into()));
                        send(&mut now, &plain(A, B));
                        now.arrive(&[outer(42, &plain(FAR, A)), outer(9, &[])]).unwrap();
                    }
                }
                Act::Remake => {
                    now.remove("b");
                    // A vnic that was made anew counts from zero; the host's sums go on.
                    known.retain(|name, _| !name.starts_with("b."));
                    now.vnic("b", B, 42, &filtered()).unwrap();
                }
                Act::Tell => {
                    let told = told(&now.observe());
                    // Frames that pass meanwhile are in the note, and were not told.
                    send(&mut now, &plain(A, B));
                    sheet.write(&now.note_counters(HALF - 32).text).unwrap();
                    for (name, before) in &known {
                        let n = told.get(name).copied().unwrap_or(0);
                        prop_assert!(n >= *before, "{name}: {n} after {before}");
                    }
                    known = told;
                }
                Act::Tick => sheet.write(&now.note_counters(HALF - 32).text).unwrap(),
                Act::Crash(torn) => {
                    if let Some(cut) = torn {
                        let before = bytes(&file);
                        sheet.write(&now.note_counters(HALF - 32).text).unwrap();
                        tear(&file, &before, cut.into());
                    }
                    now = host();
                    sheet = file.halves(0, HALF);
                    let text = sheet.newest().map(|newest| newest.text).unwrap_or_default();
                    let taken = take_over(&mut now, &Texts([text, vec![], vec![]]));
                    prop_assert_eq!(taken.refused.len(), 0, "{}", taken);
                    // What was told lies in the text: a reader sees it at once.
                    let told = told(&now.observe());
                    for (name, before) in &known {
                        let n = told.get(name).copied().unwrap_or(0);
                        prop_assert!(n >= *before, "{name}: {n} after {before}");
                    }
                }
            }
        }
    }

    /// A text with any of its values replaced is read without fault, and the host still works.
    #[test]
    fn no_text_is_a_fault(
        which in 0..3usize,
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        numbers in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..8),
    ) {
        let mut first = host();
        traffic(&mut first);
        let mut texts = Texts::of(&first);
        let text = &mut texts.0[which];
        for (at, number) in numbers {
            // Each number of the text in turn.
            let digits: Vec<usize> =
                (1..text.len()).filter(|at| text[*at].is_ascii_digit() && !text[at - 1].is_ascii_digit()).collect();
            let begin = digits[at.index(digits.len())];
            let end = (begin..text.len()).find(|at| !text[*at].is_ascii_digit()).unwrap();
            text.splice(begin..end, number.to_string().into_bytes());
        }
        for (at, byte) in cuts {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let mut second = host();
        take_over(&mut second, &texts);
        traffic(&mut second);
        let _ = Texts::of(&second);
    }
}
