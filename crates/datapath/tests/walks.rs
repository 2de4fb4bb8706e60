//! Packet walks: a frame goes in, and exactly these frames come out and exactly these counters
//! move.

use std::{collections::BTreeMap, net::Ipv6Addr};

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_packet::{
    build::{self, Checksum},
    ethernet,
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const STRANGER: Mac = Mac([2, 0, 0, 0, 9, 9]);

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ips: &[&str]) -> VnicPolicy {
    VnicPolicy {
        ip_anti_spoof: true,
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..VnicPolicy::default()
    }
}

fn ping(from: Mac, to: Mac) -> Vec<u8> {
    build::ethernet(from, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, b"butterfly")
}

struct Walk {
    host: Host,
}

impl Walk {
    fn new(vnics: &[(&str, Mac, u32, VnicPolicy)]) -> Walk {
        let mut host = Host::new().unwrap();
        for (id, mac, vni, policy) in vnics {
            host.vnic(id, *mac, *vni, policy).unwrap();
        }
        host.settle();
        host.moved();
        Walk { host }
    }

    /// Sends a frame. Asserts its receivers, that it is unchanged, and all counters that moved,
    /// except bytes.
    #[track_caller]
    fn send(&mut self, from: &str, frame: &[u8], receivers: &[&str], moved: &[&str]) {
        self.host.send(from, frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        let want: BTreeMap<String, Vec<(NetHeader, Vec<u8>)>> = receivers
            .iter()
            .map(|id| {
                (
                    (*id).to_owned(),
                    vec![(NetHeader { num_buffers: 1, ..NetHeader::default() }, frame.to_vec())],
                )
            })
            .collect();
        assert_eq!(received, want);
        let mut expected: Vec<String> = vec![format!("{from}.in.packets")];
        expected.extend(receivers.iter().map(|id| format!("{id}.out.packets")));
        expected.extend(moved.iter().map(|name| (*name).to_owned()));
        expected.sort();
        let got = self.host.moved();
        let names: Vec<String> =
            got.keys().filter(|name| !name.ends_with(".bytes")).cloned().collect();
        assert_eq!(names, expected, "{got:?}");
        assert_eq!(got.get(&format!("{from}.in.bytes")), Some(&(frame.len() as u64)));
        assert!(
            got.iter().filter(|(name, _)| !name.ends_with(".bytes")).all(|(_, n)| *n == 1),
            "{got:?}"
        );
    }
}

#[test]
fn a_frame_reaches_the_vnic_that_owns_its_destination() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("c", C, 1, bypass())]);
    walk.send("a", &ping(A, B), &["b"], &[]);
    walk.send("b", &ping(B, A), &["a"], &[]);
}

#[test]
fn networks_do_not_meet_whatever_the_addresses() {
    let mut walk = Walk::new(&[
        ("a", A, 1, bypass()),
        ("b", B, 1, bypass()),
        ("a2", A, 2, bypass()),
        ("b2", B, 2, bypass()),
    ]);
    walk.send("a", &ping(A, B), &["b"], &[]);
    walk.send("a2", &ping(A, B), &["b2"], &[]);
    walk.send("a", &ping(A, Mac::BROADCAST), &["b"], &["a.flooded"]);
    walk.send("a", &ping(A, STRANGER), &["b"], &["a.flooded"]);
}

#[test]
fn broadcast_reaches_all_others_and_unknown_only_those_who_may_own_it() {
    let arp = build::ethernet(A, Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("c", C, 1, filtered(&[]))]);
    walk.send("a", &arp, &["b", "c"], &["a.flooded"]);
    walk.send("a", &ping(A, STRANGER), &["b"], &["a.flooded"]);
    // IP does not get in, and says so at the vnic that refuses.
    walk.send("a", &ping(A, Mac::BROADCAST), &["b"], &["a.flooded", "c.drop.ingress-denied"]);
}

