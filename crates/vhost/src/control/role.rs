//! Which side owns the socket.

/// Owner of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We listen, the front end connects.
    Server,
    /// The front end listens, we connect, again and again.
    Client,
}

impl Role {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}
