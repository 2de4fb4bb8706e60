//! Front ends that announce as many memory regions as they can. The kernel bounds the mappings of a
//! process, and past that bound a truncated memory cannot be repaired: the process would end. One
//! program with one test, as the bound is the process's.

mod control_support;

use std::{fs::File, sync::Arc};

use butterfly_guest_driver::{ControlError, GuestConfig, Region, Vm, VmConfig};
use butterfly_vhost::{maps, net::NetHeader};
use control_support::{Bed, WAIT};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap_anonymous},
    process::{Resource, getrlimit, setrlimit},
};

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(16), ..VmConfig::default() }
}

/// The `n`th region behind a machine's memory; all are one file.
fn region(file: &Arc<File>, n: u64) -> Region {
    let guest_addr = (1 << 40) + n * 4096;
    Region { guest_addr, user_addr: guest_addr, size: 4096, file_offset: 0, file: file.clone() }
}

/// Adds regions until the machine has as many as it was told it may have. Returns how many it has.
fn fill(vm: &mut Vm, file: &Arc<File>) -> Result<u64, ControlError> {
    let slots = vm.connection.max_mem_slots()?;
    for n in vm.guest.memory().regions().len() as u64..slots {
        vm.connection.add_region(&region(file, n))?;
    }
    Ok(slots)
}

/// Mappings of this process.
fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn the_limit_of_mappings_is_kept_and_a_truncated_memory_is_repaired_at_it() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum.map(|most| most.min(1 << 16));
    setrlimit(Resource::Nofile, files).unwrap();
    // Of 1,600 there are 1,200 for front ends, and half of those for front ends with many regions.
    assert_eq!(maps::pretend(1600), 1200);
    let file = Arc::new(File::from(memfd_create("regions", MemfdFlags::CLOEXEC).unwrap()));
    ftruncate(&file, 4096).unwrap();

    let neighbour = Bed::server();
    let mut neighbour_vm = neighbour.vm(&small());
    neighbour.ping(&mut neighbour_vm, 10);

    // The announced number is available: all that the protocol knows, then what is left of the
    // share, then the usual number.
    let mut beds = Vec::new();
    for expected in [509, 8 + 600 - 501, 8, 8] {
        let bed = Bed::server();
        let mut vm = bed.vm(&small());
        assert_eq!(fill(&mut vm, &file).unwrap(), expected);
        bed.ping(&mut vm, 10);
        beds.push((bed, vm));
    }
    // One more than was told is refused by name.
    let (bed, vm) = beds.last_mut().unwrap();
    let _ = vm.connection.add_region(&region(&file, 8));
    let reason = bed.events.detached(1);
    assert!(
        reason.contains("memory regions: 9, pairs of queues: 1; each region beyond 8 takes one"),
        "{reason}"
    );

    // Then vnics with the usual number, until there is no mapping left.
    let refused = loop {
        assert!(beds.len() < 120, "never refused; {} mappings", mapped());
        let mut bed = neighbour.successor();
        bed.path = neighbour.path.with_extension(beds.len().to_string());
        if let Err(refused) = bed.start() {
            break refused.to_string();
        }
        let Ok(mut vm) = Vm::connect(&bed.path, &small(), WAIT) else {
            break bed.events.detached(1);
        };
        if fill(&mut vm, &file).is_err() {
            break bed.events.detached(1);
        }
        beds.push((bed, vm));
    };
    assert!(
        refused.contains(
            "all 1200 mappings that virtual machines may have are in use: raise the sysctl"
        ),
        "{refused}"
    );
    let regions: usize = beds
        .iter()
        .filter_map(|(bed, _)| bed.status().attached)
        .map(|attached| attached.memory.len())
        .sum();
    assert!(regions > 900, "{regions} regions are mapped");

    // The process takes what the kernel gives, but for a few of those that were kept back. The
    // repair works all the same.
    let most: usize =
        std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    for n in 0..most.min(300_000).saturating_sub(mapped() + 100) {
        // Two that are alike would be one.
        let protection = if n % 2 == 0 { ProtFlags::READ } else { ProtFlags::empty() };
        // SAFETY: a new mapping that nobody uses.
        unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE) }
            .unwrap();
    }
    let (bed, vm) = &mut beds[0];
    vm.guest.send(&[1; 60], NetHeader::default()).unwrap();
    for region in vm.guest.memory().regions() {
        region.file.set_len(0).unwrap();
    }
    // Reads zeroes: nothing was sent. Without the repair this would be the end.
    let sent = bed.port.tx().as_mut().unwrap().available();
    assert_eq!((sent, bed.port.poisoned()), (None, true), "a ring of zeroes is broken");
    bed.device().poke();
    assert_eq!(bed.events.detached(1), "guest memory was truncated");
    neighbour.ping(&mut neighbour_vm, 10);
    // What it had is there for others.
    let another = Bed::server();
    another.ping(&mut another.vm(&small()), 10);
}
