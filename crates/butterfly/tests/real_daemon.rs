//! The client against a real `butterflyd`: what both make of the contract together, line by line.

use butterfly_tests::{Daemon, HostOptions, programs::program};
use std::process::{Command, Stdio};

/// A command line and everything it must do. In each text `DIR` stands for the directory of the
/// sockets.
struct Row {
    /// The words after `butterfly`; `@` stands for the options that name the daemon, `''` for an
    /// empty word.
    line: &'static str,
    /// Standard output; `help: WORDS` stands for the help of those words.
    out: &'static str,
    /// Standard error without its last line, `error in command: ..`; with a text the exit code is
    /// 1, without 0.
    err: &'static str,
}

const fn prints(line: &'static str, out: &'static str) -> Row {
    Row { line, out, err: "" }
}

const fn silent(line: &'static str) -> Row {
    prints(line, "")
}

const fn ignores(line: &'static str, out: &'static str, err: &'static str) -> Row {
    Row { line, out, err }
}

const fn fails(line: &'static str, err: &'static str) -> Row {
    Row { line, out: "", err }
}

const fn fails_with_help(line: &'static str, out: &'static str, err: &'static str) -> Row {
    Row { line, out, err }
}

struct Ended {
    out: String,
    err: String,
    code: Option<i32>,
}

fn run(daemon: &Daemon, line: &str) -> Ended {
    let dir = daemon.dir().to_str().unwrap();
    let mut command = Command::new(program("butterfly"));
    for word in line.split_whitespace() {
        match word {
            "@" => command.args(["-e", daemon.endpoint(), "-t", "20000"]),
            "''" => command.arg(""),
            word => command.arg(word.replace("DIR", dir)),
        };
    }
    command
        .env("BUTTERFLY_CONFIG", "/dev/null")
        .env_remove("BUTTERFLY_ENDPOINT")
        .env_remove("BUTTERFLY_KEY");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { out: text(output.stdout), err: text(output.stderr), code: output.status.code() }
}

/// Runs the lines in order, on one daemon.
#[track_caller]
fn check(daemon: &Daemon, rows: &[Row]) {
    let dir = daemon.dir().to_str().unwrap();
    for Row { line, out, err } in rows {
        let ended = run(daemon, line);
        let out = match out.strip_prefix("help: ") {
            Some(words) => run(daemon, &format!("{words} help")).out,
            None => out.replace("DIR", dir),
        };
        assert_eq!(ended.out, out, "standard output of `{line}`");
        let (err, code) = match *err {
            "" => (String::new(), 0),
            err if err.starts_with("ignored: ") => (format!("{err}\n"), 0),
            err => (
                format!(
                    "{}\nerror in command: {}\n",
                    err.replace("DIR", dir),
                    line.split(' ').next().unwrap()
                ),
                1,
            ),
        };
        assert_eq!(ended.err, err, "standard error of `{line}`");
        assert_eq!(ended.code, Some(code), "exit code of `{line}`");
    }
}

fn daemon() -> Daemon {
    Daemon::start(&HostOptions::default())
}

#[test]
fn vnics_come_change_and_go() {
    check(
        &daemon(),
        &[
            silent("nic list @"),
            prints(
                "nic add --id b --mac 52:54:00:00:00:aB --vni 42 --bypass-filtering @",
                "DIR/qemu-vhost-b\n",
            ),
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --ip 10.0.0.1 2001:DB8:0::1 10.0.0.1 --sg web db web --enable-antispoof @",
                "DIR/qemu-vhost-a\n",
            ),
            // Again, and without an address.
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --ip 10.0.0.1 2001:DB8:0::1 10.0.0.1 --sg web db web --enable-antispoof @",
                "DIR/qemu-vhost-a\n",
            ),
            prints(
                "nic add --id c --mac 52:54:00:00:00:01 --vni 7 --type VHOST_USER_CLIENT @",
                "DIR/qemu-vhost-c\n",
            ),
            prints(
                "nic add --id d --mac 52:54:00:00:00:02 --vni 7 --type VHOST_USER_CLIENT --path DIR/q.sock @",
                "DIR/q.sock\n",
            ),
            prints(
                "nic add --id e --mac 52:54:00:00:00:02 --vni 16777215 --type VHOST_USER_SERVER @",
                "DIR/qemu-vhost-e\n",
            ),
            prints("nic list @", "a\nb\nc\nd\ne\n"),
            prints(
                "nic details a @",
                "id: a\nmac: 52:54:00:00:00:01\nvni: 42\nip: 10.0.0.1\nip: 2001:db8::1\nantispoof: true\n\
                 bypass filtering: false\npacket trace: false\n",
            ),
            prints(
                "nic details b @",
                "id: b\nmac: 52:54:00:00:00:aB\nvni: 42\nantispoof: false\nbypass filtering: true\npacket trace: false\n",
            ),
            prints("nic stats a @", "in: 0\nout: 0\n"),
            silent("nic update --id a --ip ::1 --enable-antispoof false @"),
            silent("nic update --id a @"),
            prints(
                "nic details a @",
                "id: a\nmac: 52:54:00:00:00:01\nvni: 42\nip: ::1\nantispoof: false\nbypass filtering: false\npacket trace: false\n",
            ),
            silent("nic update --id a --ip -e @"),
            prints(
                "nic details a @",
                "id: a\nmac: 52:54:00:00:00:01\nvni: 42\nantispoof: false\nbypass filtering: false\npacket trace: false\n",
            ),
            // The names of groups, which need not exist.
            prints("nic sg list a @", "web\ndb\n"),
            silent("nic sg add a zoo web @"),
            prints("nic sg list a @", "db\nweb\nzoo\n"),
            silent("nic sg del a web absent @"),
            prints("nic sg list a @", "db\nzoo\n"),
            silent("nic sg del a db zoo @"),
            silent("nic sg list a @"),
            silent("nic sg set a y x @"),
            prints("nic sg list a @", "y\nx\n"),
            silent("nic sg set a @"),
            silent("nic sg list a @"),
            silent("nic del a unknown c @"),
            prints("nic list @", "b\nd\ne\n"),
            silent("nic del a @"),
        ],
    );
}

