//! A wire of an external: between an interface of this host and the switch.
//!
//! All frames of the interface, or of one VLAN of it, are taken by AF_XDP, and what the switch
//! sends leaves by it. The host's own stack sees none of them. The switch completes checksums and
//! cuts segments before, as the interface takes frames as they are.

use std::{
    mem,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use butterfly_guest_driver::Span;
use butterfly_packet::{Mac, ethernet};
use butterfly_uplink::{
    Error, Inward, Meter, Outward, Uplink,
    groups::Groups,
    kernel::{Interface, Kernel},
    xdp::{Xdp, XdpConfig},
};
use butterfly_vhost::net::NetHeader;

use crate::{
    BURST,
    counts::Counts,
    losses::WireState,
    nic::{NicError, TX_BUFFER},
    seat::{End, Seat},
    turned::Turned,
};

/// Bytes of both addresses of a frame, behind which a tag is.
const ADDRESSES: usize = 12;
/// Time between two looks whether the interface is there.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which what the kernel had no room for is shown to it again.
const AGAIN: Duration = Duration::from_millis(1);

/// Interface by which a wire leaves the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireConfig {
    /// Its name.
    pub interface: String,
    /// The VLAN of it, 1 to 4094; 0: frames without a tag.
    pub vlan: u16,
}

impl WireConfig {
    /// Returns the MAC address of the interface, and the largest IP packet that it takes, in bytes.
    /// Fails if there is no such interface, or if the host itself needs it.
    pub fn look(&self) -> Result<(Mac, u32), Error> {
        let found = self.find()?;
        Ok((found.mac, found.mtu))
    }

    fn find(&self) -> Result<Interface, Error> {
        let found = Kernel::open()?.interface(&self.interface)?;
        check_free(&found, self.vlan)?;
        Ok(found)
    }
}

/// Checks that the host does not speak by an interface itself, as it would hear nothing any more.
fn check_free(found: &Interface, vlan: u16) -> Result<(), Error> {
    let name = &found.name;
    if found.master.is_some() {
        return Err(Error::refused(format!(
            "cannot use \"{name}\" as a wire: it is part of a bridge, a bond or a VRF, which would hear nothing by it any more; take it out first, `ip link set {name} nomaster`, or name another interface"
        )));
    }
    let near = |ip: &&IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let used = found.addresses.iter().find(|ip| !near(ip));
    match used.filter(|_| vlan == 0) {
        Some(used) => Err(Error::refused(format!(
            "cannot use \"{name}\" as a wire: this host has the address {used} there and would not be reached any more; name an interface without addresses, or a VLAN device"
        ))),
        None => Ok(()),
    }
}

/// Returns the state of an interface as the kernel tells it.
fn state_of(found: Option<&Interface>) -> WireState {
    match found {
        None => WireState::Gone,
        Some(found) if !found.up => WireState::Down,
        Some(found) if !found.running => WireState::NoCarrier,
        Some(_) => WireState::Up,
    }
}

/// An open wire.
pub(crate) struct Wire {
    xdp: Xdp,
    /// Has the interface receive frames for all machines.
    _groups: Groups,
    index: u32,
    config: WireConfig,
    /// Time of the last look at the interface.
    looked: Option<Instant>,
}

impl Wire {
    /// Opens it. Fails if the host itself needs the interface.
    pub fn open(config: &WireConfig) -> Result<Wire, Error> {
        let found = config.find()?;
        let name = &config.interface;
        let groups = Groups::open(found.index)?;
        groups.all()?;
        let xdp = Xdp::open(name, &XdpConfig::wire(config.vlan))?;
        let (index, config) = (found.index, config.clone());
        let info = xdp.info();
        tracing::info!(name = config.interface, mode = info.mode, "a wire is open");
        for note in info.note.iter().chain(&info.tags) {
            tracing::warn!(name = config.interface, "{note}");
        }
        Ok(Wire { xdp, _groups: groups, index, config, looked: None })
    }

