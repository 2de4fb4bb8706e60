//! The daemon's end of the API: ZeroMQ's protocol, served within bounds.
//!
//! One thread moves bytes ([`mover`]), and the one that calls [`Server::serve`] answers. The memory
//! that clients make us hold is bounded for all of them together ([`bounds`]). In libzmq it is not:
//! libzmq queues all that arrives before the program sees it.

use crate::{Caller, Envelope, Handler, Task, endpoint::check_bindable};
use bind::Listener;
use exchange::{Exchange, Job, Reply, heard};
use mover::Mover;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

mod bind;
mod bounds;
mod exchange;
mod fair;
mod ipc;
mod mover;
mod peer;

pub use crate::endpoint::BadEndpoint;

/// Refuses an endpoint that [`Server::bind`] takes on no host.
pub fn check(endpoint: &str) -> Result<(), BadEndpoint> {
    check_bindable(endpoint)
}

/// The API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An endpoint to which nothing can be bound.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// The endpoint cannot be bound.
    #[error("cannot listen on {endpoint}: {reason}; {advice}")]
    Bind {
        /// The endpoint as it was given.
        endpoint: String,
        /// Error of the system.
        reason: String,
        /// Advice for the operator.
        advice: &'static str,
    },
    /// The system does not let us wait for clients.
    #[error("the API cannot go on: {0}")]
    Io(#[from] io::Error),
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

/// Longest time between two turns, and the function that hears of each.
type Turn = (Duration, Box<dyn Fn() + Send>);

/// Answers REQ and DEALER sockets: one request, one reply, for any caller. Stops listening on drop.
pub struct Server {
    listeners: Vec<Listener>,
    /// Endpoints on which it listens, wildcards resolved.
    endpoints: Vec<String>,
    connections: usize,
    /// Called at each turn, and a turn is taken so often at least.
    turn: Option<Turn>,
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
        endpoints.iter().try_for_each(|endpoint| check(endpoint.as_ref()))?;
        let mut server = Self {
            listeners: Vec::new(),
            endpoints: Vec::new(),
            connections: bounds::CONNECTIONS,
            turn: None,
            cut: Box::new(|cut| tracing::warn!("{}", cut.text)),
        };
        // Of a server that is dropped because one is refused, the others go with it.
        for endpoint in endpoints {
            let endpoint = endpoint.as_ref();
            let (listener, bound) =
                Listener::bind(endpoint).map_err(|error| ServerError::Bind {
                    endpoint: endpoint.to_owned(),
                    reason: reason(&error),
                    advice: advice(&error),
                })?;
            server.listeners.push(listener);
            server.endpoints.push(bound);
        }
        Ok(server)
    }

    /// Returns the endpoints on which it listens, with wildcards resolved.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Has `taken` called at each turn of [`Self::serve`], which takes one each `interval` even if
    /// nothing is asked.
    pub fn at_each_turn(&mut self, interval: Duration, taken: impl Fn() + Send + 'static) {
        self.turn = Some((interval, Box::new(taken)));
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
        &self,
        envelope: &mut Envelope<H>,
        stop: BorrowedFd<'_>,
        done: impl Fn(&H) -> bool,
    ) -> Result<(), ServerError> {
        let exchange = Exchange::new().map_err(io::Error::from)?;
        let mut mover = Mover::new(&self.listeners, &exchange, self.connections, &*self.cut)?;
        std::thread::scope(|scope| {
            let exchange = &exchange;
            let moving =
                std::thread::Builder::new().name("api".into()).spawn_scoped(scope, move || {
                    let ended = mover.run();
                    exchange.break_off();
                    ended
                })?;
            let served = Answering { exchange, envelope, long: Vec::new(), next: 0 }.run(
                stop,
                self.turn.as_ref(),
                done,
            );
            exchange.finish();
            let moved = moving
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that moves bytes ended")));
            served.and(moved).map_err(Into::into)
        })
    }
}

