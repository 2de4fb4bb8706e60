//! The uplink's interface, which an operator may change at any time.

use butterfly_uplink::{
    Info,
    kernel::{Interface, Kernel},
};

/// State of an uplink's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// The interface is up, but has no carrier.
    NoCarrier,
    /// The interface was taken down.
    Down,
    /// The interface is gone.
    Removed,
    /// A TAP device that is not in our network namespace. It was moved to another one, where it may
    /// work, or deleted.
    Elsewhere,
    /// The interface could not be opened.
    NotOpen,
}

impl LinkState {
    /// Returns the state's name for operators.
    pub fn name(self) -> &'static str {
        match self {
            LinkState::Up => "up",
            LinkState::NoCarrier => "no carrier",
            LinkState::Down => "down",
            LinkState::Removed => "removed",
            LinkState::Elsewhere => "elsewhere",
            LinkState::NotOpen => "not open",
        }
    }

    /// Returns whether frames may pass.
    pub fn carries(self) -> bool {
        matches!(self, LinkState::Up | LinkState::Elsewhere)
    }

    fn of(found: Option<&Interface>, tap: bool) -> LinkState {
        match found {
            Some(found) if found.running => LinkState::Up,
            Some(found) if found.up => LinkState::NoCarrier,
            Some(_) => LinkState::Down,
            None if tap => LinkState::Elsewhere,
            None => LinkState::Removed,
        }
    }
}

/// Watches the uplink's interface. Follows it by its number, since an operator may rename it.
pub(crate) struct LinkWatch {
    index: u32,
    name: String,
    tap: bool,
    /// The underlay's VLAN; 0: none.
    vlan: u16,
    /// The MTU at the start, for which buffers were made.
    most: u32,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: LinkState,
    carrier_changes: u32,
    master: Option<u32>,
}

/// Result of a look at the interface.
pub(crate) struct News {
    /// The new state, if it is to be told.
    pub told: Option<LinkState>,
    /// True if frames may pass.
    pub carries: bool,
    /// True if stations on the link may have forgotten us since the last look.
    pub returned: bool,
    /// Largest IP packet in bytes, if the interface is there.
    pub mtu: Option<u32>,
}

impl LinkWatch {
    /// Watches an uplink's interface with packets up to `mtu` bytes, in VLAN `vlan` (0: none).
    pub fn new(info: &Info, mtu: u32, vlan: u16) -> LinkWatch {
        LinkWatch {
            index: info.index,
            name: info.interface.clone(),
            tap: info.kind == butterfly_uplink::tap::KIND,
            vlan,
            most: mtu,
            seen: None,
        }
    }

    /// Returns the last known name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the state at the last look, if there was one.
    pub fn state(&self) -> Option<LinkState> {
        self.seen.map(|seen| seen.state)
    }

    /// Looks at the interface. `None` if the kernel gave no answer, which is no news.
    pub fn look(&mut self, kernel: &mut Kernel) -> Option<News> {
        let found = kernel.interface_at(self.index);
        let found = found
            .inspect_err(|why| tracing::debug!(%why, "nothing is known of the uplink's interface"))
            .ok()?;
        Some(self.compare(found))
    }

    fn compare(&mut self, found: Option<Interface>) -> News {
        let state = LinkState::of(found.as_ref(), self.tap);
        let mtu = found.as_ref().map(|found| found.mtu.min(self.most));
        let (carrier_changes, master) =
            found.as_ref().map_or((0, None), |found| (found.carrier_changes, found.master));
        if let Some(found) = found {
            self.name = found.name;
        }
        let seen = Seen { state, carrier_changes, master };
        let before = self.seen.replace(seen);
        News {
            told: (before.map_or(LinkState::Up, |before| before.state) != state).then_some(state),
            carries: state.carries(),
            // A carrier that came back between two looks, and another bridge, count as a cable that
            // was plugged in.
            returned: state.carries() && before.is_some_and(|before| before != seen),
            mtu,
        }
    }

