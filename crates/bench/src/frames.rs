//! Frames of a VM: their number alone determines them, so that a receiver can build them again.

use butterfly_guest_driver::fast::TxFrame;
use butterfly_packet::{
    build,
    checksum::Sum,
    ethernet,
    ipv4::{self, Ipv4},
    protocol, tcp, udp,
};
use butterfly_vhost::net::NetHeader;

use crate::{
    flows::{Choice, Order, Ports},
    options::{MAX_SIZE, Options, TCP_HEADERS},
    replay::Replay,
    rng,
    vms::{ip, is_client, mac, peer},
};

/// Bytes of a frame that are rewritten for each: one cache line.
const HEAD: usize = 64;
const L4: usize = ethernet::HEADER_LEN + ipv4::MIN_LEN;
/// Bytes of a frame number in the payload.
const NUMBER: usize = 4;

/// Kind of the segments of a TCP run. Every data segment is the same one again: in the window of
/// any tracker, however many are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Data (UDP, or TCP with ACK).
    Data,
    /// SYN.
    Open,
    /// SYN and ACK.
    Accept,
    /// FIN of the end that opened a connection.
    Finish,
    /// FIN of the other end, which acknowledges that one.
    Answer,
    /// The last ACK.
    Last,
}

/// Which part of a run a frame belongs to: its IPv4 identification, so that one that comes late is
/// known for what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Part {
    /// Learning: not counted afterwards.
    Learning = 0x4c52,
    /// Warm-up and measurement. Differs in more than one bit.
    Counted = 0x4d45,
}

/// A frame of one size without ports, number and pattern.
#[derive(Clone, Debug)]
struct Template {
    len: usize,
    head: [u8; HEAD],
    /// Sum of everything the TCP checksum covers, ports still zero.
    sum: Sum,
    /// Words for the other side about a frame of several segments: its checksum is partial.
    offload: Option<NetHeader>,
}

/// Frames that one VM sends.
#[derive(Clone, Debug)]
pub struct Frames {
    vm: usize,
    tcp: bool,
    verify: bool,
    order: Order,
    /// Which template each frame has, again and again, in random order.
    sizes: Vec<u16>,
    size_at: usize,
    templates: Vec<Template>,
    /// Addresses and type with which they arrive.
    arrive: [u8; ethernet::HEADER_LEN],
    /// Payload of frames that are not verified, where it would be in a frame.
    filler: Vec<u8>,
    number: u64,
    /// Time that frames carry in place of a number, if latency is measured.
    pub stamp: Option<u32>,
    /// Packets of a capture, which are sent instead.
    pub replay: Option<Replay>,
    scratch: Vec<u8>,
    /// Segments in each frame, and bytes of payload in one of them.
    segments: u16,
    segment: usize,
}

impl Frames {
    pub fn new(options: &Options, vm: usize, kind: Kind, part: Part) -> Frames {
        let order = options.size.order(options.seed);
        let mut distinct = order.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut filler: Vec<u8> = (0..options.largest()).map(|i| i as u8).collect();
        let several = options.segments.filter(|_| (kind, part) == (Kind::Data, Part::Counted));
        let segments = several.unwrap_or(1);
        let segment = usize::from(options.size.largest()).saturating_sub(TCP_HEADERS).max(1);
        let number = L4 + if options.tcp { tcp::MIN_LEN } else { udp::LEN };
        if options.latency {
            filler[number..number + NUMBER].fill(0);
        }
        let mut templates: Vec<Template> = distinct
            .iter()
            .map(|len| match several {
                Some(_) => {
                    let len = TCP_HEADERS + usize::from(segments) * segment;
                    Template::new(true, vm, (kind, part), len, &filler).of_segments(vm, segment)
                }
                None => Template::new(options.tcp, vm, (kind, part), usize::from(*len), &filler),
            })
            .collect();
        let mut arrive = [0; ethernet::HEADER_LEN];
        if let Some(template) = templates.first() {
            arrive.copy_from_slice(&template.head[..ethernet::HEADER_LEN]);
        }
        if let Some(router) = options.router {
            templates.iter_mut().for_each(|template| template.head[..6].copy_from_slice(&router.0));
            arrive[6..12].copy_from_slice(&router.0);
        }
        let sizes = order
            .iter()
            .map(|len| distinct.binary_search(len).unwrap_or_default() as u16)
            .collect();
        let flows = if options.new_sessions {
            Order::Sessions(0, options.clients())
        } else {
            // Each flow has to be seen in the learning part.
            let choice = if part == Part::Learning { Choice::Shuffled } else { options.order };
            Order::cycle((options.flows, options.client_ports), choice, options.seed)
        };
        Frames {
            vm,
            tcp: options.tcp,
            verify: options.verify,
            order: flows,
            sizes,
            size_at: 0,
            templates,
            arrive,
            scratch: vec![0; filler.len()],
            filler,
            number: 0,
            stamp: options.latency.then_some(0),
            replay: options
                .pcap
                .clone()
                .filter(|_| part == Part::Counted)
                .map(|capture| Replay::new(capture, vm)),
            segments,
            segment,
        }
    }

