//! Bytes to messages, strictly.

use protobuf::{CodedInputStream, MessageFull};

/// Decodes `bytes`, all of them, into a message with all its required fields.
///
/// The library's own `parse_from_bytes` takes a message that is longer than the input for one that
/// ends with it. So half of a request would be carried out. Here every length is compared with the
/// input.
pub fn decode<M: MessageFull>(bytes: &[u8]) -> Result<M, protobuf::Error> {
    let mut input = CodedInputStream::from_bytes(bytes);
    input.push_limit(bytes.len() as u64)?;
    let mut message = M::new();
    message.merge_from(&mut input)?;
    message.check_initialized()?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto::Messages, text};
    use protobuf::Message;

    #[test]
    fn no_part_of_a_message_is_a_message() {
        let whole = text::parse::<Messages>(
            r#"messages { revision: 6 message_0 { request { nic_add { id: "n" mac: "m" vni: 1 ip: "i" } } message_id: "x" } }"#,
        )
        .unwrap();
        let bytes = whole.write_to_bytes().unwrap();
        assert_eq!(decode::<Messages>(&bytes).unwrap(), whole);
        for length in 1..bytes.len() {
            assert!(decode::<Messages>(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
    }
}
