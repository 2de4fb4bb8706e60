//! A fixed amount of switching over in-memory rings, to count instructions and to compare cycles of one build with those of another.
//!
//! `fixed_work [CASE] [BATCHES]`: cases are printed by `fixed_work list`. Prints cycles per packet of the switch alone (generator and
//! receiver run on the same core, so caches are warmer than with real guests). Under callgrind, collect only inside `Worker::round`:
//! see tests/instructions/run.sh.

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Error, Host, LINUX},
};
use butterfly_packet::build;
use butterfly_vhost::{
    cpu,
    driver::{
        guest::{GuestConfig, Shape},
        memory::MemoryConfig,
    },
    net::Features,
};

struct Case {
    name: &'static str,
    size: usize,
    features: Features,
    shape: Shape,
    batch: usize,
    to: To,
}

#[derive(PartialEq)]
enum To {
    Known,
    Learnt,
    Broadcast,
}

const PLAIN: Shape = Shape { header_apart: false, ..Shape::HEADER_APART };
const CASES: &[Case] = &[
    Case { name: "64", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Known },
    Case { name: "64-batch-1", size: 64, features: LINUX, shape: PLAIN, batch: 1, to: To::Known },
    Case { name: "64-indirect", size: 64, features: LINUX, shape: Shape::HEADER_APART.indirect(), batch: 64, to: To::Known },
    Case { name: "64-learnt", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Learnt },
    Case { name: "64-broadcast", size: 64, features: LINUX, shape: PLAIN, batch: 64, to: To::Broadcast },
    Case { name: "64-legacy", size: 64, features: Features::NONE, shape: Shape::HEADER_APART, batch: 64, to: To::Known },
    Case { name: "1400", size: 1400, features: LINUX, shape: PLAIN, batch: 64, to: To::Known },
    Case { name: "9000", size: 9000, features: LINUX, shape: PLAIN, batch: 16, to: To::Known },
];

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "64".to_owned());
    let batches: u64 = args.next().map_or(Ok(20_000), |n| n.parse())?;
    if name == "list" {
        CASES.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case; see: fixed_work list")?;
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let behind_b = Mac([2, 0, 0, 0, 1, 2]);
    let mut host = Host::new()?;
    let bypass = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for (id, mac) in [("a", a), ("b", b)] {
        let config = GuestConfig {
            rx_shape: if case.shape == PLAIN { PLAIN } else { case.shape },
            tx_shape: case.shape,
            ..GuestConfig::default()
        };
        host.declare(id, mac, 1, &bypass)?;
        host.attach(id, case.features, &config, &MemoryConfig::new(config.memory_needed()))?;
    }
    let to = match case.to {
        To::Known => b,
        To::Learnt => behind_b,
        To::Broadcast => Mac::BROADCAST,
    };
    let frame = build::ethernet(a, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(4000, 5001, &vec![0x5a; case.size - 42]);
    let hello = build::ethernet(behind_b, a).ipv4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5001, 4000, b"");
    host.send("b", &hello, Default::default())?;

    let mut cycles = 0;
    let mut received = 0;
    let mut rounds = 0;
    for _ in 0..batches {
        let guest = host.guest("a").ok_or("no guest")?;
        guest.reclaim()?;
        for _ in 0..case.batch {
            guest.enqueue(&frame, Default::default())?;
        }
        guest.flush();
        let start = cpu::tsc();
        rounds += u64::from(host.turn());
        cycles += cpu::tsc() - start;
        let guest = host.guest("b").ok_or("no guest")?;
        while let Some((_, bytes)) = guest.recv()? {
            if bytes != frame {
                return Err("a frame was changed on its way".into());
            }
            received += 1;
        }
    }
    let sent = batches * case.batch as u64;
    if received < sent && case.to != To::Broadcast {
        return Err(format!("{sent} frames sent, {received} received: {:?}", host.moved()).into());
    }
    println!("{}: {} packets in {rounds} batches, {:.1} cycles/packet", case.name, sent, cycles as f64 / sent as f64);
    Ok(())
}
