//! Bounds of the memory and time that all clients together may take, and each by itself.
//!
//! The sum stays below 64 MiB:
//!
//! - 16 for requests longer than [`ALLOWANCE`](crate::zmtp::ALLOWANCE),
//! - 16 for the reply that is being made,
//! - 8 for unread replies when it is begun and 16 for a batch's reply so far, or 24 for unread
//!   replies,
//! - 12 for a decoded message,
//! - 5 for what each connection has by itself.
//!
//! | bounded | by | beyond that |
//! |---|---|---|
//! | connections | 1,024; a 16th of the open files | the idlest of the origin with most is cut |
//! | a handshake | 10 s | cut (`client-refused`) |
//! | waiting requests of a connection | 16 and 2 KiB, or room for more | wait in its socket |
//! | room for longer ones, by announced length | 16 MiB for all | waits; the slow are cut |
//! | a message | 16 MiB and 1,024 parts | cut (`client-cut`) |
//! | a decoded message | 12 MiB, weighed before; one at a time | that message is refused |
//! | unread replies, with requests | 28 MiB before a long one, else 40 | the slow are cut |
//! | time of a message, or for a reply | 30 s, and a second for each 64 KiB | cut |
//!
//! The slow are clients below 256 KiB/s after a second (a tenth, if their origin holds 16 MiB),
//! while others wait. An origin is a host or a process. A daemon with few files has 16 connections
//! at least. The requests of a client that left are carried out.

use crate::MAX_FRAME;
use std::time::Duration;

/// Bytes of requests for which connections asked for room, received or still to come.
pub(super) const BODIES: usize = MAX_FRAME;
/// Bound of those and unread replies, up to which a long request is gone on with, and another one
/// gets room.
pub(super) const FOR_LONG: usize = 28 << 20;
/// Bound of those, unread replies and a batch's reply so far, up to which a short request is
/// answered.
pub(super) const FOR_SHORT: usize = 40 << 20;
/// Replies so far of several batches that go on side by side. With more, the oldest alone goes on.
pub(super) const SIDE_BY_SIDE: usize = 2 << 20;

/// Connections there may be, unless the owner says less.
pub(super) const CONNECTIONS: usize = 1024;
/// Buffers of each in the kernel, in either direction: a connection's cost there is bounded, too.
pub(super) const SOCKET_BUFFER: usize = 64 << 10;

/// Time limit of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time limit of a message to come, or of a reply to be read, beside [`SLOWEST`].
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes a second that a message or a reply is given time for.
pub(super) const SLOWEST: usize = 64 << 10;
/// Bytes a second below which a client is cut when others need the room that it takes.
pub(super) const SLOW: usize = 256 << 10;
/// Time that a client has to become faster than that.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// The same for clients whose host or process holds more than one client needs.
pub(super) const SHORT_GRACE: Duration = Duration::from_millis(100);
/// Time that replies have to leave once the server has stopped.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Time without new connections after the process had no descriptor for a client.
pub(super) const EXHAUSTED: Duration = Duration::from_millis(500);

/// Bytes that one connection is read in one turn.
pub(super) const READ: usize = 64 << 10;
/// Time that a long request goes on before others have a turn.
pub(super) const SLICE: Duration = Duration::from_millis(5);
/// Connections that are accepted in one turn.
pub(super) const ACCEPTED: usize = 64;
