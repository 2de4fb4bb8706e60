//! Announcements: the place of a machine, told in its name after a live migration.
//!
//! Bridges and other hosts learn a machine's place from the frames it sends. They would look for a
//! machine that only receives in its old place. So a vnic whose rings go on where another device
//! left them is announced.
//!
//! A RARP from its MAC address (RFC 903, as QEMU sends it) names no IP address. So it moves the
//! learnt place even where addresses are protected. For each declared address, a gratuitous ARP
//! (RFC 5227, 3) or an unsolicited neighbour advertisement (RFC 4861, 7.2.6) follows. Networks lose
//! frames, so each is sent several times.
//!
//! While a vnic's rings do not run (`driving`), its MAC address may be learnt behind the trunk, and
//! is looked up there first: its machine has not come yet, or has left. Workers walk an
//! announcement as a frame of the vnic, one in a turn, through all stages but anti-spoofing and
//! claims.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use butterfly_packet::{
    build::{self, Link},
    ethernet, icmp, ipv6,
    mac::Mac,
};

use crate::plane::Plane;
use crate::world::{rules::address, snapshot::Vnic};

/// Most addresses of a vnic that are announced.
const ADDRESSES: usize = 16;
/// Most vnics that are announced in one tick: after a restart of the daemon, all of them come at
/// once.
const PER_TICK: usize = 64;
/// Smallest Ethernet frame without its checksum.
const SMALLEST: usize = 60;
/// Operation of a RARP request (RFC 903).
const RARP_REQUEST: u16 = 3;
/// The advertisement replaces older knowledge (RFC 4861, 4.4).
const OVERRIDE: u32 = 1 << 29;
const ND_HOP_LIMIT: u8 = 255;

impl Plane {
    /// Announces the vnics that are due. Housekeeping calls it in each tick.
    pub fn announce(&self) {
        let snapshot = self.shared.snapshot.load();
        let mut room = PER_TICK;
        // Starts behind the last vnic that had its turn, so that vnics that ask in every tick do
        // not keep others away.
        let from = self.announced.load(Relaxed);
        let behind = snapshot.vnics.iter().filter(|(slot, _)| *slot > from);
        let before = snapshot.vnics.iter().filter(|(slot, _)| *slot <= from);
        // Mostly nobody is announced: nothing else of a silent vnic is read.
        let under_way = |(_, vnic): &(u32, &Arc<Vnic>)| vnic.shared.announcing.is_under_way();
        for (slot, vnic) in behind.chain(before).filter(under_way) {
            // A mirror is no station, and a vnic that waits for its address must not use it.
            let waits =
                snapshot.networks.get(vnic.network).is_some_and(|network| network.waits(slot));
            if !waits
                && !vnic.is_mirror()
                && vnic.shared.announcing.tick(room > 0)
                && let Some(worker) = self.board.announcer(slot)
            {
                room -= 1;
                self.announced.store(slot, Relaxed);
                worker.announce(vnic.place, Arc::new(frames(vnic)));
            }
        }
    }
}

/// Returns the announcements of a vnic.
fn frames(vnic: &Vnic) -> Vec<Vec<u8>> {
    let own = vnic.rules.own.iter().take(ADDRESSES).map(|own| match address(*own) {
        std::net::IpAddr::V4(ip) => {
            padded(build::ethernet(vnic.mac, Mac::BROADCAST).arp_request(ip, ip))
        }
        std::net::IpAddr::V6(ip) => {
            let body =
                [&ip.octets()[..], &[icmp::OPTION_TARGET_LINK_ADDRESS, 1], &vnic.mac.0].concat();
            let link: Link = build::ethernet(vnic.mac, Mac::of_group_v6(ipv6::ALL_NODES));
            let packet = link.ipv6(ip, ipv6::ALL_NODES).ttl(ND_HOP_LIMIT);
            packet.icmp(icmp::v6::NEIGHBOUR_ADVERTISEMENT, 0, OVERRIDE, &body)
        }
    });
    std::iter::once(rarp(vnic.mac)).chain(own).collect()
}

/// Returns the RARP question "Who am I?", to all stations. No station answers it any more, and all
/// bridges learn from it.
fn rarp(mac: Mac) -> Vec<u8> {
    let nobody = [0; 4];
    let [a, b] = RARP_REQUEST.to_be_bytes();
    let body = [&[0, 1, 8, 0, 6, 4, a, b][..], &mac.0, &nobody, &mac.0, &nobody].concat();
    padded(build::ethernet(mac, Mac::BROADCAST).payload(ethernet::RARP, &body))
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(SMALLEST), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rarp_is_what_qemu_sends() {
        let mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
        let mut expected = vec![0xff; 6];
        expected.extend([0x52, 0x54, 0, 1, 2, 3, 0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        expected.extend([0x52, 0x54, 0, 1, 2, 3, 0, 0, 0, 0, 0x52, 0x54, 0, 1, 2, 3, 0, 0, 0, 0]);
        expected.resize(60, 0);
        assert_eq!(rarp(mac), expected);
    }
}