#[test]
fn vnics_that_cannot_be() {
    const MAC: &str =
        "must be six pairs of hexadecimal digits joined by colons, like 52:54:00:12:34:56";
    let daemon = daemon();
    std::fs::write(daemon.dir().join("qemu-vhost-file"), "kept").unwrap();
    check(
        &daemon,
        &[prints(
            "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --type VHOST_USER_CLIENT --path DIR/q @",
            "DIR/q\n",
        )],
    );
    for (options, err) in [
        (
            "--mac 52:54:00:00:00:1",
            format!("description: Bad NIC format\nhelp: MAC address \"52:54:00:00:00:1\" is refused: it {MAC}"),
        ),
        (
            "--mac 52-54-00-00-00-01",
            format!("description: Bad NIC format\nhelp: MAC address \"52-54-00-00-00-01\" is refused: it {MAC}"),
        ),
        ("--vni 16777216", "description: Bad NIC format\nhelp: VNI 16777216 is out of range: VNIs are 0 to 16777215".into()),
        (
            "--ip 10.0.0.1/24",
            "description: Bad NIC format\nhelp: \"10.0.0.1/24\" is not an IP address; write 192.0.2.1 or 2001:db8::1".into(),
        ),
        (
            "--id a/b",
            "description: Bad NIC format\nhelp: nic id \"a/b\" is refused: it has a / in it; it becomes part of a file name"
                .into(),
        ),
        ("--id ''", "description: Bad NIC format\nhelp: nic id \"\" is refused: it is empty".into()),
        (
            "--type VHOST_USER_CLIENT --path q",
            "description: Bad NIC format\nhelp: socket path \"q\" is refused: it must start with a /".into(),
        ),
        (
            "--type VHOST_USER_CLIENT --path DIR/q",
            "description: socket DIR/q belongs to nic \"a\"; give one of them another path".into(),
        ),
        ("--id file", "description: DIR/qemu-vhost-file exists and is not a socket: remove it, or use another path".into()),
        (
            "--type TAP --netns a/b",
            "description: Bad NIC format\nhelp: network namespace \"a/b\" is refused: it has a / in it, and does not start with one; \
             it is a name as `ip netns` lists them, or a path that starts with a /"
                .into(),
        ),
        ("--ip ''", "description: Bad NIC format\nhelp: \"\" is not an IP address; write 192.0.2.1 or 2001:db8::1".into()),
        (
            "--type BENCH --btype ICMP_RCV_LIKE",
            "description: Internal error\nhelp: a nic of type BENCH needs an ip: what it sends from, or answers for".into(),
        ),
        (
            "--type BENCH",
            "description: Internal error\nhelp: btype of a nic of type BENCH is ICMP_SND_LIKE or ICMP_RCV_LIKE".into(),
        ),
        ("--type BENCH --btype ICMP_SND_LIKE --dip x --dmac 52:54:00:00:00:09", "description: can't convert \"x\" to IP".into()),
    ] {
        let defaults = [("--id", "n"), ("--mac", "52:54:00:00:00:09"), ("--vni", "1")];
        let missing = defaults.iter().filter(|(name, _)| !options.contains(&format!("{name} ")));
        let missing: String = missing.map(|(name, value)| format!("{name} {value} ")).collect();
        let ended = run(&daemon, &format!("nic add {missing} {options} @"));
        let err = err.replace("DIR", daemon.dir().to_str().unwrap());
        assert_eq!(ended.err, format!("error in response\n{err}\nerror in command: nic\n"), "{options}");
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{options}");
    }
    let id = "x".repeat(108);
    let ended = run(&daemon, &format!("nic add --id {id} --mac 52:54:00:00:00:09 --vni 1 @"));
    assert!(
        ended.err.contains("at most 107 fit; use a shorter nic id, path or socket directory\n"),
        "{}",
        ended.err
    );
    assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));

    check(
        &daemon,
        &[
            fails_with_help(
                "nic update --id a --ip 1.1.1 @",
                "help: nic update",
                "error in response\ndescription: Bad Nic update format\nhelp: \"1.1.1\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            fails_with_help(
                "nic update --id a --ip 1.1.1.1 '' @",
                "help: nic update",
                "error in response\ndescription: Bad Nic update format\nhelp: \"\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            // Nothing came of any of these.
            prints("nic list @", "a\n"),
            prints(
                "nic details a @",
                "id: a\nmac: 52:54:00:00:00:01\nvni: 42\nantispoof: false\nbypass filtering: false\npacket trace: false\n",
            ),
        ],
    );
    assert_eq!(std::fs::read_to_string(daemon.dir().join("qemu-vhost-file")).unwrap(), "kept");
}

