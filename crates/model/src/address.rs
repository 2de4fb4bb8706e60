//! IP addresses as operators write them and as we echo them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A text that is no IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not an IP address; write 192.0.2.1 or 2001:db8::1")]
pub struct AddressError(pub String);

/// An address in the forms `inet_pton` takes: dotted decimal without leading zeros, or IPv6 without a zone.
pub fn parse_ip(text: &str) -> Result<IpAddr, AddressError> {
    text.parse().map_err(|_| AddressError(text.to_owned()))
}

/// The form `inet_ntop` gives `address`.
pub fn canonical(address: IpAddr) -> String {
    match address {
        // The standard library writes addresses below 2^32 in hexadecimal, the C library those from 2^16 with dots.
        IpAddr::V6(v6) if matches!(v6.segments(), [0, 0, 0, 0, 0, 0, high, _] if high != 0) => {
            format!("::{}", low_32_bits(v6))
        }
        other => other.to_string(),
    }
}

fn low_32_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// The addresses of a vnic: each once, in the order of declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSet(Vec<IpAddr>);

impl IpSet {
    /// Reads `texts`; the second and later mention of an address, however written, is dropped.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, AddressError> {
        let mut set = Self::default();
        let mut seen = std::collections::HashSet::new();
        for text in texts {
            let address = parse_ip(text.as_ref())?;
            if seen.insert(address) {
                set.0.push(address);
            }
        }
        Ok(set)
    }

    /// The addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    /// The addresses in the form they are echoed.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().copied().map(canonical).collect()
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
            ("::ffff:102:304", "::ffff:1.2.3.4"),
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
        for text in ["", "10.0.0", "10.0.0.256", "010.0.0.1", "10.0.0.1/24", "fe80::1%eth0", ":::", "1::2::3", " ::1", "::1\0"] {
            assert_eq!(parse_ip(text), Err(AddressError(text.to_owned())));
        }
    }

    #[test]
    fn a_set_keeps_the_first_mention() {
        let set = IpSet::parse(["10.0.0.2", "::1", "10.0.0.1", "0:0::1", "10.0.0.2"]).unwrap();
        assert_eq!(set.texts(), ["10.0.0.2", "::1", "10.0.0.1"]);
        assert!(IpSet::parse([""; 0]).unwrap().addresses().is_empty());
        assert_eq!(IpSet::parse(["::1", ""]), Err(AddressError(String::new())));
    }
}
