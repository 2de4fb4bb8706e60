//! `butterfly sg`: security groups.

mod member;
mod rule;
mod rule_options;
mod show;

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{Request, Sg};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::json;

pub use rule::{hash as rule_hash, short as rule_text};

/// The `sg` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("sg").about("Security groups: what may reach the virtual machines."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the id of every security group, one per line.")
                    .arg(json())
                    .after_help("butterfly sg list"),
                list,
            )
            .of_the_original(),
            Node::run(
                Command::new("add")
                    .about("Creates empty security groups. One that exists is emptied.")
                    .arg(groups())
                    .after_help("butterfly sg add web ssh"),
                add,
            )
            .of_the_original(),
            Node::run(
                Command::new("del")
                    .about("Deletes security groups. Unknown ones are no error.")
                    .arg(groups())
                    .after_help("butterfly sg del web"),
                del,
            )
            .of_the_original(),
            show::node(),
            rule::node(),
            member::node(),
        ],
    )
}

fn groups() -> Arg {
    group().num_args(1..)
}

/// The word for one security group.
fn group() -> Arg {
    word("SG").help("id of the security group")
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let response = session.ask(Request { sg_list: Some(true), ..Request::default() })?;
    print_texts(response.sg_list, "security_groups", json, session)
}

/// A line for each text, or for programs a list of the name `what`.
pub fn print_texts(
    texts: Vec<String>,
    what: &str,
    json: bool,
    session: &mut Session,
) -> Result<(), Failure> {
    match json {
        true => session.json(&json!({ what: texts })),
        false => texts.iter().try_for_each(|text| session.line(text)),
    }
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |id: &String| Request {
        sg_add: MessageField::some(Sg { id: Some(id.clone()), ..Sg::default() }),
        ..Request::default()
    };
    each(arguments, request, notes::of_emptied, session)
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |id: &String| Request { sg_del: Some(id.clone()), ..Request::default() };
    each(arguments, request, notes::of_deleted_group, session)
}

/// One request for each group that is named, and what is to be told of it as it was before.
fn each(
    arguments: &Arguments,
    request: impl Fn(&String) -> Request,
    tell: impl Fn(&str, notes::Before, &mut Session),
    session: &mut Session,
) -> Result<(), Failure> {
    let ids = arguments.words_from(0);
    let before: Vec<_> = ids.iter().map(|id| notes::group(id, session)).collect();
    session.ask_all(ids.iter().map(request).collect())?;
    ids.iter().zip(before).for_each(|(id, before)| tell(id, before, session));
    Ok(())
}
