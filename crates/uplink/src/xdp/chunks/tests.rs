//! A process and a kernel move numbered frames through the rings. The process dies between any two
//! of its stores, and another one goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    super::ring::{TestRing, pair},
    *,
};

const CHUNK: u32 = 2048;

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The four rings, which outlast processes.
struct Shared {
    receive: TestRing,
    fill: TestRing,
    transmit: TestRing,
    completion: TestRing,
    /// Number of the frame in each chunk.
    memory: BTreeMap<u64, u64>,
}

impl Shared {
    /// Rings whose indices are about to wrap.
    fn new(start: u32) -> Shared {
        let ring = |size| TestRing::new(size, start);
        Shared {
            receive: ring(RECEIVE),
            fill: TestRing::new(RECEIVE, start),
            transmit: ring(SEND),
            completion: ring(SEND),
            memory: BTreeMap::new(),
        }
    }
}

/// The kernel: it takes chunks from the fill ring before it needs them, and sends late, in any
/// order.
struct Kernel {
    fill: Consumer<u64>,
    receive: Producer<Descriptor>,
    transmit: Consumer<Descriptor>,
    completion: Producer<u64>,
    stock: VecDeque<u64>,
    sending: Vec<(u64, u64)>,
    arrived: u64,
    sent: BTreeSet<u64>,
}

impl Kernel {
    fn new(shared: &Shared) -> Kernel {
        Kernel {
            fill: shared.fill.consumer(),
            receive: shared.receive.producer(),
            transmit: shared.transmit.consumer(),
            completion: shared.completion.producer(),
            stock: VecDeque::new(),
            sending: Vec::new(),
            arrived: 0,
            sent: BTreeSet::new(),
        }
    }

    /// Lets frames arrive while there are chunks. Some drivers give chunks back in another order.
    fn arrive(&mut self, frames: u64, memory: &mut BTreeMap<u64, u64>, random: &mut Random) {
        for _ in 0..random.below(40) {
            self.stock.extend(self.fill.take());
        }
        self.fill.release();
        for _ in 0..frames {
            let taken = match random.below(4) {
                0 => self.stock.pop_back(),
                _ => self.stock.pop_front(),
            };
            let Some(chunk) = taken else { break };
            memory.insert(chunk, self.arrived);
            let descriptor = Descriptor { address: chunk + 256, len: 60, options: 0 };
            assert!(self.receive.push(descriptor), "the receive ring takes all chunks");
            self.arrived += 1;
        }
        self.receive.publish();
    }

    fn send(&mut self, frames: u64, memory: &BTreeMap<u64, u64>, random: &mut Random) {
        for _ in 0..frames {
            let Some(Descriptor { address, .. }) = self.transmit.take() else { break };
            self.sending.push((address, memory[&address]));
        }
        self.transmit.release();
        for _ in 0..random.below(40) {
            if self.sending.is_empty() {
                break;
            }
            let at = random.below(self.sending.len() as u64) as usize;
            let (address, number) = self.sending.swap_remove(at);
            assert_eq!(memory[&address], number, "a chunk was written to while it was sent");
            assert!(self.sent.insert(number), "frame {number} left twice");
            assert!(self.completion.push(address), "the completion ring takes all chunks");
        }
        self.completion.publish();
    }

    /// Chunks of the receiving side that the kernel has or was given.
    fn receiving(&mut self) -> Vec<u64> {
        while let Some(chunk) = self.fill.take() {
            self.stock.push_back(chunk);
        }
        self.fill.release();
        self.stock.iter().copied().collect()
    }
}

/// A process that lives for a while.
struct Process {
    receiver: Receiver,
    sender: Sender,
    held: VecDeque<Descriptor>,
}

/// Deeds of all processes together.
#[derive(Default)]
struct Deeds {
    /// Frames that were looked at: the next one has this number, or a larger one after a death.
    next: u64,
    looked_at: u64,
    queued: u64,
    shown: BTreeSet<u64>,
    waiting: Vec<u64>,
}

impl Process {
    fn begin(shared: &Shared) -> Process {
        Process {
            receiver: Receiver::begin(shared.receive.consumer(), shared.fill.producer(), CHUNK),
            sender: Sender::begin(shared.transmit.producer(), shared.completion.consumer(), CHUNK),
            held: VecDeque::new(),
        }
    }

    fn recover(shared: &Shared) -> Result<(Process, u32), Contradiction> {
        let (receiver, held) =
            Receiver::recover(shared.receive.consumer(), shared.fill.producer(), CHUNK)?;
        let sender =
            Sender::recover(shared.transmit.producer(), shared.completion.consumer(), CHUNK)?;
        Ok((Process { receiver, sender, held: VecDeque::new() }, held))
    }

