//! `butterfly sg member`: the addresses a security group stands for.

use crate::failure::Failure;
use crate::reader::Arguments;
use crate::session::Session;
use crate::sg::group;
use crate::tree::{Node, word};
use butterfly_api::proto::{Request, SgMemberAddReq, SgMemberDelReq};
use clap::{Arg, Command};
use protobuf::MessageField;

/// The `sg member` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("member").about("Addresses that rules mean when they name a security group."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the members of a security group, one address per line.")
                    .arg(group())
                    .after_help("butterfly sg member list web"),
                list,
            ),
            Node::run(
                Command::new("add")
                    .about("Adds an address to a security group, which is created if need be.")
                    .args([group(), address()])
                    .after_help("butterfly sg member add web 10.0.0.1"),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Takes an address out of a security group. Unknown ones are no error.")
                    .args([group(), address()])
                    .after_help("butterfly sg member del web 10.0.0.1"),
                del,
            ),
        ],
    )
}

fn address() -> Arg {
    word("IP").help("IPv4 or IPv6 address")
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let response = session.ask(Request { sg_member_list: owned(arguments, 0), ..Request::default() })?;
    let mut members = response.sg_member_list.iter();
    members.try_for_each(|member| session.line(member))
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = SgMemberAddReq { sg_id: owned(arguments, 0), member: owned(arguments, 1), ..SgMemberAddReq::default() };
    let request = Request { sg_member_add: MessageField::some(request), ..Request::default() };
    session.ask(request).map(|_| ())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = SgMemberDelReq { sg_id: owned(arguments, 0), member: owned(arguments, 1), ..SgMemberDelReq::default() };
    let request = Request { sg_member_del: MessageField::some(request), ..Request::default() };
    session.ask(request).map(|_| ())
}

fn owned(arguments: &Arguments, place: usize) -> Option<String> {
    arguments.word(place).map(str::to_owned)
}
