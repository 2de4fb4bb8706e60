//! The operator's settings of tunnels and the uplink, checked.

use crate::config::options::Options;
use butterfly_datapath::{Role, TunnelSpec, UplinkSpec};
use butterfly_model::{SocketPath, may_be_endpoint};
use std::{
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

/// Default prefix of networks' groups over IPv6.
const DEFAULT_GROUP6: Ipv6Addr = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);
/// Bytes that every IPv6 link carries (RFC 8200, 5). IPv6 inside a tunnel needs more; the daemon
/// warns about that at its start.
const MIN_MTU: u32 = 1280;
/// The largest MTU of a TAP device.
pub const MAX_MTU: u32 = 65_521;
/// More receive queues than any card has.
const MAX_QUEUES: u32 = 1024;
/// The last VLAN there can be (IEEE 802.1Q, 9.6).
const LAST_VLAN: u16 = 4094;
/// Bytes of an interface's name (`IFNAMSIZ` with its final zero).
const LONGEST_NAME: usize = 15;

/// The MTU that the uplink should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicMtu {
    /// A number of bytes.
    Bytes(u32),
    /// The most it can have.
    Max,
}

/// The address of the endpoint, with the length of its network's prefix if one is given.
pub fn endpoint(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let (ip, len) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, Some(len)));
    let ip: IpAddr = ip.parse().map_err(|_| {
        format!("ip {text:?} is refused: it is not an IP address; write 192.0.2.1 or 2001:db8::1, with /LEN if hosts beyond a router are meant")
    })?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let len = len.map(|len| match len.parse() {
        Ok(len) if (1..=most).contains(&len) => Ok(len),
        _ => Err(format!(
            "ip {text:?} is refused: the length of its prefix is a number from 1 to {most}"
        )),
    });
    Ok((ip, len.transpose()?))
}

/// The tunnel endpoint at `ip`, or none if the daemon is to have no uplink; or everything that is
/// wrong with it.
pub fn tunnel(
    options: &Options,
    ip: IpAddr,
    prefix: Option<u8>,
) -> Result<Option<TunnelSpec>, Vec<String>> {
    let mut problems = Vec::new();
    let mut sort_out = |problem: String| problems.push(problem);
    let uplink = uplink(options).map_err(&mut sort_out).ok();
    let peers = addresses("peer", &options.peers, ip).map_err(&mut sort_out).ok();
    let gateways = addresses("gateway", &options.gateways, ip).map_err(&mut sort_out).ok();
    let group6 =
        options.group6.as_deref().map_or(Ok(DEFAULT_GROUP6), group6).map_err(&mut sort_out).ok();
    match uplink {
        // Without an uplink these options have no effect, which no operator intends.
        Some(None) => useless(options).map(without_uplink).for_each(&mut sort_out),
        Some(Some(_)) if !may_be_endpoint(ip) => sort_out(format!(
            "ip {ip} is refused: no other host can send to it; give this host's address on the network between hosts, or --uplink none"
        )),
        Some(Some(_)) if ip.is_ipv4() => {
            over_ipv6_only(options).map(of_ipv6).for_each(&mut sort_out)
        }
        _ => {}
    }
    let vlan =
        options.underlay_vlan.as_deref().map_or(Ok(0), underlay_vlan).map_err(&mut sort_out).ok();
    let complete = uplink.zip(peers).zip(gateways).zip(group6).zip(vlan);
    let Some(((((uplink, mut peers), gateways), group6), vlan)) =
        complete.filter(|_| problems.is_empty())
    else {
        return Err(problems);
    };
    // All hosts may have the same list.
    peers.retain(|peer| *peer != ip);
    Ok(uplink.map(|uplink| TunnelSpec {
        endpoint: ip,
        prefix,
        uplink,
        peers,
        gateways,
        group6,
        udp6_checksum: options.udp6_checksum,
        strict_peers: options.strict_peers,
        vlan,
        mtu: None,
    }))
}

