//! The XDP program, which picks our frames. Everything else goes on to the host's own stack.
//!
//! Ours is VXLAN (RFC 7348: UDP to port 4789) to the endpoint or to a group that networks have, in
//! the endpoint's address family. It is behind at most one 802.1Q tag, with IP options but without
//! IPv6 extension headers. VXLAN of another VLAN than the underlay's is taken, too: it is dropped
//! and counted. Everything else of other VLANs is the host's. Of a fragmented datagram only the
//! first part tells its port: it is ours, so that it can be counted. Later parts may be the host's
//! as well, and stay with it while it uses the address.
//!
//! If no other interface of the host holds the endpoint's address, we answer for it. Then ICMP and
//! ICMPv6 to it are ours, later parts of our datagrams, and solicitations for it (RFC 4861, 4.3).
//! Solicitations for other addresses of the same group are the host's. ARP always goes to the host,
//! which answers only for its own; [`crate::packet`] sees copies.
//!
//! Of a wire all frames of one VLAN are ours, or all without a VLAN. Frames of other VLANs are the
//! host's, which may have devices for them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

use butterfly_packet::{ethernet, protocol, vxlan};

use super::{
    XdpConfig,
    assembler::{
        Assembler,
        Condition::{AnyOf, Below, Equal, NotEqual},
        Instruction, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9,
        Size::{Byte, Half, Word},
    },
};

/// VXLAN's UDP port.
const PORT: u16 = 4789;
/// `XDP_PASS`: goes on to the host's stack.
const PASS: i32 = 2;
/// Type of a frame with an outer tag of IEEE 802.1ad.
const SERVICE_VLAN: u16 = 0x88a8;
/// The BPF function `redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// `struct xdp_md`: where the frame begins, where it ends, which queue it came in by.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;
/// Offset of the IP header in a frame without a tag.
const IP: i16 = 14;
const IPV4_LEN: i16 = 20;
const IPV6_LEN: i16 = 40;
const NEIGHBOUR_SOLICITATION: i32 = 135;