#[test]
fn nobody_to_flood_to_is_a_drop() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("c", C, 1, filtered(&[])), ("lonely", B, 2, bypass())]);
    walk.send("a", &ping(A, STRANGER), &[], &["a.flooded", "a.drop.no-receiver"]);
    walk.send(
        "lonely",
        &ping(B, Mac::BROADCAST),
        &[],
        &["lonely.flooded", "lonely.drop.no-receiver"],
    );
}

/// Multicasts of a machine that starts have counters of their own, which do not count as trouble.
#[test]
fn what_machines_multicast_to_routers_is_told_apart() {
    let group = Mac([0x33, 0x33, 0, 0, 0, 2]);
    let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let solicitation = |from: Mac, to: Mac, ip: Ipv6Addr| {
        build::ethernet(from, to).ipv6(Ipv6Addr::UNSPECIFIED, ip).ttl(255).icmp(133, 0, 0, &[])
    };
    let mut walk = Walk::new(&[
        ("a", A, 1, bypass()),
        ("b", B, 1, filtered(&[])),
        ("lonely", C, 2, filtered(&[])),
    ]);
    walk.send("a", &solicitation(A, group, all_routers), &[], &["a.flooded", "b.drop.for-routers"]);
    // One that came through a router is no solicitation (RFC 4861, 6.1.1).
    let routed = build::ethernet(A, group).ipv6(Ipv6Addr::UNSPECIFIED, all_routers).ttl(64).icmp(
        133,
        0,
        0,
        &[],
    );
    walk.send("a", &routed, &[], &["a.flooded", "b.drop.ingress-denied"]);
    let igmp = |to: [u8; 4]| {
        build::ethernet(A, Mac::of_group_v4(to.into()))
            .ipv4([10, 0, 0, 1], to)
            .payload(2, &[0x22; 8])
    };
    for to_routers in [[224, 0, 0, 2], [224, 0, 0, 22]] {
        walk.send("a", &igmp(to_routers), &[], &["a.flooded", "b.drop.for-routers"]);
    }
    // A router's question to all hosts matters to the hosts that do not get it.
    walk.send("a", &igmp([224, 0, 0, 1]), &[], &["a.flooded", "b.drop.ingress-denied"]);
    walk.send(
        "lonely",
        &solicitation(C, group, all_routers),
        &[],
        &["lonely.flooded", "lonely.drop.no-listener"],
    );
    // To one machine it is refused like everything else, and so is other multicast.
    let router = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    walk.send("a", &solicitation(A, B, router), &[], &["b.drop.ingress-denied"]);
    let mdns = build::ethernet(A, Mac([1, 0, 0x5e, 0, 0, 0xfb]))
        .ipv4([10, 0, 0, 1], [224, 0, 0, 251])
        .udp(5353, 5353, b"");
    walk.send("a", &mdns, &[], &["a.flooded", "b.drop.ingress-denied"]);
    let told = |name| butterfly_datapath::reasons().any(|info| info.name == name && info.harmless);
    assert!(
        told("for-routers")
            && told("no-listener")
            && !told("ingress-denied")
            && !told("no-receiver")
    );
}

#[test]
fn a_bypass_vnic_lends_its_port_and_the_address_is_found_again() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("c", C, 1, bypass())]);
    walk.send("a", &ping(STRANGER, B), &["b"], &[]);
    walk.send("b", &ping(B, STRANGER), &["a"], &[]);
    walk.send("a", &ping(A, STRANGER), &[], &["a.drop.same-port"]);
    // It moves behind c.
    walk.send("c", &ping(STRANGER, B), &["b"], &[]);
    walk.send("b", &ping(B, STRANGER), &["c"], &[]);
    // And is forgotten when silent.
    walk.host.pass(301);
    assert_eq!(walk.host.learnt(), 0);
    walk.send("b", &ping(B, STRANGER), &["a", "c"], &["b.flooded"]);
}

#[test]
fn learnt_addresses_go_with_their_vnic() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("c", C, 1, bypass())]);
    walk.send("a", &ping(STRANGER, B), &["b"], &[]);
    walk.host.remove("a");
    assert_eq!(walk.host.learnt(), 0);
    walk.send("b", &ping(B, STRANGER), &["c"], &["b.flooded"]);
}

