//! What somebody meant who names what is not there.

use super::{Daemon, nic::unknown};
use crate::dataplane::Dataplane;
use butterfly_api::Failure;
use butterfly_model::Nic;
use strsim::damerau_levenshtein;

/// Letters of a name that may be wrong for each one that is right: of three letters one.
const RIGHT: usize = 3;
/// Longer names are compared with none: it takes time.
const LONGEST: usize = 64;

impl<D: Dataplane> Daemon<D> {
    /// The vnic `id`; else a failure that names the closest one.
    pub(super) fn declared(&self, id: &str) -> Result<&Nic, Failure> {
        self.nics.get(id).ok_or_else(|| suggest(unknown(id), id, self.nics.iter().map(|nic| nic.id.as_str())))
    }
}

/// Adds the one of `names` that `word` was probably meant to be, if there is one.
pub(super) fn suggest<'a>(failure: Failure, word: &str, names: impl Iterator<Item = &'a str>) -> Failure {
    match closest(word, names) {
        Some(name) => failure.with_help(format!("did you mean {name}?")),
        None => failure,
    }
}

fn closest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let near = |name: &&str| {
        let most = name.len() / RIGHT;
        name.len() <= LONGEST
            && name.len().abs_diff(word.len()) <= most
            && damerau_levenshtein(&name.to_lowercase(), &lower) <= most
    };
    names.filter(near).min_by_key(|name| damerau_levenshtein(name, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_meant() {
        let names = ["a", "db", "vm-1", "vm-10", "web", "web-front"];
        for (word, meant) in [
            ("wbe", Some("web")),
            ("WEB", Some("web")),
            ("vm1", Some("vm-1")),
            ("vm-11", Some("vm-1")),
            ("web_frnt", Some("web-front")),
            ("b", None),
            ("dc", None),
            ("nobody", None),
            ("", None),
            (&"w".repeat(100), None),
        ] {
            assert_eq!(closest(word, names.into_iter()), meant, "{word}");
        }
    }
}