#[test]
fn a_socket_folder_that_is_gone() {
    let daemon = daemon();
    let folder = tempfile::tempdir_in(daemon.dir()).unwrap();
    let path = folder.path().to_owned();
    let name = path.file_name().unwrap().to_str().unwrap();
    let endpoint = format!("ipc://{}/api2", daemon.dir().display());
    let arguments =
        ["-i", "42.0.0.1", "--uplink", "none", "-u", "65535", "--no-syslog", "-e", &endpoint, "-s"];
    let mut second = Command::new(program("butterflyd"))
        .args(arguments)
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let add = format!("nic add --id n --mac 52:54:00:00:00:01 --vni 1 -e {endpoint} -t 20000");
    let list = run(&daemon, &format!("nic list -e {endpoint} -t 20000"));
    drop(folder);
    let refused = run(&daemon, &add);
    std::fs::create_dir(&path).unwrap();
    let made = run(&daemon, &add);
    let stopped = run(&daemon, &format!("shutdown -e {endpoint} -t 20000"));
    if stopped.code != Some(0) {
        second.kill().unwrap();
    }
    second.wait().unwrap();
    assert_eq!(list.code, Some(0), "{}", list.err);
    assert_eq!(
        refused.err,
        format!(
            "error in response\ndescription: cannot bind {0}/qemu-vhost-n: No such file or directory (os error 2)\n\
             help: the socket folder {0} is gone: create it again\nerror in command: nic\n",
            path.display()
        )
    );
    assert_eq!(
        (made.out, made.code),
        (format!("{}/{name}/qemu-vhost-n\n", daemon.dir().display()), Some(0))
    );
    assert_eq!(stopped.code, Some(0), "{}", stopped.err);
}

