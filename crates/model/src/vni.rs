//! Network identifiers.

use std::fmt;

/// The identifier of a network: 24 bits, as VXLAN carries them (RFC 7348, 5).
///
/// ```
/// use butterfly_model::Vni;
/// assert_eq!(Vni::new(5).map(Vni::number), Ok(5));
/// assert!(Vni::new(1 << 24).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

/// Error of a number that does not fit 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("VNI {0} is out of range: VNIs are 0 to {max}", max = Vni::MAX)]
pub struct VniOutOfRange(pub u32);

impl Vni {
    /// Largest VNI.
    pub const MAX: u32 = (1 << 24) - 1;

    /// Makes a VNI of its number. Fails above [`Vni::MAX`].
    pub fn new(number: u32) -> Result<Self, VniOutOfRange> {
        if number > Self::MAX { Err(VniOutOfRange(number)) } else { Ok(Self(number)) }
    }

    /// Returns its number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_four_bits_are_the_limit() {
        for number in [0, 1337, 16_777_215] {
            assert_eq!(Vni::new(number).unwrap().number(), number);
        }
        for number in [16_777_216, u32::MAX] {
            assert_eq!(Vni::new(number), Err(VniOutOfRange(number)));
        }
        let text = VniOutOfRange(16_777_216).to_string();
        assert_eq!(text, "VNI 16777216 is out of range: VNIs are 0 to 16777215");
    }
}