/// The VLAN of the underlay.
fn underlay_vlan(text: &str) -> Result<u16, String> {
    let vlan = text.parse().ok().filter(|vlan| *vlan <= LAST_VLAN);
    vlan.ok_or_else(|| {
        format!(
            "underlay-vlan {text:?} is refused: it is a number from 1 to {LAST_VLAN}, or 0 for none"
        )
    })
}

/// Reads the wanted MTU. Also returns a warning if it is not the one that was given: the original
/// takes any number.
pub fn nic_mtu(text: &str) -> Result<(NicMtu, Option<String>), String> {
    if text == "max" {
        return Ok((NicMtu::Max, None));
    }
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(wanted) = digits.then(|| text.parse().unwrap_or(u32::MAX)) else {
        return Err(format!(
            "nic-mtu {text:?} is refused: it is max, or a number of bytes from {MIN_MTU} to {MAX_MTU}"
        ));
    };
    let bytes = wanted.clamp(MIN_MTU, MAX_MTU);
    let notice =
        format!("nic-mtu {text} becomes {bytes}: an uplink has from {MIN_MTU} to {MAX_MTU}");
    Ok((NicMtu::Bytes(bytes), (bytes != wanted).then_some(notice)))
}

/// True if networks end at this host without a setting for that: no other host can send to the
/// endpoint, and no option about others is given.
pub fn ends_here(options: &Options, ip: IpAddr) -> bool {
    // The original takes an MTU for any device, which says nothing about others.
    !may_be_endpoint(ip)
        && options.uplink.is_none()
        && useless(options).all(|name| name == "nic-mtu")
}

fn uplink(options: &Options) -> Result<Option<UplinkSpec>, String> {
    let text = options.uplink.as_deref().unwrap_or("tap");
    let refused = |why: String| format!("uplink {text:?} is refused: {why}");
    let socket = |path: &str, role| match SocketPath::new(Path::new(path)) {
        Ok(_) => Ok(UplinkSpec::VhostUser { path: path.into(), role }),
        Err(error) => Err(refused(error.to_string())),
    };
    let named = |name: &str| interface(name).map_err(refused);
    let spec = match text.split_once(':') {
        None if text == "none" => return Ok(None),
        None if text == "tap" => UplinkSpec::Tap { name: None },
        Some(("tap", name)) => UplinkSpec::Tap { name: Some(named(name)?) },
        Some(("vhost-user", path)) => socket(path, Role::Server)?,
        Some(("vhost-user-client", path)) => socket(path, Role::Client)?,
        Some(("if", name)) => UplinkSpec::Xdp { interface: named(name)?, queues: None },
        Some((kind, _)) => {
            return Err(refused(format!(
                "there is no {kind}:, only if:, tap:, vhost-user: and vhost-user-client:"
            )));
        }
        None => UplinkSpec::Xdp { interface: named(text)?, queues: None },
    };
    match (&options.uplink_queues, spec) {
        (None, spec) => Ok(Some(spec)),
        (Some(queues), UplinkSpec::Xdp { interface, .. }) => match queues.parse() {
            Ok(queues @ 1..=MAX_QUEUES) => {
                Ok(Some(UplinkSpec::Xdp { interface, queues: Some(queues) }))
            }
            _ => Err(format!(
                "uplink-queues {queues:?} is refused: it is a number from 1 to {MAX_QUEUES}"
            )),
        },
        (Some(_), _) => Err("uplink-queues is refused: only an interface has several; \
             remove it, or name one with --uplink"
            .into()),
    }
}

/// The name of a network interface, as the kernel takes it.
pub fn interface(name: &str) -> Result<String, String> {
    let good = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'))
        && !matches!(name, "." | "..");
    if good {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "{name:?} is no name of a network interface: those have 1 to {LONGEST_NAME} printable letters, without /, : and %"
        ))
    }
}

