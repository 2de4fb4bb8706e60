//! Router advertisements as the kernel of a real machine takes them.

use butterfly_api::proto::{self, nic};
use butterfly_tests::{Daemon, Host, eventually, frames::mac};

use crate::containers::{Netns, declare, show};

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

/// A filtered machine makes up its addresses in its prefix, a temporary one among them (RFC 8981),
/// and reaches its gateway and another network from each. From others it reaches nobody. A prefix
/// that is taken back is not preferred any more.
#[test]
fn a_kernel_makes_up_addresses_in_its_prefix() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    daemon.client_ok(
        &[
            &["network", "add", "--vni", "7", "--subnet", "fd00:7::/56"][..],
            &["--gateway", "fd00:7::1", "--dhcp"],
        ]
        .concat(),
    );
    let b = container(daemon, "tap-b", 8, 8);
    daemon.client_ok(&["router", "add", "r"]);
    for vni in ["7", "8"] {
        daemon.client_ok(&["router", "attach", "r", "--vni", vni]);
    }
    b.run("ip -6 addr add fd00:8::8/128 nodad dev tap-b");
    let any = ["--ip-proto", "icmpv6", "--cidr", "::/0"];
    daemon.client_ok(&[&["sg", "rule", "add", "open"][..], &any].concat());
    let a = Netns::new();
    a.run("sysctl -w net.ipv6.conf.default.use_tempaddr=2");
    let nic = proto::Nic {
        id: Some("tap-a".to_owned()),
        mac: Some(mac(7).to_string()),
        vni: Some(7),
        prefix: vec!["fd00:7:0:1::/64".to_owned()],
        security_group: vec!["open".to_owned()],
        ip_anti_spoof: Some(true),
        type_: Some(nic::Type::TAP.into()),
        netns: Some(a.0.clone()),
        ..proto::Nic::default()
    };
    assert_eq!(declare(daemon, nic).unwrap(), "tap-a");
    // The interface may have come with the namespace's former setting.
    a.run("sysctl -w net.ipv6.conf.tap-a.use_tempaddr=2");
    let addresses = |words: &str| -> Vec<String> {
        let all = a.run(&format!("ip -6 -o addr show dev tap-a scope global {words}"));
        let of = |line: &str| {
            let own = line.split_whitespace().find(|word| word.starts_with("fd00:"))?;
            own.split('/').next().map(str::to_owned)
        };
        all.lines().filter_map(of).collect()
    };
    let settled = || addresses("-tentative");
    eventually("an address, and a temporary one", || {
        settled().len() >= 2 && addresses("temporary").len() == 1
    });
    let own = settled();
    let spoofed = || {
        let drops = show(daemon, "tap-a").drops;
        drops.iter().find(|drop| drop.reason() == "spoofed-ip").map_or(0, |drop| drop.count())
    };
    assert!(own.iter().all(|address| address.starts_with("fd00:7:0:1:")), "{own:?}");
    eventually("a default route", || a.run("ip -6 route show default").contains("proto ra"));
    for address in &own {
        for to in ["fd00:7::1", "fd00:8::8"] {
            assert!(a.pings(&format!("{to} -I {address}")), "{to} from {address}");
        }
        assert!(b.pings(address), "{address} from another network");
    }
    assert_eq!(spoofed(), 0);
    a.run("ip -6 addr add fd00:7:0:2::9/128 nodad dev tap-a");
    assert!(!a.pings_within(1, "fd00:8::8 -I fd00:7:0:2::9"));
    assert!(spoofed() > 0);
    a.run("ip -6 addr del fd00:7:0:2::9/128 dev tap-a");
    daemon.client_ok(&["nic", "update", "--id", "tap-a", "--prefix", "-e"]);
    eventually("addresses that are deprecated", || addresses("deprecated").len() >= own.len());
    assert!(!a.pings_within(1, &format!("fd00:8::8 -I {}", own[0])));
}
