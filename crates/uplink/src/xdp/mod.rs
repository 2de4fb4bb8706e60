//! AF_XDP: VXLAN of one network interface goes to us, everything else to the host's own stack.
//!
//! An XDP program on the interface picks our frames (`filter.rs` says which) and gives them to a
//! socket per receive queue; frames to send go out by the first [`SENDERS`] of them, as far as the
//! interface has as many transmit queues: a queue that it does not have takes frames and sends
//! none. Queues that were adopted send if they did before. Nothing is pinned: the program is
//! attached by a descriptor, so that it is gone when the process is, however that ended; unless
//! another process keeps a copy of it for a successor (`adopt.rs`).
//!
//! A card that takes VLAN tags off frames hides them from us: VXLAN of a VLAN looks untagged then.
//! So it is told not to, and stays so when we are gone (`ethtool -K DEV rxvlan on`); what cannot be
//! told, as a veth, is reported in [`Info::tags`]. Kernel ends of a veth leave checksums to a card
//! that is not there, so that frames arrive incomplete (`ethtool -K DEV tx off` at the sender).
//!
//! The largest MTU is [`MAX_MTU`]: a frame has to fit into one chunk of a page. A queue has 2,048
//! chunks to receive into, one that sends as many again to send from. With an MTU up to
//! [`SMALL_MTU`] that is 8 MiB for a queue that sends and 4 MiB for each other, else twice that.
//!
//! Needs Linux 5.9, `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_BPF`, and locked memory without bound
//! (`CAP_IPC_LOCK` or `RLIMIT_MEMLOCK`).

mod adopt;
mod assembler;
mod bpf;
mod chunks;
mod filter;
mod memory;
mod queue;
mod record;
mod ring;

use std::{
    fmt, io,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use arrayvec::ArrayVec;
use butterfly_packet::{ethernet, vxlan};
use rustix::event::epoll;

use crate::{
    BURST, Counters, Error, Halves, Info, Inward, Meter, Outward, Uplink,
    counters::Counts,
    kernel::{Interface, Kernel},
    sys,
};
use bpf::{Hook, Link};
use queue::{Held, Queue, QueueConfig, Way};

pub use adopt::{Adopted, Ending, PARTS, Parts, end};

/// Bytes of a frame beside its IP packet, with one tag.
const LINK: u32 = (ethernet::HEADER_LEN + ethernet::TAG_LEN) as u32;
/// Bytes that the kernel keeps free at the beginning of a chunk (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Sizes of chunks. None can be larger than a page.
const SMALL: u32 = 2048;
const LARGE: u32 = 4096;

/// The largest MTU that small chunks do for.
pub const SMALL_MTU: u32 = SMALL - HEADROOM - LINK;
/// The largest MTU of an interface that AF_XDP can be used on, in bytes.
pub const MAX_MTU: u32 = LARGE - HEADROOM - LINK;

/// Parameters of using an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpConfig {
    /// The address VXLAN arrives at.
    pub endpoint: IpAddr,
    /// True if we answer for it: no other interface holds it. Then ICMP and neighbour solicitations
    /// for it are ours, too.
    pub answers: bool,
    /// First bytes of IPv6 groups of networks; the last four bytes are the network's number. Groups
    /// over IPv4 are 230.0.0.0/8.
    pub group6: Ipv6Addr,
    /// Number of receive queues to serve; all by default. With fewer, see to it that VXLAN arrives
    /// in those (`ethtool -X`): frames in other queues go to the host.
    pub queues: Option<u32>,
    /// Best mode to try.
    pub mode: Mode,
    /// The VLAN that our frames are in; 0: none.
    pub vlan: u16,
    /// True if all frames of the VLAN are ours, whatever they carry. The endpoint counts for
    /// nothing then.
    pub whole: bool,
}

