//! Prefixes of vnics: blocks of IPv6 whose addresses a machine makes up by itself (SLAAC).

use crate::{
    address::{AddressError, Element, OrderedSet, parse_ip},
    cidr::Cidr,
    subnet::{SPECIAL, parse_block},
};
use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// Most prefixes of a vnic.
pub const MAX_PREFIXES: usize = 4;

/// A block of 2^64 addresses of IPv6: of one vnic, whose machine chooses the last 64 bits of its
/// addresses there (RFC 4862; RFC 8981; that identifiers have 64 bits: RFC 7421).
///
/// ```
/// use butterfly_model::Prefix;
/// let prefix = Prefix::parse("fd00:42:0:1::/64")?;
/// assert!(prefix.contains("fd00:42:0:1::7".parse().unwrap()));
/// assert!(!prefix.contains("fd00:42:0:2::7".parse().unwrap()));
/// assert!(Prefix::parse("fd00:42::/56").is_err() && Prefix::parse("fe80::/64").is_err());
/// # Ok::<(), butterfly_model::PrefixError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(u64);

/// Prefixes of a vnic.
pub type PrefixSet = OrderedSet<Prefix>;

/// Reason why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// A text without a length, or with an address that is none.
    #[error("\"{0}\" is not a prefix; write 2001:db8:0:1::/64")]
    Form(String),
    /// A block of another family or length.
    #[error(
        "{0} is not an IPv6 prefix of length 64, the only length with which machines form addresses (SLAAC); write 2001:db8:0:1::/64"
    )]
    Length(Cidr),
    /// Bits beyond the length are set.
    #[error("{given} is an address in a prefix, not the prefix; write {meant}")]
    HostBits {
        /// The block as declared.
        given: Cidr,
        /// The block without those bits.
        meant: Cidr,
    },
    /// A block with addresses that are no single host's, or are not routed.
    #[error("{0} overlaps {1}, whose addresses no host of a network can have; choose another")]
    Special(Cidr, Cidr),
}

impl Prefix {
    /// Bits that all its addresses have in common.
    pub const BITS: u8 = 64;

    /// Reads a prefix: `2001:db8:0:1::/64`. Fails for other blocks, for bits beyond the length, and
    /// for blocks in which no host can be, link-local ones among them.
    pub fn parse(text: &str) -> Result<Self, PrefixError> {
        let block = parse_block(text).map_err(|_| PrefixError::Form(text.to_owned()))?;
        let IpAddr::V6(address) = block.address() else { return Err(PrefixError::Length(block)) };
        if block.mask_size() != Self::BITS {
            return Err(PrefixError::Length(block));
        }
        if block.address() != block.network() {
            return Err(PrefixError::HostBits { given: block, meant: block.without_host_bits() });
        }
        let special = SPECIAL.map(|(address, bits)| Cidr::from_parts(address, bits));
        if let Some(special) = special.into_iter().find(|special| special.overlaps(&block)) {
            return Err(PrefixError::Special(block, special));
        }
        Ok(Self::of(address))
    }

    /// Returns the block around an address, which is that of a host.
    fn of(address: Ipv6Addr) -> Self {
        Self((address.to_bits() >> Self::BITS) as u64)
    }

    /// Returns the block of this length around an address; `None` for IPv4. No vnic need be able to
    /// have it.
    pub fn around(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(Self::of(address)),
            IpAddr::V4(_) => None,
        }
    }

    /// Returns the bits that its addresses have in common.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns it as a block.
    pub fn cidr(self) -> Cidr {
        Cidr::from_parts(self.first().into(), Self::BITS)
    }

    /// Returns its first address.
    pub fn first(self) -> Ipv6Addr {
        (u128::from(self.0) << Self::BITS).into()
    }

    /// Returns its last address.
    pub fn last(self) -> Ipv6Addr {
        (self.first().to_bits() | u128::from(u64::MAX)).into()
    }

    /// True if an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        Self::around(address) == Some(self)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), Self::BITS)
    }
}

