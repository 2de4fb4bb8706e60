//! `butterfly sg show`: a security group, and its users.

use super::rule::{hash, rule_json, short};
use crate::commands::sg::group;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::json;
use crate::line::reader::Arguments;
use crate::text::page::{field, listed, section, title};
use crate::text::table::{Align, safe};
use crate::tree::Node;
use butterfly_api::proto::{Request, Response, SgRuleStats};
use clap::Command;
use serde_json::{Value, json};

/// `sg show`.
pub fn node() -> Node {
    Node::run(
        Command::new("show")
            .about("Prints what a security group allows, in words, its members, and which NICs and groups use it.")
            .args([group(), json()])
            .after_help("butterfly sg show web"),
        show,
    )
}

/// A group, and the places that name it.
struct Found {
    id: String,
    rules: Vec<SgRuleStats>,
    members: Vec<String>,
    /// Vnics to which it is attached.
    nics: Vec<String>,
    /// Groups with a rule that means its members.
    groups: Vec<String>,
}

fn show(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let found = ask(arguments.word(0).unwrap_or_default(), session)?;
    match json {
        true => session.json(&object(&found)),
        false => session.print(page(&found)),
    }
}

fn ask(id: &str, session: &mut Session) -> Result<Found, Failure> {
    let all = Some(String::new());
    // A group that is not there is refused before the long answers are asked for, and once.
    let rules =
        session.ask(Request { sg_rule_stats: Some(id.to_owned()), ..Request::default() })?;
    let mut others = session
        .ask_all(vec![
            Request { sg_member_list: Some(id.to_owned()), ..Request::default() },
            Request { nic_details: all.clone(), ..Request::default() },
            Request { sg_details: all, ..Request::default() },
        ])?
        .into_iter();
    let mut next = || others.next().unwrap_or_default();
    let (members, nics, groups): (Response, Response, Response) = (next(), next(), next());
    let nics = nics
        .nic_details
        .into_iter()
        .filter(|nic| nic.security_group.iter().any(|group| group == id));
    let groups = groups
        .sg_details
        .into_iter()
        .filter(|group| group.rule.iter().any(|rule| rule.security_group.as_deref() == Some(id)));
    Ok(Found {
        id: id.to_owned(),
        rules: rules.sg_rule_stats,
        members: members.sg_member_list,
        nics: nics.map(|mut nic| nic.take_id()).collect(),
        groups: groups.map(|mut group| group.take_id()).collect(),
    })
}

fn page(found: &Found) -> String {
    let mut page = format!("{}\n", safe(&found.id));
    field(&mut page, "members", &listed(&found.members));
    field(&mut page, "used by NICs", &listed(&found.nics));
    field(&mut page, "in rules of", &listed(&found.groups));
    let rows: Vec<_> = found
        .rules
        .iter()
        .map(|row| [safe(&short(&row.rule)), row.sessions().to_string(), hash(&row.rule)])
        .collect();
    if rows.is_empty() {
        title(&mut page, "allows");
        page.push_str("  nothing: it has no rule\n");
        return page;
    }
    section(
        &mut page,
        "allows",
        [("rule", Align::Left), ("sessions", Align::Right), ("hash", Align::Left)],
        &rows,
    );
    page
}

fn object(found: &Found) -> Value {
    let rule = |row: &SgRuleStats| {
        let mut value = rule_json(&row.rule, Some(row.sessions()));
        value["text"] = short(&row.rule).into();
        value
    };
    json!({
        "id": found.id,
        "members": found.members,
        "nics": found.nics,
        "groups": found.groups,
        "rules": found.rules.iter().map(rule).collect::<Value>(),
    })
}