#[test]
fn what_is_not_there() {
    const NOT_FOUND: &str = "error in response\ndescription: NIC: x not found";
    const UNKNOWN: &str = "error in response\ndescription: NIC does not exist with id x";
    const NO_GROUP: &str = "error in response\ndescription: Security Group not found";
    check(
        &daemon(),
        &[
            fails("nic details x @", NOT_FOUND),
            fails("nic stats x @", UNKNOWN),
            fails("nic show x @", UNKNOWN),
            fails_with_help("nic update --id x --ip ::1 @", "help: nic update", UNKNOWN),
            silent("nic del x @"),
            fails("nic sg list x @", NOT_FOUND),
            fails("nic sg add x g @", NOT_FOUND),
            fails("nic sg del x g @", NOT_FOUND),
            fails("nic sg set x g @", UNKNOWN),
            prints("fdb @", "vni  mac  nic  peer  kind  last seen\n"),
            fails(
                "fdb 16777216 @",
                "error in response\ndescription: VNI 16777216 is out of range: VNIs are 0 to 16777215",
            ),
            silent("sg list @"),
            fails("sg rule list x @", NO_GROUP),
            fails("sg rule del x 0123456789abcdef @", NO_GROUP),
            fails("sg member list x @", NO_GROUP),
            silent("sg del x @"),
            silent("sg member del x ::1 @"),
            silent("sg rule del x --ip-proto tcp --port 1 --sg-members y @"),
            silent("sg list @"),
            fails("sessions x @", UNKNOWN),
            fails(
                "sessions --vni 16777216 @",
                "error in response\ndescription: VNI 16777216 is out of range: VNIs are 0 to 16777215",
            ),
            fails("sg rule list x --stats @", NO_GROUP),
            fails(
                "sg member add x 1.2.3 @",
                "error in response\ndescription: Bad IP format\nhelp: \"1.2.3\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            fails(
                "sg member del x 1.2.3 @",
                "error in response\ndescription: Bad IP format\nhelp: \"1.2.3\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            // An empty word names no vnic.
            silent("nic del '' @ + sg del ''"),
            fails("nic stats '' @", "error in response\ndescription: NIC does not exist with id "),
            fails("nic details '' @", "no nic details received"),
            fails("sg rule list '' @", NO_GROUP),
            fails("sg member list '' @", NO_GROUP),
            fails(
                "sg rule add '' --ip-proto all --cidr ::/0 @",
                "error in response\ndescription: Bad Security Group format\nhelp: the name of a security group is empty",
            ),
            fails(
                "sg rule add x --ip-proto all --sg-members '' @",
                "error in response\ndescription: Bad Security Group rule format\nhelp: the name of a security group is empty",
            ),
            silent("sg list @"),
            fails(
                "request DIR/absent @",
                "failed to open DIR/absent\nNo such file or directory (os error 2)",
            ),
        ],
    );
}

/// Contract 2.5, the lines about security groups.
#[test]
fn groups_come_change_and_go() {
    let daemon = daemon();
    check(
        &daemon,
        &[
            silent("sg add web db web @"),
            silent("sg add web @"),
            prints("sg list @", "db\nweb\n"),
            silent("sg rule list web @"),
            silent("sg member list web @"),
            // A rule, twice, on a group that is there and on one that is not.
            silent("sg rule add web --ip-proto tcp --port 80 --cidr 10.0.0.1/24 @"),
            silent("sg rule add web --ip-proto tcp --port 80 --cidr 10.0.0.1/24 @"),
            silent("sg rule add new --ip-proto -1 --dir out --sg-members web @"),
            prints("sg list @", "db\nnew\nweb\n"),
            prints(
                "sg rule list web @",
                "1e1868be915181bc | direction: INBOUND - IP protocol: 6 - port start: 80 - port end: 80 - cidr: 10.0.0.1/24 - members of sg: Ø\n",
            ),
            prints(
                "sg rule list new @",
                "195a8310135fa475 | direction: OUTBOUND - IP protocol: -1 - port start: Ø - port end: Ø - cidr: Ø - members of sg: web\n",
            ),
            fails("sg rule del web 0123456789abcdef @", "no rule found with hash 0123456789abcdef"),
            silent("sg rule del new 195a8310135fa475 @"),
            silent("sg rule list new @"),
            // Members, in the order they came.
            silent("sg member add web 10.0.0.9 @"),
            silent("sg member add web 2001:DB8:0::1 @"),
            silent("sg member add web 10.0.0.1 @"),
            silent("sg member add web 10.0.0.9 @"),
            prints("sg member list web @", "10.0.0.9\n2001:db8::1\n10.0.0.1\n"),
            silent("sg member del web 10.0.0.9 @"),
            silent("sg member del web 10.0.0.9 @"),
            prints("sg member list web @", "2001:db8::1\n10.0.0.1\n"),
            silent("sg member add newer ::1 @"),
            // Several at once; what is refused is named, the others count.
            fails(
                "sg member add newer 10.0.0.1 10.0.0 ::2 @",
                "error in response\ndescription: Bad IP format\nhelp: \"10.0.0\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            prints("sg member list newer @", "::1\n10.0.0.1\n::2\n"),
            silent("sg member del newer ::2 10.0.0.1 10.0.0.7 @"),
            prints("sg member list newer @", "::1\n"),
            prints("sg list @", "db\nnew\nnewer\nweb\n"),
            prints(
                "sg list --json @",
                "{\n  \"security_groups\": [\n    \"db\",\n    \"new\",\n    \"newer\",\n    \"web\"\n  ]\n}\n",
            ),
            fails(
                "sg add '' @",
                "error in response\ndescription: Bad Security Group format\nhelp: the name of a security group is empty",
            ),
            // One that exists is emptied.
            silent("sg add web @"),
            silent("sg rule list web @"),
            silent("sg member list web @"),
            silent("sg del db new newer web unknown @"),
            silent("sg list @"),
        ],
    );
}

/// Not in the order in which they came, nor in that of the alphabet, but in one that scripts have
/// seen before.
#[test]
fn lists_have_their_order() {
    check(
        &daemon(),
        &[
            silent(
                "sg rule add web --ip-proto 6 --port-start 1000 --port-end 65535 --sg-members some-sg @",
            ),
            silent(
                "sg rule add web --ip-proto udp --port-start 0 --port-end 65535 --cidr 1.2.3.0/24 @",
            ),
            // Ports that mean nothing are part of the rule, and are not told.
            ignores(
                "sg rule add web --ip-proto all --port-start 0 --port-end 1024 --cidr 2001:db8:0:85a3:0::ac1f:8001/8 @",
                "",
                "ignored: ports: a rule for all protocols means every port; did you mean --ip-proto tcp, or udp?",
            ),
            silent(
                "sg rule add web --ip-proto tcp --port-start 0 --port-end 65535 --sg-members sg-42 @",
            ),
            prints(
                "sg rule list web @",
                "257400ccc1f9ac1e | direction: INBOUND - IP protocol: 6 - port start: 0 - port end: 65535 - cidr: Ø - members of sg: sg-42\n\
                 4ef74b4309e34b02 | direction: INBOUND - IP protocol: -1 - port start: Ø - port end: Ø - cidr: 2001:db8:0:85a3::ac1f:8001/8 - members of sg: Ø\n\
                 ed8623aa8720af03 | direction: INBOUND - IP protocol: 17 - port start: 0 - port end: 65535 - cidr: 1.2.3.0/24 - members of sg: Ø\n\
                 0eacf1a871702eb6 | direction: INBOUND - IP protocol: 6 - port start: 1000 - port end: 65535 - cidr: Ø - members of sg: some-sg\n",
            ),
            silent(
                "sg rule del web ed8623aa8720af03 @ + sg rule del web 4ef74b4309e34b02 + sg rule del web 257400ccc1f9ac1e",
            ),
            prints(
                "sg rule list web @",
                "0eacf1a871702eb6 | direction: INBOUND - IP protocol: 6 - port start: 1000 - port end: 65535 - cidr: Ø - members of sg: some-sg\n",
            ),
            // Bytes, not letters.
            silent("sg add b B a é @"),
            prints("sg list @", "B\na\nb\nweb\né\n"),
            prints("nic add --id b --mac 52:54:00:00:00:01 --vni 1 @", "DIR/qemu-vhost-b\n"),
            prints("nic add --id B --mac 52:54:00:00:00:02 --vni 1 @", "DIR/qemu-vhost-B\n"),
            prints("nic add --id 10 --mac 52:54:00:00:00:03 --vni 1 @", "DIR/qemu-vhost-10\n"),
            prints("nic add --id 9 --mac 52:54:00:00:00:04 --vni 1 @", "DIR/qemu-vhost-9\n"),
            prints("nic list @", "10\n9\nB\nb\n"),
        ],
    );
}

/// Requests that only `request` can make, and its replies as they are printed.
#[test]
fn requests_without_a_command() {
    let daemon = daemon();
    let refused = |description: &str, help: &str| {
        format!(
            "messages {{\n  revision: 6\n  message_0 {{\n    response {{\n      status {{\n        status: false\n        error {{\n          \
             description: \"{description}\"\n{help}        }}\n      }}\n    }}\n  }}\n}}\n"
        )
    };
    let succeeded = |rest: &str| {
        format!(
            "messages {{\n  revision: 6\n  message_0 {{\n    response {{\n      status {{\n        status: true\n      }}\n{rest}    }}\n  }}\n}}\n"
        )
    };
    let level = "          help: \"log level \\\"loud\\\" is refused: it is none, error, warning, info or debug\"\n";
    assert_eq!(run(&daemon, "nic add --id a --mac 52:54:00:00:00:01 --vni 1 @").code, Some(0));
    for (request, reply, description) in [
        (
            "app_config { log_level: \"loud\" }",
            refused("Application configuration failed: log level: failed ", level),
            "Application configuration failed: log level: failed ",
        ),
        ("app_config { log_level: \"error\" }", succeeded(""), ""),
        ("app_config { }", succeeded(""), ""),
        (
            "nic_export: \"a\"",
            succeeded(
                "      nic_export {\n        fw_data {\n          data: \"{\\\"kind\\\":\\\"butterfly-vnic\\\",\\\"layout\\\":1,\\\"vnic\\\":{\\\"id\\\":\\\"a\\\",\\\"mac\\\":\\\"52:54:00:00:00:01\\\",\\\"vni\\\":1,\\\"addresses\\\":[],\\\"groups\\\":[],\\\"bypass\\\":false},\\\"counts\\\":{},\\\"sessions\\\":[],\\\"left_out\\\":0}\"\n        }\n        sessions: 0\n        left_out: 0\n      }\n",
            ),
            "",
        ),
        (
            "nic_export: \"x\"",
            refused("NIC does not exist with id x", ""),
            "NIC does not exist with id x",
        ),
        ("sg_details: \"x\"", refused("Sg not found", ""), "Sg not found"),
        ("nic_list: false", succeeded("      nic_list: \"a\"\n"), ""),
        // The lowest number of several.
        (
            "sg_list: true nic_stats: \"x\"",
            refused("NIC does not exist with id x", ""),
            "NIC does not exist with id x",
        ),
    ] {
        let file = daemon.dir().join("request");
        std::fs::write(
            &file,
            format!("messages {{ revision: 0 message_0 {{ request {{ {request} }} }} }}"),
        )
        .unwrap();
        let ended = run(&daemon, "request DIR/request --stdout @");
        assert_eq!(ended.out, reply, "{request}");
        let told = format!("error in response\ndescription: {description}\n");
        match description {
            "" => assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)), "{request}"),
            _ => assert!(
                ended.err.starts_with(&told) && ended.code == Some(1),
                "{request}: {}",
                ended.err
            ),
        }
        // Without --stdout only failures are printed.
        assert_eq!(run(&daemon, "request DIR/request @").out, "", "{request}");
    }
    // Of two kinds that no command makes.
    for (request, err) in [
        ("messages { revision: 6 }", "error in response: VERSION_NOT_MANAGED\n"),
        (
            "messages { revision: 6 message_0 { request { } message_id: \"x\" } }",
            "error in response\ndescription: no request found\n",
        ),
    ] {
        std::fs::write(daemon.dir().join("request"), request).unwrap();
        let ended = run(&daemon, "request DIR/request @");
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{request}");
        assert!(
            ended.err.starts_with(err) && ended.err.ends_with("error in command: request\n"),
            "{request}: {}",
            ended.err
        );
    }
}