    /// One step of a worker, which ends with a store that others see, or dies before it.
    fn step(&mut self, shared: &mut Shared, deeds: &mut Deeds, random: &mut Random, dies: bool) {
        match random.below(4) {
            0 => {
                let before = self.held.len();
                while self.held.len() < BURST
                    && let Some(descriptor) = self.receiver.take()
                {
                    self.held.push_back(descriptor);
                }
                if dies {
                    return;
                }
                self.receiver.taken();
                // Only now their contents count for anybody.
                for Descriptor { address, .. } in self.held.iter().skip(before) {
                    let number = shared.memory[&(address - address % u64::from(CHUNK))];
                    assert!(number >= deeds.next, "frame {number} came twice");
                    deeds.next = number + 1;
                    deeds.looked_at += 1;
                }
            }
            1 => {
                for _ in 0..self.held.len() {
                    let Some(held) = self.held.pop_front() else { break };
                    self.receiver.give_back(held.address);
                }
                if !dies {
                    self.receiver.given_back();
                }
            }
            2 => {
                for _ in 0..random.below(64) {
                    let Some(address) = self.sender.give(60) else { break };
                    shared.memory.insert(address, deeds.queued);
                    if random.below(8) == 0 {
                        continue; // given out again
                    }
                    assert_eq!(self.sender.queue(), Some(60));
                    deeds.waiting.push(deeds.queued);
                    deeds.queued += 1;
                }
            }
            _ if dies => self.sender.completions.release(),
            _ => {
                self.sender.publish();
                deeds.shown.extend(deeds.waiting.drain(..));
            }
        }
    }
}

#[test]
fn no_chunk_is_lost_or_double_wherever_a_process_dies() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut deaths, mut lost) = (0, 0);
    for start in [0, u32::MAX - 3 * SEND, 7] {
        let mut shared = Shared::new(start);
        let mut kernel = Kernel::new(&shared);
        let mut process = Process::begin(&shared);
        let mut deeds = Deeds::default();
        for step in 0..60_000 {
            match random.below(3) {
                0 => kernel.arrive(random.below(100), &mut shared.memory, &mut random),
                1 => kernel.send(random.below(100), &shared.memory, &mut random),
                _ => {
                    let dies = random.below(20) == 0;
                    process.step(&mut shared, &mut deeds, &mut random, dies);
                    if dies {
                        let (next, held) = Process::recover(&shared)
                            .unwrap_or_else(|why| panic!("step {step}: {why}"));
                        // Frames that were written, but not shown, are gone, as is what was held.
                        deeds.waiting.clear();
                        (process, lost, deaths) = (next, lost + held, deaths + 1);
                    }
                }
            }
        }
        // All of it comes to rest: then each chunk is in one place, and each side has all.
        process.sender.publish();
        deeds.shown.extend(deeds.waiting.drain(..));
        while !kernel.sending.is_empty() || kernel.sent.len() < deeds.shown.len() {
            kernel.send(1000, &shared.memory, &mut random);
        }
        assert_eq!(kernel.sent, deeds.shown, "what was shown left, once, and nothing else");
        let mut free = BTreeSet::new();
        let last = process.sender.given.take().map(|(address, _)| address);
        free.extend(last);
        while let Some(address) = process.sender.completions.take() {
            assert!(free.insert(address));
        }
        assert!(free.into_iter().eq(Side::sending(CHUNK).all()));
        while let Some(descriptor) = process.receiver.take() {
            process.receiver.taken();
            process.receiver.give_back(descriptor.address);
            process.receiver.given_back();
        }
        process.held.drain(..).for_each(|held| process.receiver.give_back(held.address));
        process.receiver.given_back();
        let mut all = kernel.receiving();
        process.receiver.given_back();
        all.extend(kernel.receiving().iter().skip(all.len()));
        all.sort_unstable();
        assert!(all.into_iter().eq(Side::receiving(CHUNK).all()));
        assert!(deeds.looked_at > 100_000 && deeds.shown.len() > 100_000, "much happened");
    }
    assert!(deaths > 2000 && lost > 1000, "{deaths} deaths cost {lost} frames");
    assert!(lost <= deaths * BURST as u32, "{deaths} deaths cost {lost} frames");
}

/// A process that gives back faster than the kernel makes room loses no chunk.
#[test]
fn chunks_wait_until_the_kernel_has_room_for_them() {
    let shared = Shared::new(0);
    let mut process = Process::begin(&shared);
    let mut kernel = Kernel::new(&shared);
    // The kernel shows frames, and does not say yet that it took their chunks from the fill ring.
    for round in 0..3 {
        for _ in 0..BURST {
            let address = kernel.fill.take().unwrap();
            assert!(kernel.receive.push(Descriptor { address, len: 60, options: 0 }));
        }
        kernel.receive.publish();
        let taken: Vec<_> = (0..BURST).map_while(|_| process.receiver.take()).collect();
        process.receiver.taken();
        assert_eq!(taken.len(), if round < 1 { BURST } else { 0 }, "nothing while so many wait");
        taken.iter().for_each(|frame| process.receiver.give_back(frame.address));
        process.receiver.given_back();
        assert_eq!(process.receiver.late.len(), BURST);
    }
    kernel.fill.release();
    // A successor knows them, too.
    let (receiver, held) =
        Receiver::recover(shared.receive.consumer(), shared.fill.producer(), CHUNK).unwrap();
    assert_eq!((held, receiver.late.len()), (BURST as u32, 0));
    process.receiver = receiver;
    let rest: Vec<_> = std::iter::from_fn(|| process.receiver.take()).collect();
    assert_eq!(rest.len(), 2 * BURST);
}