/// The thread that answers.
struct Answering<'a, H> {
    exchange: &'a Exchange,
    envelope: &'a mut Envelope<H>,
    /// Requests that are long, each gone on with in turn.
    long: Vec<(Job, Task)>,
    next: usize,
}

impl<H: Handler> Answering<'_, H> {
    fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        turn: Option<&Turn>,
        done: impl Fn(&H) -> bool,
    ) -> io::Result<()> {
        loop {
            if let Some((_, taken)) = turn {
                taken();
            }
            let short = self.answer_short();
            if short && done(self.envelope.handler()) {
                return Ok(());
            }
            self.take_long();
            let long = self.go_on();
            if done(self.envelope.handler()) {
                // What asked for the end is carried out to its own.
                while !self.long.is_empty() && self.go_on() {}
                return Ok(());
            }
            let wait = if short || long {
                Some(Duration::ZERO)
            } else {
                turn.map(|(interval, _)| *interval)
            };
            if self.sleep(stop, wait)? {
                return Ok(());
            }
        }
    }

    /// Sleeps until there is something to do; whether to stop.
    fn sleep(&self, stop: BorrowedFd<'_>, wait: Option<Duration>) -> io::Result<bool> {
        let mut watched = [
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.exchange.to_answer(), PollFlags::IN),
        ];
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [stopped, asked] = watched.map(|watched| !watched.revents().is_empty());
        if asked {
            heard(self.exchange.to_answer());
        }
        Ok(stopped || self.exchange.is_broken())
    }

    /// Answers one short request, if there is one.
    fn answer_short(&mut self) -> bool {
        let Some(Job { peer, caller, route, body, room, .. }) = self.exchange.next_short() else {
            return false;
        };
        let reply = self.envelope.answer_to(body, Some(caller));
        self.exchange.answered(room, Reply { peer, route, body: reply });
        true
    }

    /// Begins with the long requests that came.
    fn take_long(&mut self) {
        while let Some(mut job) = self.exchange.next_long() {
            let task = self.envelope.begin_task(std::mem::take(&mut job.body), Some(job.caller));
            self.long.push((job, task));
        }
    }

    /// Goes on with one long request, if there is one and memory for its reply.
    fn go_on(&mut self) -> bool {
        if self.long.is_empty() || !self.exchange.may_go_on() {
            return false;
        }
        let so_far: usize = self.long.iter().map(|(_, task)| task.reply_so_far()).sum();
        let number = if so_far > bounds::SIDE_BY_SIDE { 0 } else { self.next % self.long.len() };
        let Some((_, task)) = self.long.get_mut(number) else { return false };
        let end = Instant::now() + bounds::SLICE;
        let before = task.reply_so_far();
        if let Some(reply) = self.envelope.go_on(task, || Instant::now() < end) {
            let (Job { peer, route, room, .. }, task) = self.long.remove(number);
            // Its memory is free before another client gets the room.
            drop(task);
            self.exchange.set_so_far(so_far - before);
            self.exchange.answered(room, Reply { peer, route, body: reply });
        } else {
            self.exchange.set_so_far(so_far - before + task.reply_so_far());
        }
        self.next = number + 1;
        true
    }
}

/// Returns the system's error, without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn advice(error: &io::Error) -> &'static str {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    match number {
        Some(Errno::ADDRINUSE) => {
            "another process listens there, perhaps another butterflyd, or another endpoint of this one, as [::] does for IPv4, too: \
             stop that process or choose another endpoint"
        }
        Some(Errno::ADDRNOTAVAIL | Errno::NODEV) => "no interface of this host has that address",
        Some(Errno::ACCESS) => "this user may not listen there",
        Some(Errno::NOENT) => "create the directory first",
        Some(Errno::NOTSOCK) => {
            "that path is no socket, and what it is will not be removed: choose another"
        }
        _ => "an endpoint looks like tcp://0.0.0.0:9999 or ipc:///run/butterfly.sock",
    }
}