impl Element for Prefix {
    type Error = PrefixError;

    fn read(text: &str) -> Result<Self, PrefixError> {
        Self::parse(text)
    }

    fn text(self) -> String {
        self.to_string()
    }
}

/// A member of a security group: an address, or all addresses of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    /// One address.
    Address(IpAddr),
    /// All addresses of a vnic's prefix.
    Prefix(Prefix),
}

/// Members of a security group.
pub type MemberSet = OrderedSet<Member>;

/// Reason why a text is no member of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// A text that is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A block that is no prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

impl Member {
    /// Reads a member: an address, or a prefix with its length. Fails for all else.
    pub fn parse(text: &str) -> Result<Self, MemberError> {
        match text.contains('/') {
            true => Ok(Self::Prefix(Prefix::parse(text)?)),
            false => Ok(Self::Address(parse_ip(text)?)),
        }
    }
}

impl From<IpAddr> for Member {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => f.write_str(&address.text()),
            Self::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

impl Element for Member {
    type Error = MemberError;

    fn read(text: &str) -> Result<Self, MemberError> {
        Self::parse(text)
    }

    fn text(self) -> String {
        self.to_string()
    }
}

impl MemberSet {
    /// True if an address is a member, by itself or by a prefix.
    pub fn has(&self, address: IpAddr) -> bool {
        self.contains(address.into())
            || Prefix::around(address).is_some_and(|prefix| self.contains(Member::Prefix(prefix)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Prefix::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_prefix_is_a_block_of_64_bits() {
        let prefix = Prefix::parse("FD00:42:0:1::/64").unwrap();
        assert_eq!(prefix.to_string(), "fd00:42:0:1::/64");
        assert_eq!(prefix.first().to_string(), "fd00:42:0:1::");
        assert_eq!(prefix.last().to_string(), "fd00:42:0:1:ffff:ffff:ffff:ffff");
        for (address, inside) in [
            ("fd00:42:0:1::", true),
            ("fd00:42:0:1:ffff:ffff:ffff:ffff", true),
            ("fd00:42:0:2::", false),
            ("fd00:42:0:0:ffff:ffff:ffff:ffff", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(prefix.contains(address.parse().unwrap()), inside, "{address}");
        }
    }

    #[test]
    fn other_blocks_are_refused() {
        for text in ["", "fd00::", "fd00::/", "fd00::/x", "fd00::/+64", "x/64", "fd00::/129"] {
            assert_eq!(Prefix::parse(text), Err(PrefixError::Form(text.into())));
        }
        for text in ["fd00::/63", "fd00::/65", "fd00::/0", "fd00::1/128", "10.0.0.0/24"] {
            assert!(refused(text).contains("is not an IPv6 prefix of length 64"), "{text}");
        }
        let told = refused("fd00::1/64");
        assert_eq!(told, "fd00::1/64 is an address in a prefix, not the prefix; write fd00::/64");
        for text in ["::/64", "fe80::/64", "febf:0:0:1::/64", "ff02::/64"] {
            assert!(refused(text).contains("no host of a network can have"), "{text}");
        }
        assert_eq!(Prefix::parse("::ffff:0:0/64"), Err(PrefixError::Form("::ffff:0:0/64".into())));
    }

    #[test]
    fn members_are_addresses_and_prefixes() {
        let texts = ["10.0.0.1", "fd00:1::/64", "fd00:1::7", "FD00:1:0::/64"];
        let set = MemberSet::parse(texts).unwrap();
        assert_eq!(set.texts(), ["10.0.0.1", "fd00:1::/64", "fd00:1::7"]);
        let has = |text: &str| set.has(text.parse().unwrap());
        assert!(has("10.0.0.1") && has("fd00:1::7") && has("fd00:1::8"));
        assert!(!has("10.0.0.2") && !has("fd00:1:0:1::7"));
        assert!(matches!(Member::parse("10.0.0.0/24"), Err(MemberError::Prefix(_))));
        assert!(matches!(Member::parse("web"), Err(MemberError::Address(_))));
    }
}
