//! Ethernet addresses as operators write them.

use std::fmt;

/// The Ethernet address of a vnic: the octets, and the text it was declared with, which is echoed
/// unchanged.
///
/// ```
/// use butterfly_model::Mac;
/// let mac = Mac::parse("02:00:00:00:AB:01")?;
/// assert_eq!((mac.octets(), mac.text()), ([2, 0, 0, 0, 0xab, 1], "02:00:00:00:AB:01"));
/// assert_eq!(mac.no_station(), None);
/// # Ok::<(), butterfly_model::MacError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mac {
    octets: [u8; 6],
    text: Box<str>,
}

/// Error of reading a text that is no address of a vnic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// A text that does not have the form.
    #[error(
        "MAC address \"{0}\" is refused: it must be six pairs of hexadecimal digits joined by colons, like 52:54:00:12:34:56"
    )]
    Form(String),
}

impl Mac {
    /// Reads `xx:xx:xx:xx:xx:xx`, in either case. Fails for any other form.
    pub fn parse(text: &str) -> Result<Self, MacError> {
        let octets = octets(text).ok_or_else(|| MacError::Form(text.to_owned()))?;
        Ok(Self { octets, text: text.into() })
    }

    /// Returns why nothing can be sent to it alone, `None` if something can.
    pub fn no_station(&self) -> Option<&'static str> {
        match self.octets {
            [first, ..] if first & 1 != 0 => Some("it is a group address"),
            [0, 0, 0, 0, 0, 0] => Some("it is nobody's"),
            _ => None,
        }
    }

    /// Returns the six bytes in the order of transmission.
    pub fn octets(&self) -> [u8; 6] {
        self.octets
    }

    /// Returns the address as it was declared.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn octets(text: &str) -> Option<[u8; 6]> {
    let mut pairs = text.split(':');
    let mut octets = [0; 6];
    for octet in &mut octets {
        let pair = pairs.next().filter(|pair| pair.len() == 2)?;
        // `from_str_radix` would take a sign.
        if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        *octet = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_kept_and_the_octets_are_read() {
        for (text, octets) in [
            ("42:42:42:42:42:01", [0x42, 0x42, 0x42, 0x42, 0x42, 1]),
            ("aA:bB:cC:dD:eE:fF", [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]),
            ("00:00:00:00:00:01", [0, 0, 0, 0, 0, 1]),
        ] {
            let mac = Mac::parse(text).unwrap();
            assert_eq!((mac.text(), mac.octets()), (text, octets));
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "42:42:42:42:42",
            "42:42:42:42:42:1",
            "42:42:42:42:42:01:",
            "42:42:42:42:42:01:02",
            "42-42-42-42-42-01",
            "4242:42:42:42:01:",
            "42:42:42:42:42:0g",
            "+2:42:42:42:42:01",
            " 42:42:42:42:42:01",
            "42:42:42:42:42:01\0",
            "é:42:42:42:42:42:1",
        ] {
            assert_eq!(Mac::parse(text), Err(MacError::Form(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_station_s_is_taken_and_told() {
        for (text, why) in [
            ("00:00:00:00:00:00", Some("it is nobody's")),
            ("ff:ff:ff:ff:ff:ff", Some("it is a group address")),
            ("01:00:5e:00:00:01", Some("it is a group address")),
            ("02:00:5e:00:00:01", None),
        ] {
            assert_eq!(Mac::parse(text).unwrap().no_station(), why);
        }
    }
}
