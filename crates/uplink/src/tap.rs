//! A TAP device: the host's own stack, or a bridge of it, is the wire. One system call per frame:
//! for trying out, not for speed.
//!
//! The device's end in the kernel is a network interface with an address of its own. Our station
//! behind it has another, which [`Info::mac`] tells: frames to the interface's own address would
//! not leave a bridge.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use butterfly_packet::{Mac, checksum::Sum, ethernet};
use rustix::{event::epoll, io::Errno};

use crate::{
    BURST, Counters, Error, Halves, Info, Inward, Meter, Outward, Uplink,
    counters::{Count, Counts},
    kernel::Kernel,
    tun::{MAX_MTU, TapName, Tun},
};

/// Length of the virtio-net header before each frame (virtio 1.2, 5.1.6, without `num_buffers`).
const VIRTIO_HEADER: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;

/// Parameters of a TAP device.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TapConfig {
    /// Its name, with `%d` for a number of the kernel's choice; by default `bfly%d`. A device that
    /// exists and that no process uses is taken over.
    pub name: Option<String>,
    /// Its MTU in bytes; by default what it has, 1,500 for a new one.
    pub mtu: Option<u32>,
}

/// Kind of such an uplink.
pub const KIND: &str = "tap";

/// A TAP device. It goes on drop, or when the process ends, unless the operator made it persistent
/// before.
pub struct Tap {
    info: Info,
    inward: TapInward,
    outward: TapOutward,
}

/// Its half that receives.
struct TapInward {
    tun: Arc<Tun>,
    /// Has `tun` in it, as long as that works: a descriptor that only reports errors would keep a
    /// sleeper awake.
    epoll: OwnedFd,
    received: Buffers,
    /// The longest frame received, in bytes.
    longest: usize,
    counts: Arc<Counts>,
}

/// Its half that sends.
struct TapOutward {
    tun: Arc<Tun>,
    queued: Buffers,
    /// Queued frames before this one are written.
    written: usize,
    /// Length of the frame that [`Outward::room`] gave out.
    room: Option<usize>,
    /// The longest frame sent, in bytes.
    longest: usize,
    counts: Arc<Counts>,
}

/// Buffers for a burst, each a header and a frame.
struct Buffers {
    bytes: Box<[u8]>,
    stride: usize,
    lengths: arrayvec::ArrayVec<usize, BURST>,
}

impl Buffers {
    fn new(stride: usize) -> Buffers {
        Buffers {
            bytes: vec![0; stride * BURST].into_boxed_slice(),
            stride,
            lengths: arrayvec::ArrayVec::new(),
        }
    }

    /// A whole buffer: its header and all its room.
    #[inline]
    fn buffer(&mut self, index: usize) -> Option<(&mut [u8; VIRTIO_HEADER], &mut [u8])> {
        let start = index * self.stride;
        self.bytes.get_mut(start..start + self.stride)?.split_first_chunk_mut()
    }

    /// A frame in use, without its header.
    #[inline]
    fn frame(&self, index: usize) -> Option<&[u8]> {
        let start = index * self.stride + VIRTIO_HEADER;
        self.bytes.get(start..start + self.lengths.get(index)?)
    }

    /// A frame in use with its header.
    #[inline]
    fn with_header(&self, index: usize) -> Option<&[u8]> {
        let start = index * self.stride;
        self.bytes.get(start..start + VIRTIO_HEADER + self.lengths.get(index)?)
    }
}

impl Tap {
    /// Makes a TAP device, or takes one over, and takes its interface up. Needs `CAP_NET_ADMIN` and
    /// `/dev/net/tun`.
    pub fn open(config: &TapConfig) -> Result<Tap, Error> {
        let tun = Tun::open()?;
        let wanted = config.name.as_deref().unwrap_or("bfly%d");
        let name = tun.make_tap(wanted, TapName::Any, VIRTIO_HEADER as u8).map_err(|error| {
            let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
            let error = Error::failed(format!("cannot make the TAP device \"{wanted}\""), error);
            if busy { error.help("another process uses it") } else { error }
        })?;
        Self::on(tun, name, config)
    }

