//! `butterfly sg rule`: what a security group allows.

use crate::failure::Failure;
use crate::reader::Arguments;
use crate::session::Session;
use crate::sg::{group, rule_options};
use crate::tree::{Node, word};
use butterfly_api::proto::{Request, Rule, SgRuleAddReq, SgRuleDelReq};
use butterfly_api::text;
use butterfly_model::libstdcxx_hash;
use clap::Command;
use protobuf::MessageField;
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
                    .after_help("butterfly sg rule list web"),
                list,
            ),
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
            ),
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
            // Scripts rely on exit code 0 here.
            .help_below(2),
        ],
    )
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let rules = rules_of(arguments, session)?;
    rules.iter().try_for_each(|rule| session.line(line(rule)))
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = SgRuleAddReq {
        sg_id: arguments.word(0).map(str::to_owned),
        rule: MessageField::some(rule_options::rule(arguments)?),
        ..SgRuleAddReq::default()
    };
    let request = Request { sg_rule_add: MessageField::some(request), ..Request::default() };
    session.ask(request).map(|_| ())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let rule = match arguments.word(1) {
        Some(wanted) => {
            let mut rules = rules_of(arguments, session)?.into_iter();
            rules
                .find(|rule| hash(rule).eq_ignore_ascii_case(wanted))
                .ok_or_else(|| Failure::said(format!("no rule found with hash {wanted}")))?
        }
        None => rule_options::rule(arguments)?,
    };
    let request =
        SgRuleDelReq { sg_id: arguments.word(0).map(str::to_owned), rule: MessageField::some(rule), ..SgRuleDelReq::default() };
    let request = Request { sg_rule_del: MessageField::some(request), ..Request::default() };
    session.ask(request).map(|_| ())
}

fn rules_of(arguments: &Arguments, session: &mut Session) -> Result<Vec<Rule>, Failure> {
    let response = session.ask(Request { sg_rule_list: arguments.word(0).map(str::to_owned), ..Request::default() })?;
    Ok(response.sg_rule_list)
}

/// A rule as `sg rule list` prints it.
fn line(rule: &Rule) -> String {
    let direction = match rule.direction.map(|direction| direction.enum_value()) {
        Some(Ok(direction)) => format!("{direction:?}"),
        Some(Err(number)) => number.to_string(),
        None => absent(None::<&str>),
    };
    let cidr = rule.cidr.as_ref().map(|cidr| format!("{}/{}", cidr.address(), cidr.mask_size()));
    format!(
        "{} | direction: {direction} - IP protocol: {} - port start: {} - port end: {} - cidr: {} - members of sg: {}",
        hash(rule),
        rule.protocol(),
        absent(rule.port_start),
        absent(rule.port_end),
        absent(cidr),
        absent(rule.security_group.as_ref()),
    )
}

/// The name of a rule: the hash of its text format.
fn hash(rule: &Rule) -> String {
    let content = text::print(rule);
    format!("{:016x}", libstdcxx_hash(content.as_bytes()))
}

fn absent(value: Option<impl Display>) -> String {
    value.map_or("Ø".into(), |value| value.to_string())
}
