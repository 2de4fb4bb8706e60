//! Frames as another program reads them: Wireshark finds nothing to complain about.

use std::process::Command;

use butterfly_packet::{
    Mac,
    build::{self, Checksum},
    dhcp::{self, Reply, Request, Terms, classless_route, search_list},
    echo,
    icmp_error::{self, IcmpError, of_router},
    igmp, mld, neighbour,
};

const A: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0xbf, 0, 0, 0, 2]);
const A6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
const B6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 2];

fn answer(frame: &[u8]) -> Vec<u8> {
    let mut out = vec![0; icmp_error::MAX_LEN];
    let len = icmp_error::too_big(frame, 1400, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Error of a router.
fn error(frame: &[u8], error: IcmpError) -> Vec<u8> {
    let mut out = vec![0; icmp_error::MAX_LEN];
    let is_v4 = frame[14] >> 4 == 4;
    let from = if is_v4 { [10, 1, 0, 254].into() } else { B6.into() };
    let len = of_router(frame, (B, from), error, &mut out).unwrap();
    out.truncate(len);
    out
}

fn echoed(mut frame: Vec<u8>) -> Vec<u8> {
    let len = echo::answer(&mut frame).unwrap();
    frame.truncate(len);
    frame
}

/// Answer of a network's DHCP with all that it may tell, also to a client that takes little.
fn leased(reply: Reply, longest: u16) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 0, 0, 0, 7];
    message.resize(28, 0);
    message.extend(A.0);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99, 53, 1, 1, 61, 7, 1]);
    message.extend(A.0);
    message.extend([57, 2]);
    message.extend(longest.to_be_bytes());
    message.extend([55, 11, 1, 3, 6, 15, 26, 28, 66, 67, 119, 121, 249, 255]);
    let request = Request::parse(&message).unwrap();
    let mut routes = Vec::new();
    let gateway = [10, 1, 0, 254].into();
    classless_route(&mut routes, ([10, 9, 0, 0].into(), 17), [10, 1, 0, 7].into());
    classless_route(&mut routes, ([0; 4].into(), 0), gateway);
    let search = search_list(["example.com", "lab.example.com"]).unwrap();
    let terms = Terms {
        gateway,
        mask: [255, 255, 255, 0].into(),
        broadcast: Some([10, 1, 0, 255].into()),
        lease: 3600,
        mtu: Some(1400),
        dns: &[9, 9, 9, 9, 1, 1, 1, 1],
        search: &search,
        domain: b"example.com",
        routes: &routes,
        next_server: [10, 1, 0, 105].into(),
        boot_file: b"pxelinux.0",
    };
    let mut out = vec![0; dhcp::MAX_ANSWER];
    let len = dhcp::answer(&request, reply, &terms, B, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Frames and the protocols that are expected in them.
fn frames() -> Vec<(Vec<u8>, &'static str)> {
    let v4 = || build::ethernet(A, B).ipv4([10, 1, 0, 1], [10, 1, 0, 2]);
    let v6 = || build::ethernet(A, B).ipv6(A6, B6);
    let big = [0; 1440];
    let inner = v4().ping(1, 1, b"inside");
    vec![
        (igmp::report(A, [10, 1, 0, 1].into(), [230, 0, 5, 57].into()), "eth:ethertype:ip:igmp"),
        (igmp::leave(A, [10, 1, 0, 1].into(), [230, 0, 5, 57].into()), "eth:ethertype:ip:igmp"),
        (mld::report(A, "ff05::2a".parse().unwrap()), "eth:ethertype:ipv6:ipv6.hopopts:icmpv6"),
        (mld::done(A, "ff05::2a".parse().unwrap()), "eth:ethertype:ipv6:ipv6.hopopts:icmpv6"),
        (answer(&v4().dont_fragment().udp(4000, 4001, &big)), "eth:ethertype:ip:icmp:ip:udp:data"),
        (
            answer(&v4().dont_fragment().udp(4000, 4001, &big)[..128]),
            "eth:ethertype:ip:icmp:ip:udp:data",
        ),
        (answer(&v6().udp(4000, 4001, &big)), "eth:ethertype:ipv6:icmpv6:ipv6:udp:data"),
        (answer(&v6().udp(4000, 4001, &big)[..128]), "eth:ethertype:ipv6:icmpv6:ipv6:udp:data"),
        (
            error(&v4().ttl(1).udp(4000, 4001, &big), IcmpError::Expired),
            "eth:ethertype:ip:icmp:ip:udp:data",
        ),
        (error(&v4().udp(4000, 4001, b"x"), IcmpError::NoPort), "eth:ethertype:ip:icmp:ip:udp"),
        (leased(Reply::Offer([10, 1, 0, 9].into()), 1500), "eth:ethertype:ip:udp:dhcp"),
        (leased(Reply::Acknowledge([10, 1, 0, 9].into()), 576), "eth:ethertype:ip:udp:dhcp"),
        (leased(Reply::Parameters, 1500), "eth:ethertype:ip:udp:dhcp"),
        (leased(Reply::Refuse, 576), "eth:ethertype:ip:udp:dhcp"),
        (echoed(v4().ping(7, 1, b"payload")), "eth:ethertype:ip:icmp:data"),
        (
            error(&v6().ttl(1).udp(4000, 4001, &big), IcmpError::Expired),
            "eth:ethertype:ipv6:icmpv6:ipv6:udp:data",
        ),
        (
            error(&v6().udp(4000, 4001, &big), IcmpError::TooBig(1400)),
            "eth:ethertype:ipv6:icmpv6:ipv6:udp:data",
        ),
        (
            error(&v6().udp(4000, 4001, b"x"), IcmpError::NoPort),
            "eth:ethertype:ipv6:icmpv6:ipv6:udp",
        ),
        (
            error(&v6().payload(253, &[0; 8]), IcmpError::NoProtocol),
            "eth:ethertype:ipv6:icmpv6:ipv6:data",
        ),
        (echoed(v6().ping(7, 1, b"payload")), "eth:ethertype:ipv6:icmpv6:data"),
        (
            neighbour::advertisement((A, A6.into()), (B, B6.into())).to_vec(),
            "eth:ethertype:ipv6:icmpv6",
        ),
        (
            neighbour::advertisement((A, [0; 8].into()), (B, B6.into())).to_vec(),
            "eth:ethertype:ipv6:icmpv6",
        ),
        (
            v4().checksum(Checksum::Zero).vxlan(50_000, 1337, &inner),
            "eth:ethertype:ip:udp:vxlan:eth:ethertype:ip:icmp:data",
        ),
        (
            v6().vxlan(50_000, 1337, &inner),
            "eth:ethertype:ipv6:udp:vxlan:eth:ethertype:ip:icmp:data",
        ),
    ]
}

/// A classic capture file: little-endian, microseconds, Ethernet.
fn pcap(frames: &[(Vec<u8>, &str)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (second, (frame, _)) in frames.iter().enumerate() {
        for word in [second as u32, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// Returns Wireshark's remarks about a file: protocols and severities, by frame.
fn read(frames: &[(Vec<u8>, &str)]) -> Vec<(String, Vec<u32>)> {
    let file = tempfile();
    std::fs::write(&file, pcap(frames)).unwrap();
    let mut command = Command::new("tshark");
    command.args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=;",
        "-e",
        "frame.protocols",
        "-e",
        "_ws.expert.severity",
    ]);
    for check in ["ip", "udp"] {
        command.args(["-o", &format!("{check}.check_checksum:TRUE")]);
    }
    let output = command.arg("-r").arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| {
        let (protocols, severities) = line.split_once(';').unwrap();
        // Some versions name a protocol once more for its version's dissector.
        let mut protocols: Vec<&str> = protocols.split(':').collect();
        protocols.dedup();
        (
            protocols.join(":"),
            severities.split_terminator(',').map(|severity| severity.parse().unwrap()).collect(),
        )
    };
    let rows: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(row).collect();
    assert_eq!(rows.len(), frames.len());
    rows
}

fn tempfile() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("butterfly-packet-{}.pcap", std::process::id()))
}

/// Needs `tshark`; `tests/lib/setup.sh test` installs it. A machine without it cannot run this
/// test, and says so.
#[test]
fn wireshark_reads_every_frame_without_a_warning() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!(
            "tshark is not installed: nothing was checked (tests/lib/setup.sh test installs it)"
        );
        return;
    }
    // Chat and notes are remarks.
    const WARNING: u32 = 0x60_0000;
    let mut frames = frames();
    for ((found, severities), (_, expected)) in read(&frames).iter().zip(&frames) {
        assert_eq!(found, expected);
        assert!(severities.iter().all(|severity| *severity < WARNING), "{found}: {severities:x?}");
    }
    // It would have: one bit of each frame's last checksum that is not inside a quote.
    for (frame, protocols) in &mut frames {
        let at = match *protocols {
            "eth:ethertype:ip:igmp" => 40,
            "eth:ethertype:ipv6:ipv6.hopopts:icmpv6" => 64,
            "eth:ethertype:ip:icmp:ip:udp:data" => 36,
            "eth:ethertype:ipv6:icmpv6:ipv6:udp:data" => 56,
            _ => 24, // of the outer IPv4 header, or a byte of the outer IPv6 source
        };
        frame[at] ^= 1;
    }
    for (found, severities) in read(&frames) {
        assert!(severities.iter().any(|severity| *severity >= WARNING), "{found}");
    }
}
