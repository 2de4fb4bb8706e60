//! Packed rings: all that split ones can, side by side with them, and deaths of the daemon.

use std::process::Command;

use butterfly_guest_driver::{ProtocolFeatures, Shape};
use butterfly_holder::client::Lease;
use butterfly_tests::{
    Host, Nic, PATIENCE, Station,
    frames::mac,
    station::{features, machine, usual},
    traffic::{exchange, streams},
};
use butterfly_vhost::net::Features;

use crate::{
    lasting::{Place, die, is_attached},
    rings,
};

const LAYOUT: Features = Features::RING_PACKED;

/// A host that keeps positions, on which alone packed rings are offered.
fn with(test: impl FnOnce(&Host)) {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    test(&host);
    host.daemon_mut().quit();
}

#[test]
fn every_set_of_features_beside_split_rings() {
    with(|host| rings::sets_of_features(host, LAYOUT));
}

#[test]
fn every_shape_of_chain() {
    with(|host| rings::shapes(host, LAYOUT));
}

#[test]
fn cuts_anywhere() {
    with(|host| rings::cuts(host, LAYOUT));
}

#[test]
fn every_ring_size() {
    with(|host| rings::sizes(host, LAYOUT));
}

/// Sizes that a split ring cannot have.
#[test]
fn sizes_that_are_no_power_of_two() {
    with(|host| {
        for (vni, size) in (1u32..).zip([3u16, 5, 100, 255, 1000, 32_767]) {
            let mut config = machine(features::MODERN.with(LAYOUT), 1514);
            config.guest = config.guest.rings(size);
            let [a, b] = [1, 2].map(|n| Nic::bypass(&format!("{vni}-{n}"), mac(vni * 2 + n), vni));
            let (mut a, mut b) = (host.station(&a, &config), host.station(&b, &config));
            let mut both = streams(&a, &b);
            exchange(&mut a, &mut b, &mut both, &[60, 1514, 700].repeat(1000));
        }
    });
}

#[test]
fn laps_without_end() {
    with(|host| rings::wraps(host, LAYOUT));
}

#[test]
fn a_ring_may_start_anywhere() {
    with(|host| rings::starts(host, LAYOUT));
}

#[test]
fn guests_that_poll() {
    with(|host| rings::polls(host, LAYOUT));
}

#[test]
fn memory_plugged_and_unplugged_under_traffic() {
    with(|host| rings::plugs(host, LAYOUT));
}

#[test]
fn dirty_logging_under_traffic() {
    with(|host| rings::logs(host, LAYOUT));
}

/// `nic show` tells which rings are packed; without a state directory they are not offered.
#[test]
fn operators_see_them() {
    with(|host| {
        let _a = host
            .station(&Nic::bypass("a", mac(1), 1), &machine(features::MODERN.with(LAYOUT), 1514));
        let page = host.daemon().client_ok(&["nic", "show", "a"]);
        assert!(page.contains("rx (packed)") && page.contains("tx (packed)"), "{page}");
        assert!(page.contains("ring-packed"), "{page}");
    });
    let Some(host) = Host::process() else { return };
    let path = host.add(&Nic::bypass("a", mac(1), 1)).unwrap();
    let mut connection = Station::connection(&path, None);
    let wanted = features::MODERN.with(LAYOUT);
    let got = connection.negotiate(wanted, ProtocolFeatures::empty()).unwrap();
    assert_eq!(got, features::MODERN);
}

