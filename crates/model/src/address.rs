//! IP addresses as operators write them and as we echo them.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    hash::Hash,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Error of reading a text that is no IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not an IP address; write 192.0.2.1 or 2001:db8::1")]
pub struct AddressError(pub String);

/// Reads an address in the forms `inet_pton` takes: dotted decimal without leading zeros, or IPv6
/// without a zone.
///
/// Fails for anything else. IPv4 in the form of IPv6 (`::ffff:192.0.2.1`) is refused: no packet
/// carries it, and it must not be taken for the other family's.
///
/// ```
/// use butterfly_model::{canonical, parse_ip};
/// assert_eq!(canonical(parse_ip("2001:DB8:0::1")?), "2001:db8::1");
/// assert!(parse_ip("10.0.0.01").is_err() && parse_ip("::ffff:192.0.2.1").is_err());
/// # Ok::<(), butterfly_model::AddressError>(())
/// ```
pub fn parse_ip(text: &str) -> Result<IpAddr, AddressError> {
    let mapped = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    text.parse().ok().filter(|ip| !mapped(ip)).ok_or_else(|| AddressError(text.to_owned()))
}

/// Returns the form that `inet_ntop` gives `address`.
pub fn canonical(address: IpAddr) -> String {
    match address {
        // The standard library writes addresses below 2^32 in hexadecimal, the C library those from
        // 2^16 with dots.
        IpAddr::V6(v6) if matches!(v6.segments(), [0, 0, 0, 0, 0, 0, high, _] if high != 0) => {
            format!("::{}", low_32_bits(v6))
        }
        other => other.to_string(),
    }
}

/// Returns whether a host can have a tunnel endpoint with this address, to which others send: not
/// if it is unspecified, of 0.0.0.0/8, loopback, a group, broadcast, or IPv4 in the form of IPv6.
///
/// ```
/// use butterfly_model::{may_be_endpoint, parse_ip};
/// assert!(may_be_endpoint(parse_ip("192.0.2.1")?));
/// assert!(!may_be_endpoint(parse_ip("239.0.0.1")?) && !may_be_endpoint(parse_ip("::1")?));
/// # Ok::<(), butterfly_model::AddressError>(())
/// ```
pub fn may_be_endpoint(address: IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().is_some(),
    };
    !(special || address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

fn low_32_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// An element of an [`OrderedSet`]: read from a text of an operator, and echoed as one.
pub trait Element: Copy + Eq + Hash + fmt::Debug {
    /// Reason why a text is refused.
    type Error;

    /// Reads an element. Fails for a text that is none.
    fn read(text: &str) -> Result<Self, Self::Error>;

    /// Returns the form in which it is echoed.
    fn text(self) -> String;
}

impl Element for IpAddr {
    type Error = AddressError;

    fn read(text: &str) -> Result<Self, AddressError> {
        parse_ip(text)
    }

    fn text(self) -> String {
        canonical(self)
    }
}

/// Elements, each once, in the order they were added.
///
/// Adding, removing and finding one takes a time that hardly depends on how many there are: groups
/// have 100,000 members, and change one at a time.
///
/// ```
/// use butterfly_model::IpSet;
/// let mut set = IpSet::parse(["10.0.0.2", "fd00::1", "FD00::1"])?;
/// assert!(set.insert("10.0.0.1".parse().unwrap()));
/// assert_eq!(set.texts(), ["10.0.0.2", "fd00::1", "10.0.0.1"]);
/// # Ok::<(), butterfly_model::AddressError>(())
/// ```
#[derive(Clone)]
pub struct OrderedSet<T> {
    /// The elements by their places, which only grow.
    in_order: BTreeMap<u64, T>,
    places: HashMap<T, u64>,
    next_place: u64,
}

/// Addresses of a vnic.
pub type IpSet = OrderedSet<IpAddr>;

impl<T> Default for OrderedSet<T> {
    fn default() -> Self {
        Self { in_order: BTreeMap::new(), places: HashMap::new(), next_place: 0 }
    }
}

impl<T: Element> OrderedSet<T> {
    /// Reads `texts`; the second and later mention of an element, however written, is dropped.
    /// Fails for the first text that is none.
    pub fn parse<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Result<Self, T::Error> {
        texts.into_iter().map(|text| T::read(text.as_ref())).collect()
    }

    /// Adds `element` at the end. Returns whether it was not there already.
    pub fn insert(&mut self, element: T) -> bool {
        let Entry::Vacant(place) = self.places.entry(element) else { return false };
        place.insert(self.next_place);
        self.in_order.insert(self.next_place, element);
        self.next_place += 1;
        true
    }

    /// Takes `element` out; the others keep their order. Returns whether it was there.
    pub fn remove(&mut self, element: T) -> bool {
        let Some(place) = self.places.remove(&element) else { return false };
        self.in_order.remove(&place);
        true
    }

    /// True if `element` is one of them.
    pub fn contains(&self, element: T) -> bool {
        self.places.contains_key(&element)
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> {
        self.in_order.values().copied()
    }

    /// Returns the elements in the form they are echoed.
    pub fn texts(&self) -> Vec<String> {
        self.iter().map(T::text).collect()
    }
}

impl OrderedSet<IpAddr> {
    /// Returns the addresses in order.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = IpAddr> {
        self.iter()
    }
}

impl<T: Element> FromIterator<T> for OrderedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut set = Self::default();
        for element in elements {
            set.insert(element);
        }
        set
    }
}

