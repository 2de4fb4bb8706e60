//! Whole configurations: accepted, refused, and overridden by a file.

use super::*;
use butterfly_datapath::UplinkSpec;
use clap::Parser;
use std::fs;

/// Loads `words`, in which DIR is a directory and INI a file with `ini` in it.
fn load(words: &str, ini: &str) -> (PathBuf, Result<Config, ConfigError>) {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().canonicalize().unwrap();
    let file = real.join("ini");
    fs::write(&file, ini.replace("DIR", real.to_str().unwrap())).unwrap();
    let words = words.replace("INI", file.to_str().unwrap()).replace("DIR", real.to_str().unwrap());
    let options =
        Options::try_parse_from(format!("butterflyd {words}").split_whitespace()).unwrap();
    (real, Config::load(options))
}

fn problems(words: &str, ini: &str) -> Vec<String> {
    load(words, ini).1.expect_err(words).0
}

#[test]
fn the_least_is_an_address_and_a_directory() {
    let (directory, config) = load("-i 192.0.2.1 -s DIR", "");
    let expected = Config {
        ip: "192.0.2.1".parse().unwrap(),
        socket_dir: directory,
        state_dir: None,
        name: None,
        endpoints: vec!["tcp://0.0.0.0:9999".into()],
        metrics: None,
        encryption: None,
        log_level: Level::Error,
        workers: Workers { count: 1, cores: vec![0] },
        poll: false,
        fdb_ageing: 300,
        sessions: 1_000_000,
        session_share: 25,
        session_rate: 200_000,
        tcp_pickup: 120,
        timeouts: Timeouts::default(),
        tunnel: Some(tap("192.0.2.1")),
        nic_mtu: None,
        dpdk: Dpdk::default(),
        notices: vec![],
        no_offload: false,
        packet_trace: false,
        syslog: true,
    };
    assert_eq!(config, Ok(expected));
}

/// Makes the tunnel of a TAP device with all else at its default.
fn tap(endpoint: &str) -> TunnelSpec {
    TunnelSpec {
        endpoint: endpoint.parse().unwrap(),
        prefix: None,
        uplink: UplinkSpec::Tap { name: None },
        peers: Vec::new(),
        gateways: Vec::new(),
        group6: "ff00::".parse().unwrap(),
        udp6_checksum: false,
        strict_peers: false,
        vlan: 0,
        mtu: None,
    }
}

#[test]
fn the_file_overrides_the_command_line_about_tunnels_too() {
    let words = "-c INI -i 192.0.2.1/24 -s DIR --uplink eth0 --uplink-queues 2 --peer 192.0.2.2 --peer 192.0.2.3 --gateway 192.0.2.4 -m 9000";
    let told = load(words, "").1.unwrap();
    let expected = TunnelSpec {
        prefix: Some(24),
        uplink: UplinkSpec::Xdp { interface: "eth0".into(), queues: Some(2) },
        peers: vec!["192.0.2.2".parse().unwrap(), "192.0.2.3".parse().unwrap()],
        gateways: vec!["192.0.2.4".parse().unwrap()],
        ..tap("192.0.2.1")
    };
    assert_eq!((told.tunnel, told.nic_mtu), (Some(expected), Some(NicMtu::Bytes(9000))));
    let ini = "[general]\nip=2001:db8::1\nuplink=eth1\nuplink-queues=3\npeer=2001:db8::2 2001:db8::3, 2001:db8::4\n\
               gateway=fe80::1\nnic-mtu=max\ngroup6=ff05::\nudp6-checksum=true\nstrict-peers=true\nunderlay-vlan=42";
    let overridden = load(words, ini).1.unwrap();
    let expected = TunnelSpec {
        uplink: UplinkSpec::Xdp { interface: "eth1".into(), queues: Some(3) },
        peers: ["2001:db8::2", "2001:db8::3", "2001:db8::4"]
            .map(|peer| peer.parse().unwrap())
            .into(),
        gateways: vec!["fe80::1".parse().unwrap()],
        group6: "ff05::".parse().unwrap(),
        udp6_checksum: true,
        strict_peers: true,
        vlan: 42,
        ..tap("2001:db8::1")
    };
    assert_eq!((overridden.tunnel, overridden.nic_mtu), (Some(expected), Some(NicMtu::Max)));
    // Nothing is stronger than something, and false than true.
    let words = "-c INI -i ::2 -s DIR --peer ::3 --strict-peers --udp6-checksum";
    let none = load(words, "[general]\npeer=\nstrict-peers=false\nudp6-checksum=false").1.unwrap();
    assert_eq!(none.tunnel, Some(tap("::2")));
}

