//! Requests about other hosts.

use super::host::Host;

/// A host with an uplink.
fn connected() -> Host {
    let mut host = Host::with_nics();
    host.fake().uplink = true;
    host
}

#[test]
fn the_tunnel_endpoint_is_shown_whole() {
    let mut host = connected();
    let show = host.ask("tunnel_show { }").tunnel_show.unwrap();
    assert_eq!(
        (show.endpoint(), show.mac(), show.host_mtu()),
        ("10.0.0.1", "02:00:00:00:00:08", 1450)
    );
    assert_eq!((show.answers(), show.strict_peers()), (true, false));
    assert_eq!(show.control.len(), 1);
    let text = host.succeeds("tunnel_show { }");
    for part in [
        "groups { vni: 1 address: \"230.0.0.1\" } groups { vni: 7 address: \"230.0.0.7\" }",
        "peers { address: \"10.0.0.2\" named: true in_packets: 0 in_bytes: 0 out_packets: 0 out_bytes: 0 drops: 0 } \
         peers { address: \"10.0.0.3\" named: true vni: 7 in_packets: 0 ",
        "peers { address: \"10.0.0.4\" mac: \"02:00:00:00:00:09\" named: false idle: 80 in_packets: 81 in_bytes: 82 \
         out_packets: 83 out_bytes: 84 drops: 85 unanswered_since: 86 unanswered_packets: 87 trouble: \"a firewall refuses VXLAN \
         for it (ICMP prohibited): let UDP 4789 pass\" trouble_since: 88 }",
        "learnt { vni: 1 mac: \"02:00:00:00:00:09\" peer: \"10.0.0.4\" age: 86 }",
        "neighbours { address: \"10.0.0.4\" mac: \"02:00:00:00:00:09\" state: \"state\" age: 87 } \
         neighbours { address: \"10.0.0.2\" state: \"state\" }",
        "networks { vni: 1 in_packets: 90 in_bytes: 91 out_packets: 92 out_bytes: 93 drops { reason: \"",
        "count: 94 description: \"",
        "control { name: \"answered\" value: 88 description: \"ARP requests.\" }",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn one_network_of_it_is_shown() {
    let mut host = connected();
    let mut seen = |vni: u32| {
        let show = host.ask(&format!("tunnel_show {{ vni: {vni} }}")).tunnel_show.unwrap();
        let peers: Vec<_> = show.peers.iter().map(|peer| peer.address().to_owned()).collect();
        assert_eq!(show.neighbours.len(), 2, "they are of no network");
        (show.groups.len(), peers.join(" "), show.learnt.len(), show.networks.len())
    };
    assert_eq!(seen(1), (1, "10.0.0.2 10.0.0.4".to_owned(), 1, 1));
    assert_eq!(seen(7), (1, "10.0.0.2 10.0.0.3".to_owned(), 0, 1));
    assert_eq!(seen(16_777_215), (0, "10.0.0.2".to_owned(), 0, 0));
    assert_eq!(
        host.fails("tunnel_show { vni: 16777216 }").0,
        "VNI 16777216 is out of range: VNIs are 0 to 16777215"
    );
}

#[test]
fn the_uplink_is_shown_whole() {
    let text = connected().succeeds("uplink_show: false");
    for part in [
        "uplink_show { kind: \"af_xdp\" interface: \"eth0\" mode: \"native, copy\" note: \"why\" queues: 2 mac: \"02:00:00:00:00:08\" \
         mtu: 1500 host_mtu: 1450 offloads: \"tx-csum\" in_packets: 100 in_bytes: 101 out_packets: 102 out_bytes: 103 drops { reason: \"",
        "count: 104 description: \"",
        "counters { name: \"tx-full\" value: 105 description: \"Frames lost.\" } state: \"no carrier\" vlan: 42 vlan_doubt: \"a veth hides tags\" }",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_host_without_an_uplink_has_nothing_to_show() {
    let mut host = Host::with_nics();
    for request in ["tunnel_show { }", "uplink_show: true", "peer_list: true"] {
        assert_eq!(host.succeeds(request), "", "{request}");
    }
    for request in ["peer_add { address: \"10.0.0.2\" }", "peer_del { address: \"10.0.0.2\" }"] {
        assert_eq!(
            host.fails(request).0,
            "this host has no uplink: start the daemon with --uplink",
            "{request}"
        );
    }
    assert_eq!(host.ask("nic_show: \"n\"").nic_show.host_mtu, None);
    assert_eq!(connected().ask("nic_show: \"n\"").nic_show.host_mtu, Some(1450));
}

#[test]
fn peers_come_and_go() {
    let mut host = connected();
    for request in [
        "peer_add { address: \"2001:DB8::0:2\" vni: 16777215 }",
        "peer_add { address: \"10.0.0.9\" vni: 7 }",
        "peer_add { address: \"10.0.0.8\" vni: 7 }",
        "peer_add { address: \"10.0.0.2\" }",
        // Those that are there are no error, and those that are not are none either.
        "peer_add { address: \"10.0.0.2\" }",
        "peer_del { address: \"10.0.0.3\" }",
        "peer_del { address: \"10.0.0.2\" vni: 7 }",
    ] {
        assert_eq!(host.succeeds(request), "", "{request}");
    }
    let all = "peer_list { address: \"10.0.0.2\" } peer_list { address: \"10.0.0.9\" vni: 7 } \
               peer_list { address: \"10.0.0.8\" vni: 7 } peer_list { address: \"2001:db8::2\" vni: 16777215 }";
    assert_eq!(host.succeeds("peer_list: false"), all);
    host.succeeds("peer_del { address: \"10.0.0.9\" vni: 7 }");
    host.succeeds("peer_del { address: \"10.0.0.2\" }");
    let rest = "peer_list { address: \"10.0.0.8\" vni: 7 } peer_list { address: \"2001:db8::2\" vni: 16777215 }";
    assert_eq!(host.succeeds("peer_list: false"), rest);
}

#[test]
fn what_is_no_peer_is_refused() {
    for (peer, description) in [
        ("", "Bad IP format"),
        ("address: \"\"", "Bad IP format"),
        ("address: \"10.0.0.0/8\"", "Bad IP format"),
        (
            "address: \"10.0.0.2\" vni: 16777216",
            "VNI 16777216 is out of range: VNIs are 0 to 16777215",
        ),
    ] {
        let mut host = connected();
        for request in [format!("peer_add {{ {peer} }}"), format!("peer_del {{ {peer} }}")] {
            assert_eq!(host.fails(&request).0, description, "{request}");
        }
        assert_eq!(host.fake().peers, Default::default());
    }
}