    /// Returns how many segments each frame has that is sent.
    pub fn segments(&self) -> u64 {
        self.segments.into()
    }

    /// Returns how many segments are in a frame of `len` bytes that arrived.
    #[inline]
    pub fn segments_in(&self, len: usize) -> u64 {
        if self.segments == 1 {
            return 1;
        }
        len.saturating_sub(TCP_HEADERS).div_ceil(self.segment) as u64
    }

    /// Writes the next frame; its length.
    #[inline]
    pub fn fill(&mut self, out: &TxFrame<'_>) -> usize {
        if let Some(replay) = &mut self.replay {
            return replay.fill(out);
        }
        let template = usize::from(self.sizes[self.size_at]);
        self.size_at += 1;
        if self.size_at == self.sizes.len() {
            self.size_at = 0;
        }
        let ports = self.order.next();
        let number = self.number;
        self.number += 1;
        if self.verify {
            let len = self.build(template, ports, number);
            out.write(0, &self.scratch[..len]);
            return len;
        }
        let to = (self.vm, self.tcp, ports);
        self.templates[template].fill(out, to, self.stamp, &self.filler)
    }

    /// The frame with this number, with pattern and checksums.
    pub fn expected(&mut self, number: u64) -> &[u8] {
        let template = usize::from(self.sizes[(number % self.sizes.len() as u64) as usize]);
        let ports = match &self.order {
            Order::Cycle(all, _) => all[(number % all.len() as u64) as usize],
            Order::Sessions(_, clients) => Ports::of_session(number, *clients),
        };
        let len = self.build(template, ports, number);
        &self.scratch[..len]
    }

    /// Builds a verified frame in `scratch`; its length.
    fn build(&mut self, template: usize, ports: Ports, number: u64) -> usize {
        let template = &self.templates[template];
        let frame = &mut self.scratch[..template.len];
        let head = HEAD.min(template.len);
        frame[..head].copy_from_slice(&template.head[..head]);
        put_ports(frame, self.vm, ports);
        let (l4_len, field, protocol) = match self.tcp {
            true => (tcp::MIN_LEN, tcp::CHECKSUM_OFFSET, protocol::TCP),
            false => (udp::LEN, udp::CHECKSUM_OFFSET, protocol::UDP),
        };
        let (number_field, pattern) = frame[L4 + l4_len..].split_at_mut(NUMBER);
        number_field.copy_from_slice(&(number as u32).to_be_bytes());
        write_pattern(pattern, rng::mix(number << 8 | self.vm as u64));
        let segment = &mut frame[L4..];
        segment[field..field + 2].fill(0);
        let sum = Sum::pseudo_v4(ip(self.vm), ip(peer(self.vm)), protocol, segment.len() as u16)
            .push(segment);
        let checksum = if self.tcp { sum.checksum() } else { sum.udp_checksum() };
        segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        template.len
    }

    /// The lower half of the number in a frame of this VM, if it is long enough to have one.
    pub fn number_of(&self, frame: &[u8]) -> Option<u32> {
        butterfly_packet::be32(frame, L4 + if self.tcp { tcp::MIN_LEN } else { udp::LEN })
    }