/// The program for an endpoint. What is ours it gives to the socket of its queue in `sockets`; with
/// no socket there, to the host.
pub fn program(config: &XdpConfig, sockets: BorrowedFd<'_>) -> io::Result<Vec<Instruction>> {
    let XdpConfig { endpoint, answers, group6, vlan, whole, .. } = *config;
    if whole {
        return wire(vlan, sockets);
    }
    let mut code = Assembler::default();
    let labels = Labels {
        ours: code.label(),
        control: code.label(),
        pass: code.label(),
        port: code.label(),
    };
    let code = &mut code;
    start(code, &labels, endpoint.is_ipv4(), vlan);
    match endpoint {
        IpAddr::V4(endpoint) => ipv4(code, &labels, endpoint, answers),
        IpAddr::V6(endpoint) => ipv6(code, &labels, endpoint, group6, answers),
    }
    end(code, &labels, sockets, answers);
    // A label without a place would be a mistake in this file, which any test shows.
    std::mem::take(code).finish().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The program that takes all frames of a VLAN, or those of none.
fn wire(vlan: u16, sockets: BorrowedFd<'_>) -> io::Result<Vec<Instruction>> {
    let mut code = Assembler::default();
    let [ours, control, pass, port] = [(); 4].map(|()| code.label());
    let labels = Labels { ours, control, pass, port };
    let code = &mut code;
    code.copy(R6, R1);
    code.load(Word, R2, R1, DATA);
    code.load(Word, R3, R1, DATA_END);
    within(code, &labels, IP);
    code.load(Half, R5, R2, 12);
    if vlan == 0 {
        code.jump_if(R5, Equal, half(SERVICE_VLAN), pass);
        code.jump_if(R5, NotEqual, half(ethernet::VLAN), ours);
    } else {
        code.jump_if(R5, NotEqual, half(ethernet::VLAN), pass);
    }
    within(code, &labels, IP + 4);
    // A tag of priority names VLAN 0, which is none.
    code.load(Half, R7, R2, 14);
    code.and(R7, half(0xfff));
    code.jump_if(R7, NotEqual, half(vlan), pass);
    code.place(ours);
    redirect(code, &labels, sockets);
    code.place(control);
    code.place(port);
    std::mem::take(code).finish().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

struct Labels {
    /// The frame is ours.
    ours: Label,
    /// No VXLAN; ours if it is of the underlay's VLAN.
    control: Label,
    /// The frame is the host's.
    pass: Label,
    /// R4 points to a UDP header: its port decides.
    port: Label,
}

/// R6 = context, R3 = end of the frame, R2 = where it would begin without its tag. R9 = whether it
/// is of another VLAN than the underlay's. Goes on with the endpoint's family only.
fn start(code: &mut Assembler, labels: &Labels, ipv4: bool, vlan: u16) {
    let (untagged, ours) = (code.label(), code.label());
    code.copy(R6, R1);
    code.load(Word, R2, R1, DATA);
    code.load(Word, R3, R1, DATA_END);
    within(code, labels, IP);
    code.load(Half, R5, R2, 12);
    code.set(R9, i32::from(vlan != 0));
    code.jump_if(R5, NotEqual, half(ethernet::VLAN), untagged);
    within(code, labels, IP + 4);
    // A tag of priority names VLAN 0, which is none.
    code.load(Half, R7, R2, 14);
    code.and(R7, half(0xfff));
    code.set(R9, 0);
    code.jump_if(R7, Equal, half(vlan), ours);
    code.set(R9, 1);
    code.place(ours);
    code.load(Half, R5, R2, 16);
    code.add(R2, 4);
    code.place(untagged);
    code.jump_if(
        R5,
        NotEqual,
        half(if ipv4 { ethernet::IPV4 } else { ethernet::IPV6 }),
        labels.pass,
    );
}

fn ipv4(code: &mut Assembler, labels: &Labels, endpoint: Ipv4Addr, answers: bool) {
    let (to_us, addressed, whole) = (code.label(), code.label(), code.label());
    within(code, labels, IP + IPV4_LEN);
    // R0 = length of the header in bytes.
    code.load(Byte, R0, R2, IP);
    code.copy(R7, R0);
    code.and(R7, 0xf0);
    code.jump_if(R7, NotEqual, 0x40, labels.pass);
    code.and(R0, 0x0f);
    code.jump_if(R0, Below, 5, labels.pass);
    code.shift_left(R0, 2);
    // R5 = protocol, R8 = whether it is to us alone.
    code.load(Byte, R5, R2, IP + 9);
    code.set(R8, 1);
    code.load(Word, R7, R2, IP + 16);
    code.jump_if(R7, Equal, word(endpoint.octets()), to_us);
    code.set(R8, 0);
    // The rest of a group's address is the network's number.
    let [prefix, ..] = vxlan::group_v4(0).octets();
    code.load(Byte, R7, R2, IP + 16);
    code.jump_if(R7, NotEqual, prefix.into(), labels.pass);
    code.jump(addressed);
    code.place(to_us);
    if answers {
        code.jump_if(R5, Equal, protocol::ICMP.into(), labels.control);
    }
    code.place(addressed);
    code.jump_if(R5, NotEqual, protocol::UDP.into(), labels.pass);
    // The fragment's offset.
    code.load(Half, R7, R2, IP + 6);
    code.and(R7, half(0x1fff));
    code.jump_if(R7, Equal, 0, whole);
    later_fragment(code, labels, answers);
    code.place(whole);
    code.copy(R4, R2);
    code.add_register(R4, R0);
    code.add(R4, IP.into());
    code.jump(labels.port);
}

fn ipv6(
    code: &mut Assembler,
    labels: &Labels,
    endpoint: Ipv6Addr,
    group6: Ipv6Addr,
    answers: bool,
) {
    const NEXT: i16 = IP + IPV6_LEN;
    let (group, network, addressed, datagram, whole) =
        (code.label(), code.label(), code.label(), code.label(), code.label());
    within(code, labels, NEXT);
    code.load(Byte, R7, R2, IP);
    code.and(R7, 0xf0);
    code.jump_if(R7, NotEqual, 0x60, labels.pass);
    // R5 = what follows, R8 = whether it is to us alone.
    code.load(Byte, R5, R2, IP + 6);
    code.set(R8, 1);
    jump_unless_bytes(code, IP + 24, &endpoint.octets(), group);
    if answers {
        code.jump_if(R5, Equal, protocol::ICMPV6.into(), labels.control);
    }
    code.jump(addressed);
    code.place(group);
    code.set(R8, 0);
    if answers {
        code.jump_if(R5, NotEqual, protocol::ICMPV6.into(), network);
        code.load(Byte, R7, R2, IP + 24);
        code.jump_if(R7, NotEqual, 0xff, labels.pass);
        within(code, labels, NEXT + 24);
        code.load(Byte, R7, R2, NEXT);
        code.jump_if(R7, NotEqual, NEIGHBOUR_SOLICITATION, labels.pass);
        jump_unless_bytes(code, NEXT + 8, &endpoint.octets(), labels.pass);
        code.jump(labels.control);
    }
    code.place(network);
    // The last four bytes are the network's number.
    let [prefix @ .., _, _, _, _] = group6.octets();
    jump_unless_bytes(code, IP + 24, &prefix, labels.pass);
    code.place(addressed);
    code.copy(R4, R2);
    code.add(R4, NEXT.into());
    code.jump_if(R5, Equal, protocol::UDP.into(), labels.port);
    code.jump_if(R5, NotEqual, protocol::FRAGMENT.into(), labels.pass);
    within(code, labels, NEXT + 8);
    code.load(Byte, R5, R2, NEXT);
    code.jump_if(R5, Equal, protocol::UDP.into(), datagram);
    if answers {
        code.jump_if(R8, Equal, 0, labels.pass);
        code.jump_if(R5, Equal, protocol::ICMPV6.into(), labels.control);
    }
    code.jump(labels.pass);
    code.place(datagram);
    code.load(Half, R7, R2, NEXT + 2);
    code.jump_if(R7, AnyOf, half(0xfff8), whole);
    code.copy(R4, R2);
    code.add(R4, (NEXT + 8).into());
    code.jump(labels.port);
    code.place(whole);
    later_fragment(code, labels, answers);
}

/// A part of a UDP datagram that has no ports; R8 says whether it is to us alone.
fn later_fragment(code: &mut Assembler, labels: &Labels, answers: bool) {
    if answers {
        code.jump_if(R8, NotEqual, 0, labels.control);
    }
    code.jump(labels.pass);
}

/// The verdicts.
fn end(code: &mut Assembler, labels: &Labels, sockets: BorrowedFd<'_>, answers: bool) {
    code.place(labels.port);
    code.copy(R7, R4);
    code.add(R7, 4);
    code.jump_if_above(R7, R3, labels.pass);
    code.load(Half, R7, R4, 2);
    code.jump_if(R7, NotEqual, half(PORT), labels.pass);
    // The kernel refuses what nothing leads to.
    if answers {
        code.jump(labels.ours);
        code.place(labels.control);
        code.jump_if(R9, NotEqual, 0, labels.pass);
    }
    code.place(labels.ours);
    redirect(code, labels, sockets);
}

/// Gives the frame to the socket of its queue. Ends the program.
fn redirect(code: &mut Assembler, labels: &Labels, sockets: BorrowedFd<'_>) {
    code.load(Word, R2, R6, QUEUE);
    code.map(R1, sockets.as_raw_fd());
    // The verdict if the queue has no socket.
    code.set(R3, PASS);
    code.call(REDIRECT_MAP);
    code.exit();
    code.place(labels.pass);
    code.set(R0, PASS);
    code.exit();
}

/// Passes frames that do not have `len` bytes behind R2.
fn within(code: &mut Assembler, labels: &Labels, len: i16) {
    code.copy(R4, R2);
    code.add(R4, len.into());
    code.jump_if_above(R4, R3, labels.pass);
}

/// For whole words only.
fn jump_unless_bytes(code: &mut Assembler, offset: i16, wanted: &[u8], label: Label) {
    for (at, bytes) in (offset..).step_by(4).zip(wanted.as_chunks::<4>().0) {
        code.load(Word, R7, R2, at);
        code.jump_if(R7, NotEqual, word(*bytes), label);
    }
}

/// A 16-bit number of the wire as a load finds it.
fn half(value: u16) -> i32 {
    value.to_be().into()
}

/// Four bytes of the wire as a load finds them.
fn word(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;
