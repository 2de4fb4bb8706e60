//! Whose address is whose: what a port may say that it has, and from where it may send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    policy::{self, Declared},
    switch::{Model, Vnic},
    wire::{self, Carries, Packet},
};

/// How much of a frame is at hand for ARP.
const AT_HAND: usize = 128;

/// Link-local addresses of one vnic that no operator declares.
const MADE_UP: usize = 4;

/// Whether it was declared, or follows from what was.
fn has(declared: &Declared, ip: IpAddr) -> bool {
    declared.ips.iter().any(|own| own.to_canonical() == ip) || !declared.bypass && declared.link_local() == ip
}

impl Model {
    /// Whether an address is a filtered vnic's of this host, and not also this one's.
    pub fn is_claimed(&self, vnic: &Vnic, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_unspecified() || vnic.declared.bypass && !vnic.is_trunk() && has(&vnic.declared, ip) {
            return false;
        }
        let in_network = |other: &&Vnic| !other.is_trunk() && other.declared.vni == vnic.declared.vni;
        let holders: Vec<&Vnic> = self
            .vnics
            .iter()
            .filter(in_network)
            .filter(|other| !other.declared.bypass && (has(&other.declared, ip) || other.declared.bound.contains(&ip)))
            .collect();
        let shared = vnic.is_trunk() && holders.iter().any(|other| other.declared.shared_ip);
        !holders.is_empty() && !shared && holders.iter().all(|other| other.port != vnic.port)
    }

    /// Whether no operator has given the address to anybody in this network.
    pub fn is_made_up(&self, vni: u32, ip: IpAddr) -> bool {
        !self.vnics.iter().any(|other| other.declared.vni == vni && has(&other.declared, ip.to_canonical()))
    }

    /// Whether a vnic may not send a packet for its source alone, as that is somebody else's.
    pub fn speaks_as_another(&self, vnic: &Vnic, packet: &Packet) -> bool {
        vnic.declared.bypass && !vnic.declared.forwards && self.is_claimed(vnic, packet.source)
    }

    /// Whether a frame says that its sender has an address which is somebody else's.
    pub fn claims(&self, vnic: &Vnic, frame: &[u8], carries: &Carries) -> bool {
        let filtered = |other: &Vnic| other.declared.vni == vnic.declared.vni && !other.declared.bypass;
        if !self.vnics.iter().any(filtered) {
            return false;
        }
        match carries {
            Carries::Arp(at) => self.arp_claims(vnic, frame, *at),
            Carries::Ip(at, vlan) => match wire::packet(frame, *at, *vlan) {
                Ok(packet) => self.discovery_claims(vnic, frame, &packet),
                Err(_) => false,
            },
            _ => false,
        }
    }

    /// Notes whose a link-local address is, if this frame is the first from or for it.
    pub fn bind(&mut self, sender: usize, carries: &Carries, frame: &[u8]) {
        let vnic = self.vnics[sender].declared.clone();
        let Carries::Ip(at, vlan) = carries else { return };
        let Ok(packet) = wire::packet(frame, *at, *vlan) else { return };
        let filtered = |other: &Vnic| other.declared.vni == vnic.vni && !other.declared.bypass;
        if policy::discovery(&packet).is_none() || packet.hops != 255 || !self.vnics.iter().any(filtered) {
            return;
        }
        for ip in policy::spoken_for(&vnic, &packet) {
            let IpAddr::V6(six) = ip else { continue };
            let bytes = six.octets();
            let of_mac = bytes[11..13] == [0xff, 0xfe];
            let made_up = bytes[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && bytes[8..] != [0; 8] && !of_mac;
            let mut others = self.vnics.iter().filter(|other| other.declared.vni == vnic.vni);
            if made_up && !others.any(|other| has(&other.declared, ip) || other.declared.bound.contains(&ip)) {
                let bound = &mut self.vnics[sender].declared.bound;
                bound.push(ip);
                if bound.len() > MADE_UP {
                    bound.remove(0);
                }
            }
        }
    }

    fn arp_claims(&self, vnic: &Vnic, frame: &[u8], at: usize) -> bool {
        let seen = &frame[..frame.len().min(AT_HAND)];
        let cut = frame.len() > seen.len();
        if seen.len() < at + 8 {
            return cut;
        }
        if seen[at + 2..at + 6] != [8, 0, 6, 4] {
            return false;
        }
        if seen.len() < at + 28 {
            return cut;
        }
        let address = |from: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&seen[at + from..at + from + 4]).unwrap());
        let sender = address(14);
        let about = if sender.is_unspecified() { address(24) } else { sender };
        self.is_claimed(vnic, about.into()) && !self.is_its_own(vnic, frame, about.into())
    }

    /// Whether the frame has the MAC address of the filtered vnic that has the address.
    fn is_its_own(&self, vnic: &Vnic, frame: &[u8], ip: IpAddr) -> bool {
        let owner = |other: &Vnic| {
            let Declared { vni, mac, bypass, .. } = &other.declared;
            (*vni, &mac[..], *bypass) == (vnic.declared.vni, &frame[6..12], false)
        };
        let mut owners = self.vnics.iter().filter(|other| owner(other));
        owners.any(|other| has(&other.declared, ip.to_canonical()) || other.declared.bound.contains(&ip))
    }

    fn discovery_claims(&self, vnic: &Vnic, frame: &[u8], packet: &Packet) -> bool {
        if policy::discovery(packet).is_none() || packet.hops != 255 {
            return false;
        }
        let whole = if packet.upper[0] == 137 { 40 } else { 24 };
        let target = (packet.upper.len() >= whole && matches!(packet.upper[0], 135..=137))
            .then(|| IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&packet.upper[8..24]).unwrap())));
        let about_target = match packet.upper[0] {
            136 => true,
            135 => packet.source.is_unspecified(),
            137 => policy::redirects_to(packet).is_some_and(|mac| {
                let owner = |other: &Vnic| other.declared.mac == mac && other.declared.vni == vnic.declared.vni;
                let target = target.unwrap().to_canonical();
                !self.vnics.iter().any(|other| !other.is_trunk() && owner(other) && has(&other.declared, target))
            }),
            _ => false,
        };
        // What is found first counts.
        let said = [Some(packet.source), target.filter(|_| about_target)];
        let claimed = said.into_iter().flatten().find(|ip| self.is_claimed(vnic, *ip));
        claimed.is_some_and(|ip| !self.is_its_own(vnic, frame, ip))
    }
}
