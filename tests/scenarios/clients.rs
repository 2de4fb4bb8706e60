//! DHCP clients of other people: ISC's dhclient, dhcpcd and systemd-networkd, as Debian has them,
//! with its scripts. Each lives by what a network tells, over the daemon's deaths.

use std::{
    fs,
    time::{Duration, Instant},
};

use butterfly_api::proto::{self, nic};
use butterfly_tests::{Daemon, Host, eventually, frames::mac, within};

use crate::{
    containers::{Netns, declare, open},
    lasting::{Place, die},
    room::{Room, awaits},
};

/// A DHCP client.
#[derive(Clone, Copy)]
enum Client {
    Dhclient,
    Dhcpcd,
    Networkd,
}

/// The configuration that Debian's dhclient has.
const DHCLIENT: &str =
    "option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;
send host-name = gethostname();
request subnet-mask, broadcast-address, time-offset, routers,
    domain-name, domain-name-servers, domain-search, host-name,
    dhcp6.name-servers, dhcp6.domain-search, dhcp6.fqdn, dhcp6.sntp-servers,
    netbios-name-servers, netbios-scope, interface-mtu,
    rfc3442-classless-static-routes, ntp-servers;
";

/// The configuration that Debian's dhcpcd has.
const DHCPCD: &str = "hostname
duid
persistent
vendorclassid
option domain_name_servers, domain_name, domain_search
option classless_static_routes
option interface_mtu
option host_name
option rapid_commit
require dhcp_server_identifier
slaac private
";

/// A network with all that networkd can take from DHCP.
const NETWORKD: &str = "[Match]
Name=tap-*
[Network]
DHCP=yes
IPv6AcceptRA=yes
[DHCPv4]
UseDomains=yes
UseMTU=yes
[DHCPv6]
UseDomains=yes
[IPv6AcceptRA]
UseDomains=yes
";

/// networkd changes its user, and has to be reached by networkctl.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=/run/bus</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow send_type="*"/>
    <allow receive_type="*"/>
  </policy>
</busconfig>
"#;

/// Has a program find the bus.
const ON_BUS: &str = "export DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus;";

impl Client {
    /// Starts it in a room, for an interface. It runs until the room ends, or it is told to.
    fn start(self, room: &Room, interface: &str) {
        match self {
            Client::Dhclient => {
                // A copy, as the kernel of a machine with AppArmor confines the original by its
                // path. The script is Debian's.
                let prepare = "mkdir -p /var/lib/dhcp /run/own
                    rm -rf /etc/dhcp/dhclient-enter-hooks.d
                    [ -e /run/own/dhclient ] || cp /sbin/dhclient /run/own";
                room.sh(prepare);
                fs::write(room.etc("dhcp/dhclient.conf"), DHCLIENT).unwrap();
                let link_local = format!("ip -o addr show dev {interface} scope link -tentative");
                eventually("a link-local address", || room.sh(&link_local).contains("fe80::"));
                for family in [4, 6] {
                    let words = dhclient(family, interface);
                    room.spawn(&format!("dhclient{family}"), &format!("exec {words} -d"));
                }
            }
            Client::Dhcpcd => {
                fs::write(room.etc("dhcpcd.conf"), DHCPCD).unwrap();
                room.sh("mkdir -p /var/lib/dhcpcd");
                room.spawn("dhcpcd", &format!("exec dhcpcd -d -B {interface}"));
            }
            Client::Networkd => {
                fs::write(room.dir().join("network"), NETWORKD).unwrap();
                fs::write(room.dir().join("bus.conf"), BUS).unwrap();
                let dir = room.dir().display();
                room.sh(&format!(
                    "mkdir -p /run/systemd/network
                    cp {dir}/network /run/systemd/network/10.network"
                ));
                let bus = format!("exec dbus-daemon --config-file={dir}/bus.conf --nofork");
                room.spawn("bus", &bus);
                eventually("a bus", || room.output("test -S /run/bus").status.success());
                let exec = "SYSTEMD_LOG_LEVEL=debug exec /lib/systemd/systemd-networkd";
                room.spawn("networkd", &format!("{ON_BUS} {exec}"));
            }
        }
    }

    /// Has it renew its leases now. dhclient, which cannot be told to, is stopped and begins with
    /// the leases that it noted.
    fn renew(self, room: &Room, interface: &str) {
        match self {
            Client::Dhclient => {
                for family in [4, 6] {
                    room.sh(&format!("{} -x", dhclient(family, interface)));
                }
                self.start(room, interface);
            }
            Client::Dhcpcd => drop(room.sh(&format!("dhcpcd -N {interface}"))),
            Client::Networkd => drop(room.sh(&format!("{ON_BUS} networkctl renew {interface}"))),
        }
    }