    /// Returns the state of the interface, if it is time to look: once a second. `None` if it is
    /// not, or the kernel does not answer.
    fn look(&mut self) -> Option<WireState> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return None;
        }
        self.looked = Some(Instant::now());
        let asked = Kernel::open().and_then(|mut kernel| kernel.interface_at(self.index));
        asked.ok().map(|found| state_of(found.as_ref()))
    }

    /// Returns the counters of the interface, for other threads.
    pub fn meter(&self) -> Meter {
        self.xdp.meter()
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.config.interface
    }

    /// Writes a frame that arrived to a buffer, behind the header. Returns how many bytes that are;
    /// `None` for a frame that is not of the wire.
    fn take(&self, index: usize, memory: &Span, at: usize) -> Option<usize> {
        let frame = self.xdp.frame(index);
        let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
        let tagged = rest.starts_with(&ethernet::VLAN.to_be_bytes());
        let rest = match (self.config.vlan, tagged) {
            // The program lets through none but priority tags.
            (_, true) => {
                let tag = rest.get(2..4)?.first_chunk()?;
                let vlan = u16::from_be_bytes(*tag) & 0xfff;
                (vlan == self.config.vlan).then_some(rest.get(ethernet::TAG_LEN..)?)?
            }
            (0, false) => rest,
            (_, false) => return None,
        };
        let len = NetHeader::LEN + addresses.len() + rest.len();
        if len > TX_BUFFER {
            return None;
        }
        memory.write(at, &[0; NetHeader::LEN]);
        memory.write(at + NetHeader::LEN, addresses);
        memory.write(at + NetHeader::LEN + ADDRESSES, rest);
        Some(len)
    }

    /// Sends a frame of the switch: its pieces, of which the first begins with the header. The port
    /// counts one for which there is no room.
    fn send(&mut self, memory: &Span, pieces: &[(usize, usize)]) {
        let whole: usize = pieces.iter().map(|(_, len)| len).sum();
        // The switch delivers no frame without a header.
        let Some(len) = whole.checked_sub(NetHeader::LEN) else { return };
        let vlan = self.config.vlan;
        let tag = if vlan == 0 { 0 } else { ethernet::TAG_LEN };
        let Some(room) = self.xdp.room(len + tag) else { return };
        let mut at = 0;
        let mut skip = NetHeader::LEN;
        for (from, bytes) in pieces.iter().copied() {
            let less = skip.min(bytes);
            skip -= less;
            let Some(to) = room.get_mut(tag + at..tag + at + bytes - less) else { return };
            memory.read(from + less, to);
            at += bytes - less;
        }
        if vlan != 0 {
            room.copy_within(tag..tag + ADDRESSES, 0);
            let [[t0, t1], [v0, v1]] = [ethernet::VLAN, vlan].map(u16::to_be_bytes);
            let place = room.get_mut(ADDRESSES..ADDRESSES + tag);
            place.into_iter().for_each(|place| place.copy_from_slice(&[t0, t1, v0, v1]));
        }
        self.xdp.send();
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.xdp.descriptor()
    }
}

/// Relays until it is asked to end. Counts frames that are lost, and notes the interface's state.
pub(crate) fn run(
    seat: &mut Seat,
    mut wire: Box<Wire>,
    turned: Option<Turned>,
    counts: &Counts,
) -> End {
    let wire = &mut *wire;
    let mut turned = turned.unwrap_or_else(|| Turned::new(wire.xdp.info().mac));
    counts.wire.opened(wire.meter());
    loop {
        let relayed = match turn(seat, wire, &mut turned, counts) {
            Err(None) => wait(seat, wire, &mut turned, counts),
            Err(Some(end)) => Err(end),
            Ok(()) => Ok(()),
        };
        if let Err(end) = relayed {
            return end;
        }
    }
}

/// Waits until an interface that is gone is there again, under its name and with its MAC address,
/// and opens it anew. What the switch sends meanwhile is refused, but for what comes in again.
fn wait(seat: &mut Seat, wire: &mut Wire, turned: &mut Turned, counts: &Counts) -> Result<(), End> {
    let Counts { wire: counts, turned: turns, .. } = counts;
    counts.is_now(WireState::Gone);
    let name = wire.config.interface.clone();
    let mac = wire.xdp.info().mac;
    tracing::warn!(name, "the interface of a wire is gone: nothing passes until it is back");
    // The switch may send at any time, and that is no reason to look.
    let mut looked: Option<Instant> = None;
    loop {
        if seat.stopping() {
            return Err(End::Stopped);
        }
        let again = seat.nic.send(BURST, |memory, at| turned.give(memory, at))?;
        let mut lost = 0;
        let left = seat.nic.receive(BURST, |memory, pieces| {
            lost += usize::from(!turned.take(memory, pieces, turns));
        })?;
        counts.lost_outward(lost);
        let rest = looked.and_then(|looked| LOOK.checked_sub(looked.elapsed()));
        if let Some(rest) = rest {
            if again + left == 0 {
                seat.sleep(None, Some(rest))?;
            }
            continue;
        }
        looked = Some(Instant::now());
        if wire.config.look().is_ok_and(|(found, _)| found == mac)
            && let Ok(opened) = Wire::open(&wire.config)
        {
            counts.opened(opened.meter());
            *wire = opened;
            counts.is_now(WireState::Up);
            return Ok(());
        }
    }
}

