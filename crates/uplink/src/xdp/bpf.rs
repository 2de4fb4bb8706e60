//! The system call `bpf`, as much as one XDP program needs: a map of sockets, loading, attaching
//! (bpf(2)).
#![allow(unsafe_code)]

use std::{
    ffi::c_long,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::assembler::Instruction;

const BPF_MAP_CREATE: c_long = 0;
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_PROG_LOAD: c_long = 5;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_LINK_CREATE: c_long = 28;
const BPF_LINK_UPDATE: c_long = 29;
const BPF_LINK_DETACH: c_long = 34;

const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// The attach type of XDP programs.
const BPF_XDP: u32 = 37;
const BPF_LINK_TYPE_XDP: u32 = 6;

/// Place in the receive path at which a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// The driver, before the kernel's own packet buffer is made (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// The stack, for drivers that do not have it (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

impl Hook {
    const fn flags(self) -> u32 {
        match self {
            Hook::Generic => 1 << 1,
            Hook::Native => 1 << 2,
        }
    }
}

/// Argument of a command: the beginning of `union bpf_attr`. The kernel takes what is missing as
/// zero.
///
/// # Safety
///
/// Has no padding, and pointers in it point to what the command reads and writes, for as long as
/// the call takes.
unsafe trait Attributes {}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}
// SAFETY: 32-bit numbers and bytes, no pointers.
unsafe impl Attributes for MapCreate {}

#[repr(C)]
struct MapUpdate {
    map: u32,
    unused: u32,
    key: *const u32,
    value: *const RawFd,
    flags: u64,
}
// SAFETY: no padding (two 32-bit numbers before the pointers); made in `set_socket` only, with
// pointers to locals.
unsafe impl Attributes for MapUpdate {}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: *const Instruction,
    license: *const u8,
    log_level: u32,
    log_size: u32,
    log: *mut u8,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}
// SAFETY: no padding; made in `load` only, with pointers to what it borrows.
unsafe impl Attributes for ProgramLoad {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: 32-bit numbers, no pointers.
unsafe impl Attributes for LinkCreate {}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}
// SAFETY: 32-bit numbers, no pointers.
unsafe impl Attributes for LinkUpdate {}

/// The beginning of `struct bpf_link_info`, with what an XDP link has there.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    unused: u32,
    interface: u32,
    rest: [u32; 27],
}

#[repr(C)]
struct GetInfo {
    object: u32,
    len: u32,
    info: *mut LinkInfo,
}
// SAFETY: no padding; made in `Link::interface` only, with a pointer to a local of the length that
// it tells.
unsafe impl Attributes for GetInfo {}

#[repr(C)]
struct LinkDetach {
    link: u32,
}
// SAFETY: a number.
unsafe impl Attributes for LinkDetach {}

const fn name() -> [u8; 16] {
    *b"butterfly\0\0\0\0\0\0\0"
}

/// A system call `bpf` whose result is a number.
fn bpf<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<c_long> {
    // SAFETY: the attributes are as long as said, and their pointers are good for the call (the
    // trait's promise).
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A command whose result is a descriptor. The kernel closes it on exec.
fn bpf_fd<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(bpf(command, attributes)?).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map from queue numbers to AF_XDP sockets.
pub fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    bpf_fd(
        BPF_MAP_CREATE,
        &mut MapCreate {
            kind: BPF_MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            flags: 0,
            inner_map: 0,
            numa_node: 0,
            name: name(),
        },
    )
}

/// Puts the socket of a queue into a map. It leaves the map when it is closed.
pub fn set_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let mut attributes =
        MapUpdate { map: map.as_raw_fd() as u32, unused: 0, key: &queue, value: &socket, flags: 0 };
    bpf(BPF_MAP_UPDATE_ELEM, &mut attributes).map(|_| ())
}

