//! `butterfly nic show`: everything known about one vnic, for the person on call.

use crate::commands::nic::limits;
use crate::commands::nic::show_json;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::text::page::{drops, field, host_mtu, listed, title};
use crate::text::table::{Align, counted, date, duration, now, safe, size, table, yes_no};
use crate::tree::Node;
use butterfly_api::proto::{NicShow, Pings, Request, nic::Type, nic_show};
use clap::Command;
use std::fmt::Write;

/// `nic show`.
pub fn node() -> Node {
    Node::run(
        Command::new("show")
            .about("Prints what a NIC is doing: its virtual machine, features, rings, memory, traffic and drops by reason.")
            .arg(word("NIC").help("id of the NIC"))
            .args([flag("all").help("also drop reasons that counted nothing, and all features offered"), json()])
            .after_help("butterfly nic show vm-1\nbutterfly nic show vm-1 --json | jq .drops"),
        show,
    )
}

fn show(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let response = session
        .ask(Request { nic_show: arguments.word(0).map(str::to_owned), ..Request::default() })?;
    let Some(show) = response.nic_show.into_option() else {
        return Err(Failure::said("no nic description received"));
    };
    if json {
        return session.json(&show_json::json(&show));
    }
    session.print(page(&show, now(), arguments.has("all")))
}

/// The page; `now` in seconds since 1970.
fn page(show: &NicShow, now: u64, all: bool) -> String {
    let mut page = format!("{}\n", safe(show.id()));
    declaration(&mut page, show);
    machine(&mut page, show, now);
    features(&mut page, show, all);
    queues(&mut page, &show.queues, other_side(show));
    memory(&mut page, &show.memory_regions);
    traffic(&mut page, show);
    if let Some(counted) = show.pings.as_ref() {
        title(&mut page, "pings");
        for (name, value) in ["requests", "replies", "min/mean/max"].into_iter().zip(pings(counted))
        {
            field(&mut page, name, &value);
        }
    }
    packet_trace(&mut page, show);
    drops(&mut page, &show.drops, all);
    page
}

fn declaration(page: &mut String, show: &NicShow) {
    let filtering = match (show.bypass_filtering(), show.ip_anti_spoof()) {
        _ if show.mirror.is_some() => "it is a mirror: nothing that it sends passes",
        (true, _) if show.forwards() => "bypassed; it forwards for others",
        (true, _) => "bypassed",
        (false, true) => "on, with ARP anti-spoofing",
        (false, false) => "on",
    };
    field(page, "mac", show.mac());
    field(page, "vni", &show.vni().to_string());
    if let Some(owner) = &show.waits_for {
        field(
            page,
            "waits for",
            &format!(
                "nic {owner}, which has its MAC address: nothing passes until that one is gone"
            ),
        );
    }
    let shared = if show.shared_ip() { ", shared with other hosts" } else { "" };
    field(page, "addresses", &format!("{}{shared}", listed(&show.ip)));
    if !show.prefix.is_empty() {
        let unrouted = match show.prefix_unrouted.as_slice() {
            [] => String::new(),
            some => format!(
                "; no subnet of the network covers {}: neither told to the machine nor routed",
                listed(some)
            ),
        };
        field(page, "prefixes", &format!("{}{unrouted}", listed(&show.prefix)));
    }
    let missing = match show.missing_group.as_slice() {
        [] => String::new(),
        names => format!("; there is no group {}, which allows nothing", names.join(", ")),
    };
    field(page, "security groups", &format!("{}{missing}", listed(&show.security_group)));
    field(page, "filtering", filtering);
    if show.router() {
        field(
            page,
            "router",
            "may send router advertisements and redirects, by a rule that names ICMPv6 or ICMP",
        );
    }
    for (way, limit) in show.limits.as_ref().map(limits::words).unwrap_or_default() {
        let waits = match (way, show.limits.waits()) {
            ("in", 1..) => {
                format!(
                    "; the machine's queue had to wait {}",
                    counted(show.limits.waits(), "time")
                )
            }
            _ => String::new(),
        };
        field(page, &format!("limit {way}"), &format!("{limit}{waits}"));
    }
    if let Some(mirror) = show.mirror.as_ref() {
        let idle =
            mirror.idle.as_ref().map(|idle| format!(": no copies, as {idle}")).unwrap_or_default();
        field(page, "mirror of", &format!("{}{idle}", mirror.target()));
    }
    if !show.mirrored_by.is_empty() {
        field(page, "mirrored by", &listed(&show.mirrored_by));
    }
}

