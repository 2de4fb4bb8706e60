//! Notes on a state that is valid and probably does not do what was meant.
//!
//! Compares what is declared before with what the file makes of it, so that a dry run tells the
//! same as the change itself. The words are those of single commands (`commands/notes.rs`).

use crate::commands::notes::{limits_egress, members_of, some};
use crate::daemon::session::Session;
use butterfly_api::proto::{ApplyReq, Nic, Request, Sg, nic::Type};
use butterfly_model::{Mac, parse_ip};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Most notes that are told.
const TOLD: usize = 10;

/// The vnics and security groups of a host.
#[derive(Default)]
pub struct Host {
    nics: Vec<Nic>,
    groups: Vec<Sg>,
}

/// Returns what is declared now, if its notes are wanted at all.
pub fn host(session: &mut Session) -> Option<Host> {
    if !session.takes_notes() {
        return None;
    }
    let all = || Some(String::new());
    let nics = Request { nic_details: all(), ..Request::default() };
    let groups = Request { sg_details: all(), ..Request::default() };
    let mut host = Host::default();
    for answer in session.ask_each(vec![nics, groups]).ok()? {
        let answer = answer?;
        host.nics.extend(answer.nic_details);
        host.groups.extend(answer.sg_details);
    }
    Some(host)
}

/// Notes what a state that was accepted probably was not meant to be. `before`: the host before.
pub fn note(before: &Host, file: &ApplyReq, session: &mut Session) {
    let mut notes = notes(before, file);
    if !file.dry_run() {
        notes.extend(other_paths(before, file, session));
    }
    notes.iter().take(TOLD).for_each(|text| session.doubt(text));
    if let Some(more) = notes.len().checked_sub(TOLD).filter(|more| *more > 0) {
        session.doubt(&format!("{more} more like these"));
    }
}

/// A state and the one after it.
struct Step<'a> {
    file: &'a ApplyReq,
    /// Ids of the vnics that the file names.
    named: BTreeSet<&'a str>,
    nics_before: BTreeMap<&'a str, &'a Nic>,
    groups_before: BTreeMap<&'a str, &'a Sg>,
    nics: BTreeMap<&'a str, &'a Nic>,
    groups: BTreeMap<&'a str, &'a Sg>,
}

fn notes(before: &Host, file: &ApplyReq) -> Vec<String> {
    let nics_before: BTreeMap<_, _> = before.nics.iter().map(|nic| (nic.id(), nic)).collect();
    let groups_before: BTreeMap<_, _> =
        before.groups.iter().map(|group| (group.id(), group)).collect();
    let (mut nics, mut groups) = match file.prune() {
        true => Default::default(),
        false => (nics_before.clone(), groups_before.clone()),
    };
    nics.extend(file.nic.iter().map(|nic| (nic.id(), nic)));
    groups.extend(file.security_group.iter().map(|group| (group.id(), group)));
    let named = file.nic.iter().map(Nic::id).collect();
    let step = Step { file, named, nics_before, groups_before, nics, groups };
    let mut notes = step.waiting();
    notes.extend(step.shared_addresses());
    notes.extend(step.missing_groups());
    notes.extend(step.groups_without_members());
    notes.extend(step.opened());
    notes.extend(step.mirrors_of_nothing());
    notes.extend(step.paths());
    notes
}

