//! Pairs of guests that send to each other as fast as the other takes it.
//!
//! Each numbers its frames and checks every byte of those that arrive: once, in order. Daemons may
//! die under them.

use std::{
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{GuestConfig, Vm, VmConfig};
use butterfly_packet::{build, mac::Mac};
use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    PATIENCE,
    frames::{mac, pattern},
    host::Nic,
    station::features,
};

/// Frames under way in one direction, if nothing else is planned.
const WINDOW: u64 = 192;
const RING: u16 = 256;
/// Frames in one go.
const BURST: u64 = 32;
/// Frames are taken for lost when none arrived for so long. On a starved machine they may still
/// come.
const LOST: Duration = Duration::from_secs(3);
const NETWORK: u32 = 77;
/// The group that lets guests talk.
pub const GROUP: &str = "talk";

/// Flows and driver of a pair.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Flows in each direction.
    pub flows: u64,
    /// Frames of one flow, one after the other, before those of the next.
    pub stay: u64,
    /// Features that both guests negotiate.
    pub features: Features,
    /// Frames under way in one direction; fewer than a receive ring has.
    pub window: u64,
}

impl Plan {
    /// So many flows in turn, and modern guests.
    pub fn flows(flows: usize) -> Plan {
        let flows = flows.max(1) as u64;
        Plan { flows, stay: 1, features: features::MODERN, window: WINDOW }
    }
}

/// One direction.
struct Way {
    from: (Mac, [u8; 4]),
    to: (Mac, [u8; 4]),
    flows: (u64, u64),
    window: u64,
    sent: u64,
    /// Number of the next frame that arrives.
    next: u64,
    /// Numbers of frames that were taken for lost last, of which some may come after all.
    given_up: Range<u64>,
    lost: u64,
    arrived: u64,
    /// Time of the last arrival.
    last: Instant,
    /// Longest time without one since [`Pair::begin`].
    longest: Duration,
}

impl Way {
    /// The frame with a number. Its flow follows from it.
    fn frame(&self, number: u64) -> Vec<u8> {
        let (flows, stay) = self.flows;
        let flow = (number / stay % flows) as u16;
        let mut payload = number.to_be_bytes().to_vec();
        payload.extend(pattern(number, 10 + (number % 40) as usize));
        let (to, from) = (self.to, self.from);
        build::ethernet(from.0, to.0).ipv4(from.1, to.1).udp(1024 + flow, 7, &payload)
    }

    /// Takes a frame that arrived.
    fn take(&mut self, frame: &[u8]) {
        const AT: usize = 14 + 20 + 8;
        let number = frame.get(AT..AT + 8).map(|bytes| {
            u64::from_be_bytes(std::array::from_fn(|n| bytes.get(n).copied().unwrap_or(0)))
        });
        let number = number.unwrap_or_else(|| panic!("a foreign frame: {frame:02x?}"));
        assert!(number < self.sent, "frame {number} was never sent: {frame:02x?}");
        assert_eq!(frame, self.frame(number), "frame {number} was changed");
        if self.given_up.contains(&number) {
            // In order, and once, all the same.
            self.given_up.start = number + 1;
            self.lost -= 1;
        } else {
            let next = self.next;
            assert!(number >= next, "frame {number} came twice, or late: {next} was next");
            self.lost += number - next;
            self.next = number + 1;
            self.given_up = 0..0;
        }
        self.arrived += 1;
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
    }
}

/// Two guests.
pub struct Pair {
    vms: [Vm; 2],
    ways: [Way; 2],
}

/// Id of a pair's guest.
pub fn id(pair: usize, end: usize) -> String {
    format!("p{pair}-{}", if end == 0 { 'a' } else { 'b' })
}

fn address(pair: usize, end: usize) -> [u8; 4] {
    [10, 77, pair as u8, 1 + end as u8]
}

/// The vnic of a pair's guest.
pub fn nic(pair: usize, end: usize, filtered: bool) -> Nic {
    let mac = mac(0x1000 + (pair * 2 + end) as u32);
    let ip = std::net::Ipv4Addr::from(address(pair, end)).to_string();
    let id = id(pair, end);
    if filtered {
        Nic::filtered(&id, mac, NETWORK).ips(&[&ip]).groups(&[GROUP])
    } else {
        Nic::bypass(&id, mac, NETWORK).ips(&[&ip])
    }
}

