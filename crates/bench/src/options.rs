//! The command line.

use std::{path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, ensure};
use butterfly_guest_driver::FastConfig;
use butterfly_packet::{Mac, ethernet, ipv4, tcp};
use butterfly_vhost::net::{Features, NetHeader};
use clap::{ArgGroup, Parser, ValueEnum};

use crate::{
    flows::{CLIENT_PORTS, Choice, MAX_FLOWS},
    pcap::Capture,
    rng::Rng,
    vms::is_client,
};

const EXAMPLES: &str = "\
Examples:
  # How many 64-byte frames a second go from A to B?
  butterfly-bench --a /run/a.sock --b /run/b.sock --pin 0 --watch-pid $(pidof butterflyd)
  # The same for 100,000 connections, in random order, at 3 million a second
  butterfly-bench --a a.sock --b b.sock --flows 100000 --rate 3000000
  # Every byte verified, both ways, frames of all sizes, guests without mergeable buffers
  butterfly-bench --a a.sock --b b.sock --verify --size 60-9000 --dir bidi --features event-idx,indirect
  # The switch connects to us
  butterfly-bench --a a.sock --b b.sock --serve
  # One-way latency, frame by frame; round trips; latency under a load
  butterfly-bench --a a.sock --b b.sock --dir lat
  butterfly-bench --a a.sock --b b.sock --dir ping --svg ping.svg
  butterfly-bench --a a.sock --b b.sock --latency --rate 1000000
  # From a VM to a network interface, and back
  butterfly-bench --a a.sock --b dev:eth1 --dir bidi --verify
  # Ten pairs
  butterfly-bench --a $(echo a{0..9} | tr ' ' ,) --b $(echo b{0..9} | tr ' ' ,)
  # What a capture holds, ten times as fast, and every byte verified
  butterfly-bench --a a.sock --b b.sock --pcap trace.pcap --speed 10 --verify
  # By a router that has machines share an address, 1,000 ports of A to 100 of B each
  butterfly-bench --a a.sock --b b.sock --router b2:f0:0c:53:fd:ac --flows 100000 --client-ports 1000 --learn 0
  # TCP connections, opened and closed, 200,000 a second
  butterfly-bench --a a.sock --b b.sock --tcp --connections --rate 200000
  # The highest rate without loss, and the one with 0.1 % of it (RFC 2544)
  butterfly-bench --a a.sock --b b.sock --ndr
  butterfly-bench --a a.sock --b b.sock --pdr 0.1 --size imix --flows 10000 --order zipf

VM A is 02:00:00:00:00:01 with 10.0.0.1, VM B is 02:00:00:00:00:02 with 10.0.0.2; the next pair has the next two, and so on. Flow i goes from A's port 1024 + i mod 32768
to B's port 5001 + i / 32768; with --client-ports N in place of 32768. Nobody answers ARP.

Exit status: 0 done; 1 could not run; 2 wrong options; 3 frames were corrupted, duplicated or reordered (--verify), or more
were lost than --max-loss allows.";

