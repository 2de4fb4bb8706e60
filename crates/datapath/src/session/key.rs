//! Key of a session: addresses, protocol and ports, network, VLAN, and the two vnics.

use crate::ip::Tuple;

/// Stands for "not a vnic of this host" in place of a slot.
pub(crate) const REMOTE: u32 = (1 << 20) - 1;

/// Zone of a session: the network of its ends, or of one of them if a router joins two networks.
///
/// The same addresses in another zone are another conversation. Of two ends on this host in
/// different networks, the zone has the smaller VNI, so that both directions have one zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Zone(u32);

impl Zone {
    /// Bit that says that a router joins the ends.
    const ROUTED: u32 = 1 << 31;

    /// Returns the zone of what does not leave its network.
    #[inline(always)]
    pub const fn of(vni: u32) -> Zone {
        Zone(vni & 0xff_ffff)
    }

    /// Returns the zone of what a router passes on.
    #[inline(always)]
    pub const fn routed(vni: u32) -> Zone {
        Zone(vni & 0xff_ffff | Zone::ROUTED)
    }

    /// Returns the zone of a session between two vnics of this host, in these networks: both
    /// directions have the same.
    #[inline(always)]
    pub fn between(one: u32, other: u32) -> Zone {
        if one == other { Zone::of(one) } else { Zone::routed(one.min(other)) }
    }

    /// Returns the network.
    #[inline(always)]
    pub const fn vni(self) -> u32 {
        self.0 & !Zone::ROUTED
    }

    /// Returns whether a router joins the ends.
    #[inline(always)]
    pub const fn is_routed(self) -> bool {
        self.0 & Zone::ROUTED != 0
    }
}

/// Two ends of a flow in the orientation of one frame. The ends' vnics are part of it: the same
/// addresses between other ports are another session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    source: [u64; 2],
    destination: [u64; 2],
    /// Source port 16, destination port 16, VNI 24, protocol 8.
    ports: u64,
    /// Slot of the sender 20, of the receiver 20, 1 if a router joins them, VLAN 15, zeros 8.
    ends: u64,
}

const FLAGS: u64 = 0xff;
/// Bit of the last word that says that a router joins the ends.
const ROUTED: u64 = 1 << 23;
const VLAN: u16 = 0x7fff;

fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl Key {
    /// Makes the key of a frame with this tuple in a zone, from the vnic in slot `from` to the one
    /// in slot `to`.
    #[inline(always)]
    pub fn new(tuple: &Tuple, zone: Zone, from: u32, to: u32) -> Key {
        let routed = if zone.is_routed() { ROUTED } else { 0 };
        Key {
            source: halves(tuple.source),
            destination: halves(tuple.destination),
            ports: u64::from(tuple.source_port) << 48
                | u64::from(tuple.destination_port) << 32
                | u64::from(zone.vni()) << 8
                | u64::from(tuple.protocol),
            ends: u64::from(from) << 44
                | u64::from(to & REMOTE) << 24
                | routed
                | u64::from(tuple.vlan & VLAN) << 8,
        }
    }

    /// Returns the key of a frame in the other direction.
    #[inline(always)]
    pub fn reversed(&self) -> Key {
        let (from, to) = (self.ends >> 44, self.ends >> 24 & u64::from(REMOTE));
        Key {
            source: self.destination,
            destination: self.source,
            ports: self.ports << 16 & (0xffff << 48)
                | self.ports >> 16 & (0xffff << 32)
                | self.ports & 0xffff_ffff,
            ends: to << 44 | from << 24 | self.ends & 0xff_ffff,
        }
    }

    /// Returns whether both have the same addresses, ports, protocol and VLAN in one zone, in
    /// either direction. The vnics may differ.
    pub fn is_copy_of(&self, other: &Key) -> bool {
        let flow = |key: &Key| Key { ends: key.ends & 0xff_ff00, ..*key };
        flow(self) == flow(other) || flow(&self.reversed()) == flow(other)
    }

    /// Returns the key as six words; the lowest byte of the last is free.
    #[inline(always)]
    pub fn words(&self) -> [u64; 6] {
        let ([a, b], [c, d]) = (self.source, self.destination);
        [a, b, c, d, self.ports, self.ends]
    }

    /// Returns 0 if `words` are this key's, 1 if they are those of the other direction. Ignores the
    /// lowest byte of the last word.
    #[inline(always)]
    pub fn direction_of(&self, words: &[u64; 6]) -> Option<usize> {
        let differs = |key: &Key| {
            let ([a, b], [c, d]) = (key.source, key.destination);
            let [w0, w1, w2, w3, ports, ends] = words;
            (a ^ w0)
                | (b ^ w1)
                | (c ^ w2)
                | (d ^ w3)
                | (key.ports ^ ports)
                | ((key.ends ^ ends) & !FLAGS)
        };
        if differs(self) == 0 {
            Some(0)
        } else if differs(&self.reversed()) == 0 {
            Some(1)
        } else {
            None
        }
    }

    /// Returns the key of [`Self::words`]. Ignores the lowest byte.
    #[inline(always)]
    pub fn from_words([a, b, c, d, ports, ends]: [u64; 6]) -> Key {
        Key { source: [a, b], destination: [c, d], ports, ends: ends & !FLAGS }
    }

    /// Returns addresses, ports, protocol and VLAN.
    pub fn tuple(&self) -> Tuple {
        Tuple {
            source: whole(self.source),
            destination: whole(self.destination),
            source_port: (self.ports >> 48) as u16,
            destination_port: (self.ports >> 32) as u16,
            vlan: (self.ends >> 8) as u16 & VLAN,
            protocol: self.ports as u8,
        }
    }

    /// Returns the zone.
    pub fn zone(&self) -> Zone {
        let zone = Zone::of(self.vni());
        if self.ends & ROUTED == 0 { zone } else { Zone(zone.0 | Zone::ROUTED) }
    }

    /// Returns the network of [`Self::zone`].
    pub fn vni(&self) -> u32 {
        (self.ports >> 8) as u32 & 0xff_ffff
    }

    /// Returns the slots of the sender and the receiver.
    pub fn slots(&self) -> (u32, u32) {
        ((self.ends >> 44) as u32, (self.ends >> 24) as u32 & REMOTE)
    }
}

