//! The page that a scrape gets: what was observed, in Prometheus' text format.

use super::{
    condition::{Condition, ExternalCondition, RoutedCounts},
    families::{Declaration, FAMILIES, Family, MOST_PEERS, MetricKind},
};
use crate::holding::Service;
use butterfly_api::Requests;
use butterfly_datapath::{
    Observation, PeerObservation, SessionObservation, UplinkObservation, WireState, WorkerReport,
};
use butterfly_model::canonical;
use prometheus::{
    TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};

/// The page. Fails only if something is declared wrong.
pub fn page(
    observed: &Observation,
    requests: &Requests,
    start_date: u64,
    service: Option<&Service>,
    condition: &Condition,
) -> Result<String, prometheus::Error> {
    let mut page = Page { series: FAMILIES.iter().map(|_| Vec::new()).collect() };
    page.add(Family::BuildInfo, &[butterfly_version::VERSION, butterfly_version::COMMIT], 1u64);
    page.add(Family::StartTime, &[], start_date);
    if let Some(service) = service {
        page.add(Family::Restarts, &[], service.restarts);
        if service.resumed.is_some() {
            page.add_exact(Family::StoodStill, &[], service.stood_still.as_secs_f64());
            page.add(Family::MayComeAgain, &[], service.may_come_again);
        }
    }
    page.condition(condition);
    page.routed(&condition.troubles().routed, observed);
    page.nics(observed);
    page.networks(observed);
    for (info, count) in &observed.drops {
        page.add(Family::Drops, &[info.name], *count);
    }
    for (kind, count) in &observed.updates {
        page.add(Family::PolicyUpdates, &[kind], *count);
    }
    observed.workers.iter().for_each(|worker| page.worker(worker));
    page.sessions(&observed.sessions);
    if let Some(uplink) = &observed.uplink {
        page.uplink(uplink);
        page.peers(&uplink.peers);
    }
    for kind in requests.list() {
        page.add(Family::ApiRequests, &[kind.request, "success"], kind.succeeded);
        page.add(Family::ApiRequests, &[kind.request, "failure"], kind.failed);
        page.add_exact(Family::ApiRequestSeconds, &[kind.request], kind.time.as_secs_f64());
    }
    page.finish()
}

/// Series by family, in the order of their declaration.
struct Page {
    series: Vec<Vec<Metric>>,
}

impl Page {
    /// Adds a series. From 2^53 on, which no counter of packets reaches, a number is rounded: the
    /// format has no others.
    fn add(&mut self, family: Family, labels: &[&str], value: impl Into<u64>) {
        self.add_exact(family, labels, value.into() as f64);
    }

