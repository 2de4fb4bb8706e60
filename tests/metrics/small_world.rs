//! A host that moves most metrics: an uplink with a peer behind it, vnics with and without filter
//! and, later, every kind of trouble.

use std::{net::Ipv4Addr, process::Command, time::Duration};

use butterfly_guest_driver::{GuestConfig, Refill, Vm, VmConfig};
use butterfly_packet::{
    build::{self, Ip},
    mac::Mac,
};
use butterfly_tests::{
    Daemon, Host, Nic, PATIENCE, Station, eventually,
    frames::{mac, numbered},
    groups,
    metrics::Scrape,
    station::{features, machine},
};
use butterfly_vhost::net::NetHeader;

const VNI: u32 = 1;
const ENDPOINT: [u8; 4] = [42, 0, 0, 1];
const PEER: [u8; 4] = [42, 0, 0, 2];
/// Size of the session table: the smallest that the daemon accepts.
const SESSIONS: u16 = 64;
/// More than a hundred per second over five minutes, the range of the rates.
const MANY: u64 = 40_000;

pub struct SmallWorld {
    pub host: Host,
    a: Station,
    b: Station,
    filtered: Station,
    /// The other end of the uplink.
    wire: Option<Vm>,
    /// The tunnel endpoint's MAC address on the uplink.
    endpoint: Mac,
}

fn config() -> VmConfig {
    let mut config = machine(features::MODERN, 1600);
    config.guest = GuestConfig { ..config.guest }.rings(1024);
    config
}

fn ip(from: u8, to: u8) -> Ip {
    build::ethernet(mac(from.into()), mac(to.into())).ipv4([10, 0, 0, from], [10, 0, 0, to])
}

/// Waits until the switch has taken everything that these stations sent.
fn worked_off(stations: &mut [&mut Station]) {
    for station in stations {
        assert!(station.vm.guest.drain(PATIENCE).unwrap(), "{} is not served", station.nic.id);
    }
}

/// Returns the frames that wait, or else one that arrives within 50 ms. A dropped frame causes no
/// event to wait for.
fn arriving(station: &mut Station) -> Vec<Vec<u8>> {
    let arrived = station.vm.guest.recv_wait(Duration::from_millis(50)).unwrap();
    let mut frames: Vec<_> = arrived.into_iter().map(|(_, frame)| frame).collect();
    frames.append(&mut station.pending());
    frames
}

/// Number of sessions that the daemon refused because their table was full.
fn refused(daemon: &Daemon) -> u64 {
    Scrape::of(daemon).count("butterfly_drops_total{reason=\"sessions-full\"}")
}

impl SmallWorld {
    pub fn new() -> SmallWorld {
        let room = tempfile::tempdir().unwrap();
        let socket = room.path().join("wire");
        let uplink = format!("vhost-user:{}", socket.display());
        let words = [
            "--metrics",
            "127.0.0.1:0",
            "--uplink",
            &uplink,
            "--sessions",
            &SESSIONS.to_string(),
            "--session-share",
            "100",
        ];
        let host = Host::of(Daemon::start_with(&[], &words.map(str::to_owned)));
        let wire = Vm::connect(&socket, &config(), PATIENCE).unwrap();
        let a = host.station(&Nic::bypass("a", mac(1), VNI), &config());
        let b = host.station(&Nic::bypass("b", mac(2), VNI), &config());
        let filtered = Nic::filtered("filtered", mac(3), VNI).ips(&["10.0.0.3"]).groups(&["web"]);
        let filtered = host.station(&filtered, &config());
        let daemon = host.daemon();
        daemon.ask(groups::group_set("web", &["in udp 53 0.0.0.0/0"], &[])).unwrap();
        let tunnels: serde_json::Value =
            serde_json::from_str(&daemon.client_ok(&["tunnels", "--json"])).unwrap();
        let octets: Vec<u8> = tunnels["mac"]
            .as_str()
            .unwrap()
            .split(':')
            .map(|octet| u8::from_str_radix(octet, 16).unwrap())
            .collect();
        let endpoint = Mac(octets.try_into().unwrap());
        SmallWorld { host, a, b, filtered, wire: Some(wire), endpoint }
    }