#[test]
fn the_file_overrides_the_command_line() {
    let words = "-c INI -i 192.0.2.1 -s /nowhere --uplink none -e tcp://1.2.3.4:1 -l none -u 7 --poll --fdb-ageing 1 --no-syslog \
                 --sessions 64 --name first --session-share 1 --tcp-pickup 1 --timeout other=1 --timeout dhcp=7 --metrics nowhere";
    let ini = "[timeouts]\nother=2\ntcp-new = 3\n[general]\nname=second\nsessions=2000\nsession-share=50\nsession-rate=7000\ntcp-pickup=0\nip=2001:db8::1\nsocket-dir=DIR/.\nendpoint=ipc://@x\nmetrics=[::1]:9998\nlog-level=debug\ngraph-core-id=3\npoll=false\nfdb-ageing=60\n";
    let (directory, config) = load(words, ini);
    let expected = Config {
        ip: "2001:db8::1".parse().unwrap(),
        socket_dir: directory,
        state_dir: None,
        name: Some("second".into()),
        endpoints: vec!["ipc://@x".into()],
        metrics: Some("[::1]:9998".parse().unwrap()),
        encryption: None,
        log_level: Level::Debug,
        workers: Workers { count: 1, cores: vec![3] },
        poll: false,
        fdb_ageing: 60,
        sessions: 2000,
        session_share: 50,
        session_rate: 7000,
        tcp_pickup: 0,
        timeouts: Timeouts { other: 2, dhcp: 7, tcp_new: 3, ..Timeouts::default() },
        tunnel: None,
        nic_mtu: None,
        dpdk: Dpdk::default(),
        notices: vec![],
        no_offload: false,
        packet_trace: false,
        syslog: false,
    };
    assert_eq!(config, Ok(expected));
    assert!(load("-c INI -i ::2 -s DIR", "[general]\npoll=true").1.unwrap().poll);
}

/// Paths of sockets do not change with a link that leads there.
#[test]
fn the_socket_folder_is_where_it_really_is() {
    let room = tempfile::tempdir().unwrap();
    let (real, link) = (room.path().join("real"), room.path().join("link"));
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    let options =
        Options::try_parse_from(["butterflyd", "-i", "::2", "-s", link.to_str().unwrap()]).unwrap();
    assert_eq!(Config::load(options).unwrap().socket_dir, real.canonicalize().unwrap());
}

#[test]
fn both_spellings_of_the_core_are_read() {
    for key in ["graph-core-id", "graph-cpu-core"] {
        let ini = format!("[general]\n{key}=5");
        assert_eq!(load("-c INI -i ::2 -s DIR", &ini).1.unwrap().workers.cores, [5], "{key}");
    }
    let same = load("-c INI -i ::2 -s DIR", "[general]\ngraph-core-id=5\ngraph-cpu-core=5");
    assert_eq!(same.1.unwrap().workers.cores, [5]);
    let unlike =
        load("-c INI -i ::2 -s DIR", "[general]\ngraph-core-id=5\ngraph-cpu-core=6").1.unwrap();
    assert_eq!(unlike.workers.cores, [5]);
    assert_eq!(
        unlike.notices,
        [
            "graph-cpu-core=6 in the configuration file has no effect beside graph-core-id=5: remove it"
        ]
    );
}

#[test]
fn what_is_missing_is_said_in_the_words_of_the_contract() {
    let both = problems("", "");
    assert_eq!(both.len(), 3);
    assert_eq!(both[..2], ["IP to use is not set", "socket folder is not set"]);
    assert_eq!(problems("-i ::2", "")[0], "socket folder is not set");
    assert_eq!(problems("-s DIR", "")[0], "IP to use is not set");
    assert_eq!(problems("-c /nowhere -i ::2 -s DIR", "")[0], "Failed to open configuration file");
    assert_eq!(
        problems("-c INI -i ::2 -s DIR", "nonsense")[0],
        "Failed to open configuration file"
    );
}

