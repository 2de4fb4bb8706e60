//! The daemon's end of the API: ZeroMQ's protocol, served within bounds.
//!
//! One thread moves bytes ([`mover`]), and the one that calls [`Server::serve`] answers. The memory
//! that clients make us hold is bounded for all of them together ([`bounds`]). In libzmq it is not:
//! libzmq queues all that arrives before the program sees it.

use crate::{Caller, Envelope, Handler, endpoint::check_bindable};
use answering::{Answering, Turn};
use bind::Listener;
use exchange::Exchange;
use mover::Mover;
use place::{Place, reason};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

mod answering;
mod bind;
mod bounds;
mod exchange;
mod fair;
mod ipc;
mod mover;
mod peer;
mod place;

pub use crate::endpoint::BadEndpoint;
pub use bind::Kept;
pub use place::{Listening, ServerError};

/// Refuses an endpoint that [`Server::bind`] takes on no host.
pub fn check(endpoint: &str) -> Result<(), BadEndpoint> {
    check_bindable(endpoint)
}

/// A client whose connection the server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutClient {
    /// Caller of the connection.
    pub caller: Caller,
    /// Caller and reason, as text.
    pub text: String,
    /// True if it never came as far as a request: no client, or not one of ours.
    pub of_handshake: bool,
}

/// Answers REQ and DEALER sockets: one request, one reply, for any caller. Stops listening on drop.
pub struct Server {
    places: Vec<Place>,
    /// Hears of an endpoint that is listened on after all.
    listening: Box<dyn Fn(Listening<'_>) + Send + Sync>,
    connections: usize,
    /// Called at each turn, and a turn is taken so often at least.
    turn: Option<Turn>,
    /// Readable when the handler is called.
    call: Option<OwnedFd>,
    /// Hears of clients that are cut.
    cut: Box<dyn Fn(&CutClient) + Send + Sync>,
}

impl Server {
    /// Listens on all of `endpoints` or on none: `tcp://0.0.0.0:9999`, `tcp://*:9999`,
    /// `tcp://[::]:9999` (both families), `tcp://127.0.0.1:*` (a free port),
    /// `ipc:///run/butterfly.sock`, `ipc://@abstract`. Names of interfaces and hosts are the
    /// caller's to resolve.
    ///
    /// An ipc socket left behind by a process that died is replaced; one that is listened on is
    /// refused, and so is a file of any other kind.
    pub fn bind(endpoints: &[impl AsRef<str>]) -> Result<Self, ServerError> {
        let mut server = Self::of(endpoints)?;
        // Of a server that is dropped because one is refused, the others go with it.
        server.places.iter_mut().try_for_each(Place::bind)?;
        Ok(server)
    }

    /// Goes on with sockets of a process before, `kept` by endpoint, in which clients wait. Takes
    /// those that are what is wanted, with their files, which stay if this is dropped. All other
    /// endpoints are to be [bound](Self::bind_others) when what is left was let go.
    pub fn take_over(
        endpoints: &[impl AsRef<str>],
        kept: &mut BTreeMap<String, Kept>,
    ) -> Result<Self, ServerError> {
        let mut server = Self::of(endpoints)?;
        for place in &mut server.places {
            let Some(copy) = kept.get(&place.asked).and_then(|kept| kept.try_clone().ok()) else {
                continue;
            };
            match Listener::adopt(&place.asked, copy) {
                Ok((listener, bound)) => {
                    kept.remove(&place.asked);
                    listener.leave_file();
                    (place.listener, place.bound) = (Some(listener), bound);
                }
                Err(why) => tracing::error!(
                    "the socket that was kept for {} is not used: {}",
                    place.asked,
                    reason(&why)
                ),
            }
        }
        Ok(server)
    }

    /// Listens where it does not yet. Returns an error for each endpoint that is refused: those are
    /// tried again each second while it serves.
    pub fn bind_others(&mut self) -> Vec<ServerError> {
        let others = self.places.iter_mut().filter(|place| place.listener.is_none());
        others.filter_map(|place| place.bind().err()).collect()
    }

    /// Removes the file of a socket that is served no more, if it is still that socket's.
    pub fn remove_file(endpoint: &str, kept: Kept) {
        // One that is adopted is dropped with its file.
        drop(Listener::adopt(endpoint, kept));
    }

