//! Requests that tell what the data path does.

use super::{Daemon, nic::unknown};
use crate::{dataplane::Dataplane, handlers::convert, host::time::seconds_since_epoch};
use butterfly_api::{
    Answer, Failure,
    proto::{
        FdbEntry, FdbListReq, NicShow, NicStats, Pings, Response, Worker, WorkerRing, fdb_entry,
        nic_show::{Drop, FirstTouches, Interrupts, MemoryRegion, Mirror, Queue},
    },
};
use butterfly_datapath::{
    DeviceStatus, FdbKind, FdbRow, GuestReport, Queue as RingIndex, ReasonInfo, RingStatus,
    StationState, VnicReport, WorkerReport,
};
use butterfly_model::{Kind, Nic, Vni, canonical};
use protobuf::MessageField;
use std::time::Duration;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn nic_stats(&self, id: &str) -> Answer {
        let (nic, report) = self.report(id)?;
        let (received, delivered) = (report.received.1, report.delivered.1);
        // The original's generator counts from its own end.
        let (in_, out) = if matches!(nic.kind, Kind::Bench(_)) {
            (delivered, received)
        } else {
            (received, delivered)
        };
        let stats = NicStats {
            in_: Some(in_),
            out: Some(out),
            pings: pings(&report).into(),
            ..Default::default()
        };
        Ok(Response { nic_stats: MessageField::some(stats), ..Default::default() })
    }

    pub(super) fn nic_show(&self, id: &str) -> Answer {
        self.declared(id)?;
        let (nic, report) = self.report(id)?;
        let host_mtu = self.dataplane.inner_mtu();
        let packet_trace = self.recorder.status(id).into();
        let mirror = nic.sniff_target.as_ref().map(|target| Mirror {
            target: Some(target.clone()),
            idle: self
                .desired
                .vnics()
                .get(target)
                .is_none()
                .then(|| "there is no such nic yet".to_owned()),
            ..Default::default()
        });
        let mirrored_by =
            self.desired.vnics().mirrors_of(id).map(|nic| nic.id.as_str().to_owned()).collect();
        let missing_group = nic
            .security_groups
            .names()
            .iter()
            .filter(|name| !nic.bypass_filtering && !self.desired.groups().contains_key(*name));
        let missing_group = missing_group.map(|name| name.as_str().to_owned()).collect();
        let held = self.held_for(id);
        let routed = self.desired.routed();
        let unrouted = nic.prefixes.iter().filter(|prefix| !routed.may_route(nic.vni, *prefix));
        let show = NicShow {
            prefix_unrouted: unrouted.map(|prefix| prefix.to_string()).collect(),
            path: self.path(nic),
            host_mtu,
            packet_trace,
            mirror: mirror.into(),
            mirrored_by,
            missing_group,
            held: held.as_ref().map(|held| held.why.clone()),
            held_for_s: held.as_ref().map(|held| held.left),
            ..show(nic, &report)
        };
        Ok(Response { nic_show: MessageField::some(show), ..Default::default() })
    }

    pub(super) fn fdb_list(&self, request: &FdbListReq) -> Answer {
        if let Some(vni) = request.vni {
            Vni::new(vni).map_err(|error| Failure::new(error.to_string()))?;
        }
        let fdb_list = self.dataplane.fdb(request.vni).into_iter().map(fdb_entry).collect();
        Ok(Response { fdb_list, ..Default::default() })
    }

    pub(super) fn worker_list(&self) -> Answer {
        let worker_list = self.dataplane.workers().into_iter().map(worker).collect();
        Ok(Response { worker_list, ..Default::default() })
    }

    fn report(&self, id: &str) -> Result<(&Nic, VnicReport), Failure> {
        let nic = self.desired.vnics().get(id).ok_or_else(|| unknown(id))?;
        let report = self.dataplane.vnic(id).ok_or_else(|| {
            Failure::new(format!("NIC {id} is not in the data path"))
                .with_help("please report this; nic del and nic add repair it")
        })?;
        Ok((nic, report))
    }
}

