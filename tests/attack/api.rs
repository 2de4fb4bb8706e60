//! Garbage on the API socket, and invalid command lines.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use butterfly_api::client::Client;
use butterfly_tests::{frames::Choices, programs::program, wait::PATIENCE};

use crate::switch::{PROMPT, Switch};

/// A valid request, of which the tests change a few bytes.
const LIST: &[u8] = &[0x0a, 0x08, 0x08, 0x06, 0x12, 0x04, 0x0a, 0x02, 0x20, 0x01];
/// The answer that the contract gives to requests that cannot be decoded.
const NOT_DECODABLE: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x00];

/// Sends bytes that are no request. Checks that the daemon answers each as not decodable.
pub fn malformed(switch: &Switch) -> usize {
    let client = Client::connect(switch.0.endpoint(), Some(PATIENCE)).expect("the API is there");
    let deep: Vec<u8> = (0..2000).flat_map(|_| [0x0b]).collect();
    let huge_length = [0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    let requests: Vec<(&str, Vec<u8>)> = vec![
        ("a length behind the end", vec![0x0a, 0x7f, 0]),
        ("a length of 4 GiB", huge_length.to_vec()),
        ("a varint without end", vec![0xff; 20]),
        ("field 0", vec![0, 0, 0]),
        ("groups in groups", deep),
        ("text", b"messages { revision: 6 }".to_vec()),
        ("half a request", LIST[..LIST.len() - 1].to_vec()),
        ("no required field", vec![0x0a, 0x00]),
        ("16 MiB of ones", vec![0xff; 15 << 20]),
    ];
    for (name, request) in &requests {
        let reply = client.exchange(request).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reply, NOT_DECODABLE, "{name} is answered otherwise");
        assert!(switch.latency() <= PROMPT, "{name}: the API is slow after it");
    }
    requests.len()
}

/// Sends one random message to the API.
pub fn random(switch: &Switch, choices: &mut Choices) {
    match choices.below(3) {
        // A request with a few bytes changed. Any answer is good; silence is not.
        0 => {
            let client =
                Client::connect(switch.0.endpoint(), Some(PATIENCE)).expect("the API is there");
            let mut request = LIST.to_vec();
            for _ in 0..choices.between(1, 4) {
                let at = choices.below(request.len());
                request[at] = choices.below(256) as u8;
            }
            // Do not send app_quit (field 17) or app_config by accident.
            if request.windows(2).any(|pair| matches!(pair, [0x88 | 0x92, 0x01])) {
                return;
            }
            client.exchange(&request).unwrap_or_else(|error| panic!("{request:02x?}: {error}"));
        }
        // Noise instead of ZeroMQ, or the beginning of a ZeroMQ greeting.
        _ => {
            let path = switch.0.endpoint().trim_start_matches("ipc://");
            let mut stream = UnixStream::connect(path).expect("somebody listens");
            stream.set_read_timeout(Some(Duration::from_millis(5))).expect("a time-out");
            let mut greeting = [0u8; 64];
            greeting[0] = 0xff;
            greeting[9] = 0x7f;
            greeting[10] = choices.one(&[3, 3, 3, 0, 255]);
            greeting[12..16].copy_from_slice(b"NULL");
            let keep = choices.one(&[64, 64, 64, 10, 1, 0]);
            let _ = stream.write_all(&greeting[..keep]);
            let len = choices.below(200);
            let noise: Vec<u8> = (0..len).map(|_| choices.below(256) as u8).collect();
            let _ = stream.write_all(&noise);
            let _ = stream.read(&mut [0; 256]);
        }
    }
}

/// Command lines that a program refuses: program, options, and a word of its message.
const OPTIONS: &[(&str, &[&str], &str)] = &[
    ("butterflyd", &[], "ip"),
    ("butterflyd", &["-i"], "ip"),
    ("butterflyd", &["-i", "nonsense", "-s", "/tmp"], "nonsense"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/nonexistent/directory"], "/nonexistent/directory"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "-k", "/key"], "key"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--dpdk-port", "7"], "dpdk-port"),
    (
        "butterflyd",
        &["-i", "1.2.3.4", "-s", "/tmp", "--dpdk-args", "--vdev 'eth_pcap0"],
        "dpdk-args",
    ),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "-u", "-1"], "-1"),
    (
        "butterflyd",
        &["-i", "1.2.3.4", "-s", "/tmp", "--fdb-ageing", "99999999999999999999"],
        "99999999999999999999",
    ),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "-l", "loud"], "loud"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "-e", "nonsense"], "nonsense"),
    (
        "butterflyd",
        &["-i", "1.2.3.4", "-s", "/tmp", "--sessions", "99999999999999999999"],
        "sessions",
    ),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--session-share", "101"], "session-share"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--timeout", "never=1"], "never"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--timeout", "other=-1"], "other"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--uplink", "../../etc"], "etc"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--uplink", "vhost-user:"], "vhost-user"),
    (
        "butterflyd",
        &["-i", "1.2.3.4", "-s", "/tmp", "--uplink", "lo", "--uplink-queues", "99999999999"],
        "uplink-queues",
    ),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--peer", "::1"], "peer"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "--gateway", "nobody"], "gateway"),
    ("butterflyd", &["-i", "1.2.3.4/99", "-s", "/tmp"], "prefix"),
    ("butterflyd", &["-i", "1.2.3.4", "-s", "/tmp", "-m", "many"], "nic-mtu"),
    ("butterflyd", &["-c", "/nonexistent"], "/nonexistent"),
    ("butterflyd", &["-c", "/bin/sh"], "/bin/sh"),
    ("butterflyd", &["--unknown"], "unknown"),
    ("butterfly", &["nic", "add", "-e", "nonsense"], ""),
    ("butterfly", &["nic", "add", "--vni", "99999999999", "--mac", "x", "--id", "/"], ""),
    ("butterfly", &["sg", "rule", "add", "g", "--ip-proto", "256", "--cidr", "10.0.0.0/33"], ""),
    ("butterfly", &["sessions", "--address", "10.0.0.0/8", "-e", "nonsense"], ""),
    ("butterfly", &["nonsense"], ""),
    ("butterfly", &["request", "/dev/zero/nothing"], ""),
];

/// Checks that programs refuse invalid options at once, with a message and without a crash.
pub fn options() -> usize {
    for (name, words, says) in OPTIONS {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "20"]).arg(program(name)).args(*words);
        let begun = Instant::now();
        let output = command.stdin(Stdio::null()).output().expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(begun.elapsed() < Duration::from_secs(20), "{name} {words:?} does not end");
        let code = output.status.code();
        assert!(
            matches!(code, Some(1 | 2)),
            "{name} {words:?} ended with {:?}: {said}",
            output.status
        );
        assert!(!said.contains("panicked"), "{name} {words:?}: {said}");
        assert!(
            said.contains(says) && !said.trim().is_empty(),
            "{name} {words:?} does not say {says:?}: {said}"
        );
    }
    OPTIONS.len()
}