    /// A server that does not listen yet.
    fn of(endpoints: &[impl AsRef<str>]) -> Result<Self, ServerError> {
        endpoints.iter().try_for_each(|endpoint| check(endpoint.as_ref()))?;
        Ok(Self {
            places: endpoints.iter().map(|endpoint| Place::new(endpoint.as_ref())).collect(),
            listening: Box::new(|_| {}),
            connections: bounds::CONNECTIONS,
            turn: None,
            call: None,
            cut: Box::new(|cut| tracing::warn!("{}", cut.text)),
        })
    }

    /// Returns what it listens on.
    pub fn listening(&self) -> impl Iterator<Item = Listening<'_>> {
        self.places.iter().filter_map(Place::listening)
    }

    /// Returns the endpoints that are wanted and not listened on, as they were asked for.
    pub fn not_listening(&self) -> impl Iterator<Item = &str> {
        self.places.iter().filter(|place| place.listener.is_none()).map(|place| &*place.asked)
    }

    /// Returns all endpoints that are wanted, with wildcards resolved where it listens.
    pub fn wanted(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| match place.listener {
            Some(_) => &*place.bound,
            None => &*place.asked,
        })
    }

    /// Returns the endpoints on which it listens, with wildcards resolved.
    pub fn endpoints(&self) -> Vec<String> {
        self.listening().map(|it| it.bound.to_owned()).collect()
    }

    /// Leaves the files of ipc sockets when this is dropped: another process listens on with them.
    pub fn leave_files(&self) {
        self.places
            .iter()
            .filter_map(|place| place.listener.as_ref())
            .for_each(Listener::leave_file);
    }

    /// Has `listening` hear, in another thread than [`Self::serve`], of each endpoint that was
    /// refused and is listened on after all.
    pub fn on_listening(&mut self, listening: impl Fn(Listening<'_>) + Send + Sync + 'static) {
        self.listening = Box::new(listening);
    }

    /// Has `taken` called at each turn of [`Self::serve`], which takes one each `interval` even if
    /// nothing is asked.
    pub fn at_each_turn(&mut self, interval: Duration, taken: impl Fn() + Send + 'static) {
        self.turn = Some((interval, Box::new(taken)));
    }

    /// Has [`Handler::called`] called between two requests, in the thread of [`Self::serve`], when
    /// `file` becomes readable. It must not block readers. What it holds is read away before: of
    /// several calls in a row one may be carried out, and one that comes meanwhile is not lost.
    pub fn on_call(&mut self, file: OwnedFd) {
        self.call = Some(file);
    }

    /// Limits the connections at a time. When another client comes, one goes of the origin with
    /// most.
    pub fn at_most(&mut self, connections: usize) {
        self.connections = connections.clamp(1, bounds::CONNECTIONS);
    }

    /// Has `told` hear of each client that is cut, in another thread than [`Self::serve`].
    pub fn on_cut(&mut self, told: impl Fn(&CutClient) + Send + Sync + 'static) {
        self.cut = Box::new(told);
    }

    /// Answers requests until `stop` becomes readable, or `done` says so after a reply was made.
    ///
    /// Sleeps while no request waits. Of a multipart request the first part counts. A peer that
    /// does not take its reply loses it; no other client waits for it. Between two messages of a
    /// long request short ones of others are answered.
    pub fn serve<H: Handler>(
        &mut self,
        envelope: &mut Envelope<H>,
        stop: BorrowedFd<'_>,
        done: impl Fn(&H) -> bool,
    ) -> Result<(), ServerError> {
        let exchange = Exchange::new().map_err(io::Error::from)?;
        let (places, listening) = (&mut self.places, &*self.listening);
        let mut mover = Mover::new(places, &exchange, self.connections, &*self.cut, listening)?;
        std::thread::scope(|scope| {
            let exchange = &exchange;
            let moving =
                std::thread::Builder::new().name("api".into()).spawn_scoped(scope, move || {
                    let ended = mover.run();
                    exchange.break_off();
                    ended
                })?;
            let call = self.call.as_ref().map(AsFd::as_fd);
            let mut answering = Answering::new(exchange, envelope, call);
            let served = answering.run(stop, self.turn.as_ref(), done);
            exchange.finish();
            let moved = moving
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that moves bytes ended")));
            served.and(moved).map_err(Into::into)
        })
    }
}
