//! TAP vnics: programs of the host in network namespaces of their own, as containers are.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use butterfly_api::proto::{self, NicShow, Request, nic};
use butterfly_packet::{build, checksum::Sum, icmp::Icmp, ipv4::Ipv4};
use butterfly_tests::{
    Daemon, Host, Kind, Nic, PATIENCE, eventually,
    frames::{mac, pattern},
    groups,
    station::usual,
    within,
};
use protobuf::MessageField;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub(crate) const VNI: u32 = 7;

/// A named network namespace, which is deleted when this is dropped.
pub(crate) struct Netns(pub(crate) String);

impl Netns {
    pub(crate) fn new() -> Netns {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bfly-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let netns = Netns(name);
        netns.run("ip link set lo up");
        netns
    }

    /// Runs a command in the namespace.
    fn output(&self, command: &str) -> Output {
        let words: Vec<&str> =
            ["netns", "exec", &self.0].into_iter().chain(command.split_whitespace()).collect();
        Command::new("ip").args(&words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        let words: Vec<&str> =
            ["netns", "exec", &self.0].into_iter().chain(command.split_whitespace()).collect();
        run("ip", &words)
    }

    pub(crate) fn spawn(&self, command: &str) -> Child {
        let words: Vec<&str> =
            ["netns", "exec", &self.0].into_iter().chain(command.split_whitespace()).collect();
        Command::new("ip")
            .args(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Calls `body` in the namespace, in a new thread.
    pub(crate) fn inside<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        let file = fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&file),
                    Some(LinkNameSpaceType::Network),
                )
                .unwrap();
                body()
            });
            entered.join().unwrap()
        })
    }

    pub(crate) fn pings(&self, address: &str) -> bool {
        self.pings_within(5, address)
    }

    /// Returns whether an address answers within some seconds.
    pub(crate) fn pings_within(&self, seconds: u32, address: &str) -> bool {
        self.output(&format!("ping -n -c 1 -W {seconds} {address}")).status.success()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).stderr(Stdio::null()).status();
    }
}

#[track_caller]
fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the declaration of the `n`th TAP vnic, with the address 10.0.0.n.
fn tap(id: &str, n: u8, netns: Option<&str>) -> proto::Nic {
    proto::Nic {
        id: Some(id.to_owned()),
        mac: Some(mac(n.into()).to_string()),
        vni: Some(VNI),
        ip: vec![format!("10.0.0.{n}")],
        type_: Some(nic::Type::TAP.into()),
        netns: netns.map(str::to_owned),
        ..proto::Nic::default()
    }
}

pub(crate) fn open(nic: proto::Nic) -> proto::Nic {
    proto::Nic { bypass_filtering: Some(true), ..nic }
}

pub(crate) fn declare(daemon: &Daemon, nic: proto::Nic) -> Result<String, String> {
    let response =
        daemon.ask(Request { nic_add: MessageField::some(nic), ..Request::default() })?;
    Ok(response.nic_add.path().to_owned())
}

pub(crate) fn show(daemon: &Daemon, id: &str) -> NicShow {
    daemon
        .ask(Request { nic_show: Some(id.to_owned()), ..Request::default() })
        .unwrap()
        .nic_show
        .unwrap()
}

/// Makes a namespace with an unfiltered vnic in it, and sets the interface's address.
pub(crate) fn container(daemon: &Daemon, id: &str, n: u8) -> Netns {
    let netns = Netns::new();
    let interface = declare(daemon, open(tap(id, n, Some(&netns.0)))).unwrap();
    netns.run(&format!("ip addr add 10.0.0.{n}/24 dev {interface}"));
    netns
}

