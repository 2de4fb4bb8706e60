//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// A virtual switch: one daemon per host, a vhost-user socket per virtual NIC.
///
/// Runs in the foreground until SIGINT, SIGQUIT or SIGTERM. Values of the configuration file
/// override the command line. SIGHUP has it read the file again: the log level, the address of the
/// metrics, peers, time-outs, --tcp-pickup and --fdb-ageing change at once, anything else at the
/// next start. If something is wrong, nothing changes.
#[derive(Clone, Debug, Parser, PartialEq, Eq)]
#[command(
    name = "butterflyd",
    disable_version_flag = true,
    args_override_self = true,
    after_help = "Exit status: 0 stopped as asked, 1 cannot start or go on, 2 wrong options or configuration."
)]
pub struct Options {
    /// Configuration file; its values override the command line
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the VXLAN endpoint, IPv4 or IPv6 (mandatory), and the length of its network's
    /// prefix: hosts in that are reached directly, others by --gateway
    #[arg(short, long, value_name = "IP[/LEN]")]
    pub ip: Option<String>,
    /// Existing directory for the vhost-user sockets (mandatory)
    #[arg(short, long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,
    /// Directory of what outlasts the daemon: what is declared, and with it the connections of
    /// machines, which notice neither a crash nor a restart. Made if it is not there. [default:
    /// nothing outlasts it]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Name of this daemon where a host has several: what it keeps outside of its memory carries it
    /// [default: the first endpoint of its API, and its socket folder]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// ZeroMQ endpoint of the API: tcp://ADDRESS:PORT, where ADDRESS is one of this host's, * for
    /// all of IPv4, [::] for all, or the name of an interface, and PORT * is any that is free;
    /// ipc://PATH, ipc://@NAME; may be repeated [default: tcp://0.0.0.0:9999]
    #[allow(rustdoc::broken_intra_doc_links)] // an address, as the help prints it
    #[arg(short, long = "endpoint", value_name = "ENDPOINT", action = clap::ArgAction::Append)]
    pub endpoints: Vec<String>,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics; port 0: any that is free, the log
    /// tells which [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<String>,
    /// none, error, warning, info or debug [default: error]
    #[arg(short, long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Threads that move packets, 1 to 32; each serves some of the machines' queues, by load
    /// [default: one for each core of --worker-cores, else 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<String>,
    /// Cores of these threads, one for each, as 2,4-6; a thread beyond the last is not pinned
    /// [default: the core of --graph-cpu-core for the first]
    #[arg(long, value_name = "LIST")]
    pub worker_cores: Option<String>,
    /// Core of the first packet thread, where --worker-cores does not tell; one that does not exist
    /// leaves it unpinned [default: 0]
    #[arg(short = 'u', long, value_name = "ID")]
    pub graph_cpu_core: Option<String>,
    /// Never let packet threads sleep
    #[arg(long)]
    pub poll: bool,
    /// Forget a learnt address after so many silent seconds [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub fdb_ageing: Option<String>,
    /// Sessions the table can hold, 128 bytes each [default: 1000000]
    #[arg(long, value_name = "N")]
    pub sessions: Option<String>,
    /// How much of the table one network may take; a vnic of it opens half of that, and receives
    /// as many; 100: no bound [default: 25]
    #[arg(long, value_name = "PERCENT")]
    pub session_share: Option<String>,
    /// New sessions that a vnic, or the other hosts of a network, may open per second, half of them
    /// at once [default: 200000]
    #[arg(long, value_name = "N")]
    pub session_rate: Option<String>,
    /// Pick up TCP connections in their middle for so long after the start or the attachment of a
    /// machine, 0: never [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub tcp_pickup: Option<String>,
    /// Seconds without a frame after which a session ends; may be repeated. `butterfly sessions
    /// --timeouts` shows the names
    #[arg(long = "timeout", value_name = "NAME=SECONDS", action = clap::ArgAction::Append)]
    pub timeouts: Vec<String>,
    /// The way to other hosts: an interface, a TAP device of our own, a vhost-user port on a
    /// socket of ours or on somebody else's. An interface called tap or none is if:NAME
    /// [default: tap]
    #[arg(long, value_name = "IFNAME|tap[:NAME]|vhost-user:PATH|vhost-user-client:PATH|none")]
    pub uplink: Option<String>,
    /// Serve so many receive queues of the interface [default: all]
    #[arg(long, value_name = "N")]
    pub uplink_queues: Option<String>,
    /// The VLAN of the network between hosts, 1 to 4094: frames to other hosts are tagged with it,
    /// and those of other VLANs are not heard. 0 is none, and then those of any VLAN are not
    /// [default: 0]
    #[arg(long, value_name = "ID")]
    pub underlay_vlan: Option<String>,
    /// Tunnel endpoint of another host, for all networks; may be repeated. Networks with one join
    /// no multicast group
    #[arg(long = "peer", value_name = "IP", action = clap::ArgAction::Append)]
    pub peers: Vec<String>,
    /// Router to hosts beyond the endpoint's prefix, where the host's own routes do not tell; may
    /// be repeated
    #[arg(long = "gateway", value_name = "IP", action = clap::ArgAction::Append)]
    pub gateways: Vec<String>,
    /// Prefix of multicast groups of networks over IPv6; the VNI is in the last four bytes
    /// [default: ff00::]
    #[arg(long, value_name = "PREFIX")]
    pub group6: Option<String>,
    /// Compute UDP checksums over IPv6, which are zero otherwise
    #[arg(long)]
    pub udp6_checksum: bool,
    /// Hear VXLAN from named peers only, each in the networks that it was named for
    #[arg(long)]
    pub strict_peers: bool,
    /// Largest IP packet on the uplink, in bytes; an interface that has less is raised to it, max:
    /// as far as it goes
    #[arg(short = 'm', long, value_name = "N|max", allow_hyphen_values = true)]
    pub nic_mtu: Option<String>,
    /// Record packets: those of the uplink in /tmp/butterfly-PID-main.pcap, those of each vnic
    /// that does not say otherwise in /tmp/butterfly-PID-ID.pcap
    #[arg(short = 't', long)]
    pub packet_trace: bool,
    /// File with the key of the API: requests that are not encrypted with it are refused. `openssl
    /// rand -base64 32` makes one [default: none, the API is in clear text]
    #[arg(short = 'k', long, value_name = "PATH")]
    pub key: Option<PathBuf>,
    /// Refuse requests in the original's encryption, which anybody who saw them can send again
    #[arg(long)]
    pub no_legacy_encryption: bool,
    /// Log to standard error only
    #[arg(long)]
    pub no_syslog: bool,
    /// Print the version and exit
    #[arg(short = 'V', long)]
    pub version: bool,

