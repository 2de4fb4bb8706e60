//! The driver's half of a split virtqueue (virtio 1.2, 2.7).
//!
//! It goes by the book. Descriptors are written before the available index (Release). Used entries
//! are read after the used index (Acquire). A full fence stands between publishing and looking at
//! the other side's suppression. Everything that the device returns is checked against what it was
//! given; [`DeviceError`] names its mistake.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    time::{Duration, Instant},
};

use butterfly_vhost::net::Features;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::{
    memory::{Memory, MemoryError},
    ring::{
        AVAIL_NO_INTERRUPT, DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, Desc, Ring,
        USED_NO_NOTIFY, passed,
    },
};

/// An interrupt that was asked for comes within this time after the used index, or it was
/// forgotten.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

/// The device broke the rules of the ring. The queue cannot be trusted any more; reset it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The used index is further ahead than chains are outstanding.
    #[error("the used index moved by {moved}, but only {outstanding} chains are outstanding")]
    UsedIndex {
        /// Distance from the last entry taken.
        moved: u16,
        /// Chains the device owns.
        outstanding: u16,
    },
    /// A used entry names a chain the device does not own.
    #[error("used entry for descriptor {0}, which is not the head of an outstanding chain")]
    UsedId(u32),
    /// IN_ORDER was negotiated, and a used entry names a chain beyond what the used index covers.
    #[error("used entry for descriptor {0} is out of order")]
    OutOfOrder(u32),
    /// A used length is more than the chain's writable bytes.
    #[error("used length {len}, but the chain has {writable} writable bytes")]
    UsedLen {
        /// Length that the device claims to have written.
        len: u32,
        /// Length that it could have written.
        writable: u32,
    },
    /// A received frame is shorter than its header.
    #[error("received {0} bytes: less than a virtio-net header")]
    ShortHeader(u32),
    /// `num_buffers` is 0, or more than 1 without MRG_RXBUF, or not all of them are used yet.
    #[error("num_buffers is {claimed}, but {available} buffers are used")]
    NumBuffers {
        /// Number of buffers in the header.
        claimed: u16,
        /// Number of buffers that are there.
        available: u16,
    },
    /// Entries are used, interrupts were asked for, and none came.
    #[error("used entries without the interrupt that was asked for")]
    MissedInterrupt,
}

/// A chain could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// Not enough free descriptors now.
    #[error("the ring is full")]
    Full,
    /// No buffers, more than the ring can ever hold, or a readable one behind a writable one.
    #[error("not a chain: {0}")]
    Shape(&'static str),
    /// No memory for an indirect table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// One buffer of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes; 0 is allowed.
    pub len: u32,
    /// True if the device writes it.
    pub writable: bool,
}

/// Place of a chain's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// All in the ring's table.
    #[default]
    Direct,
    /// All in an indirect table (needs INDIRECT_DESC).
    Indirect,
    /// In the ring's table up to this number, the others in an indirect table behind them (virtio
    /// 1.2, 2.7.5.3.2).
    IndirectAfter(u16),
}

/// Time at which the device is notified of new chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KickPolicy {
    /// Unless it suppressed notifications (virtio 1.2, 2.7.7 and 2.7.10).
    #[default]
    Standard,
    /// Always, even if the device asked for less.
    Always,
    /// Not at all.
    Never,
}

/// A chain the device has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Token with which the chain was added.
    pub token: u64,
    /// Bytes the device says it wrote.
    pub len: u32,
}

/// Counts of a queue since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Chains made available.
    pub added: u64,
    /// Chains used by the device.
    pub used: u64,
    /// Notifications sent.
    pub kicks: u64,
    /// Notifications left out because the device did not want them.
    pub suppressed: u64,
    /// Interrupts taken from the call descriptor.
    pub interrupts: u64,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    token: u64,
    /// Descriptors in the ring's table.
    descs: u16,
    writable: u32,
    /// Address and bytes of the indirect table.
    table: Option<(u64, usize)>,
}

