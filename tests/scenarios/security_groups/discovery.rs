//! Filtered vnics can find each other and get their addresses without a rule, and that opens
//! nothing else.

use std::net::Ipv6Addr;

use butterfly_api::proto::{NicUpdateReq, Request};
use butterfly_packet::{
    arp,
    build::{self, Ip},
    icmp::v6 as types,
    mac::Mac,
};
use butterfly_tests::{
    frames::mac,
    net::{Net, VNI, addr6, filtered, ip4, link_local, open, v4, v6},
};
use protobuf::MessageField;

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

fn mac8(n: u8) -> Mac {
    mac(n.into())
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// Returns the group that is asked for an address, and its MAC (RFC 4291, 2.7.1; RFC 2464, 7).
fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., x, y, z] = target.octets();
    (
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(x), u16::from_be_bytes([y, z])),
        Mac([0x33, 0x33, 0xff, x, y, z]),
    )
}

/// Returns an option with a link-layer address.
fn link_option(kind: u8, of: Mac) -> Vec<u8> {
    [&[kind, 1][..], &of.0].concat()
}

/// Returns the question for `target` by vnic `from`, from the address `source`.
fn solicitation(from: u8, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let (group, group_mac) = solicited_node(target);
    let options = if source.is_unspecified() { Vec::new() } else { link_option(1, mac8(from)) };
    let body = [&target.octets()[..], &options].concat();
    build::ethernet(mac8(from), group_mac).ipv6(source, group).ttl(255).icmp(
        types::NEIGHBOUR_SOLICITATION,
        0,
        0,
        &body,
    )
}

/// Returns the answer of vnic `from` to `to`: it has the address `target`.
fn advertisement(from: u8, source: Ipv6Addr, to: (Mac, Ipv6Addr), target: Ipv6Addr) -> Vec<u8> {
    let body = [&target.octets()[..], &link_option(2, mac8(from))].concat();
    let solicited = if to.1.is_multicast() { 0x2000_0000 } else { 0x6000_0000 };
    build::ethernet(mac8(from), to.0).ipv6(source, to.1).ttl(255).icmp(
        types::NEIGHBOUR_ADVERTISEMENT,
        0,
        solicited,
        &body,
    )
}

#[test]
fn arp_between_filtered_vnics() {
    let nics = [
        filtered("a", A, "").anti_spoof(),
        filtered("b", B, "").anti_spoof(),
        filtered("c", C, ""),
    ];
    let Some(mut net) = Net::new(&nics) else { return };
    for (from, id, others) in [(A, "a", "b c"), (B, "b", "a c")] {
        let to = if from == A { B } else { A };
        let link = build::ethernet(mac8(from), Mac::BROADCAST);
        net.expect(id, &link.arp_request([10, 0, 0, from], [10, 0, 0, to]), others);
        let answer =
            build::ethernet(mac8(to), mac8(from)).arp_reply([10, 0, 0, to], [10, 0, 0, from]);
        net.expect(if from == A { "b" } else { "a" }, &answer, id);
        net.expect(
            id,
            &link.arp_request([10, 0, 0, to], [10, 0, 0, C]),
            &format!("{id}.spoofed-arp"),
        );
        net.expect(
            id,
            &link.arp_request([0, 0, 0, 0], [10, 0, 0, from]),
            &format!("{id}.spoofed-arp"),
        );
        let foreign = link.arp(
            arp::REPLY,
            (mac8(9), [10, 0, 0, from].into()),
            (mac8(to), [10, 0, 0, to].into()),
        );
        net.expect(id, &foreign, &format!("{id}.spoofed-arp"));
    }
    // Without anti-spoofing a vnic may claim addresses that no vnic here has, with its own MAC.
    let claim = build::ethernet(mac8(C), Mac::BROADCAST).arp_request([10, 0, 0, 99], [10, 0, 0, B]);
    net.expect("c", &claim, "a b");
    let claim = build::ethernet(mac8(C), Mac::BROADCAST).arp_request([10, 0, 0, A], [10, 0, 0, B]);
    net.expect("c", &claim, "c.ip-claimed");
    let mut forged = claim;
    forged[6..12].copy_from_slice(&mac8(A).0);
    net.expect("c", &forged, "c.spoofed-mac");
    net.expect("a", &v4(A, B).ping(1, 1, b"x"), "b.ingress-denied");
}

