//! Changes of other hosts since the last look, for the operator.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_packet::mac::Mac;

use crate::engine::events::{About, Happening, SwitchEvents};
use crate::engine::place::PeerRef;
use crate::overlay::peers::{MAX_PEERS, PeerRow};

struct Seen {
    address: IpAddr,
    mac: Option<Mac>,
    named: bool,
}

/// The table of peers as of the last look.
#[derive(Default)]
pub(super) struct PeerWatch {
    seen: BTreeMap<PeerRef, Seen>,
    full: bool,
}

impl PeerWatch {
    /// Tells the changes. The code that adds or removes a named peer tells of that itself.
    pub fn look(&mut self, rows: &[PeerRow], events: &dyn SwitchEvents) {
        let tell = |what: Happening<'_>| events.happened(About::default(), what);
        let seen: BTreeMap<PeerRef, Seen> = rows
            .iter()
            .map(|row| (row.at, Seen { address: row.address, mac: row.mac, named: row.configured }))
            .collect();
        let before = std::mem::replace(&mut self.seen, seen);
        for (at, gone) in &before {
            if !self.seen.contains_key(at) && !gone.named {
                tell(Happening::PeerForgotten(gone.address));
            }
        }
        for (at, now) in &self.seen {
            let old = before.get(at);
            if old.is_none() && !now.named {
                tell(Happening::PeerLearnt(now.address));
            }
            match (old.and_then(|old| old.mac), now.mac) {
                (None, Some(mac)) => tell(Happening::NextHopFound(now.address, mac)),
                (Some(old), Some(new)) if old != new => {
                    tell(Happening::NextHopMoved(now.address, old, new))
                }
                (Some(_), None) => tell(Happening::NextHopLost(now.address)),
                _ => {}
            }
        }
        let full = rows.len() >= MAX_PEERS;
        if full != std::mem::replace(&mut self.full, full) {
            tell(Happening::PeersFull(full));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::peers::PeerTable;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl SwitchEvents for Told {
        fn happened(&self, about: About<'_>, what: Happening<'_>) {
            assert_eq!(about, About::default());
            self.0.lock().unwrap().push(format!("{what:?}"));
        }
    }

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn what_becomes_of_a_peer_is_told_once() {
        let (peers, told) = (PeerTable::new(1), Told::default());
        let mut watch = PeerWatch::default();
        let mut look = |expected: &[&str]| {
            watch.look(&peers.list(600), &told);
            let told = std::mem::take(&mut *told.0.lock().unwrap());
            let kinds: Vec<&str> =
                told.iter().map(|text| text.split('(').next().unwrap()).collect();
            assert_eq!(kinds, expected, "{told:?}");
        };
        look(&[]);
        let named = peers.configure(ip(1)).unwrap();
        look(&[]);
        let learnt = peers.try_add(crate::world::rules::number(ip(2)), 42, 600).unwrap();
        peers.get(learnt).unwrap().heard(Mac([2, 0, 0, 0, 0, 2]), 600);
        look(&["PeerLearnt", "NextHopFound"]);
        look(&[]);
        peers.get(named).unwrap().set_mac(Some(Mac([2, 0, 0, 0, 0, 1])));
        peers.get(learnt).unwrap().set_mac(Some(Mac([2, 0, 0, 0, 0, 3])));
        look(&["NextHopFound", "NextHopMoved"]);
        peers.get(named).unwrap().set_mac(None);
        look(&["NextHopLost"]);
        peers.expire(1000, 300);
        look(&["PeerForgotten"]);
        peers.unconfigure(ip(1));
        look(&[]);
        peers.expire(1000, 300);
        look(&["PeerForgotten"]);
    }

    #[test]
    fn a_full_table_is_told_once() {
        let (peers, told) = (PeerTable::new(1), Told::default());
        let mut watch = PeerWatch::default();
        for n in 1..20_000 {
            peers.configure(ip(n));
        }
        watch.look(&peers.list(1), &told);
        watch.look(&peers.list(1), &told);
        peers.unconfigure(ip(1));
        peers.expire(1000, 300);
        watch.look(&peers.list(1000), &told);
        let told = told.0.into_inner().unwrap();
        assert_eq!(told, ["PeersFull(true)", "PeersFull(false)"]);
    }
}