/// Loads an XDP program. An error has the end of the verifier's log.
pub fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let count = u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attributes = ProgramLoad {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: count,
        instructions: program.as_ptr(),
        license: c"Apache-2.0".as_ptr().cast(),
        log_level: 0,
        log_size: 0,
        log: ptr::null_mut(),
        kernel_version: 0,
        flags: 0,
        name: name(),
    };
    let error = match bpf_fd(BPF_PROG_LOAD, &mut attributes) {
        Ok(program) => return Ok(program),
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && error.raw_os_error() == Some(libc::EPERM) =>
        {
            return Err(error);
        }
        Err(error) => error,
    };
    let mut log = vec![0; 64 * 1024];
    attributes.log_level = 1;
    attributes.log_size = log.len() as u32;
    attributes.log = log.as_mut_ptr();
    if let Ok(program) = bpf_fd(BPF_PROG_LOAD, &mut attributes) {
        return Ok(program);
    }
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.trim_end_matches(['\0', '\n']).lines().collect();
    let end = lines.get(lines.len().saturating_sub(4)..).unwrap_or(&[]).join(" / ");
    Err(io::Error::new(error.kind(), format!("{error} ({end})")))
}

/// An attached program. The kernel detaches it when its last descriptor is closed, or when this is
/// dropped, unless it is to [outlast](Link::outlast) this.
pub struct Link {
    fd: OwnedFd,
    outlasts: bool,
}

impl Link {
    /// Takes one that a former process made, which need not be one. It outlasts this.
    pub fn adopt(fd: OwnedFd) -> Link {
        Link { fd, outlasts: true }
    }

    /// Has it stay when this is dropped, as long as another descriptor is open.
    pub fn outlast(&mut self) {
        self.outlasts = true;
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the index of the interface that the program is attached to. An error if this is no
    /// link of an XDP program; 0 if it is attached to none any more.
    pub fn interface(&self) -> io::Result<u32> {
        let mut info = LinkInfo::default();
        let mut attributes = GetInfo {
            object: self.fd.as_raw_fd() as u32,
            len: size_of::<LinkInfo>() as u32,
            info: &mut info,
        };
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
        match info.kind {
            BPF_LINK_TYPE_XDP => Ok(info.interface),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Puts another program in the place of the one that is attached. No frame passes in between.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let (link, program) = (self.fd.as_raw_fd() as u32, program.as_raw_fd() as u32);
        let mut attributes = LinkUpdate { link, program, flags: 0, old_program: 0 };
        bpf(BPF_LINK_UPDATE, &mut attributes).map(drop)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.outlasts {
            detach(self.fd.as_fd());
        }
    }
}

/// Detaches the program of a link, whoever else has it. Closing would do, were there no child on
/// its way to exec, which has the descriptor, too.
pub fn detach(link: BorrowedFd<'_>) {
    let _ = bpf(BPF_LINK_DETACH, &mut LinkDetach { link: link.as_raw_fd() as u32 });
}

/// Attaches a program to an interface.
pub fn attach(program: BorrowedFd<'_>, interface: u32, hook: Hook) -> io::Result<Link> {
    let program = program.as_raw_fd() as u32;
    let mut attributes =
        LinkCreate { program, interface, attach_type: BPF_XDP, flags: hook.flags() };
    bpf_fd(BPF_LINK_CREATE, &mut attributes).map(|fd| Link { fd, outlasts: false })
}

#[cfg(test)]
pub mod test_run {
    //! Runs a program on a frame, without an interface.
    use super::*;

    const BPF_PROG_TEST_RUN: c_long = 10;

    #[repr(C)]
    struct TestRun {
        program: u32,
        result: u32,
        len_in: u32,
        len_out: u32,
        data_in: *const u8,
        data_out: *mut u8,
        repeat: u32,
        duration: u32,
    }
    // SAFETY: no padding; made in `run` only, with pointers to what it borrows.
    unsafe impl Attributes for TestRun {}

    /// Runs the program on a frame of at least 14 bytes. Returns its verdict (`XDP_..`).
    pub fn run(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
        let mut out = vec![0; frame.len() + 256];
        let mut attributes = TestRun {
            program: program.as_raw_fd() as u32,
            result: u32::MAX,
            len_in: frame.len() as u32,
            len_out: out.len() as u32,
            data_in: frame.as_ptr(),
            data_out: out.as_mut_ptr(),
            repeat: 1,
            duration: 0,
        };
        bpf(BPF_PROG_TEST_RUN, &mut attributes).unwrap();
        assert_eq!(&out[..frame.len()], frame, "the program changes nothing");
        attributes.result
    }
}