fn machine(page: &mut String, show: &NicShow, now: u64) {
    let when = |seconds: u64| match now.checked_sub(seconds) {
        Some(age) => format!("{} ({} ago)", date(seconds), duration(age)),
        // The clocks of the two hosts differ.
        None => date(seconds),
    };
    let kind = show.type_.map_or("unknown type".into(), |kind| match kind.enum_value() {
        Ok(kind) => format!("{kind:?}"),
        Err(number) => format!("type {number}"),
    });
    let role = match show.role() {
        "server" => "server: QEMU connects to it",
        "client" => "client: QEMU owns it",
        other => other,
    };
    field(page, "type", &kind);
    match show.type_.map(|kind| kind.enum_value_or_default()) {
        Some(Type::TAP) => field(page, "interface", show.path()),
        Some(Type::BENCH) => {}
        _ => field(page, "socket", show.path()),
    }
    if let Some(netns) = &show.netns {
        field(page, "netns", netns);
    }
    if show.role.is_some() {
        field(page, "role", role);
    }
    if let Some(mtu) = show.host_mtu {
        field(page, "mtu", &host_mtu(mtu));
    }
    let attached = match (show.attached(), show.attached_since) {
        (true, Some(since)) => format!("since {}", when(since)),
        (true, None) => "yes".into(),
        (false, _) => format!("no {}", other_side(show)),
    };
    field(page, "attached", &attached);
    if let Some(why) = &show.held {
        let left = duration(show.held_for_s());
        let text = format!("for {left}, as {why}; `butterfly nic release` ends that");
        field(page, "rings held", &text);
    }
    if let Some(trouble) = &show.trouble {
        field(page, "trouble", trouble);
    }
    if let Some(process) = show.peer_pid {
        field(page, "machine", &format!("process {process}"));
    }
    if show.migrating() {
        field(page, "migrating", "yes: writes to its memory are logged");
    }
    if show.others_waiting() {
        field(page, "next", "another machine has connected and gets its turn when this one leaves");
    }
    if let Some(interrupts) = show.interrupts.as_ref().filter(|interrupts| interrupts.apart()) {
        let worst = interrupts.worst_ns() / 1000;
        field(
            page,
            "interrupts",
            &format!("slow (up to {worst} us): a thread of their own sends them"),
        );
    }
    if let Some(touches) =
        show.first_touches.as_ref().filter(|touches| touches.pages() + touches.stalls() > 0)
    {
        field(page, "first touches", &first_touches(touches));
    }
    field(page, "times attached", &show.attach_count().to_string());
    let detached = match (&show.last_detach_reason, show.last_detach_time) {
        (Some(reason), Some(time)) => format!("{}: {reason}", when(time)),
        (Some(reason), None) => reason.clone(),
        (None, Some(time)) => when(time),
        (None, None) => "never".into(),
    };
    field(page, "last detach", &detached);
}

/// Returns the guest behind a vnic, in a word.
fn other_side(show: &NicShow) -> &'static str {
    match show.type_.map(|kind| kind.enum_value_or_default()) {
        Some(Type::TAP) => "interface",
        Some(Type::BENCH) => "generator",
        _ => "virtual machine",
    }
}

/// Returns the cost of memory that was not there.
fn first_touches(touches: &nic_show::FirstTouches) -> String {
    let were = if touches.pages() == 1 { "was" } else { "were" };
    let mut text = format!(
        "{} of its memory {were} touched by the switch before anybody else",
        counted(touches.pages(), "page")
    );
    match touches.rests() {
        0 => {}
        1 => text.push_str(", so it had to rest once"),
        n => {
            let _ = write!(text, ", so it had to rest {n} times");
        }
    }
    if touches.stalls() > 0 {
        let _ = write!(text, "; the switch slept {} ms for some", touches.stalled_us() / 1000);
    }
    text.push_str(": its memory back end needs prealloc=on");
    text
}

fn features(page: &mut String, show: &NicShow, all: bool) {
    title(page, "features");
    if all {
        wrapped(page, "offered", &show.features_offered);
    }
    wrapped(page, "negotiated", &show.features_negotiated);
    wrapped(page, "refused", &show.features_refused);
    wrapped(page, "protocol", &show.protocol_features);
}

