//! A front end that makes its interrupts expensive: thousands of epoll instances wait for its call
//! descriptor, and each signal wakes all of them before it returns. The worker pays for one; a
//! thread of their own sends the others. One program with one test, as it measures, and needs many
//! open files.

mod control_support;

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{GuestConfig, Vm, VmConfig};
use butterfly_vhost::net::{Features, NetHeader};
use control_support::{Bed, WAIT};
use rustix::{
    event::epoll,
    process::{Resource, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

/// 40,000 watches with 400 open files: each of some instances watches each of some copies of the
/// descriptor.
const INSTANCES: usize = 200;
const COPIES: usize = 200;
const FRAMES: u32 = 300;
/// More than a batch of one frame takes, with an interrupt that wakes a thread, on any machine.
const BATCH: Duration = Duration::from_micros(200);

fn spent() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

fn watches(of: &OwnedFd) -> Vec<OwnedFd> {
    let mut all: Vec<OwnedFd> = (0..COPIES).map(|_| of.try_clone().unwrap()).collect();
    for _ in 0..INSTANCES {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (n, copy) in all.iter().take(COPIES).enumerate() {
            epoll::add(
                &instance,
                copy.as_fd(),
                epoll::EventData::new_u64(n as u64),
                epoll::EventFlags::IN,
            )
            .unwrap();
        }
        all.push(instance);
    }
    all
}

/// A machine whose driver wants an interrupt for each frame.
fn config() -> VmConfig {
    VmConfig {
        features: Features::VERSION_1.with(Features::MRG_RXBUF),
        guest: GuestConfig::default().rings(256),
        ..VmConfig::default()
    }
}

/// Sends frames back and forth. Returns the processor time of the thread that plays the worker.
fn echo(bed: &Bed, vm: &mut Vm, frames: u32) -> Duration {
    let mut took = Duration::ZERO;
    for n in 0..frames {
        vm.guest.send(&[n as u8; 60], NetHeader::default()).unwrap();
        vm.guest.rx().ring().avail_flags().store(0, Relaxed);
        let begun = spent();
        assert_eq!(bed.echo(), 1);
        took += spent() - begun;
        vm.guest.recv().unwrap().expect("the frame returns");
    }
    took
}

#[test]
fn slow_interrupts_are_paid_for_once() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();

    let bed = Bed::server();
    let mut vm = bed.vm(&config());
    echo(&bed, &mut vm, 10);
    let report = || bed.status().interrupts;
    // On a busy machine it may be suspected: a signal in which the worker lost its processor looks
    // the same. It is never confirmed.
    assert_eq!((report().confirmed, report().apart), (0, false), "{:?}", report());

    let guards = watches(vm.guest.rx().call_fd());
    // Cost of one signal, as the sending thread sees it. The median: where a hypervisor takes the
    // processor away, the kernel takes that time off later readings, and single ones show next to
    // nothing.
    let mut signals: [Duration; 9] = std::array::from_fn(|_| {
        let begun = spent();
        rustix::io::write(&**vm.guest.rx().call_fd(), &1u64.to_ne_bytes()).unwrap();
        spent() - begun
    });
    signals.sort_unstable();
    let slow = signals[signals.len() / 2];
    assert!(
        slow > Duration::from_micros(500),
        "{} watches cost {signals:?} only: no test",
        INSTANCES * COPIES
    );

    let took = echo(&bed, &mut vm, FRAMES);
    // Before it was measured: FRAMES * slow. Timing is noisy, one signal is not three.
    let bound = 3 * slow + FRAMES * BATCH;
    assert!(
        took < bound && bound < FRAMES / 2 * slow,
        "{FRAMES} batches took {took:?}, one signal {slow:?}"
    );
    // What comes while the thread is busy is one signal: it takes a while until it has seen enough.
    let end = Instant::now() + WAIT;
    while !report().apart {
        assert!(Instant::now() < end, "waited for a confirmed suspicion: {:?}", report());
        echo(&bed, &mut vm, 1);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(report().confirmed, 1, "{:?}", report());
    assert!(report().worst_ns > 50_000);

    // The guest goes on being interrupted, once for many.
    vm.guest.rx_mut().take_interrupts();
    echo(&bed, &mut vm, 5);
    let end = Instant::now() + WAIT;
    while vm.guest.rx_mut().take_interrupts() == 0 {
        assert!(Instant::now() < end, "waited for an interrupt");
        std::thread::sleep(Duration::from_millis(2));
    }

    // Attaching anew does not buy another slow signal; only if all this takes seconds, a probation
    // may end meanwhile.
    let costly = report().costly;
    let mut left = Some((vm, guards));
    for _ in 0..5 {
        drop(left.take());
        let mut vm = bed.vm(&config());
        let guards = watches(vm.guest.rx().call_fd());
        echo(&bed, &mut vm, 20);
        assert!(report().costly <= costly + 1, "{:?}", report());
        left = Some((vm, guards));
    }
}
