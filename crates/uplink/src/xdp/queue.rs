//! One AF_XDP socket: frames of one receive queue in, and frames out if it is one that sends.
//! The two halves, [`Queue`] and [`Way`], share the socket and the memory, and no chunk.
//!
//! [`chunks`](super::chunks) says whose each chunk is. Only chunks held, free or given out are
//! touched here.
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
            SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
            XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
            XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
        },
    },
};

use super::{
    chunks::{RECEIVE, Receiver, SEND, Sender},
    memory::Umem,
    ring::{Consumer, Descriptor, Producer},
};
use crate::Error;

/// Entries of a completion ring that has nothing to do, but must be there.
const NO_COMPLETIONS: u32 = 64;
/// Frames that the kernel sends per wake-up where it copies them (`TX_BATCH_SIZE`).
const KERNEL_BURST: u32 = 32;

/// After so many flushes in a row that moved nothing, the next one can wait for the next frame. A
/// full card takes much less to get on; one without a cable must not keep a worker busy.
const FRUITLESS: u32 = 100_000;

/// A socket with its rings and frames, as far as it receives.
pub struct Queue {
    // Closed before the rings and frames are unmapped. The kernel would not mind, but this is how
    // it reads.
    socket: Arc<OwnedFd>,
    number: u32,
    receiver: Receiver,
    umem: Arc<Umem>,
    zero_copy: bool,
}

/// The half of a socket that sends.
pub struct Way {
    socket: Arc<OwnedFd>,
    sender: Sender,
    umem: Arc<Umem>,
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

/// Returns whether a former process's queue with this memory file sends. A file that tells a lie
/// does not fit its socket.
pub fn sends(memory: BorrowedFd<'_>, chunk: u32) -> io::Result<bool> {
    Ok(Umem::count(memory, chunk)? > RECEIVE.into())
}

impl QueueConfig<'_> {
    /// Number of chunks.
    fn chunks(&self) -> u32 {
        RECEIVE + if self.sends { SEND } else { 0 }
    }
}

/// The rings of a socket.
struct Rings {
    receive: Consumer<Descriptor>,
    fill: Producer<u64>,
    send: Option<(Producer<Descriptor>, Consumer<u64>)>,
}

