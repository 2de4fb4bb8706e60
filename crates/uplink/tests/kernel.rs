//! Knowledge of the kernel, copies of discovery, and multicast filters, over a veth pair. Needs
//! root.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Duration,
};

use butterfly_packet::{Mac, build::ethernet};
use butterfly_uplink::{
    groups::Groups,
    kernel::{Kernel, NextHop},
    packet::PacketSocket,
    tap::{Tap, TapConfig},
};
use common::{Wire, ip, readable, until, wait};

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2));
const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 2));

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_interface_tells_its_addresses() {
    let wire = Wire::new("mtu 1400");
    let mut kernel = Kernel::open().unwrap();
    let interface = kernel.interface("wire").unwrap();
    assert_eq!((interface.name.as_str(), interface.mtu, interface.up), ("wire", 1400, true));
    assert!(interface.holds(address("10.8.0.1")) && interface.holds(address("fd08::1")));
    assert!(
        interface
            .addresses
            .iter()
            .any(|address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
    );
    for other in ["10.8.0.2", "10.8.0.0", "10.8.0.255", "127.0.0.1", "::1", "fd08::2"] {
        assert!(!interface.holds(address(other)), "{other}");
    }
    // The address of one's own end, not the other's.
    ip("addr add 10.7.0.1 peer 10.7.0.2 dev wire");
    let interface = kernel.interface("wire").unwrap();
    assert!(interface.holds(address("10.7.0.1")) && !interface.holds(address("10.7.0.2")));
    kernel.set_mtu(&interface, 1600).unwrap();
    assert_eq!(kernel.interface("wire").unwrap().mtu, 1600);
    let error = kernel.set_mtu(&interface, 7).unwrap_err().to_string();
    assert!(error.contains("the MTU of \"wire\" to 7"), "{error}");
    ip("link set wire down");
    assert!(!kernel.interface("wire").unwrap().up);
    // The connection is to the namespace it was opened in.
    wire.far.enter();
    assert!(kernel.interface("wire").is_ok() && kernel.interface("peer").is_err());
    assert!(Kernel::open().unwrap().interface("peer").is_ok());
}

#[test]
fn an_interface_is_followed_by_its_number() {
    let wire = Wire::new("");
    let mut kernel = Kernel::open().unwrap();
    let index = kernel.interface("wire").unwrap().index;
    let mut at = |index| kernel.interface_at(index).unwrap();
    let before = at(index).unwrap();
    assert!(
        before.up
            && before.running
            && before.addresses.is_empty()
            && (before.master, before.vlan_of) == (None, None)
    );
    ip("link set wire down");
    assert!(matches!(at(index), Some(found) if !found.up && !found.running));
    ip("link set wire name other up");
    until("the carrier", || at(index).unwrap().running);
    let after = at(index).unwrap();
    assert_eq!(after.name, "other");
    assert!(after.carrier_changes > before.carrier_changes, "a short absence is seen all the same");
    wire.far.enter();
    ip("link set peer down");
    wire.near.enter();
    until("the carrier's loss", || !at(index).unwrap().running);
    assert!(at(index).unwrap().up, "nobody took it down");

    ip("link add bridge type bridge");
    ip("link set other master bridge");
    let bridge = ip("-o link show bridge").split(':').next().unwrap().parse().unwrap();
    assert_eq!(at(index).unwrap().master, Some(bridge));
    // The other end of a cable is no interface that it is a VLAN of.
    assert_eq!(at(index).unwrap().vlan_of, None);
    ip("link del other");
    assert_eq!(at(index), None);
}

/// A device that has no carrier to lose counts as having one.
#[test]
fn a_tap_device_runs_while_it_is_up() {
    let _space = common::Namespace::new();
    let tap = Tap::open(&TapConfig { name: Some("tap".into()), mtu: None }).unwrap();
    let mut kernel = Kernel::open().unwrap();
    let index = butterfly_uplink::Uplink::info(&tap).index;
    until("the device to run", || kernel.interface_at(index).unwrap().unwrap().running);
    ip("link set tap down");
    assert!(!kernel.interface_at(index).unwrap().unwrap().running);
    drop(tap);
    until("the device to go", || kernel.interface_at(index).unwrap().is_none());
}

#[test]
fn the_way_to_a_destination_is_the_hosts() {
    let _wire = Wire::new("");
    let mut kernel = Kernel::open().unwrap();
    let interface = kernel.interface("wire").unwrap().index;
    let mut via = |destination: &str| {
        let hop = kernel.next_hop(address(destination)).unwrap();
        hop.map(|NextHop { interface: out, via }| {
            assert_eq!(out, interface);
            via.to_string()
        })
    };
    assert_eq!(via("10.8.0.77").as_deref(), Some("10.8.0.77"));
    assert_eq!(via("fd08::77").as_deref(), Some("fd08::77"));
    assert_eq!(via("10.8.0.1"), None, "this host");
    assert_eq!(via("192.0.2.1"), None);
    assert_eq!(via("2001:db8::1"), None);

    ip("route add default via 10.8.0.2");
    ip("route add default via fd08::2");
    ip("route add 198.51.100.0/24 via 10.8.0.3");
    ip("route add 198.51.100.128/25 via inet6 fd08::4 dev wire");
    assert_eq!(via("192.0.2.1").as_deref(), Some("10.8.0.2"));
    assert_eq!(via("2001:db8::1").as_deref(), Some("fd08::2"));
    assert_eq!(via("198.51.100.1").as_deref(), Some("10.8.0.3"));
    assert_eq!(via("198.51.100.129").as_deref(), Some("fd08::4"));
    for kind in ["blackhole", "unreachable", "prohibit"] {
        ip(&format!("route replace {kind} 203.0.113.0/24"));
        assert_eq!(via("203.0.113.1"), None, "{kind}");
        ip(&format!("route replace {kind} 2001:db8:1::/48"));
        assert_eq!(via("2001:db8:1::1"), None, "{kind}");
    }
}

#[test]
fn neighbours_are_found_when_asked_for() {
    let wire = Wire::new("");
    wire.far.enter();
    let far = Kernel::open().unwrap().interface("peer").unwrap().mac;
    wire.near.enter();
    let mut kernel = Kernel::open().unwrap();
    let interface = kernel.interface("wire").unwrap().index;
    for there in [FAR, FAR6] {
        assert_eq!(kernel.neighbour(interface, there).unwrap(), None);
        kernel.ask(interface, there).unwrap();
        until("an answer", || kernel.neighbour(interface, there).unwrap() == Some(far));
        // Known already: nothing changes.
        kernel.ask(interface, there).unwrap();
        assert_eq!(kernel.neighbour(interface, there).unwrap(), Some(far));
    }
    // No neighbour is there: asked for, but never found.
    let nobody = address("10.8.0.9");
    kernel.ask(interface, nobody).unwrap();
    until("the kernel to give up", || ip("neigh show 10.8.0.9 dev wire").contains("FAILED"));
    assert_eq!(kernel.neighbour(interface, nobody).unwrap(), None);

    ip("neigh add 10.8.0.10 lladdr 02:00:00:00:00:0a dev wire nud permanent");
    assert_eq!(
        kernel.neighbour(interface, address("10.8.0.10")).unwrap(),
        Some(Mac([2, 0, 0, 0, 0, 10]))
    );
    let error = kernel.ask(9999, FAR).unwrap_err().to_string();
    assert!(error.contains("look for 10.8.0.2 on interface 9999"), "{error}");
}

#[test]
fn copies_of_discovery_arrive_and_nothing_else() {
    let wire = Wire::new("");
    let index = Kernel::open().unwrap().interface("wire").unwrap().index;
    let near = PacketSocket::open(index, 0).unwrap();
    wire.far.enter();
    let mut far_kernel = Kernel::open().unwrap();
    let peer = far_kernel.interface("peer").unwrap();
    let far = PacketSocket::open(peer.index, 0).unwrap();

    let mut buffer = [0; 2048];
    let socket = UdpSocket::bind("10.8.0.2:0").unwrap();
    // The question is a copy, the datagram is not.
    socket.send_to(b"x", "10.8.0.1:9").unwrap();
    let mut arp = |socket: &PacketSocket, operation: u8| loop {
        wait(socket, "ARP");
        let len = socket.receive(&mut buffer).unwrap().unwrap();
        let frame = &buffer[..len];
        if frame[12..14] == [8, 6] {
            assert_eq!(frame[21], operation, "what this host sent is no copy");
            break;
        }
        // Discovery of IPv6, which both hosts do by themselves.
        assert!(
            frame[12..14] == [0x86, 0xdd] && (frame[20] == 58 || frame[20] == 0),
            "{frame:02x?}"
        );
    };
    arp(&near, 1);
    arp(&far, 2);

    // Sent here, received there: IGMP with a router alert, MLD behind a hop-by-hop header.
    let igmp = ethernet(peer.mac, Mac([1, 0, 0x5e, 0, 0, 1]))
        .ipv4([10, 8, 0, 2], [224, 0, 0, 1])
        .options(&[0x94, 4, 0, 0])
        .payload(2, &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]);
    let mld = ethernet(peer.mac, Mac([0x33, 0x33, 0, 0, 0, 1]))
        .ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 2], [0xff02, 0, 0, 0, 0, 0, 0, 1])
        .extension(0, &[5, 2, 0, 0, 1, 0])
        .icmp(130, 0, 1000, &[0; 16]);
    let tagged =
        ethernet(peer.mac, Mac::BROADCAST).vlan(7).arp_request([10, 8, 0, 2], [10, 8, 0, 1]);
    far.send(&tagged).unwrap();
    far.send(&igmp).unwrap();
    far.send(&mld).unwrap();
    for wanted in [&igmp, &mld] {
        loop {
            wait(&near, "a query");
            let len = near.receive(&mut buffer).unwrap().unwrap();
            assert_ne!(buffer[12..14], [8, 6], "a frame of a VLAN");
            if buffer[..len] == wanted[..] {
                break;
            }
        }
    }

    ip("link set peer down");
    let error = far.send(&igmp).unwrap_err().to_string();
    assert!(error.contains("cannot send on interface"), "{error}");
    until("the socket to fall silent", || {
        far.receive(&mut buffer).unwrap();
        !readable(&far, Duration::ZERO)
    });
}

