//! Traces and captures of whole daemons: they have every packet that guests sent and received, and
//! cost no packet.

use std::{fs, path::Path, process::Command};

use butterfly_api::proto::{
    CaptureReq, NicUpdateReq, Request, TraceOptions, TraceReq, TraceRes, TraceTarget, TracedPacket,
    capture_req, trace_req, traced_packet::Verdict,
};
use butterfly_guest_driver::Vm;
use butterfly_packet::{
    build,
    mac::Mac,
    tcp::{ACK, SYN},
};
use butterfly_tests::{
    Daemon, Host, Nic, PATIENCE, Station, eventually,
    frames::{mac, numbered},
    net::{Net, filtered, open, segment, v4},
    station::{features, machine, usual},
};
use protobuf::MessageField;

fn of_nic(id: &str) -> TraceTarget {
    TraceTarget { nic_id: Some(id.to_owned()), ..TraceTarget::default() }
}

fn trace(daemon: &Daemon, request: TraceReq) -> Result<TraceRes, String> {
    let response =
        daemon.ask(Request { trace: MessageField::some(request), ..Request::default() })?;
    Ok(response.trace.unwrap())
}

pub fn begin_trace(daemon: &Daemon, target: TraceTarget, filter: &str) -> u64 {
    let start = trace_req::Start {
        target: MessageField::some(target),
        filter: Some(filter.into()),
        ..Default::default()
    };
    trace(daemon, TraceReq { start: MessageField::some(start), ..TraceReq::default() })
        .unwrap()
        .trace()
}

pub fn end_trace(daemon: &Daemon, number: u64) -> TraceRes {
    let mut packets = Vec::new();
    loop {
        let mut told =
            trace(daemon, TraceReq { stop: Some(number), ..TraceReq::default() }).unwrap();
        packets.append(&mut told.packet);
        if !told.more() {
            return TraceRes { packet: packets, ..told };
        }
    }
}

pub fn begin_capture(daemon: &Daemon, target: TraceTarget) -> u64 {
    let start = capture_req::Start { target: MessageField::some(target), ..Default::default() };
    let request = CaptureReq { start: MessageField::some(start), ..CaptureReq::default() };
    daemon
        .ask(Request { capture: MessageField::some(request), ..Request::default() })
        .unwrap()
        .capture
        .unwrap()
        .capture()
}

/// Ends a capture. Returns its bytes, its number of packets, and the number of lost ones.
pub fn end_capture(daemon: &Daemon, number: u64) -> (Vec<u8>, u64, u64) {
    let mut data = Vec::new();
    loop {
        let request = CaptureReq { stop: Some(number), ..CaptureReq::default() };
        let response = daemon
            .ask(Request { capture: MessageField::some(request), ..Request::default() })
            .unwrap();
        let told = response.capture.unwrap();
        data.extend_from_slice(told.data());
        if !told.more() {
            return (data, told.packets(), told.lost());
        }
    }
}

fn update(daemon: &Daemon, id: &str, on: Option<bool>, path: Option<&Path>) -> Result<(), String> {
    let update = NicUpdateReq {
        id: Some(id.into()),
        packet_trace: on,
        packet_trace_path: path.map(|path| path.to_str().unwrap().to_owned()),
        ..NicUpdateReq::default()
    };
    daemon.ask(Request { nic_update: MessageField::some(update), ..Request::default() }).map(|_| ())
}

