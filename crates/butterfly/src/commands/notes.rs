//! Notes to a person at a terminal about a change that succeeded and probably does not do what was
//! meant. An operator who asks for it (`--strict`) gets them without a terminal, too, and a
//! failure.
//!
//! Without either, standard output and the exit status are the original's, and scripts pay for no
//! further requests.

use crate::daemon::session::Session;
use crate::daemon::shown::shown;
use crate::failure::Failure;
use crate::line::slips::meant_name;
use crate::text::table::{counted, safe};
use butterfly_api::proto::{
    Network, Nic, NicShow, Request, Response, Router, Rule, Sg, TunnelPeer, rule,
};
use butterfly_model::Member;
use std::collections::HashSet;

/// Returns the answer to a request whose refusal does not matter, if its result is wanted at all.
pub fn look(session: &mut Session, request: Request) -> Option<Response> {
    if !session.takes_notes() {
        return None;
    }
    session.ask_each(vec![request]).ok()?.pop()?
}

/// Makes one request about a vnic. If there is none of that id, the failure names the one that was
/// probably meant.
pub fn ask_of_nic(id: &str, request: Request, session: &mut Session) -> Result<Response, Failure> {
    let names = Request { nic_list: Some(true), ..Request::default() };
    ask_of(id, request, names, |listed| listed.nic_list, session)
}

/// The same about a security group.
pub fn ask_of_group(
    id: &str,
    request: Request,
    session: &mut Session,
) -> Result<Response, Failure> {
    let names = Request { sg_list: Some(true), ..Request::default() };
    ask_of(id, request, names, |listed| listed.sg_list, session)
}

fn ask_of(
    id: &str,
    request: Request,
    names: Request,
    of: fn(Response) -> Vec<String>,
    session: &mut Session,
) -> Result<Response, Failure> {
    let failure = match session.ask(request) {
        Err(Failure::Said(text)) => text,
        other => return other,
    };
    let names = look(session, names).map(of).unwrap_or_default();
    let meant = match names.iter().any(|name| name == id) {
        true => None,
        false => meant_name(id, names.iter().map(String::as_str)),
    };
    Err(Failure::Said(match meant {
        Some(name) => format!("{failure}\nhelp: did you mean {}?", safe(&name)),
        None => failure,
    }))
}

/// Checks whether a vnic can work that was declared, or belongs to other groups now.
pub fn of_nic(id: &str, session: &mut Session) {
    let shown = look(session, Request { nic_show: Some(id.to_owned()), ..Request::default() });
    let Some(nic) = shown.and_then(|shown| shown.nic_show.into_option()) else { return };
    of_shown(&nic).iter().for_each(|text| session.doubt(text));
}

/// The same of many, by a file of requests.
pub fn of_nics(ids: &[String], session: &mut Session) {
    const TOLD: usize = 10;
    if !session.takes_notes() {
        return;
    }
    let nics = shown(ids, session).unwrap_or_default();
    let texts: Vec<String> = nics.iter().flat_map(of_shown).collect();
    texts.iter().take(TOLD).for_each(|text| session.doubt(text));
    if let Some(more) = texts.len().checked_sub(TOLD).filter(|more| *more > 0) {
        session.doubt(&format!("{more} more like these (butterfly nic list --wide)"));
    }
}

fn of_shown(nic: &NicShow) -> Vec<String> {
    let id = nic.id();
    let waits = nic.waits_for.as_deref().filter(|having| !having.is_empty()).map(|having| {
        format!(
            "{id} waits for its MAC address, which {having} has: until that one is deleted it gets and sends nothing"
        )
    });
    let missing = nic.missing_group.iter().map(|name| {
        format!(
            "security group {name} does not exist: it allows nothing until it does (butterfly sg rule add {name} ...)"
        )
    });
    waits.into_iter().chain(missing).collect()
}

/// Tells of prefixes just given to a vnic that the daemon does not know, or that are not routed.
pub fn of_prefixes(id: &str, given: &[String], session: &mut Session) {
    if given.is_empty() {
        return;
    }
    let shown = look(session, Request { nic_show: Some(id.to_owned()), ..Request::default() });
    let Some(nic) = shown.and_then(|shown| shown.nic_show.into_option()) else { return };
    if nic.prefix.is_empty() {
        session.doubt(&format!(
            "the daemon is of a release that knows no prefixes: {id} has none, and what its machine sends from {} is spoofed-ip",
            given.join(", ")
        ));
    }
    for prefix in &nic.prefix_unrouted {
        session.doubt(&format!(
            "no subnet of network {} covers {prefix}: the machine is not told of it, and it is not routed (butterfly network list)",
            nic.vni()
        ));
    }
}

