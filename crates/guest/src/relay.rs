//! Between a TAP device and the switch: frames as they are, virtio-net header included, without a
//! copy of our own.

use std::{io, os::fd::AsFd, sync::atomic::Ordering};

use rustix::io::Errno;

use crate::{
    BURST,
    counts::Counts,
    nic::TX_BUFFER,
    seat::{End, Seat},
    station::{HEADER_LEN, Station},
    turned::Turned,
};

/// Bytes of both addresses of a frame.
const ADDRESSES: usize = 12;

/// Error of a TAP device's descriptor when its interface was deleted.
const DELETED: i32 = Errno::BADFD.raw_os_error();

/// A TAP device whose frames are relayed.
pub(crate) struct Relay {
    pub station: Station,
    /// Frames that come in again, if it leads out of the host.
    pub turned: Option<Turned>,
}

/// Relays until it is asked to end. Counts frames that the device refused, which it does while it
/// is down.
pub(crate) fn run(seat: &mut Seat, mut relay: Relay, counts: &Counts) -> End {
    loop {
        match turn(seat, &mut relay, counts) {
            Ok(()) => {}
            Err(end) => return end,
        }
    }
}

fn turn(seat: &mut Seat, relay: &mut Relay, counts: &Counts) -> Result<(), End> {
    let Relay { station, turned } = relay;
    if seat.stopping() {
        return Err(End::Stopped);
    }
    if let Some(mtu) = seat.new_mtu()
        && let Err(error) = station.follow(mtu)
    {
        tracing::warn!(mtu, "{error}");
    }
    let device = station.as_fd();
    let mut gone = false;
    // Of those that are refused, too, no more than a batch.
    let mut looks = BURST;
    // By turns, so that nobody inside keeps the outside out.
    let mut is_devices = false;
    let sent = seat.nic.send(BURST, |memory, at| {
        is_devices = !is_devices;
        if !is_devices && let Some(len) = turned.as_mut().and_then(|turned| turned.give(memory, at))
        {
            return Some(len);
        }
        while looks > 0 {
            looks -= 1;
            let len = match memory.read_from(at, TX_BUFFER, device) {
                Ok(len) if len > HEADER_LEN => len,
                Ok(_) => break,
                Err(error) => {
                    let kind = error.kind();
                    let empty =
                        matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                    gone |= !empty;
                    break;
                }
            };
            let is_forged = turned.as_ref().is_some_and(|turned| {
                let head: [u8; ADDRESSES] = memory.read_array(at + HEADER_LEN);
                turned.is_forged(&head, &counts.turned)
            });
            if !is_forged {
                return Some(len);
            }
        }
        turned.as_mut().and_then(|turned| turned.give(memory, at))
    })?;
    let received = seat.nic.receive(BURST, |memory, pieces| {
        if turned.as_mut().is_some_and(|turned| turned.take(memory, pieces, &counts.turned)) {
            return;
        }
        if let Err(error) = memory.write_to(pieces, device) {
            gone |= error.raw_os_error() == Some(DELETED);
            counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    if !gone && sent + received == 0 {
        gone = seat.sleep(Some(device), None)?;
    }
    if gone {
        let name = station.name();
        return Err(End::Because(format!(
            "its network interface {name} is gone: somebody deleted it, or the network namespace that it was in; the same `butterfly nic add` makes it anew"
        )));
    }
    Ok(())
}