/// The device's view of a queue: its ring, and the descriptors of both directions' notifications.
#[derive(Clone, Debug)]
pub struct QueueLink {
    /// The ring.
    pub ring: Ring,
    /// Written to notify the device.
    pub kick: Arc<OwnedFd>,
    /// Written by the device to interrupt.
    pub call: Arc<OwnedFd>,
}

impl QueueLink {
    /// Makes a link with new descriptors.
    pub fn new(ring: Ring) -> Result<QueueLink, MemoryError> {
        let failed = |e: rustix::io::Errno| MemoryError::System {
            what: "create an eventfd",
            source: e.into(),
            hint: "",
        };
        let fd = || {
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map(Arc::new)
                .map_err(failed)
        };
        Ok(QueueLink { ring, kick: fd()?, call: fd()? })
    }

    /// Notifies the device.
    pub fn kick(&self) {
        // The only failure of a non-blocking eventfd is a full counter: then a notification is
        // pending anyway.
        let _ = rustix::io::write(&*self.kick, &1u64.to_ne_bytes());
    }
}

impl AsRef<QueueLink> for QueueLink {
    fn as_ref(&self) -> &QueueLink {
        self
    }
}

impl AsRef<QueueLink> for VirtQueue {
    fn as_ref(&self) -> &QueueLink {
        &self.link
    }
}

/// The driver's half of one queue.
#[derive(Debug)]
pub struct VirtQueue {
    link: QueueLink,
    event_idx: bool,
    in_order: bool,
    indirect: bool,
    kick_policy: KickPolicy,
    interrupts: bool,
    /// Free descriptors, a stack (without IN_ORDER).
    free: Vec<u16>,
    /// Next descriptor to be used (with IN_ORDER, which takes them in table order).
    next_desc: u16,
    free_count: u16,
    /// Successor of each descriptor of an outstanding chain: our own copy, as the ring's may be
    /// overwritten.
    following: Vec<u16>,
    /// Outstanding chains by head.
    chains: Vec<Option<Chain>>,
    /// Heads in the order they were made available (with IN_ORDER).
    order: VecDeque<u16>,
    outstanding: u16,
    avail_idx: u16,
    published: u16,
    notified: u16,
    last_used: u16,
    /// Chains that the last used entry still covers, and the length of its last one, with IN_ORDER.
    batch: (u16, u32),
    stats: QueueStats,
}

impl VirtQueue {
    /// A queue on a new ring of `size` entries (a power of two up to 32,768).
    pub fn new(
        memory: &Arc<Memory>,
        size: u16,
        features: Features,
    ) -> Result<VirtQueue, MemoryError> {
        VirtQueue::on(Ring::new(memory, size)?, features)
    }

    /// A queue on a ring placed by the caller; clears it. Of `features`, EVENT_IDX, INDIRECT_DESC
    /// and IN_ORDER matter.
    pub fn on(ring: Ring, features: Features) -> Result<VirtQueue, MemoryError> {
        let size = usize::from(ring.size());
        let mut queue = VirtQueue {
            link: QueueLink::new(ring)?,
            event_idx: false,
            in_order: false,
            indirect: false,
            kick_policy: KickPolicy::Standard,
            interrupts: false,
            free: Vec::with_capacity(size),
            next_desc: 0,
            free_count: 0,
            following: vec![0; size],
            chains: vec![None; size],
            order: VecDeque::with_capacity(size),
            outstanding: 0,
            avail_idx: 0,
            published: 0,
            notified: 0,
            last_used: 0,
            batch: (0, 0),
            stats: QueueStats::default(),
        };
        queue.reset(features);
        Ok(queue)
    }

