//! A TAP device against the host's own stack. Needs root.

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::Duration,
};

use butterfly_packet::{Mac, build::ethernet};
use butterfly_uplink::{
    BURST, Inward, Outward, Uplink,
    kernel::Kernel,
    tap::{Tap, TapConfig},
};
use common::{Namespace, expect, ip, no_ipv6, readable, receive, send, until};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const US: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A TAP device of a given MTU in a namespace of its own. Its interface holds `HOST`, and knows
/// that we are `US`.
fn tap(mtu: Option<u32>) -> (Namespace, Tap, Mac) {
    let namespace = Namespace::new();
    no_ipv6();
    let tap = Tap::open(&TapConfig { name: None, mtu }).unwrap();
    let name = tap.info().interface.clone();
    ip(&format!("addr add {HOST}/24 dev {name}"));
    ip(&format!("neigh add {US} lladdr {} dev {name} nud permanent", tap.info().mac));
    let host = Kernel::open().unwrap().interface(&name).unwrap().mac;
    (namespace, tap, host)
}

#[test]
fn it_says_what_it_is() {
    let (_namespace, tap, host) = tap(Some(1570));
    let info = tap.info();
    assert_eq!((info.kind, info.mode, info.queues, info.mtu), ("tap", "tap", 1, 1570));
    assert!(info.interface.starts_with("bfly"), "{info:?}");
    assert_ne!(info.mac, host);
    let interface = Kernel::open().unwrap().interface(&info.interface).unwrap();
    assert!(
        interface.up && interface.index == info.index && interface.mtu == 1570,
        "{interface:?}"
    );
    assert!(interface.holds(HOST.into()) && !interface.holds(US.into()), "{interface:?}");

    let name = info.interface.clone();
    let busy = Tap::open(&TapConfig { name: Some(name.clone()), mtu: None }).unwrap_err();
    assert!(busy.to_string().ends_with("another process uses it"), "{busy}");
    drop(tap);
    let gone = Kernel::open().unwrap().interface(&name).unwrap_err();
    assert!(gone.to_string().contains(&name), "{gone}");
}

/// Both ways, far more frames than there are buffers: none lost, in order, every byte right.
#[test]
fn frames_cross_both_ways() {
    let (_namespace, mut tap, host) = tap(None);
    let us = tap.info().mac;
    let socket = UdpSocket::bind((HOST, 5000)).unwrap();
    socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
    socket.connect((US, 6000)).unwrap();

    const FRAMES: u32 = 20_000;
    let mut buffer = [0; 2048];
    for burst in 0..FRAMES / BURST as u32 {
        let numbers = burst * BURST as u32..(burst + 1) * BURST as u32;
        for number in numbers.clone() {
            let data = payload(number);
            assert!(send(&mut tap, &ethernet(us, host).ipv4(US, HOST).udp(6000, 5000, &data)));
        }
        tap.flush();
        for number in numbers.clone() {
            let len = socket.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == payload(number), "frame {number} to the host");
        }
        for number in numbers.clone() {
            socket.send(&payload(number)).unwrap();
        }
        for (number, frame) in numbers.zip(receive(&mut tap)) {
            // The kernel chooses the identification.
            let id = u16::from_be_bytes([frame[18], frame[19]]);
            let wanted = ethernet(host, us).ipv4(HOST, US).identification(id).dont_fragment().udp(
                5000,
                6000,
                &payload(number),
            );
            assert!(
                frame == wanted,
                "frame {number} from the host: {frame:02x?}, not {wanted:02x?}"
            );
        }
    }
    let counters = tap.counters();
    let frames = u64::from(FRAMES / BURST as u32 * BURST as u32);
    assert_eq!((counters.received, counters.sent), (frames, frames), "{counters:?}");
    let moved: Vec<_> =
        counters.named().filter(|(_, _, value)| *value != 0).map(|(name, ..)| name).collect();
    assert_eq!(moved, ["received", "received-bytes", "sent", "sent-bytes"]);
    assert!(!readable(tap.descriptor(), Duration::ZERO));
}

