//! `butterfly uplink`: the port that leads out of the host.

use crate::commands::tunnels;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json};
use crate::line::reader::Arguments;
use crate::text::page::{drops, field, host_mtu, listed, section};
use crate::text::table::{Align, safe};
use crate::tree::Node;
use butterfly_api::proto::{Request, UplinkShow};
use clap::Command;
use serde_json::{Value, json};

/// `uplink`.
pub fn node() -> Node {
    Node::run(
        Command::new("uplink")
            .about("Prints what leads out of the host: mode, state, queues, MTU, offloads, traffic, counters of port and kernel, drops.")
            .args([flag("all").help("also what counted nothing"), json()])
            .after_help("butterfly uplink\nbutterfly uplink --json | jq .host_mtu"),
        print_uplink,
    )
}

fn print_uplink(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let response = session.ask(Request { uplink_show: Some(true), ..Request::default() })?;
    let Some(show) = response.uplink_show.into_option() else {
        return Err(Failure::said(tunnels::NO_UPLINK));
    };
    match json {
        true => session.json(&uplink_json(&show)),
        false => session.print(page(&show, arguments.has("all"))),
    }
}

fn page(show: &UplinkShow, all: bool) -> String {
    let mut page = format!("{}\n", safe(show.interface()));
    field(&mut page, "kind", show.kind());
    field(&mut page, "mode", show.mode());
    if let Some(note) = &show.note {
        field(&mut page, "note", note);
    }
    if let Some(state) = &show.state {
        field(&mut page, "state", &told(state, show.interface()));
    }
    if let Some(attached) = show.attached {
        let attached =
            if attached { "yes" } else { "no: the other end of the socket is not there" };
        field(&mut page, "attached", attached);
    }
    field(&mut page, "vlan", &vlan(show));
    field(&mut page, "queues", &show.queues().to_string());
    field(&mut page, "link address", show.mac());
    field(&mut page, "mtu", &show.mtu().to_string());
    field(&mut page, "machines", &host_mtu(show.host_mtu()));
    field(&mut page, "offloads", &listed(&show.offloads));
    let row = |name: &str, packets: u64, bytes: u64| {
        [name.to_owned(), packets.to_string(), bytes.to_string()]
    };
    let rows = [
        row("in, from other hosts", show.in_packets(), show.in_bytes()),
        row("out, to other hosts", show.out_packets(), show.out_bytes()),
    ];
    section(
        &mut page,
        "traffic",
        [("", Align::Left), ("packets", Align::Right), ("bytes", Align::Right)],
        &rows,
    );
    tunnels::counters(&mut page, "counters of port and kernel", &show.counters, all);
    drops(&mut page, &show.drops, all);
    page
}

/// The VLAN of the underlay, and whether others are kept out.
fn vlan(show: &UplinkShow) -> String {
    let vlan = show.vlan.map_or("none".to_owned(), |vlan| vlan.to_string());
    match &show.vlan_doubt {
        None => format!("{vlan}; frames of others are dropped"),
        Some(why) => format!("{vlan}; frames of others may be heard: {why}"),
    }
}

/// The state of an interface, and what to do about it.
fn told(state: &str, interface: &str) -> String {
    match state {
        "no carrier" => {
            format!("{state}: nobody is at the other end of the cable; nothing leaves this host")
        }
        "down" => format!("{state}: nothing leaves this host; `ip link set dev {interface} up`"),
        "removed" => format!(
            "{state}: nothing leaves this host until the interface is back; without --state-dir, restart butterflyd then"
        ),
        "not open" => {
            format!("{state}: nothing leaves this host; it is tried again every few seconds")
        }
        "elsewhere" => format!("{state}: given to another network namespace, or deleted"),
        state => state.to_owned(),
    }
}

fn uplink_json(show: &UplinkShow) -> Value {
    json!({
        "kind": show.kind(),
        "interface": show.interface(),
        "mode": show.mode(),
        "note": show.note,
        "attached": show.attached,
        "state": show.state,
        "vlan": show.vlan,
        "vlan_doubt": show.vlan_doubt,
        "queues": show.queues(),
        "mac": show.mac(),
        "mtu": show.mtu(),
        "host_mtu": show.host_mtu(),
        "offloads": show.offloads,
        "in_packets": show.in_packets(),
        "in_bytes": show.in_bytes(),
        "out_packets": show.out_packets(),
        "out_bytes": show.out_bytes(),
        "counters": tunnels::counters_json(&show.counters),
        "drops": tunnels::drops_json(&show.drops),
    })
}