    /// Has it look whether its leases are still its own. networkd begins anew for that, as it
    /// renews none of IPv6 when it is told to.
    fn rebind(self, room: &Room, interface: &str) {
        match self {
            Client::Dhclient => self.renew(room, interface),
            Client::Dhcpcd => drop(room.sh(&format!("dhcpcd -n {interface}"))),
            Client::Networkd => {
                drop(room.sh(&format!("{ON_BUS} networkctl reconfigure {interface}")));
            }
        }
    }

    /// Has it give its leases back.
    fn release(self, room: &Room, interface: &str) {
        match self {
            Client::Dhclient => {
                for family in [4, 6] {
                    room.sh(&format!("{} -r", dhclient(family, interface)));
                }
            }
            Client::Dhcpcd => drop(room.sh(&format!("dhcpcd -k {interface}"))),
            Client::Networkd => drop(room.sh("pkill -x systemd-network")),
        }
    }

    /// Returns what it says that it was told of name servers and domains.
    fn told(self, room: &Room) -> String {
        let script = match self {
            Client::Dhclient => "cat /var/lib/dhcp/*.leases /etc/resolv.conf",
            Client::Dhcpcd => "cat /etc/resolv.conf",
            Client::Networkd => "cat /run/systemd/netif/links/* /run/systemd/netif/leases/*",
        };
        String::from_utf8(room.output(script).stdout).unwrap()
    }
}

/// Returns a command of dhclient, without what it is to do.
fn dhclient(family: u8, interface: &str) -> String {
    format!(
        "/run/own/dhclient -{family} -v -lf /var/lib/dhcp/dhclient{family}.leases \
         -pf /run/dhclient{family}.pid {interface}"
    )
}

/// Declares the network of the clients, another one, and the router between them.
fn network(daemon: &Daemon, lease: &str, dns: &str) {
    let of_clients = "network add --vni 7 --subnet 10.7.0.0/24 fd00:7::/64 \
        --gateway 10.7.0.1 fd00:7::1 --mtu 1400 --dhcp --search a.example b.example \
        --dhcp-route 10.9.0.0/16=10.7.0.7";
    let words = of_clients.split_whitespace();
    let words: Vec<&str> = words.chain(["--lease", lease, "--dns", dns, "fd00:8::53"]).collect();
    daemon.client_ok(&words);
}

fn router(daemon: &Daemon) {
    for words in [
        "network add --vni 8 --subnet 10.8.0.0/24 fd00:8::/64 --gateway 10.8.0.1 fd00:8::1",
        "router add r",
        "router attach r --vni 7",
        "router attach r --vni 8",
    ] {
        daemon.client_ok(&words.split_whitespace().collect::<Vec<_>>());
    }
}

/// A machine whose addresses are declared, and that gets them by a client.
struct Machine {
    room: Room,
    client: Client,
    interface: String,
    n: u8,
}

impl Machine {
    /// Declares the `n`th vnic. The client does not run yet.
    fn new(daemon: &Daemon, n: u8, client: Client, filtered: bool) -> Machine {
        let machine =
            Machine { room: Room::new(n.into()), client, interface: format!("tap-{n}"), n };
        let nic = proto::Nic {
            id: Some(machine.interface.clone()),
            mac: Some(mac(n.into()).to_string()),
            vni: Some(7),
            ip: machine.addresses().to_vec(),
            type_: Some(nic::Type::TAP.into()),
            netns: Some(machine.room.netns()),
            ..proto::Nic::default()
        };
        declare(daemon, if filtered { nic } else { open(nic) }).unwrap();
        machine
    }

    fn start(&self) {
        self.client.start(&self.room, &self.interface);
    }

    fn renew(&self) {
        self.client.renew(&self.room, &self.interface);
    }

    fn rebind(&self) {
        self.client.rebind(&self.room, &self.interface);
    }

    fn addresses(&self) -> [String; 2] {
        [format!("10.7.0.{}", self.n), format!("fd00:7::{}", self.n)]
    }

    /// Returns all that the kernel of the machine was told, and what the client wrote.
    fn state(&self) -> String {
        let Machine { room, client, interface, .. } = self;
        let kernel = room.sh(&format!(
            "ip -o addr show dev {interface}
            ip route
            ip -6 route
            ip link show dev {interface}"
        ));
        let logs = ["dhclient4", "dhclient6", "dhcpcd", "networkd"].map(|name| room.log(name));
        format!("{kernel}\n{}\n{}", client.told(room), logs.concat())
    }