    /// Starts afresh, as a driver does after a device reset: the ring is zeroed, what was
    /// outstanding is forgotten, `features` are in force. The device must have been stopped.
    pub fn reset(&mut self, features: Features) {
        for chain in &mut self.chains {
            if let Some((addr, len)) = chain.take().and_then(|chain| chain.table) {
                self.link.ring.memory().free(addr, len);
            }
        }
        self.event_idx = features.has(Features::EVENT_IDX);
        self.in_order = features.has(Features::IN_ORDER);
        self.indirect = features.has(Features::INDIRECT_DESC);
        self.link.ring.clear();
        self.free.clear();
        self.free.extend((0..self.link.ring.size()).rev());
        self.order.clear();
        self.free_count = self.link.ring.size();
        (self.next_desc, self.outstanding) = (0, 0);
        (self.avail_idx, self.published, self.notified, self.last_used) = (0, 0, 0, 0);
        self.batch = (0, 0);
        self.suppress_interrupts();
    }

    /// The ring's memory, for looking at it or spoiling it.
    pub fn ring(&self) -> &Ring {
        &self.link.ring
    }

    /// Written to notify the device.
    pub fn kick_fd(&self) -> &Arc<OwnedFd> {
        &self.link.kick
    }

    /// Written by the device to interrupt.
    pub fn call_fd(&self) -> &Arc<OwnedFd> {
        &self.link.call
    }

    /// Replaces the notification policy.
    pub fn set_kick_policy(&mut self, policy: KickPolicy) {
        self.kick_policy = policy;
    }

    /// Chooses whether [`Self::wait`] sleeps until the device interrupts (true) or polls (false,
    /// the default).
    pub fn set_interrupts(&mut self, interrupts: bool) {
        self.interrupts = interrupts;
    }

    /// Counters.
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Free descriptors in the ring's table.
    pub fn free_descs(&self) -> u16 {
        self.free_count
    }

    /// Chains the device owns, published or not.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// The available index as last published.
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Returns the position at which a device that lost its state goes on: the used index, since
    /// every chain before it was used in order.
    pub fn restart_position(&self) -> u16 {
        self.link.ring.used_idx().load(Acquire)
    }

    /// Adds a chain. The device sees it after [`Self::publish`]. Returns the head's index.
    pub fn add(
        &mut self,
        buffers: &[Buffer],
        placement: Placement,
        token: u64,
    ) -> Result<u16, AddError> {
        let direct = match placement {
            Placement::Direct => buffers.len(),
            Placement::Indirect => 0,
            Placement::IndirectAfter(direct) => usize::from(direct).min(buffers.len()),
        };
        let (direct, in_table) = buffers.split_at(direct);
        let descs = direct.len() + usize::from(!in_table.is_empty());
        if descs == 0 || descs > usize::from(self.link.ring.size()) {
            return Err(AddError::Shape(
                "it has no buffers, or more than the ring has descriptors",
            ));
        }
        if !buffers.is_sorted_by_key(|buffer| buffer.writable) {
            return Err(AddError::Shape(
                "a buffer for the device to read stands behind one to write",
            ));
        }
        if !in_table.is_empty() && !self.indirect {
            return Err(AddError::Shape("INDIRECT_DESC was not negotiated"));
        }
        if descs > usize::from(self.free_count) {
            return Err(AddError::Full);
        }
        let table = if in_table.is_empty() { None } else { Some(self.write_table(in_table)?) };
        let last =
            table.map(|(addr, len)| Desc { addr, len: len as u32, flags: DESC_INDIRECT, next: 0 });
        let direct = direct.iter().map(|buffer| Desc {
            addr: buffer.addr,
            len: buffer.len,
            flags: write_flag(buffer),
            next: 0,
        });
        let mut head = None;
        let mut previous: Option<(u16, Desc)> = None;
        for desc in direct.chain(last) {
            let index = self.take_desc();
            if let Some((at, mut before)) = previous.replace((index, desc)) {
                (before.flags, before.next) = (before.flags | DESC_NEXT, index);
                self.following[usize::from(at)] = index;
                self.link.ring.set_desc(at, before);
            }
            head.get_or_insert(index);
        }
        if let Some((at, desc)) = previous {
            self.link.ring.set_desc(at, desc);
        }
        let head = head.unwrap_or_default();
        let writable =
            buffers.iter().filter(|buffer| buffer.writable).map(|buffer| buffer.len).sum();
        self.chains[usize::from(head)] =
            Some(Chain { token, descs: descs as u16, writable, table });
        if self.in_order {
            self.order.push_back(head);
        }
        self.link.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.outstanding += 1;
        self.stats.added += 1;
        Ok(head)
    }

