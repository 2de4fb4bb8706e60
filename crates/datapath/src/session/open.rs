//! The table of a start: a new one, or that of a process that died.

use std::time::Instant;

use crate::session::{
    config::SessionConfig,
    former::{FormerTable, Unusable, may_adopt},
    hash::HashKey,
    layout::Here,
    memory::{Fate, UnitsError},
    table::Table,
};

/// Makes the table that the settings ask for, or adopts the one that is there, repaired. Also
/// returns the tables that were found.
pub(crate) fn open(
    config: &SessionConfig,
    key: HashKey,
    now: u32,
) -> Result<(Table, Vec<FormerTable>), UnitsError> {
    let Some(name) = &config.file else {
        return Ok((Table::new(config.capacity, key)?, Vec::new()));
    };
    let here = Here::read();
    let mut found = Vec::new();
    let mut adopts = None;
    let table = Table::in_file(config.capacity, name, key, here, |path, left| {
        if !config.adopt {
            found.push(FormerTable::look(path, left, &here, &config.timeouts, now));
            return Fate::Remove;
        }
        let (fate, why) = match may_adopt(left, &here, config.capacity) {
            // As long as it is not mapped.
            Ok(()) if adopts.is_none() => (Fate::Adopt, Unusable::Unmapped),
            Ok(()) => (Fate::Remove, Unusable::Second),
            Err(why) => (Fate::Remove, why),
        };
        if fate == Fate::Adopt {
            adopts = Some(found.len());
        }
        found.push(FormerTable { path: path.to_owned(), found: Err(why), adopted: None });
        fate
    })?;
    if table.units().adopted()
        && let Some(former) = adopts.and_then(|at| found.get_mut(at))
    {
        let begun = Instant::now();
        former.found = Ok(table.repair(&config.timeouts, now));
        former.adopted = Some(begun.elapsed());
    }
    Ok((table, found))
}