#[test]
fn sessions_are_none_without_traffic() {
    let daemon = daemon();
    check(
        &daemon,
        &[
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --ip 10.0.0.1 --sg web @",
                "DIR/qemu-vhost-a\n",
            ),
            prints("sessions a --count @", "0\n"),
            prints("sessions --flush @", "flushed: 0\n"),
        ],
    );
    let listed = run(&daemon, "sessions a @");
    assert_eq!((listed.err.as_str(), listed.code), ("", Some(0)));
    let lines: Vec<_> = listed.out.lines().collect();
    assert!(
        lines[0].starts_with("sessions: 0 of ") && lines[0].contains(" in use, in "),
        "{}",
        listed.out
    );
    assert!(
        lines[1].is_empty() && lines[2].starts_with("network  proto  opener"),
        "{}",
        listed.out
    );
    let shown = run(&daemon, "sessions --timeouts @");
    assert!(shown.out.contains("\ntcp-established     86400  TCP, connected\n"), "{}", shown.out);
}

#[test]
fn chains_and_global_options() {
    let daemon = daemon();
    check(
        &daemon,
        &[
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 1 + nic stats a + nic list @",
                "DIR/qemu-vhost-a\nin: 0\nout: 0\na\n",
            ),
            Row {
                line: "nic list @ + nic stats x + nic del a",
                out: "a\n",
                err: "error in response\ndescription: NIC does not exist with id x",
            },
            prints("nic list @", "a\n"),
            prints(
                "nic list @ --verbose",
                "#########################
# Message to be sent:
messages {
  revision: 6
  message_0 {
    request {
      nic_list: true
    }
  }
}
#########################
Received clear response
#########################
# Received message:
messages {
  revision: 6
  message_0 {
    response {
      status {
        status: true
      }
      nic_list: \"a\"
    }
  }
}
#########################
a
",
            ),
            fails(
                "nic list @ -k DIR/key",
                "cannot load encryption key\nkey file \"DIR/key\": No such file or directory (os error 2); \
                 `openssl rand -base64 32` makes a key\nnothing was sent",
            ),
            ignores(
                "nic list --endpoint tcp://127.0.0.1:1 @ --unknown option",
                "a\n",
                "ignored: --endpoint tcp://127.0.0.1:1: another follows, and a global option is that of the whole chain\n\
                 ignored: --unknown option: `nic list` has no such option; `butterfly nic list help` lists those it has",
            ),
        ],
    );
}

/// Two programs of one build say the same.
#[test]
fn versions_agree() {
    let version = |name| {
        let output = Command::new(program(name)).arg("-V").output().unwrap();
        assert!(output.status.success(), "{name}");
        String::from_utf8(output.stdout).unwrap()
    };
    let client = version("butterfly");
    assert!(client.starts_with("butterfly version: \""), "{client}");
    assert_eq!(client, version("butterflyd"));
}

const NO_UPLINK: &str = "no uplink: networks end at this host\nhelp: start butterflyd with --uplink to let them span hosts";

#[test]
fn without_an_uplink_there_are_no_other_hosts() {
    let refused =
        "error in response\ndescription: this host has no uplink: start the daemon with --uplink";
    let daemon = daemon();
    check(
        &daemon,
        &[
            fails("tunnels @", NO_UPLINK),
            fails("uplink --json @", NO_UPLINK),
            prints("peer list @", "network  peer\n"),
            fails("peer add 42.0.0.2 @", refused),
            fails("peer del 42.0.0.2 --vni 7 @", refused),
        ],
    );
}

