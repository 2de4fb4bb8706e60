//! A header that is put in front of many frames, and is the same for all of them but for a few
//! 16-bit fields.

/// Most bytes of an outer header.
pub const OUTER_MAX: usize = 80;
/// Fields that differ from frame to frame.
pub const FIELDS: usize = 5;

/// Header that goes into a ring in one piece, with its fields stored behind it.
///
/// If it were put together in private memory, the piece could only be read once the stores of its
/// fields are through. Those wait behind the stores of the frame before.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    bytes: [u8; OUTER_MAX],
    /// At most `OUTER_MAX`.
    len: u8,
    /// Offsets of the fields: each ends at `len` at the latest.
    fields: [u8; FIELDS],
}

impl Front {
    /// A header and where its fields are. `None` if it is longer than [`OUTER_MAX`], or a field
    /// lies outside.
    pub fn new(header: &[u8], fields: [usize; FIELDS]) -> Option<Front> {
        let mut bytes = [0; OUTER_MAX];
        bytes.get_mut(..header.len())?.copy_from_slice(header);
        fields
            .iter()
            .all(|at| at.checked_add(2).is_some_and(|end| end <= header.len()))
            .then(|| Front { bytes, len: header.len() as u8, fields: fields.map(|at| at as u8) })
    }

    /// Its length in bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The header without its fields.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8; OUTER_MAX] {
        &self.bytes
    }

    /// Its fields, and where they are: inside of the header.
    #[inline(always)]
    pub(super) fn fields(&self, values: [u16; FIELDS]) -> impl Iterator<Item = (usize, u16)> {
        self.fields.into_iter().map(usize::from).zip(values)
    }

    /// The whole header with these values, in network byte order, in a place of its own.
    #[inline(always)]
    pub fn write(&self, values: [u16; FIELDS], to: &mut [u8; OUTER_MAX]) {
        *to = self.bytes;
        for (at, value) in self.fields(values) {
            if let Some(field) = to.get_mut(at..at + 2) {
                field.copy_from_slice(&value.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_inside() {
        assert!(Front::new(&[0; OUTER_MAX + 1], [0; FIELDS]).is_none());
        assert!(Front::new(&[0; 10], [0, 0, 0, 0, 9]).is_none());
        assert!(Front::new(&[0; 10], [0, 0, usize::MAX, 0, 0]).is_none());
        assert!(Front::new(&[0; 1], [0; FIELDS]).is_none());
        let front = Front::new(&[7; 12], [0, 2, 4, 8, 10]).unwrap();
        let mut bytes = [1; OUTER_MAX];
        front.write([0x0102, 0x0304, 5, 6, 0xffff], &mut bytes);
        assert_eq!(bytes[..front.len()], [1, 2, 3, 4, 0, 5, 7, 7, 0, 6, 255, 255]);
    }
}