    /// True if a frame has this VM's addresses, even if all else in it is wrong.
    pub fn have_our_addresses(&self, head: &[u8; 32]) -> bool {
        head[..12] == self.arrive[..12]
    }

    /// True if the first bytes of a frame of `len` bytes say that this VM sent it. Looks at one
    /// cache line.
    #[inline]
    pub fn are_ours(&self, head: &[u8; 32], len: usize) -> bool {
        let template = &self.templates[0].head;
        if self.replay.is_some() {
            return head[..12] == self.arrive[..12];
        }
        // Segments that were cut have identifications that follow each other.
        let id = |head: &[u8]| u16::from_be_bytes([head[18], head[19]]);
        head[..14] == self.arrive
            && id(head).wrapping_sub(id(template)) < self.segments
            && head[23] == template[23]
            && usize::from(u16::from_be_bytes([head[16], head[17]])) + 14 == len
    }

    /// True if a frame with this VM's addresses belongs to another part of the run.
    pub fn are_of(&self, part: Part, head: &[u8; 32]) -> bool {
        self.have_our_addresses(head) && head[18..20] == (part as u16).to_be_bytes()
    }
}

fn put_ports(frame: &mut [u8], vm: usize, ports: Ports) {
    let (source, destination) =
        if is_client(vm) { (ports.client, ports.server) } else { (ports.server, ports.client) };
    frame[L4..L4 + 2].copy_from_slice(&source.to_be_bytes());
    frame[L4 + 2..L4 + 4].copy_from_slice(&destination.to_be_bytes());
}

/// Bytes that depend on their place and on `seed`.
fn write_pattern(bytes: &mut [u8], seed: u64) {
    const STEP: u64 = 0xd1b5_4a32_d192_ed03;
    let mut word = seed;
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = chunks.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word.to_le_bytes()[..len]);
}

/// TCP segments of one VM that belong to connections: each of them is asked for.
#[derive(Clone, Debug)]
pub struct Segments {
    vm: usize,
    templates: [Template; KINDS.len()],
}

/// Kinds of segments by their place in [`Segments`].
const KINDS: [Kind; 6] =
    [Kind::Data, Kind::Open, Kind::Accept, Kind::Finish, Kind::Answer, Kind::Last];

impl Segments {
    pub fn new(options: &Options, vm: usize) -> Segments {
        let len = options.size.largest();
        let filler = vec![0; usize::from(len)];
        let template =
            |kind| Template::new(true, vm, (kind, Part::Counted), usize::from(len), &filler);
        Segments { vm, templates: KINDS.map(template) }
    }

    /// Writes a segment; its length.
    pub fn fill(&self, out: &TxFrame<'_>, kind: Kind, ports: Ports) -> usize {
        let template = &self.templates[kind as usize];
        template.fill(out, (self.vm, true, ports), None, &[0; MAX_SIZE as usize])
    }

    /// Returns the kind and the ports of a segment of this VM; `None` if it is none of its.
    pub fn read(&self, head: &[u8]) -> Option<(Kind, Ports)> {
        let template = &self.templates[0].head;
        if head.get(..14)? != &template[..14] || head.get(18..20)? != &template[18..20] {
            return None;
        }
        let segment = tcp::Tcp::parse(head.get(L4..)?).ok()?;
        let is = |kind: &Kind| {
            let own = &self.templates[*kind as usize].head[L4..];
            // Sequence, acknowledgement, length of the header and flags.
            head.get(L4 + 4..L4 + 14) == own.get(4..14)
        };
        let kind = KINDS.into_iter().find(is)?;
        let (source, destination) = (segment.source_port(), segment.destination_port());
        let (client, server) =
            if is_client(self.vm) { (source, destination) } else { (destination, source) };
        Some((kind, Ports { client, server }))
    }
}