#[test]
fn the_largest_packets_pass_and_nothing_larger() {
    let mut walk = Walk::new(&[]);
    let config =
        GuestConfig { max_frame: 66_000, rx_buffer: 66_048, ..GuestConfig::default() }.rings(16);
    for (id, mac) in [("a", A), ("b", B)] {
        walk.host.declare(id, mac, 1, &bypass()).unwrap();
        walk.host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    walk.host.settle();
    let link = build::ethernet(A, B).vlan(1).vlan(2);
    let v4 = link.clone().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    walk.send("a", &v4.udp(1, 2, &[7; 65_535 - 20 - 8]), &["b"], &[]);
    let v6 = link.ipv6(std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    let mut largest = v6.udp(1, 2, &[7; 65_535 - 8]);
    walk.send("a", &largest, &["b"], &[]);
    largest.push(0);
    walk.host.send("a", &largest, NetHeader::default()).unwrap();
    assert!(walk.host.received().unwrap().is_empty());
    assert_eq!(walk.host.moved().get("a.drop.oversized"), Some(&1));
}

#[test]
fn frames_for_bridges_stop_here() {
    let mut walk = Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass())]);
    for last in [0u8, 2, 3, 0xe, 0xf] {
        let frame =
            build::ethernet(A, Mac([1, 0x80, 0xc2, 0, 0, last])).payload(ethernet::LLDP, &[0; 50]);
        walk.send("a", &frame, &[], &["a.drop.link-local-group"]);
    }
    let next =
        build::ethernet(A, Mac([1, 0x80, 0xc2, 0, 0, 0x10])).payload(ethernet::LLDP, &[0; 50]);
    walk.send("a", &next, &["b"], &["a.flooded"]);
}

#[test]
fn a_filtered_vnic_without_groups_lets_nothing_in_and_hides_nothing() {
    let mut walk = Walk::new(&[("a", A, 1, filtered(&["10.0.0.1"])), ("b", B, 1, bypass())]);
    let from_b = build::ethernet(B, A).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).ping(1, 1, b"x");
    walk.send("b", &from_b, &[], &["a.drop.ingress-denied"]);
    walk.send("b", &ping(B, A), &[], &["b.drop.ip-claimed"]);
    walk.send("a", &ping(A, B), &["b"], &[]);
    let lldp = build::ethernet(A, B).payload(ethernet::LLDP, &[0; 50]);
    walk.send("a", &lldp, &["b"], &[]);
    let tagged =
        build::ethernet(A, B).vlan(5).vlan(6).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, b"x");
    walk.send("a", &tagged, &[], &["a.drop.ip-hidden"]);
    let back =
        build::ethernet(B, A).vlan(5).vlan(6).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).ping(1, 1, b"x");
    walk.send("b", &back, &[], &["b.drop.ip-hidden"]);
    // Tags of every kind hide what is behind them, IP that the rules do not let in among it.
    for tpid in [ethernet::SERVICE_VLAN, 0x9100, 0x9200, 0x9300] {
        let link = build::ethernet(B, A).tag(ethernet::Tag { tpid, tci: 5 });
        let once = link.clone().ipv4([10, 0, 0, 2], [10, 0, 0, 1]).ping(1, 1, b"x");
        walk.send("b", &once, &[], &["a.drop.ingress-denied"]);
        let twice = link.vlan(6).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).ping(1, 1, b"x");
        walk.send("b", &twice, &[], &["b.drop.ip-hidden"]);
    }
}

