//! A sound guest that sends to the hostile guests all the time, so that the daemon meets their
//! broken receive rings.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use butterfly_packet::{
    build::{self, Checksum},
    mac::Mac,
};
use butterfly_tests::{
    Station,
    features::LINUX,
    frames::{Choices, mac},
    host::Nic,
    station::machine,
};
use butterfly_vhost::net::NetHeader;

use crate::{bystanders::station, switch::Switch};

/// Pause between two bursts.
const PAUSE: Duration = Duration::from_micros(500);
const BURST: usize = 64;
/// Longest frame of the caller: a TCP frame that the receiver or the switch segments.
const LARGE: usize = 60_000;
const SEGMENT: u16 = 536;

/// Declares a vnic in a network and attaches the caller to it.
pub fn new(switch: &Switch, vni: u32) -> Station {
    let usual = machine(LINUX, LARGE + 100);
    station(switch, &Nic::bypass(&format!("caller-{vni}"), mac(0xca_1100 + vni), vni), &usual)
}

/// Sends to these addresses until `stop` is set.
pub fn call(caller: &mut Station, to: &[Mac], seed: u64, stop: &AtomicBool) {
    let mut choices = Choices::new(seed);
    while !stop.load(Relaxed) {
        let to = choices.one(to);
        let (len, header) = match choices.below(8) {
            0 => (choices.between(2_000, LARGE), LARGE_ONE),
            _ => (choices.between(1, 1_400), NetHeader::default()),
        };
        let link = build::ethernet(caller.nic.mac, to).ipv4([10, 0, 0, 9], [10, 0, 0, 1]);
        let checksum = if header == LARGE_ONE { Checksum::Partial } else { Checksum::Complete };
        let frame = link.checksum(checksum).tcp(&build::Tcp::new(9, 1, 16), &vec![0xca; len]);
        for _ in 0..BURST {
            if caller.vm.guest.send(&frame, header).is_err() {
                break; // its ring is full, as the daemon serves all guests fairly
            }
        }
        while caller.vm.guest.recv().expect("a sound receive ring").is_some() {}
        std::thread::sleep(PAUSE);
    }
}

const LARGE_ONE: NetHeader = NetHeader {
    flags: NetHeader::FLAG_NEEDS_CSUM,
    gso_type: NetHeader::GSO_TCPV4,
    hdr_len: 54,
    gso_size: SEGMENT,
    csum_start: 34,
    csum_offset: 16,
    num_buffers: 0,
};
