//! Estimates the memory that a message takes when it is decoded, before that.
//!
//! A field of two bytes may become a structure of hundreds, so the length of a request says little
//! about that.

use super::scan::{Content, Fields};
use crate::proto::Message;
use protobuf::{
    MessageFull,
    reflect::{MessageDescriptor, RuntimeFieldType, RuntimeType},
};
use std::{collections::HashMap, ops::Range, sync::OnceLock};

/// Messages up to this length are not weighed: the worst of them takes two megabytes.
const LIGHT: usize = 4096;
/// Most bytes that a message may take: a group of a hundred thousand members does.
pub(super) const MOST: usize = 12 << 20;
/// Bytes that the allocator adds to a block, and the least that it gives.
const BLOCK: usize = 32;
/// Bytes of an unknown field, with its share of the table that has it.
const UNKNOWN: usize = 512;

/// True if the message that is `bytes[range]` may be decoded.
pub(super) fn is_fit(bytes: &[u8], range: Range<usize>) -> bool {
    range.len() <= LIGHT || weight(bytes, range) <= MOST
}

/// Bytes that the message takes when it is decoded, at most. Of a malformed one, as far as the
/// decoder gets.
fn weight(bytes: &[u8], range: Range<usize>) -> usize {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    let shapes = SHAPES.get_or_init(|| Shapes::of(Message::descriptor()));
    let mut total = 0;
    shapes.add(0, Fields::within(bytes, range), &mut total);
    total
}

/// Memory that a field becomes.
#[derive(Clone, Copy)]
enum Kind {
    /// One of [`Shapes`].
    Message(usize),
    /// Text or bytes.
    Text,
    Number,
}

struct Field {
    kind: Kind,
    repeated: bool,
}

struct Shape {
    size: usize,
    fields: HashMap<u32, Field>,
}

/// All messages that may be within one; that one is the first.
struct Shapes(Vec<Shape>);

impl Shapes {
    fn of(descriptor: MessageDescriptor) -> Self {
        let mut found = vec![descriptor];
        let mut shapes = Vec::new();
        while let Some(descriptor) = found.get(shapes.len()).cloned() {
            let size = size_of_val(&*descriptor.new_instance());
            let mut fields = HashMap::new();
            for field in descriptor.fields() {
                let (repeated, of) = match field.runtime_field_type() {
                    RuntimeFieldType::Singular(of) => (false, of),
                    RuntimeFieldType::Repeated(of) | RuntimeFieldType::Map(_, of) => (true, of),
                };
                let kind = match of {
                    RuntimeType::Message(inner) => {
                        let known = found.iter().position(|known| *known == inner);
                        Kind::Message(known.unwrap_or_else(|| {
                            found.push(inner);
                            found.len() - 1
                        }))
                    }
                    RuntimeType::String | RuntimeType::VecU8 => Kind::Text,
                    _ => Kind::Number,
                };
                fields.insert(field.number() as u32, Field { kind, repeated });
            }
            shapes.push(Shape { size, fields });
        }
        Self(shapes)
    }