fn queues(page: &mut String, queues: &[nic_show::Queue], machine: &str) {
    title(page, &format!("queues (rx is what the {machine} receives from)"));
    if queues.is_empty() {
        page.push_str("  none\n");
        return;
    }
    let number = |value: Option<u32>| value.map_or("-".into(), |value| value.to_string());
    let many = queues.iter().any(|queue| queue.pair() > 0);
    let name = |queue: &nic_show::Queue| {
        let packed = if queue.packed() { " (packed)" } else { "" };
        match many {
            true => format!("{} {}{packed}", safe(queue.name()), queue.pair()),
            false => format!("{}{packed}", safe(queue.name())),
        }
    };
    let rows: Vec<_> = queues
        .iter()
        .map(|queue| {
            [
                name(queue),
                number(queue.size),
                yes_no(queue.running()),
                yes_no(queue.enabled()),
                yes_no(queue.broken()),
                number(queue.next_avail),
                number(queue.used),
                number(queue.guest_avail),
                number(show_json::pending(queue)),
            ]
        })
        .collect();
    page.push_str(&table(
        2,
        [
            ("name", Align::Left),
            ("size", Align::Right),
            ("running", Align::Left),
            ("enabled", Align::Left),
            ("broken", Align::Left),
            ("next avail", Align::Right),
            ("used", Align::Right),
            ("guest avail", Align::Right),
            ("pending", Align::Right),
        ],
        &rows,
    ));
    for queue in queues {
        let name = name(queue);
        if queue.broken() {
            let _ = writeln!(
                page,
                "  {name} is broken: its index was impossible; it rests until the guest sets it up anew"
            );
        }
        if let Some(trouble) = &queue.trouble {
            let _ = writeln!(page, "  {name} does not run: {}", safe(trouble));
        }
    }
}

fn memory(page: &mut String, regions: &[nic_show::MemoryRegion]) {
    title(page, "memory");
    if regions.is_empty() {
        page.push_str("  none\n");
        return;
    }
    let rows: Vec<_> = regions
        .iter()
        .map(|region| {
            let page_size = region.page_size.map_or("-".into(), size);
            [format!("{:#018x}", region.guest_addr()), size(region.size()), page_size]
        })
        .collect();
    let heading = [("guest address", Align::Left), ("size", Align::Right), ("pages", Align::Right)];
    page.push_str(&table(2, heading, &rows));
}

fn traffic(page: &mut String, show: &NicShow) {
    title(page, "traffic");
    let machine = other_side(show);
    let row = |name: &str, packets: u64, bytes: u64| {
        [name.to_owned(), packets.to_string(), bytes.to_string()]
    };
    let heading = [("", Align::Left), ("packets", Align::Right), ("bytes", Align::Right)];
    let rows = [
        row(&format!("in, from the {machine}"), show.in_packets(), show.in_bytes()),
        row(&format!("out, to the {machine}"), show.out_packets(), show.out_bytes()),
    ];
    page.push_str(&table(2, heading, &rows));
    for (count, what, meaning) in [
        (show.flooded(), "frame", format!("from the {machine} went to several receivers")),
        (
            show.learn_refused(),
            "time",
            "a source address was not learnt, as a bound was reached".to_owned(),
        ),
        (
            show.announced(),
            "frame",
            format!("said for the {machine} where it is now, as after a live migration"),
        ),
        (show.passed_on(), "frame", format!("passed on to the host for which the {machine} left")),
        (
            show.interface_refused(),
            "frame",
            "refused by the network interface, as it is down".to_owned(),
        ),
    ] {
        if count != 0 {
            let _ = writeln!(page, "  {} {meaning}", counted(count, what));
        }
    }
}

/// Returns the questions of a generator, and the times of the answers.
pub fn pings(pings: &Pings) -> [String; 3] {
    let micros =
        |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| format!("{:.2}", ns as f64 / 1000.0));
    let times = [pings.min_ns, pings.mean_ns, pings.max_ns].map(micros);
    [
        pings.requests().to_string(),
        pings.replies().to_string(),
        format!("{} us", times.join(" us ")),
    ]
}

/// The file that packets are written into.
fn packet_trace(page: &mut String, show: &NicShow) {
    let Some(trace) = show.packet_trace.as_ref() else { return };
    title(page, "packet trace");
    field(page, "file", &format!("{}{}", trace.path(), if trace.on() { "" } else { " (off)" }));
    field(
        page,
        "written",
        &format!("{}, {}", counted(trace.packets(), "packet"), counted(trace.bytes(), "byte")),
    );
    field(page, "lost", &counted(trace.lost(), "packet"));
    if let Some(trouble) = &trace.trouble {
        field(page, "trouble", trouble);
    }
}

/// A field whose value goes over several lines.
fn wrapped(page: &mut String, name: &str, words: &[String]) {
    const WIDTH: usize = 76;
    let mut lines = vec![String::new()];
    for word in words.iter().map(|word| safe(word)) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word,
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    if words.is_empty() {
        lines = vec!["none".into()];
    }
    for (place, line) in lines.iter().enumerate() {
        field(page, if place == 0 { name } else { "" }, line);
    }
}
