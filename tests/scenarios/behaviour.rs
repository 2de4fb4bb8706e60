//! Behaviour of the NAT (RFC 5780), as coturn's client finds it out with coturn's server.

use butterfly_api::proto::{self, nic};
use butterfly_tests::{Daemon, Host, Kind, eventually, frames::mac, groups::rule_add};

use crate::{containers::declare, room::Room};

/// The server has two addresses, and two ports at each.
const SERVER: &str = "exec turnserver -n -S -v -z -L 192.0.2.1 -L 192.0.2.2 -p 3478 \
    --alt-listening-port 3479 --no-tls --no-dtls --no-tcp -l stdout -b /run/turndb \
    --pidfile /run/turnserver.pid";

/// A network whose machines share an address outside, and the outside with a STUN server.
struct Outside {
    host: Host,
    world: Room,
    _switch: Room,
}

impl Outside {
    fn new() -> Option<Outside> {
        if Kind::wanted() != Kind::Daemon {
            return None;
        }
        let (switch, world) = (Room::new(1), Room::new(2));
        let make = "ip link add wire type veth peer name far
            ethtool -K far tx off >/dev/null
            ip link set dev wire up";
        switch.sh(make);
        let options = ["--uplink", "none"].map(str::to_owned);
        let net = format!("--net={}", switch.netns());
        let host = Host::of(Daemon::start_with(&["nsenter", &net], &options));
        let output = std::process::Command::new("nsenter")
            .args([&net, "ip", "link", "set", "dev", "far", "netns", &world.init()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        world.sh("ip addr add 192.0.2.1/24 dev far
            ip addr add 192.0.2.2/24 dev far
            ip link set dev far up");
        for words in [
            "network add --vni 42 --subnet 10.42.0.0/24 --gateway 10.42.0.1",
            "external add world --uplink wire --address 192.0.2.7/24 --gateway 192.0.2.1",
            "router add r",
            "router attach r --vni 42",
            "router attach r --external world --address 192.0.2.7",
            "snat add r --external world --address 192.0.2.9",
        ] {
            host.daemon().client_ok(&words.split_whitespace().collect::<Vec<_>>());
        }
        world.spawn("server", SERVER);
        Some(Outside { host, world, _switch: switch })
    }
}

/// Declares a machine, and returns what the client in it finds, in its words.
fn finds(outside: &Outside, n: u8, rule: Option<&str>, filtered: bool) -> String {
    let (room, interface) = (Room::new(n.into()), format!("tap-{n}"));
    let group = format!("group-{n}");
    let daemon = outside.host.daemon();
    if let Some(rule) = rule {
        daemon.ask(rule_add(&group, rule)).unwrap();
    }
    let nic = proto::Nic {
        id: Some(interface.clone()),
        mac: Some(mac(n.into()).to_string()),
        vni: Some(42),
        ip: vec![format!("10.42.0.{n}")],
        type_: Some(nic::Type::TAP.into()),
        netns: Some(room.netns()),
        security_group: rule.map(|_| group).into_iter().collect(),
        bypass_filtering: Some(!filtered),
        ..proto::Nic::default()
    };
    declare(daemon, nic).unwrap();
    room.sh(&format!(
        "ip addr add 10.42.0.{n}/24 dev {interface}
        ip route add default via 10.42.0.1"
    ));
    eventually("the outside", || room.pings("192.0.2.2"));
    let told = room.sh("turnutils_natdiscovery -m -f -H 192.0.2.1");
    assert!(told.contains("UDP reflexive addr: 192.0.2.9:"), "{told}");
    told
}

/// The port outside is the same to whomever a machine speaks, and its security groups say who
/// else may send to that: nobody without a rule, and everybody if the vnic has no filters.
#[test]
fn a_stun_client_finds_the_mapping_and_the_filtering_that_are_documented() {
    let Some(outside) = Outside::new() else { return };
    eventually("a server", || outside.world.log("server").contains("192.0.2.2:3479"));
    let kinds = [
        (10, None, true, "Address and Port Dependent"),
        // A rule for the address to which the machine speaks.
        (11, Some("in udp 1-65535 192.0.2.1/32"), true, "Address Dependent"),
        (12, Some("in udp 1-65535 0.0.0.0/0"), true, "Endpoint Independent"),
        (13, None, false, "Endpoint Independent"),
    ];
    let outside = &outside;
    std::thread::scope(|scope| {
        let ask = |(n, rule, filtered, _)| scope.spawn(move || finds(outside, n, rule, filtered));
        let asked = kinds.map(ask);
        for (told, (n, _, _, filtering)) in asked.into_iter().zip(kinds) {
            let told = told.join().unwrap();
            for found in ["Endpoint Independent Mapping!", &format!("{filtering} Filtering!")] {
                assert!(told.contains(&format!("NAT with {found}")), "{n}, {found}: {told}");
            }
            // It sends to its own port outside, as everybody else might.
            let heard = told.contains("Received a request (maybe a successful hairpinning)");
            assert_eq!(heard, filtering == "Endpoint Independent", "{n}: {told}");
        }
    });
}