    /// Returns whether frames that the host's kernel sends by an interface come to the same link as
    /// ours. A TAP device is one end of a cable. The host's own way begins at the bridge that the
    /// device was put into, or at a VLAN on that bridge.
    pub fn leads_out(&self, kernel: &mut Kernel, interface: u32) -> bool {
        if interface == self.index {
            return true;
        }
        if !self.tap {
            // In a VLAN, the host's own way is that VLAN's interface.
            return self.vlan != 0 && kernel.is_vlan_on(interface, self.index, self.vlan);
        }
        let master = self.seen.and_then(|seen| seen.master);
        if master == Some(interface) {
            return true;
        }
        let found = kernel.interface_at(interface).ok().flatten();
        found
            .and_then(|found| found.vlan_of)
            .is_some_and(|on| on == self.index || master == Some(on))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::mac::Mac;

    fn watch(kind: &'static str) -> LinkWatch {
        let info = Info {
            kind,
            interface: "eth0".into(),
            index: 2,
            mode: "",
            note: None,
            tags: None,
            queues: 1,
            mac: Mac::ZERO,
            mtu: 1500,
        };
        LinkWatch::new(&info, 1500, 0)
    }

    fn interface(up: bool, running: bool) -> Interface {
        Interface {
            index: 2,
            name: "eth0".into(),
            mac: Mac::ZERO,
            mtu: 9000,
            up,
            running,
            carrier_changes: 2,
            master: None,
            bridged: false,
            vlan_of: None,
            kind: None,
            receive_queues: 1,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn what_changes_is_told_once() {
        let mut watch = watch("af_xdp");
        let mut look = |found: Option<Interface>| {
            let News { told, carries, returned, mtu } = watch.compare(found);
            assert_eq!(mtu.unwrap_or(1500), 1500);
            (told, carries, returned)
        };
        let (up, unplugged, down) =
            (interface(true, true), interface(true, false), interface(false, false));
        use LinkState::*;
        assert_eq!(look(Some(up.clone())), (None, true, false));
        assert_eq!(look(Some(up.clone())), (None, true, false));
        assert_eq!(look(Some(unplugged.clone())), (Some(NoCarrier), false, false));
        assert_eq!(look(Some(unplugged)), (None, false, false));
        assert_eq!(look(Some(down)), (Some(Down), false, false));
        assert_eq!(look(Some(up.clone())), (Some(Up), true, true));
        assert_eq!(look(Some(up.clone())), (None, true, false));
        // The carrier was away between two looks.
        assert_eq!(look(Some(Interface { carrier_changes: 4, ..up.clone() })), (None, true, true));
        // The interface was put into a bridge.
        assert_eq!(
            look(Some(Interface { carrier_changes: 4, master: Some(3), ..up })),
            (None, true, true)
        );
        assert_eq!(look(None), (Some(Removed), false, false));
        assert_eq!(watch.state(), Some(Removed));
    }

    #[test]
    fn another_name_is_no_news() {
        let mut watch = watch("af_xdp");
        watch.compare(Some(interface(true, true)));
        let News { told, carries, returned, .. } =
            watch.compare(Some(Interface { name: "wan0".into(), ..interface(true, true) }));
        assert_eq!((told, carries, returned, watch.name()), (None, true, false, "wan0"));
    }

    #[test]
    fn one_that_is_down_at_the_start_is_told() {
        let mut watch = watch("af_xdp");
        assert_eq!(watch.state(), None);
        assert_eq!(watch.compare(Some(interface(false, false))).told, Some(LinkState::Down));
    }

    #[test]
    fn a_tap_device_may_go_anywhere() {
        let mut watch = watch("tap");
        watch.compare(Some(interface(true, true)));
        let news = watch.compare(None);
        assert_eq!((news.told, news.carries), (Some(LinkState::Elsewhere), true));
    }
}
