//! Wires of externals, with kernels at both ends: inside a TAP vnic in a network namespace, outside
//! an interface in another one. Needs root.

use std::{
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant},
};

use butterfly_datapath::{
    Front, Mac, Machine, NotInEffect, RoutingChange, Switch, SwitchConfig, VnicPolicy, VnicSpec,
};
use butterfly_model::{
    External, ExternalId, ForwardProtocol, Nat, Network, Router, RouterAddresses, RouterId, Subnet,
    Vni, WireDevice,
};

const PATIENCE: Duration = Duration::from_secs(20);
/// Says to a process that it is the one in a namespace of its own.
const INSIDE: &str = "BUTTERFLY_WIRES_INSIDE";

/// Runs the test of this name in a process with a network namespace of its own. Returns whether
/// this is that process.
fn is_in_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--"]).arg(own).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = command.status().unwrap();
    assert!(status.success(), "{test} failed in its namespace");
    false
}

fn run(words: &[&str]) -> Result<String, String> {
    let [program, rest @ ..] = words else { return Ok(String::new()) };
    let output = Command::new(program).args(rest).output().map_err(|why| why.to_string())?;
    let text = [output.stdout, output.stderr].concat();
    let text = format!("{words:?}: {}", String::from_utf8_lossy(&text));
    if output.status.success() { Ok(text) } else { Err(text) }
}

fn sh(line: &str) {
    run(&["sh", "-ec", line]).unwrap();
}

/// A network namespace beside this one. It goes with this.
struct Space(Child);