#[test]
fn a_filtered_vnic_speaks_with_its_own_addresses() {
    let mut walk =
        Walk::new(&[("a", A, 1, filtered(&["10.0.0.1", "fd00::1"])), ("b", B, 1, bypass())]);
    let arp =
        |mac, ip: [u8; 4]| build::ethernet(mac, Mac::BROADCAST).arp_request(ip, [10, 0, 0, 2]);
    walk.send("a", &arp(A, [10, 0, 0, 1]), &["b"], &["a.flooded"]);
    walk.send("a", &arp(A, [10, 0, 0, 3]), &[], &["a.drop.spoofed-arp"]);
    walk.send("a", &arp(C, [10, 0, 0, 1]), &[], &["a.drop.spoofed-mac"]);
    let lies = build::ethernet(A, B).arp(2, (C, [10, 0, 0, 1].into()), (B, [10, 0, 0, 2].into()));
    walk.send("a", &lies, &[], &["a.drop.spoofed-arp"]);
    let tagged =
        build::ethernet(A, Mac::BROADCAST).vlan(7).arp_request([10, 0, 0, 3], [10, 0, 0, 2]);
    walk.send("a", &tagged, &[], &["a.drop.spoofed-arp"]);
    let rarp = build::ethernet(A, B).payload(ethernet::RARP, &[0; 46]);
    walk.send("a", &rarp, &[], &["a.drop.rarp"]);
    // An announcement and an answer are its own; a probe has no owner.
    walk.send(
        "a",
        &build::ethernet(A, Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 1]),
        &["b"],
        &["a.flooded"],
    );
    walk.send(
        "a",
        &build::ethernet(A, B).arp(2, (A, [10, 0, 0, 1].into()), (B, [10, 0, 0, 2].into())),
        &["b"],
        &[],
    );
    walk.send("a", &arp(A, [0, 0, 0, 0]), &[], &["a.drop.spoofed-arp"]);
    // Of other hardware, for another protocol, with addresses of other lengths.
    for (at, value) in [(15, 6), (16, 0x86), (18, 8), (19, 16)] {
        let mut odd = arp(A, [10, 0, 0, 1]);
        odd[at] = value;
        walk.send("a", &odd, &[], &["a.drop.spoofed-arp"]);
    }
    // No other station may tell it that its own address is elsewhere. Other claims to it are not
    // checked.
    walk.send(
        "b",
        &build::ethernet(B, A).arp(2, (C, [10, 0, 0, 1].into()), (A, [10, 0, 0, 1].into())),
        &[],
        &["b.drop.ip-claimed"],
    );
    walk.send(
        "b",
        &build::ethernet(B, A).arp(2, (C, [10, 0, 0, 3].into()), (A, [10, 0, 0, 1].into())),
        &["a"],
        &[],
    );
    walk.host.update("a", &filtered(&[])).unwrap();
    walk.send("a", &arp(A, [10, 0, 0, 1]), &[], &["a.drop.spoofed-arp"]);
    // Without ip_anti_spoof the ARP sender is its own business.
    walk.host.update("a", &VnicPolicy { ip_anti_spoof: false, ..filtered(&[]) }).unwrap();
    walk.send("a", &arp(A, [10, 0, 0, 3]), &["b"], &["a.flooded"]);
}

#[test]
fn the_address_of_a_filtered_vnic_cannot_be_claimed() {
    let mut walk =
        Walk::new(&[("a", A, 1, filtered(&[])), ("b", B, 1, bypass()), ("c", C, 1, bypass())]);
    walk.send("b", &ping(A, C), &[], &["b.drop.mac-claimed"]);
    let lldp = build::ethernet(C, A).payload(ethernet::LLDP, &[0; 50]);
    walk.send("c", &lldp, &["a"], &[]);
    // That of one that bypasses may be borrowed, and stays where it is.
    walk.send("b", &ping(C, B), &[], &["b.drop.same-port"]);
    walk.send("b", &ping(B, C), &["c"], &[]);
}