/// Relays some frames, or sleeps. Returns why that ends; `None` if the interface is gone.
fn turn(
    seat: &mut Seat,
    wire: &mut Wire,
    turned: &mut Turned,
    counts: &Counts,
) -> Result<(), Option<End>> {
    let Counts { wire: counts, turned: turns, .. } = counts;
    let failed = |why: NicError| Some(End::from(why));
    if seat.stopping() {
        return Err(Some(End::Stopped));
    }
    let room = seat.nic.room().map_err(failed)?.min(BURST);
    // Half of the room is the interface's, so that nobody inside keeps the outside out.
    let mut again =
        seat.nic.send(room.div_ceil(2), |memory, at| turned.give(memory, at)).map_err(failed)?;
    let arrived = wire.xdp.receive(room.saturating_sub(again));
    let (mut next, mut lost) = (0, 0);
    let is_forged = |index| turned.is_forged(wire.xdp.frame(index), turns);
    let taken = seat.nic.send(arrived, |memory, at| {
        first_taken(&mut next, arrived, &mut lost, |index| match is_forged(index) {
            true => Err(Loss::Counted),
            false => wire.take(index, memory, at).ok_or(Loss::NotOurs),
        })
    });
    wire.xdp.release();
    counts.not_ours(mem::take(&mut lost));
    let rest = room.saturating_sub(again + taken.map_err(failed)?);
    again += seat.nic.send(rest, |memory, at| turned.give(memory, at)).map_err(failed)?;
    // The port itself counts frames for which it has no room.
    let left = seat.nic.receive(BURST, |memory, pieces| {
        if !turned.take(memory, pieces, turns) {
            wire.send(memory, pieces);
        }
    });
    let left = left.map_err(failed)?;
    if left > 0 || wire.xdp.pending() {
        wire.xdp.flush();
    }
    if arrived + left + again == 0 {
        let timeout = if wire.xdp.pending() { AGAIN } else { LOOK };
        let broken = seat.sleep(Some(wire.xdp.descriptor()), Some(timeout)).map_err(Some)?;
        if broken {
            return Err(None);
        }
    }
    match wire.look() {
        Some(WireState::Gone) => Err(None),
        Some(state) => {
            counts.is_now(state);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Reason why a frame is not taken.
enum Loss {
    /// Not of the wire.
    NotOurs,
    /// Another one, by which it was counted.
    Counted,
}

/// Returns what `take` gives of the first frame, from the `next` one on, of which it takes
/// anything. Counts those before it that are not of the wire as `lost`.
fn first_taken(
    next: &mut usize,
    arrived: usize,
    lost: &mut u64,
    take: impl Fn(usize) -> Result<usize, Loss>,
) -> Option<usize> {
    while *next < arrived {
        *next += 1;
        match take(*next - 1) {
            Ok(len) => return Some(len),
            Err(Loss::NotOurs) => *lost += 1,
            Err(Loss::Counted) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(master: Option<u32>, addresses: &[&str]) -> Interface {
        Interface {
            index: 7,
            name: "eth1".to_owned(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            up: true,
            running: true,
            carrier_changes: 0,
            master,
            bridged: false,
            vlan_of: None,
            kind: None,
            receive_queues: 1,
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_interface_that_the_host_needs_is_no_wire() {
        let why = |of: &Interface, vlan| check_free(of, vlan).map_err(|why| why.to_string());
        assert_eq!(why(&interface(None, &["fe80::1"]), 0), Ok(()));
        let told = why(&interface(None, &["fe80::1", "192.0.2.7"]), 0).unwrap_err();
        assert!(told.contains("this host has the address 192.0.2.7 there"), "{told}");
        assert_eq!(why(&interface(None, &["192.0.2.7"]), 7), Ok(()));
        for vlan in [0, 7] {
            let told = why(&interface(Some(3), &[]), vlan).unwrap_err();
            assert!(told.contains("it is part of a bridge") && told.contains("nomaster"), "{told}");
        }
    }

    #[test]
    fn an_interface_that_cannot_send_is_told() {
        let mut it = interface(None, &[]);
        assert_eq!((state_of(None), state_of(Some(&it))), (WireState::Gone, WireState::Up));
        it.running = false;
        assert_eq!(state_of(Some(&it)), WireState::NoCarrier);
        it.up = false;
        assert_eq!(state_of(Some(&it)), WireState::Down);
    }

    #[test]
    fn frames_that_no_vnic_could_take_are_counted() {
        let (mut next, mut lost) = (0, 0);
        let odd = |index: usize| (index % 2 == 1).then_some(index).ok_or(Loss::NotOurs);
        let mut taken = Vec::new();
        while let Some(len) = first_taken(&mut next, 5, &mut lost, odd) {
            taken.push(len);
        }
        assert_eq!((taken, next, lost), (vec![1, 3], 5, 3));
    }
}