impl Template {
    /// Writes a frame; its length.
    #[inline]
    fn fill(
        &self,
        out: &TxFrame<'_>,
        (vm, is_tcp, ports): (usize, bool, Ports),
        stamp: Option<u32>,
        filler: &[u8],
    ) -> usize {
        let mut head = self.head;
        put_ports(&mut head, vm, ports);
        if let Some(stamp) = stamp {
            let at = L4 + if is_tcp { tcp::MIN_LEN } else { udp::LEN };
            head[at..at + NUMBER].copy_from_slice(&stamp.to_be_bytes());
        }
        if let Some(header) = self.offload {
            out.write_header(header);
            out.write(0, &head);
            return self.len;
        }
        if is_tcp {
            let stamp = stamp.unwrap_or_default();
            let sum = self.sum.push_u16(ports.client).push_u16(ports.server);
            let checksum = sum.push_u16((stamp >> 16) as u16).push_u16(stamp as u16).checksum();
            head[L4 + tcp::CHECKSUM_OFFSET..L4 + tcp::CHECKSUM_OFFSET + 2]
                .copy_from_slice(&checksum.to_be_bytes());
        }
        if self.len < HEAD {
            out.write(0, &head[..self.len]);
        } else {
            out.write(0, &head);
            if self.len > HEAD {
                out.write(HEAD, &filler[HEAD..self.len]);
            }
        }
        self.len
    }

    fn new(
        is_tcp: bool,
        vm: usize,
        (kind, part): (Kind, Part),
        len: usize,
        filler: &[u8],
    ) -> Template {
        let ip_header = build::ethernet(mac(vm), mac(peer(vm)))
            .ipv4(ip(vm), ip(peer(vm)))
            .identification(part as u16);
        let frame = if is_tcp {
            let (flags, sequence, acknowledgement) = match kind {
                Kind::Data => (tcp::ACK, 1001, 1001),
                Kind::Open => (tcp::SYN, 1000, 0),
                Kind::Accept => (tcp::SYN | tcp::ACK, 1000, 1001),
                Kind::Finish => (tcp::FIN | tcp::ACK, 1001, 1001),
                Kind::Answer => (tcp::FIN | tcp::ACK, 1001, 1002),
                Kind::Last => (tcp::ACK, 1002, 1002),
            };
            let segment = build::Tcp { sequence, acknowledgement, ..build::Tcp::new(0, 0, flags) };
            ip_header.tcp(&segment, &filler[L4 + tcp::MIN_LEN..len])
        } else {
            ip_header.checksum(build::Checksum::Zero).udp(0, 0, &filler[L4 + udp::LEN..len])
        };
        debug_assert!(
            Ipv4::parse(&frame[ethernet::HEADER_LEN..]).is_ok_and(|ip| ip.total_len() + 14 == len)
        );
        let mut head = [0; HEAD];
        head[..HEAD.min(len)].copy_from_slice(&frame[..HEAD.min(len)]);
        let mut segment = frame[L4..].to_vec();
        if is_tcp {
            segment[tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2].fill(0);
        }
        let pseudo = Sum::pseudo_v4(ip(vm), ip(peer(vm)), protocol::TCP, segment.len() as u16);
        // The segment last, padded to an even length, so that ports can be appended to the sum.
        segment.resize(segment.len().next_multiple_of(2), 0);
        Template { len, head, sum: pseudo.push(&segment), offload: None }
    }