/// Frames of a container arrive at a VM, and the answers at the container.
#[test]
fn a_container_pings_a_virtual_machine() {
    let Some(host) = Host::process() else { return };
    let mut vm = host.station(&Nic::bypass("vm", mac(1), VNI), &usual());
    let netns = container(host.daemon(), "tap-a", 2);
    let link = netns.run("ip -o link show dev tap-a");
    assert!(
        link.contains("mtu 1500") && link.contains(&mac(2).to_string()) && link.contains("UP"),
        "{link}"
    );

    let mut ping = netns.spawn("ping -n -c 3 -i 0.01 -W 5 10.0.0.1");
    let mut answered = 0;
    while answered < 3 {
        let frame = vm.receive();
        match frame[12..14] {
            [8, 6] if frame[21] == 1 && frame[38..42] == [10, 0, 0, 1] => {
                vm.send(&build::ethernet(mac(1), mac(2)).arp_reply([10, 0, 0, 1], [10, 0, 0, 2]));
            }
            [8, 0] => {
                let ip = Ipv4::parse(&frame[14..]).unwrap();
                let echo = Icmp::parse(ip.payload().unwrap()).unwrap();
                let packet = build::ethernet(mac(1), mac(2)).ipv4(ip.destination(), ip.source());
                vm.send(&packet.icmp(0, 0, echo.rest_of_header(), echo.body()));
                answered += 1;
            }
            // Neighbour discovery of the container's own IPv6.
            _ => {}
        }
    }
    assert!(ping.wait().unwrap().success());
    let shown = show(host.daemon(), "tap-a");
    assert!(shown.attached() && shown.in_packets() >= 4 && shown.out_packets() >= 4, "{shown}");
    assert_eq!((shown.path(), shown.netns()), ("tap-a", netns.0.as_str()));
    assert!(
        shown.role.is_none()
            && shown.peer_pid.is_none()
            && shown.features_refused.iter().all(|name| name != "csum")
    );
}

/// Sends `len` bytes from one container to another over TCP, and compares them.
fn transfer(from: &Netns, to: &Netns, address: Ipv4Addr, len: usize) {
    let data = pattern(9, len);
    let listener = to.inside(|| TcpListener::bind(SocketAddrV4::new(address, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let sent = data.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let stream = from.inside(|| {
                TcpStream::connect_timeout(&SocketAddrV4::new(address, port).into(), PATIENCE)
            });
            stream.unwrap().write_all(&sent).unwrap();
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == data, "{} of {len} bytes, or others", got.len());
    });
}

/// Sends `len` bytes from one container to another over TCP, as fast as possible.
fn pour(from: &Netns, to: &Netns, address: Ipv4Addr, len: u64) {
    let listener = to.inside(|| TcpListener::bind(SocketAddrV4::new(address, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let stream = from.inside(|| {
                TcpStream::connect_timeout(&SocketAddrV4::new(address, port).into(), PATIENCE)
            });
            let mut stream = stream.unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            std::io::copy(
                &mut std::io::repeat(7).take(len),
                &mut std::io::BufWriter::with_capacity(1 << 20, &mut stream),
            )
            .unwrap();
        });
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = std::io::BufReader::with_capacity(1 << 20, stream);
        assert_eq!(std::io::copy(&mut reader, &mut std::io::sink()).unwrap(), len);
    });
}

#[test]
fn containers_exchange_tcp_whatever_their_offloads_are() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let (a, b) = (container(daemon, "tap-a", 1), container(daemon, "tap-b", 2));
    assert!(a.pings("10.0.0.2") && b.pings("10.0.0.1"));
    let size = 4 << 20;
    let before = show(daemon, "tap-a");
    transfer(&a, &b, Ipv4Addr::new(10, 0, 0, 2), size);
    let after = show(daemon, "tap-a");
    let packets = after.in_packets() - before.in_packets();
    assert!(packets < size as u64 / 1448 / 2, "{packets} packets: no large segments went");
    // Frames that the container sent count as "in", as for a VM.
    for (id, more) in [("tap-a", true), ("tap-b", false)] {
        let stats = daemon
            .ask(Request { nic_stats: Some(id.to_owned()), ..Request::default() })
            .unwrap()
            .nic_stats
            .unwrap();
        let (sent, got) =
            if more { (stats.in_(), stats.out()) } else { (stats.out(), stats.in_()) };
        assert!(sent > size as u64 && got > 0 && got < sent, "{id}: {stats}");
    }
    // The receiver's ring has room for all that one TCP connection has under way.
    pour(&a, &b, Ipv4Addr::new(10, 0, 0, 2), 1 << 30);
    let drops = |id: &str, reason: &str| {
        show(daemon, id).drops.iter().find(|drop| drop.reason() == reason).unwrap().count()
    };
    assert_eq!(drops("tap-b", "ring-full"), 0);
    // Turn partial checksums and large segments off, in one container after the other, so that
    // unlike ends are tested too.
    for netns in [&a, &b] {
        let interface = if std::ptr::eq(netns, &a) { "tap-a" } else { "tap-b" };
        netns.run(&format!("ethtool -K {interface} tx off tso off gso off"));
        transfer(&a, &b, Ipv4Addr::new(10, 0, 0, 2), size);
        transfer(&b, &a, Ipv4Addr::new(10, 0, 0, 1), size);
    }
    assert_eq!(drops("tap-a", "bad-offload"), 0);
}