/// A row each: words, the file, and what is served as the uplink.
#[test]
fn arguments_for_dpdk_name_the_uplink() {
    const PCAP: &str = "--dpdk-args=--vdev=eth_pcap0,iface=a";
    let xdp = |name: &str| UplinkSpec::Xdp { interface: name.into(), queues: None };
    for (words, ini, expected) in [
        (
            "",
            "dpdk-args=-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink\ndpdk-port=0",
            UplinkSpec::Tap { name: None },
        ),
        (PCAP, "", xdp("a")),
        (PCAP, "dpdk-args=--vdev=eth_pcap0,iface=b", xdp("b")),
        (
            "",
            "dpdk-args=-c1 --vdev eth_pcap0,iface=a --vdev eth_pcap1,iface=b\ndpdk-port=1",
            xdp("b"),
        ),
        (
            "--dpdk-port 1",
            "dpdk-args=--vdev eth_pcap0,iface=a --vdev eth_pcap1,iface=b\ndpdk-port=0",
            xdp("a"),
        ),
        (
            PCAP,
            "uplink=a\nuplink-queues=2",
            UplinkSpec::Xdp { interface: "a".into(), queues: Some(2) },
        ),
    ] {
        let config =
            load(&format!("-c INI -i ::2 -s DIR {words}"), &format!("[general]\n{ini}")).1.unwrap();
        assert_eq!(config.tunnel.unwrap().uplink, expected, "{words} {ini}");
    }
    for (words, ini, problem) in [
        (
            PCAP,
            "uplink=b",
            "uplink \"b\" is refused: dpdk-args name the interface \"a\" (eth_pcap0)",
        ),
        (PCAP, "uplink=none", "uplink \"none\" is refused: dpdk-args name the interface"),
        (PCAP, "dpdk-port=1", "dpdk-port 1 is refused: dpdk-args name 1, from 0: eth_pcap0"),
        ("", "dpdk-args=-w 0000:01:00.0", "dpdk-args: -w 0000:01:00.0 is refused: "),
        ("--no-offload", "no-offload=no", "no-offload=no is refused: it is true or false"),
    ] {
        let problems =
            problems(&format!("-c INI -i ::2 -s DIR {words}"), &format!("[general]\n{ini}"));
        assert!(problems.len() == 1 && problems[0].starts_with(problem), "{problems:?}");
    }
    let offers =
        |words, ini| !load(&format!("-c INI -i ::2 -s DIR {words}"), ini).1.unwrap().no_offload;
    assert!(offers("", "") && offers("--no-offload", "[general]\nno-offload=false"));
    assert!(!offers("--no-offload", "") && !offers("", "[general]\nno-offload=true"));
}

/// A row each: words, the file, and where the API listens or why not.
#[test]
fn the_api_listens_where_it_is_told_to() {
    for (words, ini, expected) in [
        ("", "", Ok(&["tcp://0.0.0.0:9999"][..])),
        ("-e tcp://*:1 -e ipc:///a", "", Ok(&["tcp://*:1", "ipc:///a"])),
        ("-e tcp://*:1 --endpoint tcp://*:1", "", Ok(&["tcp://*:1"])),
        (
            "-e tcp://*:1",
            "endpoint = ipc:///a  tcp://[::]:2\ttcp://eth0:3 ",
            Ok(&["ipc:///a", "tcp://[::]:2", "tcp://eth0:3"]),
        ),
        ("-e nonsense", "endpoint=ipc://@a", Ok(&["ipc://@a"])),
        ("-e nonsense", "", Err("endpoint \"nonsense\" is refused: it has no transport")),
        ("-e tcp://*:1", "endpoint=", Err("endpoint \"\" is refused: it has no transport")),
        (
            "-e tcp://*:1 -e udp://*:1",
            "",
            Err("endpoint \"udp://*:1\" is refused: udp has no replies"),
        ),
        (
            "",
            "endpoint=tcp://*:1 inproc://a",
            Err("endpoint \"inproc://a\" is refused: inproc reaches nobody"),
        ),
        (
            "",
            "endpoint=tipc://{1,2,3}",
            Err("endpoint \"tipc://{1,2,3}\" is refused: tipc is not supported"),
        ),
    ] {
        match (
            load(&format!("-c INI -i ::2 -s DIR {words}"), &format!("[general]\n{ini}")).1,
            expected,
        ) {
            (Ok(config), Ok(endpoints)) => {
                assert_eq!(config.endpoints, endpoints, "{words} {ini}")
            }
            (Err(ConfigError(told)), Err(problem)) => {
                assert!(told.len() == 1 && told[0].starts_with(problem), "{told:?}")
            }
            (got, _) => panic!("{words} {ini}: {got:?}"),
        }
    }
}