/// Split and packed guests, chains of one descriptor and of several, one pair of queues and more:
/// the daemon dies under traffic, and each ring goes on where it stood.
#[test]
fn guests_go_on_after_a_death() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let mut machines = Vec::new();
    for (n, pieces) in [(0u32, 1), (1, 3)] {
        for layout in [LAYOUT, Features::NONE] {
            let mut config = machine(features::MODERN.with(layout), 9000);
            config.guest.tx_shape = Shape { pieces, ..Shape::default() };
            config.guest.rx_shape = Shape { pieces, ..Shape::default() };
            // Frames of 9,000 bytes are spread over several buffers.
            config.guest.rx_buffer = 2048;
            machines.push((n, layout, config));
        }
    }
    let mut pairs: Vec<_> = (0u32..)
        .zip(&machines)
        .map(|(vni, (_, _, config))| {
            let ends = [1, 2].map(|n| {
                let nic = Nic::bypass(&format!("{vni}-{n}"), mac(vni * 2 + n), vni + 1);
                host.station(&if n == 1 { nic } else { nic.client() }, config)
            });
            let [a, b] = ends;
            let both = streams(&a, &b);
            (a, b, both)
        })
        .collect();
    for round in 0..6 {
        for (a, b, both) in &mut pairs {
            exchange(a, b, both, &[60, 1514, 9000].repeat(20 + round));
        }
        die(&mut host);
        for (a, b, both) in &mut pairs {
            assert!(is_attached(a) && is_attached(b));
            // They send into a void, which the next daemon finds.
            for len in [60, 9000, 1514] {
                a.vm.guest.send(&both[0].next_frame(len), Default::default()).unwrap();
            }
        }
        host = place.start();
        for (a, b, both) in &mut pairs {
            for _ in 0..3 {
                let (header, frame) = b.receive_with();
                both[0].take(header, &frame);
            }
            a.vm.connection.sync().unwrap();
            exchange(a, b, both, &[60, 1514, 9000]);
        }
    }
    // A driver that begins anew, and one that is stopped and goes on.
    let (a, b, both) = &mut pairs[0];
    a.vm.restart().unwrap();
    exchange(a, b, both, &[60, 1514, 9000]);
    b.vm.change_features(features::MODERN).unwrap();
    exchange(a, b, both, &[60, 1514, 9000]);
    b.vm.change_features(features::MODERN.with(LAYOUT)).unwrap();
    exchange(a, b, both, &[60, 1514, 9000]);
    for (a, b, _) in pairs {
        host.remove(&a.nic.id);
        assert!(a.vm.connection.wait_closed(PATIENCE));
        drop(b);
    }
    host.daemon_mut().quit();
}

/// An upgrade, an orderly stop with a start behind it, and a death: no ring loses its place.
#[test]
fn guests_notice_no_upgrade_and_no_restart() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let config = machine(features::MODERN.with(LAYOUT), 9000);
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &config);
    let mut b = host.station(&Nic::bypass("b", mac(2), 1).client(), &config);
    let mut both = streams(&a, &b);
    for round in 0..6 {
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000].repeat(40 + round));
        match round % 3 {
            0 => drop(host.daemon().client_ok(&["upgrade"])),
            1 => {
                host.daemon().signal("TERM");
                host.daemon_mut().wait_for_end();
                host = place.start();
            }
            _ => {
                die(&mut host);
                host = place.start();
            }
        }
        assert!(is_attached(&a) && is_attached(&b));
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        a.vm.connection.sync().unwrap();
        b.vm.connection.sync().unwrap();
        let page = host.daemon().client_ok(&["nic", "show", "a"]);
        assert!(!page.contains("does not run"), "{page}");
    }
    host.daemon_mut().quit();
}

/// State directory of a daemon that died, for [`loses_the_notes`].
const STATE: &str = "BUTTERFLY_TEST_STATE";

#[test]
#[ignore = "a part of what_is_lost_stays_lost_until_a_driver_begins"]
fn loses_the_notes() {
    let Some(state) = std::env::var_os(STATE) else { return };
    let (lease, _) = Lease::take(state.as_ref()).unwrap();
    lease.withdraw("rings").unwrap();
}

/// The notes about where rings stand are lost: no ring starts at a place that is guessed, whatever
/// the front end says and whichever daemon is asked, until the guest's driver begins anew.
#[test]
fn what_is_lost_stays_lost_until_a_driver_begins() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let config = machine(features::MODERN.with(LAYOUT), 1514);
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &config);
    let mut b = host.station(&Nic::bypass("b", mac(2), 1).client(), &usual());
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514].repeat(100));
    die(&mut host);
    // By a process of its own, of which the holder makes sure that it ends.
    let lost = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "packed::loses_the_notes"])
        .env(STATE, place.state())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&lost.stdout).contains("1 passed"), "{lost:?}");
    host = place.start();
    let rests = |host: &Host| {
        let page = host.daemon().client_ok(&["nic", "show", "a"]);
        assert!(page.contains("rx (packed) cannot run") || page.contains("does not run"), "{page}");
        assert!(page.contains("its note is lost or damaged"), "{page}");
    };
    rests(&host);
    // It says a message, and is stopped and goes on as by `stop` and `cont`.
    a.vm.connection.sync().unwrap();
    rests(&host);
    a.vm.restart().unwrap();
    rests(&host);
    for _ in 0..2 {
        die(&mut host);
        host = place.start();
        rests(&host);
    }
    assert!(is_attached(&a) && is_attached(&b));
    a.vm.change_features(features::MODERN.with(LAYOUT)).unwrap();
    exchange(&mut a, &mut b, &mut both, &[60, 1514].repeat(100));
    die(&mut host);
    host = place.start();
    exchange(&mut a, &mut b, &mut both, &[60, 1514].repeat(100));
    host.daemon_mut().quit();
}