/// Loads, verifies and measures a vhost-user switch with two simulated VMs on one core.
#[derive(Parser, Clone, Debug)]
#[command(version, after_help = EXAMPLES, max_term_width = 120)]
#[command(group(ArgGroup::new("l4").args(["udp", "tcp"])))]
pub struct Options {
    /// vhost-user socket of VM A, or "dev:" and a network interface to send and receive through;
    /// several, separated by commas, for as many pairs
    #[arg(
        long,
        value_name = "PATH|dev:NAME",
        value_delimiter = ',',
        required_unless_present = "made"
    )]
    pub a: Vec<End>,
    /// The same for VM B; as many as of A
    #[arg(
        long,
        value_name = "PATH|dev:NAME",
        value_delimiter = ',',
        required_unless_present = "made"
    )]
    pub b: Vec<End>,
    /// Make frames in memory, without a switch: the most that a load can be on this processor
    #[arg(long, conflicts_with_all = ["a", "b", "serve"])]
    pub made: bool,
    /// Listen on the sockets; the switch connects
    #[arg(long)]
    pub serve: bool,
    /// Seconds to wait for the switch, and for the first frame to come through
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,

    /// Frame sizes without FCS, 60 to 9000: a size, a list with weights (64:7,594:4,1518:1), a
    /// range (60-9000), or "imix"
    #[arg(long, default_value = "64")]
    pub size: Sizes,
    /// Play the packets of a capture from A to B, in their time, again and again; with --rate at
    /// that rate. They get the MAC addresses of A and B
    #[arg(long, value_name = "FILE", conflicts_with_all = ["latency", "new_sessions", "ndr", "pdr"])]
    pub pcap: Option<Capture>,
    /// Play a capture so many times as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "pcap", value_parser = factor)]
    pub speed: f64,
    /// Number of flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FLOWS)))]
    pub flows: u32,
    /// Ports of A, which flows take in turn; behind a router that translates, each has one outside
    #[arg(long, value_name = "N", default_value_t = CLIENT_PORTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENT_PORTS)), conflicts_with_all = ["connections", "pcap"])]
    pub client_ports: u32,
    /// Order of flows: shuffled (once, then again and again), sequential, random, zipf or
    /// zipf:EXPONENT (few flows have most frames)
    #[arg(long, value_name = "ORDER", default_value = "shuffled", conflicts_with = "new_sessions")]
    pub order: Choice,
    /// Every frame opens a new 5-tuple (with --tcp: is a SYN)
    #[arg(long, conflicts_with = "flows")]
    pub new_sessions: bool,
    /// Seed of the order of flows and sizes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// UDP (the default)
    #[arg(long)]
    pub udp: bool,
    /// TCP, with a handshake per flow before
    #[arg(long)]
    pub tcp: bool,

    /// MAC address of a router between A and B, which may translate A's address (then with --learn
    /// 0): frames go to it, and arrive from it. A is 10.0.0.1 (gateway 10.0.0.0/31), B 10.0.0.2
    /// (gateway 10.0.0.3/31)
    #[arg(long, value_name = "MAC", conflicts_with_all = ["verify", "pcap", "connections", "segments"])]
    pub router: Option<Mac>,

    /// Put so many TCP segments of --size into one frame, which the switch or the receiver cuts
    /// (TSO). Each counts as a frame. Their payload is written once, and stays in its buffer
    #[arg(long, value_name = "N", requires = "tcp", conflicts_with_all = ["new_sessions", "connections", "verify", "latency", "pcap", "rate", "ndr", "pdr"], value_parser = clap::value_parser!(u16).range(2..=64))]
    pub segments: Option<u16>,
    /// Open and close TCP connections from A to B (SYN, SYN+ACK, ACK, FIN, FIN, ACK); --rate is
    /// connections per second
    #[arg(long, requires = "tcp", conflicts_with_all = ["flows", "new_sessions", "verify", "latency", "pcap", "ndr", "pdr", "order"])]
    pub connections: bool,
    /// Connections that may be open at a time
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "connections", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub window: u32,

    /// Direction
    #[arg(long, value_enum, default_value = "uni")]
    pub dir: Dir,
    /// Frames per second, direction and pair; flat out without
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Measured seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub secs: u64,
    /// Seconds of the same before
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub warm: u64,
    /// Measure the time on the way of each frame under this load
    #[arg(long, conflicts_with = "verify")]
    pub latency: bool,
    /// Search for the highest rate at which nothing is lost, in trials of --secs (RFC 2544); --rate
    /// is the highest that is tried
    #[arg(long, conflicts_with_all = ["pdr", "new_sessions"])]
    pub ndr: bool,
    /// The same for the highest rate at which at most so many percent are lost
    #[arg(long, value_name = "PERCENT", conflicts_with = "new_sessions", value_parser = percent)]
    pub pdr: Option<f64>,
    /// Part of the rate, in percent, to which a search is exact
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    pub precision: f64,
    /// Pace of the learning part in steps per second; 0 leaves it out
    #[arg(long, value_name = "PPS", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub learn: u64,
    /// Show progress and recent values in one line on standard error that is drawn anew each
    /// second, instead of a line for each second
    #[arg(long)]
    pub live: bool,
    /// Print READY before measuring and wait for a line on standard input
    #[arg(long)]
    pub sync: bool,

    /// Number every frame, fill it with a pattern, verify every byte and checksum; count corrupt,
    /// lost, reordered, duplicated
    #[arg(long)]
    pub verify: bool,
    /// Fail if more frames are lost (needs --verify)
    #[arg(long, value_name = "N", requires = "verify")]
    pub max_loss: Option<u64>,

    /// Ring features of both guests, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mergeable")]
    pub features: Vec<Feature>,
    /// Entries of each ring, a power of two
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = queue_size)]
    pub queue_size: u16,
    /// Bytes of a receive buffer [default: 2048 if mergeable, else what the largest frame needs]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub rx_buffer: Option<u32>,
    /// Header and frame in two descriptors
    #[arg(long)]
    pub header_apart: bool,
    /// Guest memory in 2 MB huge pages
    #[arg(long)]
    pub huge: bool,
    /// Guest-physical addresses equal our own, as with DPDK's virtio-user
    #[arg(long)]
    pub identity: bool,
    /// Frames per send
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub burst: u16,

    /// Run on this core alone
    #[arg(long, value_name = "CORE")]
    pub pin: Option<usize>,
    /// Threads of the switch: seconds in which the busiest had less than 98 % of its core do not
    /// count
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    pub watch_tid: Vec<u32>,
    /// Processes whose threads are watched
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub watch_pid: Vec<u32>,
    /// Write the result as JSON; "-" is standard output, and then nothing else goes there
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write each second, or each trial of a search, as a line of comma-separated values
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw the latency, if it is measured, or else the rate over time
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Place at which a VM meets what it loads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// A vhost-user socket.
    Socket(PathBuf),
    /// A network interface.
    Interface(String),
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<End, String> {
        match text.strip_prefix("dev:") {
            Some("") => Err("\"dev:\" wants the name of a network interface".into()),
            Some(name) => Ok(End::Interface(name.to_owned())),
            None if text.is_empty() => Err("want a path, or dev:NAME".into()),
            None => Ok(End::Socket(text.into())),
        }
    }
}

