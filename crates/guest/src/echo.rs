//! Behind a BENCH vnic that answers: echo replies.

use std::net::IpAddr;

use butterfly_guest_driver::Span;
use butterfly_packet::{
    Mac,
    build::{self, Ip},
    ethernet::{self, Ethernet},
    icmp::{self, Icmp},
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol,
};
use butterfly_vhost::net::NetHeader;

use crate::{
    seat::{End, Seat},
    vnic::{BURST, Vnic},
};

/// Answers until it is asked to end.
pub(crate) fn run(seat: &mut Seat, vnic: &Vnic) -> End {
    loop {
        if let Err(end) = turn(seat, vnic) {
            return end;
        }
    }
}

fn turn(seat: &mut Seat, vnic: &Vnic) -> Result<(), End> {
    if seat.stopping() {
        return Err(End::Stopped);
    }
    let own = seat.ip();
    let mut answers = Vec::new();
    // No more questions than there is room for answers.
    let most = seat.nic.room()?.min(BURST);
    let mut frame = Vec::new();
    let received = seat.nic.receive(most, |memory, pieces| {
        gather(memory, pieces, &mut frame);
        answers.extend(own.and_then(|own| answer(&frame, vnic.mac, own)));
    })?;
    seat.noticed(answers.len());
    send(seat, answers)?;
    if received == 0 && seat.is_quiet() {
        seat.sleep(None, None)?;
    }
    Ok(())
}

/// Sends frames that ask for no offload, as far as there is room.
pub(crate) fn send(
    seat: &mut Seat,
    frames: impl IntoIterator<Item = Vec<u8>>,
) -> Result<usize, End> {
    let mut frames = frames.into_iter();
    Ok(seat.nic.send(BURST, |memory, at| {
        let frame = frames.next()?;
        memory.write(at, &[0; NetHeader::LEN]);
        memory.write(at + NetHeader::LEN, &frame);
        Some(NetHeader::LEN + frame.len())
    })?)
}

/// A received frame without its header.
pub(crate) fn gather(memory: &Span, pieces: &[(usize, usize)], frame: &mut Vec<u8>) {
    frame.clear();
    for (at, len) in pieces {
        let start = frame.len();
        frame.resize(start + len, 0);
        memory.read(*at, &mut frame[start..]);
    }
    frame.drain(..NetHeader::LEN.min(frame.len()));
}

/// An echo message in a frame: its sender, its receiver and its contents.
pub(crate) struct Echo<'a> {
    pub link: Ethernet<'a>,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub message: Icmp<'a>,
    /// A question; else an answer.
    pub request: bool,
}

/// Reads a frame. Whether checksums are right is not looked at: nothing here is older than the
/// switch.
pub(crate) fn read(frame: &[u8]) -> Option<Echo<'_>> {
    let link = Ethernet::parse(frame).ok()?;
    let (source, destination, message, kinds) = match link.ethertype() {
        ethernet::IPV4 => {
            let ip = Ipv4::parse(link.payload())
                .ok()
                .filter(|ip| ip.protocol() == protocol::ICMP && !ip.is_fragment())?;
            let kinds = (icmp::v4::ECHO_REQUEST, icmp::v4::ECHO_REPLY);
            (ip.source().into(), ip.destination().into(), ip.payload().ok()?, kinds)
        }
        ethernet::IPV6 => {
            let ip = Ipv6::parse(link.payload())
                .ok()
                .filter(|ip| ip.next_header() == protocol::ICMPV6)?;
            let kinds = (icmp::v6::ECHO_REQUEST, icmp::v6::ECHO_REPLY);
            (ip.source().into(), ip.destination().into(), ip.payload().ok()?, kinds)
        }
        _ => return None,
    };
    let message = Icmp::parse(message).ok()?;
    let request = message.kind() == kinds.0;
    (request || message.kind() == kinds.1).then_some(Echo {
        link,
        source,
        destination,
        message,
        request,
    })
}

/// An IP header from one address to another, of one family.
pub(crate) fn packet(from: (Mac, IpAddr), to: (Mac, IpAddr)) -> Option<Ip> {
    let link = build::ethernet(from.0, to.0);
    match (from.1, to.1) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some(link.ipv4(from, to)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Some(link.ipv6(from, to)),
        _ => None,
    }
}

/// The answer to an echo request for us, if it is one.
fn answer(frame: &[u8], mac: Mac, own: IpAddr) -> Option<Vec<u8>> {
    let Echo { link, source, destination, message, request } = read(frame)?;
    if !request || link.destination() != mac || destination != own {
        return None;
    }
    let kind = if own.is_ipv4() { icmp::v4::ECHO_REPLY } else { icmp::v6::ECHO_REPLY };
    let packet = packet((mac, own), (link.source(), source))?;
    Some(packet.icmp(kind, 0, message.rest_of_header(), message.body()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_question_for_us_is_answered_and_nothing_else() {
        for (a, b, len) in
            [("10.0.0.1", "10.0.0.2", 14 + 20 + 8 + 3), ("fd00::1", "fd00::2", 14 + 40 + 8 + 3)]
        {
            let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
            let question = packet((A, a), (B, b)).unwrap().ping(7, 8, b"abc");
            let reply = answer(&question, B, b).unwrap();
            assert_eq!(reply.len(), len);
            let read = read(&reply).unwrap();
            assert_eq!(
                (read.link.destination(), read.link.source(), read.source, read.destination),
                (A, B, b, a)
            );
            assert_eq!(
                (
                    read.request,
                    read.message.echo_id(),
                    read.message.echo_sequence(),
                    read.message.body()
                ),
                (false, 7, 8, &b"abc"[..])
            );
            assert_eq!(answer(&question, A, b), None, "for another station");
            assert_eq!(answer(&question, B, a), None, "for another address");
            assert_eq!(answer(&reply, A, a), None, "an answer");
            for len in 0..question.len() {
                assert_eq!(answer(&question[..len], B, b), None, "cut to {len}");
            }
        }
        let other = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, b"x");
        assert_eq!(answer(&other, B, [10, 0, 0, 2].into()), None);
    }
}
