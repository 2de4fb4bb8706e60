//! Switches that explain each frame before they move it, and are held to that.

use std::{collections::BTreeMap, sync::Arc};

use butterfly_datapath::{
    Admission, Fate, Mark, Origin, Refused, TapPoint, TapSink, TapWhat, Walk,
};
use butterfly_model::{GroupName, Rule};

use crate::{
    check::{Seen, Switch},
    commands::Command,
    policy::Declared,
    real::{PREFIXES, Real},
    router::{Change, Routes},
    switch::RoutedSession,
    wire::{self, Carries},
};

/// With the network of each vnic that was ever there.
pub struct Explained(Real, BTreeMap<String, u32>);

impl Explained {
    pub fn new(hosts: usize, workers: usize) -> Explained {
        let mut real = Real::new(hosts, workers);
        for host in &mut real.hosts {
            host.watch(&[Arc::new(TapSink::new(1, TapWhat::All, 1, 64))]);
        }
        Explained(real, BTreeMap::new())
    }

    /// Returns the rules that admitted the session of the frame that a host has just moved; `None`
    /// if it has no session.
    fn admitted(&self, host: usize) -> Option<Admitted> {
        let mut found = None;
        self.0.hosts[host].watched(|packet| {
            if packet.point == TapPoint::Network && packet.session.is_some() {
                found = Some(
                    packet
                        .rules
                        .clone()
                        .map(|rule| rule.map(|rule| (rule.group.clone(), rule.rule.clone()))),
                );
            }
        });
        found
    }

    /// Returns each host's explanation of a frame: the host of its sender, and the host at which it
    /// arrives.
    fn ask(&self, host: usize, name: &str, frame: &[u8], vni: Option<u32>) -> Vec<Option<Walk>> {
        let mut said = vec![None; self.0.hosts.len()];
        said[host] = self.0.hosts[host].explain_frame(&Origin::Vnic(name.to_owned()), frame);
        let leaves = said[host].as_ref().is_some_and(|walk| {
            matches!(&walk.fate, Fate::Leaves(_))
                || matches!(&walk.fate, Fate::Flooded { away, .. } if !away.is_empty())
        });
        if let (true, Some(vni), Some(other)) =
            (leaves, vni, (0..said.len()).find(|other| *other != host))
        {
            said[other] = self.0.hosts[other].explain_frame(&Origin::Outside(vni), frame);
        }
        said
    }
}

/// The rules that let a session out of its opener, and into its other end, where rules did.
type Admitted = [Option<(GroupName, Rule)>; 2];

/// Checks that the rules in an explanation are those of the session that then was there.
fn check_rules(said: &Walk, admitted: &Admitted, frame: &[u8]) {
    let told = said.admitted.clone().map(|by| match by {
        Some(Admission::Rule { group, rule }) => Some((group, rule)),
        _ => None,
    });
    if matches!(said.fate, Fate::Delivered(_) | Fate::Leaves(_)) {
        assert_eq!(told, *admitted, "{frame:02x?}\nsaid {said:#?}");
    }
}

/// Returns whether the fate of this frame depends on the memory of an earlier one.
fn is_fragment(frame: &[u8]) -> bool {
    match wire::carries(frame) {
        Carries::Ip(at, vlan) => {
            wire::packet(frame, at, vlan).map_or(true, |packet| packet.fragment.is_some())
        }
        _ => false,
    }
}

/// Returns whether a frame that the sender gets is what a router says to it: an answer, or an error
/// about a packet that the router drops.
fn is_said_by_router(said: &Walk, got: &[u8]) -> bool {
    let errors =
        ["ttl-expired", "no-route", "next-hop-unknown", "route-too-big", "gateway-no-service"];
    match &said.fate {
        Fate::Answered => true,
        Fate::Dropped(refused) => errors.contains(&refused.reason.name) && got[23] == 1,
        _ => false,
    }
}

/// Checks that a host's effects agree with its explanation. `name` sent the frame.
fn check(said: &Walk, seen: &Seen, (name, trunk): (&str, &str), frame: &[u8]) {
    let others =
        seen.received.iter().filter(|(to, got)| to != name || !is_said_by_router(said, got));
    let mut got: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
    got.sort_unstable();
    let mut expected: Vec<&str> = match &said.fate {
        Fate::Delivered(to) => vec![to],
        Fate::Leaves(_) => vec![trunk],
        Fate::Flooded { here, away, .. } => {
            here.iter().map(String::as_str).chain(away.iter().map(|_| trunk)).collect()
        }
        Fate::Dropped(_) | Fate::NoAddress | Fate::Answered | Fate::Waits => Vec::new(),
    };
    expected.sort_unstable();
    let mut drops: BTreeMap<(String, String), u64> = BTreeMap::new();
    let refused = match &said.fate {
        Fate::Dropped(refused) => std::slice::from_ref(refused),
        Fate::Flooded { refused, .. } => refused,
        _ => &[],
    };
    for Refused { reason, charged } in refused {
        let charged = if charged.is_empty() { trunk } else { charged };
        *drops.entry((charged.to_owned(), reason.name.to_owned())).or_default() += 1;
    }
    let context = || format!("{frame:02x?}\nsaid {said:#?}\nseen {got:?} {:?}", seen.drops);
    assert!(got == expected && drops == seen.drops, "{}", context());
    if let Fate::Dropped(_) = said.fate {
        assert!(said.steps.iter().any(|step| step.mark == Mark::Stop), "{}", context());
    }
}

impl Switch for Explained {
    const EARLY: usize = 0;

    fn insert(&mut self, host: usize, name: &str, declared: &Declared) {
        self.1.insert(name.to_owned(), declared.vni);
        self.0.insert(host, name, declared);
    }

    fn remove(&mut self, host: usize, name: &str) {
        self.0.remove(host, name);
    }

    fn update(&mut self, host: usize, name: &str, declared: &Declared) {
        self.0.update(host, name, declared);
    }

    fn change(&mut self, host: usize, change: &Command) {
        self.0.change(host, change);
    }

    fn route(&mut self, host: usize, change: &Change, routes: &Routes) {
        self.0.route(host, change, routes);
    }

    fn routed_sessions(&mut self, host: usize) -> Vec<RoutedSession> {
        self.0.routed_sessions(host)
    }

    fn pass(&mut self, seconds: u32) {
        self.0.pass(seconds);
    }

    fn arrive(&mut self, host: usize, from: u8, vni: u32, frame: &[u8]) -> Vec<Seen> {
        self.0.arrive(host, from, vni, frame)
    }

    fn send(&mut self, host: usize, name: &str, frames: &[Vec<u8>]) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.0.hosts.len()];
        for frame in frames {
            let vni = self.1.get(name).copied();
            let said = self.ask(host, name, frame, vni);
            let seen = self.0.send(host, name, std::slice::from_ref(frame));
            for (at, (said, seen)) in said.iter().zip(&seen).enumerate() {
                if let Some(said) = said
                    && !is_fragment(frame)
                {
                    let trunk = format!("{}vni-{}", PREFIXES[at], vni.unwrap_or(0));
                    check(said, seen, (name, &trunk), frame);
                }
                // Taken in any case: what comes next is about the next frame.
                if let (Some(admitted), Some(said)) = (self.admitted(at), said)
                    && !is_fragment(frame)
                {
                    check_rules(said, &admitted, frame);
                }
            }
            for (all, seen) in all.iter_mut().zip(seen) {
                all.received.extend(seen.received);
                for (drop, n) in seen.drops {
                    *all.drops.entry(drop).or_default() += n;
                }
            }
        }
        all
    }
}