/// Sets are equal if they are echoed alike.
impl<T: Element> PartialEq for OrderedSet<T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Element> Eq for OrderedSet<T> {}

impl<T: Element> fmt::Debug for OrderedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_form_is_that_of_inet_ntop() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("2001:0DB8:0:85a3:0:0:AC1F:8001", "2001:db8:0:85a3::ac1f:8001"),
            ("0:0:0:0:0:0:0:0", "::"),
            ("::1", "::1"),
            ("::ffff", "::ffff"),
            ("::1:0", "::0.1.0.0"),
            ("::102:304", "::1.2.3.4"),
            ("::fffe:102:304", "::fffe:102:304"),
            ("1:0:0:2:0:0:0:3", "1:0:0:2::3"),
            ("1:0:0:2:3:0:0:4", "1::2:3:0:0:4"),
            ("1:0:2:3:4:5:6:7", "1:0:2:3:4:5:6:7"),
            ("64:ff9b::1.2.3.4", "64:ff9b::102:304"),
        ] {
            assert_eq!(canonical(parse_ip(text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.256",
            "010.0.0.1",
            "10.0.0.1/24",
            "fe80::1%eth0",
            ":::",
            "1::2::3",
            " ::1",
            "::1\0",
            "::ffff:1.2.3.4",
            "::ffff:0:0",
        ] {
            assert_eq!(parse_ip(text), Err(AddressError(text.to_owned())));
        }
    }

    #[test]
    fn a_set_keeps_the_first_mention() {
        let set = IpSet::parse(["10.0.0.2", "::1", "10.0.0.1", "0:0::1", "10.0.0.2"]).unwrap();
        assert_eq!(set.texts(), ["10.0.0.2", "::1", "10.0.0.1"]);
        assert!(IpSet::parse([""; 0]).unwrap().is_empty());
        assert_eq!(IpSet::parse(["::1", ""]), Err(AddressError(String::new())));
    }

    #[test]
    fn one_comes_or_goes_and_the_others_keep_their_order() {
        let [a, b, c] = ["10.0.0.1", "::1", "10.0.0.2"].map(|text| parse_ip(text).unwrap());
        let mut set = IpSet::parse(["10.0.0.1", "::1"]).unwrap();
        assert!(!set.insert(b), "it is there");
        assert!(set.insert(c) && set.contains(c));
        assert_eq!(
            (set.texts(), set.len()),
            (["10.0.0.1", "::1", "10.0.0.2"].map(String::from).into(), 3)
        );
        assert!(set.remove(a) && !set.contains(a));
        assert!(!set.remove(a), "it is gone");
        assert!(set.insert(a), "it comes back, as the last");
        assert_eq!(set.texts(), ["::1", "10.0.0.2", "10.0.0.1"]);
        // How it became so does not matter, the order does.
        assert_eq!(set, IpSet::parse(["::1", "10.0.0.2", "10.0.0.1"]).unwrap());
        assert_ne!(set, IpSet::parse(["10.0.0.1", "::1", "10.0.0.2"]).unwrap());
        assert!([a, b, c].into_iter().all(|address| set.remove(address)) && set.is_empty());
    }
}