/// Which way frames go.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// A to B
    Uni,
    /// Both ways
    Bidi,
    /// B to A
    Rev,
    /// A to B, one frame at a time
    Lat,
    /// A to B and back, one frame at a time: round trips
    Ping,
}

impl Dir {
    /// True if a VM sends in the measured seconds.
    pub fn sends(self, vm: usize) -> bool {
        match self {
            Dir::Uni | Dir::Lat | Dir::Ping => is_client(vm),
            Dir::Rev => !is_client(vm),
            Dir::Bidi => true,
        }
    }
}

/// A ring feature.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// MRG_RXBUF
    Mergeable,
    /// INDIRECT_DESC: transmit chains are in indirect tables
    Indirect,
    /// EVENT_IDX
    EventIdx,
    /// IN_ORDER
    InOrder,
    /// Without VERSION_1
    Legacy,
    /// ANY_LAYOUT, which a legacy guest needs to put header and frame into one buffer
    AnyLayout,
    /// None of the others
    None,
}

impl Options {
    /// The features the guests' drivers ask for.
    pub fn wanted(&self) -> Features {
        let legacy = self.features.contains(&Feature::Legacy);
        let base = if legacy { Features::NONE } else { Features::VERSION_1 };
        self.features
            .iter()
            .fold(base, |all, feature| match feature {
                Feature::Mergeable => all.with(Features::MRG_RXBUF),
                Feature::Indirect => all.with(Features::INDIRECT_DESC),
                Feature::EventIdx => all.with(Features::EVENT_IDX),
                Feature::InOrder => all.with(Features::IN_ORDER),
                Feature::AnyLayout => all.with(Features::ANY_LAYOUT),
                Feature::Legacy | Feature::None => all,
            })
            .with(if self.segments.is_some() { SEGMENTS } else { Features::NONE })
    }

    /// Returns the ports of A that new sessions have, if these are not all.
    pub fn clients(&self) -> Option<u32> {
        (self.client_ports < CLIENT_PORTS).then_some(self.client_ports)
    }

    /// Returns the bytes of the largest frame that is sent.
    pub fn largest(&self) -> usize {
        let played = self.pcap.as_ref().map_or(0, Capture::largest);
        let size = usize::from(self.size.largest());
        let several = self.segments.map_or(size, |count| {
            TCP_HEADERS + usize::from(count) * size.saturating_sub(TCP_HEADERS)
        });
        played.max(several)
    }

