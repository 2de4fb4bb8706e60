//! Listening on endpoints as ZeroMQ does.

use super::{bounds::SOCKET_BUFFER, ipc, ipc::SocketFile, peer::Who};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with,
    sockopt::{
        set_ipv6_v6only, set_socket_keepalive, set_socket_recv_buffer_size, set_socket_reuseaddr,
        set_socket_send_buffer_size, set_tcp_keepidle, set_tcp_nodelay, socket_peercred,
    },
};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddress, UnixListener},
    },
    time::Duration,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// An idle connection is asked for a sign of life after this time: peers that vanished must not use
/// up descriptors.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// An endpoint that is listened on.
pub(super) struct Listener {
    socket: Socket,
    /// Removed at the end.
    _file: Option<SocketFile>,
}

enum Socket {
    Tcp(TcpListener),
    Ipc(UnixListener),
}

impl Listener {
    /// Listens on `endpoint`, which has the form of one. Returns where, wildcards resolved.
    pub(super) fn bind(endpoint: &str) -> io::Result<(Self, String)> {
        if let Some(address) = endpoint.strip_prefix("tcp://") {
            let listener = tcp(address)?;
            let bound = listener.local_addr()?;
            let name = match (bound, scope(address)) {
                (SocketAddr::V6(bound), Some(scope)) => {
                    format!("tcp://[{}%{scope}]:{}", bound.ip(), bound.port())
                }
                (bound, _) => format!("tcp://{bound}"),
            };
            return Ok((Self { socket: Socket::Tcp(listener), _file: None }, name));
        }
        let path = endpoint.strip_prefix("ipc://").unwrap_or(endpoint);
        if let Some(name) = path.strip_prefix('@') {
            let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name)?)?;
            listener.set_nonblocking(true)?;
            return Ok((Self { socket: Socket::Ipc(listener), _file: None }, endpoint.to_owned()));
        }
        let path = if path == "*" { ipc::free_path()? } else { path.into() };
        ipc::make_free(&path)?;
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let name = format!("ipc://{}", path.display());
        Ok((Self { socket: Socket::Ipc(listener), _file: SocketFile::of(path) }, name))
    }

    /// The next client, if there is one.
    pub(super) fn accept(&self) -> io::Result<(OwnedFd, Who)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(true)?;
                set_tcp_nodelay(&stream, true)?;
                set_socket_keepalive(&stream, true)?;
                set_tcp_keepidle(&stream, KEEPALIVE)?;
                Ok((stream.into(), Who::of_host(address)))
            }
            Socket::Ipc(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                set_socket_send_buffer_size(&stream, SOCKET_BUFFER)?;
                let peer = socket_peercred(&stream)?;
                Ok((stream.into(), Who::of_process(peer.pid.as_raw_pid(), peer.uid.as_raw())))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Ipc(listener) => listener.as_fd(),
        }
    }
}

/// The zone of an IPv6 address.
fn scope(address: &str) -> Option<&str> {
    let (host, _) = address.rsplit_once(':')?;
    host.trim_matches(['[', ']']).split_once('%').map(|(_, scope)| scope)
}

/// An address and a port, as they stand in an endpoint.
fn parse(address: &str) -> io::Result<SocketAddr> {
    let (host, port) = address.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let port =
        if port == "*" { 0 } else { port.parse().map_err(|_| io::ErrorKind::InvalidInput)? };
    if host == "*" {
        return Ok(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into());
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(SocketAddrV4::new(ip, port).into());
    }
    let nowhere = || io::Error::from(rustix::io::Errno::NODEV);
    let host = host.trim_matches(['[', ']']);
    let (ip, scope) = match host.split_once('%') {
        Some((ip, scope)) => (ip, scope),
        None => (host, ""),
    };
    let ip: Ipv6Addr = ip.parse().map_err(|_| nowhere())?;
    let scope = match scope {
        "" => 0,
        name => name.parse().or_else(|_| interface(name).map_err(|_| nowhere()))?,
    };
    Ok(SocketAddrV6::new(ip, port, 0, scope).into())
}

fn interface(name: &str) -> io::Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

fn tcp(address: &str) -> io::Result<TcpListener> {
    let address = parse(address)?;
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_socket_reuseaddr(&socket, true)?;
    // Connections have what the listener has.
    set_socket_recv_buffer_size(&socket, SOCKET_BUFFER)?;
    set_socket_send_buffer_size(&socket, SOCKET_BUFFER)?;
    if address.is_ipv6() {
        // The wildcard is of both families.
        set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_zeromq_reads_them() {
        for (text, expected) in [
            ("127.0.0.1:9999", "127.0.0.1:9999"),
            ("*:9999", "0.0.0.0:9999"),
            ("*:*", "0.0.0.0:0"),
            ("[::]:1", "[::]:1"),
            ("::1:1", "[::1]:1"),
            ("[fe80::1%lo]:1", "[fe80::1%1]:1"),
            ("[fe80::1%7]:1", "[fe80::1%7]:1"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
        }
        for bad in ["localhost:1", "eth0:1", "[fe80::1%no-such-link]:1", "1.2.3:1", ":1"] {
            assert_eq!(
                parse(bad).unwrap_err().raw_os_error(),
                Some(rustix::io::Errno::NODEV.raw_os_error()),
                "{bad}"
            );
        }
    }
}