    fn add(&self, shape: usize, mut fields: Fields<'_>, total: &mut usize) {
        let Some(Shape { fields: known, .. }) = self.0.get(shape) else { return };
        while *total <= MOST
            && let Ok(Some((number, content))) = fields.next()
        {
            let Some(Field { kind, repeated }) = known.get(&number) else {
                let length = if let Content::Bytes(place) = &content { place.len() } else { 0 };
                *total += UNKNOWN + length;
                continue;
            };
            // A list has room for up to twice as many as are in it.
            let places = if *repeated { 2 } else { 1 };
            match (kind, content) {
                (Kind::Message(inner), Content::Bytes(place)) => {
                    let size = self.0.get(*inner).map_or(0, |shape| shape.size);
                    *total += BLOCK + size * places;
                    self.add(*inner, fields.inside(place), total);
                }
                (Kind::Text, Content::Bytes(place)) => {
                    *total += if *repeated { size_of::<String>() * places } else { 0 }
                        + BLOCK
                        + place.len();
                }
                (Kind::Number, Content::Bytes(place)) if *repeated => {
                    *total += BLOCK + place.len() * size_of::<u64>() * places;
                }
                // One that is not repeated takes no memory, only time: no client sends it a million
                // times.
                (Kind::Number, Content::Varint(_)) => *total += size_of::<u64>() * places,
                (_, Content::Bytes(place)) => *total += UNKNOWN + place.len(),
                // Of another kind than declared: kept as unknown, and so are numbers of a fixed
                // size, which no message has.
                _ => *total += UNKNOWN,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode,
        envelope::scan::push_header,
        proto::{MessageV0, Request, Sg},
    };
    use protobuf::{Message as _, MessageField};

    fn group(members: usize, member: impl Fn(usize) -> String) -> Vec<u8> {
        let group = Sg {
            id: Some("g".into()),
            member: (0..members).map(member).collect(),
            ..Default::default()
        };
        let request = Request { sg_add: MessageField::some(group), ..Default::default() };
        let message = MessageV0 { request: MessageField::some(request), ..Default::default() };
        let message = Message {
            revision: Some(6),
            message_0: MessageField::some(message),
            ..Default::default()
        };
        message.write_to_bytes().unwrap()
    }

    /// `field` of a request, or of a response, `times` over.
    fn repeated(outer: u32, fields: &[u32], content: &[u8], times: usize) -> Vec<u8> {
        let mut inner = content.repeat(times);
        for field in fields.iter().rev().chain(&[outer, 3]) {
            let mut wrapped = Vec::new();
            push_header(&mut wrapped, *field, inner.len());
            wrapped.extend_from_slice(&inner);
            inner = wrapped;
        }
        inner.extend_from_slice(&[0x08, 0x06]);
        inner
    }

    #[test]
    fn large_groups_are_fit() {
        let small = group(100_000, |n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255));
        assert!(is_fit(&small, 0..small.len()), "{}", weight(&small, 0..small.len()));
        let large = group(100_000, |n| format!("2001:db8:1234:5678:9abc:def0:{:x}:{n:x}", n >> 8));
        assert!(is_fit(&large, 0..large.len()), "{}", weight(&large, 0..large.len()));
        assert!(decode::<Message>(&large).is_ok());
    }

    #[test]
    fn bombs_are_not() {
        for (what, bomb) in [
            ("empty members", group(1 << 20, |_| String::new())),
            ("empty rules", repeated(1, &[8], &[0x1a, 0], 200_000)),
            ("empty vnics in a response", repeated(2, &[], &[0x22, 0], 200_000)),
            ("fields that nobody knows", repeated(1, &[], &[0xb0, 0x09, 0x01], 100_000)),
            ("empty rules behind a group in a group", {
                let mut rules = b"\xb3\x09\xbb\x09\xbc\x09\xb4\x09".to_vec();
                for _ in 0..200_000 {
                    rules.extend_from_slice(&[0x42, 2, 0x1a, 0]);
                }
                repeated(1, &[], &rules, 1)
            }),
            ("numbers of another kind", {
                let fields = b"\xb2\x06\x32".iter().copied();
                let numbers = (1_u8..=10).flat_map(|field| [field << 3 | 5, 1, 2, 3, 4]);
                repeated(2, &[], &fields.chain(numbers).collect::<Vec<u8>>(), 28_000)
            }),
            ("one long name", repeated(1, &[3], &[b'x'; 1], 15 << 20)),
        ] {
            assert!(!is_fit(&bomb, 0..bomb.len()), "{what}: {}", weight(&bomb, 0..bomb.len()));
        }
    }

    /// Structures that are not weighed cannot be heavy: no repeated structure is so large that a
    /// light message of them is.
    #[test]
    fn light_ones_are_light() {
        let shapes = Shapes::of(Message::descriptor());
        let largest = shapes
            .0
            .iter()
            .flat_map(|shape| shape.fields.values())
            .filter_map(|field| match field {
                Field { kind: Kind::Message(inner), repeated: true } => Some(shapes.0[*inner].size),
                _ => None,
            })
            .max()
            .unwrap();
        assert!(LIGHT / 2 * (largest * 2 + BLOCK) <= 3 << 20, "{largest}");
        const { assert!(LIGHT / 2 * UNKNOWN <= 2 << 20) };
        assert!(shapes.0.len() > 50, "{}", shapes.0.len());
    }

    /// A number of a fixed size is weighed as one that is not known.
    #[test]
    fn no_message_has_numbers_of_a_fixed_size() {
        use protobuf::descriptor::field_descriptor_proto::Type;
        let mut found = vec![Message::descriptor()];
        let mut at = 0;
        while let Some(descriptor) = found.get(at).cloned() {
            at += 1;
            for field in descriptor.fields() {
                let kind = field.proto().type_();
                let fixed = [
                    Type::TYPE_FIXED32,
                    Type::TYPE_FIXED64,
                    Type::TYPE_SFIXED32,
                    Type::TYPE_SFIXED64,
                    Type::TYPE_FLOAT,
                    Type::TYPE_DOUBLE,
                ];
                assert!(!fixed.contains(&kind), "{} {}", descriptor.full_name(), field.name());
                if let RuntimeFieldType::Singular(RuntimeType::Message(inner))
                | RuntimeFieldType::Repeated(RuntimeType::Message(inner)) =
                    field.runtime_field_type()
                    && !found.contains(&inner)
                {
                    found.push(inner);
                }
            }
        }
        assert!(at > 50, "{at}");
    }
}