    /// Stays on the processor that was named, if one was.
    pub fn run_on_core(&self) -> anyhow::Result<()> {
        let Some(core) = self.pin else { return Ok(()) };
        let mut set = rustix::thread::CpuSet::new();
        ensure!(core < rustix::thread::CpuSet::MAX_CPU, "there is no core {core}");
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)
            .with_context(|| format!("cannot run on core {core}"))
    }

    /// Returns the ends in the order of VMs: A and B of each pair.
    pub fn ends(&self) -> Vec<&End> {
        self.a.iter().zip(&self.b).flat_map(|(a, b)| [a, b]).collect()
    }

    /// Checks what concerns several options.
    pub fn check(&self) -> anyhow::Result<()> {
        let (a, b) = (self.a.len(), self.b.len());
        ensure!(a == b, "{a} ends of A and {b} of B: each pair has one of both");
        ensure!(a <= MAX_PAIRS, "{a} pairs: at most {MAX_PAIRS} are possible");
        let alone = self.connections || matches!(self.dir, Dir::Lat | Dir::Ping);
        ensure!(
            a <= 1 || !alone,
            "--connections, --dir lat and --dir ping are for one pair, and there are {a}"
        );
        ensure!(a <= 1 || self.router.is_none(), "--router is for one pair, and there are {a}");
        if self.segments.is_some() {
            let largest = self.largest();
            ensure!(
                self.size.is_one() && usize::from(self.size.largest()) > TCP_HEADERS,
                "--segments needs one --size, of more than {TCP_HEADERS} bytes"
            );
            ensure!(
                largest - ethernet::HEADER_LEN <= usize::from(u16::MAX),
                "--segments makes frames of {largest} bytes: an IP packet has no more than 65535"
            );
            ensure!(!alone, "--segments is a load: leave --dir {:?} out", self.dir);
            let socket = |end: &&End| matches!(end, End::Socket(_));
            ensure!(self.ends().iter().all(socket), "--segments is for vhost-user sockets alone");
        }
        Ok(())
    }

    /// Returns the rings of a VM whose end is an interface: nobody has to agree on them.
    pub fn plain(&self, largest: usize) -> FastConfig {
        FastConfig {
            queue_size: self.queue_size,
            max_frame: largest,
            // One byte more than needed, so that a frame that grew is seen to be longer.
            rx_buffer: (largest + NetHeader::LEN + 1).max(2048),
            header_apart: false,
            indirect: false,
        }
    }

    /// Returns the rings of a guest whose largest frame has so many bytes.
    pub fn config(&self, largest: usize) -> FastConfig {
        let mergeable = self.features.contains(&Feature::Mergeable);
        let usual = if mergeable { 2048 } else { (largest + NetHeader::LEN).max(2048) };
        FastConfig {
            queue_size: self.queue_size,
            max_frame: largest,
            rx_buffer: self.rx_buffer.map_or(usual, |bytes| bytes as usize),
            header_apart: self.header_apart,
            indirect: self.features.contains(&Feature::Indirect),
        }
    }

    /// Returns the part of the frames that may be lost, 0 to 1, if a rate is searched for.
    pub fn searched(&self) -> Option<f64> {
        if self.ndr { Some(0.0) } else { self.pdr.map(|percent| percent / 100.0) }
    }

    /// Returns how long to wait for the switch.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.wait)
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.001..=100_000.0).contains(&factor) => Ok(factor),
        _ => Err("want a number from 0.001 to 100000".into()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.001..=50.0).contains(&percent) => Ok(percent),
        _ => Err("want percent from 0.001 to 50".into()),
    }
}

fn queue_size(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(size) if size.is_power_of_two() && (4..=32768).contains(&size) => Ok(size),
        _ => Err("want a power of two from 4 to 32768".into()),
    }
}

