//! An uplink with several queues at several workers: numbered flows come by all of them and leave
//! by all of them, while queues and rings move. No frame is lost, late or twice.

use std::{
    net::UdpSocket,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use butterfly_packet::{Mac, build};
use butterfly_tests::{Daemon, Host, Nic, PATIENCE, Station, eventually, frames::mac, station};
use butterfly_vhost::net::NetHeader;
use serde_json::Value;

use crate::containers::Netns;

const VNI: u32 = 9;
const VXLAN: u16 = 4789;
const QUEUES: usize = 4;
/// Machines on the near host. Each has two flows from the far one, and sends one there.
const MACHINES: usize = 4;
/// Frames of a flow that are under way at once.
const BURST: u32 = 32;
/// Numbers of workers, by turns.
const COUNTS: [usize; 12] = [1, 2, 3, 1, 4, 2, 1, 3, 4, 1, 2, 3];

/// The near host, whose daemon's file tells the number of workers, and a far one, whose kernel
/// sends and receives VXLAN by sockets.
struct Hosts {
    host: Host,
    near: Netns,
    far: Netns,
    file: PathBuf,
    _room: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Hosts {
        let (near, far) = (Netns::new(), Netns::new());
        for host in [&near, &far] {
            host.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        }
        let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
        let add = format!("ip link add wire {queues} type veth peer name wire {queues}");
        near.run(&format!("{add} netns {}", far.0));
        for (host, number) in [(&near, 1), (&far, 2)] {
            host.run("ethtool -K wire tx off");
            host.run(&format!("ip addr add 42.0.0.{number}/24 dev wire"));
            host.run("ip link set wire mtu 1600 up");
        }
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("butterflyd.ini");
        std::fs::write(&file, "[general]\nworkers=2\n").unwrap();
        let words = ["-c", file.to_str().unwrap(), "--ip", "42.0.0.1/24", "--uplink", "wire"];
        let words = words.into_iter().chain(["--peer", "42.0.0.2"]).map(str::to_owned);
        let before = ["ip", "netns", "exec", &near.0];
        let host = Host::of(Daemon::start_with(&before, &words.collect::<Vec<_>>()));
        Hosts { host, near, far, file, _room: room }
    }

    /// Returns what `butterfly workers` tells of each.
    fn workers(&self) -> Vec<Value> {
        let page = self.host.daemon().client_ok(&["workers", "--json"]);
        let page: Value = serde_json::from_str(&page).unwrap();
        page["workers"].as_array().unwrap().clone()
    }

    /// Changes the number of workers, and waits until there are so many. Returns the number of the
    /// uplink's queues that each has.
    fn set(&self, count: usize) -> Vec<usize> {
        std::fs::write(&self.file, format!("[general]\nworkers={count}\n")).unwrap();
        self.host.daemon().signal("HUP");
        eventually("so many workers", || self.workers().len() == count);
        let queues = |worker: &Value| worker["uplink_queues"].as_array().unwrap().len();
        self.workers().iter().map(queues).collect()
    }

    /// Returns the number of queues of the near end by which frames came.
    fn queues_in_use(&self) -> usize {
        let told = self.near.run("ethtool -S wire");
        let count = |queue: &usize| {
            let name = format!("rx_queue_{queue}_xdp_packets: ");
            let line = told.lines().find_map(|line| line.trim().strip_prefix(&name));
            line.is_some_and(|count| count != "0")
        };
        (0..QUEUES).filter(count).count()
    }
}

/// A flow of numbered frames.
struct Flow {
    number: u32,
    sent: u32,
    got: u32,
}

impl Flow {
    fn new(number: usize) -> Flow {
        Flow { number: number as u32, sent: 0, got: 0 }
    }

    fn next(&mut self, from: Mac, to: Mac) -> Vec<u8> {
        let mut payload = [0; 46];
        payload[..4].copy_from_slice(&self.number.to_be_bytes());
        payload[4..8].copy_from_slice(&self.sent.to_be_bytes());
        self.sent += 1;
        build::ethernet(from, to).payload(0x88b5, &payload)
    }
}

/// Notes a frame of one of the flows: each has each number once, in order.
fn note(flows: &mut [Flow], frame: &[u8]) {
    if frame.get(12..14) != Some(&[0x88, 0xb5]) {
        return; // kernels speak, too
    }
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let flow = flows.iter_mut().find(|flow| flow.number == word(14)).unwrap();
    assert_eq!(word(18), flow.got, "flow {} has each number once, in order", flow.number);
    flow.got += 1;
}

fn far_mac(number: usize) -> Mac {
    mac(100 + number as u32)
}

/// Everything that speaks.
struct Talk {
    machines: Vec<Station>,
    /// One for each flow from the far host, whose kernel chooses the queue by the flow.
    sockets: Vec<UdpSocket>,
    /// Gets what the near host sends.
    far: UdpSocket,
    there: Vec<Flow>,
    back: Vec<Flow>,
}

impl Talk {
    fn new(hosts: &Hosts) -> Talk {
        let config = station::machine(station::features::MODERN, 1514);
        let machine = |number: usize| {
            let nic = Nic::bypass(&format!("vm-{number}"), mac(number as u32 + 1), VNI);
            hosts.host.station(&nic, &config)
        };
        let (sockets, far) = hosts.far.inside(|| {
            let bind = |port| UdpSocket::bind(("42.0.0.2", port)).unwrap();
            ((0..2 * MACHINES).map(|_| bind(0)).collect(), bind(VXLAN))
        });
        far.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&far, 16 << 20).unwrap();
        Talk {
            machines: (0..MACHINES).map(machine).collect(),
            sockets,
            far,
            there: (0..2 * MACHINES).map(Flow::new).collect(),
            back: (0..MACHINES).map(Flow::new).collect(),
        }
    }

    /// Takes what arrived, and sends more of each flow of which all has arrived. Returns whether
    /// there was any.
    fn go_on(&mut self, sends: bool) -> bool {
        for machine in &mut self.machines {
            machine.pending().iter().for_each(|frame| note(&mut self.there, frame));
        }
        let mut datagram = [0; 2048];
        while let Ok(len) = self.far.recv(&mut datagram) {
            note(&mut self.back, &datagram[8..len]);
        }
        let mut moved = false;
        for (at, flow) in
            self.there.iter_mut().enumerate().filter(|it| sends && it.1.got == it.1.sent)
        {
            moved = true;
            let to = self.machines[at % MACHINES].mac();
            for _ in 0..BURST {
                let mut datagram = vec![8, 0, 0, 0, 0, 0, VNI as u8, 0];
                datagram.extend(flow.next(far_mac(at % MACHINES), to));
                self.sockets[at].send_to(&datagram, ("42.0.0.1", VXLAN)).unwrap();
            }
        }
        // The near host has heard of the far machine when a flow from it has arrived.
        for (at, flow) in self.back.iter_mut().enumerate() {
            if self.there[at].got < BURST || flow.got < flow.sent || !sends {
                continue;
            }
            moved = true;
            for _ in 0..BURST {
                let machine = &mut self.machines[at];
                let frame = flow.next(machine.mac(), far_mac(at));
                machine.vm.guest.send_wait(&frame, NetHeader::default(), PATIENCE).unwrap();
            }
        }
        moved
    }

    fn is_settled(&self) -> bool {
        self.there.iter().chain(&self.back).all(|flow| flow.got == flow.sent)
    }
}

