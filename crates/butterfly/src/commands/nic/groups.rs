//! `butterfly nic sg`: the security groups of one vnic.

use crate::commands::nic::lookup::ask_details;
use crate::commands::notes;
use crate::commands::sg::print_texts;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{NicUpdateReq, Request};
use clap::{Arg, Command};
use protobuf::MessageField;
use std::collections::BTreeSet;

/// The `nic sg` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("sg").about("Security groups of a virtual NIC."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the NIC's security groups, one per line.")
                    .args([nic(), json()])
                    .after_help("butterfly nic sg list vm-1"),
                list,
            )
            .of_the_original(),
            Node::run(
                Command::new("add")
                    .about("Attaches security groups to the NIC, besides those it has.")
                    .args([nic(), groups()])
                    .after_help("butterfly nic sg add vm-1 web ssh"),
                add,
            )
            .of_the_original(),
            Node::run(
                Command::new("del")
                    .about("Detaches security groups from the NIC. Those it does not have are no error.")
                    .args([nic(), groups()])
                    .after_help("butterfly nic sg del vm-1 ssh"),
                del,
            )
            .of_the_original(),
            Node::run(
                Command::new("set")
                    .about("Replaces the NIC's security groups. Without any, but with an option, they are cleared.")
                    .args([nic(), groups().required(false)])
                    .after_help(
                        "butterfly nic sg set vm-1 web ssh\n\
                         butterfly nic sg set vm-1 -e tcp://127.0.0.1:9999",
                    ),
                set,
            )
            .of_the_original(),
        ],
    )
}

fn nic() -> Arg {
    word("NIC").help("id of the NIC")
}

fn groups() -> Arg {
    word("SG").num_args(1..).help("security groups")
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nic = ask_details(id(arguments), session)?;
    print_texts(nic.security_group, "security_groups", json, session)
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    change(arguments, session, |attached, named| attached.union(named).cloned().collect())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    change(arguments, session, |attached, named| attached.difference(named).cloned().collect())
}

fn set(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    // A forgotten argument must not clear the list.
    if arguments.count() < 2 {
        return Err(Failure::usage("SG is mandatory"));
    }
    write(id(arguments), arguments.words_from(1).to_vec(), session)
}

type Groups = BTreeSet<String>;

/// Reads the groups, and writes them back, in byte order, if `change` made
/// others of them.
fn change(
    arguments: &Arguments,
    session: &mut Session,
    change: fn(&Groups, &Groups) -> Groups,
) -> Result<(), Failure> {
    let id = id(arguments);
    let attached: Groups = ask_details(id, session)?.security_group.into_iter().collect();
    let named = arguments.words_from(1).iter().cloned().collect();
    let wanted = change(&attached, &named);
    if wanted == attached {
        return Ok(());
    }
    write(id, wanted.into_iter().collect(), session)
}

/// Replaces the groups. On the wire one empty string clears them.
fn write(id: &str, mut groups: Vec<String>, session: &mut Session) -> Result<(), Failure> {
    if groups.is_empty() {
        groups.push(String::new());
    }
    let update =
        NicUpdateReq { id: Some(id.to_owned()), security_group: groups, ..NicUpdateReq::default() };
    let request = Request { nic_update: MessageField::some(update), ..Request::default() };
    notes::ask_of_nic(id, request, session)?;
    notes::of_nic(id, session);
    Ok(())
}

fn id(arguments: &Arguments) -> &str {
    arguments.word(0).unwrap_or_default()
}
