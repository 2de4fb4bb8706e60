//! `butterfly sg rule`: what a security group allows.

use crate::commands::notes;
use crate::commands::sg::{group, rule_options};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::text::protocol;
use crate::tree::Node;
use butterfly_api::proto::{Request, Rule, SgRuleAddReq, SgRuleDelReq, rule::Direction};
use butterfly_api::text;
use butterfly_model::libstdcxx_hash;
use clap::Command;
use protobuf::MessageField;
use serde_json::{Value, json};
use std::fmt::Display;

/// The `sg rule` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("rule").about("Rules of a security group: what it allows."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the rules of a security group, one per line, each with its hash.")
                    .arg(group())
                    .arg(flag("stats").help("also print how many sessions each rule admitted"))
                    .arg(json())
                    .after_help(
                        "butterfly sg rule list web\n\
                         butterfly sg rule list web --stats",
                    ),
                list,
            )
            .of_the_original(),
            Node::run(
                Command::new("add")
                    .about("Adds a rule to a security group, which is created if need be.")
                    .arg(group())
                    .args(rule_options::options(true))
                    .after_help(
                        "butterfly sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0\n\
                         butterfly sg rule add db --ip-proto tcp --port-start 5432 --port-end 5433 --sg-members web",
                    ),
                add,
            )
            .of_the_original(),
            Node::run(
                Command::new("del")
                    .about("Deletes a rule, named by its hash in `sg rule list` or by the options it was added with.")
                    .arg(group())
                    .arg(word("HASH").required(false).help("16 hexadecimal digits from `sg rule list`"))
                    .args(rule_options::options(false))
                    .after_help(
                        "butterfly sg rule del web e9dda2c7b09f8f12\n\
                         butterfly sg rule del web --ip-proto tcp --port 443 --cidr 0.0.0.0/0",
                    ),
                del,
            )
            .of_the_original()
            // Scripts rely on exit code 0 here.
            .help_below(2),
        ],
    )
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let rules: Vec<(Rule, Option<u64>)> = match arguments.has("stats") {
        true => {
            let group = arguments.word(0).map(str::to_owned);
            let response = session.ask(Request { sg_rule_stats: group, ..Request::default() })?;
            let stats = response.sg_rule_stats.into_iter();
            stats
                .map(|mut stats| (stats.rule.take().unwrap_or_default(), Some(stats.sessions())))
                .collect()
        }
        false => rules_of(arguments, session)?.into_iter().map(|rule| (rule, None)).collect(),
    };
    if json {
        let rules: Value =
            rules.iter().map(|(rule, sessions)| rule_json(rule, *sessions)).collect();
        return session.json(&json!({ "rules": rules }));
    }
    rules.iter().try_for_each(|(rule, sessions)| match sessions {
        Some(sessions) => session.line(format_args!("{} - sessions: {sessions}", line(rule))),
        None => session.line(line(rule)),
    })
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let rule = rule_options::rule(arguments)?;
    for what in rule_options::without_effect(&rule) {
        session.ignored(&what)?;
    }
    let group = arguments.word(0).unwrap_or_default();
    let absent = notes::absent_groups(group, &rule, session);
    let request = SgRuleAddReq {
        sg_id: Some(group.to_owned()),
        rule: MessageField::some(rule),
        ..SgRuleAddReq::default()
    };
    session.ask(Request { sg_rule_add: MessageField::some(request), ..Request::default() })?;
    notes::of_absent_groups(group, &absent, session);
    Ok(())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let rule = match arguments.word(1) {
        Some(wanted) => {
            for name in rule_options::names().filter(|name| arguments.has(name)) {
                session.ignored(&format!("--{name}: the hash names the rule"))?;
            }
            let mut rules = rules_of(arguments, session)?.into_iter();
            rules
                .find(|rule| hash(rule).eq_ignore_ascii_case(wanted))
                .ok_or_else(|| Failure::said(format!("no rule found with hash {wanted}")))?
        }
        None => rule_options::rule(arguments)?,
    };
    let request = SgRuleDelReq {
        sg_id: arguments.word(0).map(str::to_owned),
        rule: MessageField::some(rule),
        ..SgRuleDelReq::default()
    };
    let request = Request { sg_rule_del: MessageField::some(request), ..Request::default() };
    let group = arguments.word(0).unwrap_or_default();
    let before = notes::group(group, session);
    session.ask(request)?;
    notes::of_deleted_rule(group, before, session);
    Ok(())
}

fn rules_of(arguments: &Arguments, session: &mut Session) -> Result<Vec<Rule>, Failure> {
    let group = arguments.word(0).unwrap_or_default();
    let request = Request { sg_rule_list: Some(group.to_owned()), ..Request::default() };
    let response = notes::ask_of_group(group, request, session)?;
    Ok(response.sg_rule_list)
}

/// A rule as `sg rule list` prints it.
fn line(rule: &Rule) -> String {
    format!(
        "{} | direction: {} - IP protocol: {} - port start: {} - port end: {} - cidr: {} - members of sg: {}",
        hash(rule),
        absent(direction(rule)),
        rule.protocol(),
        absent(rule.port_start),
        absent(rule.port_end),
        absent(cidr(rule)),
        absent(rule.security_group.as_ref()),
    )
}

/// A rule in a few words.
pub fn short(rule: &Rule) -> String {
    let protocol = match rule.protocol() {
        -1 => "any protocol".to_owned(),
        number => u32::try_from(number).map_or_else(|_| number.to_string(), protocol::name),
    };
    let ports = match (rule.port_start, rule.port_end) {
        (Some(start), Some(end)) if start == end => format!(" {start}"),
        (Some(start), Some(end)) => format!(" {start}-{end}"),
        _ => String::new(),
    };
    let peer = match (&rule.security_group, cidr(rule)) {
        (Some(group), _) => format!("members of {group}"),
        (None, cidr) => cidr.unwrap_or_default(),
    };
    let way = if rule.direction() == Direction::OUTBOUND { "out to" } else { "in from" };
    format!("{protocol}{ports} {way} {peer}")
}

/// The same for programs, with how many `sessions` it admitted if that was asked.
pub fn rule_json(rule: &Rule, sessions: Option<u64>) -> Value {
    let mut value = json!({
        "hash": hash(rule),
        "direction": direction(rule),
        "protocol": rule.protocol(),
        "port_start": rule.port_start,
        "port_end": rule.port_end,
        "cidr": cidr(rule),
        "security_group": rule.security_group,
    });
    if let Some(sessions) = sessions {
        value["sessions"] = sessions.into();
    }
    value
}

fn direction(rule: &Rule) -> Option<String> {
    rule.direction.map(|direction| match direction.enum_value() {
        Ok(direction) => format!("{direction:?}"),
        Err(number) => number.to_string(),
    })
}

fn cidr(rule: &Rule) -> Option<String> {
    rule.cidr.as_ref().map(|cidr| format!("{}/{}", cidr.address(), cidr.mask_size()))
}

/// The name of a rule: the hash of its text format.
pub fn hash(rule: &Rule) -> String {
    let content = text::print(rule);
    format!("{:016x}", libstdcxx_hash(content.as_bytes()))
}

fn absent(value: Option<impl Display>) -> String {
    value.map_or("Ø".into(), |value| value.to_string())
}
