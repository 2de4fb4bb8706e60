//! Pairs of words that an author easily confuses.

const PAIRS: [(&str, &str); 14] = [
    ("source", "destination"),
    ("src", "dst"),
    ("sender", "receiver"),
    ("opener", "responder"),
    ("opener", "other"),
    ("ingress", "egress"),
    ("inbound", "outbound"),
    ("wrapping_add", "wrapping_sub"),
    ("saturating_add", "saturating_sub"),
    ("checked_add", "checked_sub"),
    ("min", "max"),
    ("is_some", "is_none"),
    ("any", "all"),
    ("is_some_and", "is_none_or"),
];

/// Returns the opposite name if `name`, or one of its words, belongs to a pair.
pub fn opposite(name: &str) -> Option<String> {
    let of = |word: &str| {
        PAIRS.iter().find_map(|(a, b)| match word {
            _ if word == *a => Some(*b),
            _ if word == *b => Some(*a),
            _ => None,
        })
    };
    if let Some(other) = of(name) {
        return Some(other.to_owned());
    }
    let words: Vec<&str> = name.split('_').collect();
    let at = words.iter().position(|word| of(word).is_some() && word.len() > 3)?;
    let changed = words
        .iter()
        .enumerate()
        .map(|(i, word)| if i == at { of(word).unwrap_or(word) } else { word });
    Some(changed.collect::<Vec<_>>().join("_"))
}

/// Returns the text with its last name replaced by the opposite one.
pub fn exchanged(text: &str) -> Option<String> {
    let start = text.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
    Some(format!("{}{}", &text[..start], opposite(&text[start..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pairs_have_an_opposite() {
        assert_eq!(opposite("source_port").as_deref(), Some("destination_port"));
        assert_eq!(opposite("is_none").as_deref(), Some("is_some"));
        assert_eq!(opposite("protocol"), None);
    }

    #[test]
    fn a_field_is_exchanged_and_its_owner_stays() {
        assert_eq!(exchanged("packet.tuple.source").as_deref(), Some("packet.tuple.destination"));
    }
}
