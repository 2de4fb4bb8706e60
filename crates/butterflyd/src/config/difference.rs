//! Two configurations of one daemon: what may change while it runs, and what waits.

use crate::{
    config::{
        Config, Workers,
        timeouts::{self, Timeout},
    },
    log::Level,
};
use butterfly_datapath::{Timeouts, TunnelSpec};
use std::net::{IpAddr, SocketAddr};

/// The way from one configuration to another. Empty if they are the same.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub log_level: Option<Level>,
    /// Another address of the metrics, or none.
    pub metrics: Option<Option<SocketAddr>>,
    pub fdb_ageing: Option<u32>,
    /// All time-outs and the time for picking up, if one of them is another.
    pub times: Option<(Timeouts, u32)>,
    /// Those of the time-outs that are others, with their seconds.
    pub timeouts: Vec<(&'static str, u32)>,
    pub tcp_pickup: Option<u32>,
    pub workers: Option<Workers>,
    /// Peers that are named, and were not.
    pub named: Vec<IpAddr>,
    /// Peers that were named, and are not.
    pub unnamed: Vec<IpAddr>,
    /// Settings that take effect at the next start, by their names in the configuration file.
    pub later: Vec<&'static str>,
}

impl Config {
    /// Returns what is another in `new`.
    pub fn difference(&self, new: &Self) -> Difference {
        let changed = |setting: &Timeout| {
            let seconds = setting.of(&new.timeouts);
            (seconds != setting.of(&self.timeouts)).then_some((setting.name, seconds))
        };
        let timeouts: Vec<_> = timeouts::ALL.iter().filter_map(changed).collect();
        let tcp_pickup = other(&self.tcp_pickup, &new.tcp_pickup);
        let mut later = self.later(new);
        let (mut named, mut unnamed) = self.peers(new);
        // They were checked for an endpoint that is not in force.
        if self.ip != new.ip && !(named.is_empty() && unnamed.is_empty()) {
            later.push("peer");
            named.clear();
            unnamed.clear();
        }
        Difference {
            log_level: other(&self.log_level, &new.log_level),
            metrics: other(&self.metrics, &new.metrics),
            fdb_ageing: other(&self.fdb_ageing, &new.fdb_ageing),
            times: (!timeouts.is_empty() || tcp_pickup.is_some())
                .then_some((new.timeouts, new.tcp_pickup)),
            timeouts,
            tcp_pickup,
            workers: other(&self.workers, &new.workers),
            named,
            unnamed,
            later,
        }
    }

