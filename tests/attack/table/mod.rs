//! Attacks with a known outcome: a named drop, a detachment with a reason, a stopped ring, or
//! nothing.

mod control;
mod receiving;
mod sending;

use std::panic::{AssertUnwindSafe, catch_unwind};

use butterfly_guest_driver::{Desc, VmConfig, ring::DESC_WRITE};
use butterfly_tests::{Station, features::LINUX, wait::PATIENCE};
use butterfly_vhost::net::Features;

use crate::{
    switch::{Switch, dropped},
    villain::{Place, Scene, config},
};

/// Outcome of an attack, as the operator sees it.
enum Outcome {
    /// The counter of this drop reason moves, and no other one.
    Drop(&'static str),
    /// The daemon detaches the guest; its reason contains this text.
    Detach(&'static str),
    /// The daemon reports this ring as `broken` and leaves it alone.
    Rests(&'static str),
    /// The daemon does not run this ring; its `trouble` contains the second text.
    Stopped(&'static str, &'static str),
    /// Allowed: no drop is counted, and the guest stays attached.
    Harmless,
}

/// An attack: its name, its deed and its outcome.
type Attack = (&'static str, fn(&mut Scene<'_>), Outcome);

/// Returns a descriptor. A short name, for the tables.
fn d(addr: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { addr, len, flags, next }
}

/// Runs all attacks of the tables. Returns their number.
pub fn run(switch: &Switch, place: &Place, feeder: &mut Station) -> usize {
    let (mut count, mut failed) = (0, Vec::new());
    let mut attempt = |config: &VmConfig, attack: &Attack| {
        count += 1;
        // Go on after a failure: its message has been printed by then.
        let outcome = catch_unwind(AssertUnwindSafe(|| one(switch, place, feeder, config, attack)));
        if outcome.is_err() {
            failed.push(attack.0);
        }
    };
    for attack in sending::ATTACKS.iter().chain(receiving::ATTACKS).chain(control::ATTACKS) {
        attempt(&config(LINUX), attack);
    }
    // These guests did not negotiate the feature that they use.
    let plain = config(Features::VERSION_1);
    let single: Attack = (
        "a table that was not negotiated",
        |s| {
            let len = s.place_frame(60);
            let b = s.buffer;
            s.send_table(&[d(b, len, 0, 0)], 0, 0);
        },
        Outcome::Drop("bad-chain"),
    );
    let small: Attack = (
        "a buffer too small for a frame",
        |s| {
            let b = s.buffer;
            s.receive(d(b, 100, DESC_WRITE, 0), 1000)
        },
        Outcome::Drop("rx-too-large"),
    );
    for attack in [&single, &small] {
        attempt(&plain, attack);
    }
    assert!(
        failed.is_empty(),
        "{} of {count} attacks did not have their outcome: {failed:?}",
        failed.len()
    );
    count
}

fn one(switch: &Switch, place: &Place, feeder: &mut Station, config: &VmConfig, attack: &Attack) {
    let (name, act, outcome) = attack;
    // Frames to the previous villain may still be on their way. Their drops (`not-attached`) must
    // be counted before this attack starts.
    assert!(
        feeder.vm.guest.drain(PATIENCE).expect("a sound ring"),
        "{name:?}: the sound guest's frames are not taken"
    );
    let before = switch.show(&place.id);
    let mut scene = Scene::open(place, feeder, config);
    act(&mut scene);
    let fail = |what: &str, show: &butterfly_api::proto::NicShow| -> ! {
        let queues: Vec<String> = show.queues.iter().map(ToString::to_string).collect();
        panic!(
            "attack {name:?}: {what}; drops before {:?}, now {:?}; attached {}, last detach {:?}, queues {queues:?}",
            dropped(&before),
            dropped(show),
            show.attached(),
            show.last_detach_reason(),
        )
    };
    let counted = |show: &butterfly_api::proto::NicShow| {
        let old = dropped(&before);
        let mut moved: Vec<String> = dropped(show)
            .into_iter()
            .filter(|(reason, n)| old.get(reason) != Some(n))
            .map(|(reason, _)| reason)
            .collect();
        moved.sort();
        moved
    };
    let queue = |show: &butterfly_api::proto::NicShow,
                 which: &str,
                 holds: fn(&butterfly_api::proto::nic_show::Queue) -> bool| {
        show.queues.iter().any(|queue| queue.name() == which && holds(queue))
    };
    match outcome {
        Outcome::Drop(reason) => {
            let show = switch.wait(&place.id, |show| counted(show) == [*reason]);
            let show = show.unwrap_or_else(|show| {
                fail(&format!("is not the drop {reason} and nothing else"), &show)
            });
            if !show.attached() {
                fail("the guest was detached for it", &show);
            }
        }
        Outcome::Detach(reason) => {
            let gone = switch.wait(&place.id, |show| {
                show.attach_count() > before.attach_count() && !show.attached()
            });
            let show = gone.unwrap_or_else(|show| fail("the guest was not detached", &show));
            if !show.last_detach_reason().contains(reason) {
                fail(&format!("detached for another reason than {reason:?}"), &show);
            }
        }
        Outcome::Rests(ring) => {
            let rests = switch.wait(&place.id, |show| queue(show, ring, |queue| queue.broken()));
            rests.unwrap_or_else(|show| fail(&format!("the {ring} ring does not rest"), &show));
        }
        Outcome::Stopped(ring, why) => {
            let found = |show: &butterfly_api::proto::NicShow| {
                show.queues.iter().any(|queue| {
                    queue.name() == *ring && !queue.running() && queue.trouble().contains(why)
                })
            };
            let stopped = switch.wait(&place.id, found);
            stopped.unwrap_or_else(|show| {
                fail(
                    &format!("the {ring} ring runs, or stopped for another reason than {why:?}"),
                    &show,
                )
            });
        }
        Outcome::Harmless => {
            scene
                .vm
                .connection
                .sync()
                .unwrap_or_else(|error| fail(&format!("{error}"), &switch.show(&place.id)));
            // The daemon has used every chain that the guest offered.
            let worked = switch.wait(&place.id, |show| {
                show.queues.iter().any(|queue| {
                    queue.name() == "tx" && queue.used() == queue.guest_avail() && !queue.broken()
                })
            });
            let show = worked.unwrap_or_else(|show| fail("its frames are not taken", &show));
            if !counted(&show).is_empty() {
                fail("is allowed and was counted as a drop", &show);
            }
        }
    }
    let expected = !matches!(outcome, Outcome::Detach(_));
    scene.vm.connection.disconnect();
    if expected {
        let gone = switch.wait(&place.id, |show| !show.attached());
        gone.unwrap_or_else(|show| fail("the guest left and is still there", &show));
    }
}
