//! The requests that rustix does not know: making a TAP device, counting queues, packet sockets.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
};

use rustix::ioctl::{self, opcode};

/// `struct ifreq` with flags.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct InterfaceData<T> {
    name: [u8; libc::IFNAMSIZ],
    data: *mut T,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<InterfaceFlags>() == size_of::<libc::ifreq>());
const _: () = assert!(size_of::<InterfaceData<u8>>() == size_of::<libc::ifreq>());

/// An interface's name as the kernel takes it; `None` if it cannot be one.
fn interface_name(name: &str) -> Option<[u8; libc::IFNAMSIZ]> {
    let mut bytes = [0; libc::IFNAMSIZ];
    // The last byte stays zero.
    bytes.get_mut(..libc::IFNAMSIZ - 1)?.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    (!name.is_empty() && !name.contains('\0')).then_some(bytes)
}

/// A name that must be new, or one that may be taken over from a device that no process uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TapName {
    /// Must be new.
    New,
    /// May be taken over.
    Any,
}

/// Makes `tun` (an open `/dev/net/tun`) a TAP device, frames preceded by a virtio-net header of
/// `header` bytes in the host's byte order and complete: no offloads. Returns the name it got; `%d`
/// in `name` is a number of the kernel's choice.
pub fn make_tap(
    tun: BorrowedFd<'_>,
    name: &str,
    how: TapName,
    header: c_int,
) -> io::Result<String> {
    const TUNSETIFF: ioctl::Opcode = opcode::write::<c_int>(b'T', 202);
    const TUNSETVNETHDRSZ: ioctl::Opcode = opcode::write::<c_int>(b'T', 216);
    let name = interface_name(name).ok_or(io::ErrorKind::InvalidInput)?;
    let exclusive = if how == TapName::New { libc::IFF_TUN_EXCL } else { 0 };
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | exclusive) as u16;
    let mut request = InterfaceFlags { name, flags, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, whose size and layout `InterfaceFlags`
    // has (asserted above).
    unsafe { ioctl::ioctl(tun, ioctl::Updater::<TUNSETIFF, _>::new(&mut request)) }?;
    set_tap_offloads(tun, 0)?;
    // SAFETY: TUNSETVNETHDRSZ reads an `int`.
    unsafe { ioctl::ioctl(tun, ioctl::Setter::<TUNSETVNETHDRSZ, c_int>::new(header)) }?;
    read_name(&request)
}

/// Says what the reader of a TAP device takes (`TUN_F_*`).
pub fn set_tap_offloads(tun: BorrowedFd<'_>, takes: usize) -> io::Result<()> {
    const TUNSETOFFLOAD: ioctl::Opcode = opcode::write::<c_int>(b'T', 208);
    // SAFETY: TUNSETOFFLOAD takes an integer, not a pointer.
    Ok(unsafe { ioctl::ioctl(tun, ioctl::IntegerSetter::<TUNSETOFFLOAD>::new_usize(takes)) }?)
}

