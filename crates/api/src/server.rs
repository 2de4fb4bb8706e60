//! The ZeroMQ end of the daemon.

use crate::{
    Caller, Envelope, Handler, MAX_FRAME,
    endpoint::{check_bindable, is_ipv6},
};
use ipc::SocketFile;
use std::{
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};
use tracing::warn;
use zmq::{Context, PollEvents, Socket, SocketType};

mod ipc;

/// Requests of one client that may wait, and replies to it.
const WAITING: i32 = 16;

/// How long a reply may take to leave once the server has stopped.
const LINGER: Duration = Duration::from_secs(1);
/// Most parts of a way back, delimiter included.
const MAX_HOPS: usize = 16;
/// An idle connection is asked for a sign of life after this time: peers that vanished must not use up descriptors.
const KEEPALIVE: Duration = Duration::from_secs(60);

pub use crate::endpoint::BadEndpoint;

/// Refuses an endpoint that [`Server::bind`] takes on no host.
pub fn check(endpoint: &str) -> Result<(), BadEndpoint> {
    check_bindable(endpoint)
}

/// The API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nothing can be bound to such an endpoint.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// The endpoint cannot be bound.
    #[error("cannot listen on {endpoint}: {reason}; {advice}")]
    Bind {
        /// As it was given.
        endpoint: String,
        /// What the system said.
        reason: zmq::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// ZeroMQ itself failed.
    #[error("ZeroMQ failed: {0}")]
    Zmq(#[from] zmq::Error),
}

/// Answers REQ sockets: one request, one reply, whoever asks. Dropped, it stops listening.
///
/// It is a ROUTER that keeps the envelopes itself. ZeroMQ's own REP has one state for all peers: one that breaks off in the middle of
/// a message can make it swallow the next request of another (seen with libzmq 4.3.4).
pub struct Server {
    socket: Socket,
    /// Where it listens, wildcards resolved.
    endpoints: Vec<String>,
    /// Removed at the end, as ZeroMQ does not.
    files: Vec<SocketFile>,
    /// Called at each turn, and a turn is taken so often at least.
    turn: Option<(Duration, Box<dyn Fn() + Send>)>,
}

impl Server {
    /// Listens on all of `endpoints` or on none: `tcp://0.0.0.0:9999`, `tcp://*:9999`, `tcp://[::]:9999` (both families),
    /// `tcp://127.0.0.1:*` (a free port), `ipc:///run/butterfly.sock`, `ipc://@abstract`. Names of interfaces and hosts are the caller's
    /// to resolve: not every ZeroMQ does.
    ///
    /// An ipc socket left behind by a process that died is replaced; one that is listened on is refused, and so is a file
    /// of any other kind.
    pub fn bind(endpoints: &[impl AsRef<str>]) -> Result<Self, ServerError> {
        endpoints.iter().try_for_each(|endpoint| check(endpoint.as_ref()))?;
        let socket = Context::new().socket(SocketType::ROUTER)?;
        socket.set_linger(milliseconds(LINGER))?;
        socket.set_maxmsgsize(MAX_FRAME as i64)?;
        // Of each client. What waits is in memory: more than that waits where it is sent.
        socket.set_rcvhwm(WAITING)?;
        socket.set_sndhwm(WAITING)?;
        socket.set_tcp_keepalive(1)?;
        socket.set_tcp_keepalive_idle(KEEPALIVE.as_secs() as i32)?;
        let mut server = Self { socket, endpoints: Vec::new(), files: Vec::new(), turn: None };
        // Of a server that is dropped because one is refused, the others go with it.
        for endpoint in endpoints {
            let endpoint = endpoint.as_ref();
            server.add(endpoint).map_err(|reason| ServerError::Bind {
                endpoint: endpoint.to_owned(),
                reason,
                advice: advice(reason),
            })?;
        }
        Ok(server)
    }

    fn add(&mut self, endpoint: &str) -> Result<(), zmq::Error> {
        // ZeroMQ removes whatever is at an ipc path, our own included.
        ipc::check_replaceable(endpoint)?;
        self.socket.set_ipv6(is_ipv6(endpoint))?;
        self.socket.bind(endpoint)?;
        let bound = last_endpoint(&self.socket)?;
        self.files.extend(SocketFile::of(&bound));
        self.endpoints.push(bound);
        Ok(())
    }

    /// Where it listens: the endpoints with wildcards resolved.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Has `taken` called at each turn of [`Self::serve`], which takes one each `interval` even if nothing is asked.
    pub fn at_each_turn(&mut self, interval: Duration, taken: impl Fn() + Send + 'static) {
        self.turn = Some((interval, Box::new(taken)));
    }

    /// Answers requests until `stop` becomes readable, or `done` says so after a reply was sent.
    ///
    /// Sleeps while nothing is asked. Of a multipart request the first part counts. A peer that does not take its reply
    /// loses it; nobody else waits for it.
    pub fn serve<H: Handler>(
        &self,
        envelope: &mut Envelope<H>,
        stop: BorrowedFd<'_>,
        done: impl Fn(&H) -> bool,
    ) -> Result<(), ServerError> {
        let wait = self.turn.as_ref().map_or(-1, |(interval, _)| milliseconds(*interval).max(1).into());
        loop {
            if let Some((_, taken)) = &self.turn {
                taken();
            }
            let mut items =
                [zmq::PollItem::from_fd(stop.as_raw_fd(), PollEvents::POLLIN), self.socket.as_poll_item(PollEvents::POLLIN)];
            match zmq::poll(&mut items, wait) {
                Err(zmq::Error::EINTR) => continue,
                other => other?,
            };
            if !items[0].get_revents().is_empty() {
                return Ok(());
            }
            if self.exchange(envelope)? && done(envelope.handler()) {
                return Ok(());
            }
        }
    }

    /// Answers one request, if there is one.
    fn exchange<H: Handler>(&self, envelope: &mut Envelope<H>) -> Result<bool, ServerError> {
        let Some(Request { route, body, caller }) = self.receive()? else { return Ok(false) };
        let reply = envelope.answer_to(&body, caller);
        for part in route {
            match self.socket.send(part, zmq::DONTWAIT | zmq::SNDMORE) {
                // Parts for a peer that went are taken and thrown away by the socket.
                Ok(()) => {}
                Err(zmq::Error::EAGAIN | zmq::Error::EHOSTUNREACH | zmq::Error::EINTR) => {
                    warn!("a client went before its reply");
                    return Ok(true);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match self.socket.send(reply, zmq::DONTWAIT) {
            Ok(()) => {}
            Err(zmq::Error::EAGAIN | zmq::Error::EHOSTUNREACH | zmq::Error::EINTR) => {
                warn!("a client went before its reply");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Takes one message, whole, and finds the request in it. What is not a request is taken and forgotten.
    fn receive(&self) -> Result<Option<Request>, ServerError> {
        let first = match self.socket.recv_bytes(zmq::DONTWAIT) {
            Ok(first) => first,
            Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut route = vec![first];
        let mut body = None;
        let mut delimited = false;
        // The other parts arrived with the first: nothing waits here.
        while self.socket.get_rcvmore()? {
            let part = self.socket.recv_msg(0)?;
            if delimited {
                body.get_or_insert(part);
            } else {
                delimited = part.is_empty();
                if route.len() <= MAX_HOPS {
                    route.push(part.to_vec());
                }
            }
        }
        Ok(match body {
            Some(mut body) if route.len() <= MAX_HOPS => {
                // The socket makes the first part up itself, and knows nothing of it.
                let caller = body.gets("Peer-Address").and_then(Caller::of);
                Some(Request { route, body, caller })
            }
            _ => None,
        })
    }
}

/// A request and the way back: the peer's identity, those of proxies in between, and the empty delimiter (ZMTP 28/REQREP).
struct Request {
    route: Vec<Vec<u8>>,
    body: zmq::Message,
    caller: Option<Caller>,
}

fn last_endpoint(socket: &Socket) -> Result<String, zmq::Error> {
    let endpoint = socket.get_last_endpoint()?;
    Ok(endpoint.unwrap_or_else(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

fn advice(reason: zmq::Error) -> &'static str {
    match reason {
        zmq::Error::EADDRINUSE => {
            "another process listens there, perhaps another butterflyd, or another endpoint of this one, as [::] does for IPv4, too: \
             stop that process or choose another endpoint"
        }
        zmq::Error::EADDRNOTAVAIL | zmq::Error::ENODEV => "no interface of this host has that address",
        zmq::Error::EACCES => "this user may not listen there",
        zmq::Error::ENOENT => "create the directory first",
        zmq::Error::ENOTSOCK => "that path is no socket, and what it is will not be removed: choose another",
        _ => "an endpoint looks like tcp://0.0.0.0:9999 or ipc:///run/butterfly.sock",
    }
}
