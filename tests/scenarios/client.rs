//! The real client asks the real daemon, and prints the numbers of real traffic.

use std::{collections::BTreeMap, fs};

use butterfly_guest_driver::{Listener, Vm};
use butterfly_tests::{
    Host, Nic, PATIENCE, Station,
    frames::{mac, numbered},
    station::{features, machine, usual},
    traffic::{exchange, streams},
};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// Runs an operator's commands, from an empty daemon to an empty daemon.
#[test]
fn a_day_of_an_operator() {
    let Some(mut host) = Host::process() else { return };
    let daemon = host.daemon();
    let dir = daemon.dir().to_str().unwrap().to_owned();
    let ok = |line: &str| daemon.client_ok(&line.split(' ').collect::<Vec<_>>());
    let fails = |line: &str| {
        let output = daemon.client(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(ok("nic list"), "");
    let add = "nic add --id vm-1 --mac 42:42:42:42:42:0A --vni 1337 --ip 42.0.0.1 --ip fd00::1 --bypass-filtering";
    assert_eq!(ok(add), format!("{dir}/qemu-vhost-vm-1\n"));
    let client = format!(
        "nic add --id vm-2 --mac 42:42:42:42:42:02 --vni 1337 --type VHOST_USER_CLIENT --bypass-filtering --path {dir}/theirs"
    );
    assert_eq!(ok(&client), format!("{dir}/theirs\n"));
    assert_eq!(ok("nic list"), "vm-1\nvm-2\n");
    let details = "id: vm-1\nmac: 42:42:42:42:42:0A\nvni: 1337\nip: 42.0.0.1\nip: fd00::1\nantispoof: false\nbypass filtering: true\npacket trace: false\n";
    assert_eq!(ok("nic details vm-1"), details);

    // A guest on each vnic, one in each role.
    let config = machine(features::LINUX, 9000);
    let station =
        |id: &str, mac: [u8; 6], path: String, listener: Option<Listener>, vm: Vm| Station {
            nic: Nic::bypass(id, butterfly_packet::mac::Mac(mac), 1337),
            path: path.into(),
            listener,
            vm,
            config: config.clone(),
        };
    let path = format!("{dir}/qemu-vhost-vm-1");
    let mut first = station(
        "vm-1",
        [0x42, 0x42, 0x42, 0x42, 0x42, 0x0a],
        path.clone(),
        None,
        Vm::connect(&path, &config, PATIENCE).unwrap(),
    );
    let listener = Listener::bind(format!("{dir}/theirs")).unwrap();
    let vm = Vm::accept(&listener, &config, PATIENCE).unwrap();
    let mut second = station(
        "vm-2",
        [0x42, 0x42, 0x42, 0x42, 0x42, 2],
        format!("{dir}/theirs"),
        Some(listener),
        vm,
    );
    second.vm.connection.sync().unwrap();
    let mut both = streams(&first, &second);
    let lens = [60, 1514, 9000, 777];
    exchange(&mut first, &mut second, &mut both, &lens);
    host.settle(&mut [&mut first, &mut second]);
    let bytes: usize = lens.iter().sum();
    assert_eq!(ok("nic stats vm-1"), format!("in: {bytes}\nout: {bytes}\n"));

    // Output for the operator on call.
    let shown = json(&ok("nic show vm-1 --json"));
    assert_eq!(
        (shown["attached"].as_bool(), shown["role"].as_str(), shown["vni"].as_u64()),
        (Some(true), Some("server"), Some(1337))
    );
    assert_eq!(
        (shown["in_packets"].as_u64(), shown["in_bytes"].as_u64()),
        (Some(4), Some(bytes as u64))
    );
    assert_eq!(
        (shown["out_packets"].as_u64(), shown["out_bytes"].as_u64()),
        (Some(4), Some(bytes as u64))
    );
    assert_eq!(shown["peer_pid"].as_u64(), Some(std::process::id().into()));
    let names = |value: &Value| {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let negotiated = names(&shown["features_negotiated"]);
    for name in config.features.names() {
        assert!(negotiated.contains(&name), "{name} is not among {negotiated:?}");
    }
    assert!(names(&shown["features_refused"]).contains(&"in-order".to_owned()));
    assert_eq!(shown["queues"].as_array().unwrap().len(), 2);
    let region = &shown["memory_regions"][0];
    assert_eq!(region["size"].as_u64(), Some(first.vm.guest.memory().regions()[0].size));
    let ring =
        shown["queues"].as_array().unwrap().iter().find(|queue| queue["name"] == "tx").unwrap();
    assert_eq!(
        (ring["size"].as_u64(), ring["used"].as_u64(), ring["running"].as_bool()),
        (Some(256), Some(4), Some(true))
    );
    let text = ok("nic show vm-1 --all");
    for words in ["attached", "mrg-rxbuf", "tx", "ring-full"] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert_eq!(json(&ok("nic show vm-2 --json"))["role"].as_str(), Some("client"));

    first.send(&numbered(mac(9), second.mac(), 1, 1, 60));
    second.receive();
    let fdb = json(&ok("fdb 1337 --json"));
    let kinds: BTreeMap<&str, &str> = fdb["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["mac"].as_str().unwrap(), row["kind"].as_str().unwrap()))
        .collect();
    let expected = [
        ("42:42:42:42:42:02", "static"),
        ("42:42:42:42:42:0a", "static"),
        ("02:b0:00:00:00:09", "learnt"),
    ];
    assert_eq!(kinds, expected.into());
    assert_eq!(json(&ok("fdb 1 --json")), json(r#"{"entries": []}"#));
    host.settle(&mut [&mut first, &mut second]);
    // Frames that the VM sent count as "in".
    assert_eq!(ok("nic stats vm-1"), format!("in: {}\nout: {bytes}\n", bytes + 60));
    assert_eq!(ok("nic stats vm-2"), format!("in: {bytes}\nout: {}\n", bytes + 60));
    let workers = json(&ok("workers --json"));
    let workers = workers["workers"].as_array().unwrap();
    let sum = |name| workers.iter().map(|worker| worker[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("packets"), 9);
    for name in ["busy_cycles", "batches", "sleeps"] {
        assert!(sum(name) > 0, "{name}: {workers:?}");
    }

    // A dump brings everything back, and does not disturb existing vnics.
    let dump = ok("dump");
    let file = format!("{dir}/dump");
    fs::write(&file, &dump).unwrap();
    ok(&format!("request {file}"));
    exchange(&mut first, &mut second, &mut both, &lens);
    ok("nic del vm-1 vm-2");
    assert_eq!(ok("nic list"), "");
    assert!(
        first.vm.connection.wait_closed(PATIENCE) && second.vm.connection.wait_closed(PATIENCE)
    );
    ok(&format!("request {file}"));
    assert_eq!(ok("dump"), dump);
    assert_eq!(ok("nic details vm-1"), details);
    let vm = Vm::connect(&path, &usual(), PATIENCE).unwrap();
    first.vm = vm;
    let vm = Vm::accept(second.listener.as_ref().unwrap(), &usual(), PATIENCE).unwrap();
    second.vm = vm;
    second.vm.connection.sync().unwrap();
    let mut both = streams(&first, &second);
    exchange(&mut first, &mut second, &mut both, &lens);

    // Changes, failures, chains.
    assert_eq!(ok("nic update --id vm-1 --ip 10.0.0.7 --enable-antispoof true"), "");
    assert!(ok("nic details vm-1").contains("ip: 10.0.0.7\nantispoof: true\n"));
    assert!(fails("nic stats nobody").contains("NIC does not exist with id nobody"));
    // Another vnic with that MAC address waits.
    ok("nic add --id vm-3 --mac 42:42:42:42:42:02 --vni 1337");
    assert!(ok("nic show vm-3").contains("nic vm-2, which has its MAC address"));
    let explained = daemon.client(&["explain", "--from", "vm-1", "--to", "vm-3"]);
    assert_eq!(explained.status.code(), Some(2), "{explained:?}");
    assert!(
        String::from_utf8_lossy(&explained.stdout)
            .contains("\nnever sent: its sender gets no link address\n"),
        "{explained:?}"
    );
    ok("nic del vm-3");
    assert!(
        fails("nic add --id vm-3 --mac 42:42:42:42:42:03 --vni 16777216")
            .contains("Bad NIC format")
    );
    assert!(fails("nic add --id a/b --mac 42:42:42:42:42:03 --vni 1").contains("Bad NIC format"));
    assert_eq!(ok("nic del nobody + nic list"), "vm-1\nvm-2\n");
    let status = ok("status");
    for words in [
        "start date: ",
        "request counter: ",
        "dot graph: \nstrict graph G {",
        "\"switch:switch-1337\"",
        "vhost:vhost-vm-1",
    ] {
        assert!(status.contains(words), "{words:?} is not in:\n{status}");
    }
    assert_eq!(ok("shutdown"), "");
    assert_eq!(host.daemon_mut().wait_for_end().code(), Some(0));
}
