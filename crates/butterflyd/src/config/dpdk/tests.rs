use super::*;

fn device(name: &str, interface: &str) -> Option<Device> {
    Some(Device { name: name.into(), interface: Some(interface.into()) })
}

fn nowhere(name: &str) -> Option<Device> {
    Some(Device { name: name.into(), interface: None })
}

/// A row each: the arguments, the port, which device is served, what has no effect.
#[test]
fn what_is_served() {
    for (arguments, port, served, without_effect) in [
        (None, None, None, &[][..]),
        (None, Some("0"), None, &[]),
        (Some(DEFAULT_ARGS), None, None, &[]),
        (Some(""), None, None, &[]),
        (Some("-c1 -n1 --socket-mem 64"), None, None, &["-c 1", "-n 1", "--socket-mem 64"]),
        (Some("--vdev=eth_pcap0,iface=veth0"), None, device("eth_pcap0", "veth0"), &[]),
        (Some("--vdev eth_pcap0,iface=veth0"), None, device("eth_pcap0", "veth0"), &[]),
        (Some("--vdev=net_pcap7,iface=veth0"), None, device("net_pcap7", "veth0"), &[]),
        (
            Some("--vdev=net_af_packet0,iface=eth0.42"),
            None,
            device("net_af_packet0", "eth0.42"),
            &[],
        ),
        (Some("--vdev=eth_af_packet0,iface=eth0"), None, device("eth_af_packet0", "eth0"), &[]),
        (Some("--vdev=net_af_packet,iface=eth0"), None, device("net_af_packet", "eth0"), &[]),
        (Some("--vdev=eth_ring0"), None, nowhere("eth_ring0"), &[]),
        (Some("-c1 --vdev=net_ring12"), None, nowhere("net_ring12"), &["-c 1"]),
        (
            Some("--vdev=eth_null1,size=64,copy=1"),
            None,
            nowhere("eth_null1"),
            &["size=64,copy=1 of eth_null1"],
        ),
        (Some("--vdev=net_null"), None, nowhere("net_null"), &[]),
        (
            Some("--vdev=eth_ring0 --vdev=eth_pcap0,iface=b"),
            Some("1"),
            device("eth_pcap0", "b"),
            &[],
        ),
        (
            Some("--vdev=net_pcap0,rx_iface=eth0,tx_iface=eth0"),
            None,
            device("net_pcap0", "eth0"),
            &[],
        ),
        (
            Some("--vdev=net_af_packet0,iface=eth0,qpairs=2,framesz=4096"),
            None,
            device("net_af_packet0", "eth0"),
            &["qpairs=2 of net_af_packet0", "framesz=4096 of net_af_packet0"],
        ),
        // As a shell splits it.
        (
            Some("'--vdev'  \"eth_pcap0,iface=veth0\" # a comment"),
            None,
            device("eth_pcap0", "veth0"),
            &[],
        ),
        (
            Some(
                "-c1 -n 1 -l 0-1 --socket-mem=64,64 --file-prefix 'a b' --no-huge -m512 --huge-unlink=never --vdev=eth_pcap0,iface=v",
            ),
            None,
            device("eth_pcap0", "v"),
            &[
                "-c 1",
                "-n 1",
                "-l 0-1",
                "--socket-mem 64,64",
                "--file-prefix a b",
                "--no-huge",
                "-m 512",
                "--huge-unlink never",
            ],
        ),
        (
            Some("--vdev=eth_pcap0,iface=a --vdev=eth_pcap1,iface=b"),
            None,
            device("eth_pcap0", "a"),
            &[],
        ),
        (
            Some("--vdev=eth_pcap0,iface=a --vdev=eth_pcap1,iface=b"),
            Some("0"),
            device("eth_pcap0", "a"),
            &[],
        ),
        (
            Some("--vdev=eth_pcap0,iface=a --vdev=eth_pcap1,iface=b"),
            Some("1"),
            device("eth_pcap1", "b"),
            &[],
        ),
        (
            Some("--proc-type auto --log-level=8 -v -b 0000:00:1f.6 -d librte_pmd_pcap.so"),
            None,
            None,
            &[
                "--proc-type auto",
                "--log-level 8",
                "-v",
                "-b 0000:00:1f.6",
                "-d librte_pmd_pcap.so",
            ],
        ),
    ] {
        let read =
            read(arguments, port).unwrap_or_else(|problems| panic!("{arguments:?}: {problems:?}"));
        assert_eq!(read.device, served, "{arguments:?} {port:?}");
        assert_eq!(read.without_effect, without_effect, "{arguments:?}");
    }
}

