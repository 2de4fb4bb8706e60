//! Fail points: faults that a test asks for, in builds with debug assertions only.
//!
//! Armed by the environment variable `BUTTERFLY_FAIL_POINTS`. Then the worker fails by a frame
//! whose payload begins with one of [`FRAMES`], or when it opens the ring of a vnic called
//! `poison-...`.

use std::sync::OnceLock;

use butterfly_mem::blackbox::signals;
use butterfly_vhost::ring::Frames;

/// First bytes behind the Ethernet header, and what they set off.
const FRAMES: [(&[u8; 8], Fails); 3] =
    [(b"BF-PANIC", panics), (b"BF-FAULT", signals::fault), (b"BF-HANGS", hangs)];
/// Begins the id of a receiver that sets off a panic.
const RECEIVER: &str = "poison-";
const PAYLOAD: usize = 14;

type Fails = fn() -> !;

/// Returns whether fail points are armed.
pub(crate) fn armed() -> bool {
    static ARMED: OnceLock<bool> = OnceLock::new();
    *ARMED.get_or_init(|| std::env::var_os("BUTTERFLY_FAIL_POINTS").is_some())
}

/// Fails by a frame.
pub(crate) fn frames(frames: &Frames<'_>) {
    if !armed() {
        return;
    }
    for index in 0..frames.len() {
        let payload = frames.head(index).get(PAYLOAD..).unwrap_or_default();
        if let Some((_, fails)) = FRAMES.iter().find(|(magic, _)| payload.starts_with(*magic)) {
            fails();
        }
    }
}

/// Fails by a receiver.
pub(crate) fn receiver(id: &str) {
    if armed() && id.starts_with(RECEIVER) {
        panics();
    }
}

#[allow(clippy::panic)] // what it is for
fn panics() -> ! {
    panic!("a fail point was asked for");
}

fn hangs() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