/// Programs that send and receive UDP in a namespace: what is sent at once is cut by whoever comes
/// last.
const SENDS: &str = "import socket, sys
to, size = sys.argv[1], int(sys.argv[2])
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.setsockopt(17, 103, size) # UDP_SEGMENT
socket.sendto(bytes(n * 7 % 251 for n in range(20 * size)), (to, 4000))
";
const RECEIVES: &str = "import socket, sys
size, ready = int(sys.argv[1]), sys.argv[2]
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.bind(('0.0.0.0', 4000))
socket.settimeout(20)
open(ready, 'w').close()
got = [socket.recv(65536) for _ in range(20)]
assert [len(part) for part in got] == [size] * 20, [len(part) for part in got]
assert b''.join(got) == bytes(n * 7 % 251 for n in range(20 * size))
print('whole')
";

/// Several datagrams of UDP pass as one frame between containers, and are cut for a machine that
/// does not take that.
#[test]
fn datagrams_that_are_sent_at_once_stay_together() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let (a, b) = (container(daemon, "a", 1), container(daemon, "b", 2));
    if !show(daemon, "a").features_negotiated.iter().any(|name| name == "host-uso") {
        println!("this kernel's TAP devices have no UDP segmentation");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (sends, receives) = (file("sends.py", SENDS), file("receives.py", RECEIVES));
    // Nothing but the datagrams is to be sent: no question for an address, nothing of IPv6.
    for (from, name, to) in [(&a, "a", 2), (&b, "b", 1)] {
        from.run(&format!("sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1"));
        from.run(&format!(
            "ip neigh replace 10.0.0.{to} lladdr {} dev {name} nud permanent",
            mac(to)
        ));
    }
    assert!(a.pings("10.0.0.2"));
    for size in [100, 1000, 1472] {
        let ready = dir.path().join(format!("ready-{size}"));
        let before = show(daemon, "a").in_packets();
        std::thread::scope(|scope| {
            let receiver =
                scope.spawn(|| b.run(&format!("python3 {receives} {size} {}", ready.display())));
            eventually("the receiver", || ready.exists());
            a.run(&format!("python3 {sends} 10.0.0.2 {size}"));
            assert_eq!(receiver.join().unwrap().trim(), "whole");
        });
        let frames = show(daemon, "a").in_packets() - before;
        assert!(frames == 1, "{frames} frames for 20 datagrams of {size} bytes");
    }
    // A machine without the feature gets each by itself.
    let mut vm = host.station(&Nic::bypass("vm", mac(3), VNI), &usual());
    a.run(&format!("ip neigh add 10.0.0.3 lladdr {} dev a", mac(3)));
    a.run(&format!("python3 {sends} 10.0.0.3 1000"));
    let mut got = Vec::new();
    eventually("datagrams", || {
        got.extend(vm.pending().into_iter().filter(|frame| frame.get(23) == Some(&17)));
        got.len() >= 20
    });
    let sent: Vec<u8> = (0..20_000u32).map(|n| (n * 7 % 251) as u8).collect();
    assert_eq!(got.len(), 20);
    assert!(got.iter().flat_map(|frame| &frame[42..]).eq(&sent));
    for frame in &got {
        let ip = Ipv4::parse(&frame[14..]).unwrap();
        let datagram = ip.payload().unwrap();
        let pseudo = Sum::pseudo_v4(ip.source(), ip.destination(), 17, datagram.len() as u16);
        assert!(ip.checksum_is_valid() && pseudo.push(datagram).is_valid());
    }
}