#[test]
fn neighbours_find_each_other() {
    let Some(mut net) = Net::new(&[filtered("a", A, ""), filtered("b", B, "only")]) else { return };
    net.group("only", &["out tcp 1-1 ::/0"], &[]);
    for (from, to, id, other) in [(A, B, "a", "b"), (B, A, "b", "a")] {
        let own = [addr6(from), link_local(from)];
        for source in own {
            for target in [addr6(to), link_local(to)] {
                net.expect(id, &solicitation(from, source, target), other);
                net.expect(other, &advertisement(to, target, (mac8(from), source), target), id);
                // The probe of a neighbour that may be gone (RFC 4861, 7.3).
                let body = [&target.octets()[..], &link_option(1, mac8(from))].concat();
                let probe = build::ethernet(mac8(from), mac8(to)).ipv6(source, target).ttl(255);
                net.expect(id, &probe.icmp(types::NEIGHBOUR_SOLICITATION, 0, 0, &body), other);
            }
        }
        let all = (Mac([0x33, 0x33, 0, 0, 0, 1]), address("ff02::1"));
        let bad = format!("{id}.bad-discovery");
        for target in own {
            // Duplicate address detection (RFC 4862, 5.4), and the announcement of the address.
            net.expect(id, &solicitation(from, Ipv6Addr::UNSPECIFIED, target), other);
            net.expect(id, &advertisement(from, target, all, target), other);
            // A vnic cannot answer for the addresses of another.
            let foreign = addr6(if from == A { B } else { A });
            let claimed = format!("{id}.ip-claimed");
            net.expect(id, &advertisement(from, target, all, foreign), &claimed);
            net.expect(id, &advertisement(from, foreign, all, target), &claimed);
            net.expect(id, &solicitation(from, foreign, target), &claimed);
            let mut lie = advertisement(from, target, all, target);
            let at = lie.len() - 6;
            lie[at..].copy_from_slice(&mac8(9).0);
            net.expect(id, &lie, &bad);
        }
        // Questions from behind a router, in a fragment, with another code, and cut off.
        let whole =
            |ip: Ip, code| ip.icmp(types::NEIGHBOUR_SOLICITATION, code, 0, &addr6(to).octets());
        let ip = || v6(from, to);
        net.expect(id, &whole(ip().ttl(255), 0), other);
        net.expect(id, &whole(ip().ttl(254), 0), &bad);
        net.expect(id, &whole(ip().ttl(255), 1), &bad);
        net.expect(id, &ip().ttl(255).icmp(types::NEIGHBOUR_SOLICITATION, 0, 0, &[0; 15]), &bad);
    }
    // Discovery lets nothing else through.
    net.expect("a", &v6(A, B).ping(1, 1, b"x"), "b.ingress-denied");
    net.expect("b", &v6(B, A).ping(1, 1, b"x"), "b.egress-denied");
}

