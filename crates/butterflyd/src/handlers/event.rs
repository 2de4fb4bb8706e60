//! The request for the record of events.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::{Event, Query},
};
use butterfly_api::{
    Answer, Failure,
    proto::{self, EventListReq, EventListRes, Response},
};
use protobuf::MessageField;
use std::borrow::Cow;

/// Events listed if no limit is given.
const DEFAULT_LIMIT: u32 = 1000;
/// Most events listed: as many as are kept.
const MAX_LIMIT: u32 = 10_000;

impl<D: Dataplane> Daemon<D> {
    /// A vnic that is gone has events, so one that never was is no error.
    pub(super) fn event_list(&self, request: &EventListReq) -> Answer {
        let limit = request.limit.unwrap_or(DEFAULT_LIMIT);
        if limit > MAX_LIMIT {
            return Err(Failure::new(format!("limit {limit} is out of range: 0 to {MAX_LIMIT}"))
                .with_help("that is as many as are kept; go on with since"));
        }
        let listing = self.events.list(&Query {
            since: request.since(),
            limit: limit as usize,
            nic: request.nic_id.as_deref(),
            newest: request.newest(),
        });
        let list = EventListRes {
            event: listing.events.into_iter().map(event).collect(),
            next: Some(listing.next),
            lost: Some(listing.lost),
            started: Some(self.events.started()),
            ..Default::default()
        };
        Ok(Response { event_list: MessageField::some(list), ..Default::default() })
    }
}

fn event(event: Event) -> proto::Event {
    proto::Event {
        seq: Some(event.seq),
        time: Some(event.time),
        kind: Some(event.kind.name().to_owned()),
        nic_id: event.nic.map(|nic| (*nic).to_owned()),
        vni: event.vni,
        text: Some(event.text),
        request: event.request.map(Cow::into_owned),
        client: event.client.map(|client| client.to_string()),
        more: (event.more != 0).then_some(event.more),
        taken_back: event.taken_back.then_some(true),
        ..Default::default()
    }
}
