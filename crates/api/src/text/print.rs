//! Message to text.

use protobuf::{
    MessageDyn, UnknownValueRef,
    reflect::{FieldDescriptor, MessageRef, ReflectFieldRef, ReflectValueRef},
};
use std::fmt::{Display, Write};

/// `message` in the text format, each field on a line of its own; an empty message is an empty
/// string.
///
/// Fields this version does not know follow the others under their numbers.
pub fn print(message: &dyn MessageDyn) -> String {
    let mut text = Text { out: String::new(), depth: 0 };
    text.message(&MessageRef::from(message));
    text.out
}

struct Text {
    out: String,
    depth: usize,
}

impl Text {
    fn message(&mut self, message: &MessageRef<'_>) {
        let descriptor = message.descriptor_dyn();
        let mut fields: Vec<FieldDescriptor> = descriptor.fields().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            match field.get_reflect(&**message) {
                ReflectFieldRef::Optional(value) => {
                    if let Some(value) = value.value() {
                        self.field(field.name(), value);
                    }
                }
                ReflectFieldRef::Repeated(values) => {
                    for value in values {
                        self.field(field.name(), value);
                    }
                }
                ReflectFieldRef::Map(entries) => {
                    for (key, value) in &entries {
                        self.nested(field.name(), |text| {
                            text.field("key", key);
                            text.field("value", value);
                        });
                    }
                }
            }
        }
        let mut unknown: Vec<_> = message.unknown_fields_dyn().iter().collect();
        unknown.sort_by_key(|(number, _)| *number);
        for (number, value) in unknown {
            match value {
                UnknownValueRef::Varint(value) => self.line(number, value),
                UnknownValueRef::Fixed32(value) => self.line(number, format_args!("{value:#010x}")),
                UnknownValueRef::Fixed64(value) => self.line(number, format_args!("{value:#018x}")),
                UnknownValueRef::LengthDelimited(value) => self.line(number, Quoted(value)),
            }
        }
    }

    fn field(&mut self, name: &str, value: ReflectValueRef<'_>) {
        match value {
            ReflectValueRef::Message(message) => self.nested(name, |text| text.message(&message)),
            ReflectValueRef::String(value) => self.line(name, Quoted(value.as_bytes())),
            ReflectValueRef::Bytes(value) => self.line(name, Quoted(value)),
            ReflectValueRef::Bool(value) => self.line(name, value),
            ReflectValueRef::I32(value) => self.line(name, value),
            ReflectValueRef::I64(value) => self.line(name, value),
            ReflectValueRef::U32(value) => self.line(name, value),
            ReflectValueRef::U64(value) => self.line(name, value),
            ReflectValueRef::F32(value) => self.line(name, value),
            ReflectValueRef::F64(value) => self.line(name, value),
            ReflectValueRef::Enum(descriptor, number) => match descriptor.value_by_number(number) {
                Some(value) => self.line(name, value.name()),
                None => self.line(name, number),
            },
        }
    }

    fn nested(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        self.indent();
        self.out.push_str(name);
        self.out.push_str(" {\n");
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.indent();
        self.out.push_str("}\n");
    }

    fn line(&mut self, name: impl Display, value: impl Display) {
        self.indent();
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{name}: {value}");
    }

    fn indent(&mut self) {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }
}

/// Bytes as a C string literal: what is not printable ASCII becomes a named or a three-digit octal
/// escape.
struct Quoted<'a>(&'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for &byte in self.0 {
            match byte {
                b'\n' => f.write_str(r"\n")?,
                b'\r' => f.write_str(r"\r")?,
                b'\t' => f.write_str(r"\t")?,
                b'"' => f.write_str("\\\"")?,
                b'\'' => f.write_str(r"\'")?,
                b'\\' => f.write_str(r"\\")?,
                b' '..=b'~' => f.write_char(char::from(byte))?,
                _ => write!(f, "\\{byte:03o}")?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Cidr, Messages, Nic, Request, Rule, nic::Type, rule::Direction};
    use protobuf::{EnumOrUnknown, Message, MessageField};

    /// The text whose hash the client shows for this rule is known to the byte.
    #[test]
    fn a_rule_prints_as_the_contract_says() {
        let mut rule = Rule::new();
        rule.set_direction(Direction::INBOUND);
        rule.set_protocol(42);
        rule.set_security_group("sg-2".into());
        assert_eq!(print(&rule), "direction: INBOUND\nprotocol: 42\nsecurity_group: \"sg-2\"\n");
    }

    #[test]
    fn nested_messages_are_indented_and_in_number_order() {
        let mut rule = Rule::new();
        rule.set_protocol(6);
        rule.set_direction(Direction::OUTBOUND);
        rule.cidr = MessageField::some(Cidr {
            address: Some("::".into()),
            mask_size: Some(0),
            ..Default::default()
        });
        let mut request = Request::new();
        request.set_worker_list(true);
        request.sg_rule_add.mut_or_insert_default().rule = MessageField::some(rule);
        let expected = "\
sg_rule_add {
  rule {
    direction: OUTBOUND
    protocol: 6
    cidr {
      address: \"::\"
      mask_size: 0
    }
  }
}
worker_list: true
";
        assert_eq!(print(&request), expected);
    }

    #[test]
    fn an_empty_nested_message_keeps_its_braces() {
        let messages = Messages { messages: vec![Default::default()], ..Default::default() };
        assert_eq!(print(&messages), "messages {\n}\n");
    }

    #[test]
    fn strings_are_ascii_with_c_escapes() {
        let nic = Nic { id: Some("é\n\r\t\"'\\\0\x7f".into()), ..Default::default() };
        assert_eq!(print(&nic), "id: \"\\303\\251\\n\\r\\t\\\"\\'\\\\\\000\\177\"\n");
    }

    #[test]
    fn what_is_unknown_is_printed_by_number() {
        let mut nic = Nic { type_: Some(EnumOrUnknown::from_i32(77)), ..Default::default() };
        assert_eq!(print(&nic), "type: 77\n");
        nic.set_type(Type::VHOST_USER_CLIENT);
        // Field 200: varint 7; field 201: the bytes "ab"; field 202: 32 bits.
        let unknown = [0xc0, 0x0c, 7, 0xca, 0x0c, 2, b'a', b'b', 0xd5, 0x0c, 42, 0, 0, 0];
        nic.merge_from_bytes(&unknown).unwrap();
        assert_eq!(print(&nic), "type: VHOST_USER_CLIENT\n200: 7\n201: \"ab\"\n202: 0x0000002a\n");
    }
}