    /// Returns for how many seconds the kernel keeps an address; `None` if it has it not, or not
    /// yet for use.
    fn seconds(&self, address: &str) -> Option<u64> {
        let told = self.room.sh(&format!("ip -o addr show dev {}", self.interface));
        let of_it = |line: &&str| line.contains(&format!(" {address}/"));
        let line = told.lines().find(of_it).filter(|line| !line.contains("tentative"))?;
        line.split_once("valid_lft ")?.1.split_once("sec")?.0.parse().ok()
    }

    /// Waits until it has its addresses for at least so many seconds.
    #[track_caller]
    fn has(&self, least: u64) {
        for address in self.addresses() {
            let enough = || self.seconds(&address).is_some_and(|seconds| seconds >= least);
            awaits(&format!("{address} for {least} s"), || self.state(), |_| enough());
        }
    }

    /// Waits until it has all that the network tells, this name server among it.
    #[track_caller]
    fn has_all(&self, dns: &str) {
        self.has(3500);
        awaits("all that the network tells", || self.state(), |_| self.is_told(dns));
    }

    fn is_told(&self, dns: &str) -> bool {
        let Machine { room, client, interface, .. } = self;
        let routes = room.sh("ip route; ip -6 route");
        let wanted = [
            &format!("default via 10.7.0.1 dev {interface}"),
            &format!("10.9.0.0/16 via 10.7.0.7 dev {interface}"),
            "default via fe80::b0f0:",
            "fd00:7::/64 dev",
        ];
        // The length of packets is the interface's, or that of both routes.
        let link = room.sh(&format!("ip link show dev {interface}"));
        let of_routes = ["ip route show default", "ip -6 route show default"]
            .map(|script| room.sh(script).contains("mtu 1400"));
        let told = client.told(room);
        wanted.iter().all(|route| routes.contains(route))
            && (link.contains("mtu 1400 ") || of_routes == [true; 2])
            && [dns, "fd00:8::53", "a.example", "b.example"].iter().all(|word| told.contains(word))
    }

    /// Checks that it reaches a machine of another network.
    #[track_caller]
    fn reaches(&self) {
        for address in ["10.8.0.8", "fd00:8::8"] {
            eventually(address, || self.room.pings(address));
        }
    }

    /// Returns when the lease of IPv4 is over, as the kernel knows it, to a second.
    fn end(&self) -> Option<Instant> {
        let seconds = self.seconds(&self.addresses()[0])?;
        Some(Instant::now() + Duration::from_secs(seconds))
    }

    /// Waits until that lease has some seconds behind it, has it renewed by `again`, and waits for
    /// the new one.
    #[track_caller]
    fn gets_new_lease(&self, again: impl Fn(&Machine)) {
        let aged = || self.seconds(&self.addresses()[0]).is_some_and(|seconds| seconds <= 3596);
        awaits("a lease of some seconds", || self.state(), |_| aged());
        let former = self.end().unwrap();
        again(self);
        let later = || self.end().is_some_and(|end| end > former + Duration::from_secs(2));
        awaits("a new lease", || self.state(), |_| later());
    }
}

/// Does something with all machines at once.
fn each(machines: &[Machine], what: impl Fn(&Machine) + Sync) {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            machines.iter().map(|machine| scope.spawn(|| what(machine))).collect();
        running.into_iter().for_each(|it| it.join().unwrap());
    });
}