#[test]
fn the_file_overrides_the_command_line_about_encryption_too() {
    // The file is no key, and its name tells which was tried.
    for (words, ini, tried) in [
        ("-k /nowhere/a", "", "/nowhere/a"),
        ("--key /nowhere/a", "", "/nowhere/a"),
        ("-k /nowhere/a", "[security]\nencryption_key_path=/nowhere/b", "/nowhere/b"),
        ("", "[security]\nencryption_key_path=/nowhere/b", "/nowhere/b"),
        ("", "[security]\nencryption_key_path=", "\"\""),
    ] {
        let problems = problems(&format!("-c INI -i ::2 -s DIR {words}"), ini);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("Cannot load encryption key\nkey file ")
                && problems[0].contains(tried),
            "{problems:?}"
        );
    }
    let no_key = "--no-legacy-encryption (legacy_encryption=false) is refused: there is no key";
    for (words, ini, refused) in [
        ("--no-legacy-encryption", "", Some(no_key)),
        ("", "[security]\nlegacy_encryption=false", Some(no_key)),
        ("--no-legacy-encryption", "[security]\nlegacy_encryption=true", None),
        (
            "",
            "[security]\nlegacy_encryption=no",
            Some("legacy_encryption=no is refused: it is true or false"),
        ),
    ] {
        let loaded = load(&format!("-c INI -i ::2 -s DIR {words}"), ini).1;
        let problem = loaded.err().map(|error| error.0.concat());
        assert_eq!(problem.is_some(), refused.is_some(), "{problem:?}");
        assert!(problem.unwrap_or_default().starts_with(refused.unwrap_or_default()));
    }
}

#[test]
fn a_misspelt_key_is_refused() {
    for (ini, expected) in [
        (
            "[general]\nip=::3\nsockt-dir=/x",
            "3: sockt-dir in [general]; did you mean socket-dir in [general]?",
        ),
        (
            "[security]\nencryption-key-path=/k",
            "2: encryption-key-path in [security]; did you mean encryption_key_path in [security]?",
        ),
        ("[General]\nENCRYPTION_KEY=/k", "2: ENCRYPTION_KEY in [General]"),
        (
            "[general]\nencryption_key_path=/k",
            "2: encryption_key_path in [general]; did you mean encryption_key_path in [security]?",
        ),
        (
            "[general]\nstrict-peer=true",
            "2: strict-peer in [general]; did you mean strict-peers in [general]?",
        ),
        ("[securty]\nsecret=/k", "2: secret in [securty]"),
        ("[timeouts]\nudp-new=1\nudp=1", "3: udp in [timeouts]"),
        ("[other]\nencryption_key=/k", "2: encryption_key in [other]"),
        ("[genral]\nip=::2", "2: ip in [genral]; did you mean ip in [general]?"),
    ] {
        let (line, what) = expected.split_once(": ").unwrap();
        let expected = format!("line {line} of the configuration file: there is no option {what}");
        assert_eq!(problems("-c INI -i ::2 -s DIR", ini), [expected]);
    }
}

/// The original takes them, too: another program may have lines of its own in the file.
#[test]
fn a_key_of_somebody_else_has_no_effect() {
    let ini = "[general]\nmanaged_by=ansible\n[inventory]\nrack=7\nname=r7\nowner=";
    let notices = load("-c INI -i ::2 -s DIR", ini).1.unwrap().notices;
    let expected = ["2 managed_by general", "5 name inventory", "6 owner inventory", "4 rack inventory"].map(|words| {
        let [line, key, group] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
        format!("line {line} of the configuration file: there is no option {key} in [{group}]: it has no effect")
    });
    assert_eq!(notices, expected);
}