    /// Makes normal traffic of every kind.
    pub fn talk(&mut self) {
        for number in 0..200 {
            self.a.send(&numbered(mac(1), mac(2), 1, number, 200));
            self.b.send(&numbered(mac(2), mac(1), 2, number, 200));
            self.a.pending();
            self.b.pending();
        }
        // A flood, a learnt address, a session that a rule allows, and one that no rule allows.
        self.a.send(&numbered(mac(9), Mac::BROADCAST, 1, 1, 60));
        self.a.send(&ip(1, 3).udp(1000, 53, b"?"));
        self.a.send(&ip(1, 3).udp(1000, 54, b"?"));
        self.host.settle(&mut [&mut self.a, &mut self.b]);
        assert!(!self.filtered.pending().is_empty());
        self.filtered.send(&ip(3, 1).udp(53, 1000, b"!"));
        // Frames from another host and to it.
        let inner = numbered(mac(20), mac(1), 1, 1, 200);
        let outer = |inner: &[u8]| {
            build::ethernet(mac(99), self.endpoint).ipv4(PEER, ENDPOINT).vxlan(4789, VNI, inner)
        };
        let not_ours =
            build::ethernet(mac(99), self.endpoint).ipv4(PEER, [42, 0, 0, 77]).udp(1, 2, b"");
        let nowhere = numbered(mac(20), mac(77), 1, 1, 200);
        let wire = self.wire.as_mut().unwrap();
        for frame in [outer(&inner), not_ours, outer(&nowhere)] {
            wire.guest.send_wait(&frame, NetHeader::default(), PATIENCE).unwrap();
        }
        assert!(wire.guest.drain(PATIENCE).unwrap());
        eventually("what the other host sent arrives", || self.a.pending().contains(&inner));
        self.a.send(&numbered(mac(1), mac(20), 1, 1, 200));
        worked_off(&mut [&mut self.a, &mut self.filtered]);
        let daemon = self.host.daemon();
        eventually("the other host is spoken to", || {
            let sent = format!(
                "butterfly_tunnel_peer_out_packets_total{{peer=\"{}\"}}",
                Ipv4Addr::from(PEER)
            );
            Scrape::of(daemon).get(&sent) == Some(1.0)
        });
        eventually("sessions are counted", || {
            Scrape::of(daemon).count("butterfly_session_table_used") > 0
        });
    }

    /// Makes all kinds of trouble at once. `seen` waits until Prometheus has scraped the counts so
    /// far, as a rate ignores the value of a series' first sample.
    pub fn trouble(&mut self, seen: impl Fn()) {
        // A peer without a route, then an uplink without another end.
        self.host.daemon().client_ok(&["peer", "add", "42.0.0.99"]);
        self.wire.take().unwrap().detach().unwrap();
        (0..10).for_each(|number| self.a.send(&numbered(mac(1), mac(20), 1, number, 60)));
        // An external by an interface that somebody turned off.
        let interface = format!("ex{}", std::process::id() % 100_000);
        let uplink = format!("tap:{interface}");
        let external = ["external", "add", "out", "--uplink", &uplink];
        let place = ["--address", "192.0.2.7/24", "--gateway", "192.0.2.1"];
        self.host.daemon().client_ok(&[&external[..], &place[..]].concat());
        let off = Command::new("ip").args(["link", "set", "dev", &interface, "down"]).status();
        assert!(off.unwrap().success());
        // Requests that are refused.
        for _ in 0..40 {
            assert!(!self.host.daemon().client(&["nic", "show", "nobody"]).status.success());
        }
        // A receiver that takes no frame.
        self.b.vm.guest.set_refill(Refill::Manually);
        let path = self.host.add(&Nic::bypass("flapping", mac(60), VNI)).unwrap();
        for (ring_full, spoofed) in [(3_000, 1), (MANY, 100)] {
            for number in 0..ring_full {
                self.a.send(&numbered(mac(1), mac(2), 1, number, 60));
            }
            // Source addresses of others, from a vnic with a filter.
            for number in 0..spoofed {
                self.filtered.send(&numbered(mac(50), mac(1), 1, number, 60));
            }
            worked_off(&mut [&mut self.a, &mut self.filtered]);
            seen();
        }
        // More sessions than the table has room for: those that were answered stay.
        let mut ports = 2000..2000 + 8 * SESSIONS;
        while refused(self.host.daemon()) < 8 {
            let port = ports.next().expect("a full table refuses sessions");
            self.a.send(&ip(1, 3).udp(port, 53, b"?"));
            for frame in arriving(&mut self.filtered) {
                let asked = u16::from_be_bytes([frame[34], frame[35]]);
                self.filtered.send(&ip(3, 1).udp(53, asked, b"!"));
            }
        }
        // A guest that attaches and leaves again and again.
        for _ in 0..6 {
            Vm::connect(&path, &config(), PATIENCE).unwrap().detach().unwrap();
        }
        worked_off(&mut [&mut self.a, &mut self.filtered]);
    }

    /// Stops the daemon in order.
    pub fn end(mut self) {
        self.host.daemon().signal("TERM");
        assert!(self.host.daemon_mut().wait_for_end().success());
    }
}