fn show(nic: &Nic, report: &VnicReport) -> NicShow {
    let device = &report.device;
    let attached = device.attached.as_ref();
    let detach = device.last_detach.as_ref();
    NicShow {
        id: Some(nic.id.as_str().to_owned()),
        mac: Some(nic.mac.text().to_owned()),
        vni: Some(nic.vni.number()),
        type_: Some(convert::nic_type(&nic.kind).into()),
        role: device.socket.as_ref().map(|(role, _)| role.name().to_owned()),
        attached: Some(attached.is_some()),
        attached_since: attached.map(|attached| seconds_since_epoch(attached.since)),
        features_offered: device.offered.names(),
        features_negotiated: attached
            .and_then(|attached| attached.features)
            .map(|features| features.names())
            .unwrap_or_default(),
        features_refused: attached.map(|attached| attached.declined().names()).unwrap_or_default(),
        protocol_features: attached
            .map(|attached| attached.protocol_feature_names())
            .unwrap_or_default(),
        queues: queues(device),
        memory_regions: memory_regions(device),
        last_detach_reason: detach.map(|detach| detach.reason.clone()),
        last_detach_time: detach.map(|detach| seconds_since_epoch(detach.at)),
        attach_count: Some(device.attach_count),
        in_packets: Some(report.received.0),
        in_bytes: Some(report.received.1),
        out_packets: Some(report.delivered.0),
        out_bytes: Some(report.delivered.1),
        drops: drops(&report.drops),
        bypass_filtering: Some(nic.bypass_filtering),
        ip_anti_spoof: Some(nic.ip_anti_spoof),
        forwards: nic.forwards.then_some(true),
        shared_ip: nic.shared_ip.then_some(true),
        router: nic.router.then_some(true),
        limits: convert::limits(&nic.limits, Some(report.limit_waits)).into(),
        waits_for: report.waits_for.clone(),
        ip: nic.ips.texts(),
        prefix: nic.prefixes.texts(),
        security_group: nic.security_groups.texts(),
        trouble: device
            .trouble
            .clone()
            .or_else(|| attached?.memory_trouble.map(str::to_owned))
            .or_else(|| interface_trouble(nic, report)),
        // A guest of our own is a thread of this process.
        peer_pid: attached
            .and_then(|attached| attached.peer_pid)
            .filter(|_| report.guest.is_none()),
        others_waiting: Some(device.others_waiting),
        migrating: Some(attached.is_some_and(|attached| attached.logging)),
        flooded: Some(report.flooded),
        learn_refused: Some(report.learn_refused),
        announced: Some(report.announced),
        passed_on: Some(report.passed_on),
        sessions: Some(report.sessions),
        netns: convert::netns(&nic.kind),
        interface_refused: match &report.guest {
            Some(GuestReport::Tap { refused, .. }) => Some(*refused),
            _ => None,
        },
        pings: pings(report).into(),
        interrupts: Some(interrupts(device)).into(),
        first_touches: Some(first_touches(device)).into(),
        ..Default::default()
    }
}

/// Returns the rings of the first pair, and those of further ones that run or should.
fn queues(device: &DeviceStatus) -> Vec<Queue> {
    let trouble = |queue| device.attached.as_ref().and_then(|attached| attached.trouble(queue));
    let first = [(RingIndex::RX, &device.rx), (RingIndex::TX, &device.tx)];
    let first = first.map(|(index, ring)| queue(index, ring.as_ref(), trouble(index)));
    let further = RingIndex::all().filter(|index| index.pair() > 0).filter_map(|index| {
        let ring = device.further.iter().find(|(of, _)| *of == index).map(|(_, ring)| ring);
        let trouble = trouble(index);
        (ring.is_some() || trouble.is_some()).then(|| queue(index, ring, trouble))
    });
    first.into_iter().chain(further).collect()
}

fn memory_regions(device: &DeviceStatus) -> Vec<MemoryRegion> {
    let memory = device.attached.iter().flat_map(|attached| &attached.memory);
    memory
        .map(|region| MemoryRegion {
            guest_addr: Some(region.guest_addr),
            size: Some(region.size),
            page_size: Some(region.page_size),
            ..Default::default()
        })
        .collect()
}

fn interrupts(device: &DeviceStatus) -> Interrupts {
    Interrupts {
        costly: Some(device.interrupts.costly),
        confirmed: Some(device.interrupts.confirmed),
        apart: Some(device.interrupts.apart),
        worst_ns: Some(device.interrupts.worst_ns),
        ..Default::default()
    }
}

fn first_touches(device: &DeviceStatus) -> FirstTouches {
    FirstTouches {
        pages: Some(device.touches.pages),
        rests: Some(device.touches.rests),
        stalls: Some(device.touches.stalls),
        stalled_us: Some(u64::try_from(device.touches.stalled.as_micros()).unwrap_or(u64::MAX)),
        ..Default::default()
    }
}

