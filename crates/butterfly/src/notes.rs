//! What a person at a terminal is told of a change that succeeded and does not do what was probably
//! meant.
//!
//! Standard output and the exit status are the original's; scripts, which have no terminal, pay for
//! no further requests.

use crate::session::Session;
use crate::table::{counted, safe};
use butterfly_api::proto::{Nic, Request, Response, Rule, Sg, TunnelPeer};
use butterfly_model::parse_ip;

/// The answer to a request whose refusal does not matter, if a person reads what comes of it.
fn look(session: &mut Session, request: Request) -> Option<Response> {
    if !session.is_terminal() {
        return None;
    }
    session.ask_each(vec![request]).ok()?.pop()?
}

/// Names in it are somebody else's words.
fn note(session: &mut Session, text: &str) {
    session.remark(&format!("note: {}", safe(text)));
}

/// A NIC was declared, or belongs to other groups now: whether it can work.
pub fn of_nic(id: &str, session: &mut Session) {
    let shown = look(session, Request { nic_show: Some(id.to_owned()), ..Request::default() });
    let Some(nic) = shown.and_then(|shown| shown.nic_show.into_option()) else { return };
    if let Some(having) = nic.waits_for.as_deref().filter(|having| !having.is_empty()) {
        note(
            session,
            &format!(
                "{id} waits for its MAC address, which {having} has: until that one is deleted it gets and sends nothing"
            ),
        );
    }
    for name in &nic.missing_group {
        note(
            session,
            &format!(
                "security group {name} does not exist: it allows nothing until it does (butterfly sg rule add {name} ...)"
            ),
        );
    }
}

/// Addresses were declared for a NIC: who else in its network has one of them.
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
            note(
                session,
                &format!("{address} is also declared for {others}: each of them may use it"),
            );
        }
    }
}

/// A NIC that was there was declared otherwise: what changed, if it was made anew by that.
pub fn of_remade(id: &str, changed: &[String], session: &mut Session) {
    if session.is_terminal() && !changed.is_empty() {
        let changed = changed.join(", ");
        note(
            session,
            &format!(
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
            true => note(
                session,
                &format!("security group {name} did not exist: it does now, with this rule"),
            ),
            false => note(
                session,
                &format!(
                    "security group {name} does not exist: the rule allows nobody until it has members (butterfly sg member add {name} ...)"
                ),
            ),
        }
    }
}

/// Those of these NICs that do not exist, if a person reads what comes of it.
pub fn absent_nics(ids: &[String], session: &mut Session) -> Vec<String> {
    let listed = look(session, Request { nic_list: Some(true), ..Request::default() });
    let Some(listed) = listed else { return Vec::new() };
    ids.iter().filter(|id| !listed.nic_list.contains(id)).cloned().collect()
}

/// These NICs were deleted.
pub fn of_absent_nics(absent: &[String], session: &mut Session) {
    absent.iter().for_each(|id| note(session, &format!("there was no NIC {id}: nothing changed")));
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
        && before.rule.len() + before.member.len() > 0
    {
        let (rules, members) = (
            counted(before.rule.len() as u64, "rule"),
            counted(before.member.len() as u64, "member"),
        );
        note(
            session,
            &format!(
                "security group {id} was there and is empty now: it had {rules} and {members}"
            ),
        );
    }
}

/// A group was deleted.
pub fn of_absent_group(id: &str, before: Before, session: &mut Session) {
    if let Some(None) = before {
        note(session, &format!("there was no security group {id}: nothing changed"));
    }
}

/// Addresses were taken out of a group.
pub fn of_absent_members(id: &str, members: &[String], before: Before, session: &mut Session) {
    let Some(before) = before else { return };
    let had = before.map(|group| group.member).unwrap_or_default();
    for member in members.iter().filter(|member| !had.iter().any(|other| is_same(other, member))) {
        note(
            session,
            &format!(
                "{member} was no member of security group {id}: nothing changed (butterfly sg member list {id})"
            ),
        );
    }
}

/// Peers that are named, if a person reads what comes of it.
pub fn peers(session: &mut Session) -> Option<Vec<TunnelPeer>> {
    Some(look(session, Request { peer_list: Some(true), ..Request::default() })?.peer_list)
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
        note(
            session,
            &format!(
                "what is for several receivers of {networks} goes to named hosts only now, and to no multicast group: name all of them (butterfly peer list)"
            ),
        );
    }
}

/// Peers were taken back: of those that were not named it is told.
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
        note(
            session,
            &format!(
                "{} was not named for {network}: nothing changed (butterfly peer list)",
                peer.address()
            ),
        );
    }
}

/// Whether two words mean one address.
fn is_same(one: &str, other: &str) -> bool {
    parse_ip(one).is_ok_and(|one| parse_ip(other).is_ok_and(|other| one == other))
}

/// A NIC has no events: it may never have been there.
pub fn of_no_events(id: &str, session: &mut Session) {
    if !absent_nics(&[id.to_owned()], session).is_empty() {
        note(session, &format!("there is no NIC {id}, and no event about one is kept"));
    }
}

/// A rule was deleted.
pub fn of_absent_rule(id: &str, before: Before, session: &mut Session) {
    let Some(before) = before else { return };
    let Some(after) = group(id, session) else { return };
    if before.map_or(0, |group| group.rule.len()) == after.map_or(0, |group| group.rule.len()) {
        note(
            session,
            &format!("{id} has no such rule: nothing changed (butterfly sg rule list {id})"),
        );
    }
}
