//! Threads that keep a daemon busy beside its traffic: control messages, front ends that come and
//! go, a client. Daemons die under them.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use butterfly_api::proto::Request;
use butterfly_guest_driver::{Connection, DirtyLog, Listener, MemoryMessages, Vm, VmConfig};
use butterfly_packet::build;
use butterfly_tests::{
    Daemon, Nic, PATIENCE,
    frames::mac,
    station::{features, usual},
};
use butterfly_vhost::net::Features;

/// Network of these vnics.
const NETWORK: u32 = 78;
/// Time for an answer of the API. A daemon that died gives none.
const ANSWER: Duration = Duration::from_millis(300);

/// Counts of what was done, and the order to stop.
#[derive(Debug, Default)]
pub struct Busy {
    /// Threads end.
    pub stop: AtomicBool,
    /// Rounds of control messages.
    pub messages: AtomicU64,
    /// Front ends that came and went.
    pub fronts: AtomicU64,
    /// Front ends that were dialed.
    pub dialed: AtomicU64,
    /// Guests that were woken.
    pub woken: AtomicU64,
    /// Changes that were answered.
    pub changes: AtomicU64,
}

/// Vnics that must be declared before.
pub fn nics() -> [Nic; 6] {
    [
        Nic::bypass("talker", mac(0x2001), NETWORK),
        Nic::bypass("visitor", mac(0x2002), NETWORK),
        Nic::bypass("listener", mac(0x2003), NETWORK).client(),
        Nic::bypass("crowd", mac(0x2004), NETWORK),
        Nic::bypass("sleeper", mac(0x2005), NETWORK),
        Nic::bypass("waker", mac(0x2006), NETWORK),
    ]
}

fn socket(dir: &Path, id: &str) -> std::path::PathBuf {
    dir.join(format!("qemu-vhost-{id}"))
}

