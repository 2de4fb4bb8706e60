//! Externals with wires, in whole daemons: what a public network sends leaves this host and comes
//! back, also after the daemon died. The kernel of a network namespace is the outside.

use std::process::{Child, Command};

use butterfly_api::proto::{
    Attachment, Cidr, DropListReq, External, Nat, Network, Request, Router, Subnet, Wire, nat,
};
use butterfly_model::RouterId;
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::{Daemon, Host, Nic, Station, eventually, frames::mac, station::usual};
use protobuf::MessageField;

use crate::lasting::{Place, die, is_attached};

/// Address of the machine inside, and of the router outside.
const INSIDE: [u8; 4] = [10, 42, 0, 10];
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];

/// A network namespace in which daemons come and go. It goes with this.
struct Space(Child);

impl Space {
    fn new() -> Space {
        let child = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
        let space = Space(child);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let path = format!("/proc/{}/ns/net", space.0.id());
        eventually("a namespace", || std::fs::read_link(&path).is_ok_and(|its| its != own));
        space
    }

    fn before(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.0.id())]
    }

    fn sh(&self, script: &str) -> String {
        let [program, net] = self.before();
        let output = Command::new(program).args([&net, "sh", "-ec", script]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number of an interface.
    fn index(&self, interface: &str) -> String {
        let told = self.sh(&format!("ip -o link show dev {interface}"));
        told.split(':').next().unwrap_or_default().to_owned()
    }

    fn start(&self, place: &Place) -> Host {
        let before = self.before();
        let before = before.each_ref().map(String::as_str);
        Host::of(Daemon::start_in(place.0.path(), &before, &place.options()))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn router() -> Mac {
    Mac(RouterId::new("r").unwrap().gateway_mac())
}

/// Declares a network, a router and an external with this device. `public`: the outside knows the
/// network.
fn declare(host: &Host, device: &str, public: bool) {
    let block = Cidr { address: Some("10.42.0.0".into()), mask_size: Some(24), ..Cidr::default() };
    let subnet = Subnet {
        cidr: MessageField::some(block),
        gateway: Some("10.42.0.1".into()),
        ..Subnet::default()
    };
    let network =
        Network { vni: Some(42), subnet: vec![subnet], public: Some(public), ..Network::default() };
    let external = External {
        id: Some("world".into()),
        uplink: Some(device.into()),
        address: vec!["192.0.2.7/24".into()],
        gateway: vec!["192.0.2.1".into()],
        ..External::default()
    };
    let attach = |vni: Option<u32>, external: Option<&str>| Request {
        router_attach: MessageField::some(Attachment {
            router: Some("r".into()),
            vni,
            external: external.map(Into::into),
            address: external.map(|_| "192.0.2.7".to_owned()).into_iter().collect(),
            ..Attachment::default()
        }),
        ..Request::default()
    };
    let router = Router { id: Some("r".into()), ..Router::default() };
    for request in [
        Request { network_add: MessageField::some(network), ..Request::default() },
        Request { external_add: MessageField::some(external), ..Request::default() },
        Request { router_add: MessageField::some(router), ..Request::default() },
        attach(Some(42), None),
        attach(None, Some("world")),
    ] {
        host.daemon().ask(request).unwrap();
    }
}

/// Pings the router outside until it answers.
fn reaches(station: &mut Station) {
    let from = station.mac();
    let mut number = 0;
    eventually("an answer from outside", || {
        number += 1;
        let ip = build::ethernet(from, router()).ipv4(INSIDE, OUTSIDE);
        station.send(&ip.ping(7, number, b"is anybody there?"));
        let is_answer =
            |frame: &Vec<u8>| frame.get(26..30) == Some(&OUTSIDE[..]) && frame.get(34) == Some(&0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        station.pending().iter().any(is_answer)
    });
}

/// Returns what the daemon tells of the wire.
fn told(host: &Host) -> Wire {
    let list = Request { external_list: Some(true), ..Request::default() };
    let mut list = host.daemon().ask(list).unwrap().external_list;
    assert_eq!(list.len(), 1);
    list.remove(0).wire.unwrap_or_default()
}

/// The daemon tells what passed by the wire, and what keeps it from that.
fn is_seen(host: &Host, space: &Space, device: &str, interface: &str) {
    // The daemon looks at an interface once a second.
    eventually("no trouble", || told(host).trouble.is_none());
    let wire = told(host);
    assert_eq!(wire.interface(), interface, "{wire}");
    assert!(wire.in_packets() > 0 && wire.out_bytes() > 0, "{wire}");
    let drops = DropListReq { nic_id: Some("wire/world".into()), ..DropListReq::default() };
    let drops = Request { drop_list: MessageField::some(drops), ..Request::default() };
    assert!(host.daemon().ask(drops).is_ok(), "a wire is asked about like a vnic");
    space.sh(&format!("ip link set dev {device} down"));
    eventually("a trouble", || told(host).trouble().contains(interface));
    space.sh(&format!("ip link set dev {device} up"));
    eventually("no trouble", || told(host).trouble.is_none());
}

/// The outside reaches the machine inside and is answered.
fn goes_on_after_a_death(device: &str, outside: &str, prepare: &str) {
    let Some(place) = Place::new() else { return };
    let space = Space::new();
    space.sh(prepare);
    let mut host = space.start(&place);
    declare(&host, device, true);
    space.sh(&format!(
        "ip link set dev {outside} up
        ip addr add 192.0.2.1/24 dev {outside}
        ip route add 10.42.0.0/24 via 192.0.2.7"
    ));
    let nic = Nic::bypass("a", mac(1), 42).ips(&["10.42.0.10"]);
    let mut station = host.station(&nic, &usual());
    reaches(&mut station);
    is_seen(&host, &space, outside, device.trim_start_matches("tap:"));
    // An interface that was down has lost its addresses of IPv6 alone, and its routes.
    space.sh("ip route replace 10.42.0.0/24 via 192.0.2.7");
    reaches(&mut station);
    let index = space.index(outside);
    for _ in 0..2 {
        die(&mut host);
        host = space.start(&place);
        reaches(&mut station);
        assert!(is_attached(&station));
    }
    let after = space.index(outside);
    assert_eq!(index, after, "the device is the same");
    host.daemon_mut().quit();
    eventually("the holder ends", || place.holder().is_none());
}

#[test]
fn an_interface_leads_out_after_a_death() {
    let wire = "ip link set lo up
        ip link add wire type veth peer name far
        ethtool -K far tx off >/dev/null
        ip link set dev wire up";
    goes_on_after_a_death("wire", "far", wire);
}

#[test]
fn a_tap_device_leads_out_after_a_death() {
    goes_on_after_a_death("tap:out", "out", "ip link set lo up");
}

/// Sends from a port inside to one of the router outside, until it hears of it. Returns the port
/// from which it came, as a program outside tells it: "port 1234 of 192.0.2.9".
fn tells(station: &mut Station, port: u16) -> String {
    let from = station.mac();
    let mut told = None;
    eventually("an answer that tells the port", || {
        let ip = build::ethernet(from, router()).ipv4(INSIDE, OUTSIDE);
        station.send(&ip.udp(port, 7777, b"who am I?"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut answers = station.pending().into_iter().filter(|frame| {
            frame.get(26..30) == Some(&OUTSIDE[..])
                && frame.get(23) == Some(&17)
                && frame.get(36..38) == Some(&port.to_be_bytes()[..])
        });
        told =
            answers.next_back().and_then(|frame| String::from_utf8(frame.get(42..)?.to_vec()).ok());
        told.is_some()
    });
    told.unwrap()
}

/// Machines share an address outside. A program of the world tells from which port their packets
/// come: the same after deaths of the daemon, for each port inside, and that of another machine is
/// another one.
#[test]
fn shared_ports_outlast_deaths() {
    let Some(place) = Place::new() else { return };
    let space = Space::new();
    space.sh("ip link set lo up");
    let mut host = space.start(&place);
    declare(&host, "tap:out", false);
    space.sh("ip link set dev out up
        ip addr add 192.0.2.1/24 dev out");
    let share = |address: &str| Request {
        nat_add: MessageField::some(Nat {
            router: Some("r".into()),
            external: Some("world".into()),
            kind: Some(nat::Kind::SNAT.into()),
            address: Some(address.into()),
            ..Nat::default()
        }),
        ..Request::default()
    };
    host.daemon().ask(share("192.0.2.9")).unwrap();
    let mirror = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('192.0.2.1', 7777))
while True:
    _, (address, port) = s.recvfrom(100)
    s.sendto(f'port {port} of {address}'.encode(), (address, port))";
    let [program, net] = space.before();
    let mut mirror = Command::new(program).args([&net, "python3", "-c", mirror]).spawn().unwrap();
    let nics = [("a", 1, "10.42.0.10"), ("b", 2, "10.42.0.11")];
    let [mut a, mut b] =
        nics.map(|(id, n, ip)| host.station(&Nic::bypass(id, mac(n), 42).ips(&[ip]), &usual()));
    let before = [1000, 5000, 6000].map(|port| tells(&mut a, port));
    assert_eq!(before[1..], ["port 5000 of 192.0.2.9", "port 6000 of 192.0.2.9"]);
    assert!(before[0].ends_with(" of 192.0.2.9") && !before[0].starts_with("port 1000 "));
    // The other machine has the same port inside, and not outside.
    let ip = build::ethernet(b.mac(), router()).ipv4([10, 42, 0, 11], OUTSIDE);
    b.send(&ip.udp(5000, 7777, b"who am I?"));
    eventually("an answer to the other machine", || {
        b.pending().iter().any(|frame| frame.get(36..38) == Some(&5000_u16.to_be_bytes()[..]))
    });
    let in_use = |host: &Host| {
        let told = host.daemon().client_ok(&["nat", "list", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["nat"][0]["udp_ports"].as_u64()
    };
    assert_eq!(in_use(&host), Some(4));
    for _ in 0..2 {
        die(&mut host);
        host = space.start(&place);
        assert_eq!([1000, 5000, 6000].map(|port| tells(&mut a, port)), before);
        assert_eq!(in_use(&host), Some(4));
        assert!(is_attached(&a));
    }
    // An upgrade is one more process.
    host.daemon().client_ok(&["upgrade"]);
    assert_eq!([1000, 5000, 6000].map(|port| tells(&mut a, port)), before);
    let nat =
        Nat { address: Some("192.0.2.9".into()), external: Some("world".into()), ..Nat::default() };
    let del = Request { nat_del: MessageField::some(nat), ..Request::default() };
    host.daemon().ask(del).unwrap();
    let ip = build::ethernet(a.mac(), router()).ipv4(INSIDE, OUTSIDE);
    a.send(&ip.udp(5000, 7777, b"who am I?"));
    eventually("nothing leaves untranslated", || {
        host.daemon().client_ok(&["drops"]).contains("nat-no-rule")
    });
    host.daemon_mut().quit();
    eventually("the holder ends", || place.holder().is_none());
    mirror.kill().unwrap();
    mirror.wait().unwrap();
}
