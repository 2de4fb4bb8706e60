//! Between a TAP device and the switch: frames as they are, virtio-net header included, without a
//! copy of our own.

use std::{
    io,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::io::Errno;

use crate::{
    BURST,
    nic::TX_BUFFER,
    seat::{End, Seat},
    station::{HEADER_LEN, Station},
};

/// Error of a TAP device's descriptor when its interface was deleted.
const DELETED: i32 = Errno::BADFD.raw_os_error();

/// Relays until it is asked to end. Counts frames that the device `refused`, which it does while it
/// is down.
pub(crate) fn run(seat: &mut Seat, station: &mut Station, refused: &AtomicU64) -> End {
    loop {
        match turn(seat, station, refused) {
            Ok(()) => {}
            Err(end) => return end,
        }
    }
}

fn turn(seat: &mut Seat, station: &mut Station, refused: &AtomicU64) -> Result<(), End> {
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
    let sent =
        seat.nic.send(BURST, |memory, at| match memory.read_from(at, TX_BUFFER, device) {
            Ok(len) => Some(len).filter(|len| *len > HEADER_LEN),
            Err(error) => {
                let empty =
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                gone |= !empty;
                None
            }
        })?;
    let received = seat.nic.receive(BURST, |memory, pieces| {
        if let Err(error) = memory.write_to(pieces, device) {
            gone |= error.raw_os_error() == Some(DELETED);
            refused.fetch_add(1, Ordering::Relaxed);
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
