//! What travels under the shared key, in both forms: the original's ([`legacy`]), which deployed clients speak, and one that is
//! sound ([`sealed`]).
//!
//! [`Gate`] is the daemon's end, [`Cipher`] the client's. Algorithms are those of well-kept crates; here is only their order. What
//! a client in another language needs to know is in `docs/encryption.md`.

mod client;
mod gate;
mod guard;
mod key;
mod legacy;
mod sealed;

pub use client::{Cipher, EncryptionError};
pub use gate::Gate;
pub(crate) use gate::{EncryptedFields, Opened, ReplyTo};
pub use key::{Key, KeyError, KeyFile};

use std::time::{SystemTime, UNIX_EPOCH};

/// What either form adds to a message is less than this.
pub const OVERHEAD: usize = 1024;

/// How far the clocks of a client and a daemon may be apart, and how long a request may be under way: milliseconds.
const WINDOW: u64 = 60_000;

/// Fills its argument with random bytes. Tests have others than the system's.
type Random = fn(&mut [u8]) -> Result<(), getrandom::Error>;

fn random<const N: usize>(source: Random) -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    source(&mut bytes).map(|()| bytes)
}

/// Milliseconds since 1970, by this host's clock.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