/// The original takes these: the least that works is done, and said.
#[test]
fn an_odd_address_or_mtu_is_no_reason_not_to_start() {
    for ip in ["127.0.0.1", "0.0.0.0", "230.0.0.1", "::1"] {
        let config = load(&format!("-i {ip} -s DIR"), "").1.unwrap();
        assert_eq!(config.tunnel, None, "{ip}");
        assert_eq!(
            config.notices,
            [format!(
                "ip {ip} is none that other hosts can send to: networks end at this one, as with --uplink none"
            )]
        );
    }
    for words in
        ["-i 127.0.0.1 -s DIR -m 1600", "-i 192.0.2.1 -s DIR -m 1600 --dpdk-args --vdev=eth_ring0"]
    {
        let config = load(words, "").1.unwrap();
        assert_eq!((config.tunnel, config.nic_mtu), (None, None), "{words}");
        assert!(
            config
                .notices
                .contains(&"nic-mtu 1600 has no effect: there are no other hosts".to_owned()),
            "{words}"
        );
    }
    for (text, bytes) in [("0", 1280), ("600", 1280), ("99999999999", 65_521)] {
        let config = load(&format!("-i ::2 -s DIR -m {text}"), "").1.unwrap();
        assert_eq!(config.nic_mtu, Some(NicMtu::Bytes(bytes)));
        assert_eq!(
            config.notices,
            [format!("nic-mtu {text} becomes {bytes}: an uplink has from 1280 to 65521")]
        );
    }
}

#[test]
fn every_value_is_checked_and_all_problems_are_told() {
    let all = problems("-i 1.2.3 -s /nowhere -l loud -u x --fdb-ageing 0 -m one", "");
    let starts = [
        "ip \"1.2.3\"",
        "nic-mtu \"one\"",
        "socket folder \"/nowhere\"",
        "log level \"loud\"",
        "core \"x\"",
        "fdb-ageing \"0\"",
    ];
    assert_eq!(all.len(), starts.len(), "{all:?}");
    for (problem, start) in all.iter().zip(starts) {
        assert!(problem.starts_with(&format!("{start} is refused: ")), "{problem}");
    }
    assert!(problems("-i ::2 -s INI", "")[0].ends_with("it is not a directory"));
    assert!(
        problems("-c INI -i ::2 -s DIR", "[general]\npoll=yes")[0]
            .starts_with("poll=yes is refused")
    );
    assert_eq!(problems("-i ::2 -s DIR --peer x --group6 y", "").len(), 2);
    for metrics in ["9998", ":9998", "localhost:9998", "127.0.0.1", "127.0.0.1:65536", "::1:9998"] {
        let problem = &problems(&format!("-i ::2 -s DIR --metrics {metrics}"), "")[0];
        assert_eq!(
            *problem,
            format!(
                "metrics {metrics:?} is refused: it is an address and a port, as in 127.0.0.1:9998 or [::1]:9998"
            )
        );
    }
    assert_eq!(
        load("-c INI -i ::2 -s DIR --metrics 127.0.0.1:1", "[general]\nmetrics=")
            .1
            .unwrap()
            .metrics,
        None
    );
}