impl Pair {
    /// Attaches both guests to their sockets in `dir`.
    pub fn attach(dir: &Path, pair: usize, plan: &Plan) -> Pair {
        Pair::attach_to([dir, dir], pair, plan)
    }

    /// Attaches each guest to its socket in its own directory.
    pub fn attach_to(dirs: [&Path; 2], pair: usize, plan: &Plan) -> Pair {
        let guest = GuestConfig { max_frame: 256, rx_buffer: 512, ..GuestConfig::default() };
        let config =
            VmConfig { features: plan.features, guest: guest.rings(RING), ..VmConfig::default() };
        let vms = [0, 1].map(|end| {
            let path = dirs[end].join(format!("qemu-vhost-{}", id(pair, end)));
            let mut vm = Vm::connect(path, &config, PATIENCE).expect("a guest attaches");
            vm.connection.sync().expect("the guest is attached");
            vm
        });
        let place = |end| (nic(pair, end, false).mac, address(pair, end));
        let way = |from, to| Way {
            from: place(from),
            to: place(to),
            flows: (plan.flows, plan.stay),
            window: plan.window,
            sent: 0,
            next: 0,
            given_up: 0..0,
            lost: 0,
            arrived: 0,
            last: Instant::now(),
            longest: Duration::ZERO,
        };
        Pair { vms, ways: [way(0, 1), way(1, 0)] }
    }

    /// Sends what fits, and takes what came.
    pub fn turn(&mut self) {
        for (end, way) in self.ways.iter_mut().enumerate() {
            let [a, b] = &mut self.vms;
            let (sender, receiver) = if end == 0 { (a, b) } else { (b, a) };
            sender.guest.reclaim().expect("a sound ring");
            let room = way.window - (way.sent - way.next).min(way.window);
            for _ in 0..room.min(BURST) {
                let frame = way.frame(way.sent);
                if sender.guest.enqueue(&frame, NetHeader::default()).is_err() {
                    break;
                }
                way.sent += 1;
            }
            sender.guest.flush();
            while let Some((_, frame)) = receiver.guest.recv().expect("a sound ring") {
                way.take(&frame);
            }
            receiver.guest.refill(usize::MAX);
            if way.last.elapsed() > LOST {
                way.lost += way.sent - way.next;
                way.given_up = way.next..way.sent;
                way.next = way.sent;
                way.last = Instant::now();
            }
        }
    }

    /// Takes what is under way, and sends nothing. Nothing of it may be lost.
    pub fn drain(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.ways.iter().any(|way| way.next < way.sent) {
            assert!(Instant::now() < end, "frames are lost without any death");
            for (way, vm) in self.ways.iter_mut().zip(self.vms.iter_mut().rev()) {
                while let Some((_, frame)) = vm.guest.recv().expect("a sound ring") {
                    way.take(&frame);
                }
                vm.guest.refill(usize::MAX);
            }
        }
    }

    /// Both guests.
    pub fn vms(&mut self) -> &mut [Vm; 2] {
        &mut self.vms
    }

    /// Begins to measure.
    pub fn begin(&mut self) {
        for way in &mut self.ways {
            way.longest = Duration::ZERO;
        }
    }

    /// Longest time without a frame in either direction since [`Pair::begin`].
    pub fn longest(&self) -> Duration {
        self.ways.iter().map(|way| way.longest.max(way.last.elapsed())).max().unwrap_or_default()
    }

    /// Frames that arrived.
    pub fn arrived(&self) -> [u64; 2] {
        [0, 1].map(|end| self.ways[end].arrived)
    }

    /// Frames that were lost.
    pub fn lost(&self) -> u64 {
        self.ways.iter().map(|way| way.lost).sum()
    }

    /// Fails if a front end noticed anything.
    pub fn check(&mut self) {
        for vm in &mut self.vms {
            assert!(!vm.connection.wait_closed(Duration::ZERO), "a control channel was closed");
        }
    }

    /// Has both front ends ask something, which needs an answer.
    pub fn ask(&mut self) {
        for vm in &mut self.vms {
            vm.connection.sync().expect("an answer");
        }
    }

    /// Fails if a front end does not notice that the daemon ended in order.
    pub fn gone(&mut self) {
        for vm in &mut self.vms {
            assert!(vm.connection.wait_closed(PATIENCE), "a control channel stays open");
        }
    }
}