/// Reads the values of a list: addresses of the endpoint's family, of hosts.
fn addresses(name: &str, values: &[String], endpoint: IpAddr) -> Result<Vec<IpAddr>, String> {
    let mut addresses = Vec::new();
    let separators = |letter: char| letter.is_whitespace() || matches!(letter, ',' | ';');
    for text in
        values.iter().flat_map(|value| value.split(separators)).filter(|text| !text.is_empty())
    {
        let refused = |why: &str| Err(format!("{name} {text:?} is refused: {why}"));
        let Ok(address) = text.parse::<IpAddr>() else {
            return refused("it is not an IP address; write 192.0.2.1 or 2001:db8::1");
        };
        if !may_be_endpoint(address) {
            return refused("it is not the address of a host");
        }
        if address.is_ipv4() != endpoint.is_ipv4() {
            return refused(&format!(
                "it is of the other family than the endpoint {endpoint}, which all tunnels of a host have"
            ));
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn group6(text: &str) -> Result<Ipv6Addr, String> {
    let prefix = text
        .parse()
        .ok()
        .filter(|prefix: &Ipv6Addr| prefix.is_multicast() && prefix.to_bits() as u32 == 0);
    prefix.ok_or_else(|| {
        format!("group6 {text:?} is refused: it is an IPv6 multicast address that ends with four zero bytes, as ff05::")
    })
}

/// Returns the options that have no effect without an uplink.
fn useless(options: &Options) -> impl Iterator<Item = &'static str> {
    let given = [
        (!options.peers.is_empty(), "peer"),
        (!options.gateways.is_empty(), "gateway"),
        (options.strict_peers, "strict-peers"),
        (options.nic_mtu.is_some(), "nic-mtu"),
        (options.uplink_queues.is_some(), "uplink-queues"),
        (options.underlay_vlan.is_some(), "underlay-vlan"),
    ];
    given
        .into_iter()
        .filter(|(given, _)| *given)
        .map(|(_, name)| name)
        .chain(over_ipv6_only(options))
}

/// Returns the options that have no effect over IPv4.
fn over_ipv6_only(options: &Options) -> impl Iterator<Item = &'static str> + use<> {
    let given = [(options.group6.is_some(), "group6"), (options.udp6_checksum, "udp6-checksum")];
    given.into_iter().filter(|(given, _)| *given).map(|(_, name)| name)
}

fn without_uplink(name: &str) -> String {
    format!(
        "{name} is refused: with --uplink none there are no other hosts; remove it, or the uplink none"
    )
}

fn of_ipv6(name: &str) -> String {
    format!(
        "{name} is refused: it is about tunnels over IPv6, and the endpoint is an IPv4 address; remove it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(words: &str) -> Result<Option<TunnelSpec>, Vec<String>> {
        let options = Options::try_parse_from(format!("b {words}").split_whitespace()).unwrap();
        let (ip, prefix) = endpoint(options.ip.as_deref().unwrap()).unwrap();
        tunnel(&options, ip, prefix)
    }

    fn spec(words: &str) -> TunnelSpec {
        parse(words).unwrap().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_least_is_a_tap_and_groups() {
        let expected = TunnelSpec {
            endpoint: ip("192.0.2.1"),
            prefix: None,
            uplink: UplinkSpec::Tap { name: None },
            peers: Vec::new(),
            gateways: Vec::new(),
            group6: "ff00::".parse().unwrap(),
            udp6_checksum: false,
            strict_peers: false,
            vlan: 0,
            mtu: None,
        };
        assert_eq!(parse("-i 192.0.2.1"), Ok(Some(expected)));
    }

    #[test]
    fn each_option_has_its_place() {
        let expected = TunnelSpec {
            endpoint: ip("2001:db8::1"),
            prefix: Some(64),
            uplink: UplinkSpec::Xdp { interface: "eth0".into(), queues: Some(4) },
            peers: vec![ip("2001:db8::2"), ip("2001:db8:1::3"), ip("2001:db8::4")],
            gateways: vec![ip("fe80::1")],
            group6: "ff05::".parse().unwrap(),
            udp6_checksum: true,
            strict_peers: true,
            vlan: 4094,
            mtu: None,
        };
        // One peer twice, and the host's own address: all hosts may have the same list.
        let words = "-i 2001:db8::1/64 --uplink eth0 --uplink-queues 4 --peer 2001:db8::2;2001:db8:1::3, --peer 2001:db8::1 \
                     --peer 2001:db8::4 --peer 2001:db8::2 --gateway fe80::1 --group6 ff05:: --udp6-checksum --strict-peers --underlay-vlan 4094";
        assert_eq!(parse(words), Ok(Some(expected)));
    }

    #[test]
    fn uplinks_are_told_by_their_first_word() {
        let xdp = |name: &str| UplinkSpec::Xdp { interface: name.into(), queues: None };
        let port = |path: &str, role| UplinkSpec::VhostUser { path: path.into(), role };
        for (text, expected) in [
            ("tap", UplinkSpec::Tap { name: None }),
            ("tap:up0", UplinkSpec::Tap { name: Some("up0".into()) }),
            ("vhost-user:/run/up", port("/run/up", Role::Server)),
            ("vhost-user-client:/run/a:b", port("/run/a:b", Role::Client)),
            ("eth0.42", xdp("eth0.42")),
            ("if:tap", xdp("tap")),
            ("if:none", xdp("none")),
            ("abcdefghijklmno", xdp("abcdefghijklmno")),
        ] {
            assert_eq!(spec(&format!("-i ::2 --uplink {text}")).uplink, expected, "{text}");
        }
        // Any address will do where there are no tunnels.
        assert_eq!(parse("-i ::1 --uplink none"), Ok(None));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (words, expected) in [
            (
                "-i ::2 --uplink=",
                "uplink \"\" is refused: \"\" is no name of a network interface: ",
            ),
            (
                "-i ::2 --uplink abcdefghijklmnop",
                "uplink \"abcdefghijklmnop\" is refused: \"abcdefghijklmnop\" is no name",
            ),
            ("-i ::2 --uplink ..", "uplink \"..\" is refused: \"..\" is no name"),
            ("-i ::2 --uplink a/b", "uplink \"a/b\" is refused: \"a/b\" is no name"),
            ("-i ::2 --uplink tap:", "uplink \"tap:\" is refused: \"\" is no name"),
            ("-i ::2 --uplink tap:up%d", "uplink \"tap:up%d\" is refused: \"up%d\" is no name"),
            (
                "-i ::2 --uplink dpdk:0",
                "uplink \"dpdk:0\" is refused: there is no dpdk:, only if:, tap:, ",
            ),
            (
                "-i ::2 --uplink vhost-user:up",
                "uplink \"vhost-user:up\" is refused: socket path \"up\" is refused: it must start",
            ),
            (
                "-i ::2 --uplink eth0 --uplink-queues 0",
                "uplink-queues \"0\" is refused: it is a number from 1 to 1024",
            ),
            (
                "-i ::2 --uplink tap --uplink-queues 2",
                "uplink-queues is refused: only an interface has several",
            ),
            (
                "-i 10.0.0.1 --peer 10.0.0.256",
                "peer \"10.0.0.256\" is refused: it is not an IP address",
            ),
            (
                "-i 10.0.0.1 --peer ::2",
                "peer \"::2\" is refused: it is of the other family than the endpoint 10.0.0.1",
            ),
            (
                "-i ::2 --peer ff02::1",
                "peer \"ff02::1\" is refused: it is not the address of a host",
            ),
            (
                "-i ::2 --peer ::ffff:10.0.0.1",
                "peer \"::ffff:10.0.0.1\" is refused: it is not the address of a host",
            ),
            (
                "-i 10.0.0.1 --gateway 255.255.255.255",
                "gateway \"255.255.255.255\" is refused: it is not the address of a host",
            ),
            (
                "-i 10.0.0.1 --gateway fe80::1",
                "gateway \"fe80::1\" is refused: it is of the other family",
            ),
            (
                "-i ::2 --group6 2001:db8::",
                "group6 \"2001:db8::\" is refused: it is an IPv6 multicast address that ends with four",
            ),
            ("-i ::2 --group6 ff05::1:0", "group6 \"ff05::1:0\" is refused"),
            ("-i ::1", "ip ::1 is refused: no other host can send to it"),
            ("-i 230.0.0.1", "ip 230.0.0.1 is refused: no other host can send to it"),
            ("-i 10.0.0.1 --group6 ff05::", "group6 is refused: it is about tunnels over IPv6"),
            (
                "-i 10.0.0.1 --udp6-checksum",
                "udp6-checksum is refused: it is about tunnels over IPv6",
            ),
        ] {
            let problems = parse(words).expect_err(words);
            assert!(
                problems.len() == 1 && problems[0].starts_with(expected),
                "{words}: {problems:?}"
            );
        }
    }

    #[test]
    fn without_an_uplink_nothing_about_one_is_ignored() {
        let words = "-i ::2 --uplink none --peer ::3 --gateway ::4 --strict-peers -m 9000 --uplink-queues 1 --group6 ff05:: --udp6-checksum";
        let names = [
            "peer",
            "gateway",
            "strict-peers",
            "nic-mtu",
            "uplink-queues",
            "group6",
            "udp6-checksum",
        ];
        assert_eq!(parse(words), Err(names.map(without_uplink).into()));
    }

    #[test]
    fn the_endpoint_may_have_a_prefix() {
        assert_eq!(endpoint("10.0.0.1"), Ok((ip("10.0.0.1"), None)));
        assert_eq!(endpoint("10.0.0.1/32"), Ok((ip("10.0.0.1"), Some(32))));
        assert_eq!(endpoint("::2/128"), Ok((ip("::2"), Some(128))));
        for (text, expected) in [
            ("10.0.0", "ip \"10.0.0\" is refused: it is not an IP address"),
            ("x/24", "ip \"x/24\" is refused: it is not an IP address"),
            (
                "10.0.0.1/33",
                "ip \"10.0.0.1/33\" is refused: the length of its prefix is a number from 1 to 32",
            ),
            (
                "10.0.0.1/0",
                "ip \"10.0.0.1/0\" is refused: the length of its prefix is a number from 1 to 32",
            ),
            ("::2/", "ip \"::2/\" is refused: the length of its prefix is a number from 1 to 128"),
        ] {
            assert!(endpoint(text).unwrap_err().starts_with(expected), "{text}");
        }
    }

    #[test]
    fn a_vlan_has_bounds() {
        assert_eq!(
            (underlay_vlan("0"), underlay_vlan("1"), underlay_vlan("4094")),
            (Ok(0), Ok(1), Ok(4094))
        );
        for text in ["4095", "-1", "", "65536", "x"] {
            let expected = format!(
                "underlay-vlan {text:?} is refused: it is a number from 1 to 4094, or 0 for none"
            );
            assert_eq!(underlay_vlan(text), Err(expected));
        }
    }

    #[test]
    fn an_mtu_has_bounds() {
        assert_eq!(nic_mtu("max"), Ok((NicMtu::Max, None)));
        assert_eq!(nic_mtu("1280"), Ok((NicMtu::Bytes(1280), None)));
        assert_eq!(nic_mtu("65521"), Ok((NicMtu::Bytes(65_521), None)));
        for (text, bytes) in [("1279", 1280), ("65522", 65_521), ("4294967297", 65_521)] {
            let (mtu, notice) = nic_mtu(text).unwrap();
            assert_eq!((mtu, notice.is_some()), (NicMtu::Bytes(bytes), true));
        }
        for text in ["-1", "+1400", "", "Max"] {
            let expected = format!(
                "nic-mtu {text:?} is refused: it is max, or a number of bytes from 1280 to 65521"
            );
            assert_eq!(nic_mtu(text), Err(expected));
        }
    }
}