/// Filtered vnics hear routers. A filtered vnic is a router only with a rule and the flag.
#[test]
fn routers_and_listeners() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    let all_nodes = (Mac([0x33, 0x33, 0, 0, 0, 1]), address("ff02::1"));
    let all_routers = (Mac([0x33, 0x33, 0, 0, 0, 2]), address("ff02::2"));
    let mld_routers = (Mac([0x33, 0x33, 0, 0, 0, 0x16]), address("ff02::16"));
    let from = |n: u8, source: Ipv6Addr, to: (Mac, Ipv6Addr), hops| {
        build::ethernet(mac8(n), to.0).ipv6(source, to.1).ttl(hops)
    };
    let prefix = [0u8; 8];
    // Router solicitations.
    for source in [link_local(B), addr6(B), Ipv6Addr::UNSPECIFIED] {
        let options = if source.is_unspecified() { Vec::new() } else { link_option(1, mac8(B)) };
        net.expect(
            "b",
            &from(B, source, all_routers, 255).icmp(types::ROUTER_SOLICITATION, 0, 0, &options),
            "a",
        );
    }
    net.expect(
        "b",
        &from(B, link_local(A), all_routers, 255).icmp(types::ROUTER_SOLICITATION, 0, 0, &[]),
        "b.bad-discovery",
    );
    // Router advertisements.
    let advertised = |n: u8, hops| {
        from(n, link_local(n), all_nodes, hops).icmp(
            types::ROUTER_ADVERTISEMENT,
            0,
            0x4000_0708,
            &prefix,
        )
    };
    net.expect("a", &advertised(A, 255), "b");
    net.expect("a", &advertised(A, 64), "b.ingress-denied");
    net.expect("b", &advertised(B, 255), "b.bad-discovery");
    let redirect = |n: u8, to: u8| {
        let body = [addr6(9).octets(), addr6(9).octets()].concat();
        build::ethernet(mac8(n), mac8(to)).ipv6(link_local(n), addr6(to)).ttl(255).icmp(
            types::REDIRECT,
            0,
            0,
            &body,
        )
    };
    net.expect("a", &redirect(A, B), "b.ingress-denied");
    net.expect("b", &redirect(B, A), "b.bad-discovery");
    // Multicast listeners (RFC 2710, RFC 3810).
    let report = |n: u8, source, hops| {
        from(n, source, mld_routers, hops).icmp(types::LISTENER_REPORT_V2, 0, 0, &[])
    };
    for source in [link_local(B), Ipv6Addr::UNSPECIFIED] {
        net.expect("b", &report(B, source, 1), "a");
        net.expect(
            "b",
            &from(B, source, all_nodes, 1).icmp(
                types::LISTENER_REPORT,
                0,
                0,
                &all_nodes.1.octets(),
            ),
            "a",
        );
    }
    net.expect("b", &report(B, link_local(A), 1), "b.bad-discovery");
    net.expect("b", &report(B, link_local(B), 255), "b.bad-discovery");
    net.expect("a", &report(A, link_local(A), 1), "b");
    let query =
        |n: u8| from(n, link_local(n), all_nodes, 1).icmp(types::LISTENER_QUERY, 0, 0, &[0; 16]);
    net.expect("a", &query(A), "b");
    net.expect("b", &query(B), "b.bad-discovery");
    // Neither a rule for everything, nor a rule or the flag alone, makes b a router. Both do, with
    // its own addresses.
    net.group("g", &["out any - ::/0"], &[]);
    net.ask(router("b", true));
    net.expect("b", &advertised(B, 255), "b.bad-discovery");
    net.rule_add("g", "out icmpv6 - ::/0");
    net.ask(router("b", false));
    net.expect("b", &advertised(B, 255), "b.bad-discovery");
    net.ask(router("b", true));
    net.expect("b", &advertised(B, 255), "a");
    net.expect("b", &query(B), "a");
    let mut foreign = from(B, link_local(A), all_nodes, 255).icmp(
        types::ROUTER_ADVERTISEMENT,
        0,
        0x4000_0708,
        &prefix,
    );
    net.expect("b", &foreign, "b.bad-discovery");
    foreign[6..12].copy_from_slice(&mac8(A).0);
    net.expect("b", &foreign, "b.spoofed-mac");
    net.expect("b", &redirect(B, A), "a");
}

fn router(id: &str, router: bool) -> Request {
    let update =
        NicUpdateReq { id: Some(id.to_owned()), router: Some(router), ..NicUpdateReq::default() };
    Request { nic_update: MessageField::some(update), ..Request::default() }
}

/// Returns a DHCPv4 message (RFC 2131, figure 1): a discovery, or an offer of B's address by A.
fn bootp(operation: u8, transaction: u32, client: Mac) -> Vec<u8> {
    let mut bytes = vec![operation, 1, 6, 0];
    bytes.extend(transaction.to_be_bytes());
    bytes.resize(28, 0);
    bytes.extend(client.0);
    bytes.resize(236, 0);
    bytes.extend([0x63, 0x82, 0x53, 0x63, 53, 1, operation]);
    if operation == 2 {
        bytes[16..20].copy_from_slice(&[10, 0, 0, B]);
        bytes.extend([54, 4, 10, 0, 0, A]);
    }
    bytes.push(255);
    bytes.resize(300, 0);
    bytes
}

