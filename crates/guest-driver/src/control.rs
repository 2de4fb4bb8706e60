//! The front end's side of the control channel: what QEMU says on behalf of a guest.
//!
//! On the front end of the `vhost` crate; the messages it cannot send as needed (descriptors for
//! rings, the dirty log) go out through [`crate::raw`].

mod dirty;
mod error;
mod listener;
mod start;

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use butterfly_vhost::{net::Features, port::Queue};
use rustix::io::retry_on_intr;
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{Frontend, VhostUserFrontend, message::VhostUserHeaderFlag},
};

use crate::{
    memory::{Memory, Region},
    queue::QueueLink,
    raw::{self, FrontendReq},
    ring::AnyRing,
};

pub use dirty::DirtyLog;
pub use error::ControlError;
pub use listener::Listener;
pub use start::{MemoryMessages, Nic, Pairs, Positions, Start, positions};
pub use vhost::vhost_user::VhostUserProtocolFeatures as ProtocolFeatures;

/// Time limit for a reply, unless [`Connection::set_timeout`] says otherwise.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

fn asked<T>(what: &'static str, result: vhost::Result<T>) -> Result<T, ControlError> {
    result.map_err(|source| ControlError::Request { what, source })
}

/// The front end's end of one vhost-user connection. Dropping it disconnects.
pub struct Connection {
    frontend: Frontend,
    stream: UnixStream,
    offered: Features,
    protocol_offered: ProtocolFeatures,
    protocol: ProtocolFeatures,
}

impl Connection {
    /// Connects to a switch's socket. Tries again until `timeout` while no switch listens there.
    pub fn connect(path: impl AsRef<Path>, timeout: Duration) -> Result<Connection, ControlError> {
        let path = path.as_ref();
        let deadline = Instant::now() + timeout;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Connection::new(stream),
                Err(source) => {
                    let absent = matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    );
                    if !absent || Instant::now() >= deadline {
                        return Err(ControlError::Socket { path: Some(path.to_owned()), source });
                    }
                    // no event tells of a new listener
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    /// Makes a connection of a connected stream.
    pub fn new(stream: UnixStream) -> Result<Connection, ControlError> {
        let ours = stream.try_clone()?;
        let connection = Connection {
            frontend: Frontend::from_stream(stream, Queue::COUNT as u64),
            stream: ours,
            offered: Features::NONE,
            protocol_offered: ProtocolFeatures::empty(),
            protocol: ProtocolFeatures::empty(),
        };
        connection.set_timeout(REPLY_TIMEOUT)?;
        Ok(connection)
    }

    /// Sets how long to wait for a reply, and for room to send.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), ControlError> {
        self.stream.set_read_timeout(Some(timeout))?;
        Ok(self.stream.set_write_timeout(Some(timeout))?)
    }

    /// The stream itself, for sending and receiving anything ([`raw`]).
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The `vhost` crate's front end, for messages without a method here.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Features the back end offered.
    pub fn offered(&self) -> Features {
        self.offered
    }

    /// Protocol features the back end offered.
    pub fn protocol_offered(&self) -> ProtocolFeatures {
        self.protocol_offered
    }

    /// Protocol features in force.
    pub fn protocol(&self) -> ProtocolFeatures {
        self.protocol
    }