impl<'a> Step<'a> {
    /// Vnics of the file, in its order.
    fn of_file(&self) -> impl Iterator<Item = &'a Nic> {
        self.file.nic.iter()
    }

    /// Vnics that stand in line for a MAC address behind one that has it.
    fn waiting(&self) -> Vec<String> {
        let mut lines: BTreeMap<(u32, [u8; 6]), Vec<&Nic>> = BTreeMap::new();
        for nic in self.nics.values().filter(|nic| !is_mirror(nic)) {
            if let Some(station) = station(nic) {
                lines.entry(station).or_default().push(nic);
            }
        }
        let order: HashMap<&str, usize> =
            self.of_file().enumerate().map(|(place, nic)| (nic.id(), place)).collect();
        // One that is there keeps its place; others come behind, in the order of the file.
        let place = |nic: &Nic| match self.nics_before.get(nic.id()) {
            Some(old) if !is_mirror(old) && station(old) == station(nic) => {
                (false, old.waiting() as usize)
            }
            _ => (true, order.get(nic.id()).copied().unwrap_or(0)),
        };
        let mut notes = Vec::new();
        for line in lines.values_mut().filter(|line| line.len() > 1) {
            line.sort_by_key(|nic| place(nic));
            let Some((first, behind)) = line.split_first() else { continue };
            let has = first.id();
            let mut shared = first.bypass_filtering();
            for nic in behind {
                shared &= nic.bypass_filtering();
                if shared || !(self.named.contains(nic.id()) || self.named.contains(has)) {
                    continue;
                }
                let way = match self.named.contains(has) {
                    true => String::new(),
                    false => format!("; the file does not name {has}: --prune removes it"),
                };
                notes.push(format!(
                    "{} waits for its MAC address, which {has} has: until that one is deleted it gets and sends nothing{way}",
                    nic.id()
                ));
            }
        }
        notes
    }

    /// IP addresses that several vnics of a network declare.
    fn shared_addresses(&self) -> Vec<String> {
        let mut having: BTreeMap<(u32, IpAddr), Vec<&Nic>> = BTreeMap::new();
        for nic in self.nics.values().filter(|nic| !is_mirror(nic)) {
            for address in nic.ip.iter().filter_map(|text| parse_ip(text).ok()) {
                having.entry((nic.vni(), address)).or_default().push(nic);
            }
        }
        let doubtful = having.into_iter().filter(|(_, nics)| {
            nics.len() > 1
                && nics.iter().any(|nic| self.named.contains(nic.id()))
                && !nics.iter().all(|nic| nic.shared_ip())
        });
        let text = |((_, address), nics): ((u32, IpAddr), Vec<&Nic>)| {
            let nics: Vec<&str> = nics.iter().map(|nic| nic.id()).collect();
            format!("{address} is declared for {}: each of them may use it", some(&nics))
        };
        doubtful.map(text).collect()
    }

    /// Groups that vnics of the file name and that do not exist.
    fn missing_groups(&self) -> Vec<String> {
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for nic in self.of_file().filter(|nic| !nic.bypass_filtering()) {
            for group in &nic.security_group {
                if !self.groups.contains_key(group.as_str()) {
                    missing.entry(group).or_default().push(nic.id());
                }
            }
        }
        let text = |(group, nics): (&str, Vec<&str>)| {
            format!(
                "security group {group} of {} does not exist: it allows nothing until it does (butterfly sg rule add {group} ...)",
                some(&nics)
            )
        };
        missing.into_iter().map(text).collect()
    }

    /// Groups that rules name as the other end, and that have no members any more, or never had
    /// any and are not there.
    fn groups_without_members(&self) -> Vec<String> {
        let of_file: BTreeSet<&str> = self.file.security_group.iter().map(Sg::id).collect();
        let mut naming: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for group in self.groups.values() {
            for rule in &group.rule {
                if let Some(other) = rule.security_group.as_deref() {
                    naming.entry(other).or_default().insert(group.id());
                }
            }
        }
        let members = |groups: &BTreeMap<&str, &Sg>, name: &str| {
            groups.get(name).is_some_and(|group| members_of(group).next().is_some())
        };
        let mut notes = Vec::new();
        for (name, by) in naming {
            if members(&self.groups, name) {
                continue;
            }
            let emptied = members(&self.groups_before, name);
            let exists = self.groups.contains_key(name);
            if !emptied && (exists || !by.iter().any(|group| of_file.contains(group))) {
                continue;
            }
            let state = match (exists, emptied) {
                (true, _) => "has no members any more",
                (false, true) => "does not exist any more",
                (false, false) => "does not exist",
            };
            let by: Vec<&str> = by.into_iter().collect();
            notes.push(format!(
                "security group {name} {state}: rules of {} that name it allow nobody until it has members (butterfly sg member add {name} ...)",
                some(&by)
            ));
        }
        notes
    }

    /// Vnics that may send anything after groups of theirs lost their last OUTBOUND rule.
    fn opened(&self) -> Vec<String> {
        let limits = |groups: &BTreeMap<&str, &Sg>, name: &str| {
            groups.get(name).is_some_and(|group| limits_egress(group))
        };
        let opened: Vec<&str> = self
            .nics
            .values()
            .filter(|nic| {
                let mut own = nic.security_group.iter();
                !nic.bypass_filtering()
                    && own.any(|name| limits(&self.groups_before, name))
                    && !nic.security_group.iter().any(|name| limits(&self.groups, name))
            })
            .map(|nic| nic.id())
            .collect();
        if opened.is_empty() {
            return Vec::new();
        }
        let then = if self.file.dry_run() { "then" } else { "now" };
        vec![format!(
            "{} may send anything {then}: no OUTBOUND rule is left in the groups of {}",
            some(&opened),
            if opened.len() == 1 { "it" } else { "any of them" },
        )]
    }

    /// Mirrors whose vnic does not exist.
    fn mirrors_of_nothing(&self) -> Vec<String> {
        let text = |nic: &&Nic| {
            let target = nic.sniff_target_nic_id();
            let lost = self.named.contains(nic.id()) || self.nics_before.contains_key(target);
            (is_mirror(nic) && lost && !self.nics.contains_key(target)).then(|| {
                format!(
                    "{} mirrors {target}, which does not exist: it gets nothing until it does",
                    nic.id()
                )
            })
        };
        self.nics.values().filter_map(text).collect()
    }

    /// Sockets that the daemon names, and that the file calls otherwise.
    fn paths(&self) -> Vec<String> {
        let known = |nic: &&'a Nic| Some((*nic, *self.nics_before.get(nic.id())?));
        self.of_file().filter_map(|nic| known(&nic)).filter_map(other_path).collect()
    }
}

