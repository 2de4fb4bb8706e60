//! Declared routes: blocks of addresses that a router leads to by machines, or that it drops.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::{Cidr, CidrError},
    subnet::{SPECIAL, SubnetError, parse_block},
};
use std::{fmt, net::IpAddr};

/// A block of addresses, and the machines by which a router leads there. Each flow goes by one of
/// them. Without any it is a blackhole: the router drops what is for the block.
///
/// ```
/// use butterfly_model::Route;
/// let route = Route::parse("10.9.0.0/16", ["10.0.0.9", "10.0.0.8"])?;
/// assert_eq!(route.to_string(), "10.9.0.0/16 via 10.0.0.9 10.0.0.8");
/// assert_eq!(Route::parse("::/0", [""; 0])?.to_string(), "::/0 blackhole");
/// assert!(Route::parse("10.9.0.0/16", ["fd00::9"]).is_err());
/// # Ok::<(), butterfly_model::RouteError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    to: Cidr,
    via: Box<[IpAddr]>,
}

/// Reason why a route is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A text without a length.
    #[error("\"{0}\" is not a block of addresses; write 10.9.0.0/16, 0.0.0.0/0 or ::/0")]
    Form(String),
    /// The block is none.
    #[error(transparent)]
    Cidr(#[from] CidrError),
    /// A machine's address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Bits beyond the length are set.
    #[error("{given} is an address in a block, not the block; write {meant}")]
    HostBits {
        /// The block as declared.
        given: Cidr,
        /// The block without those bits.
        meant: Cidr,
    },
    /// A block that routers lead nowhere.
    #[error("{0} is no block that a router leads to, as those of {1} are not; choose another")]
    Special(Cidr, Cidr),
    /// A machine's address of the other family.
    #[error("{} cannot lead to {to}, which is of another address family", canonical(*.via))]
    Family {
        /// The block.
        to: Cidr,
        /// The machine's address.
        via: IpAddr,
    },
    /// A machine that is named twice.
    #[error("{} stands twice among the ways to {to}; name it once", canonical(*.via))]
    Twice {
        /// The block.
        to: Cidr,
        /// The machine's address.
        via: IpAddr,
    },
}

impl Route {
    /// Makes a route to a block by machines, in this order. Fails for a block with bits set beyond
    /// its length or without addresses that are routed, for an address of another family, and for
    /// one that is named twice.
    pub fn new(to: Cidr, via: Vec<IpAddr>) -> Result<Self, RouteError> {
        let to = block(to)?;
        for (at, address) in via.iter().enumerate() {
            if !of_family(to, *address) {
                return Err(RouteError::Family { to, via: *address });
            }
            if via.iter().take(at).any(|before| before == address) {
                return Err(RouteError::Twice { to, via: *address });
            }
        }
        Ok(Self { to, via: via.into() })
    }

    /// Reads a route of the texts of its block (`10.9.0.0/16`) and of its machines' addresses.
    pub fn parse<T: AsRef<str>>(
        to: &str,
        via: impl IntoIterator<Item = T>,
    ) -> Result<Self, RouteError> {
        let to = parse_block(to).map_err(|error| match error {
            SubnetError::Cidr(error) => error.into(),
            _ => RouteError::Form(to.to_owned()),
        })?;
        let via = via.into_iter().map(|text| parse_ip(text.as_ref()));
        Self::new(to, via.collect::<Result<_, _>>()?)
    }

    /// Returns the block.
    pub fn to(&self) -> Cidr {
        self.to
    }

    /// Returns the addresses of the machines by which it leads, in the declared order; none for a
    /// blackhole.
    pub fn via(&self) -> &[IpAddr] {
        &self.via
    }

    /// Returns a route to the same block that drops what is for it.
    pub fn closed(&self) -> Self {
        Self { to: self.to, via: Box::default() }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.via {
            [] => write!(f, "{} blackhole", self.to),
            via => {
                write!(f, "{} via", self.to)?;
                via.iter().try_for_each(|address| write!(f, " {}", canonical(*address)))
            }
        }
    }
}

/// Checks a block to which a route may lead. Fails for one with bits beyond its length, and for one
/// of whose addresses none is routed.
fn block(to: Cidr) -> Result<Cidr, RouteError> {
    if to.address() != to.network() {
        return Err(RouteError::HostBits { given: to, meant: to.without_host_bits() });
    }
    let inside =
        |special: &Cidr| special.contains(to.network()) && to.mask_size() >= special.mask_size();
    let special = SPECIAL.map(|(address, bits)| Cidr::from_parts(address, bits));
    match special.iter().find(|special| inside(special)) {
        Some(special) => Err(RouteError::Special(to, *special)),
        None => Ok(to),
    }
}

fn of_family(to: Cidr, address: IpAddr) -> bool {
    to.network().is_ipv4() == address.is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_what_was_said() {
        for (to, via, text) in [
            ("10.9.0.0/16", &["10.0.0.9"][..], "10.9.0.0/16 via 10.0.0.9"),
            ("10.9.0.0/16", &["10.0.0.9", "10.0.0.2"], "10.9.0.0/16 via 10.0.0.9 10.0.0.2"),
            ("0.0.0.0/0", &[], "0.0.0.0/0 blackhole"),
            ("0.0.0.0/1", &[], "0.0.0.0/1 blackhole"),
            ("2001:DB8::/32", &["FD00:0::1"], "2001:db8::/32 via fd00::1"),
            ("::/0", &["fd00::1"], "::/0 via fd00::1"),
            ("10.0.0.1/32", &["10.0.0.2"], "10.0.0.1/32 via 10.0.0.2"),
        ] {
            let route = Route::parse(to, via).unwrap();
            assert_eq!((route.to_string().as_str(), route.via().len()), (text, via.len()));
            assert_eq!(route.closed().to_string(), format!("{} blackhole", route.to()));
        }
    }

    #[test]
    fn what_is_no_route_is_refused() {
        for (to, via, why) in [
            ("10.9.0.0", &[][..], "\"10.9.0.0\" is not a block of addresses; write 10.9.0.0/16"),
            ("10.9.0.0/x", &[], "\"10.9.0.0/x\" is not a block"),
            ("10.9.0.0/+8", &[], "\"10.9.0.0/+8\" is not a block"),
            ("10.9.0.0/33", &[], "mask size 33 of 10.9.0.0 is out of range"),
            (
                "10.9.0.1/16",
                &[],
                "10.9.0.1/16 is an address in a block, not the block; write 10.9.0.0/16",
            ),
            ("224.0.0.0/4", &[], "224.0.0.0/4 is no block that a router leads to"),
            ("127.0.0.1/32", &[], "127.0.0.1/32 is no block"),
            ("0.0.0.0/8", &[], "0.0.0.0/8 is no block"),
            ("fe80::/64", &[], "fe80::/64 is no block"),
            ("::/127", &[], "::/127 is no block"),
            ("10.9.0.0/16", &["x"], "x"),
            (
                "10.9.0.0/16",
                &["fd00::1"],
                "fd00::1 cannot lead to 10.9.0.0/16, which is of another",
            ),
            ("::/0", &["10.0.0.1"], "10.0.0.1 cannot lead to ::/0"),
            (
                "10.9.0.0/16",
                &["10.0.0.1", "10.0.0.1"],
                "10.0.0.1 stands twice among the ways to 10.9",
            ),
        ] {
            let text = Route::parse(to, via).unwrap_err().to_string();
            assert!(text.contains(why), "{to}: {text}");
        }
    }
}