    /// True if the other side has closed the connection.
    pub fn is_closed(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1))
    }

    /// Waits until the other side closes the connection. False after `timeout`.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::RDHUP)];
        let limit = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        matches!(retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit))), Ok(1))
    }

    /// Owns the device and learns what it offers; agrees on those of `protocol` that it offers.
    /// Returns those of `wanted` that it offers: what the guest's driver is to work with. They
    /// are in force after [`Self::set_features`].
    pub fn negotiate(
        &mut self,
        wanted: Features,
        protocol: ProtocolFeatures,
    ) -> Result<Features, ControlError> {
        asked("SET_OWNER", self.frontend.set_owner())?;
        self.offered = Features(asked("GET_FEATURES", self.frontend.get_features())?);
        if self.offered.has(Features::PROTOCOL_FEATURES) && !protocol.is_empty() {
            self.protocol_offered =
                asked("GET_PROTOCOL_FEATURES", self.frontend.get_protocol_features())?;
            self.protocol = self.protocol_offered & protocol;
            asked("SET_PROTOCOL_FEATURES", self.frontend.set_protocol_features(self.protocol))?;
            if self.protocol.contains(ProtocolFeatures::REPLY_ACK) {
                self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        Ok(Features(self.offered.0 & wanted.0).without(Features::PROTOCOL_FEATURES))
    }

    /// Protocol features that this front end understands.
    pub fn usual_protocol() -> ProtocolFeatures {
        ProtocolFeatures::MQ
            | ProtocolFeatures::LOG_SHMFD
            | ProtocolFeatures::RARP
            | ProtocolFeatures::REPLY_ACK
            | ProtocolFeatures::CONFIGURE_MEM_SLOTS
            | ProtocolFeatures::RESET_DEVICE
    }

    /// Puts features in force. PROTOCOL_FEATURES goes along if protocol features were agreed on.
    pub fn set_features(&mut self, features: Features) -> Result<(), ControlError> {
        let own =
            if self.protocol.is_empty() { Features::NONE } else { Features::PROTOCOL_FEATURES };
        asked("SET_FEATURES", self.frontend.set_features(features.with(own).0))
    }

    /// Sends a message the crate does not, and waits for the answer if there is to be one.
    fn send_raw(
        &self,
        what: &'static str,
        request: FrontendReq,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        replies: bool,
    ) -> Result<(), ControlError> {
        let acked = self.protocol.contains(ProtocolFeatures::REPLY_ACK);
        let flags = raw::VERSION | if acked { raw::NEED_REPLY } else { 0 };
        raw::send_bytes(&self.stream, &raw::message(request, flags, body), fds)?;
        if !acked && !replies {
            return Ok(());
        }
        let reply = raw::recv(&self.stream)?;
        match reply.u64() {
            _ if reply.request != request as u32 => {
                Err(ControlError::WrongReply { what, answered: reply.request })
            }
            0 => Ok(()),
            _ if replies => Ok(()), // a body of its own, not a code
            code => Err(ControlError::Refused { what, code }),
        }
    }

    /// Announces all regions at once.
    pub fn set_mem_table(&mut self, regions: &[Region]) -> Result<(), ControlError> {
        let table: Vec<_> = regions.iter().map(region_info).collect();
        asked("SET_MEM_TABLE", self.frontend.set_mem_table(&table)).map(drop)
    }

    /// Announces one more region (CONFIGURE_MEM_SLOTS).
    pub fn add_region(&mut self, region: &Region) -> Result<(), ControlError> {
        asked("ADD_MEM_REG", self.frontend.add_mem_region(&region_info(region))).map(drop)
    }

    /// Takes a region back (CONFIGURE_MEM_SLOTS).
    pub fn remove_region(&mut self, region: &Region) -> Result<(), ControlError> {
        asked("REM_MEM_REG", self.frontend.remove_mem_region(&region_info(region)))
    }

    /// Announces a guest's memory.
    pub fn set_memory(&mut self, memory: &Memory, how: MemoryMessages) -> Result<(), ControlError> {
        match how {
            MemoryMessages::Table => self.set_mem_table(&memory.regions()),
            MemoryMessages::Slots => {
                memory.regions().iter().try_for_each(|region| self.add_region(region))
            }
        }
    }

    /// Tells where a ring is.
    pub fn set_vring_addr(
        &mut self,
        index: usize,
        queue: &impl AsRef<QueueLink>,
        log: bool,
    ) -> Result<(), ControlError> {
        let ring = &queue.as_ref().ring;
        let addr = ring.user_addr();
        let config = VringConfigData {
            queue_max_size: ring.size(),
            queue_size: ring.size(),
            flags: log.into(),
            desc_table_addr: addr.desc,
            used_ring_addr: addr.used,
            avail_ring_addr: addr.avail,
            log_addr: log.then_some(ring.addr().used),
        };
        asked("SET_VRING_ADDR", self.frontend.set_vring_addr(index, &config))
    }

    /// Hands over a queue's kick descriptor, or says that there is none.
    pub fn set_vring_kick(
        &self,
        index: usize,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        self.set_vring_fd("SET_VRING_KICK", FrontendReq::SET_VRING_KICK, index, fd)
    }

    /// Hands over a queue's call descriptor, or says that there is none.
    pub fn set_vring_call(
        &self,
        index: usize,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        self.set_vring_fd("SET_VRING_CALL", FrontendReq::SET_VRING_CALL, index, fd)
    }

    /// Hands over a queue's error descriptor, or says that there is none.
    pub fn set_vring_err(
        &self,
        index: usize,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        self.set_vring_fd("SET_VRING_ERR", FrontendReq::SET_VRING_ERR, index, fd)
    }

    fn set_vring_fd(
        &self,
        what: &'static str,
        request: FrontendReq,
        index: usize,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        let body = raw::words(&[index as u64 | if fd.is_none() { raw::NO_FD } else { 0 }]);
        self.send_raw(what, request, &body, fd.as_slice(), false)
    }

    /// Everything a queue needs to run but enabling it.
    pub fn set_up_queue(
        &mut self,
        index: usize,
        queue: &impl AsRef<QueueLink>,
        start: &Start,
    ) -> Result<(), ControlError> {
        let queue = queue.as_ref();
        let base = start.base.get(index).unwrap_or(queue.first);
        asked("SET_VRING_NUM", self.frontend.set_vring_num(index, queue.ring.size()))?;
        self.set_vring_base(index, queue, base)?;
        self.set_vring_addr(index, queue, start.log)?;
        // The device hears of a descriptor that is left out. Call this first, so that no queue is
        // used without.
        self.set_vring_call(index, start.call.then(|| queue.call.as_fd()))?;
        self.set_vring_kick(index, start.kick.then(|| queue.kick.as_fd()))
    }

    /// Tells where the device begins in a ring.
    ///
    /// For a packed ring QEMU says it twice: the lower half is where descriptors are read next, the
    /// upper half where they are used next.
    pub fn set_vring_base(
        &mut self,
        index: usize,
        queue: &impl AsRef<QueueLink>,
        base: u16,
    ) -> Result<(), ControlError> {
        match queue.as_ref().ring {
            AnyRing::Split(_) => asked("SET_VRING_BASE", self.frontend.set_vring_base(index, base)),
            AnyRing::Packed(_) => {
                let both = u32::from(base) | u32::from(base) << 16;
                let body = raw::vring_state(index as u32, both);
                self.send_raw("SET_VRING_BASE", FrontendReq::SET_VRING_BASE, &body, &[], false)
            }
        }
    }

    /// Enables or disables a ring. Without protocol features rings need no enabling, and this does
    /// nothing.
    pub fn enable(&mut self, index: usize, enable: bool) -> Result<(), ControlError> {
        if self.protocol.is_empty() {
            return Ok(());
        }
        asked("SET_VRING_ENABLE", self.frontend.set_vring_enable(index, enable))
    }

    /// Starts the queues of a driver: features, memory, rings.
    pub fn start(&mut self, nic: &impl Nic, start: &Start) -> Result<(), ControlError> {
        self.set_features(nic.features())?;
        if let Some(how) = start.memory {
            self.set_memory(nic.memory(), how)?;
        }
        let queues = 0..2 * nic.pairs();
        for index in queues.clone() {
            self.set_up_queue(index, nic.link(index), start)?;
        }
        if start.enable {
            for index in queues {
                self.enable(index, true)?;
            }
        }
        Ok(())
    }

    /// Stops a queue and learns where the device was: the next entry of the available ring it would
    /// have taken. Of a packed ring the next descriptor with its wrap counter.
    pub fn stop_queue(&mut self, index: usize) -> Result<u16, ControlError> {
        asked("GET_VRING_BASE", self.frontend.get_vring_base(index)).map(|base| base as u16)
    }

    /// Stops the queues of so many pairs. Returns their positions.
    pub fn stop(&mut self, pairs: usize) -> Result<Positions, ControlError> {
        let mut positions = Positions::default();
        for index in 0..2 * pairs {
            self.enable(index, false)?;
        }
        for index in 0..2 * pairs {
            positions.set(index, self.stop_queue(index)?);
        }
        Ok(positions)
    }

    /// Hands over a dirty log (LOG_SHMFD).
    pub fn set_log(&self, log: &DirtyLog) -> Result<(), ControlError> {
        let body = raw::words(&[log.region.size, log.region.file_offset]);
        self.send_raw(
            "SET_LOG_BASE",
            FrontendReq::SET_LOG_BASE,
            &body,
            &[log.region.file.as_fd()],
            true,
        )
    }

    /// Turns dirty logging on or off under running queues, as QEMU does: features again, then the
    /// rings' addresses again.
    pub fn set_logging(&mut self, nic: &impl Nic, on: bool) -> Result<(), ControlError> {
        let features = if on { nic.features().with(Features::LOG_ALL) } else { nic.features() };
        self.set_features(features)?;
        let mut queues = 0..2 * nic.pairs();
        queues.try_for_each(|index| self.set_vring_addr(index, nic.link(index), on))
    }

    /// Resets the device (RESET_DEVICE).
    pub fn reset_device(&mut self) -> Result<(), ControlError> {
        asked("RESET_DEVICE", self.frontend.reset_device())
    }

    /// Memory slots the back end has (CONFIGURE_MEM_SLOTS).
    pub fn max_mem_slots(&mut self) -> Result<u64, ControlError> {
        asked("GET_MAX_MEM_SLOTS", self.frontend.get_max_mem_slots())
    }

    /// Queues the back end has (MQ).
    pub fn queue_num(&mut self) -> Result<u64, ControlError> {
        asked("GET_QUEUE_NUM", self.frontend.get_queue_num())
    }

    /// Waits until the back end has worked off everything sent before, whether or not it
    /// acknowledges messages.
    pub fn sync(&mut self) -> Result<(), ControlError> {
        asked("GET_FEATURES", self.frontend.get_features()).map(drop)
    }

    /// Closes the connection without a word, as a crash does.
    pub fn disconnect(self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn region_info(region: &Region) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.guest_addr,
        memory_size: region.size,
        userspace_addr: region.user_addr,
        mmap_offset: region.file_offset,
        mmap_handle: region.file.as_raw_fd(),
    }
}
