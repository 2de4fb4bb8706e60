//! Adopted tables of sessions: the counts that must be exact, and tables with any contents.

use std::sync::atomic::Ordering::Relaxed;

use crate::harness::{Host, error::Error};
use crate::ip::{Tuple, tcp::TcpState};
use crate::session::{
    Admitted, FormerSessions, HashKey, Key, Life, NO_TRACK, Name, Past, State, Table, Timeouts,
    Zone,
};

/// Records of a [`LeftTable`], and the second in which it is adopted.
const CAPACITY: u32 = 64;
const NOW: u32 = 1000;

impl Host {
    /// Notes that all vnics of an adopted table are declared. Returns the number of sessions that
    /// ended.
    pub fn all_declared(&mut self) -> u64 {
        self.plane.all_declared()
    }

    /// Checks the table of sessions, and that the counts of vnics and networks are those of its
    /// records. Returns the number of records.
    pub fn count_sessions(&self) -> Result<u64, Error> {
        let shared = &self.plane.shared;
        let used = shared.table.whole()?;
        let snapshot = shared.snapshot.load();
        let mut keys = Vec::new();
        shared.table.for_each(|_, _, key, admission| keys.push((key, admission.stamp)));
        for (slot, vnic) in snapshot.vnics.iter() {
            let of = |pick: fn(&Key) -> u32| {
                let here = |(key, stamp): &&(Key, u32)| pick(key) == slot && vnic.born <= *stamp;
                keys.iter().filter(here).count() as u32
            };
            let counts = &vnic.shared.sessions;
            let counted = (counts.opened.load(Relaxed), counts.received.load(Relaxed));
            let there = (of(|key| key.slots().0), of(|key| key.slots().1));
            if counted != there {
                return Err(format!("{} counts {counted:?}, not {there:?}", vnic.id).into());
            }
        }
        for (_, network) in snapshot.networks.iter() {
            let here =
                |(key, stamp): &&(Key, u32)| key.vni() == network.vni && network.born <= *stamp;
            let (counted, there) =
                (network.sessions.load(Relaxed), keys.iter().filter(here).count() as u32);
            if counted != there {
                return Err(format!("VNI {} counts {counted}, not {there}", network.vni).into());
            }
        }
        Ok(used)
    }
}

/// A small table of sessions as a dead process left it, to be damaged and adopted.
pub struct LeftTable {
    words: Vec<u64>,
}

impl LeftTable {
    /// Makes a table with sessions of some vnics.
    pub fn new() -> Result<LeftTable, Error> {
        let table = Table::with_names(CAPACITY, HashKey([1, 3, 5, 7]))?;
        for slot in 0..4 {
            let name = Name { id: format!("nic-{slot}").into(), vni: 7, born: 2 };
            table.name(slot, Some(&name));
        }
        (0..40).for_each(|n| add(&table, n, 3));
        Ok(LeftTable { words: table.words() })
    }

    /// Returns its words. The first 8 and those of the boot, the host and the hash in the header
    /// are as they must be when it is adopted.
    pub fn words(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Adopts the table. Returns its sessions, or what is wrong with it after that, or after
    /// sessions came and went.
    pub fn adopt(&self) -> Result<FormerSessions, Error> {
        let table = Table::with_names(CAPACITY, HashKey([1, 3, 5, 7]))?;
        // The rest of the header was checked before.
        table.set_left(&self.words);
        let found = table.repair(&Timeouts::default(), NOW);
        let used = table.whole()?;
        if used < found.sessions {
            return Err(format!("{found:?}, and {used} are there").into());
        }
        (1000..1100).for_each(|n| add(&table, n, 5));
        table.whole()?;
        let mut all = Vec::new();
        table.for_each(|index, _, key, _| all.push((index, key)));
        if !all.iter().all(|(index, key)| table.remove(*index, key)) || table.whole()? != 0 {
            return Err("not all sessions could be removed".into());
        }
        Ok(found)
    }
}

/// Adds session number `n`, in place of another one if need be.
fn add(table: &Table, n: u16, stamp: u32) {
    let tuple = Tuple {
        source: 0xffff_0a00_0001,
        destination: 0xffff_0a00_0002,
        source_port: n,
        destination_port: 80,
        vlan: 0,
        protocol: 6,
    };
    let key = Key::new(&tuple, Zone::of(7), u32::from(n) % 4, (u32::from(n) + 1) % 4);
    let admission = Admitted { stamp, cells: [1, 2], answers: true };
    let state = State::Tcp(TcpState::Established);
    let life = Life { now: NOW - 10, state, track: NO_TRACK, past: Past::NONE };
    let _ = table.insert(table.hash(&key), &key, admission, &life, |_| true, |_, _, _| ());
}