impl XdpConfig {
    /// All queues, the best mode, the usual groups, no VLAN, and the host answers for the endpoint.
    pub fn new(endpoint: IpAddr) -> XdpConfig {
        XdpConfig {
            endpoint,
            answers: false,
            group6: vxlan::GROUP6,
            queues: None,
            mode: Mode::Best,
            vlan: 0,
            whole: false,
        }
    }

    /// All frames of a VLAN, or with 0 all without one: for a wire of an external.
    pub fn wire(vlan: u16) -> XdpConfig {
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED.into();
        XdpConfig { vlan, whole: true, ..XdpConfig::new(nowhere) }
    }
}

/// Way in which frames move between the card and us, from the fastest on. A mode that driver or
/// kernel refuse gives way to the next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Mode {
    /// The card reads and writes our frames itself.
    #[default]
    Best,
    /// The driver copies them.
    Copy,
    /// The kernel's stack does, for drivers without XDP. Slow.
    Generic,
}

/// Most queues that send.
pub const SENDERS: u32 = 32;

/// Kind of such an uplink.
pub const KIND: &str = "af_xdp";

/// An interface's VXLAN, by AF_XDP.
pub struct Xdp {
    info: Info,
    hook: Hook,
    /// Bytes in a chunk.
    chunk: u32,
    /// True if the kernel was asked to hand the chunks to the card.
    zero_copy: bool,
    /// Detaches the program when dropped: before the sockets.
    link: Link,
    inward: XdpInward,
    outward: XdpOutward,
    /// More that send, once it is taken apart.
    others: Vec<XdpOutward>,
    /// Of each queue, what it has as a half of its own.
    each: Vec<OfQueue>,
}

/// Parts of a half that receives from one queue.
struct OfQueue {
    /// Readable while its socket is.
    epoll: OwnedFd,
    counts: Arc<Counts>,
}

/// A half that receives: of one queue, or of all.
struct XdpInward {
    /// Detaches the program when dropped. Only the first half of several has it.
    #[expect(dead_code, reason = "held for what it does when it is dropped")]
    link: Option<Link>,
    /// Queues with numbers in a row.
    queues: Vec<Queue>,
    /// Number of the first one.
    first: u32,
    /// Readable while any of the sockets is.
    epoll: OwnedFd,
    held: ArrayVec<Held, BURST>,
    /// Place of the queue that is asked first.
    next: usize,
    counts: Arc<Counts>,
}

/// A half that sends, by one queue.
struct XdpOutward {
    way: Way,
    /// The longest frame sent, in bytes.
    longest: usize,
    counts: Arc<Counts>,
}

impl Xdp {
    /// Returns why the interface of that name cannot be an uplink, as far as that can be told
    /// without opening it: while another process has it.
    pub fn check(name: &str, config: &XdpConfig) -> Result<(), Error> {
        let interface = Kernel::open()?.interface(name)?;
        chunk(&interface)?;
        queues(&interface, config.queues).map(drop)
    }

    /// Takes over the VXLAN of the interface of that name. While it is down, nothing moves.
    ///
    /// May take a second if another process had it just now. Some drivers restart the card for it:
    /// the link may blink.
    pub fn open(name: &str, config: &XdpConfig) -> Result<Xdp, Error> {
        let interface = Kernel::open()?.interface(name)?;
        let chunk = chunk(&interface)?;
        let queues = queues(&interface, config.queues)?;
        let senders = senders(&interface, queues);

        let map =
            bpf::socket_map(queues).map_err(|error| bpf_failed("make a map of sockets", error))?;
        let program = program(config, map.as_fd())?;
        // Until there are sockets in the map, the program leaves everything to the host.
        let (link, hook, note) = attach(program.as_fd(), &interface, config.mode)?;

        let zero_copy = hook == Hook::Native && config.mode == Mode::Best;
        let open = |queue| {
            let queue_config = QueueConfig {
                name,
                interface: interface.index,
                queue,
                chunk,
                sends: queue < senders,
                zero_copy,
            };
            Queue::open(&queue_config)
        };
        let opened = (0..queues).map(open).collect::<Result<Vec<_>, Error>>()?;
        Xdp::of(interface, config, (link, hook, note), opened, map.as_fd())
    }