    fn write_table(&mut self, buffers: &[Buffer]) -> Result<(u64, usize), MemoryError> {
        let len = buffers.len() * DESC_LEN;
        let addr = self.link.ring.memory().alloc(len, DESC_LEN)?;
        let span = self.link.ring.memory().span(addr, len)?;
        for (i, buffer) in buffers.iter().enumerate() {
            let more = i + 1 < buffers.len();
            let flags = write_flag(buffer) | if more { DESC_NEXT } else { 0 };
            let next = if more { i as u16 + 1 } else { 0 };
            span.write(
                i * DESC_LEN,
                &Desc { addr: buffer.addr, len: buffer.len, flags, next }.to_bytes(),
            );
        }
        Ok((addr, len))
    }

    fn take_desc(&mut self) -> u16 {
        self.free_count -= 1;
        if self.in_order {
            let index = self.next_desc;
            self.next_desc = (index + 1) & (self.link.ring.size() - 1);
            return index;
        }
        self.free.pop().unwrap_or_default()
    }

    /// Makes the chains added so far available. Does not notify.
    #[inline]
    pub fn publish(&mut self) {
        self.link.ring.avail_idx().store(self.avail_idx, Release);
        self.published = self.avail_idx;
    }

    /// Notifies the device of what was published since the last call, if it wants to know. Returns
    /// whether it was notified.
    pub fn notify(&mut self) -> bool {
        if self.published == self.notified {
            return false;
        }
        // The device must see the index before we look at what it asks for, or it could sleep.
        fence(SeqCst);
        let wanted = match self.kick_policy {
            KickPolicy::Always => true,
            KickPolicy::Never => false,
            KickPolicy::Standard if self.event_idx => {
                passed(self.link.ring.avail_event().load(Relaxed), self.published, self.notified)
            }
            KickPolicy::Standard => self.link.ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0,
        };
        self.notified = self.published;
        if wanted {
            self.kick();
        } else {
            self.stats.suppressed += 1;
        }
        wanted
    }

    /// Notifies the device, even if it asked for no notification.
    pub fn kick(&mut self) {
        self.stats.kicks += 1;
        self.link.kick();
    }