#[test]
fn groups_decide_about_containers_as_about_machines() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let filtered = |id, n, netns: &Netns| {
        let nic = proto::Nic { security_group: vec!["web".into()], ..tap(id, n, Some(&netns.0)) };
        let interface = declare(daemon, nic).unwrap();
        netns.run(&format!("ip addr add 10.0.0.{n}/24 dev {interface}"));
    };
    let (a, b) = (Netns::new(), Netns::new());
    filtered("tap-a", 1, &a);
    filtered("tap-b", 2, &b);
    assert!(!a.output("ping -n -c 1 -W 1 10.0.0.2").status.success(), "nothing lets it in");
    let denied = show(daemon, "tap-b")
        .drops
        .iter()
        .find(|drop| drop.reason() == "ingress-denied")
        .unwrap()
        .count();
    assert!(denied > 0);
    daemon.ask(groups::rule_add("web", "in icmp - 10.0.0.1/32")).unwrap();
    assert!(a.pings("10.0.0.2"));
    daemon.ask(groups::rule_add("web", "in tcp 1-65535 10.0.0.0/24")).unwrap();
    transfer(&a, &b, Ipv4Addr::new(10, 0, 0, 2), 100_000);
    // The container sends with its own address only.
    a.run("ip addr add 10.0.0.9/24 dev tap-a");
    assert!(!a.output("ping -n -c 1 -W 1 -I 10.0.0.9 10.0.0.2").status.success());
}

/// Broadcasts, as of DHCP, reach VMs and containers.
#[test]
fn a_broadcast_reaches_everybody() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let mut vm = host.station(&Nic::bypass("vm", mac(1), VNI), &usual());
    let (a, b) = (container(daemon, "tap-a", 2), container(daemon, "tap-b", 3));
    let udp = |netns: &Netns, address: Ipv4Addr| {
        netns.inside(move || std::net::UdpSocket::bind((address, 67)).unwrap())
    };
    let heard = udp(&b, Ipv4Addr::UNSPECIFIED);
    heard.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = udp(&a, Ipv4Addr::new(10, 0, 0, 2));
    client.set_broadcast(true).unwrap();
    client.send_to(b"discover", (Ipv4Addr::new(10, 0, 0, 255), 67)).unwrap();
    let mut got = [0; 100];
    let (len, from) = heard.recv_from(&mut got).unwrap();
    assert_eq!((&got[..len], from.ip()), (&b"discover"[..], Ipv4Addr::new(10, 0, 0, 2).into()));
    eventually("the machine hears it", || {
        vm.pending().iter().any(|frame| frame.ends_with(b"discover") && frame[..6] == [0xff; 6])
    });
}

/// A namespace is deleted under traffic: the vnic reports it, the others do not notice, and the
/// same declaration makes the interface anew.
#[test]
fn a_namespace_that_is_deleted_detaches_its_vnic() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let (a, b, c) = (
        container(daemon, "tap-a", 1),
        container(daemon, "tap-b", 2),
        container(daemon, "tap-c", 3),
    );
    let mut flood = a.spawn("ping -n -q -f -c 1000000 10.0.0.2");
    eventually("there is traffic", || show(daemon, "tap-b").out_packets() > 100);
    let name = b.0.clone();
    drop(b);
    eventually("the vnic is detached", || !show(daemon, "tap-b").attached());
    let shown = show(daemon, "tap-b");
    let reason = "its network interface tap-b is gone: somebody deleted it, or the network namespace that it was in; \
                  the same `butterfly nic add` makes it anew";
    assert_eq!((shown.last_detach_reason(), shown.trouble()), (reason, reason));
    assert!(daemon.client_ok(&["events", "tap-b"]).contains(reason));
    flood.kill().unwrap();
    flood.wait().unwrap();
    assert!(a.pings("10.0.0.3") && c.pings("10.0.0.1"), "the others go on");

    let nic = || open(tap("tap-b", 2, Some(&name)));
    let refused = declare(daemon, nic()).unwrap_err();
    assert!(
        refused.contains(&format!("cannot use the network namespace /run/netns/{name}")),
        "{refused}"
    );
    run("ip", &["netns", "add", &name]);
    let b = Netns(name.clone());
    assert_eq!(declare(daemon, nic()).unwrap(), "tap-b");
    b.run("ip addr add 10.0.0.2/24 dev tap-b");
    assert!(a.pings("10.0.0.2"));
    // A deleted interface has the same effect.
    b.run("ip link del tap-b");
    eventually("the vnic is detached", || !show(daemon, "tap-b").attached());
    assert_eq!(declare(daemon, nic()).unwrap(), "tap-b");
    assert!(show(daemon, "tap-b").attached());
}

