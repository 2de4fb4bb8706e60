//! One look at the daemon.

use crate::commands::external;
use crate::daemon::session::Session;
use crate::daemon::shown::shown;
use crate::failure::Failure;
use butterfly_api::proto::{External, NicShow, Request, Wire};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Counts until some moment.
pub struct Sample {
    pub at: Instant,
    /// Counts by id of the vnic.
    pub nics: BTreeMap<String, NicCounts>,
    /// Sessions in use, and most there can be.
    pub sessions: (u32, u32),
    /// Cycles of workers in which they had something to do, and a second's.
    pub busy: (u64, u64),
    pub workers: u32,
    /// Security groups that exist.
    pub groups: BTreeSet<String>,
}

/// Counts of one vnic, since it was made.
#[derive(Clone, Debug, Default)]
pub struct NicCounts {
    pub vni: u32,
    pub attached: bool,
    /// True for the wire of an external, behind which is no machine.
    pub is_wire: bool,
    pub filtered: bool,
    pub sessions: u32,
    /// Packets and bytes from the machine.
    pub from: (u64, u64),
    /// Packets and bytes to it.
    pub to: (u64, u64),
    /// Drops by reason, with its meaning. Harmless ones are left out.
    pub drops: BTreeMap<String, (u64, String)>,
    pub groups: Vec<String>,
}

impl NicCounts {
    /// Returns the state of what is behind it, in a word.
    pub fn behind(&self) -> &'static str {
        match (self.is_wire, self.attached) {
            (true, true) => "up",
            (true, false) => "down",
            (false, true) => "attached",
            (false, false) => "-",
        }
    }

    /// All drops.
    pub fn dropped(&self) -> u64 {
        self.drops.values().map(|(count, _)| count).sum()
    }
}

/// Asks for everything.
pub fn take(session: &mut Session) -> Result<Sample, Failure> {
    let first = vec![
        Request { nic_list: Some(true), ..Request::default() },
        Request { session_table: Some(true), ..Request::default() },
        Request { worker_list: Some(true), ..Request::default() },
        Request { sg_list: Some(true), ..Request::default() },
    ];
    let at = Instant::now();
    let mut answers = session.ask_all(first)?.into_iter();
    let (list, table, workers, groups) =
        (answers.next(), answers.next(), answers.next(), answers.next());
    let ids = list.map(|answer| answer.nic_list).unwrap_or_default();
    let table = table.and_then(|answer| answer.session_table.into_option()).unwrap_or_default();
    let workers = workers.map(|answer| answer.worker_list).unwrap_or_default();
    let mut nics: BTreeMap<String, NicCounts> =
        shown(&ids, session)?.into_iter().map(|nic| (nic.id().to_owned(), counts(&nic))).collect();
    nics.extend(wires(session)?);
    Ok(Sample {
        at,
        nics,
        sessions: (table.used(), table.capacity()),
        busy: (
            workers.iter().map(|worker| worker.busy_cycles()).sum(),
            workers.first().map_or(0, |worker| worker.tsc_hz()),
        ),
        workers: workers.len() as u32,
        groups: groups.map(|answer| answer.sg_list).unwrap_or_default().into_iter().collect(),
    })
}

/// Asks for the wires of externals, which are like vnics. An older daemon knows none.
fn wires(session: &mut Session) -> Result<Vec<(String, NicCounts)>, Failure> {
    let answer = session.ask_each(vec![external::all()])?.pop().flatten();
    let externals = answer.map(|answer| answer.external_list).unwrap_or_default();
    let counted = |of: &External| Some((format!("wire/{}", of.id()), wire(of, of.wire.as_ref()?)));
    Ok(externals.iter().filter_map(counted).collect())
}

fn wire(external: &External, wire: &Wire) -> NicCounts {
    let told = |reason: &str, count, text: &str| (reason.to_owned(), (count, text.to_owned()));
    let drops = wire.drop.iter().filter(|drop| !drop.harmless());
    let drops = drops.map(|drop| told(drop.reason(), drop.count(), drop.description()));
    let losses = wire.loss.iter().map(|it| told(it.reason(), it.count(), it.description()));
    NicCounts {
        vni: external.vni(),
        attached: wire.trouble.is_none(),
        is_wire: true,
        from: (wire.in_packets(), wire.in_bytes()),
        to: (wire.out_packets(), wire.out_bytes()),
        drops: drops.chain(losses).collect(),
        ..NicCounts::default()
    }
}

fn counts(nic: &NicShow) -> NicCounts {
    let drops = nic.drops.iter().filter(|drop| drop.count() > 0 && !drop.harmless());
    NicCounts {
        vni: nic.vni(),
        attached: nic.attached(),
        is_wire: false,
        filtered: !nic.bypass_filtering(),
        sessions: nic.sessions(),
        from: (nic.in_packets(), nic.in_bytes()),
        to: (nic.out_packets(), nic.out_bytes()),
        drops: drops
            .map(|drop| (drop.reason().to_owned(), (drop.count(), drop.description().to_owned())))
            .collect(),
        groups: nic.security_group.clone(),
    }
}