    /// Takes over from `new` what is carried out of `difference`. Other settings stay as they are.
    pub fn carried_out(&mut self, difference: &Difference, new: Self) {
        self.log_level = new.log_level;
        self.metrics = new.metrics;
        self.fdb_ageing = new.fdb_ageing;
        self.timeouts = new.timeouts;
        self.tcp_pickup = new.tcp_pickup;
        self.workers = new.workers;
        self.notices = new.notices;
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.peers.retain(|peer| !difference.unnamed.contains(peer));
            tunnel.peers.extend(&difference.named);
        }
    }

    /// Returns the peers that only `new` names, and those that only this one does.
    fn peers(&self, new: &Self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let (Some(old), Some(new)) = (&self.tunnel, &new.tunnel) else { return Default::default() };
        let only = |one: &TunnelSpec, other: &TunnelSpec| {
            let mut only = one.peers.clone();
            only.retain(|peer| !other.peers.contains(peer));
            only
        };
        (only(new, old), only(old, new))
    }

    /// Returns the settings that are others and wait for the next start.
    fn later(&self, new: &Self) -> Vec<&'static str> {
        // Named one by one: a new setting does not compile before it is decided what it does.
        let Config {
            ip,
            socket_dir,
            state_dir,
            name,
            endpoints,
            metrics: _,
            encryption,
            log_level: _,
            workers: _,
            poll,
            fdb_ageing: _,
            sessions,
            session_share,
            session_rate,
            tcp_pickup: _,
            timeouts: _,
            tunnel,
            nic_mtu,
            dpdk,
            notices: _,
            no_offload,
            packet_trace,
            syslog,
        } = self;
        let same_encryption = match (encryption, &new.encryption) {
            (Some(old), Some(new)) => old.acts_like(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        let mut changed = vec![
            ("ip", *ip != new.ip),
            ("socket-dir", *socket_dir != new.socket_dir),
            ("state-dir", *state_dir != new.state_dir),
            ("name", *name != new.name),
            ("endpoint", *endpoints != new.endpoints),
            ("encryption", !same_encryption),
            ("poll", *poll != new.poll),
            ("sessions", *sessions != new.sessions),
            ("session-share", *session_share != new.session_share),
            ("session-rate", *session_rate != new.session_rate),
            ("nic-mtu", *nic_mtu != new.nic_mtu),
            ("dpdk-args", *dpdk != new.dpdk),
            ("no-offload", *no_offload != new.no_offload),
            ("packet-trace", *packet_trace != new.packet_trace),
            ("no-syslog", *syslog != new.syslog),
        ];
        match (tunnel, &new.tunnel) {
            (Some(old), Some(new)) => changed.extend(of_tunnel(old, new)),
            (old, new) => changed.push(("uplink", old.is_some() != new.is_some())),
        }
        changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

/// The settings of an uplink that wait for the next start, and whether they are others.
fn of_tunnel(old: &TunnelSpec, new: &TunnelSpec) -> [(&'static str, bool); 7] {
    // The MTU is the one of nic-mtu.
    let TunnelSpec {
        endpoint,
        prefix,
        uplink,
        peers: _,
        gateways,
        group6,
        udp6_checksum,
        strict_peers,
        vlan,
        mtu: _,
    } = old;
    [
        // Of another address the address was told.
        ("ip", *prefix != new.prefix && *endpoint == new.endpoint),
        ("uplink", *uplink != new.uplink),
        ("gateway", *gateways != new.gateways),
        ("group6", *group6 != new.group6),
        ("udp6-checksum", *udp6_checksum != new.udp6_checksum),
        ("strict-peers", *strict_peers != new.strict_peers),
        ("underlay-vlan", *vlan != new.vlan),
    ]
}

/// Returns the new value, if it is another.
fn other<T: Clone + PartialEq>(old: &T, new: &T) -> Option<T> {
    (old != new).then(|| new.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::Options;
    use clap::Parser;

    fn config(words: &str) -> Config {
        let directory = std::env::temp_dir();
        let words = format!("butterflyd -s {} {words}", directory.display());
        Config::load(Options::parse_from(words.split_whitespace())).unwrap()
    }

    #[test]
    fn the_same_configuration_changes_nothing() {
        let words = "-i 192.0.2.1 --uplink eth0 --peer 192.0.2.2 --timeout other=7";
        assert_eq!(config(words).difference(&config(words)), Difference::default());
    }

    #[test]
    fn what_may_change_at_once_is_told_apart() {
        let uplink = "-i 192.0.2.1 --uplink eth0";
        let mut old = config(&format!("{uplink} --peer 192.0.2.2,192.0.2.3"));
        let new = config(&format!(
            "{uplink} --peer 192.0.2.4,192.0.2.3 --workers 2 -l debug --metrics 127.0.0.1:0 --fdb-ageing 10 --tcp-pickup 9 --timeout other=7 \
             --timeout tcp-new=8"
        ));
        let difference = old.difference(&new);
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        assert_eq!(
            difference,
            Difference {
                log_level: Some(Level::Debug),
                metrics: Some(Some("127.0.0.1:0".parse().unwrap())),
                fdb_ageing: Some(10),
                times: Some((Timeouts { other: 7, tcp_new: 8, ..Timeouts::default() }, 9)),
                timeouts: vec![("tcp-new", 8), ("other", 7)],
                tcp_pickup: Some(9),
                workers: Some(Workers { count: 2, cores: vec![0] }),
                named: vec![address("192.0.2.4")],
                unnamed: vec![address("192.0.2.2")],
                later: vec![],
            }
        );
        old.carried_out(&difference, new.clone());
        assert_eq!(old.difference(&new), Difference::default());
        let off = new.difference(&config(&format!("{uplink} --peer 192.0.2.3")));
        assert_eq!((off.metrics, off.tcp_pickup), (Some(None), Some(120)));
    }

    /// A setting that waits goes on waiting until the next start, and is told each time.
    #[test]
    fn everything_else_waits() {
        let base = "-i 192.0.2.1/24 --uplink eth0";
        for (words, later) in [
            ("-i 192.0.2.9/24 --uplink eth0", "ip"),
            ("-i 192.0.2.1/25 --uplink eth0", "ip"),
            ("-i 192.0.2.1/24 --uplink eth1", "uplink"),
            ("-i 192.0.2.1/24 --uplink none", "uplink"),
            ("-i 192.0.2.1/24 --uplink eth0 --uplink-queues 1", "uplink"),
            ("-i 192.0.2.1/24 --uplink eth0 --gateway 192.0.2.254", "gateway"),
            ("-i 192.0.2.1/24 --uplink eth0 --strict-peers", "strict-peers"),
            ("-i 192.0.2.1/24 --uplink eth0 --underlay-vlan 5", "underlay-vlan"),
            ("-i 192.0.2.1/24 --uplink eth0 -m 1600", "nic-mtu"),
            ("-i 192.0.2.1/24 --uplink eth0 --name x", "name"),
            ("-i 192.0.2.1/24 --uplink eth0 -e ipc://x", "endpoint"),
            ("-i 192.0.2.1/24 --uplink eth0 --poll", "poll"),
            ("-i 192.0.2.1/24 --uplink eth0 --sessions 1000", "sessions"),
            ("-i 192.0.2.1/24 --uplink eth0 --session-share 9", "session-share"),
            ("-i 192.0.2.1/24 --uplink eth0 --no-offload", "no-offload"),
        ] {
            let (mut old, new) = (config(base), config(words));
            let difference = old.difference(&new);
            assert_eq!(difference, Difference { later: vec![later], ..Default::default() });
            old.carried_out(&difference, new.clone());
            assert_eq!(old.difference(&new), difference, "{words}");
        }
    }

    #[test]
    fn another_endpoint_keeps_the_peers() {
        let old = config("-i 192.0.2.1 --uplink eth0 --peer 192.0.2.2");
        let new = config("-i 2001:db8::1 --uplink eth0 --peer 2001:db8::2");
        let difference = old.difference(&new);
        assert_eq!(difference.later, ["ip", "peer"]);
        assert!(difference.named.is_empty() && difference.unnamed.is_empty());
    }

    /// A key is another one if its bytes are, whatever its file is called.
    #[test]
    fn another_key_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |byte: &str| {
            std::fs::write(file.path(), format!("{}=", byte.repeat(43))).unwrap();
            config(&format!("-i ::1 --uplink none -k {}", file.path().display()))
        };
        let (one, same, other) = (of("A"), of("A"), of("E"));
        assert_eq!(one.difference(&same), Difference::default());
        assert_eq!(one.difference(&other).later, ["encryption"]);
        assert_eq!(one.difference(&config("-i ::1 --uplink none")).later, ["encryption"]);
    }
}
