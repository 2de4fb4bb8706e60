//! Mirrors in whole daemons: an analyser gets the packets that a capture of its target has, under
//! random traffic and while vnics are added and removed. Refusals have a reason.

use butterfly_packet::{
    arp, build,
    mac::Mac,
    tcp::{ACK, SYN},
};
use butterfly_tests::{
    Nic,
    frames::{Choices, mac},
    net::{Net, filtered, open, segment, v4},
};
use std::{fs, path::Path};

const PROBE: u32 = 0x77;

fn probe(id: &str, target: &str) -> Nic {
    Nic::mirror(id, mac(PROBE), 1, target)
}

/// Returns the packets in a capture, oldest first.
fn capture(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(&bytes[..]).unwrap();
    std::iter::from_fn(|| reader.next_packet().map(|packet| packet.unwrap().data.into_owned()))
        .collect()
}

#[test]
fn an_analyser_gets_what_a_capture_of_its_target_has() {
    let Some(mut net) =
        Net::new(&[filtered("a", 1, "clients"), filtered("b", 2, "web"), open("c", 3)])
    else {
        return;
    };
    net.group("web", &["in tcp 80-90 0.0.0.0/0"], &[]);
    net.attach(&probe("m", "b"));
    let file = net.host.dir().join("b.pcap");
    let path = file.to_str().unwrap().to_owned();
    net.host.daemon().client_ok(&[
        "nic",
        "update",
        "--id",
        "b",
        "--packet-trace",
        "true",
        "--trace-path",
        &path,
    ]);
    let mut choices = Choices::new(0x6d69_7272_6f72);
    let stations = [("a", 1u8), ("b", 2), ("c", 3)];
    let (mut copies, mut delivered) = (Vec::new(), 0);
    for _ in 0..600 {
        let (from, source) = choices.one(&stations);
        let (_, to) = choices.one(&stations);
        let port = choices.one(&[80, 85, 100]);
        let flags = choices.one(&[SYN, SYN | ACK, ACK]);
        let ports = (choices.between(4000, 4003) as u16, port);
        let ports = if choices.below(2) == 0 { ports } else { (ports.1, ports.0) };
        let frame = match choices.below(6) {
            0 => build::ethernet(mac(source.into()), Mac::BROADCAST).arp(
                arp::REQUEST,
                (mac(source.into()), [10, 0, 0, source].into()),
                (Mac::ZERO, [10, 0, 0, to].into()),
            ),
            // Another vnic's source address.
            1 => v4(to, 9).tcp(&segment(ports, flags, 1, 2), b"spoofed"),
            _ => v4(source, to).tcp(&segment(ports, flags, 1, 2), b"x"),
        };
        let outcome = net.send(from, &frame);
        let got: Vec<&str> = outcome.split(' ').filter(|word| !word.contains('.')).collect();
        // The mirror has a copy if b sent the packet, or received it.
        assert_eq!(got.contains(&"m"), from == "b" || got.contains(&"b"), "{from}: {outcome}");
        assert!(!outcome.contains("m."), "{outcome}");
        delivered += usize::from(got.contains(&"b"));
        if got.contains(&"m") {
            copies.push(frame);
        }
    }
    net.host.daemon().client_ok(&["nic", "update", "--id", "b", "--packet-trace", "false"]);
    let captured = capture(&file);
    assert!(captured == copies, "{} captured, {} copies", captured.len(), copies.len());
    assert!(copies.len() > 100 && delivered > 20, "{delivered} of {} were delivered", copies.len());
    let shown = net.host.show("m");
    assert_eq!((shown.delivered.0, shown.all_drops()), (copies.len() as u64, 0));
}