/// Returns the trouble of a vnic, and the outputs of the commands that show it.
fn told_of(daemon: &Daemon, id: &str) -> (Option<String>, [String; 3]) {
    let pages = [&["nic", "show", id][..], &["nic", "list", "--wide", "--json"], &["show"]];
    (show(daemon, id).trouble, pages.map(|words| daemon.client_ok(words)))
}

/// A user takes an interface down and renames it, here or in another namespace. The daemon reports
/// it with the command that takes it up again, under the current name.
#[test]
fn an_interface_that_is_down_is_told() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let a = container(daemon, "tap-a", 1);
    let place = format!("/run/netns/{}", a.0);
    declare(daemon, open(tap("tap-b", 2, Some(&place)))).unwrap();
    let here = format!("bft{}", std::process::id());
    assert_eq!(declare(daemon, open(tap(&here, 3, None))).unwrap(), here);

    let inside = format!("ip -n {} link", a.0);
    for (id, link, command) in [
        ("tap-a", inside.as_str(), inside.clone()),
        ("tap-b", &inside, format!("nsenter --net={place} ip link")),
        (&here, "ip link", "ip link".to_owned()),
    ] {
        let change = |what: &str| run("sh", &["-c", &format!("{link} set {what}")]);
        assert_eq!(told_of(daemon, id).0, None);
        change(&format!("{id} down"));
        change(&format!("{id} name {id}-r"));
        let (trouble, pages) = told_of(daemon, id);
        let wanted = format!(
            "its network interface {id}-r is down, nothing passes: `{command} set {id}-r up`"
        );
        assert_eq!(trouble.as_deref(), Some(wanted.as_str()));
        for page in pages {
            assert!(page.contains(&wanted), "{id}: {page}");
        }
        // The command in the report takes it up again.
        let (_, rest) = wanted.split_once('`').unwrap();
        run("sh", &["-c", rest.trim_end_matches('`')]);
        assert_eq!(told_of(daemon, id).0, None);
    }
}

#[test]
fn nothing_is_left_of_a_hundred() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let netns = Netns::new();
    let nic = || open(tap("tap-a", 1, Some(&netns.0)));
    declare(daemon, nic()).unwrap();
    host.remove("tap-a");
    let before = (daemon.descriptors(), daemon.threads(), daemon.guest_mappings());
    for _ in 0..100 {
        assert_eq!(declare(daemon, nic()).unwrap(), "tap-a");
        assert!(netns.run("ip -o link").contains("tap-a"));
        host.remove("tap-a");
        assert!(!netns.run("ip -o link").contains("tap-a"), "it is gone when the API answers");
    }
    // The kernel may still be ending a thread that the daemon has joined.
    eventually("all is given back", || {
        (daemon.descriptors(), daemon.threads(), daemon.guest_mappings()) == before
    });
}

/// docs/tuning.md: the limit of open files counts 16 for each vnic. A TAP vnic has both ends in the
/// daemon. docs/containers.md: its memory has a bound.
#[test]
fn a_guest_of_ours_takes_no_more_than_it_is_counted_with() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let netns = Netns::new();
    // The first vnic also opens what the daemon needs once, such as the API connection.
    declare(daemon, open(tap("tap-a", 1, Some(&netns.0)))).unwrap();
    host.remove("tap-a");
    for (n, nic) in [
        (1, open(tap("tap-a", 1, Some(&netns.0)))),
        (2, bench("rcv", 2, "ICMP_RCV_LIKE", None)),
        (3, bench("snd", 3, "ICMP_SND_LIKE", Some(2))),
    ] {
        let id = nic.id().to_owned();
        let before = daemon.descriptors();
        declare(daemon, nic).unwrap();
        eventually("its queues run", || show(daemon, &id).queues.len() == 2);
        let taken = daemon.descriptors() - before;
        assert!(taken <= 16, "vnic {n}, {id}, takes {taken} descriptors");
        let memory: u64 = show(daemon, &id).memory_regions.iter().map(|region| region.size()).sum();
        assert!((1..=25 << 20).contains(&memory), "vnic {n}, {id}, has {memory} bytes of memory");
    }
}

