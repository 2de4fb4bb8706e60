//! `butterfly sg member`: the addresses a security group stands for.

use crate::commands::notes;
use crate::commands::sg::{group, print_texts};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
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
                    .args([group(), json()])
                    .after_help("butterfly sg member list web"),
                list,
            )
            .of_the_original(),
            Node::run(
                Command::new("add")
                    .about("Adds addresses to a security group, which is created if need be.")
                    .args([group(), addresses()])
                    .after_help("butterfly sg member add web 10.0.0.1 2001:db8::1"),
                add,
            )
            .of_the_original(),
            Node::run(
                Command::new("del")
                    .about("Takes addresses out of a security group. Unknown ones are no error.")
                    .args([group(), addresses()])
                    .after_help("butterfly sg member del web 10.0.0.1 2001:db8::1"),
                del,
            )
            .of_the_original(),
        ],
    )
}

fn addresses() -> Arg {
    word("IP")
        .num_args(1..)
        .help("IPv4 or IPv6 addresses, or prefixes of NICs (2001:db8:0:1::/64); those refused are told, the others count")
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let group = arguments.word(0).unwrap_or_default();
    let request = Request { sg_member_list: Some(group.to_owned()), ..Request::default() };
    let response = notes::ask_of_group(group, request, session)?;
    print_texts(response.sg_member_list, "members", json, session)
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |member: &String| {
        let request = SgMemberAddReq {
            sg_id: owned(arguments, 0),
            member: Some(member.clone()),
            ..SgMemberAddReq::default()
        };
        Request { sg_member_add: MessageField::some(request), ..Request::default() }
    };
    session.ask_all(arguments.words_from(1).iter().map(request).collect()).map(|_| ())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |member: &String| {
        let request = SgMemberDelReq {
            sg_id: owned(arguments, 0),
            member: Some(member.clone()),
            ..SgMemberDelReq::default()
        };
        Request { sg_member_del: MessageField::some(request), ..Request::default() }
    };
    // The original wants one word more than it uses: scripts give it any.
    let (members, spare) = match arguments.words_from(1) {
        [members @ .., last]
            if !members.is_empty() && butterfly_model::Member::parse(last).is_err() =>
        {
            (members, Some(last))
        }
        members => (members, None),
    };
    if let Some(spare) = spare {
        session.ignored(&format!("{spare}: it is no IP address"))?;
    }
    let group = arguments.word(0).unwrap_or_default();
    let before = notes::group(group, session);
    session.ask_all(members.iter().map(request).collect())?;
    notes::of_absent_members(group, members, before, session);
    Ok(())
}

fn owned(arguments: &Arguments, place: usize) -> Option<String> {
    arguments.word(place).map(str::to_owned)
}