/// Returns the fields that tshark reads from a file, a row per packet. tshark must not complain.
pub fn tshark(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file).args(["-T", "fields", "-E", "separator=/t"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    let said = String::from_utf8(output.stderr).unwrap();
    let complaints: Vec<&str> =
        said.lines().filter(|line| !line.starts_with("Running as user \"root\"")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{}: {complaints:?}", file.display());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Returns the bytes of each packet in a file, as tshark reads them.
fn bytes_of(file: &Path) -> Vec<Vec<u8>> {
    let output = Command::new("tshark").args(["-n", "-x", "-r"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for line in text.lines() {
        let Some((offset, rest)) = line.split_once("  ") else { continue };
        if offset == "0000" {
            packets.push(Vec::new());
        }
        let digits = rest.get(..48.min(rest.len())).unwrap_or_default();
        let bytes = digits.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        packets.last_mut().unwrap().extend(bytes);
    }
    packets
}

/// Returns the outcome of a traced packet, as [`Net::send`] does.
fn outcome(packet: &TracedPacket) -> String {
    match packet.verdict.unwrap().unwrap() {
        Verdict::DELIVERED => packet.to_nic().to_owned(),
        Verdict::DROPPED => {
            format!("{}.{}", packet.charged().strip_prefix("nic ").unwrap(), packet.reason())
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn trace_and_capture_say_what_the_guests_saw() {
    let Some(mut net) =
        Net::new(&[filtered("a", 1, "clients"), filtered("b", 2, "web"), open("c", 3)])
    else {
        return;
    };
    net.group("web", &["in tcp 80-90 0.0.0.0/0"], &[]);
    let dir = net.host.dir().to_owned();
    let file = dir.join("b.pcapng");
    let classic = dir.join("a.pcap");
    let daemon = net.host.daemon();
    update(daemon, "b", Some(true), Some(&file)).unwrap();
    update(daemon, "a", Some(true), Some(&classic)).unwrap();
    let all = begin_trace(daemon, TraceTarget::default(), "");
    let only = begin_trace(daemon, of_nic("b"), "tcp port 79");
    let capture = begin_capture(daemon, of_nic("b"));

    let tcp = |from, to, ports, flags| v4(from, to).tcp(&segment(ports, flags, 1, 2), b"");
    let mut spoofed = tcp(1, 2, (5, 80), SYN);
    spoofed[26..30].copy_from_slice(&[10, 9, 9, 9]);
    let frames = [
        ("a", tcp(1, 2, (4000, 80), SYN)),
        ("b", tcp(2, 1, (80, 4000), SYN | ACK)),
        ("a", tcp(1, 2, (4001, 79), SYN)),
        ("a", spoofed),
        ("c", tcp(3, 2, (5000, 91), SYN)),
        ("c", tcp(3, 2, (5000, 85), SYN)),
        ("c", tcp(3, 1, (5000, 85), SYN)),
    ];
    let outcomes: Vec<String> = frames.iter().map(|(from, frame)| net.send(from, frame)).collect();

    let daemon = net.host.daemon();
    let told = end_trace(daemon, all);
    let seen: Vec<(String, String, u32)> = told
        .packet
        .iter()
        .map(|packet| (packet.from_nic().to_owned(), outcome(packet), packet.length()))
        .collect();
    let expected: Vec<(String, String, u32)> = frames
        .iter()
        .zip(&outcomes)
        .map(|((from, frame), outcome)| ((*from).to_owned(), outcome.clone(), frame.len() as u32))
        .collect();
    assert_eq!(seen, expected);
    assert_eq!((told.lost(), told.suppressed(), told.seen()), (0, 0, frames.len() as u64));
    assert!(
        told.packet
            .iter()
            .all(|packet| packet.vni.is_some() && packet.cycles() > 0 && packet.time() > 0)
    );
    assert_eq!(told.packet[0].rule, ["web: in tcp 80-90 from 0.0.0.0/0"], "{:?}", told.packet[0]);
    assert_eq!((told.packet[0].reply, told.packet[1].reply), (Some(false), Some(true)));
    assert!(
        told.packet[0].summary().contains("10.0.0.1:4000 > 10.0.0.2:80"),
        "{}",
        told.packet[0].summary()
    );

    let told = end_trace(daemon, only);
    assert_eq!(told.packet.iter().map(outcome).collect::<Vec<_>>(), ["b.ingress-denied"]);
    assert_eq!(told.seen(), 5, "what concerns b");
    assert!(
        trace(daemon, TraceReq { read: Some(only), ..TraceReq::default() })
            .unwrap_err()
            .contains("there is no trace")
    );

    // The capture has the packets from b and to b with their outcomes; files have the same.
    let (data, packets, lost) = end_capture(daemon, capture);
    assert_eq!((packets, lost), (5, 0));
    let live = dir.join("live.pcapng");
    fs::write(&live, data).unwrap();
    update(daemon, "b", Some(false), None).unwrap();
    update(daemon, "a", Some(false), None).unwrap();
    let comments = [
        "delivered to nic b; rule web: in tcp 80-90 from 0.0.0.0/0",
        "delivered to nic a; rule web: in tcp 80-90 from 0.0.0.0/0",
        "dropped: ingress-denied, charged to nic b",
        "dropped: ingress-denied, charged to nic b",
        "delivered to nic b; rule web: in tcp 80-90 from 0.0.0.0/0",
    ];
    let concern_b = [0, 1, 2, 4, 5].map(|at: usize| frames[at].1.clone());
    for file in [&live, &file] {
        let rows = tshark(file, &["frame.len", "frame.comment"]);
        let expected: Vec<Vec<String>> = concern_b
            .iter()
            .zip(comments)
            .map(|(frame, comment)| vec![frame.len().to_string(), comment.to_owned()])
            .collect();
        assert_eq!(rows, expected, "{}", file.display());
        assert_eq!(bytes_of(file), concern_b);
    }
    // A classic file has frames that the VM sent, before any check, and frames that its filter
    // admitted.
    assert_eq!(bytes_of(&classic), [0, 1, 2, 3].map(|at: usize| frames[at].1.clone()));
    assert_eq!(tshark(&classic, &["frame.len"]).len(), 4);
    assert_eq!(fs::read(&classic).unwrap()[..4], 0xa1b2_c3d4u32.to_ne_bytes());
    let shown: serde_json::Value =
        serde_json::from_str(&daemon.client_ok(&["nic", "show", "b", "--json"])).unwrap();
    let shown = &shown["packet_trace"];
    assert_eq!(
        (shown["on"].as_bool(), shown["packets"].as_u64(), shown["lost"].as_u64()),
        (Some(false), Some(5), Some(0))
    );
    assert_eq!(shown["path"].as_str(), file.to_str());
}

/// Begins a trace of vnic a. Returns its number.
fn begin(daemon: &Daemon) -> Result<u64, String> {
    let start = trace_req::Start { target: MessageField::some(of_nic("a")), ..Default::default() };
    trace(daemon, TraceReq { start: MessageField::some(start), ..TraceReq::default() })
        .map(|begun| begun.trace())
}

/// Returns the number that the next trace would get now.
fn next_number(daemon: &Daemon) -> u64 {
    let number = begin(daemon).unwrap();
    end_trace(daemon, number);
    number
}

/// Waits until other programs have begun `count` traces since the one with the number `first`. Ends
/// its own traces, so that there is room for them.
fn others_began(daemon: &Daemon, first: u64, count: u64) {
    let mut ours = 0;
    eventually("they began", || {
        ours += 1;
        next_number(daemon) - first - ours == count
    });
}

#[test]
fn the_commands_print_and_write() {
    let Some(mut net) = Net::new(&[open("a", 1), open("b", 2)]) else { return };
    let dir = net.host.dir().to_owned();
    let endpoint = net.host.daemon().endpoint().to_owned();
    let file = dir.join("out.pcapng");
    let spawn = |words: &[&str]| {
        // An endless client must not outlive a test that fails.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(butterfly_tests::programs::program("butterfly"));
        command.args(words).args(["-e", &endpoint]);
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let first = next_number(net.host.daemon());
    let text = spawn(&["trace", "a", "udp", "--count", "2", "--seconds", "60"]);
    let json = spawn(&["trace", "all", "--count", "3", "--seconds", "60", "--json"]);
    let written = spawn(&[
        "capture",
        "b",
        "udp",
        "and",
        "port",
        "7",
        "-w",
        file.to_str().unwrap(),
        "--count",
        "2",
        "--seconds",
        "60",
    ]);
    let piped = spawn(&["capture", "nic:b", "-w", "-", "--count", "3", "--seconds", "60"]);
    let endless = dir.join("endless.pcapng");
    let interrupted = spawn(&["capture", "b", "-w", endless.to_str().unwrap()]);
    others_began(net.host.daemon(), first, 5);
    // There is room for three more traces now.
    let more: Vec<u64> = std::iter::from_fn(|| begin(net.host.daemon()).ok()).collect();
    assert_eq!(more.len(), 3);
    more.into_iter().for_each(|number| drop(end_trace(net.host.daemon(), number)));
    net.send("a", &v4(1, 2).udp(1, 7, b"one"));
    net.send("a", &v4(1, 2).tcp(&segment((1, 2), SYN, 1, 1), b""));
    net.send("a", &v4(1, 2).udp(7, 1, b"two"));
    let finish = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let text = String::from_utf8(finish(text).stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains(" a -> b vni 1 | ") && lines[0].contains("udp 10.0.0.1:1 > 10.0.0.2:7"),
        "{text}"
    );
    assert!(lines[0].contains("| delivered"), "{text}");
    let json = String::from_utf8(finish(json).stdout).unwrap();
    let values: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(values.len(), 3);
    assert!(values.iter().all(|value| value["verdict"] == "delivered" && value["from_nic"] == "a"));
    // Ctrl-C ends an endless trace without a loss.
    let signalled =
        Command::new("kill").args(["-INT", &interrupted.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let said = String::from_utf8(finish(interrupted).stderr).unwrap();
    assert!(said.starts_with("3 packets written; 0 lost"), "{said}");
    assert_eq!(tshark(&endless, &["frame.number"]).len(), 3);
    finish(written);
    assert_eq!(tshark(&file, &["udp.srcport"]), [["1"], ["7"]]);
    let stream = dir.join("piped.pcapng");
    fs::write(&stream, finish(piped).stdout).unwrap();
    assert_eq!(tshark(&stream, &["frame.number"]).len(), 3);
    for (words, why) in [
        (&["trace", "nobody"][..], "NIC does not exist with id nobody"),
        (&["trace", "a", "prot", "tcp"], "syntax error"),
        (&["trace", "a", "--rate", "0"], "1 to 100000"),
        (&["capture", "a", "-w", "/nowhere/x"], "/nowhere/x"),
    ] {
        let output = net.host.daemon().client(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn whoever_follows_a_daemon_that_is_killed_is_told() {
    let Some(net) = Net::new(&[open("a", 1)]) else { return };
    let endpoint = net.host.daemon().endpoint().to_owned();
    let (pid, first) = (net.host.daemon().pid(), next_number(net.host.daemon()));
    let follow = |words: &'static [&str]| {
        let mut command = Command::new(butterfly_tests::programs::program("butterfly"));
        command.args(words).args(["-e", &endpoint]);
        std::thread::spawn(move || command.output().unwrap())
    };
    let followers = [
        follow(&["trace", "all", "--seconds", "600"]),
        follow(&["capture", "a", "-t", "1500", "-w", "-"]),
    ];
    others_began(net.host.daemon(), first, 2);
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    for follower in followers {
        let output = follower.join().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && said.contains("butterflyd is not running there"),
            "{said}"
        );
    }
    // The killed daemon left its session table in memory; the next one removes it.
    drop(Daemon::start_in(net.host.dir(), &[], &[]));
}

#[test]
fn files_follow_the_declaration() {
    let Some(mut net) = Net::new(&[open("a", 1), open("b", 2)]) else { return };
    let dir = net.host.dir().to_owned();
    let frames: Vec<Vec<u8>> = (0..8u16).map(|n| v4(1, 2).udp(n, 7, b"butterfly")).collect();
    let default = format!("/tmp/butterfly-{}-b.pcap", net.host.daemon().pid());
    let default = Path::new(&default);
    let remove = RemoveFile(default);
    let ports = |file: &Path| tshark(file, &["udp.srcport"]).concat();
    update(net.host.daemon(), "b", Some(true), None).unwrap();
    net.expect("a", &frames[0], "b");
    update(net.host.daemon(), "b", Some(false), None).unwrap();
    net.expect("a", &frames[1], "b");
    assert_eq!(ports(default), ["0"]);
    // The recording goes on in the same file.
    update(net.host.daemon(), "b", Some(true), None).unwrap();
    net.expect("a", &frames[2], "b");
    // The recording goes to another file; an update of another field does not change that.
    let other = dir.join("other.pcap");
    update(net.host.daemon(), "b", None, Some(&other)).unwrap();
    net.host.update("b", &["10.0.0.77"], false).unwrap();
    net.expect("a", &frames[3], "b");
    assert_eq!(ports(default), ["0", "2"]);
    // Only some packets, cut, in a ring of files.
    let ring = dir.join("ring.pcapng");
    let daemon = net.host.daemon();
    let options = TraceOptions {
        filter: Some("udp src port 5".into()),
        snap_length: Some(40),
        file_size: Some(65_536),
        file_count: Some(3),
        ..TraceOptions::default()
    };
    let change = NicUpdateReq {
        id: Some("b".into()),
        packet_trace_path: Some(ring.to_str().unwrap().into()),
        packet_trace_options: MessageField::some(options.clone()),
        ..NicUpdateReq::default()
    };
    daemon.ask(Request { nic_update: MessageField::some(change), ..Request::default() }).unwrap();
    let details = daemon
        .ask(Request { nic_details: Some("b".into()), ..Request::default() })
        .unwrap()
        .nic_details
        .remove(0);
    assert_eq!(details.packet_trace_options.as_ref(), Some(&options));
    net.expect("a", &frames[4], "b");
    net.expect("a", &frames[5], "b");
    for _ in 0..2000 {
        net.station("a").send(&frames[5]);
        net.station("b").expect(&frames[5]);
    }
    update(net.host.daemon(), "b", Some(false), None).unwrap();
    assert_eq!(ports(&other), ["3"]);
    let files = [ring.clone(), dir.join("ring.pcapng.1"), dir.join("ring.pcapng.2")];
    let kept: Vec<usize> = files.iter().map(|file| tshark(file, &["frame.len"]).len()).collect();
    assert!(kept.iter().sum::<usize>() <= 2001 && kept.iter().all(|n| *n > 0), "{kept:?}");
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() < 65_536 + 1024);
        let rows = tshark(file, &["frame.cap_len", "udp.srcport"]);
        assert!(rows.iter().all(|row| row[0] == "40" && row[1] == "5"), "{rows:?}");
    }
    // A refused change has no effect.
    let link = dir.join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    let passwd = fs::read("/etc/passwd").unwrap();
    let precious = dir.join("precious");
    fs::write(&precious, "the daemon's user has other files").unwrap();
    for path in [&link, &dir, &dir.join("no/where"), Path::new("/dev/null"), &precious] {
        let why = update(net.host.daemon(), "b", Some(true), Some(path)).unwrap_err();
        assert!(why.contains("cannot write packets to"), "{why}");
    }
    assert_eq!(fs::read("/etc/passwd").unwrap(), passwd);
    assert_eq!(fs::read(&precious).unwrap(), b"the daemon's user has other files");
    update(net.host.daemon(), "a", Some(true), Some(&other)).unwrap();
    let why = update(net.host.daemon(), "b", Some(true), Some(&other)).unwrap_err();
    assert!(why.contains("packets of nic a are written there"), "{why}");
    net.expect("a", &frames[6], "b");
    drop(remove);
}

/// A declared trace records from the first packet, also without `-t`. A vnic that declares none has
/// none in spite of `-t`.
#[test]
fn what_is_declared_is_recorded_from_the_start() {
    if butterfly_tests::Kind::wanted() != butterfly_tests::Kind::Daemon {
        return;
    }
    for (server, own) in [(&[][..], "true"), (&["-t".to_owned()], "false")] {
        let host = Host::of(Daemon::start_with(&[], server));
        let default = ["main", "a", "b"]
            .map(|name| format!("/tmp/butterfly-{}-{name}.pcap", host.daemon().pid()));
        let _remove = default.each_ref().map(|path| RemoveFile(Path::new(path)));
        let file = host.dir().join("b.pcap");
        let mut words = vec![
            "nic",
            "add",
            "--id",
            "b",
            "--vni",
            "1",
            "--bypass-filtering",
            "--packet-trace",
            own,
        ];
        let address = mac(2).to_string();
        words.extend(["--mac", &address]);
        if own == "true" {
            words.extend(["--trace-path", file.to_str().unwrap()]);
        }
        let path = host.daemon().client_ok(&words).trim_end().to_owned();
        let vm = Vm::connect(&path, &usual(), PATIENCE).unwrap();
        let nic = Nic::bypass("b", mac(2), 1);
        let mut b = Station { nic, path: path.into(), listener: None, vm, config: usual() };
        let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
        let frames = [numbered(mac(2), mac(1), 1, 1, 100), numbered(mac(1), mac(2), 1, 2, 200)];
        b.send(&frames[0]);
        a.expect(&frames[0]);
        a.send(&frames[1]);
        b.expect(&frames[1]);
        let details = host.daemon().client_ok(&["nic", "details", "b"]);
        assert!(details.ends_with(&format!("\npacket trace: {own}\n")), "{details}");
        for id in ["a", "b"] {
            update(host.daemon(), id, Some(false), None).unwrap();
        }
        let [_, of_a, of_b] = default.each_ref().map(Path::new);
        assert_eq!(
            (file.exists(), of_a.exists(), of_b.exists()),
            (own == "true", own == "false", false)
        );
        assert_eq!(bytes_of(if own == "true" { &file } else { of_a }), frames);
    }
}

/// A relative path is relative to the directory in which the daemon was started.
#[test]
fn a_relative_path_is_the_daemon_s() {
    if butterfly_tests::Kind::wanted() != butterfly_tests::Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let host = Host::of(Daemon::start_with(&["env", "-C", room.path().to_str().unwrap()], &[]));
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    update(host.daemon(), "a", Some(true), Some(Path::new("own.pcap"))).unwrap();
    let frame = numbered(mac(1), mac(2), 1, 1, 100);
    a.send(&frame);
    b.expect(&frame);
    update(host.daemon(), "a", Some(false), None).unwrap();
    assert_eq!(bytes_of(&room.path().join("own.pcap")), [frame]);
}

/// A file outside the test's directory, deleted when this is dropped.
struct RemoveFile<'a>(&'a Path);

impl Drop for RemoveFile<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

#[test]
fn the_whole_server_is_recorded_with_t() {
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("uplink");
    let uplink = format!("vhost-user:{}", socket.display());
    let options = ["-t", "--uplink", &uplink].map(str::to_owned);
    if butterfly_tests::Kind::wanted() != butterfly_tests::Kind::Daemon {
        return;
    }
    let mut host = Host::of(Daemon::start_with(&[], &options));
    let pid = host.daemon().pid();
    let paths = [format!("/tmp/butterfly-{pid}-main.pcap"), format!("/tmp/butterfly-{pid}-a.pcap")];
    let [main, own] = paths.each_ref().map(Path::new);
    let _remove = [RemoveFile(main), RemoveFile(own)];
    let mut wire = Vm::connect(&socket, &machine(features::MODERN, 9000), PATIENCE).unwrap();
    wire.connection.sync().unwrap();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    // Switch the recording of b off.
    update(host.daemon(), "b", Some(false), None).unwrap();
    let frames = [numbered(mac(1), mac(2), 1, 1, 100), numbered(mac(1), Mac::BROADCAST, 1, 2, 200)];
    for frame in &frames {
        a.send(frame);
        b.expect(frame);
    }
    let mut sent = Vec::new();
    eventually("the flood left", || {
        while let Some((_, frame)) = wire.guest.recv().unwrap() {
            sent.push(frame);
        }
        sent.iter().any(|frame| frame.ends_with(&frames[1]))
    });
    host.settle(&mut [&mut a]);
    drop((a, b));
    assert!(host.daemon().ask(Request { app_quit: Some(true), ..Request::default() }).is_ok());
    host.daemon_mut().wait_for_end();
    assert_eq!(bytes_of(own), frames);
    let outer = bytes_of(main);
    let flood: Vec<&Vec<u8>> = outer.iter().filter(|frame| frame.ends_with(&frames[1])).collect();
    assert_eq!(flood, sent.iter().filter(|frame| frame.ends_with(&frames[1])).collect::<Vec<_>>());
    assert!(
        !Path::new(&format!("/tmp/butterfly-{pid}-b.pcap")).exists()
            || fs::remove_file(format!("/tmp/butterfly-{pid}-b.pcap")).is_ok()
    );
}

/// If no client reads a capture, or the disk is full, the daemon counts the packets that it does
/// not write, and all packets arrive.
#[test]
fn what_cannot_be_written_is_counted_and_arrives() {
    let Some(mut net) = Net::new(&[open("a", 1), open("b", 2)]) else { return };
    let small = net.host.dir().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&small)
        .status()
        .unwrap();
    assert!(mounted.success());
    let unmount = Unmount(&small);
    update(net.host.daemon(), "b", Some(true), Some(&small.join("b.pcap"))).unwrap();
    let capture = begin_capture(net.host.daemon(), of_nic("a"));
    let frame = v4(1, 2).udp(1, 7, &[7; 1500]);
    // More packets than the worker's ring and the client's queue hold together.
    const SENT: u64 = 12_000;
    for _ in 0..SENT {
        net.station("a").send(&frame);
        net.station("b").expect(&frame);
    }
    let daemon = net.host.daemon();
    let (data, packets, lost) = end_capture(daemon, capture);
    assert!(packets > 0 && lost > 0 && packets + lost == SENT, "{packets} and {lost}");
    let file = net.host.dir().join("unread.pcapng");
    fs::write(&file, data).unwrap();
    assert_eq!(tshark(&file, &["frame.number"]).len() as u64, packets);
    update(daemon, "b", Some(false), None).unwrap();
    let mut shown = serde_json::Value::Null;
    eventually("every packet was written or counted", || {
        let page: serde_json::Value =
            serde_json::from_str(&daemon.client_ok(&["nic", "show", "b", "--json"])).unwrap();
        shown = page["packet_trace"].clone();
        shown["packets"].as_u64().unwrap() + shown["lost"].as_u64().unwrap() == SENT
    });
    assert!(shown["lost"].as_u64() > Some(0), "{shown}");
    assert!(shown["trouble"].as_str().unwrap().contains("No space left"), "{shown}");
    assert_eq!(net.host.show("b").delivered.0, SENT);
    assert!(daemon.client_ok(&["nic", "show", "b"]).contains("No space left"));
    drop(unmount);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(self.0).status();
    }
}

/// The traces of a client that went away end, and the workers copy no more for them.
#[test]
fn an_abandoned_trace_ends() {
    let Some(mut net) = Net::new(&[open("a", 1), open("b", 2)]) else { return };
    let numbers: Vec<u64> =
        (0..8).map(|_| begin_trace(net.host.daemon(), TraceTarget::default(), "")).collect();
    let start =
        || trace_req::Start { target: MessageField::some(of_nic("a")), ..Default::default() };
    let another = |daemon: &Daemon| {
        trace(daemon, TraceReq { start: MessageField::some(start()), ..TraceReq::default() })
    };
    assert!(another(net.host.daemon()).unwrap_err().contains("under way already"));
    butterfly_tests::within(std::time::Duration::from_secs(30), "they end by themselves", || {
        another(net.host.daemon()).is_ok()
    });
    let first = TraceReq { read: Some(numbers[0]), ..TraceReq::default() };
    assert!(trace(net.host.daemon(), first).unwrap_err().contains("there is no trace"));
    net.expect("a", &build::ethernet(mac(1), mac(2)).payload(0x88b5, &[0; 60]), "b");
}