    fn add_exact(&mut self, family: Family, labels: &[&str], value: f64) {
        let mut metric = labelled(family, labels);
        match FAMILIES[family as usize].kind {
            MetricKind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            MetricKind::Gauge | MetricKind::Histogram => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        self.series[family as usize].push(metric);
    }

    fn condition(&mut self, condition: &Condition) {
        let troubles = condition.troubles();
        self.add(Family::Degraded, &[], troubles.degraded);
        self.add(Family::ChangesRefused, &[], troubles.changes_refused);
        self.add(Family::UpgradeFailed, &[], troubles.upgrade_failed);
        self.add(Family::UpgradeUncommitted, &[], troubles.upgrade_uncommitted);
        self.add(Family::NotListening, &[], condition.missing().endpoints() as u64);
        self.add(Family::HolderGone, &[], condition.holder_is_gone());
    }

    fn routed(&mut self, routed: &RoutedCounts, observed: &Observation) {
        let mut down = 0_u64;
        for ExternalCondition { id, vni, in_effect } in &routed.externals {
            let wire = observed.wires.iter().find(|wire| wire.external == *id);
            let is_up = *in_effect && wire.is_none_or(|wire| wire.state == WireState::Up);
            down += u64::from(!is_up);
            self.add(Family::ExternalUp, &[id], is_up);
            for (reason, count) in wire.iter().flat_map(|wire| &wire.losses) {
                self.add(Family::ExternalLost, &[id, reason], *count);
            }
            for used in observed.ports.iter().filter(|used| used.vni == *vni) {
                let address = used.address.to_string();
                for (protocol, ports) in [("tcp", used.tcp), ("udp", used.udp), ("icmp", used.echo)]
                {
                    self.add(Family::SharedPorts, &[id, &address, protocol], u64::from(ports));
                }
            }
        }
        self.add(Family::ExternalsDown, &[], down);
        let (routers, routes) = routed.routers;
        self.add(Family::Routers, &[], routers as u64);
        self.add(Family::Routes, &[], routes as u64);
        let nats = routed.nats;
        for (kind, count) in
            [("snat", nats.pools), ("floating", nats.floating), ("forward", nats.forwards)]
        {
            self.add(Family::Translations, &[kind], count as u64);
        }
    }

    fn nics(&mut self, observed: &Observation) {
        for vnic in &observed.vnics {
            let vni = vnic.vni.to_string();
            let own = [&*vnic.id, &vni];
            self.add(Family::NicInPackets, &own, vnic.received.0);
            self.add(Family::NicInBytes, &own, vnic.received.1);
            self.add(Family::NicOutPackets, &own, vnic.delivered.0);
            self.add(Family::NicOutBytes, &own, vnic.delivered.1);
            for (reason, count) in &vnic.drops {
                self.add(Family::NicDrops, &[&*vnic.id, &vni, reason], *count);
            }
            self.add(Family::NicFlooded, &own, vnic.flooded);
            self.add(Family::NicLearnRefused, &own, vnic.learn_refused);
            self.add(Family::NicAnnounced, &own, vnic.announced);
            self.add(Family::NicPassedOn, &own, vnic.passed_on);
            self.add(Family::NicLimitWaits, &own, vnic.limit_waits);
            self.add(Family::NicLearnt, &own, vnic.learnt);
            self.add(Family::NicSessions, &own, vnic.sessions);
            self.add(Family::NicAttached, &own, vnic.attached);
            self.add(Family::NicQueues, &own, vnic.queues);
            self.add(Family::NicHeld, &own, vnic.held);
            self.add(Family::NicAttachments, &own, vnic.attachments);
        }
    }

    fn networks(&mut self, observed: &Observation) {
        for network in &observed.networks {
            let vni = &*network.vni.to_string();
            self.add(Family::NetworkNics, &[vni], network.vnics as u64);
            self.add(Family::NetworkSessions, &[vni], network.sessions);
            self.add(Family::NetworkLearnt, &[vni], network.learnt);
            let Some(tunnel) = &network.tunnel else { continue };
            self.add(Family::NetworkInPackets, &[vni], tunnel.received.0);
            self.add(Family::NetworkInBytes, &[vni], tunnel.received.1);
            self.add(Family::NetworkOutPackets, &[vni], tunnel.sent.0);
            self.add(Family::NetworkOutBytes, &[vni], tunnel.sent.1);
            for (reason, count) in &tunnel.drops {
                self.add(Family::NetworkDrops, &[vni, reason], *count);
            }
        }
    }

    fn worker(&mut self, worker: &WorkerReport) {
        let index = &*worker.index.to_string();
        self.add(Family::WorkerBusyCycles, &[index], worker.busy_cycles);
        self.add_exact(
            Family::WorkerBusySeconds,
            &[index],
            worker.busy_cycles as f64 / worker.tsc_hz.max(1) as f64,
        );
        self.add(Family::WorkerPackets, &[index], worker.packets);
        self.add(Family::WorkerBatches, &[index], worker.batches);
        self.add(Family::WorkerSleeps, &[index], worker.sleeps);
        self.add(Family::WorkerIdlePolls, &[index], worker.idle_polls);
        self.add(Family::WorkerActiveRings, &[index], worker.active_rings);
        self.add(
            Family::WorkerRings,
            &[index],
            (worker.rings.len() + worker.uplink_queues.len()) as u64,
        );
        self.add(Family::WorkerMoves, &[index], worker.moves);
        self.add_exact(
            Family::WorkerLongestTurn,
            &[index],
            worker.longest_turn as f64 / worker.tsc_hz.max(1) as f64,
        );
        let mut metric = labelled(Family::WorkerBatchPackets, &[index]);
        metric.set_histogram(batches(worker));
        self.series[Family::WorkerBatchPackets as usize].push(metric);
    }

    fn sessions(&mut self, sessions: &SessionObservation) {
        for (protocol, state, count) in &sessions.states {
            self.add(Family::Sessions, &[protocol, state], *count);
        }
        self.add(Family::SessionTableUsed, &[], sessions.used);
        self.add(Family::SessionTableCapacity, &[], sessions.capacity);
        self.add(Family::SessionShareLimit, &[], sessions.share);
    }

    fn uplink(&mut self, uplink: &UplinkObservation) {
        self.add(Family::UplinkInfo, &[&uplink.kind, &uplink.interface, &uplink.mode], 1u64);
        self.add(Family::UplinkUp, &[], uplink.up);
        self.add(Family::UplinkMtu, &[], uplink.mtu);
        self.add(Family::UplinkInPackets, &[], uplink.received.0);
        self.add(Family::UplinkInBytes, &[], uplink.received.1);
        self.add(Family::UplinkOutPackets, &[], uplink.sent.0);
        self.add(Family::UplinkOutBytes, &[], uplink.sent.1);
        for (family, counts) in [
            (Family::UplinkDrops, &uplink.drops),
            (Family::UplinkPortEvents, &uplink.port),
            (Family::TunnelControlEvents, &uplink.control),
        ] {
            counts.iter().for_each(|(name, count)| self.add(family, &[name], *count));
        }
    }

    fn peers(&mut self, peers: &[PeerObservation]) {
        let (named, learnt): (Vec<_>, Vec<_>) = peers.iter().partition(|peer| peer.named);
        self.add(Family::TunnelPeers, &["named"], named.len() as u64);
        self.add(Family::TunnelPeers, &["learnt"], learnt.len() as u64);
        self.add(Family::TunnelPeersNotShown, &[], peers.len().saturating_sub(MOST_PEERS) as u64);
        for peer in named.into_iter().chain(learnt).take(MOST_PEERS) {
            let address = &*canonical(peer.address);
            self.add(Family::PeerNeighbourKnown, &[address], peer.neighbour_known);
            if let Some(idle) = peer.idle {
                self.add(Family::PeerIdle, &[address], idle);
            }
            self.add(Family::PeerInPackets, &[address], peer.received.0);
            self.add(Family::PeerInBytes, &[address], peer.received.1);
            self.add(Family::PeerOutPackets, &[address], peer.sent.0);
            self.add(Family::PeerOutBytes, &[address], peer.sent.1);
            self.add(Family::PeerDrops, &[address], peer.drops);
        }
    }

    fn finish(self) -> Result<String, prometheus::Error> {
        let families: Vec<MetricFamily> = FAMILIES
            .iter()
            .zip(self.series)
            .filter(|(_, series)| !series.is_empty())
            .map(|(Declaration { name, kind, help, .. }, series)| {
                let mut family = MetricFamily::default();
                family.set_name((*name).to_owned());
                family.set_help((*help).to_owned());
                family.set_field_type(match kind {
                    MetricKind::Counter => MetricType::COUNTER,
                    MetricKind::Gauge => MetricType::GAUGE,
                    MetricKind::Histogram => MetricType::HISTOGRAM,
                });
                family.set_metric(series);
                family
            })
            .collect();
        TextEncoder::new().encode_to_string(&families)
    }
}

fn labelled(family: Family, values: &[&str]) -> Metric {
    let names = FAMILIES[family as usize].labels;
    debug_assert_eq!(names.len(), values.len(), "{family:?}");
    let pairs = names.iter().zip(values).map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}

/// Batches by size. Classes are 1, 2, 3-4, 5-8, .. frames.
fn batches(worker: &WorkerReport) -> Histogram {
    let mut histogram = Histogram::default();
    let mut sum = 0;
    let buckets = worker.batch_sizes.iter().enumerate().map(|(class, count)| {
        sum += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound((1u64 << class) as f64);
        bucket.set_cumulative_count(sum);
        bucket
    });
    histogram.set_bucket(buckets.collect());
    // Not `batches`, which moved meanwhile: the number of all must fit the buckets.
    histogram.set_sample_count(sum);
    histogram.set_sample_sum(worker.packets as f64);
    histogram
}

#[cfg(test)]
mod tests;