fn payload(number: u32) -> Vec<u8> {
    (0..number % 1400 + 4)
        .map(|at| (number.wrapping_mul(31) + at) as u8)
        .chain(number.to_be_bytes())
        .collect()
}

#[test]
fn a_full_queue_and_odd_lengths_are_refused_and_counted() {
    let (_namespace, mut tap, host) = tap(None);
    let frame = ethernet(tap.info().mac, host).ipv4(US, HOST).udp(1, 2, b"");
    for _ in 0..BURST {
        assert!(send(&mut tap, &frame));
    }
    assert!(tap.pending());
    assert!(tap.room(60).is_none());
    assert_eq!(tap.counters().tx_full, 1);
    tap.flush();
    assert!(!tap.pending());
    assert!(send(&mut tap, &frame));

    assert!(tap.room(13).is_none());
    assert!(tap.room(1519).is_none());
    assert_eq!(tap.room(1518).map(|room| room.len()), Some(1518));
    // Asked for again, not sent, forgotten: none of that sends a frame.
    assert_eq!(tap.room(14).map(|room| room.len()), Some(14));
    tap.flush();
    tap.send();
    tap.flush();
    let counters = tap.counters();
    assert_eq!(
        (counters.sent, counters.tx_bad_length, counters.tx_full, counters.tx_failed),
        (BURST as u64 + 1, 2, 1, 0)
    );
}

#[test]
fn held_frames_stay_until_released() {
    let (_namespace, mut tap, _) = tap(None);
    let socket = UdpSocket::bind((HOST, 5000)).unwrap();
    for data in [b"a", b"b", b"c"] {
        socket.send_to(data, (US, 6000)).unwrap();
    }
    let last = |tap: &Tap, index| tap.frame(index).last().copied();
    assert_eq!(tap.receive(1), 1);
    assert_eq!(tap.receive(1), 1);
    assert_eq!(tap.receive(BURST), 3);
    assert_eq!(
        [last(&tap, 0), last(&tap, 1), last(&tap, 2), last(&tap, 3)],
        [Some(b'a'), Some(b'b'), Some(b'c'), None]
    );
    tap.release();
    assert_eq!(last(&tap, 0), None);
    assert_eq!(tap.receive(BURST), 0);
}

#[test]
fn a_device_that_was_deleted_keeps_nobody_awake() {
    let (_namespace, mut tap, _) = tap(None);
    ip(&format!("link del {}", tap.info().interface));
    until("the descriptor to fall silent", || {
        tap.receive(BURST);
        !readable(tap.descriptor(), Duration::ZERO)
    });
    assert!(tap.counters().rx_failed > 0);
    assert!(send(&mut tap, &[0; 60]));
    tap.flush();
    assert_eq!(tap.counters().tx_failed, 1);
    assert!(!tap.pending());
}

#[test]
fn a_bridge_forwards_to_our_station() {
    let namespace = Namespace::new();
    no_ipv6();
    let mut tap = Tap::open(&TapConfig { name: Some("wire0".into()), mtu: None }).unwrap();
    ip("link add br0 type bridge");
    ip("link set wire0 master br0");
    ip("link set br0 up");
    ip(&format!("addr add {HOST}/24 dev br0"));
    let mut kernel = Kernel::open().unwrap();
    let bridge = kernel.interface("br0").unwrap();
    // The host asks for us, we answer, and its question arrives at our own address.
    kernel.ask(bridge.index, IpAddr::V4(US)).unwrap();
    expect(&mut tap, "the host's question", |frame| {
        frame[..6] == [0xff; 6] && frame[12..14] == [8, 6]
    });
    let answer = ethernet(tap.info().mac, bridge.mac).arp_reply(US, HOST);
    assert!(send(&mut tap, &answer));
    tap.flush();
    until("the answer to arrive", || {
        kernel.neighbour(bridge.index, IpAddr::V4(US)).unwrap() == Some(tap.info().mac)
    });
    UdpSocket::bind((HOST, 5000)).unwrap().send_to(b"x", (US, 6000)).unwrap();
    let us = tap.info().mac;
    expect(&mut tap, "a frame to our station", |frame| {
        frame[..6] == us.0 && frame[12..14] == [8, 0]
    });
    drop(namespace);
}