/// Of several vnics with one address the first has it. The others get nothing and send nothing,
/// floods and borrowed addresses included, until it is theirs.
#[test]
fn the_first_has_an_address_and_the_others_wait() {
    let vnics = [
        ("a", A, 1, filtered(&[])),
        ("b", B, 1, bypass()),
        ("twin", A, 1, bypass()),
        ("third", A, 1, filtered(&[])),
    ];
    let mut walk = Walk::new(&vnics);
    let lldp = |to, from| build::ethernet(from, to).payload(ethernet::LLDP, &[0; 50]);
    walk.send("b", &lldp(A, B), &["a"], &[]);
    walk.send("b", &lldp(Mac::BROADCAST, B), &["a"], &["b.flooded"]);
    for waiting in ["twin", "third"] {
        for frame in [lldp(B, A), lldp(Mac::BROADCAST, A), lldp(B, C)] {
            walk.send(waiting, &frame, &[], &[&format!("{waiting}.drop.mac-claimed")]);
        }
    }
    // The next in line has it at once.
    walk.host.remove("a");
    walk.send("b", &lldp(A, B), &["twin"], &[]);
    walk.send("twin", &lldp(B, A), &["b"], &[]);
    walk.send("third", &lldp(B, A), &[], &["third.drop.mac-claimed"]);
    walk.host.remove("twin");
    walk.send("b", &lldp(A, B), &["third"], &[]);
    walk.send("b", &lldp(Mac::BROADCAST, B), &["third"], &["b.flooded"]);
    walk.send("third", &lldp(B, A), &["b"], &[]);
}

/// While the first is made again its address belongs to no vnic, least of all to one that waits for
/// it.
#[test]
fn who_is_made_anew_keeps_its_address() {
    let vnics = [("a", A, 1, filtered(&[])), ("b", B, 1, bypass()), ("twin", A, 1, bypass())];
    let mut walk = Walk::new(&vnics);
    let lldp = |to, from| build::ethernet(from, to).payload(ethernet::LLDP, &[0; 50]);
    let said = std::cell::Cell::new(0);
    let between = |host: &mut Host| {
        host.received().unwrap();
        host.send("b", &lldp(A, B), NetHeader::default()).unwrap();
        host.send("b", &lldp(Mac::BROADCAST, B), NetHeader::default()).unwrap();
        host.send("twin", &lldp(B, A), NetHeader::default()).unwrap();
        host.settle();
        assert!(host.received().unwrap().is_empty());
        said.set(host.moved().get("twin.drop.mac-claimed").copied().unwrap_or(0));
    };
    walk.host.remake("a", A, &filtered(&[]), between).unwrap();
    assert_eq!(said.get(), 1);
    walk.send("b", &lldp(A, B), &["a"], &[]);
    walk.send("twin", &lldp(B, A), &[], &["twin.drop.mac-claimed"]);
    // With another address it gives up the one it had.
    walk.host.remake("a", C, &filtered(&[]), |_| ()).unwrap();
    walk.send("b", &lldp(A, B), &["twin"], &[]);
    walk.send("twin", &lldp(B, A), &["b"], &[]);
}

/// Two that bypass filters share an address. When one of them is to be filtered, the later one
/// waits, and what was learnt behind it is not reached through it.
#[test]
fn who_shares_an_address_waits_when_the_other_is_filtered() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("twin", A, 1, bypass())]);
    let lldp = |to, from| build::ethernet(from, to).payload(ethernet::LLDP, &[0; 50]);
    walk.send("twin", &lldp(B, C), &["b"], &[]);
    walk.send("b", &lldp(C, B), &["twin"], &[]);
    walk.host.update("a", &filtered(&[])).unwrap();
    walk.send("b", &lldp(C, B), &[], &["b.flooded", "b.drop.no-receiver"]);
    walk.send("twin", &lldp(B, C), &[], &["twin.drop.mac-claimed"]);
    walk.send("b", &lldp(A, B), &["a"], &[]);
    walk.host.update("a", &bypass()).unwrap();
    walk.send("twin", &lldp(B, C), &["b"], &[]);
}

