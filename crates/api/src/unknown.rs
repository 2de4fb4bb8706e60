//! Fields of messages that this release does not know.

use protobuf::{
    MessageDyn, MessageFull,
    reflect::{ReflectFieldRef, ReflectValueRef},
};

/// True if every field of a message, and of those in it, is one that this release knows.
pub fn knows_all<M: MessageFull>(message: &M) -> bool {
    knows(message)
}

fn knows(message: &dyn MessageDyn) -> bool {
    let known = |value: ReflectValueRef<'_>| match value {
        ReflectValueRef::Message(inner) => knows(&*inner),
        _ => true,
    };
    message.special_fields_dyn().unknown_fields().iter().next().is_none()
        && message.descriptor_dyn().fields().all(|field| match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => value.value().is_none_or(known),
            ReflectFieldRef::Repeated(values) => values.into_iter().all(known),
            ReflectFieldRef::Map(_) => true,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ApplyReq, Nic};
    use protobuf::Message;

    #[test]
    fn an_unknown_field_is_found_wherever_it_is() {
        let known = ApplyReq {
            nic: vec![Nic { id: Some("a".into()), ..Nic::default() }],
            ..ApplyReq::default()
        };
        assert!(knows_all(&known));
        let mut outside = known.clone();
        outside.mut_unknown_fields().add_varint(999, 1);
        assert!(!knows_all(&outside));
        let mut inside = known;
        inside.nic[0].mut_unknown_fields().add_varint(999, 1);
        assert!(!knows_all(&inside));
    }
}
