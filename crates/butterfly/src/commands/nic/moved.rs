//! `butterfly nic export|import`: a vnic whose virtual machine moves to another host.

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, option, word};
use crate::line::reader::Arguments;
use crate::text::table::counted;
use crate::tree::Node;
use butterfly_api::proto::{NicExportToReq, NicImportReq, NicImportRes, Request};
use clap::Command;
use protobuf::MessageField;
use serde_json::json;
use std::io::Read;
use std::time::Duration;

/// A vnic may have many sessions.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of an export, and one more.
const MOST: u64 = (8 << 20) + 1;
/// The answer of a daemon that does not know the request.
const UNKNOWN: &str = "no request found";

const LONG: &str = "Prints all that another host needs to go on with a NIC whose virtual machine moves there: its sessions, with the state of \
TCP connections, and its counters. `butterfly nic import` on that host reads it. It may be asked any number of times, before the machine left \
and after that.

With --to, this host knows from now on where the machine goes. When its queues stop here, or at once if they have, local NICs find it on the \
other host, and what third hosts still send here is passed on for 30 seconds. If the machine goes on here, because the migration was given \
up, all of that ends.

docs/live-migration.md has the whole of it, for QEMU and libvirt.";

/// `nic export`.
pub fn export() -> Node {
    Node::run(
        Command::new("export")
            .about("Prints all that another host needs to go on with a NIC whose virtual machine moves there, for `butterfly nic import`.")
            .long_about(LONG)
            .arg(word("NIC").help("id of the NIC"))
            .arg(option("to", "ENDPOINT").help("IP address of the other host's tunnel endpoint: the machine is found there once it stopped here, and packets for it are passed on for 30 s"))
            .after_help("butterfly nic export vm-1 --to 192.0.2.7 | butterfly nic import -e tcp://192.0.2.7:9999"),
        |arguments, session| {
            let id = arguments.word(0).unwrap_or_default();
            session.wait_for(PATIENCE);
            let request = match arguments.value("to") {
                None => Request { nic_export: Some(id.to_owned()), ..Request::default() },
                Some(to) => {
                    let request = NicExportToReq {
                        id: Some(id.to_owned()),
                        to: Some(to.to_owned()),
                        ..NicExportToReq::default()
                    };
                    let nic_export_to = MessageField::some(request);
                    Request { nic_export_to, ..Request::default() }
                }
            };
            let response = notes::ask_of_nic(id, request, session).map_err(too_old)?;
            let exported = response.nic_export.unwrap_or_default();
            if exported.fw_data.data().is_empty() {
                return Err(Failure::said("the daemon is older than this client: it exports nothing"));
            }
            if exported.left_out() > 0 {
                session.remark(&format!(
                    "{} found no room: those that were silent for longest",
                    counted(exported.left_out(), "session")
                ));
            }
            let text = String::from_utf8_lossy(exported.fw_data.data());
            session.line(text)
        },
    )
}

/// `nic import`.
pub fn import() -> Node {
    Node::run(
        Command::new("import")
            .about("Takes over what a NIC was on another host, as `butterfly nic export` printed it there. The NIC must be declared here as it is there.")
            .arg(word("FILE").required(false).help("the file; -: standard input (default)"))
            .arg(json())
            .after_help("butterfly nic import vm-1.export\nbutterfly nic export vm-1 --to 192.0.2.7 | butterfly nic import -e tcp://192.0.2.7:9999"),
        |arguments, session| {
            let json = session.wants_json(arguments);
            let data = read(arguments)?;
            session.wait_for(PATIENCE);
            let nic_import =
                MessageField::some(NicImportReq { data: Some(data), ..NicImportReq::default() });
            let response =
                session.ask(Request { nic_import, ..Request::default() }).map_err(too_old)?;
            let imported = response.nic_import.unwrap_or_default();
            match json {
                true => session.json(&json!({
                    "id": imported.id(),
                    "taken": imported.taken(),
                    "known": imported.known(),
                    "ended": imported.ended(),
                    "left_out": imported.left_out(),
                    "refused": imported.refused.iter().map(|why| json!({"why": why.name(), "sessions": why.value()})).collect::<Vec<_>>(),
                })),
                false => print(&imported, session),
            }
        },
    )
}

fn print(imported: &NicImportRes, session: &mut Session) -> Result<(), Failure> {
    session.line(format_args!(
        "{}: {} taken over, {} known here, {} of an earlier import ended",
        imported.id(),
        counted(imported.taken(), "session"),
        imported.known(),
        imported.ended()
    ))?;
    for why in &imported.refused {
        session.line(format_args!("refused: {} ({})", why.value(), why.name()))?;
    }
    if imported.left_out() > 0 {
        session.line(format_args!("left out by the other host: {}", imported.left_out()))?;
    }
    Ok(())
}

fn read(arguments: &Arguments) -> Result<Vec<u8>, Failure> {
    let path = arguments.word(0).unwrap_or("-");
    let mut data = Vec::new();
    let read = match path {
        "-" => std::io::stdin().lock().take(MOST).read_to_end(&mut data),
        path => std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut data)),
    };
    let name = if path == "-" { "standard input" } else { path };
    match read {
        Err(error) => Err(Failure::said(format!("failed to open {name}\n{error}"))),
        Ok(_) if data.trim_ascii().is_empty() => {
            Err(Failure::said(format!("{name} is empty: the export failed")))
        }
        Ok(_) => Ok(data),
    }
}

/// An older daemon takes the field for one that it need not know.
fn too_old(failure: Failure) -> Failure {
    match failure {
        Failure::Said(text) if text.contains(UNKNOWN) => {
            Failure::Said(format!("{text}\nhelp: the daemon is older than this client"))
        }
        other => other,
    }
}
