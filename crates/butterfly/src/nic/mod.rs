//! `butterfly nic`: virtual NICs.

mod add;
mod groups;
mod lookup;
mod show;
mod show_json;
mod update;

use crate::tree::Node;
use clap::Command;

/// The `nic` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("nic").about("Virtual NICs: create, change, delete, look into."),
        vec![
            add::node(),
            update::node(),
            lookup::del(),
            lookup::list(),
            lookup::details(),
            lookup::stats(),
            show::node(),
            groups::node(),
        ],
    )
}
