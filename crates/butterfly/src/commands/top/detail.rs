//! More about one vnic: its rules and sessions.

use super::sample::NicCounts;
use crate::commands::sessions::row;
use crate::commands::sg::rule_text;
use crate::daemon::session::Session;
use crate::failure::Failure;
use butterfly_api::proto::{Request, SessionFilter, SessionListReq, SgRuleStats};
use protobuf::MessageField;
use std::collections::BTreeSet;

/// Sessions that are shown of one vnic.
const SESSIONS: u32 = 200;

/// Details of one vnic, as it was at the last look.
#[derive(Default)]
pub struct Detail {
    /// Group, rule, sessions that it admitted.
    pub rules: Vec<(String, String, u64)>,
    /// Sessions as `butterfly sessions` has them.
    pub sessions: Vec<[String; 11]>,
    /// Number of all sessions.
    pub matching: u64,
}

/// Asks for it.
pub fn take(
    id: &str,
    nic: &NicCounts,
    existing: &BTreeSet<String>,
    session: &mut Session,
) -> Result<Detail, Failure> {
    if nic.is_wire {
        return Ok(Detail::default());
    }
    let filter = SessionFilter { nic_id: Some(id.to_owned()), ..SessionFilter::default() };
    let list = SessionListReq {
        filter: MessageField::some(filter),
        limit: Some(SESSIONS),
        ..SessionListReq::default()
    };
    let mut requests =
        vec![Request { session_list: MessageField::some(list), ..Request::default() }];
    // Those that do not exist would be refused, and failures are events.
    let groups = || nic.groups.iter().filter(|group| existing.contains(*group));
    requests.extend(
        groups().map(|group| Request { sg_rule_stats: Some(group.clone()), ..Request::default() }),
    );
    let mut answers = session.ask_each(requests)?.into_iter();
    let found = answers
        .next()
        .flatten()
        .and_then(|answer| answer.session_list.into_option())
        .unwrap_or_default();
    let mut rules = Vec::new();
    for (group, answer) in groups().zip(answers) {
        let stats: Vec<SgRuleStats> = answer.map(|answer| answer.sg_rule_stats).unwrap_or_default();
        rules.extend(
            stats.iter().map(|stats| (group.clone(), rule_text(&stats.rule), stats.sessions())),
        );
    }
    Ok(Detail {
        rules,
        sessions: found.session.iter().map(row).collect(),
        matching: found.matching(),
    })
}