impl Space {
    fn new() -> Space {
        let child = Command::new("unshare").args(["--net", "sleep", "120"]).spawn().unwrap();
        let space = Space(child);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        // From when it has left ours.
        let path = space.path();
        eventually("a namespace", || std::fs::read_link(&path).is_ok_and(|its| its != own));
        space.sh("ip link set lo up");
        space
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn run(&self, line: &str) -> Result<String, String> {
        run(&["nsenter", &format!("--net={}", self.path()), "sh", "-ec", line])
    }

    #[track_caller]
    fn sh(&self, line: &str) -> String {
        self.run(line).unwrap()
    }

    /// Waits until an address answers, and returns within a bounded time.
    fn reaches(&self, address: &str) {
        eventually(&format!("an answer of {address}"), || {
            self.run(&format!("ping -n -c 1 -W 1 {address}")).is_ok()
        });
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn external(device: &str, vlan: Option<u32>) -> External {
    let id = ExternalId::new("world").unwrap();
    let addresses = ["192.0.2.7/24", "2001:db8::7/64"];
    let external = External::parse(id, vni(77), addresses, ["192.0.2.1", "2001:db8::1"]).unwrap();
    external.with_wire(WireDevice::parse(device).unwrap(), vlan).unwrap()
}

/// A switch with a public network 42, and a router that leads from there to the external.
fn switch(external: &External) -> (Switch, Result<(), NotInEffect>) {
    let config = SwitchConfig { sessions: 4096, ..SwitchConfig::default() };
    let switch = Switch::start(config, Arc::new(())).unwrap();
    let subnets = [("10.42.0.0/24", "10.42.0.1"), ("fd00:42::/64", "fd00:42::1")];
    let subnets = subnets.map(|(block, gateway)| Subnet::parse(block, Some(gateway)).unwrap());
    let inside = Network::new(vni(42), subnets.to_vec(), None).unwrap().with_public(true);
    switch.change_routing(RoutingChange::DeclareNetwork(inside)).unwrap();
    let outside = external.network().clone();
    switch.change_routing(RoutingChange::DeclareNetwork(outside)).unwrap();
    let laid = switch.change_routing(RoutingChange::DeclareWire(external.clone()));
    let mut router = Router::new(RouterId::new("r").unwrap());
    router.attach(vni(42), RouterAddresses::default());
    let own = RouterAddresses::parse(["192.0.2.7", "2001:db8::7"]).unwrap();
    router.attach(vni(77), own);
    external.default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
    switch.change_routing(RoutingChange::DeclareRouter(router)).unwrap();
    (switch, laid)
}

/// Adds a TAP vnic with the last byte of its addresses, in a namespace that uses it.
fn station(switch: &Switch, id: &str, network: u32, last: u8, bypass: bool) -> Space {
    let space = Space::new();
    let namespace = Some(space.path().into());
    let mac = Mac([2, 0, 0, 0, network as u8, last]);
    let ips: Vec<std::net::IpAddr> = match network {
        42 => vec![[10, 42, 0, last].into(), format!("fd00:42::{last:x}").parse().unwrap()],
        _ => vec![[192, 0, 2, last].into()],
    };
    let spec = VnicSpec {
        id: id.to_owned(),
        mac,
        vni: vni(network),
        front: Front::Inside(Machine::Tap { namespace }),
        policy: VnicPolicy { bypass, ips, ..VnicPolicy::default() },
        sniff_target: None,
        order: 1,
        birth: 1,
    };
    switch.add_vnic(spec).unwrap();
    space
}

/// A machine inside, with the gateways of its network.
fn inside(switch: &Switch) -> Space {
    let space = station(switch, "in0", 42, 10, true);
    space.sh("ip link set dev in0 up
        ip addr add 10.42.0.10/24 dev in0
        ip addr add fd00:42::a/64 dev in0 nodad
        ip route add default via 10.42.0.1
        ip -6 route add default via fd00:42::1");
    space
}

/// Gives the far end of a wire the addresses of the router outside.
fn outside(device: &str) -> String {
    format!(
        "ip link set dev {device} up
        ip addr add 192.0.2.1/24 dev {device}
        ip addr add 2001:db8::1/64 dev {device} nodad
        ip route add 10.42.0.0/24 via 192.0.2.7
        ip -6 route add fd00:42::/64 via 2001:db8::7"
    )
}

/// A veth pair: `wire` here, `peer` there.
fn veth() -> Space {
    let far = Space::new();
    sh(&format!(
        "ip link set lo up
        ip link add wire type veth peer name peer
        ip link set peer netns {}
        ethtool -K wire tx off >/dev/null
        ip link set wire up",
        far.0.id()
    ));
    far.sh("ethtool -K peer tx off txvlan off >/dev/null\nip link set peer up");
    far
}

/// A program that serves in a namespace. It ends with this, also if the test fails.
struct Serving(Child);

impl Serving {
    fn new(space: &Space, words: &[&str]) -> Serving {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", space.path())).args(words);
        Serving(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Data of TCP from one end to the other, in large segments that are cut on the way out.
fn transfers(server: &Space, client: &Space, to: &str) {
    let _serving = Serving::new(server, &["iperf3", "-s", "-1", "-p", "5201"]);
    eventually("a transfer", || {
        client.run(&format!("iperf3 -p 5201 -c {to} -n 8M --connect-timeout 1000")).is_ok()
    });
}

#[test]
fn an_interface_leads_out_and_in() {
    if !is_in_namespace("an_interface_leads_out_and_in") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    near.reaches("2001:db8::1");
    for address in ["10.42.0.10", "fd00:42::a", "192.0.2.7", "2001:db8::7"] {
        far.reaches(address);
    }
    transfers(&far, &near, "192.0.2.1");
    transfers(&near, &far, "10.42.0.10");
    // Nothing of it reached this host's own stack.
    assert!(run(&["ip", "neigh", "show", "dev", "wire"]).unwrap().lines().count() <= 1);
}

/// Packets larger than the MTU leave by a shared address in fragments, which two kernels make and
/// put together again.
#[test]
fn a_shared_address_has_fragments() {
    if !is_in_namespace("a_shared_address_has_fragments") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    far.sh("ip route del 10.42.0.0/24");
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let subnet = Subnet::parse("10.42.0.0/24", Some("10.42.0.1")).unwrap();
    let inside_42 = Network::new(vni(42), vec![subnet], None).unwrap();
    switch.change_routing(RoutingChange::DeclareNetwork(inside_42)).unwrap();
    let rules = vec![Nat::snat("192.0.2.9".parse().unwrap()).unwrap()];
    let router = RouterId::new("r").unwrap();
    switch.change_routing(RoutingChange::DeclareNat(router, vni(77), rules)).unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    let told = near.sh("ping -n -c 20 -i 0.01 -W 1 -s 8000 192.0.2.1");
    assert!(told.contains(" 0% packet loss"), "{told}");
}

/// A wire takes less than the machine inside sends: the router cuts, and two kernels put together,
/// also what they cut themselves before. Who forbids it is told.
#[test]
fn a_router_cuts_for_its_wire() {
    if !is_in_namespace("a_router_cuts_for_its_wire") {
        return;
    }
    let far = veth();
    sh("ip link set wire mtu 1300");
    far.sh("ip link set peer mtu 1300");
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    let lost = |told: &str| !told.contains(" 0% packet loss");
    for size in [1300, 1400, 1472, 8000] {
        let told = near.sh(&format!("ping -n -c 20 -i 0.01 -W 1 -M dont -s {size} 192.0.2.1"));
        assert!(!lost(&told), "{told}");
    }
    let cut = far.sh("cat /proc/net/snmp | grep ^Ip: | tail -n 1 | cut -d ' ' -f 15,16");
    let mut words = cut.split_whitespace().rev().map(|word| word.parse::<u64>().unwrap());
    // Packets that were put together, and the fragments of which.
    let [together, fragments] = [words.next().unwrap(), words.next().unwrap()];
    assert!(together >= 4 * 20 && fragments >= (2 + 2 + 2 + 11) * 20, "{cut}");
    let told = near.run("ping -n -c 1 -W 1 -M do -s 1400 192.0.2.1").unwrap_err();
    assert!(told.contains("mtu = 1300") || told.contains("mtu=1300"), "{told}");
}

#[test]
fn a_tap_device_leads_out_and_in() {
    if !is_in_namespace("a_tap_device_leads_out_and_in") {
        return;
    }
    let (switch, laid) = switch(&external("tap:out", None));
    laid.unwrap();
    sh(&outside("out"));
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    near.reaches("2001:db8::1");
    sh("ping -n -c 1 -W 2 10.42.0.10\nping -n -c 1 -W 2 192.0.2.7");
    // It goes with the external.
    switch.change_routing(RoutingChange::RemoveWire(vni(77))).unwrap();
    assert!(run(&["ip", "link", "show", "out"]).is_err());
    assert!(near.run("ping -n -c 1 -W 1 192.0.2.1").is_err());
}

/// Two machines inside: one has an address outside, the other one shares one, of which it has a
/// port. Nothing outside knows their network.
fn translated(switch: &Switch) -> [Space; 2] {
    let subnet = Subnet::parse("10.42.0.0/24", Some("10.42.0.1")).unwrap();
    let inside = Network::new(vni(42), vec![subnet], None).unwrap();
    switch.change_routing(RoutingChange::DeclareNetwork(inside)).unwrap();
    let ends = ["192.0.2.80", "10.42.0.10"].map(|ip| ip.parse().unwrap());
    let ports = ["192.0.2.9:8080", "10.42.0.11:5201"].map(|end| end.parse().unwrap());
    let rules = vec![
        Nat::floating(ends[0], ends[1]).unwrap(),
        Nat::forward(ForwardProtocol::Tcp, ports[0], ports[1]).unwrap(),
        Nat::snat("192.0.2.9".parse().unwrap()).unwrap(),
    ];
    let router = RouterId::new("r").unwrap();
    switch.change_routing(RoutingChange::DeclareNat(router, vni(77), rules)).unwrap();
    [10, 11].map(|last| {
        let id = format!("in{last}");
        let space = station(switch, &id, 42, last, true);
        space.sh(&format!(
            "ip link set dev {id} up
            ip addr add 10.42.0.{last}/24 dev {id}
            ip route add default via 10.42.0.1"
        ));
        space
    })
}

/// Answers each line of UDP with the address from which it came, until its input ends.
const TELLS: &str = "python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"0.0.0.0\", 7777))
while True:
    _, peer = s.recvfrom(64)
    s.sendto(peer[0].encode(), peer)
'";

/// Asks an address from which one a line comes there.
fn told_by(space: &Space, address: &str) -> Result<String, String> {
    space.run(&format!(
        "python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
s.sendto(b\"?\", (\"{address}\", 7777))
told, peer = s.recvfrom(64)
assert peer[0] == \"{address}\", peer
print(\"from\", told.decode())
'"
    ))
}

/// Machines inside reach each other, and themselves, by their addresses outside.
fn reach_each_other(switch: &Switch) {
    let [one, other] = translated(switch);
    other.reaches("192.0.2.80");
    one.reaches("192.0.2.80");
    // This host's own.
    other.reaches("192.0.2.7");
    let telling = Serving::new(&one, &["sh", "-ec", &format!("exec {TELLS}")]);
    let tells = |space: &Space, from: &str| {
        eventually(&format!("a line from {from}"), || {
            told_by(space, "192.0.2.80").is_ok_and(|told| told.contains(&format!("from {from}")))
        });
    };
    tells(&other, "192.0.2.9");
    tells(&one, "192.0.2.80");
    drop(telling);
    transfers(&one, &other, "192.0.2.80");
    transfers(&other, &one, "192.0.2.9 -p 8080");
}

/// Frames that a wire lost for a reason.
fn lost(switch: &Switch, reason: &str) -> u64 {
    let wires = switch.observe().wires;
    let all = wires.iter().flat_map(|wire| &wire.losses);
    all.filter(|loss| loss.0 == reason).map(|loss| loss.1).sum()
}

#[test]
fn machines_inside_reach_each_other_by_addresses_outside() {
    if !is_in_namespace("machines_inside_reach_each_other_by_addresses_outside") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    reach_each_other(&switch);
    // Nobody outside may look like this host: not even with what would be let in of it.
    let told = run(&["ip", "-br", "link", "show", "wire"]).unwrap();
    let is_mac = |word: &&str| word.len() == 17 && word.matches(':').count() == 5;
    let own = told.split_whitespace().find(is_mac).unwrap();
    far.sh(&format!(
        "python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((\"peer\", 0))
own = bytes.fromhex(\"{}\".replace(\":\", \"\"))
for _ in range(3):
    s.send(own + own + b\"\\x08\\x00\" + bytes(46))
'",
        own
    ));
    eventually("frames that are refused", || lost(&switch, "wire-own-source") == 3);
}

#[test]
fn machines_inside_reach_each_other_by_a_tap_device() {
    if !is_in_namespace("machines_inside_reach_each_other_by_a_tap_device") {
        return;
    }
    let (switch, laid) = switch(&external("tap:out", None));
    laid.unwrap();
    sh(&outside("out"));
    reach_each_other(&switch);
}

/// The far end of a VLAN, without a VLAN device, which not all kernels have: another switch, of
/// which the external's network has the router outside. Ends with its input.
fn far_end() {
    let config = SwitchConfig { sessions: 4096, ..SwitchConfig::default() };
    let switch = Switch::start(config, Arc::new(())).unwrap();
    let id = ExternalId::new("far").unwrap();
    let external = External::parse(id, vni(77), ["192.0.2.200/24"], [""; 0]).unwrap();
    let external = external.with_wire(WireDevice::parse("peer").unwrap(), Some(100)).unwrap();
    let network = external.network().clone();
    switch.change_routing(RoutingChange::DeclareNetwork(network)).unwrap();
    switch.change_routing(RoutingChange::DeclareWire(external)).unwrap();
    let router = station(&switch, "gw0", 77, 1, true);
    router.sh(&outside("gw0"));
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_vlan_of_an_interface_is_a_wire() {
    const NAME: &str = "a_vlan_of_an_interface_is_a_wire";
    if std::env::var_os(INSIDE).is_some_and(|role| role == "far") {
        return far_end();
    }
    if !is_in_namespace(NAME) {
        return;
    }
    let far = veth();
    // What is not of the VLAN is this host's.
    sh("ip addr add 10.9.0.1/24 dev wire");
    far.sh("ip addr add 10.9.0.2/24 dev peer");
    let mut other = Command::new("nsenter")
        .arg(format!("--net={}", far.path()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(INSIDE, "far")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (switch, laid) = switch(&external("wire", Some(100)));
    laid.unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    near.reaches("2001:db8::1");
    far.reaches("10.9.0.1");
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

#[test]
fn vnics_of_a_provider_network_are_on_the_wire() {
    if !is_in_namespace("vnics_of_a_provider_network_are_on_the_wire") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let near = station(&switch, "prov", 77, 50, true);
    near.sh("ip link set dev prov up\nip addr add 192.0.2.50/24 dev prov");
    near.reaches("192.0.2.1");
    far.reaches("192.0.2.50");
}

#[test]
fn a_wire_that_cannot_be_changes_nothing() {
    if !is_in_namespace("a_wire_that_cannot_be_changes_nothing") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    sh(
        "ip link add used type veth peer name unused\nip addr add 10.9.0.1/24 dev used\nip link set used up",
    );
    for (device, vlan, why) in [
        ("missing", None, "external world gets no wire: cannot look up the network interface"),
        ("used", None, "this host has the address 10.9.0.1 there"),
        ("tap:used", None, "there is one of that name"),
        ("tap", Some(100), "cannot be VLAN 100 of a TAP device"),
    ] {
        let change = RoutingChange::DeclareWire(external(device, vlan));
        let text = switch.change_routing(change).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
        near.reaches("192.0.2.1");
    }
}

#[test]
fn an_interface_that_comes_back_is_used_again() {
    if !is_in_namespace("an_interface_that_comes_back_is_used_again") {
        return;
    }
    let far = veth();
    far.sh(&outside("peer"));
    let (switch, laid) = switch(&external("wire", None));
    laid.unwrap();
    let near = inside(&switch);
    near.reaches("192.0.2.1");
    // Both ends have the addresses that they had.
    let own = address_in(&run(&["ip", "-o", "link", "show", "wire"]).unwrap());
    let theirs = address_in(&far.sh("ip -o link show peer"));
    sh("ip link del wire");
    sh(&format!(
        "ip link add wire address {own} type veth peer name peer address {theirs}
        ip link set peer netns {}
        ethtool -K wire tx off >/dev/null
        ip link set wire up",
        far.0.id()
    ));
    far.sh("ethtool -K peer tx off >/dev/null");
    far.sh(&outside("peer"));
    near.reaches("192.0.2.1");
    far.reaches("10.42.0.10");
}

/// Returns the MAC address in what `ip link` prints.
fn address_in(told: &str) -> String {
    let (_, rest) = told.split_once("link/ether ").unwrap();
    rest.split(' ').next().unwrap().to_owned()
}