/// Gets b a lease from `s`: requests leave, their answers come in, and nothing else does. Answers
/// without a request have the outcome `refused`.
fn lease_v4(net: &mut Net, transaction: u32, refused: &str) {
    let discover = |mac_of: Mac, source: [u8; 4], transaction| {
        let payload = bootp(1, transaction, mac_of);
        build::ethernet(mac8(B), Mac::BROADCAST).ipv4(source, [255; 4]).udp(68, 67, &payload)
    };
    let offer = |to: Mac, ip: [u8; 4], transaction, client: Mac, operation| {
        build::ethernet(mac8(A), to).ipv4([10, 0, 0, A], ip).udp(
            67,
            68,
            &bootp(operation, transaction, client),
        )
    };
    let own = [10, 0, 0, B];
    // An offer before the request, and one with another transaction number.
    net.expect("s", &offer(mac8(B), own, transaction, mac8(B), 2), refused);
    net.expect("b", &discover(mac8(B), [0; 4], transaction), "s");
    net.expect("s", &offer(mac8(B), own, transaction ^ 1, mac8(B), 2), refused);
    // Offers to the offered address and to all, more than once.
    net.expect("s", &offer(mac8(B), own, transaction, mac8(B), 2), "b");
    net.expect("s", &offer(Mac::BROADCAST, [255; 4], transaction, mac8(B), 2), "b");
    net.expect("s", &offer(mac8(B), own, transaction, mac8(9), 2), refused);
    net.expect("s", &offer(mac8(B), own, transaction, mac8(B), 1), refused);
    // A renewal, from the address that b has.
    let renew = v4(B, A).udp(68, 67, &bootp(1, transaction + 7, mac8(B)));
    net.expect("b", &renew, "s");
    net.expect("s", &offer(mac8(B), own, transaction + 7, mac8(B), 2), "b");
    // Several requests are open: of a boot program, and of the system that it starts.
    net.expect("s", &offer(mac8(B), own, transaction, mac8(B), 2), "b");
    // b cannot ask for another MAC address.
    net.expect("b", &discover(mac8(9), [0; 4], transaction), "b.bad-dhcp");
    net.expect("b", &discover(mac8(B), [10, 0, 0, 9], transaction), "b.spoofed-ip");
}

/// Does the same as [`lease_v4`] with DHCPv6 (RFC 8415).
fn lease_v6(net: &mut Net, transaction: u32, refused: &str) {
    let identifiers = [0, 1, 0, 4, 0, 3, 0, B, 0, 2, 0, 4, 0, 3, 0, A];
    let message = |kind: u8, transaction: u32| {
        [
            &[kind][..],
            &transaction.to_be_bytes()[1..],
            &identifiers[..if kind == 1 { 8 } else { 16 }],
        ]
        .concat()
    };
    let servers = (Mac([0x33, 0x33, 0, 1, 0, 2]), address("ff02::1:2"));
    let ask = |source, kind, transaction| {
        build::ethernet(mac8(B), servers.0).ipv6(source, servers.1).udp(
            546,
            547,
            &message(kind, transaction),
        )
    };
    let answer_of = |from, kind, transaction, to| {
        build::ethernet(mac8(A), mac8(B)).ipv6(from, to).udp(547, 546, &message(kind, transaction))
    };
    let answer = |kind, transaction, to| answer_of(addr6(A), kind, transaction, to);
    net.expect("s", &answer(2, transaction, link_local(B)), refused);
    net.expect("b", &ask(link_local(B), 1, transaction), "s");
    net.expect("s", &answer(2, transaction ^ 1, link_local(B)), refused);
    net.expect("s", &answer(2, transaction, link_local(B)), "b");
    // A server on the link answers from its link-local address.
    net.expect("s", &answer_of(link_local(A), 2, transaction, link_local(B)), "b");
    net.expect("b", &ask(link_local(B), 3, transaction + 5), "s");
    // The answer goes to the address from which the client asked.
    net.expect("s", &answer(7, transaction + 5, addr6(B)), refused);
    net.expect("s", &answer(7, transaction + 5, link_local(B)), "b");
    // RECONFIGURE is no answer.
    net.expect("s", &answer(10, transaction + 5, link_local(B)), refused);
    net.expect("b", &ask(addr6(9), 1, transaction), "b.spoofed-ip");
}

#[test]
fn addresses_from_a_bypass_server() {
    let Some(mut net) = Net::new(&[open("s", A), filtered("b", B, "g")]) else { return };
    lease_v4(&mut net, 0x1234_5670, "b.ingress-denied");
    lease_v6(&mut net, 0x12_3450, "b.ingress-denied");
    // OUTBOUND rules do not keep b from its lease.
    net.group("g", &["out tcp 443-443 0.0.0.0/0"], &[]);
    net.expect("b", &v4(B, A).udp(68, 67, &bootp(1, 1, mac8(B))), "s");
    net.expect("b", &v4(B, A).udp(1068, 67, &bootp(1, 1, mac8(B))), "b.egress-denied");
}