/// docs/containers.md: a running process gets an interface, by the path of its namespace and by a
/// name for it.
#[test]
fn a_running_process_gets_an_interface() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let mut process = Command::new("unshare")
        .args(["--net", "sleep", "60"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid = process.id().to_string();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    eventually("it is in its namespace", || {
        fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|there| there != own)
    });
    let netns = Netns(format!("bfly-{pid}-of-process"));
    run("ip", &["netns", "attach", &netns.0, &pid]);
    let words = [
        "nic",
        "add",
        "--type",
        "TAP",
        "--id",
        "web0",
        "--mac",
        "52:54:00:00:00:23",
        "--vni",
        "42",
        "--ip",
        "10.0.0.23",
    ];
    for given in [netns.0.clone(), format!("/proc/{pid}/ns/net")] {
        assert_eq!(daemon.client_ok(&[&words[..], &["--netns", &given]].concat()), "web0\n");
        netns.run("ip addr add 10.0.0.23/24 dev web0");
        netns.run("ip route add default via 10.0.0.1");
        assert!(daemon.client_ok(&["nic", "show", "web0"]).contains(&given));
    }
    daemon.client_ok(&["nic", "del", "web0"]);
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn an_identical_declaration_changes_nothing_and_a_dump_restores() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let a = container(daemon, "tap-a", 1);
    let index = || a.run("cat /sys/class/net/tap-a/ifindex");
    let before = index();
    assert_eq!(declare(daemon, open(tap("tap-a", 1, Some(&a.0)))).unwrap(), "tap-a");
    assert_eq!(index(), before);
    let dump = host.dir().join("dump");
    fs::write(&dump, daemon.client_ok(&["dump"])).unwrap();
    host.remove("tap-a");
    daemon.client_ok(&["request", dump.to_str().unwrap()]);
    assert!(a.run("ip -o link show dev tap-a").contains("UP"));
    assert_eq!(fs::read_to_string(&dump).unwrap(), daemon.client_ok(&["dump"]));
    assert!(daemon.client_ok(&["status"]).contains("\"tap:tap-a\" ["));
}

#[test]
fn what_is_no_namespace_is_refused_with_what_to_do() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let netns = Netns::new();
    netns.run("ip link add tap-a type veth peer name other");
    let file = host.dir().join("file");
    fs::write(&file, "").unwrap();
    for (given, words) in [
        ("there-is-none-such", "ip netns attach"),
        (file.to_str().unwrap(), "it is no namespace"),
        ("/proc/self/ns/mnt", "it is no network namespace"),
        (&netns.0, "it has an interface called tap-a already"),
    ] {
        let refused = declare(daemon, tap("tap-a", 1, Some(given))).unwrap_err();
        assert!(refused.contains(words), "{given}: {refused}");
        assert!(host.ids().is_empty());
    }
    assert!(
        !run("ip", &["-o", "link"]).contains(&mac(1).to_string()),
        "nothing is left of the attempts"
    );
}

/// If a change fails, the container keeps its interface, its address and its connections.
#[test]
fn a_refused_change_leaves_a_container_as_it_is() {
    let Some(host) = Host::process() else { return };
    let (one, two, full) =
        (container(host.daemon(), "one", 1), container(host.daemon(), "two", 2), Netns::new());
    one.run("ping -c 1 -W 5 10.0.0.2");
    full.run("ip link add one type veth peer name other");
    let (before, attached) =
        (one.run("ip -o addr show dev one"), show(host.daemon(), "one").attach_count());
    let wrong = open(tap("one", 1, Some("there-is-no-such-namespace")));
    let taken = open(tap("one", 1, Some(&full.0)));
    let socket = host.dir().join("qemu-vhost-one");
    let somebody = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let machine = proto::Nic {
        type_: Some(nic::Type::VHOST_USER_SERVER.into()),
        netns: None,
        ..wrong.clone()
    };
    for (declaration, why) in [
        (wrong, "there-is-no-such-namespace"),
        (taken, "has an interface called one already"),
        (machine, "somebody listens on"),
    ] {
        let refused = declare(host.daemon(), declaration).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(one.run("ip -o addr show dev one"), before);
        one.run("ping -c 1 -W 5 10.0.0.2");
    }
    assert_eq!(show(host.daemon(), "one").attach_count(), attached);
    drop(somebody);
    // A possible change is carried out: another MAC address, the same name.
    let moved = proto::Nic { mac: Some(mac(9).to_string()), ..open(tap("one", 1, Some(&one.0))) };
    assert_eq!(declare(host.daemon(), moved).unwrap(), "one");
    assert!(one.run("ip -o link show dev one").contains(&mac(9).to_string()));
    drop(two);
}