/// The port has no program at its other end: declarations count, not frames.
#[test]
fn other_hosts() {
    let room = tempfile::tempdir().unwrap();
    let uplink = format!("vhost-user:{}/up", room.path().canonicalize().unwrap().display());
    let options =
        ["--uplink", &uplink, "-m", "9000", "--peer", "42.0.0.9 42.0.0.1"].map(str::to_owned);
    let daemon = Daemon::start_in(room.path(), &[], &options);
    let list = "network  peer\n    all  42.0.0.9\n    all  42.0.0.2\n      7  42.0.0.4\n     42  42.0.0.3\n";
    check(
        &daemon,
        &[
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --bypass-filtering @",
                "DIR/qemu-vhost-a\n",
            ),
            silent("peer add 42.0.0.2 42.0.0.2 @"),
            silent("peer add 42.0.0.3 --vni 42 @ + peer add 42.0.0.4 --vni 7"),
            // Named for a network, not for all.
            silent("peer del 42.0.0.5 42.0.0.4 @"),
            prints("peer list @", list),
            fails(
                "peer add ::2 42.0.0.1 230.0.0.1 x @",
                "error in response\ndescription: ::2 is of another family than the tunnel endpoint 42.0.0.1\n\
                 error in response\ndescription: 42.0.0.1 is this host's own tunnel endpoint\n\
                 error in response\ndescription: 230.0.0.1 is not the address of a host; choose another\n\
                 error in response\ndescription: Bad IP format\nhelp: \"x\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
            ),
            fails(
                "peer add 42.0.0.5 --vni 16777216 @",
                "error in response\ndescription: VNI 16777216 is out of range: VNIs are 0 to 16777215",
            ),
            prints("peer list @", list),
        ],
    );
    let shown = |line: &str, parts: &[&str]| {
        let ended = run(&daemon, line);
        assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)), "{line}");
        for part in parts {
            assert!(ended.out.contains(part), "{line}: {part} is not in {}", ended.out);
        }
    };
    let mtu = "host_mtu=8950 on QEMU's -device virtio-net-pci";
    shown("nic show a @", &[mtu]);
    shown(
        "tunnels @",
        &[
            "42.0.0.1\n",
            mtu,
            "\n  42.0.0.2  unknown   all",
            "\n  42.0.0.3  unknown   42",
            "groups joined\n  none\n",
        ],
    );
    shown("tunnels 7 --json @", &["\"42.0.0.4\"", "\"host_mtu\": 8950"]);
    shown(
        "uplink @",
        &[
            "  kind              vhost-user\n",
            "  attached          no",
            "  mtu               9000\n",
            mtu,
        ],
    );
    shown("status @", &["\"nic:port-"]);

    // What was named is saved, and comes back.
    let dump = run(&daemon, "dump @").out;
    assert_eq!(dump.matches("peer_add {").count(), 4, "{dump}");
    std::fs::write(daemon.dir().join("dump"), &dump).unwrap();
    check(
        &daemon,
        &[
            silent(
                "peer del 42.0.0.9 42.0.0.2 @ + peer del 42.0.0.3 --vni 42 + peer del 42.0.0.4 --vni 7",
            ),
            prints("peer list --json @", "{\n  \"peers\": []\n}\n"),
            silent("request DIR/dump @"),
            prints("peer list @", list),
        ],
    );
}

#[test]
fn a_dump_replays() {
    let daemon = daemon();
    let dump = |daemon: &Daemon| {
        let ended = run(daemon, "dump @");
        assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)));
        ended.out
    };
    assert_eq!(dump(&daemon), "\n# end of dump\n", "nothing, the empty line and the mark");
    check(
        &daemon,
        &[
            prints(
                "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --ip 10.0.0.1 ::1 --sg web db --enable-antispoof @",
                "DIR/qemu-vhost-a\n",
            ),
            prints(
                "nic add --id b --mac 52:54:00:00:00:02 --vni 42 --bypass-filtering @",
                "DIR/qemu-vhost-b\n",
            ),
            prints(
                "nic add --id c --mac 52:54:00:00:00:03 --vni 7 --type VHOST_USER_CLIENT --path DIR/c @",
                "DIR/c\n",
            ),
            silent(
                "sg rule add web --ip-proto udp --port-start 1 --port-end 2 --cidr 10.0.0.1/8 @",
            ),
            silent("sg rule add web --ip-proto icmp --dir out --sg-members db @"),
            silent("sg member add web 10.0.0.7 @ + sg member add web ::7"),
            silent("sg add db @"),
        ],
    );
    let first = dump(&daemon);
    assert!(
        first.starts_with("messages {\n  revision: 6\n  message_0 {\n    request {\n      nic_add {\n        id: \"a\"\n"),
        "{first}"
    );
    assert!(first.ends_with("}\n\n# end of dump\n"), "{first}");
    assert_eq!(first.matches("nic_add {").count(), 3);
    assert_eq!(first.matches("sg_add {").count(), 2);
    assert!(first.rfind("nic_add {") < first.find("sg_add {"), "{first}");
    std::fs::write(daemon.dir().join("dump"), &first).unwrap();

    // Replayed on what it describes it changes nothing: each socket is still the same file.
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(daemon.dir().join(name)).unwrap().ino()
    };
    let before = [inode("qemu-vhost-a"), inode("qemu-vhost-b")];
    for _ in 0..2 {
        check(&daemon, &[silent("request DIR/dump @")]);
        assert_eq!(dump(&daemon), first);
        assert_eq!([inode("qemu-vhost-a"), inode("qemu-vhost-b")], before);
    }
    // Replayed on nothing it makes all of it again.
    check(
        &daemon,
        &[silent("nic del a b c @ + sg del web db"), silent("nic list @"), silent("sg list @")],
    );
    let replayed = run(&daemon, "request DIR/dump --stdout @");
    assert_eq!((replayed.err.as_str(), replayed.code), ("", Some(0)));
    assert_eq!(replayed.out.matches("status: true").count(), 5, "{}", replayed.out);
    assert_eq!(dump(&daemon), first);

    // What fails is named, and stops nothing.
    let mixed = "messages { revision: 6 message_0 { request { nic_stats: \"x\" } } } \
                 messages { revision: 6 message_0 { request { nic_add { id: \"d\" mac: \"52:54\" vni: 42 } } } } \
                 messages { revision: 6 message_0 { request { nic_del: \"a\" } } }";
    std::fs::write(daemon.dir().join("mixed"), mixed).unwrap();
    check(
        &daemon,
        &[
            fails(
                "request DIR/mixed @",
                "error in response\ndescription: NIC does not exist with id x\nrequest 1 of 3: nic_stats \"x\"\n\
                 error in response\ndescription: Bad NIC format\nhelp: MAC address \"52:54\" is refused: it must be six pairs of hexadecimal \
                 digits joined by colons, like 52:54:00:12:34:56\nrequest 2 of 3: nic_add \"d\"\n1 of 3 requests were done, 2 not",
            ),
            prints("nic list @", "b\nc\n"),
        ],
    );
}

