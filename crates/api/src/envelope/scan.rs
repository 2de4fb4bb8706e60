//! Finds the parts of an envelope, without decoding or copying any.
//!
//! Decoding multiplies what arrives; this only steps from field to field, as the decoder would.

use std::ops::Range;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it ends too early or has a field of no kind")]
pub(crate) struct Malformed;

/// The content of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Varint(u64),
    /// Length-delimited: where its bytes are.
    Bytes(Range<usize>),
    /// A field of fixed size, or a group, with the groups within it.
    Other,
}

/// The fields of a message, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the message that is `bytes[range]`; places are those in `bytes`.
    pub(crate) fn within(bytes: &'a [u8], range: Range<usize>) -> Self {
        Self { bytes: bytes.get(..range.end).unwrap_or_default(), at: range.start }
    }

    /// The number and the content of the next field.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Content)>, Malformed> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let (number, kind) = self.tag()?;
        let content = match kind {
            3 => {
                self.skip_group()?;
                Content::Other
            }
            _ => self.content(kind)?,
        };
        Ok(Some((number, content)))
    }

    /// The fields of a message that is the content of one of these.
    pub(crate) fn inside(&self, range: Range<usize>) -> Self {
        Self::within(self.bytes, range)
    }

    /// Returns the offset of the next field.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn content(&mut self, kind: u32) -> Result<Content, Malformed> {
        match kind {
            0 => self.varint().map(Content::Varint),
            1 => self.take(8).map(|_| Content::Other),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                self.take(length).map(Content::Bytes)
            }
            5 => self.take(4).map(|_| Content::Other),
            _ => Err(Malformed),
        }
    }

    /// Groups may nest, as the decoder takes them to 100 levels; they are counted, not followed
    /// down.
    fn skip_group(&mut self) -> Result<(), Malformed> {
        let mut open = 1_usize;
        while open > 0 {
            match self.tag()? {
                (_, 3) => open += 1,
                (_, 4) => open -= 1,
                (_, kind) => {
                    self.content(kind)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a tag. The decoder takes none of more than five bytes, as 32 bits need no more.
    fn tag(&mut self) -> Result<(u32, u32), Malformed> {
        let from = self.at;
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let is_tag = tag >> 3 != 0 && self.at - from <= 5;
        if is_tag { Ok((tag >> 3, tag & 7)) } else { Err(Malformed) }
    }

    fn take(&mut self, length: usize) -> Result<Range<usize>, Malformed> {
        let end =
            self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(Malformed)?;
        Ok(std::mem::replace(&mut self.at, end)..end)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(Malformed)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                // The tenth has one bit left.
                return if shift == 63 && byte > 1 { Err(Malformed) } else { Ok(value) };
            }
        }
        Err(Malformed)
    }
}

/// Puts a varint behind `to`.
pub(crate) fn push_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Puts the tag and the length of a length-delimited field behind `to`.
pub(crate) fn push_header(to: &mut Vec<u8>, number: u32, length: usize) {
    push_varint(to, u64::from(number << 3 | 2));
    push_varint(to, length as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protobuf::CodedInputStream;

    fn all(bytes: &[u8]) -> Result<Vec<(u32, Content)>, Malformed> {
        let mut fields = Fields::within(bytes, 0..bytes.len());
        let mut found = Vec::new();
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_of_every_kind_are_found() {
        let bytes = b"\x08\x96\x01\x12\x02ab\x1d\0\0\0\0\x21\0\0\0\0\0\0\0\0\x2b\x08\x01\x2c\x32\x00\x3b\x3b\x3c\x08\x01\x44";
        let expected = [
            (1, Content::Varint(150)),
            (2, Content::Bytes(5..7)),
            (3, Content::Other),
            (4, Content::Other),
            (5, Content::Other),
            (6, Content::Bytes(27..27)),
            (7, Content::Other),
        ];
        assert_eq!(all(bytes).unwrap(), expected);
        assert_eq!(
            all(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap(),
            [(1, Content::Varint(u64::MAX))]
        );
        for bad in [
            &b"\x08"[..],
            b"\x12\x02a",
            b"\x00\x00",
            b"\x0e",
            b"\x0b",
            b"\x0b\x0b",
            b"\x0b\x0b\x0c",
            b"\x0c",
            &[0xff; 11],
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\xca\x8f\xaa\xaa\x8f\x00\x00", // a tag of six bytes
        ] {
            assert_eq!(all(bad), Err(Malformed), "{bad:x?}");
        }
    }

    #[test]
    fn what_is_pushed_is_found() {
        let mut bytes = Vec::new();
        push_header(&mut bytes, 100, 300);
        bytes.resize(bytes.len() + 300, 7);
        assert_eq!(all(&bytes).unwrap(), [(100, Content::Bytes(4..304))]);
    }

    proptest! {
        /// The decoder never gets further than this: neither to the end, nor to where it stops.
        #[test]
        fn the_decoder_agrees(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 8_u8..16, Just(0)], 0..40)) {
            let mut input = CodedInputStream::from_bytes(&bytes);
            let mut unknown = protobuf::UnknownFields::new();
            let mut fields = Fields::within(&bytes, 0..bytes.len());
            while let Ok(Some(tag)) = input.read_raw_tag_or_eof()
                && protobuf::rt::read_unknown_or_skip_group(tag, &mut input, &mut unknown).is_ok()
            {
                prop_assert!(matches!(fields.next(), Ok(Some(_))), "after {} bytes", input.pos());
                prop_assert_eq!(fields.position() as u64, input.pos());
            }
        }
    }
}
