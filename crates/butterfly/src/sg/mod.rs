//! `butterfly sg`: security groups.

mod member;
mod rule;
mod rule_options;

use crate::failure::Failure;
use crate::reader::Arguments;
use crate::session::Session;
use crate::tree::{Node, word};
use butterfly_api::proto::{Request, Sg};
use clap::{Arg, Command};
use protobuf::MessageField;

/// The `sg` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("sg").about("Security groups: what may reach the virtual machines."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the id of every security group, one per line.")
                    .after_help("butterfly sg list"),
                list,
            ),
            Node::run(
                Command::new("add")
                    .about("Creates empty security groups. One that exists is emptied.")
                    .arg(groups())
                    .after_help("butterfly sg add web ssh"),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Deletes security groups. Unknown ones are no error.")
                    .arg(groups())
                    .after_help("butterfly sg del web"),
                del,
            ),
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

fn list(_: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let response = session.ask(Request { sg_list: Some(true), ..Request::default() })?;
    response.sg_list.iter().try_for_each(|id| session.line(id))
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let requests = arguments
        .words_from(0)
        .iter()
        .map(|id| Request { sg_add: MessageField::some(Sg { id: Some(id.clone()), ..Sg::default() }), ..Request::default() });
    session.ask_all(requests.collect()).map(|_| ())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let requests = arguments.words_from(0).iter().map(|id| Request { sg_del: Some(id.clone()), ..Request::default() });
    session.ask_all(requests.collect()).map(|_| ())
}
