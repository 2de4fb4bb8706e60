//! The daemon's switch inside this process.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use butterfly_datapath::{
    Features, Front, Role, Switch, SwitchConfig, VnicPolicy, VnicReport, VnicSpec,
};
use tempfile::TempDir;

use crate::host::{Backend, FdbEntry, HostOptions, Nic, QueueShow, Show, Work};

pub(crate) struct InProcess {
    switch: Switch,
    dir: TempDir,
}

impl InProcess {
    pub fn start(options: &HostOptions) -> InProcess {
        let mut config = SwitchConfig { poll: options.poll, ..SwitchConfig::default() };
        if let Some(seconds) = options.fdb_ageing {
            config.fdb_ageing = seconds;
        }
        InProcess {
            switch: Switch::start(config, Arc::new(())).unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }
}

fn policy(bypass: bool, ip_anti_spoof: bool, ips: &[String]) -> VnicPolicy {
    VnicPolicy {
        bypass,
        ip_anti_spoof,
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..VnicPolicy::default()
    }
}

fn names(features: Features) -> BTreeSet<String> {
    features.names().into_iter().collect()
}

fn show(report: VnicReport) -> Show {
    let device = report.device;
    let queues = [("rx", device.rx), ("tx", device.tx)].into_iter().filter_map(|(name, ring)| {
        let ring = ring?;
        Some(QueueShow {
            name: name.to_owned(),
            size: ring.size.into(),
            running: true,
            enabled: ring.enabled,
            broken: ring.broken,
            used: ring.used_idx.into(),
            guest_avail: ring.avail_idx.into(),
        })
    });
    Show {
        attached: device.attached.is_some(),
        role: device.socket.map(|(role, _)| role.name().to_owned()).unwrap_or_default(),
        attach_count: device.attach_count,
        last_detach: device.last_detach.map(|detach| detach.reason),
        negotiated: device
            .attached
            .as_ref()
            .and_then(|guest| guest.features)
            .map(names)
            .unwrap_or_default(),
        refused: device.attached.as_ref().map(|guest| names(guest.declined())).unwrap_or_default(),
        queues: queues.collect(),
        memory: device
            .attached
            .map(|guest| {
                guest.memory.iter().map(|region| (region.guest_addr, region.size)).collect()
            })
            .unwrap_or_default(),
        received: report.received,
        delivered: report.delivered,
        flooded: report.flooded,
        learn_refused: report.learn_refused,
        drops: report.drops.into_iter().map(|(info, n)| (info.name.to_owned(), n)).collect(),
    }
}

impl Backend for InProcess {
    fn add(&self, nic: &Nic) -> Result<PathBuf, String> {
        assert!(nic.groups.is_empty(), "security groups want a daemon");
        let path = nic
            .path
            .clone()
            .unwrap_or_else(|| self.dir.path().join(format!("qemu-vhost-{}", nic.id)));
        let spec = VnicSpec {
            sniff_target: nic.mirror_of.clone(),
            order: self.switch.ids().len() as u64,
            birth: 0,
            id: nic.id.clone(),
            mac: nic.mac,
            vni: butterfly_model::Vni::new(nic.vni).map_err(|error| error.to_string())?,
            front: Front::Socket {
                role: if nic.client { Role::Client } else { Role::Server },
                path: path.clone(),
            },
            policy: policy(nic.bypass, nic.anti_spoof, &nic.ips),
        };
        self.switch.add_vnic(spec).map(|()| path).map_err(|why| why.to_string())
    }

    fn update(&self, id: &str, ips: &[String], anti_spoof: bool) -> Result<(), String> {
        let bypass = self.switch.vnic(id).is_some_and(|report| report.spec.policy.bypass);
        self.switch.update_vnic(id, policy(bypass, anti_spoof, ips)).map_err(|why| why.to_string())
    }

    fn remove(&self, id: &str) {
        self.switch.remove_vnic(id);
    }

    fn show(&self, id: &str) -> Option<Show> {
        self.switch.vnic(id).map(show)
    }

    fn ids(&self) -> Vec<String> {
        self.switch.ids()
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbEntry> {
        let rows = self.switch.fdb(vni).into_iter().map(|row| FdbEntry {
            vni: row.vni,
            mac: row.mac.to_string(),
            id: row.id,
            learnt: row.idle.is_some(),
        });
        rows.collect()
    }

    fn work(&self) -> Work {
        self.switch.workers().iter().fold(Work::default(), |sum, worker| Work {
            packets: sum.packets + worker.packets,
            batches: sum.batches + worker.batches,
            sleeps: sum.sleeps + worker.sleeps,
            busy_cycles: sum.busy_cycles + worker.busy_cycles,
            active_rings: sum.active_rings + worker.active_rings,
        })
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }
}
