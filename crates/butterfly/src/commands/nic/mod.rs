//! `butterfly nic`: vnics.

mod add;
mod groups;
mod limits;
mod list;
mod lookup;
mod moved;
mod release;
mod show;
mod show_json;
mod update;

use crate::failure::Failure;
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::TraceOptions;
use clap::Command;

pub use list::{State, all, trouble};

/// Returns how packets are to be written, if any option says so.
fn trace_options(arguments: &Arguments) -> Result<Option<TraceOptions>, Failure> {
    let given = ["trace-filter", "trace-snap", "trace-file-size", "trace-files"]
        .iter()
        .any(|name| arguments.has(name));
    let options = TraceOptions {
        filter: arguments.value("trace-filter").map(str::to_owned),
        snap_length: arguments.parsed("trace-snap", "a number of bytes")?,
        file_size: arguments.parsed("trace-file-size", "a number of bytes")?,
        file_count: arguments.parsed("trace-files", "a number")?,
        ..TraceOptions::default()
    };
    Ok(given.then_some(options))
}

/// The `nic` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("nic").about("Virtual NICs: create, change, delete, look into."),
        vec![
            add::node(),
            update::node(),
            lookup::del(),
            list::node(),
            lookup::details(),
            lookup::stats(),
            release::node(),
            show::node(),
            moved::export(),
            moved::import(),
            groups::node(),
        ],
    )
}
