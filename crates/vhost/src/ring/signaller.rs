//! Signals an eventfd through asynchronous I/O, which never waits for the eventfd's other users.
//! [`super::call`] says why.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

/// `struct iocb` of linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent([u64; 4]);

/// The start of the completion ring, which the kernel maps at the context's address; what libaio
/// and fio read too.
#[repr(C)]
struct RingHeader {
    id: u32,
    nr: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compat: u32,
    incompat: u32,
    header_len: u32,
}

const RING_MAGIC: u32 = 0xa10a_10a1;
const PWRITE: u16 = 1;
const RESFD: u32 = 1;

/// An asynchronous I/O context with `/dev/null` as its target. Used by one thread at a time.
pub(super) struct Signaller {
    context: libc::c_ulong,
    null: OwnedFd,
}

impl Signaller {
    pub fn new() -> io::Result<Signaller> {
        let null = OpenOptions::new().write(true).open("/dev/null")?.into();
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup writes one context number to the pointer.
        if unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Signaller { context, null })
    }

    /// Adds 1 to an eventfd, or leaves it at its maximum. Returns whether the kernel did it.
    pub fn signal(&mut self, eventfd: &OwnedFd) -> bool {
        let mut iocb = Iocb {
            opcode: PWRITE,
            fd: self.null.as_raw_fd() as u32,
            flags: RESFD,
            result_fd: eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let mut list: *mut Iocb = &raw mut iocb;
        // SAFETY: the context is ours; the list has one iocb, which the kernel copies before the
        // call returns. It has no buffer (length 0), and all descriptors are open.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, &raw mut list) };
        self.reap();
        submitted == 1
    }

    /// Takes completions out of the ring, unseen: without that it would fill up.
    fn reap(&mut self) {
        let ring: *const RingHeader = ptr::with_exposed_provenance(self.context as usize);
        // SAFETY: the kernel maps the ring readable and writable at the context's address until
        // io_destroy.
        unsafe {
            if (*ring).magic == RING_MAGIC && (*ring).incompat == 0 {
                let tail = (*ring).tail.load(Ordering::Acquire);
                (*ring).head.store(tail, Ordering::Release);
                return;
            }
        }
        let mut events = [IoEvent::default(); 8];
        let mut zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for eight events; a time-out of zero.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                8,
                events.as_mut_ptr(),
                &raw mut zero,
            )
        };
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: made by io_setup and destroyed once.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
