//! Passes whole messages to the session and its replies back. The `vhost` crate parses, checks and
//! acknowledges.
//!
//! The crate's handler reads from a socket of its own, into which only whole messages of bounded
//! size go ([`super::wire`] says why). The reply is read here, at the other end of that socket. So
//! nothing a guest does or does not do can hold the handler.
//!
//! The handler refuses some messages of real front ends. This file makes up for it:
//! * QEMU sends SET_VRING_ENABLE before its first SET_FEATURES; the handler insists on features
//!   first.
//! * The handler does not know SET_LOG_FD, an obsolete request of the specification without use.
//! * Nor does it know SEND_RARP. QEMU 7.2 sends it after a live migration if the guest did not take
//!   GUEST_ANNOUNCE.
//! * A session that another process began has negotiated already. The handler can only learn of
//!   that from messages.
//!
//! Messages seen from real front ends, on which decisions here and in [`super::session`] rest:
//! * QEMU 7.2 takes all protocol features. It asks for GET_QUEUE_NUM and GET_MAX_MEM_SLOTS. It
//!   gives call and error descriptors at once, also for rings that no guest will use (`queues=2`).
//!   It sends memory by ADD_MEM_REG with acknowledgement. Whenever the guest's driver, its link or
//!   the whole guest stops or starts, QEMU sends GET_VRING_BASE; SET_VRING_ENABLE, SET_FEATURES,
//!   SET_VRING_NUM, BASE, ADDR, KICK, CALL. For a migration it sends SET_LOG_BASE, then
//!   SET_FEATURES and SET_VRING_ADDR, acknowledged, under running rings. It never sends SET_LOG_FD
//!   or a reset.
//! * DPDK 22.11's virtio-user takes MQ and REPLY_ACK. It gives call descriptors, then features,
//!   then memory by SET_MEM_TABLE with acknowledgement, and enables rings last. Stopping the port
//!   sends nothing. Closing it disables the rings and sends GET_VRING_BASE.

use std::{
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
    VhostUserProtocolFeatures,
    message::{
        FrontendReq, VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags,
        VhostUserInflight, VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig,
        VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags,
        VhostUserVringState,
    },
};

use super::{
    session::{PROTOCOL_FEATURES, Refused, Session},
    state::{LogState, Named, RingAddresses},
    wire::{self, Header, Message},
};
use crate::{memory::RegionSpec, net::Features};

/// Result of passing one message to the session.
pub(super) struct Passed {
    /// Reply for the front end, if not empty.
    pub reply: Vec<u8>,
    /// Success if the connection goes on; else a sentence for the operator.
    pub outcome: std::result::Result<(), String>,
}

/// A session behind the crate's handler.
pub(super) struct Gate {
    handler: BackendReqHandler<Mutex<Backend>>,
    backend: Arc<Mutex<Backend>>,
    /// The other end of the handler's socket.
    outside: UnixStream,
}

impl Gate {
    /// Prepares a handler for a session that may be new or have negotiated already.
    pub fn new(session: Session) -> io::Result<Gate> {
        let (inside, outside) = UnixStream::pair()?;
        outside.set_nonblocking(true)?;
        // QEMU 7.2 enables rings when the guest's driver accepts features, which is before it sends
        // them to us.
        let features = session.features().unwrap_or(Features::PROTOCOL_FEATURES);
        let protocol_features = session.protocol_features();
        let backend = Arc::new(Mutex::new(Backend { session, rehearsal: true }));
        let mut gate = Gate {
            handler: BackendReqHandler::from_stream(inside, backend.clone()),
            backend,
            outside,
        };
        gate.rehearse(FrontendReq::GET_FEATURES, None)?;
        gate.rehearse(FrontendReq::SET_PROTOCOL_FEATURES, Some(protocol_features))?;
        gate.rehearse(FrontendReq::SET_FEATURES, Some(features.0))?;
        gate.lock().rehearsal = false;
        Ok(gate)
    }

    /// Lets the handler see a request that the session does not act on.
    fn rehearse(&mut self, request: FrontendReq, value: Option<u64>) -> io::Result<()> {
        let body = value.map(|value| value.to_ne_bytes().to_vec()).unwrap_or_default();
        let message = Message { header: Header::new(request, body.len()), body, files: Vec::new() };
        wire::forward(&self.outside, &message)?;
        self.handler.handle_request().map_err(io::Error::other)?;
        self.take_reply().map(|_| ())
    }

    fn lock(&self) -> MutexGuard<'_, Backend> {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the session.
    pub fn session<T>(&self, look: impl FnOnce(&Session) -> T) -> T {
        look(&self.lock().session)
    }

    /// Changes something in the session that no message does.
    pub fn change<T>(&self, change: impl FnOnce(&mut Session) -> T) -> T {
        change(&mut self.lock().session)
    }

    /// Carries out a request.
    pub fn pass(&mut self, message: Message) -> Passed {
        let name = message.header.name();
        if message.header.request == u32::from(FrontendReq::SET_LOG_FD) {
            let negotiated = self.lock().session.protocol_features()
                & VhostUserProtocolFeatures::REPLY_ACK.bits()
                != 0;
            let acknowledge = message.header.wants_reply() && negotiated;
            let reply = if acknowledge { Message::ack(message.header) } else { Vec::new() };
            return Passed { reply, outcome: Ok(()) };
        }
        if message.header.request == u32::from(FrontendReq::SEND_RARP) {
            return self.send_rarp(&message);
        }
        let shape = format!("{} bytes, {} descriptors", message.body.len(), message.files.len());
        if let Err(error) = wire::forward(&self.outside, &message) {
            return Passed {
                reply: Vec::new(),
                outcome: Err(format!("the front end's {name} could not be handled: {error}")),
            };
        }
        // The copies in the socket are the handler's.
        drop(message);
        let outcome = self.handler.handle_request().map_err(|error| {
            let why = match error {
                Error::ReqHandlerError(error) => error.to_string(),
                Error::InvalidMessage | Error::InvalidParam | Error::IncorrectFds => {
                    format!("its size, its contents or its descriptors are not what the protocol says (it came with {shape})")
                }
                Error::InactiveOperation(_) | Error::InactiveFeature(_) => "it was not negotiated".to_owned(),
                error => error.to_string(),
            };
            format!("the front end's {name} was refused: {why}")
        });
        match self.take_reply() {
            Ok(reply) => Passed { reply, outcome },
            Err(error) => Passed {
                reply: Vec::new(),
                outcome: Err(format!("answering the front end's {name} failed: {error}")),
            },
        }
    }