/// So does the process itself.
#[test]
fn chunks_that_wait_go_back_as_soon_as_there_is_room() {
    let shared = Shared::new(0);
    let mut receiver = Process::begin(&shared).receiver;
    let mut kernel = Kernel::new(&shared);
    let address = kernel.fill.take().unwrap();
    assert!(kernel.receive.push(Descriptor { address: address + 256, len: 60, options: 0 }));
    kernel.receive.publish();
    let taken = receiver.take().unwrap();
    receiver.give_back(taken.address);
    receiver.given_back();
    assert_eq!(receiver.late.len(), 1);
    kernel.fill.release();
    receiver.taken();
    assert_eq!(receiver.late.len(), 0);
    assert_eq!(kernel.receiving().len(), RECEIVE as usize);
}

/// A successor of forged rings takes each chunk at most once, or none at all.
#[test]
fn forged_rings_are_refused() {
    let mut random = Random(42);
    let mut refused = 0;
    for round in 0..300 {
        let mut shared = Shared::new(random.below(1 << 32) as u32);
        let mut kernel = Kernel::new(&shared);
        let mut process = Process::begin(&shared);
        let mut deeds = Deeds::default();
        for _ in 0..200 {
            kernel.arrive(random.below(60), &mut shared.memory, &mut random);
            kernel.send(random.below(60), &shared.memory, &mut random);
            process.step(&mut shared, &mut deeds, &mut random, false);
        }
        assert!(Process::recover(&shared).is_ok());
        let ring = [&shared.receive, &shared.fill, &shared.transmit, &shared.completion]
            [random.below(4) as usize];
        let index = Some(random.below(1 << 32) as u32);
        match round % 2 {
            0 => ring.forge(index, None),
            _ => ring.forge(None, index),
        }
        refused += u32::from(Process::recover(&shared).is_err());
    }
    // The consumer index of the completion ring is not needed, and not believed.
    assert!((240..300).contains(&refused), "{refused} of 300");
}

#[test]
fn forged_entries_are_refused() {
    let with = |entries: &[(u64, u32)]| {
        let shared = Shared::new(0);
        let _ = Process::begin(&shared);
        let mut kernel = Kernel::new(&shared);
        for (address, len) in entries {
            kernel.fill.take().unwrap();
            assert!(kernel.receive.push(Descriptor { address: *address, len: *len, options: 0 }));
        }
        kernel.fill.release();
        kernel.receive.publish();
        Process::recover(&shared).map(|_| ())
    };
    assert_eq!(with(&[(256, 1792), (2048, 60)]), Ok(()));
    let nowhere = Err(Contradiction("a chunk that there is not"));
    assert_eq!(with(&[(256, 1793)]), nowhere, "longer than its chunk");
    assert_eq!(with(&[(u64::from(RECEIVE * CHUNK), 1)]), nowhere, "one that sends");
    assert_eq!(with(&[(u64::MAX, u32::MAX)]), nowhere);
    let double = Err(Contradiction("a chunk is in two places"));
    assert_eq!(with(&[(0, 60), (1, 60)]), double);
    assert_eq!(with(&[(4096, 60)]), double, "it is in the fill ring, too");
}

#[test]
fn a_chunk_is_not_given_out_before_it_was_sent() {
    let (transmit, mut kernel_transmit) = pair(SEND, u32::MAX - 5);
    let (mut kernel_completions, completions) = pair(SEND, u32::MAX - 5);
    let mut sender = Sender::begin(transmit, completions, CHUNK);

    let mut in_kernel = BTreeSet::new();
    for round in 0u32..10_000 {
        // More is asked for than there is, in bursts of all sizes.
        for _ in 0..round % 301 {
            let Some(address) = sender.give(60) else {
                assert_eq!(in_kernel.len(), SEND as usize, "round {round}: a chunk got lost");
                break;
            };
            assert_eq!(sender.give(61), Some(address), "not queued, not used up");
            assert!(in_kernel.insert(address), "round {round}: chunk {address} is with the kernel");
            assert_eq!(sender.queue(), Some(61));
            assert_eq!(sender.queue(), None);
        }
        sender.publish();
        while let Some(Descriptor { len, .. }) = kernel_transmit.take() {
            assert_eq!(len, 61);
        }
        kernel_transmit.release();
        // The kernel completes some, in an order of its own.
        for _ in 0..round * 7 % 257 {
            let next = if round % 2 == 0 { in_kernel.pop_first() } else { in_kernel.pop_last() };
            let Some(address) = next else { break };
            assert!(kernel_completions.push(address));
        }
        kernel_completions.publish();
    }
}