    /// Makes it of an attached program and bound sockets, and puts these into a map.
    fn of(
        interface: Interface,
        config: &XdpConfig,
        (link, hook, note): (Link, Hook, Option<String>),
        opened: Vec<(Queue, Option<Way>)>,
        map: BorrowedFd<'_>,
    ) -> Result<Xdp, Error> {
        let (queues, ways): (Vec<Queue>, Vec<Option<Way>>) = opened.into_iter().unzip();
        let longest = (interface.mtu + LINK) as usize;
        let outward = |way| XdpOutward { way, longest, counts: Arc::default() };
        let mut outwards = ways.into_iter().flatten().map(outward);
        let outward = outwards.next().ok_or_else(|| Error::refused("no queue sends"))?;
        let others: Vec<XdpOutward> = outwards.collect();
        let events = |error| Error::failed("cannot make an event queue for AF_XDP sockets", error);
        let epoll = readable(&queues).map_err(events)?;
        let of_queue = |queue| Ok(OfQueue { epoll: readable(queue)?, counts: Arc::default() });
        let each = queues.chunks(1).map(of_queue).collect::<Result<Vec<_>, _>>().map_err(events)?;
        let counts = each.first().map(|of| of.counts.clone()).unwrap_or_default();
        for (number, queue) in (0u32..).zip(&queues) {
            bpf::set_socket(map, number, queue.socket())
                .map_err(|error| bpf_failed("give the XDP program its sockets", error))?;
        }

        let mode = match hook {
            Hook::Native if queues.iter().all(Queue::zero_copy) => "native, zero-copy",
            Hook::Native => "native, copy",
            Hook::Generic => "generic",
        };
        let tags = keep_tags(&interface);
        Ok(Xdp {
            chunk: chunk(&interface)?,
            info: Info {
                kind: KIND,
                interface: interface.name,
                index: interface.index,
                mode,
                note,
                tags,
                queues: queues.len() as u32,
                mac: interface.mac,
                mtu: interface.mtu,
            },
            hook,
            zero_copy: hook == Hook::Native && config.mode == Mode::Best,
            link,
            inward: XdpInward::of(queues, OfQueue { epoll, counts }),
            outward,
            others,
            each,
        })
    }

    /// Reads the counters from another thread.
    pub fn meter(&self) -> Meter {
        let senders = [&self.outward].into_iter().chain(&self.others);
        Meter::new(
            self.each.iter().map(|of| &of.counts).chain(senders.map(|half| &half.counts)),
            self.inward.queues.iter().map(Queue::weak_socket),
        )
    }

    fn apart(self) -> Halves {
        let Xdp { link, inward, outward, others, each, .. } = self;
        let mut link = Some(link);
        let one = |(queue, of)| -> Box<dyn Inward> {
            Box::new(XdpInward { link: link.take(), ..XdpInward::of(vec![queue], of) })
        };
        let inward = inward.queues.into_iter().zip(each).map(one).collect();
        let outward = [outward].into_iter().chain(others);
        Halves { inward, outward: outward.map(|half| Box::new(half) as _).collect() }
    }
}

impl fmt::Debug for Xdp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Xdp").field("info", &self.info).finish_non_exhaustive()
    }
}

crate::uplink!(Xdp);

impl XdpInward {
    fn of(queues: Vec<Queue>, OfQueue { epoll, counts }: OfQueue) -> XdpInward {
        XdpInward {
            link: None,
            first: queues.first().map_or(0, Queue::number),
            queues,
            epoll,
            held: ArrayVec::new(),
            next: 0,
            counts,
        }
    }
}