/// No frame can be sent to a vnic with a group address, or with the zero address, alone.
#[test]
fn an_address_of_no_station_gets_floods_only() {
    let group = Mac([1, 2, 3, 4, 5, 6]);
    let mut walk = Walk::new(&[
        ("a", A, 1, bypass()),
        ("group", group, 1, bypass()),
        ("zero", Mac::ZERO, 1, bypass()),
    ]);
    let lldp = |to, from| build::ethernet(from, to).payload(ethernet::LLDP, &[0; 50]);
    walk.send("a", &lldp(Mac::BROADCAST, A), &["group", "zero"], &["a.flooded"]);
    walk.send("a", &lldp(group, A), &["group", "zero"], &["a.flooded"]);
    walk.send("group", &lldp(A, group), &["a"], &[]);
    assert!(walk.host.declare("far", A, 1 << 24, &bypass()).is_err());
}

#[test]
fn a_vnic_without_a_guest_drops_by_name() {
    let mut walk = Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass())]);
    walk.host.detach("b");
    walk.send("a", &ping(A, B), &[], &["b.drop.not-attached"]);
}

#[test]
fn a_guest_that_does_not_read_loses_only_its_own() {
    let mut walk =
        Walk::new(&[("a", A, 1, bypass()), ("b", B, 1, bypass()), ("c", C, 1, bypass())]);
    let mut full = false;
    for _ in 0..600 {
        walk.host.send("a", &ping(A, B), NetHeader::default()).unwrap();
        full |= walk.host.moved().contains_key("b.drop.ring-full");
    }
    assert!(full);
    walk.host.guest("b").unwrap().recv().unwrap().unwrap();
    walk.host.received().unwrap();
    walk.send("a", &ping(A, C), &["c"], &[]);
    walk.send("a", &ping(A, B), &["b"], &[]);
}

#[test]
fn floods_have_a_limit() {
    let names: Vec<String> = (0..200).map(|i| format!("r{i:03}")).collect();
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    for (i, name) in names.iter().enumerate() {
        host.declare(name, Mac([2, 0, 0, 1, 0, i as u8]), 1, &bypass()).unwrap();
    }
    host.settle();
    host.moved();
    let frame = ping(A, Mac::BROADCAST);
    for _ in 0..40 {
        assert_eq!(host.guest("a").unwrap().send_batch([&frame; 64]).unwrap(), 64);
        host.settle();
    }
    let moved = host.moved();
    let limited = moved.get("a.drop.flood-limit").copied().unwrap_or(0);
    let copied = moved["r000.drop.not-attached"];
    assert_eq!(limited + copied, 40 * 64);
    assert!(
        limited > 0 && copied >= 65_536 / 200,
        "512,000 copies at once are more than the limit: {moved:?}"
    );
}

/// Large frames, and those that have to be cut for some receivers, count for what they cost.
#[test]
fn large_floods_cost_more() {
    let mut host = Host::new().unwrap();
    host.declare("a", A, 1, &bypass()).unwrap();
    let config = GuestConfig { max_frame: 60_000, ..GuestConfig::default() }.rings(64);
    host.attach("a", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    for i in 0..200 {
        host.declare(&format!("r{i:03}"), Mac([2, 0, 0, 1, 0, i]), 1, &bypass()).unwrap();
    }
    host.settle();
    host.moved();
    let ip = build::ethernet(A, Mac::BROADCAST)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 255])
        .checksum(Checksum::Partial);
    let large = ip.udp(1, 2, &[0; 59_000]);
    let cut = ip.tcp(&build::Tcp::new(1, 2, 0), &[0; 20_736]);
    let tso = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 432,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    };
    for (frame, header) in [(large, NetHeader::default()), (cut, tso)] {
        // 80,000 copies at once of a small frame would be few enough, but not of these.
        for _ in 0..400 {
            host.send("a", &frame, header).unwrap();
        }
        let moved = host.moved();
        let copied = moved.get("r000.drop.not-attached").copied().unwrap_or(0);
        assert_eq!(
            moved.get("a.drop.flood-limit").copied().unwrap_or(0) + copied,
            400,
            "{moved:?}"
        );
        assert!(copied < 200, "{copied} of 400 were copied to 200 receivers");
    }
}