/// The same of vnics that the daemon made by this file.
fn other_paths(before: &Host, file: &ApplyReq, session: &mut Session) -> Vec<String> {
    let known: BTreeSet<&str> = before.nics.iter().map(Nic::id).collect();
    let new = |nic: &&Nic| names_own_socket(nic) && !known.contains(nic.id());
    let new: BTreeMap<&str, &Nic> =
        file.nic.iter().filter(new).map(|nic| (nic.id(), nic)).collect();
    if new.is_empty() {
        return Vec::new();
    }
    let after = host(session).unwrap_or_default().nics;
    let pair = |made| Some((*new.get(Nic::id(made))?, made));
    after.iter().filter_map(pair).filter_map(other_path).collect()
}

/// The socket of a declared vnic is another one than it says.
fn other_path((declared, made): (&Nic, &Nic)) -> Option<String> {
    let other =
        names_own_socket(declared) && names_own_socket(made) && declared.path() != made.path();
    other.then(|| {
        format!(
            "the path {} of {} is ignored: the daemon names the sockets of VHOST_USER_SERVER itself, here {}",
            declared.path(),
            declared.id(),
            made.path()
        )
    })
}

/// True if it has a path that the daemon decides.
fn names_own_socket(nic: &Nic) -> bool {
    nic.type_() == Type::VHOST_USER_SERVER && !nic.path().is_empty()
}

fn is_mirror(nic: &Nic) -> bool {
    !nic.sniff_target_nic_id().is_empty()
}