    /// Takes up the TAP device of another process. Fails if it is none any more, or does not have
    /// the name that `config` wants.
    pub fn take_up(config: &TapConfig, device: OwnedFd) -> Result<Tap, Error> {
        let failed = |error| Error::failed("cannot take up the TAP device", error);
        let tun = Tun::of(device).map_err(failed)?;
        let name = tun.name().map_err(failed)?;
        match &config.name {
            Some(wanted) if !wanted.contains('%') && *wanted != name => {
                Err(Error::refused(format!("the TAP device is {name}, and not {wanted}")))
            }
            _ => Self::on(tun, name, config),
        }
    }

    /// The device's file, for who keeps it.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.inward.tun.as_fd()
    }

    fn on(tun: Tun, name: String, config: &TapConfig) -> Result<Tap, Error> {
        let mut kernel = Kernel::open()?;
        let made = kernel.interface(&name)?;
        if let Some(mtu) = config.mtu {
            kernel.set_mtu(&made, mtu)?;
        }
        kernel.set_up(&made)?;
        let interface = kernel.interface(&name)?;
        let longest =
            interface.mtu.min(MAX_MTU) as usize + ethernet::HEADER_LEN + ethernet::TAG_LEN;
        // One byte more than the longest frame, to see that one is too long.
        let stride = (VIRTIO_HEADER + longest + 1).next_multiple_of(64);

        let events = |error| Error::failed("cannot make an event queue for a TAP device", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(events)?;
        epoll::add(&epoll, &tun, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(events)?;

        let tun = Arc::new(tun);
        Ok(Tap {
            info: Info {
                // The kernel puts them back for the device's reader.
                tags: None,
                kind: KIND,
                interface: name,
                index: interface.index,
                mode: "tap",
                note: None,
                queues: 1,
                mac: station(interface.mac),
                mtu: interface.mtu,
            },
            inward: TapInward {
                tun: tun.clone(),
                epoll,
                received: Buffers::new(stride),
                longest,
                counts: Arc::default(),
            },
            outward: TapOutward {
                tun,
                queued: Buffers::new(stride),
                written: 0,
                room: None,
                longest,
                counts: Arc::default(),
            },
        })
    }

    /// Reads the counters from another thread.
    pub fn meter(&self) -> Meter {
        Meter::new([&self.inward.counts, &self.outward.counts], [])
    }

    fn apart(self) -> Halves {
        Halves { inward: vec![Box::new(self.inward)], outward: vec![Box::new(self.outward)] }
    }
}

impl TapInward {
    /// Reads one frame behind those held. `None`: there is none now.
    fn receive_one(&mut self) -> Option<()> {
        let (header, frame) = self.received.buffer(self.received.lengths.len())?;
        let mut parts = [std::io::IoSliceMut::new(header), std::io::IoSliceMut::new(frame)];
        let len = match rustix::io::readv(&*self.tun, &mut parts) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => {
                self.counts.rx_failed.add(1);
                // The interface was deleted. Nothing will ever come, but the descriptor is readable
                // for good.
                let _ = epoll::delete(&self.epoll, &*self.tun);
                return None;
            }
        };
        let len = len.saturating_sub(VIRTIO_HEADER);
        let complete = frame.get_mut(..len).is_some_and(|frame| complete(header, frame));
        if complete && (ethernet::HEADER_LEN..=self.longest).contains(&len) {
            // There is room: the buffer was found.
            let _ = self.received.lengths.try_push(len);
            count(&self.counts.received, &self.counts.received_bytes, len);
        } else {
            self.counts.rx_invalid.add(1);
        }
        Some(())
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tap").field("info", &self.info).finish_non_exhaustive()
    }
}

crate::uplink!(Tap);

impl Inward for TapInward {
    fn receive(&mut self, max: usize) -> usize {
        // Bounded by what is read, not by what is held: frames that are not valid must not keep a
        // worker here.
        for _ in self.received.lengths.len()..max.min(BURST) {
            if self.receive_one().is_none() {
                break;
            }
        }
        self.received.lengths.len()
    }

    fn frame(&self, index: usize) -> &[u8] {
        self.received.frame(index).unwrap_or(&[])
    }

