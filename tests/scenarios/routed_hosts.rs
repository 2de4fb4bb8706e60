//! Routers on two hosts, whole daemons with a wire between them (AF_XDP): each routes what its own
//! machines send, and what they say to each other outlasts a daemon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use butterfly_packet::tcp::ACK;
use butterfly_tests::{Host, eventually, net::segment, station::usual};
use serde_json::Value;

use crate::{
    lasting::die,
    routing::{A, B, Ending, LEN, LINES, Machine, Stream, routed},
    tunnel_lasting::{Answers, Two},
};

fn run(host: &Host, line: &str) -> String {
    host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>())
}

/// Declares networks, router and where the machine of the other host is.
fn join(host: &Host, other: Machine, endpoint: &str) {
    LINES.iter().for_each(|line| _ = run(host, line));
    let (ip, mac) = (other.address(), other.mac());
    let vni = other.vni;
    run(host, &format!("neighbour add --vni {vni} --ip {ip} --mac {mac} --host {endpoint}"));
}

fn sessions(host: &Host) -> Vec<Value> {
    let told: Value = serde_json::from_str(&run(host, "sessions --json")).unwrap();
    told["sessions"].as_array().unwrap().clone()
}

/// Drops of a host, by vnic or network and reason.
fn drops(host: &Host) -> Vec<(String, u64)> {
    let counters = host.counters().into_iter();
    counters.filter(|(name, _)| name.contains("drop.")).collect()
}

/// A connection between filtered machines of two hosts goes on when the daemon of one dies, and
/// when another program takes its place: no segment in its middle is admitted as a new one, and no
/// rule lets in what comes back.
#[test]
fn a_connection_between_hosts_outlasts_a_daemon() {
    let Some(mut two) = Two::new(Answers::Daemon) else { return };
    two.place.1 = ["--tcp-pickup", "0"].map(str::to_owned).to_vec();
    let (mut near, mut far) = (two.start(), two.start_far());
    // In any order: here the router first, there the machine.
    join(&near, B, "42.0.0.2");
    run(&far, "sg add web");
    run(&far, "sg rule add web --ip-proto tcp --port 80 --cidr 10.42.0.0/24");
    let mut b = far.station(&B.filtered(&["web"]), &usual());
    join(&far, A, "42.0.0.1");
    let mut a = near.station(&A.filtered(&[]), &usual());
    for host in [&near, &far] {
        eventually("the other host is found", || {
            let told: Value = serde_json::from_str(&run(host, "tunnels --json")).unwrap();
            told["peers"].as_array().unwrap().iter().any(|peer| peer["mac"].is_string())
        });
    }
    let mut stream = Stream::between(&mut a, &mut b);
    let (ended, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&ended);
        scope.spawn(|| stream.go_on(&mut a, &mut b, &ended, &moved));
        let moves = || {
            let enough = moved.load(Relaxed) + u64::from(50 * LEN);
            eventually("the stream goes on", || moved.load(Relaxed) >= enough);
        };
        for _ in 0..3 {
            moves();
            die(&mut near);
            near = two.start();
            moves();
            near.daemon().client_ok(&["upgrade"]);
        }
        moves();
    });
    // One session on each host, of the network of the end that is there.
    for (host, vni) in [(&near, 42), (&far, 50)] {
        let all = sessions(host);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0]["vni"], vni, "{all:?}");
        assert_eq!(all[0]["state"], "established", "{all:?}");
    }
    // Nobody in its middle, who was never there before.
    let before = drops(&near);
    let [stranger, _] = routed(A, B, |ip| ip.tcp(&segment((4001, 80), ACK, 101, 501), b"x"));
    a.send(&stranger);
    eventually("the drop is counted", || drops(&near) != before);
    assert!(drops(&near).contains(&("a.drop.tcp-no-session".to_owned(), 1)), "{:?}", drops(&near));
    // The way is told, and that of the answer.
    let told = run(
        &near,
        "explain --from a --to 10.50.0.11 --proto tcp --sport 4000 --port 80 --flags ack",
    );
    assert!(told.contains("the gateway of VNI 42 passes it on to VNI 50"), "{told}");
    assert!(told.contains("has the address, on host 42.0.0.2"), "{told}");
    assert!(told.contains("VXLAN, VNI 50, to host 42.0.0.2"), "{told}");
    // Without the neighbour there is no way, and with it there is one again.
    let [next, arrives] =
        routed(A, B, |ip| ip.tcp(&segment((4000, 80), ACK, 101 + stream.acked, 501), b"last"));
    run(&near, "neighbour del --vni 50 --ip 10.50.0.11");
    a.send(&next);
    eventually("it is not known", || {
        drops(&near).iter().any(|(name, _)| name == "a.drop.next-hop-unknown")
    });
    run(
        &near,
        &format!("neighbour add --vni 50 --ip 10.50.0.11 --mac {} --host 42.0.0.2", B.mac()),
    );
    a.send(&next);
    b.expect(&arrives);
    near.daemon_mut().quit();
    far.daemon_mut().quit();
}
