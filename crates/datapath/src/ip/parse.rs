//! Reads an IP frame as far as a filter must: RFC 791, RFC 8200. For packets with more than one
//! meaning: RFC 1858, 3128, 5722, 6946, 6980, 7112.

mod chain;
mod echo;
mod header;
mod icmp;
mod quote;
mod sight;
mod upper;

use crate::ip::{
    Packet,
    parse::{
        header::{parse_v4, parse_v6},
        sight::Sight,
    },
    reasons::{MALFORMED_IP, TRUNCATED},
};

pub(crate) use sight::{Fault, MOST};

/// Reads a frame of `frame_len` bytes that starts with `head` and whose IP header is at `at`.
/// `vlan` is in the form of [`crate::ip::Tuple`].
///
/// The IP packet may end before the frame does (Ethernet pads). With [`MOST`] bytes, or the whole
/// frame, it never asks for more.
pub(crate) fn parse(head: &[u8], at: usize, vlan: u16, frame_len: u32) -> Result<Packet, Fault> {
    let len = frame_len as usize;
    let head = head.get(..len.min(MOST)).unwrap_or(head);
    let sight =
        Sight { packet: head.get(at..).unwrap_or_default(), more: head.len() < len.min(MOST) };
    let room = len.saturating_sub(at);
    match sight.packet.first().map(|byte| byte >> 4) {
        Some(4) => parse_v4(sight, room, vlan),
        Some(6) => parse_v6(sight, room, vlan),
        Some(_) => Err(Fault::Drop(MALFORMED_IP)),
        None if room == 0 => Err(Fault::Drop(TRUNCATED)),
        None => Err(sight.missing()),
    }
}

#[cfg(test)]
mod tests;