/// In the host's own namespace: the daemon leaves an interface of the same name alone, and its own
/// interface ends with it.
#[test]
fn the_host_itself_may_have_one() {
    let Some(mut host) = Host::process() else { return };
    let n = std::process::id() % 1000;
    let id = format!("bfly-tap-{n}");
    let address = proto::Nic { mac: Some("02:b0:77:00:00:01".into()), ..open(tap(&id, 1, None)) };
    let name = declare(host.daemon(), address.clone()).unwrap();
    assert_eq!(name, id);
    let second =
        proto::Nic { id: Some("lo".into()), mac: Some("02:b0:77:00:00:02".into()), ..address };
    let other = declare(host.daemon(), second).unwrap();
    assert!(other.starts_with("tap"), "{other}");
    assert!(Path::new(&format!("/sys/class/net/{other}")).exists());
    host.daemon().signal("KILL");
    host.daemon_mut().wait_for_end();
    for name in [name, other] {
        eventually("the device is gone", || !Path::new(&format!("/sys/class/net/{name}")).exists());
    }
    // The killed daemon left its session table in memory; the next one removes it.
    drop(Daemon::start_in(host.dir(), &[], &[]));
}

pub(crate) fn bench(id: &str, n: u8, btype: &str, to: Option<u8>) -> proto::Nic {
    proto::Nic {
        type_: Some(nic::Type::BENCH.into()),
        btype: Some(btype.to_owned()),
        dip: to.map(|to| format!("10.0.0.{to}")),
        dmac: to.map(|to| mac(to.into()).to_string()),
        ..open(tap(id, n, None))
    }
}

/// A VM behind a Linux bridge on a TAP vnic. While the device is in the bridge, the daemon gives it
/// another first octet; else the bridge would keep the VM's frames for itself. Outside of a bridge
/// the device has the vnic's address.
#[test]
fn a_machine_behind_a_bridge() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let (room, machine) = (Netns::new(), Netns::new());
    let options = ["--uplink", "none"].map(str::to_owned);
    let host = Host::of(Daemon::start_with(&["ip", "netns", "exec", &room.0], &options));
    let other = container(host.daemon(), "other", 2);
    let port = declare(host.daemon(), open(tap("port", 1, None))).unwrap();
    let address = || {
        let link = room.run(&format!("ip -o link show dev {port}"));
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
    };
    let own = mac(1).to_string();
    let inside = format!("fe{}", &own[2..]);
    assert_eq!(address(), own);
    room.run("ip link add br0 type bridge");
    room.run("ip link set br0 up");
    room.run(&format!("ip link add inner type veth peer name eth0 netns {}", machine.0));
    room.run("ip link set inner up master br0");
    machine.run(&format!("ip link set eth0 address {own} up"));
    machine.run("ip addr add 10.0.0.1/24 dev eth0");
    for _ in 0..2 {
        room.run(&format!("ip link set {port} master br0"));
        within(PATIENCE, "the device has another address", || address() == inside);
        within(PATIENCE, "the machine is reached", || other.pings("10.0.0.1"));
        assert!(machine.pings("10.0.0.2"));
        room.run(&format!("ip link set {port} nomaster"));
        within(PATIENCE, "the device has its address back", || address() == own);
        assert!(!other.pings("10.0.0.1"));
    }
    // The daemon leaves an address alone that another program set.
    room.run(&format!("ip link set {port} address 02:00:00:00:00:77"));
    room.run(&format!("ip link set {port} master br0"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(address(), "02:00:00:00:00:77");
}