/// A network and a MAC address of it.
fn station(nic: &Nic) -> Option<(u32, [u8; 6])> {
    Some((nic.vni(), Mac::parse(nic.mac()).ok()?.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_api::proto::Response;
    use butterfly_api::text;

    fn nic(id: &str, mac: u8, rest: &str) -> String {
        format!("{{ id: \"{id}\" mac: \"52:54:00:00:00:{mac:02x}\" vni: 7 {rest} }} ")
    }

    fn group(id: &str, rest: &str) -> String {
        format!("{{ id: \"{id}\" {rest} }} ")
    }

    /// The notes on a file; both states are vnics and groups in text format.
    fn notes(
        before: (&[String], &[String]),
        file: (&[String], &[String]),
        options: &str,
    ) -> Vec<String> {
        let fields = |name: &str, all: &[String]| -> String {
            all.iter().map(|one| format!("{name} {one}")).collect()
        };
        let text = fields("nic_details", before.0) + &fields("sg_details", before.1);
        let before: Response = text::parse(&format!("status {{ status: true }} {text}")).unwrap();
        let host = Host { nics: before.nic_details, groups: before.sg_details };
        let text = fields("nic", file.0) + &fields("security_group", file.1) + options;
        super::notes(&host, &text::parse(&text).unwrap())
    }

    #[test]
    fn what_a_file_forgot_is_told() {
        let out =
            "rule { direction: OUTBOUND protocol: -1 cidr { address: \"10.0.0.0\" mask_size: 8 } }";
        let from = |group: &str| {
            format!("rule {{ direction: INBOUND protocol: -1 security_group: \"{group}\" }}")
        };
        let web = "security_group: \"web\"";
        let absent = |who: &str| {
            format!(
                "security group web of {who} does not exist: it allows nothing until it does (butterfly sg rule add web ...)"
            )
        };
        let nobody = |name: &str, state: &str| {
            format!(
                "security group {name} {state}: rules of db that name it allow nobody until it has members (butterfly sg member add {name} ...)"
            )
        };
        let opened = |when: &str| {
            format!("a may send anything {when}: no OUTBOUND rule is left in the groups of it")
        };
        let member = "member: \"10.0.0.1\"";
        let mirror = "sniff_target_nic_id: \"a\"";
        let served = |path: &str| format!("type: VHOST_USER_SERVER path: \"{path}\"");
        type State = (Vec<String>, Vec<String>);
        let cases: Vec<(State, State, &str, Vec<String>)> = vec![
            ((vec![], vec![]), (vec![nic("a", 1, web), nic("b", 2, web)], vec![]), "", vec![absent("a, b")]),
            ((vec![], vec![]), (vec![nic("a", 1, &format!("{web} bypass_filtering: true"))], vec![]), "", vec![]),
            ((vec![], vec![group("web", "")]), (vec![nic("a", 1, web)], vec![]), "", vec![]),
            ((vec![], vec![group("web", "")]), (vec![nic("a", 1, web)], vec![]), "prune: true", vec![absent("a")]),
            // Egress.
            (
                (vec![nic("a", 1, web)], vec![group("web", out)]),
                (vec![], vec![group("web", "")]),
                "",
                vec![opened("now")],
            ),
            (
                (vec![nic("a", 1, web)], vec![group("web", out)]),
                (vec![nic("a", 1, web)], vec![]),
                "prune: true dry_run: true",
                vec![absent("a"), opened("then")],
            ),
            ((vec![nic("a", 1, web)], vec![group("web", out)]), (vec![], vec![group("web", out)]), "", vec![]),
            // Rules that name a group.
            (
                (vec![], vec![group("web", member), group("db", &from("web"))]),
                (vec![], vec![group("web", "")]),
                "",
                vec![nobody("web", "has no members any more")],
            ),
            (
                (vec![], vec![group("web", member)]),
                (vec![], vec![group("db", &from("web"))]),
                "prune: true",
                vec![nobody("web", "does not exist any more")],
            ),
            ((vec![], vec![]), (vec![], vec![group("db", &from("web"))]), "", vec![nobody("web", "does not exist")]),
            ((vec![], vec![]), (vec![], vec![group("db", &from("web")), group("web", "")]), "", vec![]),
            ((vec![], vec![group("db", &from("web"))]), (vec![], vec![group("x", "")]), "", vec![]),
            // Mirrors.
            (
                (vec![], vec![]),
                (vec![nic("m", 1, mirror)], vec![]),
                "",
                vec!["m mirrors a, which does not exist: it gets nothing until it does".to_owned()],
            ),
            ((vec![nic("a", 1, "")], vec![]), (vec![nic("m", 1, mirror)], vec![]), "", vec![]),
            // Paths.
            (
                (vec![nic("a", 1, &served("/run/a"))], vec![]),
                (vec![nic("a", 1, &served("/mine"))], vec![]),
                "",
                vec!["the path /mine of a is ignored: the daemon names the sockets of VHOST_USER_SERVER itself, here /run/a".to_owned()],
            ),
            ((vec![nic("a", 1, &served("/p"))], vec![]), (vec![nic("a", 1, &served("/p"))], vec![]), "", vec![]),
        ];
        for (number, (before, file, options, expected)) in cases.into_iter().enumerate() {
            let found = notes((&before.0, &before.1), (&file.0, &file.1), options);
            assert_eq!(found, expected, "case {number}");
        }
    }

    #[test]
    fn addresses_that_two_vnics_have_are_told() {
        let waits = |who: &str, has: &str, rest: &str| {
            format!(
                "{who} waits for its MAC address, which {has} has: until that one is deleted it gets and sends nothing{rest}"
            )
        };
        let shared = |who: &str| format!("10.0.0.1 is declared for {who}: each of them may use it");
        let ip = "ip: \"10.0.0.1\"";
        let pass = "bypass_filtering: true";
        let prune = "; the file does not name old: --prune removes it";
        let both = |rest: &str| [nic("a", 1, rest), nic("b", 2, rest)];
        type Case<'a> = (Vec<String>, Vec<String>, &'a str, Vec<String>);
        let cases: Vec<Case<'_>> = vec![
            // The first of the file has it.
            (vec![], vec![nic("b", 1, ""), nic("a", 1, "")], "", vec![waits("a", "b", "")]),
            // The one that is there has it, whatever the file's order.
            (
                vec![nic("b", 1, ""), nic("c", 1, "waiting: 1")],
                vec![nic("a", 1, ""), nic("c", 1, ""), nic("b", 1, "")],
                "",
                vec![waits("c", "b", ""), waits("a", "b", "")],
            ),
            // A vnic that is renamed.
            (
                vec![nic("old", 1, "")],
                vec![nic("new", 1, "")],
                "",
                vec![waits("new", "old", prune)],
            ),
            (vec![nic("old", 1, "")], vec![nic("new", 1, "")], "prune: true", vec![]),
            (vec![], vec![nic("a", 1, pass), nic("b", 1, pass)], "", vec![]),
            // Nothing that the file has to do with.
            (vec![nic("a", 1, ""), nic("b", 1, "waiting: 1")], vec![nic("c", 3, "")], "", vec![]),
            (vec![], both(ip).to_vec(), "", vec![shared("a, b")]),
            (vec![], both(&format!("{ip} shared_ip: true")).to_vec(), "", vec![]),
            (both(ip).to_vec(), vec![nic("c", 3, "")], "", vec![]),
        ];
        for (number, (before, file, options, expected)) in cases.into_iter().enumerate() {
            assert_eq!(notes((&before, &[]), (&file, &[]), options), expected, "case {number}");
        }
    }
}