/// Frame sizes and how often each is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    text: String,
    weights: Vec<(u16, u32)>,
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Smallest frame: the minimum of Ethernet without FCS.
pub const MIN_SIZE: u16 = 60;
/// Largest frame.
pub const MAX_SIZE: u16 = 9000;
/// Most pairs: each VM has an address of 10.0.0.0/24.
const MAX_PAIRS: usize = 100;
/// Bytes of all headers of a TCP segment.
pub const TCP_HEADERS: usize = ethernet::HEADER_LEN + ipv4::MIN_LEN + tcp::MIN_LEN;
/// Features of guests that send and take large segments.
const SEGMENTS: Features = Features(
    Features::CSUM.0 | Features::GUEST_CSUM.0 | Features::HOST_TSO4.0 | Features::GUEST_TSO4.0,
);
/// Most weight of all sizes together.
const MAX_WEIGHT: u32 = 10_000;

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let size = |text: &str| match text.parse() {
            Ok(size) if (MIN_SIZE..=MAX_SIZE).contains(&size) => Ok(size),
            _ => Err(format!("\"{text}\" is not a size from {MIN_SIZE} to {MAX_SIZE}")),
        };
        let mut sizes = Vec::new();
        let list = if text == "imix" { "64:7,594:4,1518:1" } else { text };
        for item in list.split(',') {
            if let Some((from, to)) = item.split_once('-') {
                let (from, to) = (size(from)?, size(to)?);
                if from > to {
                    return Err(format!("the range {item} ends before it begins"));
                }
                sizes.extend((from..=to).map(|size| (size, 1)));
            } else if let Some((bytes, weight)) = item.split_once(':') {
                let weight = weight.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight));
                sizes.push((
                    size(bytes)?,
                    weight.ok_or(format!("{item}: a weight is 1 to {MAX_WEIGHT}"))?,
                ));
            } else {
                sizes.push((size(item)?, 1));
            }
        }
        match sizes.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>() {
            sum if sum <= MAX_WEIGHT.into() => Ok(Sizes { text: text.to_owned(), weights: sizes }),
            sum => Err(format!("the weights add up to {sum}, more than {MAX_WEIGHT}")),
        }
    }
}

impl Sizes {
    /// The largest.
    pub fn largest(&self) -> u16 {
        self.weights.iter().map(|(size, _)| *size).max().unwrap_or(MAX_SIZE)
    }

    /// Returns whether all frames have one size.
    pub fn is_one(&self) -> bool {
        self.weights.len() == 1
    }

    /// Each size as often as its weight says, in random order.
    pub fn order(&self, seed: u64) -> Vec<u16> {
        let mut all: Vec<u16> =
            self.weights.iter().flat_map(|(size, weight)| vec![*size; *weight as usize]).collect();
        Rng::new(seed).shuffle(&mut all);
        all
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Options::command().debug_assert();
        let help = Options::command().render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("--new-sessions"));
    }

    #[test]
    fn ends() {
        let end = |text: &str| text.parse::<End>();
        assert_eq!(end("/tmp/a").unwrap(), End::Socket("/tmp/a".into()));
        assert_eq!(end("dev:eth0").unwrap(), End::Interface("eth0".into()));
        assert_eq!(end("./dev:eth0").unwrap(), End::Socket("./dev:eth0".into()));
        assert!(end("dev:").is_err() && end("").is_err());
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(
            ["butterfly-bench", "--a", "x", "--b", "y"].into_iter().chain(line.split_whitespace()),
        )
    }

    #[test]
    fn sizes() {
        let order = |text: &str| {
            let mut order = text.parse::<Sizes>().unwrap().order(1);
            order.sort_unstable();
            order
        };
        assert_eq!(order("64"), [64]);
        assert_eq!(order("64:2,1500,60-62"), [60, 61, 62, 64, 64, 1500]);
        assert_eq!(order("imix").len(), 12);
        assert_eq!("60-9000".parse::<Sizes>().unwrap().largest(), 9000);
        for bad in ["", "59", "9001", "64:0", "100-60", "x", "64:10001", "60-9000:2"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn features() {
        assert_eq!(parse("").unwrap().wanted(), Features::VERSION_1.with(Features::MRG_RXBUF));
        assert_eq!(parse("--features legacy").unwrap().wanted(), Features::NONE);
        assert_eq!(parse("--features none").unwrap().wanted(), Features::VERSION_1);
        let all =
            parse("--features mergeable,indirect,event-idx,in-order,any-layout").unwrap().wanted();
        assert!(
            all.has(Features::IN_ORDER.with(Features::EVENT_IDX).with(Features::INDIRECT_DESC))
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "--queue-size 100",
            "--udp --tcp",
            "--flows 0",
            "--max-loss 1",
            "--new-sessions --flows 2",
            "--dir up",
            "--rate 0",
            "--latency --verify",
            "--ndr --pdr 1",
            "--pdr 0",
            "--ndr --new-sessions",
            "--order up",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("--tcp --verify --max-loss 0 --dir bidi --queue-size 1024").is_ok());
    }
}
