//! `butterfly peer`: the hosts that get what is for several receivers.

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Request, TunnelPeer};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};

/// The `peer` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("peer").about("Names other hosts for networks that have no multicast group, lists them, takes them back."),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the tunnel endpoints that were named, and for which networks.")
                    .arg(json())
                    .after_help("butterfly peer list"),
                list,
            ),
            Node::run(
                Command::new("add")
                    .about("Names tunnel endpoints of other hosts. Those that are named already are no error.")
                    .args([addresses(), network()])
                    .after_help("butterfly peer add 192.0.2.2 192.0.2.3\nbutterfly peer add 192.0.2.4 --vni 42"),
                |arguments, session| {
                    let request = |peer| Request { peer_add: MessageField::some(peer), ..Request::default() };
                    let (peers, before) = (peers(arguments)?.collect::<Vec<_>>(), notes::peers(session));
                    session.ask_all(peers.iter().cloned().map(request).collect())?;
                    notes::of_first_peers(&peers, before, session);
                    Ok(())
                },
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back: without --vni what was named for all networks, with it what was named for that one. Those that are not named are no error.")
                    .args([addresses(), network()])
                    .after_help("butterfly peer del 192.0.2.4 --vni 42"),
                |arguments, session| {
                    let request = |peer| Request { peer_del: MessageField::some(peer), ..Request::default() };
                    let (peers, before) = (peers(arguments)?.collect::<Vec<_>>(), notes::peers(session));
                    session.ask_all(peers.iter().cloned().map(request).collect())?;
                    notes::of_absent_peers(&peers, before, session);
                    Ok(())
                },
            ),
        ],
    )
}

fn addresses() -> Arg {
    word("IP")
        .num_args(1..)
        .help("IPv4 or IPv6 addresses; those refused are told, the others count")
}

fn network() -> Arg {
    option("vni", "VNI").help("for this network only (default: for all)")
}

/// The peers that the words name.
fn peers(arguments: &Arguments) -> Result<impl Iterator<Item = TunnelPeer>, Failure> {
    let vni = arguments.parsed("vni", "a number from 0 to 16777215")?;
    let peer = move |address: &String| TunnelPeer {
        address: Some(address.clone()),
        vni,
        ..TunnelPeer::default()
    };
    Ok(arguments.words_from(0).iter().map(peer))
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let peers = session.ask(Request { peer_list: Some(true), ..Request::default() })?.peer_list;
    if json {
        let row = |peer: &TunnelPeer| json!({ "address": peer.address(), "vni": peer.vni });
        return session.json(&json!({ "peers": peers.iter().map(row).collect::<Value>() }));
    }
    let row = |peer: &TunnelPeer| {
        [peer.vni.map_or("all".into(), |vni| vni.to_string()), safe(peer.address())]
    };
    let rows: Vec<_> = peers.iter().map(row).collect();
    session.print(table(0, [("network", Align::Right), ("peer", Align::Left)], &rows))
}
