//! Contents of packets that a filter reads: DHCP requests and discovery, as a machine would send
//! them.

use std::net::{IpAddr, Ipv6Addr};

use butterfly_packet::{build::Ip, icmp::v6, mac::Mac};

use crate::ip::Dhcp;

/// Transaction of requests.
const TRANSACTION: u32 = 0x00b0_77e2;
/// An association of addresses, number 1, that names none (RFC 8415, 21.4).
const WISH: [u8; 16] = [0, 3, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
/// Hop limit of discovery; with another one it is invalid (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
/// Flags of an advertisement that answers, and that replaces older knowledge (RFC 4861, 4.4).
const SOLICITED_OVERRIDE: u32 = 3 << 29;

/// Returns the request of a DHCP client, if UDP between these ports is one: of IPv4 from an address
/// that it renews the lease of, or from none to look for one. The contents of an answer depend on
/// its request, so none is made up.
pub(super) fn dhcp(
    (source_port, destination_port): (u16, u16),
    source: IpAddr,
    mac: Mac,
) -> Option<Vec<u8>> {
    let v6 = source.is_ipv6();
    if Dhcp::between(source_port, destination_port, v6) != Some(true) {
        return None;
    }
    let transaction = TRANSACTION.to_be_bytes();
    if v6 {
        // SOLICIT with a client identifier made of the MAC address (RFC 8415, 11.4), the time
        // elapsed, and a wish for addresses.
        let [_, transaction @ ..] = transaction;
        return Some(
            [
                &[1][..],
                &transaction,
                &[0, 1, 0, 10, 0, 3, 0, 1],
                &mac.0,
                &[0, 8, 0, 2, 0, 0],
                &WISH,
            ]
            .concat(),
        );
    }
    // DISCOVER, or REQUEST with the client's address (RFC 2131, figure 1 and 4.3.2).
    let IpAddr::V4(source) = source else { return None };
    let kind = if source.is_unspecified() { 1 } else { 3 };
    let (own, none) = (source.octets(), [0; 12]);
    let mut message = [&[1, 1, 6, 0][..], &transaction, &[0; 4], &own, &none, &mac.0].concat();
    message.resize(236, 0);
    message.extend([0x63, 0x82, 0x53, 0x63, 53, 1, kind, 255]);
    message.resize(300, 0);
    Some(message)
}

/// Returns a message of neighbour discovery (RFC 4861, 4), if this type is one.
pub(super) fn discovery(
    ip: Ip,
    kind: u8,
    code: u8,
    ips: (IpAddr, IpAddr),
    mac: Mac,
) -> Option<Vec<u8>> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = ips else { return None };
    let link = |option: u8| [&[option, 1][..], &mac.0].concat();
    // A host that is asked by a group address has an address that ends as the group does (RFC 4291,
    // 2.7.1): some link-local one.
    let asked = match destination.octets() {
        [0xff, 0x02, .., 0xff, a, b, c] => {
            Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, a, b, c])
        }
        _ => destination,
    };
    let (rest, body) = match kind {
        v6::ROUTER_SOLICITATION => (0, link(1)),
        v6::ROUTER_ADVERTISEMENT => (64 << 24 | 1800, [&[0; 8][..], &link(1)].concat()),
        v6::NEIGHBOUR_SOLICITATION => (0, [&asked.octets()[..], &link(1)].concat()),
        v6::NEIGHBOUR_ADVERTISEMENT => {
            let group = destination.is_multicast();
            let flags = if group { SOLICITED_OVERRIDE & !(1 << 30) } else { SOLICITED_OVERRIDE };
            (flags, [&source.octets()[..], &link(2)].concat())
        }
        _ => return None,
    };
    Some(ip.ttl(HOP_LIMIT).icmp(kind, code, rest, &body))
}