/// Vnics with any names wait for a MAC address after a dump was replayed, too.
#[test]
fn a_dump_keeps_the_order_of_those_with_one_address() {
    let daemon = daemon();
    let add = |id: &str| {
        let made = run(&daemon, &format!("nic add --id {id} --mac 52:54:00:00:00:01 --vni 42 @"));
        assert_eq!((made.err.as_str(), made.code), ("", Some(0)));
    };
    let waits = |id: &str| {
        let page = run(&daemon, &format!("nic show {id} @")).out;
        page.lines()
            .find_map(|line| line.trim_start().strip_prefix("waits for"))
            .map(|rest| rest.trim().to_owned())
    };
    let expected = |waiting: [&str; 3]| {
        assert_eq!(waits(waiting[0]), None);
        for id in &waiting[1..] {
            let text = format!(
                "nic {}, which has its MAC address: nothing passes until that one is gone",
                waiting[0]
            );
            assert_eq!(waits(id), Some(text), "{id}");
        }
    };
    ["m", "z", "a"].into_iter().for_each(add);
    expected(["m", "z", "a"]);
    let dump = run(&daemon, "dump @").out;
    assert!(!dump.contains("waiting"), "{dump}");
    std::fs::write(daemon.dir().join("dump"), &dump).unwrap();
    check(&daemon, &[silent("nic del a m z @"), silent("request DIR/dump @")]);
    expected(["m", "z", "a"]);
    check(&daemon, &[silent("nic del m @")]);
    assert_eq!((waits("z"), waits("a").is_some()), (None, true));
    check(&daemon, &[silent("nic del z @")]);
    assert_eq!(waits("a"), None);
}

/// Different vnics are changed, others stay attached; a failure leaves all as it was.
#[test]
fn a_file_is_applied_as_a_whole() {
    let daemon = daemon();
    let dump = || run(&daemon, "dump @").out;
    let write = |name: &str, text: &str| std::fs::write(daemon.dir().join(name), text).unwrap();
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(daemon.dir().join(name)).unwrap().ino()
    };
    check(
        &daemon,
        &[
            prints(
                "nic add --id a --mac 52:54:00:00:00:0A --vni 42 --ip 10.0.0.1 --sg web @",
                "DIR/qemu-vhost-a\n",
            ),
            prints(
                "nic add --id b --mac 52:54:00:00:00:02 --vni 42 --ip 10.0.0.2 @",
                "DIR/qemu-vhost-b\n",
            ),
            silent("sg rule add web --ip-proto icmp --cidr 10.0.0.1/8 @"),
            silent("sg member add web 10.0.0.9 @"),
        ],
    );
    let first = dump();
    write("first", &first);
    let sockets = [inode("qemu-vhost-a"), inode("qemu-vhost-b")];
    // The state that is there is no change.
    check(
        &daemon,
        &[
            prints("apply DIR/first --prune @", "nothing differs from the file\n"),
            prints(
                "apply DIR/first --dry-run @",
                "dry run: nothing differs from the file; nothing was changed\n",
            ),
        ],
    );
    let one = |request: &str| {
        format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}\n")
    };
    let second = first.replace("10.0.0.1\"", "10.0.0.7\"").replace("10.0.0.2\"", "10.0.0.3\"");
    assert_ne!(second, first);
    let added = one("nic_add { id: \"c\" mac: \"52:54:00:00:00:03\" vni: 7 }");
    write("second", &format!("{added}{second}"));
    let rows = "~ nic a: ip +10.0.0.7 -10.0.0.1\n~ nic b: ip +10.0.0.3 -10.0.0.2\n\
                + nic c: MAC 52:54:00:00:00:03, VNI 7\n\
                ~ security group web: +inbound icmp from 10.0.0.7/8, -inbound icmp from 10.0.0.1/8\n";
    let sum = "1 added, 3 changed";
    let dry = format!("{rows}dry run: {sum}; nothing was changed\n");
    let told = run(&daemon, "apply DIR/second --dry-run @");
    assert_eq!((told.out.as_str(), told.err.as_str(), told.code), (dry.as_str(), "", Some(0)));
    assert_eq!(dump(), first);
    let told = run(&daemon, "apply DIR/second @");
    assert_eq!((told.out, told.err.as_str(), told.code), (format!("{rows}{sum}\n"), "", Some(0)));
    assert_eq!([inode("qemu-vhost-a"), inode("qemu-vhost-b")], sockets);
    let all = dump();
    assert!(all.contains("52:54:00:00:00:0A") && all.contains("10.0.0.7"), "{all}");
    // A namespace that does not exist is found before anything is changed.
    let tap = |id: &str, netns: &str| {
        one(&format!(
            "nic_add {{ id: \"{id}\" mac: \"52:54:00:00:00:04\" vni: 7 type: TAP {netns} }}"
        ))
    };
    write("bad", &format!("{}{first}", tap("t", "netns: \"not-there-apply\"")));
    for options in ["--dry-run", "", "--prune"] {
        let ended = run(&daemon, &format!("apply DIR/bad {options} @"));
        assert!(ended.err.contains("nic \"t\": "), "{}", ended.err);
        assert!(!ended.err.contains("as it was before"), "{}", ended.err);
        assert_eq!((ended.code, dump()), (Some(1), all.clone()));
    }
    // A name that something else has is not: what was changed before is changed back.
    write("bad", &format!("{}{first}", tap("lo", "netns: \"/proc/self/ns/net\"")));
    let ended = run(&daemon, "apply DIR/bad @");
    assert!(ended.err.contains("nic \"lo\": "), "{}", ended.err);
    assert!(ended.err.contains("everything is as it was before"), "{}", ended.err);
    assert_eq!((ended.code, dump()), (Some(1), all.clone()));
    // Without its end it may be half of a state, and prune would remove the other half.
    write("cut", first.trim_end_matches("# end of dump\n"));
    let ended = run(&daemon, "apply DIR/cut --prune @");
    assert!(ended.err.contains("it seems to be cut off"), "{}", ended.err);
    assert_eq!((ended.code, dump()), (Some(1), all));
    check(&daemon, &[silent("request DIR/cut @")]);
    // Back to the first: what it does not name goes.
    let ended = run(&daemon, "apply DIR/first --prune --json @");
    assert!(ended.out.contains("\"what\": \"removed\""), "{}", ended.out);
    assert_eq!(dump(), first);
    assert_eq!([inode("qemu-vhost-a"), inode("qemu-vhost-b")], sockets);
}