#[test]
fn a_mirror_is_no_station() {
    let Some(mut net) = Net::new(&[filtered("a", 1, "web"), open("c", 3)]) else { return };
    net.group("web", &["in icmp - 0.0.0.0/0"], &[]);
    net.attach(&probe("m", "a"));
    let own = mac(PROBE);
    net.expect(
        "m",
        &build::ethernet(own, mac(3)).ipv4([10, 0, 0, 9], [10, 0, 0, 3]).ping(1, 1, b""),
        "m.mirror-sends",
    );
    net.expect(
        "m",
        &build::ethernet(mac(1), Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 3]),
        "m.mirror-sends",
    );
    net.expect(
        "c",
        &build::ethernet(mac(3), own).ipv4([10, 0, 0, 3], [10, 0, 0, 9]).ping(1, 1, b""),
        "c.no-receiver",
    );
    assert!(net.host.fdb(Some(1)).iter().all(|entry| entry.id != "m"), "its address is nobody's");
    // The mirror is removed and added again under traffic, and so is its target.
    net.expect("c", &v4(3, 1).ping(1, 1, b"one"), "a m");
    net.host.remove("m");
    net.expect("c", &v4(3, 1).ping(1, 2, b"two"), "a");
    net.attach(&probe("n", "a"));
    net.expect("c", &v4(3, 1).ping(1, 3, b"three"), "a n");
    net.expect("a", &v4(1, 3).ping(7, 1, b"four"), "c n");
}

#[test]
fn what_is_refused_says_why_and_what_is_idle_too() {
    let Some(net) = Net::new(&[filtered("a", 1, "web"), open("c", 3)]) else { return };
    let daemon = net.host.daemon();
    let add = |id: &str, vni: &str, target: &str| {
        let words = [
            "nic",
            "add",
            "--id",
            id,
            "--mac",
            "02:00:00:00:00:77",
            "--vni",
            vni,
            "--sniff-target",
            target,
        ];
        let output = daemon.client(&words);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let refused = |id: &str, vni: &str, target: &str, why: &str| {
        let (done, said) = add(id, vni, target);
        assert!(!done && said.contains(why), "{id} of {target} in {vni}: {said}");
        assert!(!net.host.ids().contains(&"x".to_owned()));
    };
    refused(
        "x",
        "7",
        "a",
        "nic \"x\" of VNI 7 cannot mirror nic \"a\" of VNI 1: a mirror sees its own network only; declare it with --vni 1",
    );
    refused("x", "1", "x", "cannot mirror itself");
    assert!(add("m", "1", "a").0);
    refused("x", "1", "m", "which is a mirror itself");
    refused("a", "1", "c", "nic \"a\" cannot become a mirror, as nic \"m\" mirrors it");
    assert!(daemon.client_ok(&["nic", "details", "m"]).contains("\nsniff target: a\n"));
    let show = |id: &str| daemon.client_ok(&["nic", "show", id]);
    let line = |page: &str, field: &str| {
        page.lines().find(|line| line.trim_start().starts_with(field)).unwrap().trim().to_owned()
    };
    assert!(line(&show("m"), "mirror of").ends_with(" a"));
    assert!(line(&show("a"), "mirrored by").ends_with(" m"));
    // The target is removed, and added again in another network.
    net.host.remove("a");
    assert!(line(&show("m"), "mirror of").ends_with("a: no copies, as there is no such nic yet"));
    let json: serde_json::Value =
        serde_json::from_str(&daemon.client_ok(&["nic", "show", "m", "--json"])).unwrap();
    assert_eq!(
        (&json["mirror"]["target"], &json["mirror"]["idle"]),
        (&"a".into(), &"there is no such nic yet".into())
    );
    let output =
        daemon.client(&["nic", "add", "--id", "a", "--mac", "02:00:00:00:00:01", "--vni", "8"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(
            "nic \"a\" cannot be in VNI 8, as nic \"m\" of VNI 1 mirrors it: delete that one first"
        ),
        "{said}"
    );
    daemon.client_ok(&["nic", "add", "--id", "a", "--mac", "02:00:00:00:00:01", "--vni", "1"]);
    assert!(line(&show("m"), "mirror of").ends_with(" a"));
    // A dump brings mirrors back in any order: one mirror is before its target, and one after.
    assert!(add("A", "1", "a").0);
    let dump = daemon.client_ok(&["dump"]);
    assert_eq!(dump.matches("sniff_target_nic_id: \"a\"").count(), 2);
    let file = net.host.dir().join("dump");
    fs::write(&file, &dump).unwrap();
    for id in ["A", "a", "m"] {
        net.host.remove(id);
    }
    daemon.client_ok(&["request", file.to_str().unwrap()]);
    assert_eq!(daemon.client_ok(&["dump"]), dump);
    assert!(line(&show("A"), "mirror of").ends_with(" a"));
}
