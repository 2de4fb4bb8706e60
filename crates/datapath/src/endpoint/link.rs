//! The uplink's interface, which an operator may change while we run.

use butterfly_uplink::{
    Info,
    kernel::{Interface, Kernel},
};

/// What an uplink's interface was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// It is up, and nobody is at the other end of the cable.
    NoCarrier,
    /// It was taken down.
    Down,
    /// It is not there any more.
    Removed,
    /// A TAP device that is not in our network namespace: it was given to another one, where it may
    /// work, or deleted.
    Elsewhere,
}

impl LinkState {
    /// As operators read it.
    pub fn name(self) -> &'static str {
        match self {
            LinkState::Up => "up",
            LinkState::NoCarrier => "no carrier",
            LinkState::Down => "down",
            LinkState::Removed => "removed",
            LinkState::Elsewhere => "elsewhere",
        }
    }

    /// Whether there is any use in sending.
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

/// What is known of it. It is followed by its number: an operator may give it another name.
pub(crate) struct LinkWatch {
    index: u32,
    name: String,
    tap: bool,
    /// The underlay's VLAN; 0: none.
    vlan: u16,
    /// The MTU at the start: buffers are for that.
    most: u32,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: LinkState,
    carrier_changes: u32,
    master: Option<u32>,
}

/// What came of a look.
pub(crate) struct News {
    /// What it is, if that is to be told.
    pub told: Option<LinkState>,
    /// Whether there is any use in sending.
    pub carries: bool,
    /// Who is on the link may have forgotten us since the last look.
    pub returned: bool,
    /// Largest IP packet, in bytes, if it is there.
    pub mtu: Option<u32>,
}

impl LinkWatch {
    /// Follows an uplink's interface, of which packets up to `mtu` bytes are used, in VLAN `vlan`
    /// (0: in none).
    pub fn new(info: &Info, mtu: u32, vlan: u16) -> LinkWatch {
        LinkWatch {
            index: info.index,
            name: info.interface.clone(),
            tap: info.kind == "tap",
            vlan,
            most: mtu,
            seen: None,
        }
    }

    /// Its name, the last that is known.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was found to be, if somebody has looked.
    pub fn state(&self) -> Option<LinkState> {
        self.seen.map(|seen| seen.state)
    }

    /// Looks at it. `None` if the kernel did not say: that is no news.
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
            // A carrier that came back between two looks, and another bridge, are as good as a
            // cable that was plugged in.
            returned: state.carries() && before.is_some_and(|before| before != seen),
            mtu,
        }
    }

    /// Whether frames that the host's kernel sends by an interface come to the same link as ours. A
    /// TAP device is one end of a cable: the host's own way begins at the bridge that it was
    /// put into, or at a VLAN on that.
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
        // Away for less than a look.
        assert_eq!(look(Some(Interface { carrier_changes: 4, ..up.clone() })), (None, true, true));
        // Into a bridge.
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