/// The file in docs/operations.md is one that can be applied, by hand as it is written.
#[test]
fn the_sample_of_the_documentation_is_a_state() {
    let page = include_str!("../../../docs/operations.md");
    let (_, sample) = page.split_once("```textproto\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let daemon = daemon();
    std::fs::write(daemon.dir().join("sample"), sample).unwrap();
    // The daemon of the test has no uplink, and says so before it does anything.
    let ended = run(&daemon, "apply DIR/sample @");
    assert!(ended.err.contains("this host has no uplink"), "{}", ended.err);
    let (without_peer, _) = sample.split_once("# Another host").unwrap();
    std::fs::write(daemon.dir().join("sample"), format!("{without_peer}# end of dump\n")).unwrap();
    let rows = "+ nic vm-1: MAC 52:54:00:00:00:01, VNI 42, ip 10.0.0.1, security groups web\n\
                + security group web: 2 rules, 1 member\n2 added\n";
    let ended = run(&daemon, "apply DIR/sample --strict @");
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), (rows, "", Some(0)));
    let same = "nothing differs from the file\n";
    check(&daemon, &[prints("apply DIR/sample --strict --prune @", same)]);
}

#[test]
fn status_and_shutdown() {
    let mut daemon = daemon();
    check(
        &daemon,
        &[prints(
            "nic add --id a --mac 52:54:00:00:00:01 --vni 42 --bypass-filtering @",
            "DIR/qemu-vhost-a\n",
        )],
    );
    let counter = |status: &str| -> u64 {
        let line =
            status.lines().nth(2).and_then(|line| line.strip_prefix("request counter: ")).unwrap();
        line.parse().unwrap()
    };
    let first = run(&daemon, "status @");
    assert_eq!((first.err.as_str(), first.code), ("", Some(0)));
    let lines: Vec<&str> = first.out.lines().collect();
    let date =
        |place: usize, name| lines[place].strip_prefix(name).unwrap().parse::<u64>().unwrap();
    assert!(date(0, "start date: ") <= date(1, "current date: "));
    assert_eq!(lines[3], "dot graph: ");
    let graph = first.out.split_once("dot graph: \n").unwrap().1;
    assert_eq!(
        graph,
        "strict graph G {
  rankdir=LR
  nodesep=1
  node [shape=record];
  \"vtep4:vxlan\" [ label=\"{ <west> | vtep4&#92;nvxlan |<east> }\"];
  \"vtep4:vxlan\":east -- \"vhost:vhost-a\":west
  \"vhost:vhost-a\" [ label=\"{ <west> | vhost&#92;nvhost-a |<east> }\"];
  \"vhost:vhost-a\":west -- \"vtep4:vxlan\":east
}

"
    );
    let second = run(&daemon, "status @");
    assert_eq!(counter(&second.out), counter(&first.out) + 1);

    check(&daemon, &[silent("shutdown @")]);
    assert!(daemon.wait_for_end().success());
    assert!(!daemon.dir().join("qemu-vhost-a").exists());
    let endpoint = daemon.endpoint();
    let ended = run(&daemon, &format!("nic list -t 200 -e {endpoint}"));
    assert_eq!(
        ended.err,
        format!(
            "Error, receive timeout\n{endpoint}: No such file or directory (os error 2)\n\
             butterflyd is not running there: start it, or name its endpoint with --endpoint EP or BUTTERFLY_ENDPOINT\nerror in command: nic\n"
        )
    );
    assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
}
