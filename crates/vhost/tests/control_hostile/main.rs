//! Front ends that break the rules.
//!
//! The device detaches each with a reason that names its offence, keeps nothing of it, and serves
//! the next front end. One program with one test, because open files and mappings are counted for
//! the whole process.

mod abuses;
#[path = "../control_support/mod.rs"]
mod control_support;

use std::time::{Duration, Instant};

use butterfly_guest_driver::{Listener, Vm};
use butterfly_vhost::control::{DeviceStatus, Role};

use abuses::{ABUSES, Hostile, small};
use control_support::{Bed, WAIT, eventually, open_files, shared_mappings};

/// Checks that the device is as if no front end had ever been there.
fn nothing_left(bed: &Bed, files: &[String], mappings: usize, after: &str) {
    let status: DeviceStatus = bed.status();
    assert!(
        status.attached.is_none() && status.rx.is_none() && status.tx.is_none(),
        "after {after}: {status:#?}"
    );
    // The device closes the connection after the callback that the test waited for.
    eventually(&format!("no file left by {after}: {files:#?} became {:#?}", open_files()), || {
        open_files().len() == files.len()
    });
    assert_eq!(shared_mappings(), mappings, "after {after}");
}

#[test]
fn whoever_breaks_the_rules_is_detached_and_nothing_else_happens() {
    for role in [Role::Server, Role::Client] {
        let bed = Bed::new(role);
        // Another device of the same process, whose VM must not notice anything.
        let neighbour = Bed::server();
        let mut neighbour_vm = neighbour.vm(&small());
        neighbour.ping(&mut neighbour_vm, 10);
        // A first use: files and mappings that the process opens once do not count as left behind.
        let mut vm = bed.vm(&small());
        bed.ping(&mut vm, 10);
        drop(vm);
        bed.events.detached(1);
        let listener = (role == Role::Client).then(|| Listener::bind(&bed.path).unwrap());
        let connect = || {
            listener
                .as_ref()
                .map_or_else(|| bed.connect(), |listener| listener.accept(WAIT).unwrap())
        };
        if listener.is_some() {
            drop(connect());
        }
        // In the client role the device has a connection all the time, accepted or not.
        let (files, mappings) =
            if listener.is_some() { (Vec::new(), 0) } else { control_support::settled() };

        let mut detached = 1;
        for (what, abuse, expected) in ABUSES {
            let start = Instant::now();
            let mut hostile = Hostile { connection: connect() };
            abuse(&mut hostile);
            assert!(hostile.connection.wait_closed(WAIT), "{what}: still connected");
            detached += 1;
            let reason = bed.events.detached(detached);
            assert!(
                reason.contains(expected),
                "{what}: detached because \"{reason}\", not \"{expected}\""
            );
            assert!(!reason.ends_with('.') && !reason.contains('\n'), "{reason}");
            assert!(
                start.elapsed() < Duration::from_secs(15),
                "{what}: took {:?}",
                start.elapsed()
            );
            drop(hostile);
            if listener.is_none() {
                nothing_left(&bed, &files, mappings, what);
            }
        }
        // The device serves the next front end, and the neighbour noticed nothing.
        let mut vm = Vm::attach(connect(), &small()).unwrap();
        bed.ping(&mut vm, 100);
        neighbour.ping(&mut neighbour_vm, 10);
        assert_eq!(neighbour.status().attach_count, 1);

        // The same abuses by a guest with running rings: the device stops the rings first.
        for (what, abuse, expected) in
            ABUSES.iter().filter(|(what, ..)| !what.contains("negotiated"))
        {
            bed.ping(&mut vm, 1);
            let Vm { guest, connection, .. } = vm;
            let mut hostile = Hostile { connection };
            abuse(&mut hostile);
            assert!(hostile.connection.wait_closed(WAIT), "{what}: still connected");
            detached += 1;
            let reason = bed.events.detached(detached);
            assert!(
                reason.contains(expected),
                "{what}, with rings: detached because \"{reason}\", not \"{expected}\""
            );
            assert_eq!(bed.echo(), 0, "{what}: a ring still runs");
            drop((hostile, guest));
            if listener.is_none() {
                nothing_left(&bed, &files, mappings, what);
            }
            vm = Vm::attach(connect(), &small()).unwrap();
        }
        neighbour.ping(&mut neighbour_vm, 10);
        assert_eq!(
            neighbour.events.all().len(),
            2,
            "the neighbour heard {:?}",
            neighbour.events.all()
        );
        drop(vm);
    }
}