    /// Have the running holder of a state directory (--state-dir) become this program, and exit.
    /// Its process and all connections stay. With the package: systemctl reload butterfly-holder
    #[arg(long, value_name = "DIR")]
    pub upgrade_holder: Option<PathBuf>,

    /// Be the writer of the store: the daemon starts itself so
    #[arg(long, value_name = "DIR", hide = true)]
    pub write_store: Option<PathBuf>,
    /// Print the manual page, or completions for bash, zsh or fish
    #[arg(long, value_name = "WHAT", hide = true, value_parser = butterfly_manual::KINDS)]
    pub generate: Option<String>,

    /// Arguments for DPDK, as the original takes them. There are no ports of DPDK, but
    /// --vdev=eth_pcap0,iface=X and --vdev=net_af_packet0,iface=X are served as --uplink X is;
    /// --dpdk-help tells more [default: -c1 -n1 --socket-mem 64 --no-shconf --huge-unlink]
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub dpdk_args: Option<String>,
    /// Print what --dpdk-args understands and exit
    #[arg(long)]
    pub dpdk_help: bool,
    /// Which of several devices in --dpdk-args is the way to other hosts [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub dpdk_port: Option<String>,
    /// Offer no checksum and segmentation offloads to machines
    #[arg(long)]
    pub no_offload: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn long_and_short_forms_are_the_same() {
        let parse = |words: &str| Options::try_parse_from(words.split(' ')).unwrap();
        let long = parse(
            "b --config c --ip i --socket-dir s --endpoint e --log-level l --graph-cpu-core 1 --packet-trace --nic-mtu max --key k",
        );
        assert_eq!(long, parse("b -c c -i i -s s -e e -l l -u 1 -t -m max -k k"));
        assert_eq!(long.config, Some("c".into()));
        assert_eq!(
            parse("b --dpdk-args=-c1 --dpdk-port=0"),
            parse("b --dpdk-args -c1 --dpdk-port 0")
        );
        assert_eq!(
            parse("b -l info -l debug").log_level.as_deref(),
            Some("debug"),
            "the last one holds"
        );
        assert_eq!(
            parse("b --timeout a=1 --timeout=b=2 --timeout a=3").timeouts,
            ["a=1", "b=2", "a=3"],
            "all of them hold"
        );
        assert_eq!(parse("b -e a --endpoint b -e=c").endpoints, ["a", "b", "c"]);
        assert_eq!(parse("b --peer ::1 --peer=::2 --gateway ::3").peers, ["::1", "::2"]);
    }

    #[test]
    fn unknown_options_are_refused() {
        for words in ["b --unknown", "b word", "b -i", "b --ip"] {
            assert!(Options::try_parse_from(words.split(' ')).is_err(), "{words}");
        }
    }
}