    fn release(&mut self) {
        self.received.lengths.clear();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Outward for TapOutward {
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room = None;
        if !(ethernet::HEADER_LEN..=self.longest).contains(&len) {
            self.counts.tx_bad_length.add(1);
            return None;
        }
        if self.queued.lengths.is_full() {
            self.counts.tx_full.add(1);
            return None;
        }
        self.room = Some(len);
        // The header was never written: zeroes, which say that the frame is complete.
        let (_, frame) = self.queued.buffer(self.queued.lengths.len())?;
        frame.get_mut(..len)
    }

    fn send(&mut self) {
        if let Some(len) = self.room.take()
            && self.queued.lengths.try_push(len).is_ok()
        {
            count(&self.counts.sent, &self.counts.sent_bytes, len);
        }
    }

    fn flush(&mut self) {
        while let Some(frame) = self.queued.with_header(self.written) {
            match rustix::io::write(&*self.tun, frame) {
                // The others wait for the next flush.
                Err(Errno::AGAIN) => return,
                Err(_) => self.counts.tx_failed.add(1),
                Ok(_) => {}
            }
            self.written += 1;
        }
        self.written = 0;
        // A frame that was given out but not sent is at another place then.
        self.room = None;
        self.queued.lengths.clear();
    }

    fn pending(&self) -> bool {
        !self.queued.lengths.is_empty()
    }
}

#[inline]
fn count(frames: &Count, bytes: &Count, len: usize) {
    frames.add(1);
    bytes.add(len as u64);
}

/// The address of our station behind an interface: locally administered, and another than the
/// interface's.
fn station(Mac([first, b, c, d, e, last]): Mac) -> Mac {
    Mac([first & !1 | 2, b, c, d, e, last ^ 1])
}

/// Completes a frame as its header says. `false`: it cannot be, and we never asked for such frames.
fn complete(header: &[u8; VIRTIO_HEADER], frame: &mut [u8]) -> bool {
    let &[flags, segmentation, _, _, _, _, start0, start1, offset0, offset1] = header;
    if segmentation != 0 {
        return false;
    }
    if flags & NEEDS_CHECKSUM == 0 {
        return true;
    }
    let start: usize = u16::from_ne_bytes([start0, start1]).into();
    let offset: usize = u16::from_ne_bytes([offset0, offset1]).into();
    // The field holds the sum of the pseudo header, so that summing over it is all there is to do.
    let Some(covered) = frame.get_mut(start..) else { return false };
    let checksum = Sum::of(covered).udp_checksum();
    let Some(field) = covered.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) else {
        return false;
    };
    *field = checksum.to_be_bytes();
    true
}

#[cfg(test)]
mod tests {
    use butterfly_packet::build::{Checksum, ethernet};

    use super::*;

    fn header(flags: u8, segmentation: u8, start: u16, offset: u16) -> [u8; VIRTIO_HEADER] {
        let mut header = [flags, segmentation, 0, 0, 0, 0, 0, 0, 0, 0];
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        header
    }

    #[test]
    fn an_owed_checksum_is_finished() {
        let link = || ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let datagram = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, b"odd");
        let mut owed =
            link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).checksum(Checksum::Partial).udp(1, 2, b"odd");
        assert_ne!(owed, datagram);
        assert!(complete(&header(NEEDS_CHECKSUM, 0, 34, 6), &mut owed));
        assert_eq!(owed, datagram);
    }

    #[test]
    fn a_header_that_makes_no_sense_is_refused() {
        let mut frame = [0; 60];
        assert!(complete(&header(0, 0, 999, 999), &mut frame));
        assert!(!complete(&header(0, 1, 0, 0), &mut frame));
        assert!(!complete(&header(NEEDS_CHECKSUM, 0, 61, 0), &mut frame));
        assert!(!complete(&header(NEEDS_CHECKSUM, 0, 34, 25), &mut frame));
        assert!(complete(&header(NEEDS_CHECKSUM, 0, 34, 24), &mut frame));
    }

    #[test]
    fn the_station_is_not_the_interface() {
        for mac in [[0x0c, 1, 2, 3, 4, 5], [0xfe, 0, 0, 0, 0, 0xff], [3, 0, 0, 0, 0, 0]] {
            let Mac(station) = station(Mac(mac));
            assert_eq!(station[0] & 3, 2);
            assert_ne!(station, mac);
        }
    }
}