#[test]
fn flows_keep_their_order_while_queues_and_rings_move() {
    let hosts = Hosts::new();
    let mut talk = Talk::new(&hosts);
    let over = AtomicBool::new(false);
    let (over, changes) = (&over, &hosts);
    let moves = std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut moves = 0;
                for count in COUNTS.into_iter().cycle().take(3 * COUNTS.len()) {
                    let queues = changes.set(count);
                    assert_eq!(queues.iter().sum::<usize>(), QUEUES, "{queues:?}");
                    std::thread::sleep(Duration::from_millis(50));
                    let each = changes.workers();
                    moves += each.iter().map(|it| it["moves"].as_u64().unwrap()).sum::<u64>();
                }
                moves
            }));
            over.store(true, Ordering::Release);
            outcome
        });
        let mut last = Instant::now();
        while !over.load(Ordering::Acquire) {
            if talk.go_on(true) {
                last = Instant::now();
            }
            assert!(last.elapsed() < PATIENCE, "flows stand still");
        }
        running.join().unwrap().unwrap_or_else(|why| std::panic::resume_unwind(why))
    });
    eventually("all has arrived", || {
        talk.go_on(false);
        talk.is_settled()
    });
    let count = |flows: &[Flow]| flows.iter().map(|flow| u64::from(flow.sent)).sum::<u64>();
    println!("{} frames there, {} back, {moves} moves", count(&talk.there), count(&talk.back));
    assert!(moves > 0 && hosts.queues_in_use() > 1, "{moves} moves");
    assert!(count(&talk.there) > 5_000 && count(&talk.back) > 2_500);
    for number in 0..MACHINES {
        assert_eq!(hosts.host.show(&format!("vm-{number}")).all_drops(), 0, "vm-{number}");
    }
    let page = hosts.host.daemon().client_ok(&["workers"]);
    assert!(page.contains("(the uplink)"), "{page}");
}