#[test]
fn bounds_and_time_outs_of_sessions_are_checked() {
    for (words, ini, expected) in [
        ("--sessions 63", "", "sessions \"63\" is refused: it is a number from 64 to 16777216"),
        (
            "--sessions 16777217",
            "",
            "sessions \"16777217\" is refused: it is a number from 64 to 16777216",
        ),
        ("--sessions many", "", "sessions \"many\" is refused: it is a number from 64 to 16777216"),
        (
            "--session-rate 0",
            "",
            "session-rate \"0\" is refused: it is a number from 1 to 100000000",
        ),
        ("--session-share 0", "", "session-share \"0\" is refused: it is a number from 1 to 100"),
        (
            "--session-share 25%",
            "",
            "session-share \"25%\" is refused: it is a number from 1 to 100",
        ),
        (
            "",
            "[general]\nsession-share=101",
            "session-share \"101\" is refused: it is a number from 1 to 100",
        ),
        ("--tcp-pickup=-1", "", "tcp-pickup \"-1\" is refused: it is a number from 0 to 31536000"),
        (
            "--timeout udp-new",
            "",
            "timeout \"udp-new\" is refused: write NAME=SECONDS, as in tcp-established=86400",
        ),
        (
            "--timeout udp=1",
            "",
            "timeout \"udp\" is refused: there are tcp-new, tcp-established, tcp-half-closed, tcp-closing, tcp-time-wait, tcp-cut, \
             udp-new, udp-answered, icmp-echo, sctp-new, sctp-established, other, fragment, dhcp",
        ),
        (
            "--timeout other=0",
            "",
            "timeout other \"0\" is refused: it is a number from 1 to 31536000",
        ),
        (
            "",
            "[timeouts]\nother=1 s",
            "timeout other \"1 s\" is refused: it is a number from 1 to 31536000",
        ),
    ] {
        assert_eq!(problems(&format!("-c INI -i ::2 -s DIR {words}"), ini), [expected]);
    }
    let least =
        load("-i ::2 -s DIR --sessions 64 --session-share 100 --tcp-pickup 31536000 --timeout fragment=1", "").1.unwrap();
    assert_eq!((least.sessions, least.session_share, least.tcp_pickup), (64, 100, 31_536_000));
    assert_eq!(least.timeouts, Timeouts { fragment: 1, ..Timeouts::default() });
}

/// A daemon that cannot read its configuration looks for machines that are to stay connected.
#[test]
fn state_directories_are_found_in_a_wrong_configuration() {
    let room = tempfile::tempdir().unwrap();
    let ini = room.path().join("ini");
    std::fs::write(&ini, "[nonsense\nstate-dir = /a\n state-dir=/b \nstate-dir-x = /c\n").unwrap();
    let ini = ini.to_str().unwrap();
    let found = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(std::ffi::OsString::from).collect();
        let found = possible_state_dirs(&words);
        found.iter().map(|it| it.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(&["butterflyd", "-c", ini, "--x"]), ["/a", "/b"]);
    assert_eq!(
        found(&["butterflyd", "--state-dir", "/s", &format!("--config={ini}")]),
        ["/s", "/a", "/b"]
    );
    assert_eq!(found(&["butterflyd", "--state-dir=/b", "-c", ini]), ["/b", "/a"]);
    assert_eq!(found(&["butterflyd", "-c", "/does/not/exist"]), [""; 0]);
}

#[test]
fn workers_are_counted_or_named_by_their_cores() {
    let workers = |words: &str| {
        let config = load(&format!("-c INI -i ::2 -s DIR {words}"), "").1.unwrap();
        (config.workers.count, config.workers.cores, config.notices.len())
    };
    assert_eq!(workers("--workers 3"), (3, vec![0], 0));
    assert_eq!(workers("--workers 3 -u 1"), (3, vec![1], 0));
    assert_eq!(workers("--worker-cores 2,4-6"), (4, vec![2, 4, 5, 6], 0));
    assert_eq!(workers("--worker-cores 2,3 --workers 4"), (4, vec![2, 3], 0));
    assert_eq!(workers("--worker-cores 2,3 --workers 1"), (1, vec![2, 3], 1));
    assert_eq!(workers("--worker-cores 2,3 -u 2"), (2, vec![2, 3], 0));
    assert_eq!(workers("--worker-cores 2,3 -u 3"), (2, vec![2, 3], 1));
    for wrong in ["0", "33", "x", "-1", ""] {
        assert!(load(&format!("-c INI -i ::2 -s DIR --workers={wrong}"), "").1.is_err(), "{wrong}");
    }
    for wrong in ["", "a", "1,", "1,1", "3-2", "0-3,2", "0-40", "1-", "65536", "-1"] {
        let words = format!("-c INI -i ::2 -s DIR --worker-cores={wrong}");
        assert!(load(&words, "").1.is_err(), "{wrong}");
    }
}