    /// The machine is to be announced. The address in the message is not looked at: a vnic has one,
    /// which was declared.
    fn send_rarp(&self, message: &Message) -> Passed {
        let name = message.header.name();
        let refused = |why: &str| Passed {
            reply: Vec::new(),
            outcome: Err(format!("the front end's {name} was refused: {why}")),
        };
        let backend = self.lock();
        let negotiated = |feature: VhostUserProtocolFeatures| {
            backend.session.protocol_features() & feature.bits() != 0
        };
        if !negotiated(VhostUserProtocolFeatures::RARP) {
            return refused("it was not negotiated");
        }
        if message.body.len() != size_of::<u64>() || !message.files.is_empty() {
            return refused("it has the machine's MAC address in 8 bytes, and no descriptors");
        }
        backend.session.send_rarp();
        let acknowledge =
            message.header.wants_reply() && negotiated(VhostUserProtocolFeatures::REPLY_ACK);
        Passed {
            reply: if acknowledge { Message::ack(message.header) } else { Vec::new() },
            outcome: Ok(()),
        }
    }

    /// Reads the handler's reply. Replies fit into the socket.
    fn take_reply(&mut self) -> io::Result<Vec<u8>> {
        let mut reply = Vec::new();
        match self.outside.read_to_end(&mut reply) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(reply),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The session as the crate's handler sees it.
struct Backend {
    session: Session,
    /// The handler is being prepared: nothing is to be done.
    rehearsal: bool,
}

impl From<Refused> for Error {
    fn from(Refused(why): Refused) -> Error {
        Error::ReqHandlerError(io::Error::other(why))
    }
}

fn refused<T>(why: &str) -> Result<T> {
    Err(Refused(why.to_owned()).into())
}

const NOT_OFFERED: &str = "it belongs to a protocol feature that is not offered";

fn region(region: &VhostUserMemoryRegion, file: File) -> RegionSpec {
    RegionSpec {
        guest_addr: region.guest_phys_addr,
        size: region.memory_size,
        user_addr: region.user_addr,
        mmap_offset: region.mmap_offset,
        file: file.into(),
    }
}

impl Backend {
    /// Names a message's only descriptor.
    fn first(&self, fd: Option<File>) -> Option<Named<OwnedFd>> {
        fd.map(|fd| self.session.name(0, fd.into()))
    }
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.session.stop_rings();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.session.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.session.offered().0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if self.rehearsal {
            return Ok(());
        }
        Ok(self.session.set_features(Features(features))?)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let regions = regions.iter().zip(files).map(|(r, file)| region(r, file));
        let regions = regions.enumerate().map(|(at, region)| self.session.name(at, region));
        let regions = regions.collect();
        self.session.set_memory(regions)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        Ok(self.session.set_size(index, num)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let used_log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        Ok(self.session.set_addresses(
            index,
            RingAddresses { desc: descriptor, avail: available, used, used_log },
        )?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        Ok(self.session.set_position(index, base)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        Ok(VhostUserVringState::new(index, self.session.stop_ring(index)?))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = self.first(fd).map(|kick| Named { name: kick.name, it: Arc::new(kick.it) });
        Ok(self.session.set_kick(u32::from(index), kick)?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        Ok(self.session.set_call(u32::from(index), self.first(fd))?)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        Ok(self.session.set_error(u32::from(index), fd.map(Into::into))?)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if self.rehearsal {
            return Ok(());
        }
        Ok(self.session.set_protocol_features(features)?)
    }

    /// Announces the pairs of rings. QEMU and DPDK take the number for pairs, Cloud Hypervisor and
    /// the `vhost` crate for rings: they use half of the pairs. For a single one it says 2, as 1
    /// would leave the latter without a transmit ring; no guest uses a second pair without
    /// VIRTIO_NET_F_MQ.
    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.session.pairs().max(2) as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        Ok(self.session.set_enabled(index, enable)?)
    }

    fn get_config(
        &mut self,
        _offset: u32,
        _size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        refused(NOT_OFFERED)
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _buf: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        refused(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        refused("a vnic has no display")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        refused(NOT_OFFERED)
    }

    fn get_inflight_fd(
        &mut self,
        _inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        refused(NOT_OFFERED)
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        refused(NOT_OFFERED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(self.session.max_regions() as u64)
    }

    fn add_mem_region(
        &mut self,
        added: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.session.add_region(self.session.name(0, region(added, fd)))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, removed: &VhostUserSingleMemoryRegion) -> Result<()> {
        Ok(self.session.remove_region(
            removed.guest_phys_addr,
            removed.user_addr,
            removed.memory_size,
        )?)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        refused(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        refused(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        refused(NOT_OFFERED)
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = LogState { file: file.into(), size: log.mmap_size, offset: log.mmap_offset };
        Ok(self.session.set_log(self.session.name(0, log))?)
    }
}
