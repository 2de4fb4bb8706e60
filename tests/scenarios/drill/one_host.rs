//! Faults on one host.

use butterfly_guest_driver::{GuestConfig, Refill};
use butterfly_packet::tcp::SYN;
use butterfly_tests::{
    Nic, eventually,
    frames::mac,
    groups,
    net::{Net, filtered, open, segment, v4},
    runbook::{Document, Reader},
    station::{features, machine},
};

use super::{A, B, C, D, Machine, PAGE, PORT, Scene, drill, followed};

const WEB: &str = "in tcp 443 10.0.0.0/24";

/// Returns a sender a, and a receiver b in these groups. Group `web` would let the packet in.
fn two(groups: &str) -> Option<Net> {
    let net = Net::new(&[filtered("a", A, "clients"), filtered("b", B, groups)])?;
    net.group("web", &[WEB], &[]);
    net.group("db", &["in tcp 5432 10.0.0.0/24", "in udp 443 10.0.0.0/24"], &[]);
    Some(net)
}

fn scene(net: Net) -> Scene {
    Scene::new(net, Machine::new("a", A))
}

#[test]
fn nothing_is_wrong() {
    let Some(net) = two("web") else { return };
    assert_eq!(followed(PAGE, &mut scene(net), "anything"), Err("nothing is wrong".to_owned()));
}

#[test]
fn wrong_group() {
    let Some(net) = two("db") else { return };
    drill(scene(net), "Wrong group");
}

#[test]
fn missing_rule() {
    let Some(net) = two("db") else { return };
    net.ask(groups::group_del("web"));
    drill(scene(net), "Missing rule");
}

#[test]
fn missing_rule_for_what_leaves() {
    let Some(net) = two("web") else { return };
    net.group("clients", &["out udp 53 0.0.0.0/0"], &[]);
    drill(scene(net), "Missing rule for what leaves");
}

#[test]
fn wrong_vni() {
    let Some(mut net) = two("db") else { return };
    net.stations.remove("b");
    net.host.remove("b");
    net.attach(&Nic { vni: 7, ..filtered("b", B, "web") });
    drill(scene(net), "Wrong network");
}

#[test]
fn spoofed_source() {
    let Some(net) = two("web") else { return };
    let machine = Machine { ip: [10, 0, 0, 77], ..Machine::new("a", A) };
    drill(Scene::new(net, machine), "An address that is not the sender's");
}

#[test]
fn claimed_mac() {
    let Some(mut net) = two("web") else { return };
    net.attach(&open("c", C));
    // c is a copy of a.
    let machine = Machine { mac: mac(A.into()), ..Machine::new("c", C) };
    drill(Scene::new(net, machine), "A MAC address of somebody else");
}

#[test]
fn full_ring() {
    let Some(mut net) = two("web") else { return };
    net.stations.remove("b");
    let mut stopped = machine(features::MODERN, 1600);
    stopped.guest = GuestConfig { refill: Refill::Manually, rx_fill: Some(4), ..stopped.guest };
    let station = net.host.station(&filtered("b", B, "web"), &stopped);
    net.stations.insert("b".to_owned(), station);
    for port in 5000..5004 {
        net.station("a").send(&v4(A, B).tcp(&segment((port, PORT), SYN, 1, 0), b""));
    }
    drill(scene(net), "The machine does not read");
}

#[test]
fn detached_machine() {
    let Some(mut net) = two("web") else { return };
    drop(net.stations.remove("b").unwrap().crash());
    eventually("b left", || !net.host.show("b").attached);
    drill(scene(net), "No machine");
}

#[test]
fn full_table() {
    let nics = [
        filtered("a", A, "clients"),
        filtered("b", B, "web"),
        open("c", C),
        filtered("d", D, "dns"),
    ];
    let Some(mut net) = Net::with(&["--sessions", "64", "--session-share", "100"], &nics) else {
        return;
    };
    net.group("web", &[WEB], &[]);
    net.group("dns", &["in udp 53 0.0.0.0/0"], &[]);
    // Sessions that were answered stay.
    for port in 2000..2256 {
        net.station("c").send(&v4(C, D).udp(port, 53, b"?"));
        if net.received("c").contains_key("d") {
            net.station("d").send(&v4(D, C).udp(53, port, b"!"));
            net.received("d");
        }
    }
    drill(scene(net), "The table is full");
}

/// A drop without a section of its own leads to "Another reason".
#[test]
fn another_reason() {
    let Some(net) = two("web") else { return };
    // Data on an unknown connection.
    let mut scene = Scene::new(net, Machine { data: vec![7; 100], ..Machine::new("a", A) });
    let document = Document::read(PAGE);
    let given = scene.given();
    let given: Vec<(&str, &str)> = given.iter().map(|(word, is)| (*word, is.as_str())).collect();
    let mut reader = Reader::new(&document, &given);
    let found = reader.follow(&mut scene).unwrap();
    assert_eq!(
        (found.title.as_str(), reader.words()["REASON"].as_str()),
        ("Another reason", "tcp-no-session")
    );
}

/// The drill fails on a page with a mistake.
#[test]
fn a_wrong_page_does_not_help() {
    for (right, wrong) in [
        // A row leads to another cause.
        (
            "`group GROUP would let it in` | [Wrong group](#wrong-group)",
            "`group GROUP would let it in` | [Missing rule](#missing-rule)",
        ),
        // A line that the client does not print.
        ("group GROUP would let it in, but", "group GROUP lets it in, but"),
        // A fix that does not help.
        ("$ butterfly nic sg add RECEIVER GROUP", "$ butterfly nic sg add SENDER GROUP"),
        // A proof that also holds for other causes.
        (
            "$ butterfly nic show RECEIVER\nsocket SOCKET\nattached no virtual machine",
            "$ butterfly nic show RECEIVER\nsocket SOCKET",
        ),
    ] {
        let Some(net) = two("db") else { return };
        let page = PAGE.replacen(right, wrong, 1);
        assert_ne!(page, PAGE, "{right}");
        let said = followed(&page, &mut scene(net), "Wrong group");
        assert!(said.is_err(), "with {wrong:?} it helps");
    }
}