/// Makes what is readable while one of the queues' sockets is.
fn readable(queues: &[Queue]) -> Result<OwnedFd, rustix::io::Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        let data = epoll::EventData::new_u64(queue.number().into());
        epoll::add(&epoll, queue.socket(), data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl Inward for XdpInward {
    fn receive(&mut self, max: usize) -> usize {
        let (before, max) = (self.held.len(), max.min(BURST));
        let mut bytes = 0;
        for _ in 0..self.queues.len() {
            if self.held.len() >= max {
                break;
            }
            let place = self.next;
            // The next one first next time, however many this one has.
            self.next = if place + 1 < self.queues.len() { place + 1 } else { 0 };
            let Some(queue) = self.queues.get_mut(place) else { break };
            while self.held.len() < max
                && let Some(held) = queue.take()
            {
                bytes += held.len();
                // There is room: fewer than `BURST` are held.
                let _ = self.held.try_push(held);
            }
            queue.taken();
        }
        if self.held.len() > before {
            self.counts.received.add((self.held.len() - before) as u64);
            self.counts.received_bytes.add(bytes as u64);
        }
        self.held.len()
    }

    fn frame(&self, index: usize) -> &[u8] {
        let frame = self
            .held
            .get(index)
            .and_then(|held| Some(self.queues.get(place(held, self.first))?.frame(held)));
        frame.unwrap_or(&[])
    }

    fn release(&mut self) {
        let mut held = self.held.drain(..).peekable();
        while let Some(frame) = held.next() {
            let number = frame.queue();
            let Some(queue) = self.queues.get_mut(place(&frame, self.first)) else { continue };
            queue.give_back(frame);
            // Frames of a queue stand together.
            if held.peek().is_none_or(|next| next.queue() != number) {
                queue.given_back();
            }
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Returns the place of a frame's queue among those from `first` on.
#[inline]
fn place(held: &Held, first: u32) -> usize {
    held.queue().wrapping_sub(first) as usize
}

impl Outward for XdpOutward {
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if !(ethernet::HEADER_LEN..=self.longest).contains(&len) {
            self.counts.tx_bad_length.add(1);
            return None;
        }
        let room = self.way.room(len);
        if room.is_none() {
            self.counts.tx_full.add(1);
        }
        room
    }

    fn send(&mut self) {
        if let Some(len) = self.way.send() {
            self.counts.sent.add(1);
            self.counts.sent_bytes.add(len as u64);
        }
    }

    fn flush(&mut self) {
        if self.way.flush().is_err() {
            self.counts.tx_failed.add(1);
        }
    }

    fn pending(&self) -> bool {
        self.way.pending()
    }

    fn queued(&self) -> u32 {
        self.way.queued()
    }

    fn is_through(&self, queued: u32) -> bool {
        self.way.through().wrapping_sub(queued).cast_signed() >= 0
    }
}

/// Returns whether a successor with this configuration would take up an uplink that was opened as
/// `info` tells, as far as the interface is concerned: it is there, and needs the same chunks and
/// as many queues.
pub fn is_as_opened(info: &Info, config: &XdpConfig) -> bool {
    let now = Kernel::open().and_then(|mut kernel| kernel.interface(&info.interface));
    now.is_ok_and(|now| {
        now.index == info.index
            && chunk_of(now.mtu) == chunk_of(info.mtu)
            && queues(&now, config.queues).is_ok_and(|queues| queues == info.queues)
    })
}

/// Returns the chunk size that the interface's frames need.
fn chunk(interface: &Interface) -> Result<u32, Error> {
    chunk_of(interface.mtu).ok_or_else(|| {
        Error::refused(format!(
            "cannot use AF_XDP on \"{0}\": its MTU is {1}, and AF_XDP takes {MAX_MTU} at most; `ip link set dev {0} mtu {MAX_MTU}`",
            interface.name, interface.mtu
        ))
    })
}

fn chunk_of(mtu: u32) -> Option<u32> {
    match mtu {
        mtu if mtu <= SMALL_MTU => Some(SMALL),
        mtu if mtu <= MAX_MTU => Some(LARGE),
        _ => None,
    }
}

/// Has VLAN tags stay in frames. Returns why they may not, if they may not.
fn keep_tags(interface: &Interface) -> Option<String> {
    let name = &interface.name;
    match interface.kind.as_deref() {
        // Only its driver takes them off.
        None => sys::keep_tags(name).err().map(|error| {
            format!(
                "the card takes tags off before the check, and cannot be told not to ({error}): `ethtool -K {name} rxvlan off`"
            )
        }),
        // Its own tag is off, as it should be; any other one is in the frame.
        Some("vlan") => None,
        Some("veth") => Some("a veth hands tags over beside the frame: `ethtool -K DEV txvlan off` at its other end".to_owned()),
        Some(kind) => {
            Some(format!("what is under a {kind} may take tags off before the check: use the card itself as the uplink"))
        }
    }
}

/// Returns how many queues to serve.
fn queues(interface: &Interface, wanted: Option<u32>) -> Result<u32, Error> {
    let name = &interface.name;
    let there = sys::queues(name).map_or(interface.receive_queues, |[receive, _]| receive).max(1);
    match wanted {
        None => Ok(there),
        Some(wanted) if (1..=there).contains(&wanted) => Ok(wanted),
        Some(wanted) => Err(Error::refused(format!(
            "cannot serve {wanted} receive queues of \"{name}\": it has 1 to {there}; `ethtool -L {name} combined N` changes that, if the \
             driver can"
        ))),
    }
}

/// Returns how many of the queues served send: one, if the driver does not tell how many can.
fn senders(interface: &Interface, queues: u32) -> u32 {
    let there = sys::queues(&interface.name).map_or(1, |[_, transmit]| transmit);
    queues.min(there).clamp(1, SENDERS)
}

/// Loads the program that gives frames to the sockets in a map.
fn program(config: &XdpConfig, sockets: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let program = filter::program(config, sockets).and_then(|code| bpf::load(&code));
    program.map_err(|error| bpf_failed("load the XDP program", error))
}

/// Attaches the program as the mode says. Returns also where, and why it is not the native place if
/// that was tried.
fn attach(
    program: BorrowedFd<'_>,
    interface: &Interface,
    mode: Mode,
) -> Result<(Link, Hook, Option<String>), Error> {
    let name = &interface.name;
    let occupied =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
    let failed = |error: io::Error| {
        let help = if occupied(&error) {
            format!(
                "another XDP program is there: `ip link show dev {name}` tells its id; end the program that uses it, or \
                 `ip link set dev {name} xdp off` (xdpgeneric off)"
            )
        } else {
            "it needs CAP_NET_ADMIN and CAP_BPF".to_owned()
        };
        Error::failed(format!("cannot attach the XDP program to \"{name}\""), error).help(&help)
    };
    let mut note = None;
    if mode != Mode::Generic {
        match bpf::attach(program, interface.index, Hook::Native) {
            Ok(link) => return Ok((link, Hook::Native, None)),
            Err(error) if occupied(&error) => return Err(failed(error)),
            Err(error) => note = Some(format!("the driver refuses native XDP: {error}")),
        }
    }
    bpf::attach(program, interface.index, Hook::Generic)
        .map(|link| (link, Hook::Generic, note))
        .map_err(failed)
}

fn bpf_failed(what: &str, error: io::Error) -> Error {
    let help = match (error.kind(), error.raw_os_error()) {
        // EACCES is the verifier's: what only CAP_PERFMON may do.
        (io::ErrorKind::PermissionDenied, _) => {
            "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and before Linux 5.11 a higher RLIMIT_MEMLOCK"
        }
        (_, Some(libc::ENOSYS)) => "the kernel was built without CONFIG_BPF_SYSCALL",
        _ => return Error::failed(format!("cannot {what}"), error),
    };
    Error::failed(format!("cannot {what}"), error).help(help)
}