/// Returns the trouble of the interface of an attached TAP vnic, and the remedy. One that is gone
/// has detached, with its reason.
fn interface_trouble(nic: &Nic, report: &VnicReport) -> Option<String> {
    let Some(GuestReport::Tap { state: StationState::Down(name), .. }) = &report.guest else {
        return None;
    };
    let command = match convert::netns(&nic.kind) {
        Some(file) if file.starts_with('/') => format!("nsenter --net={file} ip link"),
        Some(netns) => format!("ip -n {netns} link"),
        None => "ip link".to_owned(),
    };
    Some(format!("its network interface {name} is down, nothing passes: `{command} set {name} up`"))
}

/// Returns the requests of a generator of ours, and the times of their answers.
fn pings(report: &VnicReport) -> Option<Pings> {
    let Some(GuestReport::Bench(pings)) = &report.guest else { return None };
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Some(Pings {
        requests: Some(pings.requests),
        replies: Some(pings.times.map_or(0, |times| times.count)),
        min_ns: pings.times.map(|times| nanoseconds(times.min)),
        mean_ns: pings.times.map(|times| nanoseconds(times.mean())),
        max_ns: pings.times.map(|times| nanoseconds(times.max)),
        ..Default::default()
    })
}

/// Every reason with its count.
pub(super) fn drops(counted: &[(ReasonInfo, u64)]) -> Vec<Drop> {
    let drop = |(info, count): &(ReasonInfo, u64)| Drop {
        reason: Some(info.name.to_owned()),
        count: Some(*count),
        // A doc comment begins with a space.
        description: Some(info.description.trim().to_owned()),
        harmless: info.harmless.then_some(true),
        ..Default::default()
    };
    counted.iter().map(drop).collect()
}

fn queue(index: RingIndex, ring: Option<&RingStatus>, trouble: Option<&str>) -> Queue {
    Queue {
        name: Some(index.name().to_owned()),
        pair: Some(index.pair() as u32),
        running: Some(ring.is_some()),
        size: ring.map(|ring| ring.size.into()),
        enabled: ring.map(|ring| ring.enabled),
        next_avail: ring.map(|ring| ring.next_avail.into()),
        used: ring.map(|ring| ring.used_idx.into()),
        guest_avail: ring.map(|ring| ring.avail_idx.into()),
        pending: ring.map(|ring| ring.waiting.into()),
        packed: ring.filter(|ring| ring.packed).map(|_| true),
        broken: ring.map(|ring| ring.broken),
        trouble: trouble.map(str::to_owned),
        ..Default::default()
    }
}

fn fdb_entry(row: FdbRow) -> FdbEntry {
    let kind = match row.kind {
        FdbKind::Static => fdb_entry::Kind::STATIC,
        FdbKind::Learnt => fdb_entry::Kind::LEARNT,
    };
    FdbEntry {
        vni: Some(row.vni),
        mac: Some(row.mac.to_string()),
        // A vnic has a name.
        nic_id: Some(row.id).filter(|id| !id.is_empty()),
        kind: Some(kind.into()),
        age: row.idle.map(u64::from),
        peer: row.peer.map(canonical),
        ..Default::default()
    }
}

fn ring((nic, pair): (String, u8)) -> WorkerRing {
    WorkerRing { nic_id: Some(nic), pair: Some(pair.into()), ..Default::default() }
}

fn worker(report: WorkerReport) -> Worker {
    Worker {
        id: u32::try_from(report.index).ok(),
        core: report.core.and_then(|core| u32::try_from(core).ok()),
        polling: Some(report.poll),
        busy_cycles: Some(report.busy_cycles),
        packets: Some(report.packets),
        batches: Some(report.batches),
        sleeps: Some(report.sleeps),
        idle_polls: Some(report.idle_polls),
        batch_sizes: report.batch_sizes,
        tsc_hz: Some(report.tsc_hz),
        active_rings: u32::try_from(report.active_rings).ok(),
        rings: report.rings.into_iter().map(ring).collect(),
        uplink_queues: report.uplink_queues.into_iter().map(u32::from).collect(),
        load: u32::try_from(report.load).ok(),
        moves: Some(report.moves),
        ..Default::default()
    }
}