/// A row each: the arguments, the port, and the beginning of each line.
#[test]
fn what_is_refused() {
    const NO_CARD: &str = "cards are not driven by DPDK here; give this one to its kernel driver, and the name of its interface";
    let card = |argument: &str| format!("dpdk-args: {argument} is refused: {NO_CARD}");
    for (arguments, port, problems) in [
        ("-w 0000:01:00.0", None, vec![card("-w 0000:01:00.0")]),
        ("-a0000:01:00.0 --allow=0000:01:00.1", None, vec![card("-a 0000:01:00.0"), card("--allow 0000:01:00.1")]),
        ("--pci-whitelist 01:00.0", None, vec![card("--pci-whitelist 01:00.0")]),
        (
            "--vdev=net_tap0,iface=x",
            None,
            vec!["dpdk-args: --vdev net_tap0,iface=x is refused: it is no port here; a TAP device is --uplink tap:NAME".into()],
        ),
        (
            "--vdev net_af_xdp0,iface=x",
            None,
            vec!["dpdk-args: --vdev net_af_xdp0,iface=x is refused: it is no port here; an interface by AF_XDP".into()],
        ),
        (
            "--vdev eth_vhost0,iface=/x",
            None,
            vec!["dpdk-args: --vdev eth_vhost0,iface=/x is refused: it is no port here; a vhost-user port".into()],
        ),
        (
            "--vdev virtio_user0,path=/x",
            None,
            vec!["dpdk-args: --vdev virtio_user0,path=/x is refused: it is no port here; one on somebody".into()],
        ),
        (
            "--vdev=net_bonding0,mode=1",
            None,
            vec!["dpdk-args: --vdev net_bonding0,mode=1 is refused: there is no port for it here; use --uplink".into()],
        ),
        ("--vdev=crypto_null", None, vec!["dpdk-args: --vdev crypto_null is refused: there is no port for it here".into()]),
        ("--vdev=eth_pcap0", None, vec!["dpdk-args: --vdev eth_pcap0 is refused: it names no interface: add iface=X".into()]),
        (
            "--vdev=eth_pcap0,iface=",
            None,
            vec!["dpdk-args: --vdev eth_pcap0,iface= is refused: \"\" is no name of a network interface".into()],
        ),
        ("--vdev=eth_pcap0,iface=a/b", None, vec!["dpdk-args: --vdev eth_pcap0,iface=a/b is refused: \"a/b\" is no name".into()]),
        (
            "--vdev=eth_pcap0,rx_pcap=in.pcap",
            None,
            vec!["dpdk-args: --vdev eth_pcap0,rx_pcap=in.pcap is refused: rx_pcap: files of packets".into()],
        ),
        (
            "--vdev=eth_pcap0,rx_iface=a,tx_iface=b",
            None,
            vec!["dpdk-args: --vdev eth_pcap0,rx_iface=a,tx_iface=b is refused: it names \"a\" and \"b\"".into()],
        ),
        (
            "--vdev=eth_pcap0,ifcae=a",
            None,
            vec!["dpdk-args: --vdev eth_pcap0,ifcae=a is refused: \"ifcae\" is no argument".into()],
        ),
        ("--vdev", None, vec!["dpdk-args: --vdev is refused: it needs a value".into()]),
        ("-c1 -n", None, vec!["dpdk-args: -n is refused: it needs a value".into()]),
        ("--no-huge=1", None, vec!["dpdk-args: --no-huge=1 is refused: it takes no value".into()]),
        ("-h", None, vec!["dpdk-args: -h is refused: write butterflyd --dpdk-help".into()]),
        (
            "--nosuch word -Z -",
            None,
            ["--nosuch", "word", "-Z", "-"]
                .map(|word| format!("dpdk-args: {word} is refused: DPDK has no such argument; "))
                .into(),
        ),
        ("--vdev='eth_pcap0", None, vec!["dpdk-args: --vdev='eth_pcap0 is refused: a quotation mark has no end".into()]),
        ("-c1", Some("1"), vec!["dpdk-port 1 is refused: dpdk-args name no device; remove it, or name one".into()]),
        ("--vdev=eth_pcap0,iface=a", Some("1"), vec!["dpdk-port 1 is refused: dpdk-args name 1, from 0: eth_pcap0".into()]),
        ("--vdev=eth_pcap0,iface=a", Some("-1"), vec!["dpdk-port \"-1\" is refused: it is a number from 0".into()]),
        ("--vdev=eth_pcap0,iface=a", Some("x"), vec!["dpdk-port \"x\" is refused: it is a number from 0".into()]),
    ] {
        let told = read(Some(arguments), port).expect_err(arguments);
        assert_eq!(told.len(), problems.len(), "{arguments}: {told:?}");
        assert!(told.iter().zip(&problems).all(|(told, problem)| told.starts_with(problem)), "{arguments}: {told:?}");
    }
}