#[test]
fn addresses_from_a_filtered_server() {
    let Some(mut net) = Net::new(&[filtered("s", A, "server"), filtered("b", B, "")]) else {
        return;
    };
    // Rules let everything in. An OUTBOUND rule does not make a vnic a server; only an INBOUND rule
    // for the server's port does.
    net.group("server", &["in any - 0.0.0.0/0", "out udp 68-68 0.0.0.0/0"], &[]);
    let ask = v4(B, A).udp(68, 67, &bootp(1, 77, mac8(B)));
    let answer = v4(A, B).udp(67, 68, &bootp(2, 77, mac8(B)));
    net.expect("b", &ask, "s");
    net.expect("s", &answer, "s.egress-denied");
    net.group("server", &["in udp 67-68 0.0.0.0/0", "in udp 547-547 ::/0"], &[]);
    lease_v4(&mut net, 0x1234_5670, "s.egress-denied");
    lease_v6(&mut net, 0x12_3450, "s.egress-denied");
    // A server answers from its own addresses only.
    let forged = build::ethernet(mac8(A), mac8(B)).ipv6(address("fe80::99"), link_local(B)).udp(
        547,
        546,
        &[2, 0, 0, 1],
    );
    net.expect("s", &forged, "s.spoofed-ip");
    let forged = build::ethernet(mac8(A), mac8(B)).ipv4([10, 0, 0, 9], [10, 0, 0, B]).udp(
        67,
        68,
        &bootp(2, 77, mac8(B)),
    );
    net.expect("s", &forged, "s.spoofed-ip");
}

/// A vnic sends only from its own MAC and from the addresses that were declared last, also with
/// OUTBOUND rules.
#[test]
fn nobody_speaks_for_others() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g"), filtered("c", C, "")])
    else {
        return;
    };
    for rules in [&[][..], &["out any - 0.0.0.0/0", "out any - ::/0"]] {
        net.group("g", rules, &[]);
        for to in [A, C] {
            let received = if to == A { "a" } else { "c.ingress-denied" };
            let link = || build::ethernet(mac8(B), mac8(to));
            net.expect("b", &v4(B, to).udp(1, 2, b""), received);
            net.expect("b", &v6(B, to).udp(1, 2, b""), received);
            for foreign in
                [[10, 0, 0, A], [10, 0, 0, C], [0; 4], [127, 0, 0, 1], [255; 4], [224, 0, 0, 1]]
            {
                net.expect(
                    "b",
                    &link().ipv4(foreign, [10, 0, 0, to]).udp(1, 2, b""),
                    "b.spoofed-ip",
                );
            }
            for foreign in ["fd00::1", "fd00::3", "::", "::1", "ff02::1", "::10.0.0.2", "fe80::99"]
            {
                net.expect(
                    "b",
                    &link().ipv6(address(foreign), addr6(to)).udp(1, 2, b""),
                    "b.spoofed-ip",
                );
            }
            // IPv4 addresses in IPv6 never leave a host (RFC 4291, 2.5.5.2).
            net.expect(
                "b",
                &link().ipv6(address("::ffff:10.0.0.2"), addr6(to)).udp(1, 2, b""),
                "b.malformed-ip",
            );
            let forged = build::ethernet(mac8(A), mac8(to))
                .ipv4([10, 0, 0, B], [10, 0, 0, to])
                .udp(1, 2, b"");
            net.expect("b", &forged, "b.spoofed-mac");
        }
    }
    // Addresses are added and removed.
    let link = || build::ethernet(mac8(B), mac8(A)).ipv4([10, 0, 0, 9], [10, 0, 0, A]);
    net.host.update("b", &[&ip4(B), &ip4(9)], false).unwrap();
    net.expect("b", &link().udp(1, 2, b""), "a");
    net.host.update("b", &[&ip4(B)], false).unwrap();
    net.expect("b", &link().udp(1, 2, b""), "b.spoofed-ip");
    assert_eq!(net.host.learnt(VNI).len(), 0, "nothing forged was learnt");
}
