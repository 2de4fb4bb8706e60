//! TAP devices of ours that an operator puts into a bridge.
//!
//! A bridge takes frames to the address of one of its ports for itself. Frames to a VM behind it
//! would end there if the device had the VM's address. So a device in a bridge has another first
//! octet, as libvirt gives it, and its own address back when it leaves. That holds in the network
//! namespace of the process: the daemon may not look into others.

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use butterfly_packet::Mac;
use butterfly_uplink::{
    Error,
    kernel::{Changes, Kernel},
};

/// First octets of local station addresses (IEEE 802, 8.4): what a device in a bridge gets, and
/// what it gets if it had that.
const IN_BRIDGE: [u8; 2] = [0xfe, 0xfa];
/// After a question that the kernel did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Devices that are looked after, by their numbers, and the addresses of their users.
static DEVICES: Mutex<BTreeMap<u32, Mac>> = Mutex::new(BTreeMap::new());
/// The thread that does it, once there is one.
static WATCHER: OnceLock<()> = OnceLock::new();

fn devices() -> MutexGuard<'static, BTreeMap<u32, Mac>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after a device until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched(u32);

impl Watched {
    /// Begins: from now on the device has `mac` only outside of bridges.
    pub fn new(index: u32, mac: Mac) -> Result<Watched, Error> {
        if WATCHER.get().is_none() {
            let failed = |error: io::Error| {
                Error::failed("cannot look whether TAP devices are put into bridges", error)
            };
            let (changes, kernel) = (Changes::of_links().map_err(failed)?, Kernel::open()?);
            // Of two that begin at once one more watches: both do the same.
            std::thread::Builder::new()
                .name("bridges".into())
                .spawn(move || watch(&changes, kernel))
                .map_err(failed)?;
            let _ = WATCHER.set(());
        }
        devices().insert(index, mac);
        // It was there before the thread listened for it.
        settle(&mut Kernel::open()?, index, mac);
        Ok(Watched(index))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        devices().remove(&self.0);
    }
}

fn watch(changes: &Changes, mut kernel: Kernel) {
    loop {
        let changed = match changes.next() {
            Ok(changed) => changed,
            Err(_) => {
                std::thread::sleep(PAUSE);
                None
            }
        };
        // Without a list something was lost: all are looked at.
        let devices: Vec<(u32, Mac)> = devices()
            .iter()
            .map(|(index, mac)| (*index, *mac))
            .filter(|(index, _)| changed.as_ref().is_none_or(|all| all.contains(index)))
            .collect();
        for (index, mac) in devices {
            settle(&mut kernel, index, mac);
        }
    }
}

/// Gives a device the address that it should have. An address that another program gave it stays.
fn settle(kernel: &mut Kernel, index: u32, mac: Mac) {
    let Ok(Some(found)) = kernel.interface_at(index) else { return };
    let inside = in_bridge(mac);
    let wanted = if found.bridged { inside } else { mac };
    if found.mac != wanted && (found.mac == mac || found.mac == inside) {
        // It may be gone by now; else the next change is another try.
        let _ = kernel.set_mac(&found, wanted);
    }
}

/// The address of a device in a bridge.
fn in_bridge(mac: Mac) -> Mac {
    let [first, rest @ ..] = mac.0;
    let [usual, other] = IN_BRIDGE;
    let [a, b, c, d, e] = rest;
    Mac([if first == usual { other } else { usual }, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_bridge_the_first_octet_is_another_one() {
        assert_eq!(in_bridge(Mac([0x52, 1, 2, 3, 4, 5])), Mac([0xfe, 1, 2, 3, 4, 5]));
        assert_eq!(in_bridge(Mac([0xfe, 1, 2, 3, 4, 5])), Mac([0xfa, 1, 2, 3, 4, 5]));
    }
}
