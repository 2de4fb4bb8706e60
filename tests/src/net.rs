//! A few vnics of one network, with and without filter: which vnic gets a frame, or why none does.

use std::{collections::BTreeMap, net::Ipv6Addr};

use butterfly_api::proto::Request;
use butterfly_guest_driver::GuestConfig;
use butterfly_packet::{
    build::{self, Ip},
    mac::Mac,
};

use crate::{
    daemon::Daemon,
    eventually,
    frames::mac,
    groups,
    host::{Host, Kind, Nic},
    station::{Station, features, machine},
};

/// The network of all vnics.
pub const VNI: u32 = 1;

/// The `n`th vnic, filtered by these groups (separated by blanks). Its addresses are [`ip4`] and
/// [`ip6`].
pub fn filtered(id: &str, n: u8, groups: &str) -> Nic {
    let groups: Vec<&str> = groups.split_whitespace().collect();
    Nic::filtered(id, mac(n.into()), VNI).ips(&[&ip4(n), &ip6(n)]).groups(&groups)
}

/// The `n`th vnic, without a filter.
pub fn open(id: &str, n: u8) -> Nic {
    Nic { bypass: true, ..filtered(id, n, "") }
}

/// 10.0.0.n
pub fn ip4(n: u8) -> String {
    format!("10.0.0.{n}")
}

/// fd00::n
pub fn ip6(n: u8) -> String {
    addr6(n).to_string()
}

/// As [`ip6`].
pub fn addr6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into())
}

/// The link-local address the `n`th vnic makes of its MAC (RFC 4291, appendix A).
pub fn link_local(n: u8) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac(n.into()).0;
    let [a, c, d, e] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    Ipv6Addr::new(0xfe80, 0, 0, 0, a, c, d, e)
}

/// An IPv4 packet from vnic `from` to vnic `to`.
pub fn v4(from: u8, to: u8) -> Ip {
    build::ethernet(mac(from.into()), mac(to.into())).ipv4([10, 0, 0, from], [10, 0, 0, to])
}

/// An IPv6 packet from vnic `from` to vnic `to`.
pub fn v6(from: u8, to: u8) -> Ip {
    build::ethernet(mac(from.into()), mac(to.into())).ipv6(addr6(from), addr6(to))
}

/// A TCP segment with these ports, flags and numbers.
pub fn segment(
    ports: (u16, u16),
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
) -> build::Tcp<'static> {
    build::Tcp {
        sequence,
        acknowledgement,
        window: 1000,
        ..build::Tcp::new(ports.0, ports.1, flags)
    }
}

/// A daemon, its vnics, and a guest on each.
pub struct Net {
    /// The host.
    pub host: Host,
    /// The stations by the ids of their vnics.
    pub stations: BTreeMap<String, Station>,
    before: BTreeMap<String, u64>,
    /// Guests that came back: the switch announces them, at moments of its own.
    returned: Vec<Mac>,
}

impl Net {
    /// Starts a daemon with these vnics. Returns None if the tests run without a daemon.
    pub fn new(nics: &[Nic]) -> Option<Net> {
        Net::with(&["--tcp-pickup", "0"], nics)
    }

    /// As [`Self::new`], with these options of the daemon. `new` turns the pick-up of TCP
    /// connections off, as its tests begin each connection with a SYN.
    pub fn with(options: &[&str], nics: &[Nic]) -> Option<Net> {
        if Kind::wanted() != Kind::Daemon {
            println!("skipped: it needs a daemon");
            return None;
        }
        let options: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
        let mut net = Net::of(Host::of(Daemon::start_with(&[], &options)));
        nics.iter().for_each(|nic| net.attach(nic));
        Some(net)
    }

    /// Returns a net without vnics on a host that runs already.
    pub fn of(host: Host) -> Net {
        Net { before: host.counters(), host, stations: BTreeMap::new(), returned: Vec::new() }
    }

    /// Declares one more vnic and attaches a guest with rings of 1,024 descriptors.
    #[track_caller]
    pub fn attach(&mut self, nic: &Nic) {
        let mut config = machine(features::MODERN, 1600);
        config.guest = GuestConfig { ..config.guest }.rings(1024);
        self.stations.insert(nic.id.clone(), self.host.station(nic, &config));
        self.before = self.host.counters();
    }

