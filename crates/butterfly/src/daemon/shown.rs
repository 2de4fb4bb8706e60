//! State of vnics, as the daemon reports it.

use crate::daemon::session::Session;
use crate::failure::Failure;
use butterfly_api::proto::{NicShow, Request};

/// Vnics of one batch of questions.
const BATCH: usize = 256;

/// Returns the state of the vnics with these ids. One that went in between is left out: the rest
/// counts.
pub fn shown(ids: &[String], session: &mut Session) -> Result<Vec<NicShow>, Failure> {
    let mut nics = Vec::with_capacity(ids.len());
    for ids in ids.chunks(BATCH) {
        let asked = ids
            .iter()
            .map(|id| Request { nic_show: Some(id.clone()), ..Request::default() })
            .collect();
        let answers = session.ask_each(asked)?.into_iter().flatten();
        nics.extend(answers.filter_map(|answer| answer.nic_show.into_option()));
    }
    Ok(nics)
}