/// The name that a TAP device has now, in whatever network namespace it is.
pub fn tap_name(tun: BorrowedFd<'_>) -> io::Result<String> {
    const TUNGETIFF: ioctl::Opcode = opcode::read::<c_int>(b'T', 210);
    let mut request = InterfaceFlags { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    // SAFETY: TUNGETIFF writes a `struct ifreq`, whose size and layout `InterfaceFlags` has
    // (asserted above).
    unsafe { ioctl::ioctl(tun, ioctl::Updater::<TUNGETIFF, _>::new(&mut request)) }?;
    read_name(&request)
}

fn read_name(request: &InterfaceFlags) -> io::Result<String> {
    let name = request.name.split(|byte| *byte == 0).next().unwrap_or(&[]);
    String::from_utf8(name.to_vec()).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns how many queues an interface has in use, to receive and to transmit; `None` if its
/// driver does not tell.
pub fn queues(name: &str) -> Option<[u32; 2]> {
    // `struct ethtool_channels`: command, four maxima, then receive, transmit, other, combined.
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    const SIOCETHTOOL: ioctl::Opcode = 0x8946;
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
            .ok()?;
    let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut request = InterfaceData {
        name: interface_name(name)?,
        data: ptr::from_mut(&mut channels),
        rest: [0; 16],
    };
    // SAFETY: SIOCETHTOOL reads a `struct ifreq`, whose size and layout `InterfaceData` has
    // (asserted above). It points to nine 32-bit numbers that live until the call returns: what
    // ETHTOOL_GCHANNELS reads and writes.
    unsafe { ioctl::ioctl(&socket, ioctl::Updater::<SIOCETHTOOL, _>::new(&mut request)) }.ok()?;
    let [.., receive, transmit, _, combined] = channels;
    Some([receive, transmit].map(|queues| queues.saturating_add(combined)))
        .filter(|[receive, _]| *receive > 0)
}

/// Has a card leave VLAN tags in the frames that it receives. An error if it takes them off all the
/// same.
pub fn keep_tags(name: &str) -> io::Result<()> {
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const ETHTOOL_SFLAGS: u32 = 0x26;
    const ETH_FLAG_RXVLAN: u32 = 1 << 8;
    let flags = match ethtool_value(name, ETHTOOL_GFLAGS, 0) {
        Ok(flags) => flags,
        // A driver without such flags takes nothing off.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error),
    };
    if flags & ETH_FLAG_RXVLAN == 0 {
        return Ok(());
    }
    ethtool_value(name, ETHTOOL_SFLAGS, flags & !ETH_FLAG_RXVLAN)?;
    // The driver has the last word.
    match ethtool_value(name, ETHTOOL_GFLAGS, 0)? & ETH_FLAG_RXVLAN {
        0 => Ok(()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Asks or sets a number of an interface by an ethtool command.
fn ethtool_value(name: &str, command: u32, value: u32) -> io::Result<u32> {
    const SIOCETHTOOL: ioctl::Opcode = 0x8946;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let mut pair = [command, value];
    let name = interface_name(name).ok_or(io::ErrorKind::InvalidInput)?;
    let mut request = InterfaceData { name, data: ptr::from_mut(&mut pair), rest: [0; 16] };
    // SAFETY: SIOCETHTOOL reads a `struct ifreq`, whose size and layout `InterfaceData` has
    // (asserted above). It points to two 32-bit numbers that live until the call returns: a
    // `struct ethtool_value`, which both commands read and write.
    unsafe { ioctl::ioctl(&socket, ioctl::Updater::<SIOCETHTOOL, _>::new(&mut request)) }?;
    let [_, value] = pair;
    Ok(value)
}

/// Sets a socket option whose value is a `T`.
fn set_option<T>(socket: impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from `value`, which has them; all `T` used below are C
    // structures without padding.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            len,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One instruction of a classic socket filter (`struct sock_filter`): code, jumps if true and if
/// false, operand.
pub type FilterCode = (u16, u8, u8, u32);

/// Lets only frames that `program` accepts into a socket.
pub fn attach_filter(socket: impl AsFd, program: &[FilterCode]) -> io::Result<()> {
    let mut code: Vec<_> = program
        .iter()
        .map(|(code, jt, jf, k)| libc::sock_filter { code: *code, jt: *jt, jf: *jf, k: *k })
        .collect();
    let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    // `code` lives until the call returns; the kernel copies it.
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Binds a packet socket to an interface, to receive frames of every protocol.
pub fn bind_packet(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    // SAFETY: a `sockaddr_ll` is plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface as c_int;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from `address`, which has them.
    let result = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps frames that leave the host out of a packet socket.
pub fn ignore_outgoing(socket: BorrowedFd<'_>) -> io::Result<()> {
    const PACKET_IGNORE_OUTGOING: c_int = 23;
    let on: c_int = 1;
    set_option(socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &on)
}

/// Has the interface receive frames for all addresses, as long as this packet socket is open.
pub fn receive_all(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Returns how many frames a packet socket had no room for since the last call (packet(7)).
pub fn packet_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = mem::size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `counts`, which has them, and `len`; every
    // value of them is one of `tpacket_stats`, two numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            ptr::from_mut(&mut counts).cast(),
            &mut len,
        )
    };
    if result == 0 { Ok(counts.tp_drops) } else { Err(io::Error::last_os_error()) }
}

/// Adds or ends a packet socket's membership of a group address, which makes its interface listen
/// to it. The kernel counts how often one was added, and ends all with the socket.
pub fn set_membership(
    socket: BorrowedFd<'_>,
    interface: u32,
    group: [u8; 6],
    member: bool,
) -> io::Result<()> {
    let [a, b, c, d, e, f] = group;
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: [a, b, c, d, e, f, 0, 0],
    };
    let option = if member { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_option(socket, libc::SOL_PACKET, option, &request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_the_kernels_sixteen_bytes_with_its_end() {
        assert_eq!(interface_name("eth0").unwrap()[..5], *b"eth0\0");
        assert!(interface_name("fifteen-letters").is_some());
        assert!(interface_name("sixteen-letters!").is_none());
        assert!(interface_name("").is_none());
        assert!(interface_name("a\0b").is_none());
    }
}
