//! Frames that a wire does not pass on, counted by its thread and by the kernel.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use butterfly_uplink::{Counters, Meter};

/// State of the interface behind a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireState {
    /// Frames can pass.
    #[default]
    Up,
    /// The interface is down.
    Down,
    /// The interface is up and has no carrier.
    NoCarrier,
    /// The interface is gone. It is opened anew when it is back.
    Gone,
}

impl WireState {
    const ALL: [WireState; 4] =
        [WireState::Up, WireState::Down, WireState::NoCarrier, WireState::Gone];
}

/// Frames of a wire that were lost for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLoss {
    /// Name of the reason.
    pub name: &'static str,
    /// Meaning of it: a sentence.
    pub description: &'static str,
    /// Advice on it. `IFACE` stands for the interface.
    pub remedy: &'static str,
    /// Frames lost since the wire was opened.
    pub frames: u64,
}

macro_rules! losses {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal, $remedy:literal;)+) => {
        /// Numbers of frames by the reason for which they were lost.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Lost {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Lost {
            /// Returns all reasons with their numbers, in a fixed order.
            pub fn named(&self) -> Vec<WireLoss> {
                vec![$(WireLoss {
                    name: $name,
                    description: concat!($($doc),+).trim_ascii_start(),
                    remedy: $remedy,
                    frames: self.$field,
                }),+]
            }

            pub fn plus(self, other: Lost) -> Lost {
                Lost { $($field: self.$field.wrapping_add(other.$field)),+ }
            }
        }
    };
}

losses! {
    /// Frames for the outside while the interface was gone.
    gone = "wire-gone", "have the interface IFACE back: `ip link show IFACE`; it is opened anew by itself, if it has the same MAC address";
    /// Frames for the outside that a TAP device did not take, as it was down.
    down = "wire-down", "`ip link set dev IFACE up`";
    /// Frames from inside to an address of this host for which the queue to the switch had no room.
    turned_full = "wire-turned-full", "NICs of this host send more to its own addresses outside than it takes: have them use addresses inside, or limit them (`butterfly nic limit`)";
    /// Frames from outside that came from this host's own MAC address.
    own_source = "wire-own-source", "look for a loop of the switches behind IFACE, or for who forges the address: `tcpdump -e -i IFACE`";
    /// Frames from outside with the tag of another VLAN, or too short for their headers.
    not_ours = "wire-not-ours", "look at what the machines outside send: `tcpdump -e -i IFACE`; another VLAN is another external (`--vlan`)";
    /// Frames from outside that the kernel dropped, too long for a frame buffer mostly.
    rx_dropped = "wire-rx-dropped", "have the machines outside send packets of the interface's MTU at most, and switch off receive offloads: `ethtool -K IFACE gro off lro off`";
    /// Frames from outside for which the receive ring had no room: the wire's thread is too slow.
    rx_full = "wire-rx-full", "give the daemon's threads more processor time: the wire is one thread; several interfaces are several";
    /// Frames from outside that made no sense.
    rx_invalid = "wire-rx-invalid", "the driver of IFACE is at fault: try a newer kernel";
    /// Frames for the outside without a free transmit buffer: the interface is too slow.
    tx_full = "wire-tx-full", "the VMs send more than IFACE carries: a faster interface, or limits (`butterfly nic limit`)";
    /// Frames for the outside that were longer than the interface's MTU.
    tx_too_long = "wire-tx-too-long", "NICs in the external's network send larger packets than IFACE takes: lower their MTU, or raise that of IFACE";
    /// Frames for the outside that the kernel refused to send.
    tx_invalid = "wire-tx-invalid", "the driver of IFACE is at fault: try a newer kernel";
}

impl From<Counters> for Lost {
    fn from(of: Counters) -> Lost {
        Lost {
            rx_dropped: of.rx_dropped,
            rx_full: of.rx_ring_full,
            rx_invalid: of.rx_invalid,
            tx_full: of.tx_full,
            tx_too_long: of.tx_bad_length,
            tx_invalid: of.tx_invalid,
            ..Lost::default()
        }
    }
}

/// Counts of a wire, which its thread writes.
#[derive(Debug, Default)]
pub(crate) struct WireCounts {
    gone: AtomicU64,
    not_ours: AtomicU64,
    state: AtomicU8,
    /// Counts of interfaces that were opened before, and the meter of the present one.
    port: Mutex<(Lost, Option<Meter>)>,
}

impl WireCounts {
    /// Reads an interface by this meter from now on. What the former one lost still counts.
    pub fn opened(&self, meter: Meter) {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(former) = port.1.replace(meter) {
            port.0 = port.0.plus(former.read().into());
        }
    }

    /// Counts frames for the outside while there is no interface.
    pub fn lost_outward(&self, frames: usize) {
        self.gone.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// Counts frames from outside that are not of the wire.
    pub fn not_ours(&self, frames: u64) {
        self.not_ours.fetch_add(frames, Ordering::Relaxed);
    }

    /// Notes the state of the interface.
    pub fn is_now(&self, state: WireState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns the state that was noted last.
    pub fn state(&self) -> WireState {
        let at = usize::from(self.state.load(Ordering::Relaxed));
        WireState::ALL.get(at).copied().unwrap_or_default()
    }

    /// Returns what was lost so far.
    pub fn lost(&self) -> Lost {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let now = port.1.as_ref().map(|meter| Lost::from(meter.read()));
        let own = Lost {
            gone: self.gone.load(Ordering::Relaxed),
            not_ours: self.not_ours.load(Ordering::Relaxed),
            ..Lost::default()
        };
        own.plus(port.0).plus(now.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reasons_are_counted_by_name() {
        let counts = WireCounts::default();
        counts.lost_outward(2);
        counts.not_ours(3);
        let port =
            Counters { tx_full: 4, tx_bad_length: 5, rx_ring_full: 6, ..Counters::default() };
        // As if an interface had been opened and was gone.
        counts.port.lock().unwrap().0 = port.into();
        let lost = counts.lost().named();
        let some: Vec<_> = lost.iter().filter(|loss| loss.frames > 0).collect();
        let some: Vec<_> = some.iter().map(|loss| (loss.name, loss.frames)).collect();
        assert_eq!(
            some,
            [
                ("wire-gone", 2),
                ("wire-not-ours", 3),
                ("wire-rx-full", 6),
                ("wire-tx-full", 4),
                ("wire-tx-too-long", 5)
            ]
        );
        for loss in lost {
            assert!(loss.name.starts_with("wire-") && loss.description.ends_with('.'), "{loss:?}");
            assert!(!loss.remedy.is_empty() && !loss.remedy.ends_with('.'), "{loss:?}");
        }
    }

    #[test]
    fn the_state_is_as_noted() {
        let counts = WireCounts::default();
        assert_eq!(counts.state(), WireState::Up);
        for state in WireState::ALL {
            counts.is_now(state);
            assert_eq!(counts.state(), state);
        }
    }
}