#[test]
fn groups_are_listened_to_until_left() {
    let _wire = Wire::new("");
    let index = Kernel::open().unwrap().interface("wire").unwrap().index;
    let group = |last| Mac([1, 0, 0x5e, 0, 0x77, last]);
    let listens = |last| ip("maddr show dev wire").contains(&format!("link  {}", group(last)));

    let mut groups = Groups::open(index).unwrap();
    groups.set([group(1), group(2)]).unwrap();
    groups.join(group(2)).unwrap();
    assert!(listens(1) && listens(2) && !listens(3));
    groups.set([group(2), group(3)]).unwrap();
    assert!(!listens(1) && listens(2) && listens(3));
    groups.leave(group(2)).unwrap();
    groups.leave(group(2)).unwrap();
    assert!(!listens(2));
    assert_eq!(groups.members().collect::<Vec<_>>(), [group(3)]);

    // A child that another test forks holds the socket until it becomes its own program.
    drop(groups);
    until("the groups to be left", || !listens(3));

    let error = Groups::open(9999).unwrap().join(group(1)).unwrap_err().to_string();
    assert!(error.contains("listen to 01:00:5e:00:77:01"), "{error}");
}

/// A socket of all frames counts what it had no room for, whichever address that had.
#[test]
fn a_socket_of_all_frames_loses_none_without_a_count() {
    const SENT: usize = 100_000;
    let wire = Wire::new("");
    let mut kernel = Kernel::open().unwrap();
    let near = PacketSocket::of_all(kernel.interface("wire").unwrap().index).unwrap();
    wire.far.enter();
    let far =
        PacketSocket::of_all(Kernel::open().unwrap().interface("peer").unwrap().index).unwrap();
    let frame =
        ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).payload(0x88b5, &[7; 1400]);
    let mut buffer = [0; 2048];
    let mut ours = |socket: &PacketSocket| -> Option<bool> {
        let len = socket.receive(&mut buffer).unwrap()?;
        Some(buffer[..len] == frame[..])
    };
    for _ in 0..SENT {
        while !far.offer(&frame).unwrap() {
            std::thread::yield_now();
        }
    }
    let mut received = 0;
    until("all frames", || {
        while let Some(ours) = ours(&near) {
            received += usize::from(ours);
        }
        near.receive(&mut [0; 64]).unwrap().is_none()
    });
    // What the kernel says of itself on this wire may be among the missed.
    let missed = near.missed().unwrap() as usize;
    assert!(missed > 0 && received > 1000, "{missed} missed, {received} received");
    assert!(
        (SENT..SENT + 20).contains(&(received + missed)),
        "{missed} missed, {received} received"
    );
    assert_eq!(near.missed().unwrap(), 0, "they are counted once");
    while let Some(ours) = ours(&far) {
        assert!(!ours, "what leaves is not seen");
    }
}
