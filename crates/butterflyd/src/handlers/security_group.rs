//! Requests about security groups, of which there are none yet.
//!
//! What asks finds nothing; what would change something is refused, once it is known to be well-formed: to let it pass and filter
//! nothing would be worse.

use crate::convert;
use butterfly_api::{Action, Answer, Failure, proto::Response};
use butterfly_model::parse_ip;

pub(super) fn handle(action: Action<'_>) -> Answer {
    match action {
        Action::SgList | Action::SgDetails("") => Ok(Response::new()),
        Action::SgDetails(_) => Err(Failure::new("Sg not found")),
        Action::SgRuleList(_) | Action::SgMemberList(_) => Err(Failure::new("Security Group not found")),
        Action::SgAdd(group) => convert::security_group(group).and_then(refused),
        Action::SgRuleAdd(request) => convert::rule(&request.rule).and_then(refused),
        Action::SgRuleDel(request) => convert::rule(&request.rule).and_then(refused),
        Action::SgMemberAdd(request) => member(request.member()).and_then(refused),
        Action::SgMemberDel(request) => member(request.member()).and_then(refused),
        _ => refused(()),
    }
}

fn member(text: &str) -> Result<std::net::IpAddr, Failure> {
    parse_ip(text).map_err(|error| Failure::new("Bad IP format").with_help(error.to_string()))
}

fn refused<T>(_: T) -> Answer {
    Err(Failure::new("security groups are not available in this version yet").with_help(
        "until they are, a nic without bypass_filtering passes no IP at all; names of groups in a nic's declaration are kept",
    ))
}