/// Looks for other vnics in the network that have an address just declared for a vnic.
pub fn of_shared_addresses(id: &str, session: &mut Session) {
    let all = look(session, Request { nic_details: Some(String::new()), ..Request::default() });
    let Some(all) = all else { return };
    let Some(own) = all.nic_details.iter().find(|nic| nic.id() == id) else { return };
    let has = |nic: &Nic, address: &str| nic.ip.iter().any(|other| is_same(other, address));
    for address in &own.ip {
        let others = all
            .nic_details
            .iter()
            .filter(|nic| nic.id() != id && nic.vni() == own.vni() && has(nic, address));
        let others: Vec<&str> = others.map(Nic::id).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            session.doubt(&format!(
                "{address} is also declared for {others}: each of them may use it"
            ));
        }
    }
}

/// Notes the changes of a vnic that was made anew because of them.
pub fn of_remade(id: &str, changed: &[String], session: &mut Session) {
    if session.takes_notes() && !changed.is_empty() {
        let changed = changed.join(", ");
        session.doubt(&format!(
                "{id} was made anew, as these changed: {changed}; what was attached to it is cut off and has to attach again"
            ),
        );
    }
}

/// Groups that a new rule names and that do not exist before it is added, if a person reads what
/// comes of it.
pub fn absent_groups(group: &str, rule: &Rule, session: &mut Session) -> Vec<String> {
    let listed = look(session, Request { sg_list: Some(true), ..Request::default() });
    let Some(listed) = listed else { return Vec::new() };
    let named = [group].into_iter().chain(rule.security_group.as_deref());
    named
        .filter(|name| !listed.sg_list.iter().any(|other| other == name))
        .map(str::to_owned)
        .collect()
}

/// A rule of `group` was added: of those the first may be new by it, the others still do not exist.
pub fn of_absent_groups(group: &str, absent: &[String], session: &mut Session) {
    for name in absent {
        match name == group {
            true => session.note(&format!("security group {name} did not exist: it does now, with this rule"),
            ),
            false => session.doubt(&format!(
                    "security group {name} does not exist: the rule allows nobody until it has members (butterfly sg member add {name} ...)"
                ),
            ),
        }
    }
}

/// Returns those of these vnics that do not exist, if a person reads the result.
pub fn absent_nics(ids: &[String], session: &mut Session) -> Vec<String> {
    let listed = look(session, Request { nic_list: Some(true), ..Request::default() });
    let Some(listed) = listed else { return Vec::new() };
    ids.iter().filter(|id| !listed.nic_list.contains(id)).cloned().collect()
}

/// Notes vnics that were deleted and did not exist.
pub fn of_absent_nics(absent: &[String], session: &mut Session) {
    absent.iter().for_each(|id| session.doubt(&format!("there was no NIC {id}: nothing changed")));
}

/// A group before a change, or `None` within if it did not exist; nothing if no person reads what
/// comes of it.
pub type Before = Option<Option<Sg>>;

/// A security group as it is.
pub fn group(id: &str, session: &mut Session) -> Before {
    let exists = look(session, Request { sg_list: Some(true), ..Request::default() })?
        .sg_list
        .iter()
        .any(|other| other == id);
    let details = exists
        .then(|| look(session, Request { sg_details: Some(id.to_owned()), ..Request::default() }));
    Some(details.map(|details| {
        details.and_then(|details| details.sg_details.into_iter().next()).unwrap_or_default()
    }))
}

/// A group was made that was there: it is empty now.
pub fn of_emptied(id: &str, before: Before, session: &mut Session) {
    if let Some(Some(before)) = before
        && before.rule.len() + members_of(&before).count() > 0
    {
        let (rules, members) = (
            counted(before.rule.len() as u64, "rule"),
            counted(members_of(&before).count() as u64, "member"),
        );
        session.doubt(&format!(
            "security group {id} was there and is empty now: it had {rules} and {members}"
        ));
        of_opened(id, &before, session);
    }
}

/// A group was deleted.
pub fn of_deleted_group(id: &str, before: Before, session: &mut Session) {
    match before {
        Some(None) => {
            session.doubt(&format!("there was no security group {id}: nothing changed"));
        }
        Some(Some(before)) => of_opened(id, &before, session),
        None => {}
    }
}