#[test]
fn there_is_one_uplink() {
    let device = device("eth_pcap0", "eth0").unwrap();
    for (given, expected) in [
        (None, Ok("if:eth0")),
        (Some("eth0"), Ok("eth0")),
        (Some("if:eth0"), Ok("if:eth0")),
        (Some("eth1"), Err("eth1")),
        (Some("none"), Err("none")),
    ] {
        let mut uplink = given.map(str::to_owned);
        match (serve(&device, &mut uplink), expected) {
            (Ok(()), Ok(served)) => assert_eq!(uplink.as_deref(), Some(served)),
            (Err(told), Err(other)) => assert_eq!(
                told,
                format!(
                    "uplink {other:?} is refused: dpdk-args name the interface \"eth0\" (eth_pcap0), and there is one uplink: remove one of them"
                )
            ),
            (got, _) => panic!("{given:?}: {got:?}"),
        }
    }
    // An interface with such a name is another thing.
    let tap = Device { name: "eth_pcap0".into(), interface: Some("tap".into()) };
    assert!(serve(&tap, &mut Some("tap".into())).is_err());
    let ring = nowhere("eth_ring0").unwrap();
    for given in [None, Some("none")] {
        let mut uplink = given.map(str::to_owned);
        assert_eq!((serve(&ring, &mut uplink), uplink.as_deref()), (Ok(()), Some("none")));
    }
    assert!(
        serve(&ring, &mut Some("eth0".into()))
            .unwrap_err()
            .contains("leads to no other host (eth_ring0)")
    );
}

#[test]
fn the_help_has_every_argument() {
    let help = help();
    for name in
        ARGUMENTS.iter().filter(|(.., means)| *means != Means::Help).flat_map(|(names, ..)| *names)
    {
        assert!(help.split([' ', '\n', ',', '=', ':']).any(|word| word == *name), "{name}");
    }
    let known = |word: &str| ARGUMENTS.iter().any(|(names, ..)| names.contains(&split(word).0));
    assert!(
        shlex::split(DEFAULT_ARGS)
            .unwrap()
            .iter()
            .filter(|word| word.starts_with('-'))
            .all(|word| known(word))
    );
}
