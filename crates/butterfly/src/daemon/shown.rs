//! What NICs are doing, as the daemon tells it.

use crate::daemon::session::Session;
use crate::failure::Failure;
use butterfly_api::proto::{NicShow, Request};

/// NICs that are asked about in one batch.
const BATCH: usize = 256;

/// What the NICs with these ids are doing. One that went in between is not there any more: the rest
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
