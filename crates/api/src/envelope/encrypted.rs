//! The encrypted part of an envelope: found without decoding.

use std::ops::Range;

use crate::{
    crypt::EncryptedFields,
    envelope::{
        scan::{self, Content, Fields},
        task::FIELDS,
    },
};

/// The field of [`crate::proto::Messages`] with encrypted content.
pub(super) const ENCRYPTED: u32 = 2;

/// Returns the place and form of the encrypted part of an envelope.
pub(super) fn encrypted_part(
    frame: &[u8],
    range: Range<usize>,
) -> Result<Option<EncryptedFields>, scan::Malformed> {
    let mut fields = Fields::within(frame, range);
    let mut found: Option<EncryptedFields> = None;
    // Behind that many others it is not looked for.
    for _ in 0..FIELDS {
        let Some(field) = fields.next()? else { break };
        if let (ENCRYPTED, Content::Bytes(place)) = field {
            // Of several the last counts, form by form, as decoding has it.
            let before = found.take().unwrap_or_default();
            let EncryptedFields { sealed, legacy } = encrypted_fields(&fields, place)?;
            found = Some(EncryptedFields {
                sealed: sealed.or(before.sealed),
                legacy: legacy.or(before.legacy),
            });
        }
    }
    Ok(found)
}

pub(super) fn encrypted_fields(
    fields: &Fields<'_>,
    place: Range<usize>,
) -> Result<EncryptedFields, scan::Malformed> {
    let mut found = EncryptedFields::default();
    let mut fields = fields.inside(place);
    while let Some((number, content)) = fields.next()? {
        match (number, content) {
            // An error, which means nothing in a request.
            (1, Content::Bytes(place)) => {
                let mut fields = fields.inside(place);
                while fields.next()?.is_some() {}
            }
            (2, Content::Bytes(place)) => found.legacy = Some(place),
            (100, Content::Bytes(place)) => found.sealed = Some(place),
            _ => {}
        }
    }
    Ok(found)
}
