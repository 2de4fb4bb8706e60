//! The dirty log of a guest that migrates while daemons die: what a daemon stored is marked.

use butterfly_guest_driver::{DirtyLog, Vm};

/// A log, and the memory of a guest when it began.
pub struct Logged {
    log: DirtyLog,
    /// Receive buffers: where they are, and what was in them.
    buffers: Vec<(u64, Vec<u8>)>,
}

/// Places of all receive buffers, by the descriptors.
fn buffers(vm: &Vm) -> Vec<(u64, Vec<u8>)> {
    let ring = vm.guest.rx().ring();
    let table = ring.addr().desc;
    let memory = vm.guest.memory();
    let read = |n: u64| {
        let bytes = memory.read_vec(table + 16 * n, 16).expect("a descriptor");
        let (addr, rest) = bytes.split_first_chunk().expect("16 bytes");
        let (len, _) = rest.split_first_chunk().expect("8 bytes");
        (u64::from_le_bytes(*addr), u32::from_le_bytes(*len))
    };
    let whole =
        |(addr, len): (u64, u32)| (addr, memory.read_vec(addr, len as usize).expect("a buffer"));
    (0..u64::from(ring.size())).map(read).filter(|(_, len)| *len > 0).map(whole).collect()
}

impl Logged {
    /// Has everything logged that a daemon stores from now on. Nothing may be under way.
    pub fn begin(vm: &mut Vm) -> Logged {
        let log = DirtyLog::new(vm.guest.memory()).expect("a log");
        vm.connection.set_log(&log).expect("an answer");
        vm.connection.set_logging(&vm.guest, true).expect("an answer");
        vm.connection.sync().expect("an answer");
        Logged { buffers: buffers(vm), log }
    }

    /// Fails if anything was stored and not marked. Nothing may be under way.
    pub fn check(&self, vm: &Vm) {
        let mut changed = 0;
        for ((addr, now), (was_at, before)) in buffers(vm).iter().zip(&self.buffers) {
            assert_eq!(addr, was_at, "buffers stay where they are");
            for (at, _) in now.iter().zip(before).enumerate().filter(|(_, (now, was))| now != was) {
                changed += 1;
                let addr = addr + at as u64;
                assert!(self.log.is_dirty(addr), "{addr:#x} was stored and is not marked");
            }
        }
        assert!(changed > 0, "nothing was received");
        for ring in [vm.guest.rx().ring(), vm.guest.tx().ring()] {
            for at in (ring.addr().used..).step_by(8).take(usize::from(ring.size())) {
                assert!(self.log.is_dirty(at), "the used ring at {at:#x} is not marked");
            }
        }
    }
}
