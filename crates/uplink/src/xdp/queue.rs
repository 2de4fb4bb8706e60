//! One AF_XDP socket: frames of one receive queue in, and frames out if it is the one that sends.
//!
//! Chunks never change sides: the first ones receive, the others send. A receiving chunk is in the
//! fill ring, on its way through the kernel, in the receive ring, or held by us. A sending one is
//! free, given out, in the transmit ring, or in the kernel until it appears in the completion ring.
//! Only chunks held, free or given out are touched here.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpMmapOffsets,
            XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
        },
    },
};

use super::{
    memory::Umem,
    ring::{Consumer, Descriptor, Producer},
};
use crate::Error;

/// Chunks to receive into, and entries of the rings they go through.
pub const RECEIVE: u32 = 2048;
/// Chunks to send from, and entries of the rings they go through.
pub const SEND: u32 = 2048;
/// Entries of a completion ring that has nothing to do, but must be there.
const NO_COMPLETIONS: u32 = 64;
/// Frames that the kernel sends per wake-up where it copies them (`TX_BATCH_SIZE`).
const KERNEL_BURST: u32 = 32;

/// After so many flushes in a row that moved nothing, the next one can wait for the next frame. A
/// full card takes much less to get on; one without a cable must not keep a worker busy.
const FRUITLESS: u32 = 100_000;

/// A socket with its rings and frames.
pub struct Queue {
    // Closed before the rings and frames are unmapped. The kernel would not mind, but this is how
    // it reads.
    socket: Arc<OwnedFd>,
    number: u32,
    receive: Consumer<Descriptor>,
    fill: Producer<u64>,
    sender: Option<Sender>,
    umem: Umem,
    zero_copy: bool,
}

/// The sending half.
struct Sender {
    transmit: Producer<Descriptor>,
    completions: Consumer<u64>,
    /// Free chunks. Has room for all of them, so that it never grows.
    free: Vec<u64>,
    /// The chunk given out, and the length asked for.
    given: Option<(u64, u32)>,
    /// Flushes in a row that moved nothing.
    fruitless: u32,
}

/// Parameters of a socket.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig<'a> {
    /// Name of the interface, for errors.
    pub name: &'a str,
    /// Its index.
    pub interface: u32,
    /// The queue's number.
    pub queue: u32,
    /// Bytes in a chunk, a power of two.
    pub chunk: u32,
    /// True if it sends, too.
    pub sends: bool,
    /// True if the kernel may hand the chunks to the card.
    pub zero_copy: bool,
}

/// A socket that is not bound to its queue yet.
struct Opening<'a> {
    config: &'a QueueConfig<'a>,
    socket: OwnedFd,
}