impl Busy {
    /// Returns how far those are who send control messages.
    pub fn progress(&self) -> [u64; 2] {
        [&self.messages, &self.fronts].map(|count| count.load(Relaxed))
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    /// Sends control messages of most kinds, without end. Each must be answered.
    pub fn talk(&self, dir: &Path) {
        let mut vm = Vm::connect(socket(dir, "talker"), &usual(), PATIENCE).expect("a guest");
        let log = DirtyLog::new(vm.guest.memory()).expect("a log");
        let mut round = 0u64;
        while self.goes_on() {
            let packed = features::MODERN.with(Features::RING_PACKED);
            let all = [features::LINUX, packed, features::MODERN];
            let wanted = all.get(round as usize % 3).copied().unwrap_or(packed);
            assert_eq!(vm.change_features(wanted).expect("other features"), wanted);
            let region = vm.guest.memory().add_region(None, 4 << 20).expect("memory");
            vm.connection.add_region(&region).expect("an answer");
            vm.connection.remove_region(&region).expect("an answer");
            vm.guest.memory().remove_region(region.guest_addr);
            let memory = vm.guest.memory().clone();
            vm.connection.set_memory(&memory, MemoryMessages::Table).expect("an answer");
            vm.connection.set_log(&log).expect("an answer");
            vm.connection.set_logging(&vm.guest, true).expect("an answer");
            vm.connection.sync().expect("an answer");
            vm.connection.set_logging(&vm.guest, false).expect("an answer");
            vm.connection.max_mem_slots().expect("an answer");
            vm.restart().expect("an answer");
            round += 1;
            self.messages.store(round, Relaxed);
        }
        assert!(!vm.connection.is_closed(), "the talker's channel was closed");
    }

    /// Comes and goes as a front end.
    pub fn visit(&self, dir: &Path) {
        while self.goes_on() {
            let vm = Vm::connect(socket(dir, "visitor"), &usual(), PATIENCE).expect("a visit");
            let gone = vm.crash();
            let mut vm = gone
                .reattach(Connection::connect(socket(dir, "visitor"), PATIENCE).expect("a visit"))
                .expect("it comes back");
            vm.connection.sync().expect("an answer");
            vm.detach().expect("an end in order");
            self.fronts.fetch_add(1, Relaxed);
        }
    }

    /// Is dialed as a front end that listens, and goes. A daemon that died before it gave a
    /// connection to the holder took that with it.
    pub fn listen(&self, listener: &Listener) {
        let config = VmConfig::default();
        while self.goes_on() {
            let Ok(connection) = listener.accept(Duration::from_secs(2)) else { continue };
            let attached = Vm::attach(connection, &config);
            if let Ok(mut vm) = attached
                && vm.connection.sync().is_ok()
            {
                vm.connection.disconnect();
                self.dialed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Sends frames from ever new addresses.
    pub fn crowd(&self, dir: &Path) {
        let mut vm = Vm::connect(socket(dir, "crowd"), &usual(), PATIENCE).expect("a guest");
        let mut number = 0u32;
        while self.goes_on() {
            for _ in 0..16 {
                // Some hundred at a time: old ones are forgotten by then.
                let from = mac(0x10_0000 + number % 0x8000);
                let frame = build::ethernet(from, mac(0x2001)).payload(0x88b5, &[0; 46]);
                if vm.guest.send(&frame, Default::default()).is_err() {
                    break;
                }
                number += 1;
            }
            vm.guest.reclaim().expect("a sound ring");
            while vm.guest.recv().expect("a sound ring").is_some() {}
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!vm.connection.is_closed(), "the crowd's channel was closed");
    }

    /// Wakes a guest that sleeps until it is interrupted. It must be, for each frame that arrives.
    pub fn sleep(&self, dir: &Path) {
        let attach = |id| Vm::connect(socket(dir, id), &usual(), PATIENCE).expect("a guest");
        let (mut sleeper, mut waker) = (attach("sleeper"), attach("waker"));
        let (mut sent, mut next) = (0u64, 0u64);
        while self.goes_on() {
            let frame = build::ethernet(mac(0x2006), mac(0x2005))
                .payload(0x88b5, &[&sent.to_be_bytes()[..], &[0; 46]].concat());
            sent += 1;
            waker.guest.send_wait(&frame, Default::default(), PATIENCE).expect("room");
            // What a dead daemon had taken does not arrive.
            let Some((_, got)) =
                sleeper.guest.recv_wait(Duration::from_millis(100)).expect("an interrupt")
            else {
                continue;
            };
            // Announcements of guests that come back are for all.
            if got.get(12..14) != Some(&[0x88, 0xb5]) {
                continue;
            }
            let number = got.get(14..22).and_then(|bytes| bytes.try_into().ok());
            let number = u64::from_be_bytes(number.expect("a number"));
            assert!(number >= next && number < sent, "frame {number} again: {next} was next");
            next = number + 1;
            self.woken.fetch_add(1, Relaxed);
        }
        assert!(
            !sleeper.connection.is_closed() && !waker.connection.is_closed(),
            "a sleeper's channel was closed"
        );
    }

    /// Declares and removes vnics. What was answered is so, whoever died meanwhile.
    pub fn change(&self, endpoint: &str) {
        let ids: Vec<String> = (0..4).map(|n| format!("x{n}")).collect();
        // `None`: nobody answered.
        let mut there = vec![Some(false); ids.len()];
        let mut turn = 0;
        while self.goes_on() {
            let list = Request { nic_list: Some(true), ..Request::default() };
            let Ok(Ok(list)) = Daemon::try_ask(endpoint, ANSWER, list) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            for (id, there) in ids.iter().zip(&there) {
                let is = list.nic_list.iter().any(|nic| nic == id);
                // One without an answer may still be carried out, later than this look.
                assert_eq!(there.unwrap_or(is), is, "{id} is there: {is}");
            }
            let n = turn % ids.len();
            turn += 1;
            let wanted = !list.nic_list.contains(&ids[n]);
            let request = if wanted {
                Daemon::nic_add(&Nic::bypass(&ids[n], mac(0x3000 + n as u32), NETWORK))
            } else {
                Request { nic_del: Some(ids[n].clone()), ..Request::default() }
            };
            match Daemon::try_ask(endpoint, ANSWER, request) {
                Ok(Ok(_)) => {
                    there[n] = Some(wanted);
                    self.changes.fetch_add(1, Relaxed);
                }
                // Refused: while the writer starts again, nothing was changed.
                Ok(Err(_)) => {}
                Err(_) => there[n] = None,
            }
        }
    }
}
