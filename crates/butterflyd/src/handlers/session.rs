//! Requests about sessions.

use super::Daemon;
use crate::{
    config::timeouts,
    dataplane::Dataplane,
    events::{Kind, counted},
    handlers::convert,
};
use butterfly_api::{
    Answer, Failure,
    proto::{
        self, Response, Session, SessionAdmission, SessionFlushRes, SessionListReq, SessionListRes,
        session, session_admission,
    },
};
use butterfly_datapath::{Admission, SessionEnd, SessionFilter, SessionRow};
use butterfly_model::{Vni, canonical};
use protobuf::MessageField;

/// Sessions listed if no limit is given.
const DEFAULT_LIMIT: u32 = 1000;
/// Most sessions listed: this many surely fit into a reply.
const MAX_LIMIT: u32 = 10_000;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn session_list(&self, request: &SessionListReq) -> Answer {
        let filter = self.session_filter(&request.filter)?;
        let limit = request.limit.unwrap_or(DEFAULT_LIMIT);
        if limit > MAX_LIMIT {
            return Err(Failure::new(format!("limit {limit} is out of range: 0 to {MAX_LIMIT}"))
                .with_help("to see others, filter by nic, network, protocol, address or port"));
        }
        let (matching, rows) = self.dataplane.sessions(&filter, limit as usize);
        let session = rows.into_iter().map(|row| self.session(row)).collect();
        let list = SessionListRes { matching: Some(matching), session, ..Default::default() };
        Ok(Response { session_list: MessageField::some(list), ..Default::default() })
    }

    pub(super) fn session_flush(&mut self, request: &proto::SessionFilter) -> Answer {
        let filter = self.session_filter(request)?;
        let flushed = self.dataplane.flush_sessions(&filter);
        self.tell(Kind::SessionsFlushed, format!("{} flushed", counted(flushed, "session")));
        let result = SessionFlushRes { flushed: Some(flushed), ..Default::default() };
        Ok(Response { session_flush: MessageField::some(result), ..Default::default() })
    }

    pub(super) fn session_table(&self) -> Answer {
        let table = self.dataplane.session_table();
        let timeout = timeouts::ALL.iter().map(|timeout| proto::session_table::Timeout {
            name: Some(timeout.name.to_owned()),
            seconds: Some(timeout.of(&table.timeouts)),
            description: Some(timeout.description.to_owned()),
            ..Default::default()
        });
        let table = proto::SessionTable {
            capacity: Some(table.capacity),
            used: Some(table.used),
            memory: Some(table.memory),
            tcp_pickup: Some(table.tcp_pickup),
            share: Some(table.share),
            timeout: timeout.collect(),
            ..Default::default()
        };
        Ok(Response { session_table: MessageField::some(table), ..Default::default() })
    }

    fn session(&self, row: SessionRow) -> Session {
        let ends = [&row.opener, &row.responder].map(|end| self.end(end));
        session(row, ends)
    }

    fn end(&self, end: &SessionEnd) -> session::End {
        let outside = end.outside.as_ref().map(|outside| session::Outside {
            external: self.external_of(outside.vni),
            address: Some(canonical(outside.address)),
            port: Some(outside.port.into()),
            ..Default::default()
        });
        session::End {
            nic_id: end.nic.clone(),
            address: Some(canonical(end.address)),
            port: Some(end.port.into()),
            outside: outside.into(),
            ..Default::default()
        }
    }

    fn session_filter(&self, request: &proto::SessionFilter) -> Result<SessionFilter, Failure> {
        if let Some(id) = &request.nic_id {
            self.declared(id)?;
        }
        if let Some(vni) = request.vni {
            Vni::new(vni).map_err(|error| Failure::new(error.to_string()))?;
        }
        Ok(SessionFilter {
            nic: request.nic_id.clone(),
            vni: request.vni,
            protocol: in_range("protocol", request.protocol, u8::MAX)?,
            address: request.address.as_deref().map(convert::address).transpose()?,
            port: in_range("port", request.port, u16::MAX)?,
        })
    }
}

/// A number that fits, or why it does not.
pub(super) fn in_range<T: TryFrom<u32> + std::fmt::Display>(
    what: &str,
    number: Option<u32>,
    most: T,
) -> Result<Option<T>, Failure> {
    let Some(number) = number else { return Ok(None) };
    let fits = T::try_from(number)
        .map_err(|_| Failure::new(format!("{what} {number} is out of range: 0 to {most}")))?;
    Ok(Some(fits))
}

fn session(row: SessionRow, [opener, responder]: [session::End; 2]) -> Session {
    let [egress, ingress] = row.rule.map(admission);
    Session {
        vni: Some(row.vni),
        vlan: row.vlan.map(u32::from),
        protocol: Some(row.protocol.into()),
        opener: MessageField::some(opener),
        responder: MessageField::some(responder),
        state: Some(row.state.to_owned()),
        age: Some(row.age.into()),
        idle: Some(row.idle.into()),
        expires: Some(row.expires.into()),
        opener_packets: Some(row.packets[0]),
        opener_bytes: Some(row.bytes[0]),
        responder_packets: Some(row.packets[1]),
        responder_bytes: Some(row.bytes[1]),
        egress: MessageField::some(egress),
        ingress: MessageField::some(ingress),
        ..Default::default()
    }
}

pub(super) fn admission(admission: Admission) -> SessionAdmission {
    use session_admission::Kind;
    let (kind, rule) = match admission {
        Admission::Bypass => (Kind::BYPASS, None),
        Admission::OtherHost => (Kind::OTHER_HOST, None),
        Admission::DefaultEgress => (Kind::DEFAULT_EGRESS, None),
        Admission::Rule { group, rule } => (Kind::RULE, Some((group, rule))),
        Admission::Gone => (Kind::GONE, None),
    };
    let mut message = SessionAdmission { kind: Some(kind.into()), ..Default::default() };
    if let Some((group, rule)) = rule {
        message.security_group = Some(group.as_str().to_owned());
        message.rule = MessageField::some(convert::rule_details(&rule));
    }
    message
}