/// Checks that nothing was dropped but what is harmless, or was for a machine that began.
#[track_caller]
fn dropped_nothing(daemon: &Daemon) {
    let told = daemon.client_ok(&["drops", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let places = told["places"].as_array().unwrap();
    let drops = places.iter().flat_map(|place| place["drops"].as_array().unwrap());
    let bad: Vec<_> =
        drops.filter(|drop| drop["harmless"] != true && drop["reason"] != "not-attached").collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A machine of the other network, with its addresses set by hand.
fn far(daemon: &Daemon) -> Netns {
    let netns = Netns::new();
    let nic = proto::Nic {
        id: Some("far".to_owned()),
        mac: Some(mac(8).to_string()),
        vni: Some(8),
        ip: vec!["10.8.0.8".to_owned(), "fd00:8::8".to_owned()],
        type_: Some(nic::Type::TAP.into()),
        netns: Some(netns.0.clone()),
        ..proto::Nic::default()
    };
    declare(daemon, open(nic)).unwrap();
    for words in [
        "ip addr add 10.8.0.8/24 dev far",
        "ip -6 addr add fd00:8::8/64 nodad dev far",
        "ip route add default via 10.8.0.1",
        "ip -6 route add default via fd00:8::1",
    ] {
        netns.run(words);
    }
    netns
}

/// A daemon whose guests outlive it. If the test fails, it ends with all that it keeps for the next
/// one.
struct Life {
    host: Host,
    place: Place,
}

impl Drop for Life {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        drop(self.host.daemon().client(&["shutdown"]));
        let end = Instant::now() + Duration::from_secs(5);
        while self.place.holder().is_some() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Two machines, of a filtered vnic and of another one, live by a client: they get all that their
/// network tells, renew it, are told what changed, go on over deaths of the daemon, get another
/// address when another one is declared, and give it back.
fn lives(client: Client) {
    let Some(place) = Place::new() else { return };
    let mut life = Life { host: place.start(), place };
    let daemon = life.host.daemon();
    network(daemon, "3600", "9.9.9.9");
    router(daemon);
    let far = far(daemon);
    let mut machines =
        [(10, true), (11, false)].map(|(n, filtered)| Machine::new(daemon, n, client, filtered));
    each(&machines, |machine| {
        machine.start();
        machine.has_all("9.9.9.9");
        machine.reaches();
    });
    dropped_nothing(daemon);
    // The machines keep their interfaces, and another process renews what the former one leased.
    // What changed is told by that.
    network(daemon, "3600", "9.9.9.10");
    die(&mut life.host);
    life.host = life.place.start();
    let daemon = life.host.daemon();
    each(&machines, |machine| {
        machine.reaches();
        machine.gets_new_lease(|machine| match client {
            Client::Dhcpcd => machine.rebind(),
            Client::Dhclient | Client::Networkd => machine.renew(),
        });
        machine.has_all("9.9.9.10");
        machine.reaches();
    });
    dropped_nothing(daemon);
    for machine in &mut machines {
        machine.n += 10;
        let [v4, v6] = machine.addresses();
        daemon.client_ok(&["nic", "update", "--id", &machine.interface, "--ip", &v4, &v6]);
    }
    each(&machines, |machine| {
        // dhcpcd keeps the former address of IPv6 for its time unless it is told otherwise, which
        // a server can in answer to a renewal alone.
        match client {
            Client::Dhcpcd => machine.renew(),
            Client::Dhclient | Client::Networkd => machine.rebind(),
        }
        machine.has_all("9.9.9.10");
        machine.reaches();
        let addresses = || machine.room.sh("ip -4 -o addr");
        let former = format!("10.7.0.{}/", machine.n - 10);
        awaits("no former address", addresses, |told| !told.contains(&former));
        client.release(&machine.room, &machine.interface);
        let addresses = || machine.room.sh("ip -o addr show scope global");
        let has_none = |told: &str| !told.contains("10.7.0.") && !told.contains("fd00:7:");
        awaits("no address", addresses, has_none);
    });
    drop((machines, far));
    life.host.daemon_mut().quit();
    eventually("the holder ends", || life.place.holder().is_none());
}

#[test]
fn dhclient_lives_by_a_network() {
    lives(Client::Dhclient);
}

#[test]
fn dhcpcd_lives_by_a_network() {
    lives(Client::Dhcpcd);
}

#[test]
fn networkd_lives_by_a_network() {
    lives(Client::Networkd);
}

/// Each client renews by itself when half of the lease is over, by unicast where it can.
#[test]
fn leases_are_renewed_in_time() {
    let Some(host) = Host::process() else { return };
    network(host.daemon(), "60", "9.9.9.9");
    router(host.daemon());
    let clients = [Client::Dhclient, Client::Dhcpcd, Client::Networkd];
    let machines = [10, 11, 12].map(|n| {
        let client = clients[usize::from(n - 10)];
        Machine::new(host.daemon(), n, client, n % 2 == 0)
    });
    each(&machines, |machine| {
        machine.start();
        machine.has(0);
    });
    // Of each address the least and the longest time left that was seen behind it.
    let mut seen = machines.each_ref().map(|_| [(u64::MAX, 0); 2]);
    let limit = Duration::from_secs(50);
    within(limit, "all renew, once half of the lease is over", || {
        for (machine, seen) in machines.iter().zip(&mut seen) {
            for (address, (least, renewed)) in machine.addresses().iter().zip(seen) {
                let left = machine.seconds(address);
                let left = left.unwrap_or_else(|| panic!("no {address}: {}", machine.state()));
                if left < *least {
                    (*least, *renewed) = (left, 0);
                }
                *renewed = left.max(*renewed);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        seen.as_flattened().iter().all(|(least, renewed)| *least < 40 && *renewed > 55)
    });
    // Clients are late by some seconds, but none waited for what comes after 4/5 or 7/8.
    let in_time = |least: u64| (14..40).contains(&least);
    assert!(seen.as_flattened().iter().all(|(least, _)| in_time(*least)), "{seen:?}");
    dropped_nothing(host.daemon());
}