impl<'a> Opening<'a> {
    fn begin(config: &'a QueueConfig<'a>) -> Result<Opening<'a>, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(|error| {
                let help = match error {
                    Errno::AFNOSUPPORT => "the kernel was built without CONFIG_XDP_SOCKETS",
                    _ => "it needs CAP_NET_RAW",
                };
                Error::failed(format!("{}: socket", what(config)), error).help(help)
            })?;
        Ok(Opening { config, socket })
    }

    /// Returns the error of a step.
    fn failed(&self, step: &'static str) -> impl Fn(Errno) -> Error {
        let what = what(self.config);
        move |error| Error::failed(format!("{what}: {step}"), error)
    }

    fn no_memory(&self, step: &'static str, error: io::Error) -> Error {
        Error::failed(format!("{}: {step}", what(self.config)), error)
    }

    /// Tells the kernel the memory for frames.
    fn register(&self, umem: &Umem) -> Result<(), Error> {
        let registration = XdpUmemReg {
            addr: umem.mapping().address(),
            len: umem.mapping().len() as u64,
            chunk_size: self.config.chunk,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&self.socket, registration).map_err(|error| {
            let locked = matches!(error, Errno::NOBUFS | Errno::NOMEM | Errno::PERM);
            let error = self.failed("memory for frames")(error);
            let mib = umem.mapping().len() >> 20;
            let help = format!(
                "{mib} MiB have to be locked: raise RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=infinity) or give CAP_IPC_LOCK"
            );
            if locked { error.help(&help) } else { error }
        })
    }

    /// Sets the sizes of the rings, and of the kernel's buffer for frames that leave.
    fn set_sizes(&self) -> Result<(), Error> {
        let socket = &self.socket;
        let completions = if self.config.sends { SEND } else { NO_COMPLETIONS };
        sockopt::set_xdp_umem_fill_ring_size(socket, RECEIVE).map_err(self.failed("fill ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(socket, completions)
            .map_err(self.failed("completion ring"))?;
        sockopt::set_xdp_rx_ring_size(socket, RECEIVE).map_err(self.failed("receive ring"))?;
        if self.config.sends {
            sockopt::set_xdp_tx_ring_size(socket, SEND).map_err(self.failed("transmit ring"))?;
            // The kernel copies each frame into a buffer that counts; the rings are bound enough.
            let bytes = SEND as usize * (self.config.chunk as usize + 2048);
            sockopt::set_socket_send_buffer_size_force(socket, bytes)
                .map_err(self.failed("send buffer"))?;
        }
        Ok(())
    }

    /// Binds the socket to its queue. Without a wish, the kernel tries zero-copy first.
    fn bind(&self) -> Result<(), Error> {
        let QueueConfig { interface, queue, zero_copy, .. } = *self.config;
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags.set(SocketAddrXdpFlags::XDP_COPY, !zero_copy);
        bind(&self.socket, &SocketAddrXdp::new(flags, interface, queue)).map_err(|error| {
            let help = match error {
                Errno::BUSY => "another program has an AF_XDP socket on this queue",
                Errno::NETDOWN => "take the interface up first",
                Errno::INVAL => {
                    "the interface has no such queue, or cannot take frames of this size"
                }
                _ => return self.failed("bind")(error),
            };
            self.failed("bind")(error).help(help)
        })
    }
}

/// Says what failed if a queue cannot be opened.
fn what(config: &QueueConfig<'_>) -> String {
    format!("cannot open an AF_XDP socket for queue {} of \"{}\"", config.queue, config.name)
}

impl Queue {
    /// Opens a socket and binds it to its queue. Frames arrive once it is in the program's map.
    pub fn open(config: &QueueConfig<'_>) -> Result<Queue, Error> {
        let opening = Opening::begin(config)?;
        let send = if config.sends { SEND } else { 0 };
        let memory = |error| opening.no_memory("memory for frames", error);
        let umem = Umem::new(config.chunk, RECEIVE + send).map_err(memory)?;
        opening.register(&umem)?;
        opening.set_sizes()?;

        let socket = &opening.socket;
        let offsets = sockopt::xdp_mmap_offsets(socket).map_err(opening.failed("ring layout"))?;
        let rings = |error| opening.no_memory("mapping the rings", error);
        let mut fill =
            Producer::map(socket.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, RECEIVE)
                .map_err(rings)?;
        let receive = Consumer::map(socket.as_fd(), XDP_PGOFF_RX_RING, &offsets.rx, RECEIVE)
            .map_err(rings)?;
        let sender = config
            .sends
            .then(|| Sender::map(socket.as_fd(), &offsets, config.chunk))
            .transpose()
            .map_err(rings)?;
        for chunk in 0..RECEIVE {
            fill.push(u64::from(chunk) * u64::from(config.chunk));
        }
        fill.publish();

        opening.bind()?;
        let zero_copy = sockopt::xdp_options(socket)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(Queue {
            socket: Arc::new(opening.socket),
            number: config.queue,
            receive,
            fill,
            sender,
            umem,
            zero_copy,
        })
    }

    /// The socket, for the program's map and for waiting.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket for statistics: lives no longer than the queue.
    pub fn weak_socket(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.socket)
    }

    /// True if the card reads and writes the frames itself.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Takes a frame that arrived. It is ours until [`Self::give_back`].
    #[inline]
    pub fn take(&mut self) -> Option<Held> {
        let Descriptor { address, len, .. } = self.receive.take()?;
        Some(Held { queue: self.number, address, len })
    }

    /// Gives the places of frames taken, not the frames, back to the kernel.
    #[inline]
    pub fn taken(&mut self) {
        self.receive.release();
    }

    /// The bytes of a frame that was taken from this queue.
    #[inline]
    pub fn frame(&self, held: &Held) -> &[u8] {
        if held.queue != self.number {
            return &[];
        }
        // SAFETY: a `Held` of this queue is made by `take` only, neither copied nor cloned, and
        // eaten by `give_back`. Between the two the chunk is ours: the kernel put it into
        // the receive ring, and only `give_back` puts it into the fill ring again.
        unsafe { self.umem.frame(held.address, held.len as usize) }.unwrap_or(&[])
    }

    /// Lets the kernel receive into a frame's chunk again, once [`Self::given_back`] says so.
    #[inline]
    pub fn give_back(&mut self, held: Held) {
        if held.queue == self.number {
            // There is room: the ring has as many entries as there are chunks.
            self.fill.push(self.umem.chunk_of(held.address));
        }
    }

    /// Shows the kernel what was given back.
    #[inline]
    pub fn given_back(&mut self) {
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // It tells nothing that could be helped here.
            let _ = rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// A chunk to be written and sent. `None` if none is free, or `len` bytes do not fit into one.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let address = self.sender.as_mut()?.give(u32::try_from(len).ok()?)?;
        // SAFETY: the chunk is given out: it is in no ring. The kernel gets it by `send`, which
        // takes `&mut self`, so that the result is gone by then.
        unsafe { self.umem.frame_mut(address, len) }
    }

    /// Queues the chunk that [`Self::room`] gave out; returns its length if there was one.
    #[inline]
    pub fn send(&mut self) -> Option<usize> {
        self.sender.as_mut()?.queue()
    }

    /// Shows the kernel what was queued, and wakes it if it wants that.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Errno> {
        let Some(sender) = &mut self.sender else { return Ok(()) };
        sender.transmit.publish();
        // Chunks that were sent just now are in the cache: use those again first.
        sender.collect();
        // Where the kernel copies, a wake-up sends a burst. It is woken again as long as it gets
        // on, at most once round the ring.
        for _ in 0..=SEND / KERNEL_BURST {
            if !sender.transmit.outstanding() || !sender.transmit.needs_wakeup() {
                break;
            }
            let before = sender.transmit.consumed();
            match rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT) {
                // BUSY: the interface dropped a frame; the next ones may do better.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOBUFS) => {}
                Err(error) => {
                    sender.fruitless = FRUITLESS;
                    return Err(error);
                }
            }
            if sender.transmit.consumed() == before {
                sender.fruitless = sender.fruitless.saturating_add(1);
                return Ok(());
            }
        }
        sender.fruitless = 0;
        Ok(())
    }

    /// True if frames are queued that the kernel takes only when it is woken, and may take soon.
    #[inline]
    pub fn pending(&self) -> bool {
        let waits =
            |sender: &Sender| sender.transmit.outstanding() && sender.transmit.needs_wakeup();
        self.sender.as_ref().is_some_and(|sender| sender.fruitless < FRUITLESS && waits(sender))
    }
}