/// A flow for tests.
#[cfg(test)]
pub(super) const SAMPLE: Tuple =
    Tuple { source: 1, destination: 2, source_port: 3, destination_port: 4, vlan: 5, protocol: 6 };

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_key()(source: u128, destination: u128, ports: (u16, u16), vlan in 0..=VLAN, protocol: u8, vni in 0u32..1 << 24,
            routed: bool, from in 0..=REMOTE, to in 0..=REMOTE) -> (Tuple, Zone, u32, u32) {
            let zone = if routed { Zone::routed(vni) } else { Zone::of(vni) };
            (Tuple { source, destination, source_port: ports.0, destination_port: ports.1, vlan, protocol }, zone, from, to)
        }
    }

    proptest! {
        #[test]
        fn nothing_of_a_key_is_lost((tuple, zone, from, to) in any_key(), flags: u8) {
            let key = Key::new(&tuple, zone, from, to);
            prop_assert_eq!((key.tuple(), key.zone(), key.slots()), (tuple, zone, (from, to)));
            prop_assert_eq!(key.vni(), zone.vni());
            let mut words = key.words();
            words[5] |= u64::from(flags);
            prop_assert_eq!(Key::from_words(words), key);
            let back = key.reversed();
            prop_assert_eq!(back.reversed(), key);
            let other = Tuple { source: tuple.destination, destination: tuple.source, source_port: tuple.destination_port,
                destination_port: tuple.source_port, ..tuple };
            prop_assert_eq!(back, Key::new(&other, zone, to, from));
        }
    }

    #[test]
    fn copies_are_of_one_flow_whatever_the_vnics() {
        let tuple = SAMPLE;
        let key = Key::new(&tuple, Zone::of(7), 8, 9);
        for other in [
            Key::new(&tuple, Zone::of(7), 8, 9),
            Key::new(&tuple, Zone::of(7), 0, REMOTE),
            Key::new(&tuple.reversed(), Zone::of(7), 1, 1),
        ] {
            assert!(key.is_copy_of(&other) && other.is_copy_of(&key));
        }
        for other in [
            Tuple { source: 9, ..tuple },
            Tuple { destination: 9, ..tuple },
            Tuple { source_port: 9, ..tuple },
            Tuple { destination_port: 9, ..tuple },
            Tuple { source_port: 4, destination_port: 3, ..tuple },
            Tuple { vlan: 6, ..tuple },
            Tuple { vlan: 0x1005, ..tuple },
            Tuple { protocol: 17, ..tuple },
        ] {
            assert!(!key.is_copy_of(&Key::new(&other, Zone::of(7), 8, 9)), "{other:?}");
        }
        assert!(!key.is_copy_of(&Key::new(&tuple, Zone::of(8), 8, 9)));
        assert!(!key.is_copy_of(&Key::new(&tuple, Zone::routed(7), 8, 9)));
    }

    #[test]
    fn a_direction_is_that_of_every_word() {
        let tuple = Tuple {
            source: 1 << 64 | 1,
            destination: 2 << 64 | 2,
            source_port: 3,
            destination_port: 4,
            vlan: 5,
            protocol: 6,
        };
        let key = Key::new(&tuple, Zone::of(7), 8, 9);
        for (words, direction) in [(key.words(), 0), (key.reversed().words(), 1)] {
            assert_eq!(key.direction_of(&words), Some(direction));
            for at in 0..6 {
                for bit in 0..64 {
                    let mut other = words;
                    other[at] ^= 1 << bit;
                    let free = at == 5 && bit < 8;
                    assert_eq!(
                        key.direction_of(&other),
                        free.then_some(direction),
                        "bit {bit} of word {at}"
                    );
                }
            }
        }
    }
}