/// Notes the vnics of a group that may send anything now, because the group has lost OUTBOUND
/// rules.
fn of_opened(id: &str, before: &Sg, session: &mut Session) {
    if !limits_egress(before) {
        return;
    }
    let all = || Some(String::new());
    let nics = look(session, Request { nic_details: all(), ..Request::default() });
    let groups = look(session, Request { sg_details: all(), ..Request::default() });
    let (Some(nics), Some(groups)) = (nics, groups) else { return };
    let limiting: HashSet<&str> =
        groups.sg_details.iter().filter(|group| limits_egress(group)).map(Sg::id).collect();
    let has = |nic: &Nic| nic.security_group.iter().any(|group| group == id);
    let is_limited =
        |nic: &Nic| nic.security_group.iter().any(|group| limiting.contains(group.as_str()));
    let opened = nics
        .nic_details
        .iter()
        .filter(|nic| !nic.bypass_filtering() && has(nic) && !is_limited(nic))
        .map(Nic::id);
    let opened: Vec<&str> = opened.collect();
    if !opened.is_empty() {
        session.doubt(&format!(
            "{} may send anything now: no OUTBOUND rule is left in the groups of {}",
            some(&opened),
            if opened.len() == 1 { "it" } else { "any of them" },
        ));
    }
}

/// True if the vnics of a group need a rule to send.
pub fn limits_egress(group: &Sg) -> bool {
    group.rule.iter().any(|rule| rule.direction() == rule::Direction::OUTBOUND)
}

/// The first few of many names.
pub fn some(names: &[&str]) -> String {
    const NAMED: usize = 5;
    let (named, left) = names.split_at(names.len().min(NAMED));
    let left = match left.len() {
        0 => String::new(),
        left => format!(" and {left} more"),
    };
    format!("{}{left}", named.join(", "))
}

/// Members of a group: addresses, and blocks.
pub fn members_of(group: &Sg) -> impl Iterator<Item = &String> {
    group.member.iter().chain(&group.member_prefix)
}

/// Members were taken out of a group.
pub fn of_absent_members(id: &str, members: &[String], before: Before, session: &mut Session) {
    let Some(before) = before else { return };
    let had = || before.iter().flat_map(members_of);
    for member in members.iter().filter(|member| !had().any(|other| is_same(other, member))) {
        session.doubt(&format!(
                "{member} was no member of security group {id}: nothing changed (butterfly sg member list {id})"
            ),
        );
    }
}

/// Peers that are named, if a person reads what comes of it.
pub fn peers(session: &mut Session) -> Option<Vec<TunnelPeer>> {
    Some(look(session, Request { peer_list: Some(true), ..Request::default() })?.peer_list)
}

/// Networks that are declared, if a person reads what comes of it.
pub fn networks(session: &mut Session) -> Option<Vec<Network>> {
    let request = Request { network_list: Some(true), ..Request::default() };
    Some(look(session, request)?.network_list)
}

/// Routers that there are, if a person reads what comes of it.
pub fn routers(session: &mut Session) -> Option<Vec<Router>> {
    let request = Request { router_list: Some(true), ..Request::default() };
    Some(look(session, request)?.router_list)
}

/// Peers were named: what is for several receivers may have gone to multicast groups before.
pub fn of_first_peers(
    peers: &[TunnelPeer],
    before: Option<Vec<TunnelPeer>>,
    session: &mut Session,
) {
    let Some(before) = before else { return };
    let Some(vni) = peers.first().map(|peer| peer.vni) else { return };
    if !before.iter().any(|other| other.vni.is_none() || other.vni == vni) {
        let networks =
            vni.map_or_else(|| "all networks".to_owned(), |vni| format!("network {vni}"));
        session.note(&format!(
                "what is for several receivers of {networks} goes to named hosts only now, and to no multicast group: name all of them (butterfly peer list)"
            ),
        );
    }
}

/// Notes peers that were taken back and had not been named.
pub fn of_absent_peers(
    peers: &[TunnelPeer],
    before: Option<Vec<TunnelPeer>>,
    session: &mut Session,
) {
    let Some(before) = before else { return };
    let was_named = |peer: &TunnelPeer| {
        before.iter().any(|other| other.vni == peer.vni && is_same(other.address(), peer.address()))
    };
    for peer in peers.iter().filter(|peer| !was_named(peer)) {
        let network =
            peer.vni.map_or_else(|| "all networks".to_owned(), |vni| format!("network {vni}"));
        session.doubt(&format!(
            "{} was not named for {network}: nothing changed (butterfly peer list)",
            peer.address()
        ));
    }
}

/// True if two words mean one address.
pub fn is_same(one: &str, other: &str) -> bool {
    Member::parse(one).is_ok_and(|one| Member::parse(other).is_ok_and(|other| one == other))
}

/// A rule was deleted.
pub fn of_deleted_rule(id: &str, before: Before, session: &mut Session) {
    let Some(before) = before else { return };
    let Some(after) = group(id, session) else { return };
    if before.as_ref().map_or(0, |group| group.rule.len())
        == after.as_ref().map_or(0, |group| group.rule.len())
    {
        session.doubt(&format!(
            "{id} has no such rule: nothing changed (butterfly sg rule list {id})"
        ));
    } else if let Some(before) = before
        && !after.is_some_and(|after| limits_egress(&after))
    {
        of_opened(id, &before, session);
    }
}