/// Binds a socket. The kernel lets go of a queue a moment after its last socket was closed: a
/// daemon that was started again waits.
fn bind(socket: &OwnedFd, address: &SocketAddrXdp) -> Result<(), Errno> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        match rustix::net::bind(socket, address) {
            Err(Errno::BUSY) if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
}

impl Sender {
    fn map(socket: BorrowedFd<'_>, offsets: &XdpMmapOffsets, chunk: u32) -> io::Result<Sender> {
        let transmit = Producer::map(socket, XDP_PGOFF_TX_RING, &offsets.tx, SEND)?;
        let completions = Consumer::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, SEND)?;
        // Low addresses first, so that a quiet uplink keeps to few pages.
        let free = (RECEIVE..RECEIVE + SEND)
            .rev()
            .map(|index| u64::from(index) * u64::from(chunk))
            .collect();
        Ok(Sender { transmit, completions, free, given: None, fruitless: 0 })
    }

    /// Gives out a chunk for a frame of `len` bytes: the same again if it was not queued, else a
    /// free one.
    #[inline]
    fn give(&mut self, len: u32) -> Option<u64> {
        let address = match self.given.take() {
            Some((address, _)) => address,
            None => {
                if self.free.is_empty() {
                    self.collect();
                }
                self.free.pop()?
            }
        };
        self.given = Some((address, len));
        Some(address)
    }

    /// Queues the chunk given out, if there is one; returns its length.
    #[inline]
    fn queue(&mut self) -> Option<usize> {
        let (address, len) = self.given.take()?;
        // There is room: the ring has as many entries as there are chunks.
        self.transmit.push(Descriptor { address, len, options: 0 }).then_some(len as usize)
    }

    /// Takes back chunks that were sent.
    #[inline]
    fn collect(&mut self) {
        while self.free.len() < self.free.capacity()
            && let Some(address) = self.completions.take()
        {
            self.free.push(address);
        }
        self.completions.release();
    }
}

/// A frame taken from a queue.
#[derive(PartialEq, Eq, Debug)]
pub struct Held {
    queue: u32,
    address: u64,
    len: u32,
}

impl Held {
    /// The number of the queue it came in by.
    #[inline]
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::ring::pair, *};

    #[test]
    fn a_chunk_is_not_given_out_before_it_was_sent() {
        const CHUNKS: u32 = 8;
        let (transmit, mut kernel_transmit) = pair(CHUNKS, u32::MAX - 5);
        let (mut kernel_completions, completions) = pair(CHUNKS, u32::MAX - 5);
        let free = (0..CHUNKS).map(|index| u64::from(index) * 2048).collect();
        let mut sender = Sender { transmit, completions, free, given: None, fruitless: 0 };

        let mut in_kernel = BTreeSet::new();
        for round in 0u32..10_000 {
            // More is asked for than there is, in bursts of all sizes.
            for _ in 0..round % 11 {
                let Some(address) = sender.give(60) else {
                    assert_eq!(in_kernel.len(), CHUNKS as usize, "round {round}: a chunk got lost");
                    break;
                };
                assert_eq!(sender.give(61), Some(address), "not queued, not used up");
                assert!(
                    in_kernel.insert(address),
                    "round {round}: chunk {address} is with the kernel"
                );
                assert_eq!(sender.queue(), Some(61));
                assert_eq!(sender.queue(), None);
            }
            sender.transmit.publish();
            while let Some(Descriptor { len, .. }) = kernel_transmit.take() {
                assert_eq!(len, 61);
            }
            kernel_transmit.release();
            // The kernel completes some, in an order of its own.
            for _ in 0..round * 7 % 5 {
                let next =
                    if round % 2 == 0 { in_kernel.pop_first() } else { in_kernel.pop_last() };
                let Some(address) = next else { break };
                assert!(kernel_completions.push(address));
            }
            kernel_completions.publish();
            if round % 3 == 0 {
                sender.collect();
            }
        }
    }
}
