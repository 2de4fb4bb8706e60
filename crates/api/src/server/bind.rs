//! Listening on endpoints as ZeroMQ does.

use super::{bounds::SOCKET_BUFFER, ipc, ipc::SocketFile, peer::Who};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with,
    sockopt::{
        set_ipv6_v6only, set_socket_keepalive, set_socket_recv_buffer_size, set_socket_reuseaddr,
        set_socket_send_buffer_size, set_tcp_keepidle, set_tcp_nodelay, socket_acceptconn,
        socket_domain, socket_peercred, socket_type,
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
    path::Path,
    time::Duration,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// An idle connection is asked for a sign of life after this time: peers that vanished must not use
/// up descriptors.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A socket on which a process before listened.
#[derive(Debug)]
pub struct Kept {
    /// The socket.
    pub socket: OwnedFd,
    /// The file of an ipc socket, as the process before opened it.
    pub file: Option<OwnedFd>,
}

impl Kept {
    /// Returns a copy.
    pub fn try_clone(&self) -> io::Result<Kept> {
        let file = self.file.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Kept { socket: self.socket.try_clone()?, file })
    }
}

/// An endpoint that is listened on.
pub(super) struct Listener {
    socket: Socket,
    /// Removed at the end.
    file: Option<SocketFile>,
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
            let name = name(address, listener.local_addr()?);
            return Ok((Self { socket: Socket::Tcp(listener), file: None }, name));
        }
        let path = endpoint.strip_prefix("ipc://").unwrap_or(endpoint);
        if let Some(name) = path.strip_prefix('@') {
            let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name)?)?;
            listener.set_nonblocking(true)?;
            return Ok((Self { socket: Socket::Ipc(listener), file: None }, endpoint.to_owned()));
        }
        let path = if path == "*" { ipc::free_path()? } else { path.into() };
        ipc::make_free(&path)?;
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let name = format!("ipc://{}", path.display());
        Ok((Self { socket: Socket::Ipc(listener), file: SocketFile::of(path) }, name))
    }

    /// Goes on with a socket on which a process before listened for `endpoint`. Returns where, or
    /// why that is not what this is.
    pub(super) fn adopt(endpoint: &str, kept: Kept) -> io::Result<(Self, String)> {
        let Kept { socket, file } = kept;
        let other = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
            return Err(other("it does not listen"));
        }
        let family = socket_domain(&socket)?;
        if let Some(address) = endpoint.strip_prefix("tcp://") {
            if family != AddressFamily::INET && family != AddressFamily::INET6 {
                return Err(other("it is no TCP socket"));
            }
            let (wanted, listener) = (parse(address)?, TcpListener::from(socket));
            let bound = listener.local_addr()?;
            if !is_as_wanted(wanted, bound) {
                return Err(other("it has another address"));
            }
            // Also for what this program wants otherwise than the one before.
            listen(&listener, BACKLOG)?;
            listener.set_nonblocking(true)?;
            let name = name(address, bound);
            return Ok((Self { socket: Socket::Tcp(listener), file: None }, name));
        }
        if family != AddressFamily::UNIX {
            return Err(other("it is no Unix socket"));
        }
        let listener = UnixListener::from(socket);
        let bound = listener.local_addr()?;
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let path = endpoint.strip_prefix("ipc://").unwrap_or(endpoint);
        if let Some(name) = path.strip_prefix('@') {
            if bound.as_abstract_name() != Some(name.as_bytes()) {
                return Err(other("it has another name"));
            }
            return Ok((Self { socket: Socket::Ipc(listener), file: None }, endpoint.to_owned()));
        }
        let at = bound.as_pathname().ok_or_else(|| other("it has no path"))?;
        let wanted = if path == "*" { ipc::is_free_path(at) } else { at == Path::new(path) };
        if !wanted {
            return Err(other("it has another path"));
        }
        let file = file.and_then(|file| SocketFile::kept(at.to_owned(), &file));
        let file = file.ok_or_else(|| other("its file is not there any more"))?;
        let name = format!("ipc://{}", at.display());
        Ok((Self { socket: Socket::Ipc(listener), file: Some(file) }, name))
    }

    /// Path of the file of its socket.
    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(SocketFile::path)
    }

    /// Leaves the file of its socket where it is from now on.
    pub(super) fn leave_file(&self) {
        if let Some(file) = &self.file {
            file.leave();
        }
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

/// Returns the endpoint of a socket that was bound to an address, as it was asked for.
fn name(asked: &str, bound: SocketAddr) -> String {
    match (bound, scope(asked)) {
        (SocketAddr::V6(bound), Some(scope)) => {
            format!("tcp://[{}%{scope}]:{}", bound.ip(), bound.port())
        }
        (bound, _) => format!("tcp://{bound}"),
    }
}

/// True if a socket is bound to what is wanted now. Port 0 wants any.
fn is_as_wanted(wanted: SocketAddr, bound: SocketAddr) -> bool {
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    wanted.ip() == bound.ip()
        && scope(wanted) == scope(bound)
        && (wanted.port() == 0 || wanted.port() == bound.port())
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

    fn adopted(endpoint: &str, socket: impl Into<OwnedFd>) -> Result<String, String> {
        let kept = Kept { socket: socket.into(), file: None };
        let adopted = Listener::adopt(endpoint, kept);
        adopted.map(|(_, name)| name).map_err(|why| why.to_string())
    }

    /// A socket that the system gave another number is no other one; all else is.
    #[test]
    fn only_a_socket_that_listens_where_it_shall_is_adopted() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let copy = || tcp.try_clone().unwrap();
        let here = format!("tcp://127.0.0.1:{port}");
        assert_eq!(adopted(&here, copy()), Ok(here.clone()));
        assert_eq!(adopted("tcp://127.0.0.1:*", copy()), Ok(here.clone()));
        for elsewhere in ["tcp://127.0.0.1:1", "tcp://0.0.0.0:*", "tcp://[::1]:*"] {
            assert_eq!(adopted(elsewhere, copy()).unwrap_err(), "it has another address");
        }
        assert_eq!(adopted("ipc://@a", copy()).unwrap_err(), "it is no Unix socket");
        let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(adopted(&here, stream).unwrap_err(), "it does not listen");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(adopted(&here, datagrams).unwrap_err(), "it does not listen");
        let file = tempfile::tempfile().unwrap();
        assert!(adopted(&here, file).is_err());

        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("api");
        let unix = UnixListener::bind(&path).unwrap();
        let endpoint = format!("ipc://{}", path.display());
        let copy = || OwnedFd::from(unix.try_clone().unwrap());
        assert_eq!(adopted(&here, copy()).unwrap_err(), "it is no TCP socket");
        assert_eq!(adopted("ipc:///elsewhere", copy()).unwrap_err(), "it has another path");
        assert_eq!(adopted("ipc://@a", copy()).unwrap_err(), "it has another name");
        assert_eq!(adopted("ipc://*", copy()).unwrap_err(), "it has another path");
        let gone = "its file is not there any more";
        assert_eq!(adopted(&endpoint, copy()).unwrap_err(), gone);
        let file = || ipc::open(&path).unwrap();
        let kept = Kept { socket: copy(), file: Some(file()) };
        let (listener, name) = Listener::adopt(&endpoint, kept).unwrap();
        assert_eq!((name, listener.path()), (endpoint.clone(), Some(&*path)));
        listener.leave_file();
        drop(listener);
        let former = file();
        std::fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        let kept = Kept { socket: copy(), file: Some(former) };
        let Err(why) = Listener::adopt(&endpoint, kept) else { panic!("it is another file") };
        assert_eq!(why.to_string(), gone);
    }

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