impl Rings {
    fn map(socket: &OwnedFd, sends: bool) -> io::Result<Rings> {
        let at = sockopt::xdp_mmap_offsets(socket)?;
        let socket = socket.as_fd();
        let receive = Consumer::map(socket, XDP_PGOFF_RX_RING, &at.rx, RECEIVE)?;
        let fill = Producer::map(socket, XDP_UMEM_PGOFF_FILL_RING, &at.fr, RECEIVE)?;
        let send = || {
            let transmit = Producer::map(socket, XDP_PGOFF_TX_RING, &at.tx, SEND)?;
            let done = Consumer::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, SEND)?;
            io::Result::Ok((transmit, done))
        };
        Ok(Rings { receive, fill, send: sends.then(send).transpose()? })
    }

    /// Maps rings that a former process used. Fails if they have other sizes than ours.
    fn map_again(socket: &OwnedFd, sends: bool) -> io::Result<Rings> {
        let rings = Rings::map(socket, sends)?;
        let at = sockopt::xdp_mmap_offsets(socket)?;
        let fd = socket.as_fd();
        let longer = Consumer::<Descriptor>::is_longer(fd, XDP_PGOFF_RX_RING, &at.rx, RECEIVE)
            || Producer::<u64>::is_longer(fd, XDP_UMEM_PGOFF_FILL_RING, &at.fr, RECEIVE)
            || sends
                && (Producer::<Descriptor>::is_longer(fd, XDP_PGOFF_TX_RING, &at.tx, SEND)
                    || Consumer::<u64>::is_longer(
                        fd,
                        XDP_UMEM_PGOFF_COMPLETION_RING,
                        &at.cr,
                        SEND,
                    ));
        match longer {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "rings of another size")),
            false => Ok(rings),
        }
    }
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
    pub fn open(config: &QueueConfig<'_>) -> Result<(Queue, Option<Way>), Error> {
        let opening = Opening::begin(config)?;
        let memory = |error| opening.no_memory("memory for frames", error);
        let umem = Umem::create(config.chunk, config.chunks()).map_err(memory)?;
        opening.register(&umem)?;
        opening.set_sizes()?;

        let socket = &opening.socket;
        let rings = |error| opening.no_memory("mapping the rings", error);
        let Rings { receive, fill, send } = Rings::map(socket, config.sends).map_err(rings)?;
        let receiver = Receiver::begin(receive, fill, config.chunk);
        let sender = send.map(|(transmit, done)| Sender::begin(transmit, done, config.chunk));

        opening.bind()?;
        Ok(Queue::of(config, opening.socket, receiver, sender, umem))
    }

    fn of(
        config: &QueueConfig<'_>,
        socket: OwnedFd,
        receiver: Receiver,
        sender: Option<Sender>,
        umem: Umem,
    ) -> (Queue, Option<Way>) {
        let zero_copy = is_zero_copy(&socket);
        let (socket, umem) = (Arc::new(socket), Arc::new(umem));
        let way = sender.map(|sender| Way { socket: socket.clone(), sender, umem: umem.clone() });
        (Queue { socket, number: config.queue, receiver, umem, zero_copy }, way)
    }

    /// Goes on with the socket and the memory of a former process, which need not be what they
    /// seem. Returns also how many frames that process held, which are lost, and a socket that has
    /// to be closed, which takes a while.
    ///
    /// Needs Linux 6.4: kernels before map the rings of a bound socket only once.
    pub fn adopt(
        config: &QueueConfig<'_>,
        socket: OwnedFd,
        memory: OwnedFd,
    ) -> Result<(Queue, Option<Way>, u32, OwnedFd), Error> {
        let what = || format!("queue {}", config.queue);
        let failed =
            |step: &str, error: io::Error| Error::failed(format!("{}: {step}", what()), error);
        let probe = probe(config, &socket)
            .map_err(|error| failed("its socket is not bound to it", error.into()))?;
        let umem = Umem::adopt(memory, config.chunk, config.chunks())
            .map_err(|error| failed("its memory", error))?;
        let rings = Rings::map_again(&socket, config.sends).map_err(|error| {
            let help = "it takes Linux 6.4 to map the rings of a bound socket again";
            failed("its rings", error).help(help)
        })?;
        let contradicts = |why| Error::refused(format!("{}: {why}", what()));
        let Rings { receive, fill, send } = rings;
        let (receiver, lost) =
            Receiver::recover(receive, fill, config.chunk).map_err(contradicts)?;
        let sender = send
            .map(|(transmit, done)| Sender::recover(transmit, done, config.chunk))
            .transpose()
            .map_err(contradicts)?;
        let (mut queue, mut way) = Queue::of(config, socket, receiver, sender, umem);
        // The former process may have died before it woke the kernel.
        queue.given_back();
        if let Some(way) = &mut way {
            let _ = way.flush();
        }
        Ok((queue, way, lost, probe))
    }

    /// Returns whether another process could map the rings: Linux 6.4 and later let it.
    pub fn can_be_adopted(&self) -> bool {
        Rings::map(&self.socket, false).is_ok()
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The memory file.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.umem.file()
    }

    /// The kernel's number for the socket.
    pub fn cookie(&self) -> io::Result<u64> {
        Ok(sockopt::socket_cookie(&*self.socket)?)
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
        let Descriptor { address, len, .. } = self.receiver.take()?;
        Some(Held { queue: self.number, address, len })
    }

    /// Notes that the frames taken are not to be taken again, by a successor of this process
    /// either.
    #[inline]
    pub fn taken(&mut self) {
        self.receiver.taken();
    }

    /// The bytes of a frame that was taken from this queue.
    #[inline]
    pub fn frame(&self, held: &Held) -> &[u8] {
        if held.queue != self.number {
            return &[];
        }
        // SAFETY: a `Held` of this queue is made by `take` only, neither copied nor cloned, and
        // eaten by `give_back`. Between the two the chunk is ours: the kernel put it into
        // the receive ring, and only `give_back` puts it into the fill ring again. The half that
        // sends never touches it: only chunks that receive are ever put into the fill ring, and
        // what a former process left there was looked at (`Receiver::recover`).
        unsafe { self.umem.frame(held.address, held.len as usize) }.unwrap_or(&[])
    }

    /// Lets the kernel receive into a frame's chunk again, once [`Self::given_back`] says so.
    #[inline]
    pub fn give_back(&mut self, held: Held) {
        if held.queue == self.number {
            self.receiver.give_back(held.address);
        }
    }

    /// Shows the kernel what was given back.
    #[inline]
    pub fn given_back(&mut self) {
        self.receiver.given_back();
        if self.receiver.fill.needs_wakeup() {
            // It tells nothing that could be helped here.
            let _ = rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }
}

impl Way {
    /// A chunk to be written and sent. `None` if none is free, or `len` bytes do not fit into one.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let address = self.sender.give(u32::try_from(len).ok()?)?;
        // SAFETY: the chunk is given out: it is in no ring, and it is one that sends, which the
        // other half never touches. The kernel gets it by `send`, which takes `&mut self`, and so
        // does this for the next one: the result is gone by then.
        unsafe { self.umem.frame_mut(address, len) }
    }

    /// Queues the chunk that [`Self::room`] gave out; returns its length if there was one.
    #[inline]
    pub fn send(&mut self) -> Option<usize> {
        self.sender.queue()
    }

    /// Shows the kernel what was queued, and wakes it if it wants that.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Errno> {
        let sender = &mut self.sender;
        sender.publish();
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

    /// Returns the number of frames that were queued so far, which wraps.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.sender.queued()
    }

    /// Returns the number of frames that the interface is through with, which wraps.
    #[inline]
    pub fn through(&self) -> u32 {
        self.sender.through()
    }

    /// True if frames are queued that the kernel takes only when it is woken, and may take soon.
    #[inline]
    pub fn pending(&self) -> bool {
        let Sender { transmit, fruitless, .. } = &self.sender;
        *fruitless < FRUITLESS && transmit.outstanding() && transmit.needs_wakeup()
    }
}

fn is_zero_copy(socket: &OwnedFd) -> bool {
    sockopt::xdp_options(socket)
        .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// Checks that a socket is one of AF_XDP and bound to its queue. The kernel does not tell, but it
/// lets another socket without rings for chunks share its memory on that queue only. Returns that
/// socket.
fn probe(config: &QueueConfig<'_>, socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    if sockopt::socket_domain(socket)? != AddressFamily::XDP {
        return Err(Errno::AFNOSUPPORT);
    }
    let probe =
        rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sockopt::set_xdp_rx_ring_size(&probe, 2)?;
    let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
    let addr = SocketAddrXdp::new(flags, config.interface, config.queue);
    let shared = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: socket.as_fd() };
    rustix::net::bind(&probe, &shared)?;
    Ok(probe)
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