    /// True if used entries wait to be taken.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.used_ready() != 0
    }

    /// Used chains that can be taken.
    #[inline]
    pub fn used_ready(&self) -> u16 {
        self.link.ring.used_idx().load(Acquire).wrapping_sub(self.last_used)
    }

    /// Takes the next used chain.
    pub fn pop(&mut self) -> Result<Option<Used>, DeviceError> {
        let ready = self.used_ready();
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: self.outstanding });
        }
        let (head, len) =
            if self.in_order { self.next_in_order(ready)? } else { self.next_by_id()? };
        let Some(chain) = self.chains[usize::from(head)].take() else {
            return Err(DeviceError::UsedId(head.into()));
        };
        let len = len.unwrap_or(chain.writable);
        if len > chain.writable {
            return Err(DeviceError::UsedLen { len, writable: chain.writable });
        }
        self.free_count += chain.descs;
        if !self.in_order {
            let mut index = head;
            for _ in 0..chain.descs {
                self.free.push(index);
                index = self.following[usize::from(index)];
            }
        }
        if let Some((addr, len)) = chain.table {
            self.link.ring.memory().free(addr, len);
        }
        self.last_used = self.last_used.wrapping_add(1);
        self.outstanding -= 1;
        self.stats.used += 1;
        if self.event_idx && self.last_used & 0x3fff == 0 {
            // An event field left behind comes near again after 65,536 chains.
            self.suppress_interrupts();
        }
        Ok(Some(Used { token: chain.token, len }))
    }

    fn next_by_id(&self) -> Result<(u16, Option<u32>), DeviceError> {
        let (id, len) = self.link.ring.used_entry(self.last_used);
        let head = u16::try_from(id).ok().filter(|head| *head < self.link.ring.size());
        Ok((head.ok_or(DeviceError::UsedId(id))?, Some(len)))
    }

    /// Returns the next chain of a batch, with IN_ORDER.
    ///
    /// One used entry may stand for several chains, at the first one's place, naming the last one
    /// (virtio 1.2, 2.7.9). Those before the last count as written completely.
    fn next_in_order(&mut self, ready: u16) -> Result<(u16, Option<u32>), DeviceError> {
        if self.batch.0 == 0 {
            let (id, len) = self.link.ring.used_entry(self.last_used);
            let at = self.order.iter().take(ready.into()).position(|head| u32::from(*head) == id);
            let at = at.ok_or(DeviceError::OutOfOrder(id))?;
            self.batch = (at as u16 + 1, len);
        }
        self.batch.0 -= 1;
        let head = self
            .order
            .pop_front()
            .ok_or(DeviceError::UsedIndex { moved: ready, outstanding: 0 })?;
        Ok((head, (self.batch.0 == 0).then_some(self.batch.1)))
    }

    /// Asks for an interrupt at the next used entry. Returns false if one is there already, which
    /// may not interrupt.
    pub fn arm_interrupt(&mut self) -> bool {
        if self.event_idx {
            self.link.ring.avail_flags().store(0, Relaxed);
            self.link.ring.used_event().store(self.last_used, Relaxed);
        } else {
            self.link.ring.avail_flags().store(0, Relaxed);
        }
        fence(SeqCst); // pairs with the device's, between its used index and its look at our field
        !self.has_used()
    }

    /// Asks for no interrupts. With EVENT_IDX that can only be put far off: one comes at the latest
    /// 65,535 entries later.
    pub fn suppress_interrupts(&mut self) {
        if self.event_idx {
            self.link.ring.avail_flags().store(0, Relaxed); // MUST be 0 with EVENT_IDX (2.7.7.1)
            self.link.ring.used_event().store(self.last_used.wrapping_sub(1), Relaxed);
        } else {
            self.link.ring.avail_flags().store(AVAIL_NO_INTERRUPT, Relaxed);
        }
    }

    /// Takes interrupts from the call descriptor; their number.
    pub fn take_interrupts(&mut self) -> u64 {
        let mut count = [0; 8];
        let taken = match rustix::io::read(&*self.link.call, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        };
        self.stats.interrupts += taken;
        taken
    }

    /// Waits until a used chain can be taken. Ok(false) after `timeout` without one.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        let deadline = Instant::now() + timeout;
        if !self.interrupts {
            while !self.has_used() {
                if Instant::now() >= deadline {
                    return Ok(false);
                }
                std::thread::yield_now();
            }
            return Ok(true);
        }
        while !self.has_used() && self.arm_interrupt() {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.poll_call(left) {
                if !self.has_used() {
                    self.suppress_interrupts();
                    return Ok(false);
                }
                // It came in the last moment; its interrupt must follow, unless the device is off
                // its core.
                if !self.poll_call(INTERRUPT_LIMIT) {
                    return Err(DeviceError::MissedInterrupt);
                }
            }
            self.take_interrupts();
        }
        self.suppress_interrupts();
        Ok(true)
    }

    /// True if the call descriptor is readable within `timeout`.
    fn poll_call(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&*self.link.call, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        loop {
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {} // a signal: wait again
                result => return result == Ok(1),
            }
        }
    }
}

fn write_flag(buffer: &Buffer) -> u16 {
    if buffer.writable { DESC_WRITE } else { 0 }
}
