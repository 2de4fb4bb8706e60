//! Endpoints that are asked for, and what is listened on.

use super::{bind::Listener, ipc};
use crate::endpoint::BadEndpoint;
use rustix::io::Errno;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

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

/// An endpoint that is listened on.
#[derive(Clone, Copy, Debug)]
pub struct Listening<'a> {
    /// The endpoint as it was asked for.
    pub asked: &'a str,
    /// The endpoint with wildcards resolved.
    pub bound: &'a str,
    /// The socket.
    pub socket: BorrowedFd<'a>,
    /// Path of the file of an ipc socket.
    pub path: Option<&'a Path>,
}

impl Listening<'_> {
    /// Opens the file of an ipc socket, for nothing but to know it again.
    pub fn file(&self) -> io::Result<Option<OwnedFd>> {
        self.path.map(ipc::open).transpose()
    }
}

/// An endpoint that was asked for.
pub(super) struct Place {
    pub(super) asked: String,
    /// The endpoint with wildcards resolved, once it is listened on.
    pub(super) bound: String,
    pub(super) listener: Option<Listener>,
}

impl Place {
    pub(super) fn new(asked: &str) -> Place {
        Place { asked: asked.to_owned(), bound: String::new(), listener: None }
    }

    pub(super) fn bind(&mut self) -> Result<(), ServerError> {
        let refused = |error: io::Error| ServerError::Bind {
            endpoint: self.asked.clone(),
            reason: reason(&error),
            advice: advice(&error),
        };
        let (listener, bound) = Listener::bind(&self.asked).map_err(refused)?;
        (self.listener, self.bound) = (Some(listener), bound);
        Ok(())
    }

    pub(super) fn listening(&self) -> Option<Listening<'_>> {
        let listener = self.listener.as_ref()?;
        let (asked, bound) = (&*self.asked, &*self.bound);
        Some(Listening { asked, bound, socket: listener.as_fd(), path: listener.path() })
    }
}

/// Returns the system's error, without its number.
pub(super) fn reason(error: &io::Error) -> String {
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
