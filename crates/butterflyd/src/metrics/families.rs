//! Metrics to be scraped: each is declared once, here, and docs/metrics.md is made of that.
//!
//! Names and units follow Prometheus' conventions. `in` counts frames that the switch received from
//! a VM, `out` frames that it delivered to it, as everywhere else. Labels have values from small
//! sets, or name objects that an operator declared. Of peers, which strangers can make up, there
//! are at most [`MOST_PEERS`].

/// Peers with numbers of their own: those that were named, then others, by their addresses.
pub const MOST_PEERS: usize = 256;

/// Way in which a number moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Up, until the daemon is restarted or what it is about is gone.
    Counter,
    /// Up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// Declaration of a metric.
pub struct Declaration {
    /// Its name.
    pub name: &'static str,
    /// Way in which it moves.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Meaning of the metric.
    pub help: &'static str,
}

macro_rules! families {
    ($($(#[doc = $help:literal])+ $variant:ident = $kind:ident $name:literal [$($label:literal),*];)+) => {
        /// A metric, which may have several series.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Family { $($(#[doc = $help])+ $variant),+ }

        /// Declarations of all metrics, in the order of [`Family`].
        pub const FAMILIES: &[Declaration] = &[$(Declaration {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: concat!($($help),+).trim_ascii_start(),
        }),+];
    };
}

families! {
    /// The version that runs; always 1.
    BuildInfo = Gauge "butterfly_build_info" ["version", "commit"];
    /// Time at which the daemon started, in seconds since the epoch.
    StartTime = Gauge "butterfly_start_time_seconds" [];
    /// Processes of this service that went on for one that ended. Absent if nothing outlasts a
    /// process.
    Restarts = Counter "butterfly_restarts_total" [];
    /// Time for which traffic stood still before this process went on for another one, in seconds.
    StoodStill = Gauge "butterfly_stood_still_seconds" [];
    /// Most frames of which a flood, a copy for a mirror or a packet of the uplink may have come
    /// twice when this process went on for another one. Unicast between vnics never does. A death
    /// costs either that, or at most 64 frames.
    MayComeAgain = Gauge "butterfly_may_come_again_frames" [];
    /// 1 if the daemon started with less than usual, as three starts in a row came to nothing: the
    /// store is not read, and changes are refused. Else 0.
    Degraded = Gauge "butterfly_degraded" [];
    /// 1 if changes are refused, as the store does not keep them or the daemon is degraded; else 0.
    ChangesRefused = Gauge "butterfly_changes_refused" [];
    /// 1 if the last upgrade failed and the program before it goes on, until another one begins;
    /// else 0.
    UpgradeFailed = Gauge "butterfly_upgrade_failed" [];
    /// 1 if the store has an older layout than the program knows, so that the release before can go
    /// on: `butterfly upgrade --commit` ends that. Else 0.
    UpgradeUncommitted = Gauge "butterfly_upgrade_uncommitted" [];
    /// Externals by which nothing goes: those of which `butterfly_external_up` is 0.
    ExternalsDown = Gauge "butterfly_externals_down" [];
    /// Endpoints of the API that the configuration names and the daemon does not listen on. Metrics
    /// that are not served cannot say so here; `butterfly show` does.
    NotListening = Gauge "butterfly_not_listening" [];
    /// 1 if the process that holds the connections of VMs for the next daemon is gone: nothing
    /// happens until this daemon ends, too. Else 0.
    HolderGone = Gauge "butterfly_holder_gone" [];

    /// Frames received from the VM, faulty ones included.
    NicInPackets = Counter "butterfly_nic_in_packets_total" ["nic", "vni"];
    /// Bytes of frames received from the VM, with Ethernet headers.
    NicInBytes = Counter "butterfly_nic_in_bytes_total" ["nic", "vni"];
    /// Frames delivered to the VM.
    NicOutPackets = Counter "butterfly_nic_out_packets_total" ["nic", "vni"];
    /// Bytes of frames delivered to the VM, with Ethernet headers.
    NicOutBytes = Counter "butterfly_nic_out_bytes_total" ["nic", "vni"];
    /// Frames dropped and charged to this vnic, by reason; a reason appears when it first happens.
    NicDrops = Counter "butterfly_nic_drops_total" ["nic", "vni", "reason"];
    /// Frames of the VM that went to several receivers.
    NicFlooded = Counter "butterfly_nic_flooded_packets_total" ["nic", "vni"];
    /// Frames of the VM whose source address was not learnt because a bound was reached.
    NicLearnRefused = Counter "butterfly_nic_learn_refused_packets_total" ["nic", "vni"];
    /// Frames that said for the VM where it is now, as after a live migration.
    NicAnnounced = Counter "butterfly_nic_announced_packets_total" ["nic", "vni"];
    /// Frames of other hosts that were passed on to the host for which the VM left.
    NicPassedOn = Counter "butterfly_nic_passed_on_packets_total" ["nic", "vni"];
    /// Times that the vnic's transmit ring had to wait, as the VM sent more than its limit allows.
    NicLimitWaits = Counter "butterfly_nic_limit_waits_total" ["nic", "vni"];
    /// Addresses learnt behind the vnic.
    NicLearnt = Gauge "butterfly_nic_learnt_addresses" ["nic", "vni"];
    /// Sessions that the vnic is an end of.
    NicSessions = Gauge "butterfly_nic_sessions" ["nic", "vni"];
    /// 1 if a VM is attached, else 0.
    NicAttached = Gauge "butterfly_nic_attached" ["nic", "vni"];
    /// Pairs of queues by which the VM receives.
    NicQueues = Gauge "butterfly_nic_queues" ["nic", "vni"];
    /// 1 if the vnic's rings are held, as workers ended the daemon while they touched them, else 0.
    NicHeld = Gauge "butterfly_nic_held" ["nic", "vni"];
    /// Times that a VM attached.
    NicAttachments = Counter "butterfly_nic_attachments_total" ["nic", "vni"];

    /// Nics of the network on this host.
    NetworkNics = Gauge "butterfly_network_nics" ["vni"];
    /// Sessions in the network.
    NetworkSessions = Gauge "butterfly_network_sessions" ["vni"];
    /// Addresses learnt in the network.
    NetworkLearnt = Gauge "butterfly_network_learnt_addresses" ["vni"];
    /// Frames of the network that came from other hosts. With an uplink only, as the next three.
    NetworkInPackets = Counter "butterfly_network_tunnel_in_packets_total" ["vni"];
    /// Bytes of frames that came from other hosts, without outer headers.
    NetworkInBytes = Counter "butterfly_network_tunnel_in_bytes_total" ["vni"];
    /// Frames of the network that went to other hosts.
    NetworkOutPackets = Counter "butterfly_network_tunnel_out_packets_total" ["vni"];
    /// Bytes of frames that went to other hosts, without outer headers.
    NetworkOutBytes = Counter "butterfly_network_tunnel_out_bytes_total" ["vni"];
    /// Frames dropped and charged to the network, by reason; a reason appears when it first
    /// happens.
    NetworkDrops = Counter "butterfly_network_drops_total" ["vni", "reason"];

    /// 1 if an external is in effect and its interface is up, else 0. What passes by its wire, and
    /// is dropped there, is in the metrics of NICs, as NIC `wire/ID`. Of one by another host
    /// (`--via`) it says nothing of the interface: that host's does.
    ExternalUp = Gauge "butterfly_external_up" ["external"];
    /// Frames that the wire of an external lost, by reason: the kernel dropped them, or they found
    /// no room. A reason appears when it first happens.
    ExternalLost = Counter "butterfly_external_lost_packets_total" ["external", "reason"];
    /// Routers that are declared.
    Routers = Gauge "butterfly_routers" [];
    /// Routes of all routers, without those to their networks and by their externals.
    Routes = Gauge "butterfly_routes" [];
    /// Translations that are declared, by kind: snat, floating or forward.
    Translations = Gauge "butterfly_translations" ["kind"];
    /// Ports of an address that machines share, in use, by protocol: of 64512 each. Of ICMP they
    /// are identifiers of echoes.
    SharedPorts = Gauge "butterfly_shared_ports_in_use" ["external", "address", "protocol"];

    /// Frames dropped on this host, by reason, those of vnics that are gone included. Every reason
    /// there is.
    Drops = Counter "butterfly_drops_total" ["reason"];
    /// Changes of vnics, groups and peers that workers were given.
    PolicyUpdates = Counter "butterfly_policy_updates_total" ["kind"];

    /// Cycles of the time stamp counter in rounds that found frames. Divided by packets: what a
    /// packet costs.
    WorkerBusyCycles = Counter "butterfly_worker_busy_cycles_total" ["worker"];
    /// Seconds in rounds that found frames: the rate is the share of a processor that traffic
    /// takes.
    WorkerBusySeconds = Counter "butterfly_worker_busy_seconds_total" ["worker"];
    /// Frames taken from VMs and from the uplink.
    WorkerPackets = Counter "butterfly_worker_packets_total" ["worker"];
    /// Batches in which frames were taken.
    WorkerBatches = Counter "butterfly_worker_batches_total" ["worker"];
    /// Frames in a batch.
    WorkerBatchPackets = Histogram "butterfly_worker_batch_packets" ["worker"];
    /// Times the worker slept.
    WorkerSleeps = Counter "butterfly_worker_sleeps_total" ["worker"];
    /// Rounds that found nothing.
    WorkerIdlePolls = Counter "butterfly_worker_idle_polls_total" ["worker"];
    /// Rings that are polled now.
    WorkerActiveRings = Gauge "butterfly_worker_active_rings" ["worker"];
    /// Transmit rings, and queues of the uplink, that it serves, busy or not.
    WorkerRings = Gauge "butterfly_worker_rings" ["worker"];
    /// Transmit rings that came from other workers, as those were busier.
    WorkerMoves = Counter "butterfly_worker_moves_total" ["worker"];
    /// Seconds of the longest turn, one batch of one ring, that all others waited for. What the
    /// host took the processor away for is part of it.
    WorkerLongestTurn = Gauge "butterfly_worker_longest_turn_seconds" ["worker"];

    /// Sessions by protocol and state, counted every two seconds, or once in 100 ms for each 50,000
    /// of them if that is longer. Those that were cut let nothing pass and are only remembered.
    Sessions = Gauge "butterfly_sessions" ["protocol", "state"];
    /// Records of the session table in use, those that have ended and were not removed yet
    /// included.
    SessionTableUsed = Gauge "butterfly_session_table_used" [];
    /// Records of the session table.
    SessionTableCapacity = Gauge "butterfly_session_table_capacity" [];
    /// Most sessions that one network may have; a vnic opens half of that at most, and receives as
    /// many.
    SessionShareLimit = Gauge "butterfly_session_share_limit" [];

    /// Kind, interface and mode of the uplink; always 1. With an uplink only, as everything else
    /// about it and about peers.
    UplinkInfo = Gauge "butterfly_uplink_info" ["kind", "interface", "mode"];
    /// 1 if frames can leave; 0 if the interface is down, without a carrier or gone, or no program
    /// is at the other end of a vhost-user port.
    UplinkUp = Gauge "butterfly_uplink_up" [];
    /// Largest IP packet on the uplink.
    UplinkMtu = Gauge "butterfly_uplink_mtu_bytes" [];
    /// Frames received on the uplink.
    UplinkInPackets = Counter "butterfly_uplink_in_packets_total" [];
    /// Bytes received on the uplink, with outer headers.
    UplinkInBytes = Counter "butterfly_uplink_in_bytes_total" [];
    /// Frames sent on the uplink.
    UplinkOutPackets = Counter "butterfly_uplink_out_packets_total" [];
    /// Bytes sent on the uplink, without outer headers where they are of networks.
    UplinkOutBytes = Counter "butterfly_uplink_out_bytes_total" [];
    /// Frames on the uplink that were dropped and are no network's, by reason; a reason appears
    /// when it first happens.
    UplinkDrops = Counter "butterfly_uplink_drops_total" ["reason"];
    /// Counts of the port and the kernel, under the names of "butterfly uplink"; none for a
    /// vhost-user port.
    UplinkPortEvents = Counter "butterfly_uplink_port_events_total" ["event"];
    /// Frames for the endpoint itself by their fate, under the names of "butterfly tunnels".
    TunnelControlEvents = Counter "butterfly_tunnel_control_events_total" ["event"];
    /// Other hosts that are known: named by the operator, or learnt from what they sent.
    TunnelPeers = Gauge "butterfly_tunnel_peers" ["origin"];
    /// Other hosts that have no numbers of their own below, since there are too many: 256 have,
    /// named ones first.
    TunnelPeersNotShown = Gauge "butterfly_tunnel_peers_not_shown" [];
    /// 1 if the link address of the next hop to the other host is known, else 0.
    PeerNeighbourKnown = Gauge "butterfly_tunnel_peer_neighbour_known" ["peer"];
    /// Seconds since something came from the other host; nothing if nothing ever did.
    PeerIdle = Gauge "butterfly_tunnel_peer_idle_seconds" ["peer"];
    /// Frames from the other host.
    PeerInPackets = Counter "butterfly_tunnel_peer_in_packets_total" ["peer"];
    /// Bytes of frames from the other host, without outer headers.
    PeerInBytes = Counter "butterfly_tunnel_peer_in_bytes_total" ["peer"];
    /// Frames sent to the other host.
    PeerOutPackets = Counter "butterfly_tunnel_peer_out_packets_total" ["peer"];
    /// Bytes of frames sent to the other host, without outer headers.
    PeerOutBytes = Counter "butterfly_tunnel_peer_out_bytes_total" ["peer"];
    /// Frames for the other host that were dropped on their way out.
    PeerDrops = Counter "butterfly_tunnel_peer_drops_total" ["peer"];

    /// Requests of the API, by the name of their field in the protocol (none: it asked for nothing
    /// that is known; undecodable: it was no envelope) and by outcome: success or failure.
    ApiRequests = Counter "butterfly_api_requests_total" ["request", "outcome"];
    /// Seconds that requests of the API took.
    ApiRequestSeconds = Counter "butterfly_api_request_seconds_total" ["request"];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, fmt::Write, path::Path};

    #[test]
    fn names_and_units_follow_the_conventions() {
        let names: HashSet<_> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for Declaration { name, kind, labels, help } in FAMILIES {
            assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
            assert!(
                name.starts_with("butterfly_")
                    && name.bytes().all(|letter| matches!(letter, b'a'..=b'z' | b'_')),
                "{name}"
            );
            assert!(
                help.ends_with('.') && !help.contains('\n') && !help.contains("  "),
                "{help:?}"
            );
            assert!(
                labels.iter().all(|label| label.bytes().all(|letter| letter.is_ascii_lowercase()))
            );
        }
    }

    /// The table of docs/metrics.md.
    fn table() -> String {
        let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
        for Declaration { name, kind, labels, help } in FAMILIES {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let kind = format!("{kind:?}").to_lowercase();
            writeln!(table, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
        }
        table
    }

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        const HOW: &str = "UPDATE_DOCS=1 cargo test -p butterflyd the_table_in_the_documentation";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let begin = text.find("| metric |").expect("docs/metrics.md has the table");
        let end = begin + text[begin..].find("\n\n").expect("something follows the table") + 1;
        let right = format!("{}{}{}", &text[..begin], table(), &text[end..]);
        if text != right && std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &right).unwrap();
            return;
        }
        assert!(
            text == right,
            "the table in docs/metrics.md is out of date; write it anew with: {HOW}"
        );
    }
}
