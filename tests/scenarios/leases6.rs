//! Router advertisements as the kernel of a real machine takes them.

use butterfly_api::proto::{self, nic};
use butterfly_tests::{Daemon, Host, eventually, frames::mac};

use crate::containers::{Netns, declare};

/// Declares a network, and a container in it that has these addresses.
fn container(daemon: &Daemon, id: &str, n: u8, vni: u32) -> Netns {
    let number = vni.to_string();
    let [block, gateway] = ["/64", "1"].map(|end| format!("fd00:{vni}::{end}"));
    let words = ["network", "add", "--vni", &number, "--subnet", &block, "--gateway", &gateway];
    daemon.client_ok(&[&words[..], &["--mtu", "1400", "--dhcp"]].concat());
    let netns = Netns::new();
    let nic = proto::Nic {
        id: Some(id.to_owned()),
        mac: Some(mac(n.into()).to_string()),
        vni: Some(vni),
        ip: vec![format!("fd00:{vni}::{n}")],
        type_: Some(nic::Type::TAP.into()),
        netns: Some(netns.0.clone()),
        bypass_filtering: Some(true),
        ..proto::Nic::default()
    };
    assert_eq!(declare(daemon, nic).unwrap(), id);
    netns
}

/// It asks when its interface comes up, and gets its default route, the subnet and the MTU, but
/// makes up no address. By that route it reaches another network.
#[test]
fn a_kernel_takes_its_router_from_the_network() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let (a, b) = (container(daemon, "tap-a", 7, 7), container(daemon, "tap-b", 8, 8));
    daemon.client_ok(&["router", "add", "r"]);
    for (vni, netns) in [("7", &a), ("8", &b)] {
        daemon.client_ok(&["router", "attach", "r", "--vni", vni]);
        // Told without asking, as the router came.
        eventually("a default route", || {
            let routes = netns.run("ip -6 route show default");
            routes.contains("via fe80::b0f0:") && routes.contains("proto ra")
        });
        let subnet = netns.run(&format!("ip -6 route show fd00:{vni}::/64"));
        assert!(subnet.contains("proto kernel") || subnet.contains("proto ra"), "{subnet}");
        let own = netns.run("ip -6 addr show scope global");
        assert_eq!(own, "", "no address is made up");
        let mtu = netns.run(&format!(
            "sysctl -n net.ipv6.conf.tap-{}.mtu",
            if vni == "7" { "a" } else { "b" }
        ));
        assert_eq!(mtu.trim(), "1400");
        netns.run(&format!(
            "ip -6 addr add fd00:{vni}::{vni}/128 nodad dev tap-{}",
            if vni == "7" { "a" } else { "b" }
        ));
    }
    assert!(a.pings("fd00:7::1"), "its gateway");
    assert!(a.pings("fd00:8::8") && b.pings("fd00:7::7"), "by its default route");
    let router = a.run("ip -6 neigh show dev tap-a");
    assert!(router.contains("router"), "{router}");
    // Without a router there is no default route any more.
    daemon.client_ok(&["router", "detach", "r", "--vni", "7"]);
    eventually("no default route", || a.run("ip -6 route show default").is_empty());
}
