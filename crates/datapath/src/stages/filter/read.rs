//! Reads a frame as far as the filter needs it.

use crate::engine::{batch::Batch, reason::DropReason};
use crate::ip::{
    HEADERS_TOO_LONG, L4, Packet,
    parse::{Fault, parse},
};

/// Parses a frame, with more of it if its headers are long, and all of it if it is DHCP.
pub(crate) fn read(
    batch: &mut Batch<'_>,
    index: usize,
    at: u16,
    vlan: u16,
    len: u32,
) -> Result<Packet, DropReason> {
    let mut packet = read_headers(batch, index, at, vlan, len)?;
    match &mut packet.l4 {
        L4::Dhcp(_) => Ok(read_whole(packet, batch.parts().0.keep(index), at)),
        L4::Discovery(found) => {
            found.to = batch.metas().get(index).map_or(0, |meta| meta.destination);
            Ok(packet)
        }
        _ => Ok(packet),
    }
}

fn read_headers(
    batch: &mut Batch<'_>,
    index: usize,
    at: u16,
    vlan: u16,
    len: u32,
) -> Result<Packet, DropReason> {
    let fault = match parse(batch.frames.head(index), at.into(), vlan, len) {
        Ok(packet) => return Ok(packet),
        Err(Fault::NeedMore) => {
            match parse(batch.parts().0.extend_head(index), at.into(), vlan, len) {
                Ok(packet) => return Ok(packet),
                Err(fault) => fault,
            }
        }
        Err(fault) => fault,
    };
    Err(match fault {
        Fault::Drop(reason) => reason,
        Fault::NeedMore => HEADERS_TOO_LONG,
    })
}

/// Returns the packet with its DHCP message read from the whole frame, which starts with the
/// headers that it was parsed from.
fn read_whole(packet: Packet, frame: Option<&[u8]>, at: u16) -> Packet {
    match (packet.l4, frame) {
        (L4::Dhcp(dhcp), Some(frame)) => {
            Packet { l4: L4::Dhcp(dhcp.read(frame, at.into())), ..packet }
        }
        _ => packet,
    }
}