    /// Leaves its checksum and its segments, of so many bytes of payload, to the other side.
    fn of_segments(mut self, vm: usize, segment: usize) -> Template {
        let len = (self.len - L4) as u16;
        let pseudo = Sum::pseudo_v4(ip(vm), ip(peer(vm)), protocol::TCP, len).fold();
        let field = L4 + tcp::CHECKSUM_OFFSET;
        self.head[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        self.offload = Some(NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            gso_type: NetHeader::GSO_TCPV4,
            hdr_len: TCP_HEADERS as u16,
            gso_size: segment as u16,
            csum_start: L4 as u16,
            csum_offset: tcp::CHECKSUM_OFFSET as u16,
            ..NetHeader::default()
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use butterfly_guest_driver::{FastConfig, FastGuest, Memory, MemoryConfig, Nic, TX};
    use butterfly_packet::{Mac, ethernet::Ethernet, tcp::Tcp, udp::Udp};
    use butterfly_vhost::net::Features;
    use clap::Parser;

    use super::*;

    fn options(line: &str) -> Options {
        Options::try_parse_from(
            ["", "--a", "x", "--b", "y"].into_iter().chain(line.split_whitespace()),
        )
        .unwrap()
    }

    /// Returns the contents of the transmit buffers after `count` frames.
    fn sent(frames: &mut Frames, count: usize) -> Vec<Vec<u8>> {
        let config = FastConfig {
            queue_size: 256,
            max_frame: 9000,
            rx_buffer: 2048,
            header_apart: false,
            indirect: false,
        };
        let memory = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
        let mut guest = FastGuest::new(&memory, Features::VERSION_1, &config).unwrap();
        assert_eq!(guest.tx.send(count, |out| frames.fill(&out)), Ok(count));
        let ring = guest.link(TX).ring.split();
        let desc = |i: usize| {
            ring.desc(ring.avail_entry(i as u16).load(std::sync::atomic::Ordering::Relaxed))
        };
        (0..count)
            .map(|i| memory.read_vec(desc(i).addr + 12, desc(i).len as usize - 12).unwrap())
            .collect()
    }

    fn check(frame: &[u8], vm: usize, is_tcp: bool) -> (u16, u16) {
        let ethernet = Ethernet::parse(frame).unwrap();
        assert_eq!((ethernet.source(), ethernet.destination()), (mac(vm), mac(peer(vm))));
        let packet = Ipv4::parse(ethernet.payload()).unwrap();
        assert!(packet.checksum_is_valid());
        assert_eq!(
            (packet.source(), packet.destination(), packet.total_len() + 14),
            (ip(vm), ip(peer(vm)), frame.len())
        );
        let segment = packet.payload().unwrap();
        let sum = Sum::pseudo_v4(ip(vm), ip(peer(vm)), packet.protocol(), segment.len() as u16)
            .push(segment);
        let ports = if is_tcp {
            let tcp = Tcp::parse(segment).unwrap();
            assert!(sum.is_valid());
            (tcp.source_port(), tcp.destination_port())
        } else {
            let udp = Udp::parse(segment).unwrap();
            assert!(udp.checksum() == 0 || sum.is_valid());
            assert_eq!(usize::from(udp.length()), segment.len());
            (udp.source_port(), udp.destination_port())
        };
        if is_client(vm) { ports } else { (ports.1, ports.0) }
    }

    #[test]
    fn frames_are_right_and_can_be_built_again() {
        for line in [
            "",
            "--size 60",
            "--size 60-9000",
            "--tcp --size 60,61,63,64,65,1500",
            "--flows 100000 --size imix",
            "--new-sessions",
        ] {
            for vm in [0, 1, 6, 7] {
                let plain = options(line);
                for frame in sent(&mut Frames::new(&plain, vm, Kind::Data, Part::Counted), 200) {
                    check(&frame, vm, plain.tcp);
                }
                let verified = Options { verify: true, ..plain };
                let mut frames = Frames::new(&verified, vm, Kind::Data, Part::Counted);
                let mut other = Frames::new(&verified, vm, Kind::Data, Part::Counted);
                let reverse = Frames::new(&verified, peer(vm), Kind::Data, Part::Counted);
                for (number, frame) in sent(&mut frames, 200).iter().enumerate() {
                    check(frame, vm, verified.tcp);
                    assert_eq!(frames.number_of(frame), Some(number as u32));
                    assert_eq!(other.expected(number as u64), frame, "{line} {vm} {number}");
                    let head = frame[..32].try_into().unwrap();
                    assert!(
                        frames.are_ours(head, frame.len())
                            && !frames.are_ours(head, frame.len() + 1)
                    );
                    assert!(!reverse.are_ours(head, frame.len()));
                }
            }
        }
    }

    #[test]
    fn flows_use_their_ports() {
        let options = options("--flows 3");
        let mut ports: Vec<_> = sent(&mut Frames::new(&options, 0, Kind::Data, Part::Counted), 3)
            .iter()
            .map(|f| check(f, 0, false))
            .collect();
        ports.sort_unstable();
        assert_eq!(ports, [(1024, 5001), (1025, 5001), (1026, 5001)]);
    }

    #[test]
    fn a_handshake_is_one() {
        let options = options("--tcp");
        let of = |vm, kind| {
            let frame = sent(&mut Frames::new(&options, vm, kind, Part::Counted), 1).remove(0);
            let tcp = Tcp::parse(&frame[L4..]).unwrap();
            (tcp.flags(), tcp.sequence(), tcp.acknowledgement())
        };
        assert_eq!(of(0, Kind::Open), (tcp::SYN, 1000, 0));
        assert_eq!(of(1, Kind::Accept), (tcp::SYN | tcp::ACK, 1000, 1001));
        assert_eq!(of(0, Kind::Data), (tcp::ACK, 1001, 1001));
    }

    /// A router makes other addresses of what goes to it, also of the sender.
    #[test]
    fn a_router_is_between() {
        let options = options("--router b2:f0:0c:53:fd:ac");
        let router = Mac([0xb2, 0xf0, 0x0c, 0x53, 0xfd, 0xac]);
        let mut frames = Frames::new(&options, 0, Kind::Data, Part::Counted);
        let mut frame = sent(&mut frames, 1).remove(0);
        assert_eq!((&frame[..6], &frame[6..12]), (&router.0[..], &mac(0).0[..]));
        let is_ours = |frame: &[u8]| frames.are_ours(frame[..32].try_into().unwrap(), frame.len());
        assert!(!is_ours(&frame), "as it was sent");
        frame[..12].copy_from_slice(&[mac(1).0, router.0].concat());
        frame[22] -= 1;
        frame[26..30].copy_from_slice(&[192, 0, 2, 9]);
        assert!(is_ours(&frame));
        frame[6..12].copy_from_slice(&mac(0).0);
        assert!(!is_ours(&frame), "around the router");
    }

    /// A large frame, and what a switch makes of it: the same, or segments with identifications
    /// that follow each other.
    #[test]
    fn segments_are_counted_whole_or_cut() {
        let options = options("--tcp --size 1502 --segments 4");
        let mut frames = Frames::new(&options, 0, Kind::Data, Part::Counted);
        assert_eq!((options.largest(), frames.segments()), (TCP_HEADERS + 4 * 1448, 4));
        let large = sent(&mut frames, 1).remove(0);
        assert_eq!(large.len(), options.largest());
        // The sum of the pseudo-header stands where the checksum will.
        let segment_len = (large.len() - L4) as u16;
        let pseudo = Sum::pseudo_v4(ip(0), ip(1), protocol::TCP, segment_len).fold();
        assert_eq!(butterfly_packet::be16(&large, L4 + tcp::CHECKSUM_OFFSET), Some(pseudo));
        let of = |frame: &[u8]| {
            let head = frame[..32].try_into().unwrap();
            (frames.are_ours(head, frame.len()), frames.segments_in(frame.len()))
        };
        assert_eq!(of(&large), (true, 4));
        for (index, ours) in [(0, true), (3, true), (4, false)] {
            let mut cut = large[..TCP_HEADERS + 1448].to_vec();
            let (len, id) = ((cut.len() - 14) as u16, Part::Counted as u16 + index);
            cut[16..18].copy_from_slice(&len.to_be_bytes());
            cut[18..20].copy_from_slice(&id.to_be_bytes());
            assert_eq!(of(&cut), (ours, 1), "segment {index}");
        }
        assert!(!frames.are_ours(large[..32].try_into().unwrap(), large.len() - 1));
        // While a switch learns, frames are small.
        let learning = Frames::new(&options, 0, Kind::Data, Part::Learning);
        assert_eq!(learning.segments(), 1);
        for wrong in [
            "--segments 4",
            "--tcp --segments 65",
            "--tcp --segments 4 --verify",
            "--tcp --segments 4 --rate 1000",
        ] {
            let line = ["", "--a", "x", "--b", "y"].into_iter().chain(wrong.split_whitespace());
            assert!(Options::try_parse_from(line).is_err(), "{wrong}");
        }
        for wrong in
            ["--size 54-100 --segments 2", "--size 1502 --segments 46", "--size imix --segments 2"]
        {
            let line = format!("--tcp {wrong}");
            let parsed = Options::try_parse_from(
                ["", "--a", "x", "--b", "y"].into_iter().chain(line.split_whitespace()),
            );
            assert!(parsed.is_err() || parsed.unwrap().check().is_err(), "{wrong}");
        }
    }
}
