//! Second hops, in whole daemons: a machine of a host without the outside reaches it by another
//! host, whose daemon dies and comes back. Machine and outside are kernels, and so is the wire
//! between the hosts.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    time::Instant,
};

use butterfly_api::proto::{self, nic};
use butterfly_tests::{Host, PATIENCE, eventually, frames::mac};

use crate::{
    containers::{Netns, declare},
    lasting::die,
    tunnel_lasting::{Answers, Two},
};

/// Kernel behind the external of the near host.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address outside that the machine of the far host has.
const FLOATING: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 10);

fn run(host: &Host, line: &str) -> String {
    host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>())
}

/// Declares the network and the router alike on both hosts, and a way out on each.
fn join(host: &Host, external: &str) {
    for line in [
        "network add --vni 42 --subnet 10.42.0.0/24 --gateway 10.42.0.1 --mtu 1400",
        external,
        "router add r",
        "router attach r --vni 42",
        "router attach r --external world",
    ] {
        run(host, line);
    }
}

/// A filtered machine in a namespace of its own.
fn machine(host: &Host) -> Netns {
    let netns = Netns::new();
    let nic = proto::Nic {
        id: Some("a".to_owned()),
        mac: Some(mac(10).to_string()),
        vni: Some(42),
        ip: vec![INSIDE.to_string()],
        type_: Some(nic::Type::TAP.into()),
        netns: Some(netns.0.clone()),
        security_group: vec!["web".to_owned()],
        ..proto::Nic::default()
    };
    let interface = declare(host.daemon(), nic).unwrap();
    netns.run(&format!("ip link set dev {interface} mtu 1400"));
    netns.run(&format!("ip addr add {INSIDE}/24 dev {interface}"));
    netns.run("ip route add default via 10.42.0.1");
    netns
}

/// Has a listener echo connections, each with who it is from, until the process ends.
fn echo(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let from = stream.peer_addr().unwrap().ip().to_string();
                stream.write_all(format!("{from}\n").as_bytes()).unwrap();
                let mut bytes = [0; 65536];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// A connection to an echo.
struct Talk(TcpStream);

impl Talk {
    /// Connects from a namespace, and returns also as whom it is seen.
    fn to(from: &Netns, address: Ipv4Addr) -> (Talk, String) {
        let address = SocketAddrV4::new(address, 80).into();
        let stream = from.inside(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut talk, mut seen) = (Talk(stream), Vec::new());
        while !seen.ends_with(b"\n") {
            let mut byte = [0];
            talk.0.read_exact(&mut byte).unwrap();
            seen.extend(byte);
        }
        (talk, String::from_utf8(seen).unwrap().trim_end().to_owned())
    }

    /// Sends more than a window has, and gets it back.
    fn goes_on(&mut self) {
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let mut sender = self.0.try_clone().unwrap();
        let sent = bytes.clone();
        let sending = std::thread::spawn(move || sender.write_all(&sent).unwrap());
        let mut back = vec![0; bytes.len()];
        self.0.read_exact(&mut back).unwrap();
        sending.join().unwrap();
        assert_eq!(back, bytes);
    }
}

/// Pings the outside until it answers. A machine that came a moment ago is not asked whether it is
/// there for ten seconds.
#[track_caller]
fn reaches(machine: &Netns, [near, far]: [&Host; 2]) {
    let begun = Instant::now();
    while !machine.pings_within(1, "192.0.2.1") {
        let told = [near, far].map(|host| run(host, "drops"));
        assert!(begun.elapsed() < 3 * PATIENCE, "{}\n{}", told[0], told[1]);
    }
}

/// The machine pings and opens connections by a shared address, and is reached by a floating one.
/// All of it goes on after the host that leads out lost its daemon.
#[test]
fn a_machine_without_the_outside_reaches_it_by_another_host() {
    let Some(mut two) = Two::new(Answers::Daemon) else { return };
    two.place.1 = ["--tcp-pickup", "0"].map(str::to_owned).to_vec();
    let (mut near, mut far) = (two.start(), two.start_far());
    let wired =
        format!("external add world --uplink tap:out --address 192.0.2.7/24 --gateway {OUTSIDE}");
    join(&near, &wired);
    run(&near, "snat add r --external world --address 192.0.2.9");
    two.near.run("ip link set dev out up");
    two.near.run(&format!("ip addr add {OUTSIDE}/24 dev out"));
    join(&far, "external add world --via 42.0.0.1");
    run(&far, "sg add web");
    run(&far, "sg rule add web --ip-proto tcp --port 80 --cidr 192.0.2.0/24");
    let machine = machine(&far);
    let listen = |netns: &Netns, address: Ipv4Addr| {
        echo(netns.inside(|| TcpListener::bind((address, 80))).unwrap());
    };
    listen(&two.near, OUTSIDE);
    listen(&machine, INSIDE);

    // Nobody declared where the machine is: its own packets have it found.
    reaches(&machine, [&near, &far]);
    let (mut out, seen) = Talk::to(&machine, OUTSIDE);
    assert_eq!(seen, "192.0.2.9");
    out.goes_on();
    let line = "snat add r --external world --address 192.0.2.9";
    let refused = far.daemon().client(&line.split(' ').collect::<Vec<_>>());
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.contains("leads out by host 42.0.0.1, which translates"), "{refused}");

    // The daemon that leads out dies: ports are as before, and the connection goes on.
    for _ in 0..2 {
        die(&mut near);
        near = two.start();
        out.goes_on();
    }
    near.daemon().client_ok(&["upgrade"]);
    out.goes_on();
    reaches(&machine, [&near, &far]);

    // The machine gets an address of its own there: connections by the shared one are over.
    drop(out);
    run(&near, &format!("floating add {FLOATING} --router r --external world --to {INSIDE}"));
    let (mut into, seen) = Talk::to(&two.near, FLOATING);
    assert_eq!(seen, OUTSIDE.to_string());
    into.goes_on();
    let (mut out, seen) = Talk::to(&machine, OUTSIDE);
    assert_eq!(seen, FLOATING.to_string());
    die(&mut near);
    near = two.start();
    into.goes_on();
    out.goes_on();

    let told = run(&far, "explain --from a --to 192.0.2.1 --proto tcp --port 80");
    assert!(told.contains("passes it on to host 42.0.0.1, which leads out"), "{told}");
    assert!(run(&far, "external list").contains("42.0.0.1"));
    // A way out that is taken back is none.
    run(&far, "router detach r --external world");
    eventually("no answer from outside", || !machine.pings_within(1, "192.0.2.1"));
    assert!(run(&far, "drops").contains("no-route"));
    near.daemon_mut().quit();
    far.daemon_mut().quit();
    eventually("the holder ends", || two.place.holder().is_none());
}