    /// The guest of a vnic dies and comes back with a new front end. Its announcements are no
    /// frames that anybody expects.
    #[track_caller]
    pub fn comes_back(&mut self, id: &str) {
        let gone = self.stations.remove(id).unwrap_or_else(|| panic!("there is no vnic {id}"));
        let mut station = gone.crash().back();
        station.vm.connection.sync().unwrap();
        self.returned.push(station.mac());
        self.stations.insert(id.to_owned(), station);
    }

    /// Makes a request that must succeed.
    #[track_caller]
    pub fn ask(&self, request: Request) {
        if let Err(why) = self.host.daemon().ask(request) {
            panic!("{why}");
        }
    }

    /// Makes a group, or gives it this content.
    #[track_caller]
    pub fn group(&self, group: &str, rules: &[&str], members: &[&str]) {
        self.ask(groups::group_set(group, rules, members));
    }

    /// Adds a rule.
    #[track_caller]
    pub fn rule_add(&self, group: &str, text: &str) {
        self.ask(groups::rule_add(group, text));
    }

    /// Removes a rule.
    #[track_caller]
    pub fn rule_del(&self, group: &str, text: &str) {
        self.ask(groups::rule_del(group, text));
    }

    /// Adds a member.
    #[track_caller]
    pub fn member_add(&self, group: &str, member: &str) {
        self.ask(groups::member_add(group, member));
    }

    /// Removes a member.
    #[track_caller]
    pub fn member_del(&self, group: &str, member: &str) {
        self.ask(groups::member_del(group, member));
    }

    /// The guest on a vnic.
    #[track_caller]
    pub fn station(&mut self, id: &str) -> &mut Station {
        self.stations.get_mut(id).unwrap_or_else(|| panic!("there is no vnic {id}"))
    }

    /// Sends a frame. Returns the ids of its receivers, in order, and then every counted drop, as
    /// `b.ingress-denied`.
    #[track_caller]
    pub fn send(&mut self, from: &str, frame: &[u8]) -> String {
        self.station(from).send(frame);
        let received = self.received(from);
        for (id, frames) in &received {
            assert!(
                matches!(&frames[..], [got] if got == frame),
                "{id} got it changed, or more than once"
            );
        }
        let drops = self.drops();
        received.into_keys().chain(drops).collect::<Vec<_>>().join(" ")
    }

    /// Returns every drop that was counted since the last look.
    fn drops(&mut self) -> Vec<String> {
        let now = self.host.counters();
        let count =
            |counters: &BTreeMap<String, u64>, name: &str| counters.get(name).copied().unwrap_or(0);
        let drops = now
            .iter()
            .filter(|(name, n)| name.contains(".drop.") && **n != count(&self.before, name));
        let drops: Vec<String> = drops.map(|(name, _)| name.replace("drop.", "")).collect();
        self.before = now;
        drops
    }

    /// Waits until the switch has processed all frames of a sender. Returns the frames that each
    /// station received.
    #[track_caller]
    pub fn received(&mut self, from: &str) -> BTreeMap<String, Vec<Vec<u8>>> {
        let sender =
            self.stations.get_mut(from).unwrap_or_else(|| panic!("there is no vnic {from}"));
        self.host.settle(&mut [sender]);
        let announces = |frame: &[u8]| {
            let is_from = |mac: &Mac| frame.get(6..12) == Some(&mac.0[..]);
            frame.first().is_some_and(|byte| byte & 1 == 1) && self.returned.iter().any(is_from)
        };
        let pending = self.stations.iter_mut().map(|(id, station)| {
            let frames = station.pending().into_iter().filter(|frame| !announces(frame));
            (id.clone(), frames.collect::<Vec<_>>())
        });
        pending.filter(|(_, frames)| !frames.is_empty()).collect()
    }

    /// Sends a frame and asserts its outcome, as [`Self::send`] returns it. "" means neither a
    /// receiver nor a drop.
    #[track_caller]
    pub fn expect(&mut self, from: &str, frame: &[u8], outcome: &str) {
        let mut got = self.send(from, frame);
        if got.is_empty() && outcome.ends_with("fragment-orphan") {
            eventually("the fragment has waited for its first one", || {
                got = self.drops().join(" ");
                !got.is_empty()
            });
        }
        assert_eq!(got, outcome);
    }

    /// Sends a frame from `a` to `b` and one back. Asserts that both arrive.
    #[track_caller]
    pub fn exchange(&mut self, a: &str, there: &[u8], b: &str, back: &[u8]) {
        self.expect(a, there, b);
        self.expect(b, back, a);
    }
}
