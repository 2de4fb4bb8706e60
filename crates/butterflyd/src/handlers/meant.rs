//! Guesses the name that an operator meant who gave an unknown one.

use super::{Daemon, nic::unknown};
use crate::dataplane::Dataplane;
use butterfly_api::Failure;
use butterfly_model::Nic;
use strsim::damerau_levenshtein;

/// Letters of a name that may be wrong for each one that is right: of three letters one.
const RIGHT: usize = 3;
/// Longer names are compared with none, and no more names than these: it takes time.
const LONGEST: usize = 64;
const MOST: usize = 1000;

impl<D: Dataplane> Daemon<D> {
    /// The vnic `id`; else a failure that names the closest one.
    pub(super) fn declared(&self, id: &str) -> Result<&Nic, Failure> {
        self.desired.vnics().get(id).ok_or_else(|| {
            suggest(unknown(id), id, self.desired.vnics().iter().map(|nic| nic.id.as_str()))
        })
    }
}

/// Adds the one of `names` that `word` was probably meant to be, if there is one.
pub(super) fn suggest<'a>(
    failure: Failure,
    word: &str,
    names: impl Iterator<Item = &'a str>,
) -> Failure {
    match closest(word, names) {
        Some(name) => failure.with_help(format!("did you mean {name}?")),
        None => failure,
    }
}

fn closest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let most = |name: &str| name.len() / RIGHT;
    let alike =
        names.filter(|name| name.len() <= LONGEST && name.len().abs_diff(word.len()) <= most(name));
    let compared =
        alike.take(MOST).map(|name| (name, damerau_levenshtein(&name.to_lowercase(), &lower)));
    let near = compared.filter(|(name, wrong)| *wrong <= most(name));
    near.min_by_key(|(_, wrong)| *wrong).map(|(name, _)| name)
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

    /// Other clients wait meanwhile.
    #[test]
    fn so_many_names_are_compared_and_no_more() {
        let names = |others: usize| {
            (0..others)
                .map(|n| format!("other-{n:05}"))
                .chain(["machine-07".to_owned()])
                .collect::<Vec<_>>()
        };
        let found = |names: &[String]| {
            closest("machine-70", names.iter().map(String::as_str)).map(str::to_owned)
        };
        assert_eq!(found(&names(MOST - 1)).as_deref(), Some("machine-07"));
        assert_eq!(found(&names(MOST)), None);
        // Names whose length tells enough do not count.
        let short: Vec<String> = (0..5 * MOST).map(|n| n.to_string()).chain(names(0)).collect();
        assert_eq!(found(&short).as_deref(), Some("machine-07"));
    }
}
