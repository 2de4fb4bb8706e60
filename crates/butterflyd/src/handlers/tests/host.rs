//! A daemon whose data path only remembers.

use super::{BYPASS, NIC};
use crate::{
    announce::Announcer,
    dataplane::Dataplane,
    handlers::Daemon,
    log::{Level, LogLevel},
    registry::Registry,
};
use butterfly_api::{
    Envelope,
    proto::{Messages, Response},
    text,
};
use butterfly_datapath::{
    AddError, DeviceStatus, FdbKind, FdbRow, Features, Mac, Negotiated, RingStatus, VnicPolicy, VnicReport, VnicSpec,
    WorkerReport,
};
use butterfly_model::SocketDir;
use butterfly_vhost::{control::Detach, memory::RegionInfo};
use protobuf::Message;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::Receiver,
    time::{Duration, UNIX_EPOCH},
};

/// Remembers vnics and what was asked; refuses what it is told to.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) vnics: BTreeMap<String, VnicSpec>,
    calls: Vec<String>,
    /// The next calls that may fail: do they?
    pub(super) refusals: VecDeque<Option<&'static str>>,
}

impl Fake {
    fn outcome(&mut self) -> Result<(), AddError> {
        match self.refusals.pop_front().flatten() {
            Some(reason) => Err(AddError::Device(reason.into())),
            None => Ok(()),
        }
    }

    pub(super) fn take_calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

impl Dataplane for Fake {
    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError> {
        self.calls.push(format!("add {}", spec.id));
        self.outcome()?;
        assert!(self.vnics.insert(spec.id.clone(), spec).is_none(), "added twice");
        Ok(())
    }

    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        self.calls.push(format!("update {id}"));
        self.outcome()?;
        self.vnics.get_mut(id).unwrap().policy = policy;
        Ok(())
    }

    fn remove_vnic(&mut self, id: &str) {
        self.calls.push(format!("remove {id}"));
        assert!(self.vnics.remove(id).is_some(), "{id} is not there");
    }

    fn vnic(&self, id: &str) -> Option<VnicReport> {
        let spec = self.vnics.get(id)?.clone();
        let ring = RingStatus { size: 256, enabled: true, next_avail: 3, avail_idx: 5, used_idx: 2, broken: true };
        let attached = Negotiated {
            since: UNIX_EPOCH + Duration::from_secs(1000),
            peer_pid: Some(77),
            features: Some(Features::OFFERED.without(Features::IN_ORDER)),
            protocol_features: Some(1 << 3),
            memory: vec![RegionInfo { guest_addr: 0x1000, size: 0x2000, page_size: 4096 }],
            logging: true,
            rx_trouble: Some("no memory".into()),
            tx_trouble: None,
        };
        let device = DeviceStatus {
            role: spec.role,
            path: spec.path.clone(),
            offered: Features::OFFERED,
            attached: Some(attached),
            rx: None,
            tx: Some(ring),
            others_waiting: true,
            attach_count: 4,
            last_detach: Some(Detach { reason: "it crashed".into(), at: UNIX_EPOCH + Duration::from_secs(900) }),
            trouble: Some("trouble".into()),
        };
        let drops = butterfly_datapath::reasons().zip(1..).collect();
        Some(VnicReport { spec, device, received: (1, 100), delivered: (2, 200), flooded: 5, learn_refused: 6, drops })
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        let row = |vni, kind, idle| FdbRow { vni, mac: Mac([2, 0, 0, 0, 0, 1]), id: "n".into(), kind, idle };
        let all = [row(1, FdbKind::Static, None), row(2, FdbKind::Learnt, Some(7))];
        all.into_iter().filter(|row| vni.is_none_or(|vni| vni == row.vni)).collect()
    }

    fn workers(&self) -> Vec<WorkerReport> {
        vec![WorkerReport {
            index: 0,
            core: Some(1),
            poll: true,
            busy_cycles: 10,
            packets: 11,
            batches: 12,
            sleeps: 13,
            idle_polls: 14,
            active_rings: 15,
            batch_sizes: vec![1, 2],
            tsc_hz: 16,
        }]
    }
}

/// A daemon and what it said.
pub(super) struct Host {
    pub(super) envelope: Envelope<Daemon<Fake>>,
    pub(super) levels: Receiver<Level>,
}

impl Host {
    pub(super) fn new() -> Self {
        let (sender, levels) = std::sync::mpsc::channel();
        let (announcer, _) = Announcer::start(std::io::sink()).unwrap();
        let daemon = Daemon {
            dataplane: Fake::default(),
            nics: Registry::default(),
            socket_dir: SocketDir::new("/run/b".into()),
            ip: "192.0.2.1".parse().unwrap(),
            announcer,
            log_level: LogLevel::recorded(sender),
            start_date: 1_700_000_000,
            quit: false,
        };
        Self { envelope: Envelope::new(daemon), levels }
    }

    /// One with the vnic `n` of network 1, filtered, with an address and a group, and `bypass` of network 2.
    pub(super) fn with_nics() -> Self {
        let mut host = Self::new();
        host.succeeds(NIC);
        host.succeeds(BYPASS);
        host.fake().take_calls();
        host
    }

    pub(super) fn fake(&mut self) -> &mut Fake {
        &mut self.envelope.handler_mut().dataplane
    }

    pub(super) fn ask(&mut self, request: &str) -> Response {
        let envelope = format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}");
        let envelope: Messages = text::parse(&envelope).expect(request);
        let reply = self.envelope.answer(&envelope.write_to_bytes().unwrap());
        let reply = Messages::parse_from_bytes(&reply).unwrap();
        reply.messages[0].message_0.response.clone().unwrap()
    }

    /// The response without its status, on one line.
    #[track_caller]
    pub(super) fn succeeds(&mut self, request: &str) -> String {
        let mut response = self.ask(request);
        assert!(response.status.status(), "{request}: {response}");
        assert!(response.status.error.is_none(), "{request}: {response}");
        response.status.clear();
        one_line(&text::print(&response))
    }

    /// Description and help.
    #[track_caller]
    pub(super) fn fails(&mut self, request: &str) -> (String, String) {
        let response = self.ask(request);
        assert!(!response.status.status(), "{request} succeeded: {response}");
        let error = &response.status.error;
        (error.description().to_owned(), error.help().to_owned())
    }

    /// Everything that was declared.
    pub(super) fn declared(&mut self) -> String {
        self.succeeds("nic_details: \"\"")
    }
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
