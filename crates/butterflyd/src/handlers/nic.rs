//! Requests that change vnics, and those that echo what was declared.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::Kind as EventKind,
    handlers::convert,
    host::limits,
    recorder::{Prepared, Recorder},
};
use butterfly_api::{
    Answer, Failure,
    proto::{self, NicAddRes, Response},
};
use butterfly_control::{Change, Desired, NicChange, difference};
use butterfly_datapath::{AddError, Front, GuestReport, Mac, Machine, VnicPolicy, VnicSpec};
use butterfly_model::{Bench, Kind, Netns, Nic, NicId, Role};
use protobuf::MessageField;
use tracing::{error, info, warn};

impl<D: Dataplane> Daemon<D> {
    pub(super) fn nic_add(&mut self, declared: &proto::Nic) -> Answer {
        let mut nic = convert::nic(declared, &self.socket_dir)?;
        if declared.packet_trace.is_none() {
            nic.packet_trace = self.recorder.by_default();
        }
        let id = nic.id.as_str().to_owned();
        let change = self.desired.vnics().get(&id).map(|old| match NicChange::between(old, &nic) {
            // An operator who declares it wants it to work.
            change if self.guest_is_gone(&id) => gone_with(change, "interface, which was gone"),
            change if self.dataplane.socket_is_gone(&id) => {
                gone_with(change, "socket, which was gone")
            }
            change => change,
        });
        let mut remade = Vec::new();
        match change {
            Some(NicChange::Nothing) => {}
            Some(NicChange::InPlace) => {
                self.change_in_place(nic, Recorder::prepare_or_go_without)?
            }
            Some(NicChange::Recreate(reasons)) => {
                self.recreate(nic, &reasons)?;
                remade = reasons.into_iter().map(str::to_owned).collect();
            }
            None => self.add(nic)?,
        }
        let path = self.desired.vnics().get(&id).and_then(|nic| self.path(nic));
        // The original prints a null pointer for what has none.
        let result = NicAddRes {
            path: path.or_else(|| Some("(nil)".to_owned())),
            remade,
            ..Default::default()
        };
        Ok(Response { nic_add: MessageField::some(result), ..Default::default() })
    }

    pub(super) fn nic_update(&mut self, request: &proto::NicUpdateReq) -> Answer {
        let update = convert::nic_update(request)?;
        let old = self.desired.vnics().get(request.id()).ok_or_else(|| unknown(request.id()))?;
        let new = old.updated(update);
        // Only a request that asks for a file is refused where there is none.
        let about_file = request.packet_trace.is_some()
            || request.packet_trace_path.is_some()
            || request.packet_trace_options.is_some();
        let prepare = if about_file { Recorder::prepare } else { Recorder::prepare_or_go_without };
        if new != *old {
            self.change_in_place(new, prepare)?;
        } else if self.recorder.without(request.id()).is_some() {
            // An operator who asks again wants it to work now.
            let recording = prepare(&self.recorder, &new)?;
            self.recorder.commit(request.id(), recording);
        }
        Ok(Response::new())
    }

    pub(super) fn nic_del(&mut self, id: &str) -> Answer {
        match self.desired.vnics().get(id).map(|nic| nic.id.clone()) {
            Some(id) => self.remove(&id, "deleted")?,
            None => warn!(NIC = id, "nic {id:?} does not exist and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn nic_list(&self) -> Answer {
        let ids = self.desired.vnics().iter().map(|nic| nic.id.as_str().to_owned());
        Ok(Response { nic_list: ids.collect(), ..Default::default() })
    }

    pub(super) fn nic_details(&self, id: &str) -> Answer {
        let nic_details = if id.is_empty() {
            self.desired.vnics().iter().map(|nic| self.details(nic)).collect()
        } else {
            let nic = self
                .desired
                .vnics()
                .get(id)
                .ok_or_else(|| Failure::new(format!("NIC: {id} not found")))?;
            vec![self.details(nic)]
        };
        Ok(Response { nic_details, ..Default::default() })
    }

    /// Removes all vnics, as when the daemon stops.
    pub fn remove_all(&mut self) {
        for nic in self.desired.vnics().iter() {
            let id = nic.id.as_str();
            self.dataplane.remove_vnic(id);
            self.announcer.forget(id);
            self.recorder.forget(id);
        }
        self.desired = Desired::default();
    }

    /// Makes a vnic that is not there.
    pub(super) fn add(&mut self, nic: Nic) -> Result<(), Failure> {
        let prepared = self.prepare(Change::AddVnic(nic.clone().into()))?;
        let room = limits::room_beside(self.desired.vnics().len());
        room.map_err(|none| Failure::new(none.to_string()).with_help(none.help()))?;
        let recording = self.recorder.prepare_or_go_without(&nic)?;
        let made = self.make(&nic);
        made.map_err(|why| self.not_made(why, &nic.kind))?;
        let id = nic.id.as_str();
        self.recorder.commit(id, recording);
        let (what, rights) = (self.other_side(&nic), rights(&nic));
        self.tell_nic(
            EventKind::NicAdded,
            &nic,
            format!("made: MAC {}, VNI {}, {what}{rights}", nic.mac, nic.vni),
        );
        self.tell_of_recording(&nic);
        if let Some(why) = nic.mac.no_station() {
            let text = format!(
                "has the MAC address {}: {why}, so that nothing can be sent to it alone",
                nic.mac
            );
            warn!(NIC = id, VNI = nic.vni.number(), "nic {id} {text}");
        }
        let waited = self.waiting_beside(&nic);
        self.commit(prepared);
        self.tell_of_turns(&nic, &waited);
        Ok(())
    }

    /// Deletes a vnic. `told`: the text of the event.
    pub(super) fn remove(&mut self, id: &NicId, told: &str) -> Result<(), Failure> {
        let prepared = self.prepare(Change::RemoveVnic(id.clone()))?;
        let nic = self.desired.vnics().get(id.as_str()).cloned();
        let waited = nic.as_ref().map(|nic| self.waiting_beside(nic)).unwrap_or_default();
        self.commit(prepared);
        self.dataplane.remove_vnic(id.as_str());
        self.announcer.forget(id.as_str());
        self.recorder.forget(id.as_str());
        self.forget_held(id.as_str());
        if let Some(nic) = nic {
            self.tell_nic(EventKind::NicRemoved, &nic, told.to_owned());
            self.tell_of_turns(&nic, &waited);
        }
        Ok(())
    }

    /// Makes a vnic in the data path.
    fn make(&mut self, nic: &Nic) -> Result<(), AddError> {
        let id = nic.id.as_str();
        if let Kind::VhostUser { role, socket } = &nic.kind {
            self.announcer.expect(id, socket.to_string(), *role == Role::Server);
        }
        match self.dataplane.add_vnic(self.spec(nic)) {
            Ok(()) => {
                self.announcer.made(id);
                Ok(())
            }
            Err(why) => {
                self.announcer.forget(id);
                Err(why)
            }
        }
    }

    /// A vnic as the data path makes it.
    fn spec(&self, nic: &Nic) -> VnicSpec {
        VnicSpec {
            id: nic.id.as_str().to_owned(),
            mac: Mac(nic.mac.octets()),
            vni: nic.vni,
            front: front(&nic.kind),
            policy: policy(nic),
            sniff_target: nic.sniff_target.clone(),
            order: self.desired.vnics().order(nic),
            birth: 0,
        }
    }

    /// A vnic as it is echoed.
    pub(super) fn details(&self, nic: &Nic) -> proto::Nic {
        proto::Nic { waiting: self.place_in_line(nic), ..convert::nic_details(nic, self.path(nic)) }
    }

    /// Returns the place, from 1, among those that wait for the MAC address of a vnic.
    fn place_in_line(&self, nic: &Nic) -> Option<u32> {
        let mut waiting = self
            .desired
            .vnics()
            .sharing(nic)
            .into_iter()
            .filter(|id| self.waits_for(id.as_str()).is_some());
        waiting.position(|id| *id == nic.id).map(|place| place as u32 + 1)
    }

    /// Returns the vnic that has the MAC address for which a vnic waits.
    fn waits_for(&self, id: &str) -> Option<String> {
        self.dataplane.waits_for(id)
    }

    /// Those that wait for the MAC address of a vnic, itself among them if it is there.
    fn waiting_beside(&self, nic: &Nic) -> Vec<NicId> {
        let sharing = self.desired.vnics().sharing(nic);
        // Of most vnics no other has the address, and those that bypass filters share it.
        let several = sharing.iter().any(|id| **id != nic.id);
        let filtered = sharing.iter().any(|id| {
            self.desired.vnics().get(id.as_str()).is_some_and(|nic| !nic.bypass_filtering)
        });
        sharing
            .into_iter()
            .filter(|_| several && filtered)
            .filter(|id| self.waits_for(id.as_str()).is_some())
            .cloned()
            .collect()
    }

    /// Reports vnics that wait for a MAC address, or have it, and did not before a vnic came,
    /// changed or went.
    fn tell_of_turns(&mut self, nic: &Nic, waited: &[NicId]) {
        let waiting = self.waiting_beside(nic);
        for id in waiting.iter().filter(|id| !waited.contains(id)) {
            if let (Some(nic), Some(owner)) =
                (self.desired.vnics().get(id.as_str()).cloned(), self.waits_for(id.as_str()))
            {
                let text = format!(
                    "waits for its MAC address {}, which nic {owner} of VNI {} has: it gets nothing and may send nothing until that one is gone",
                    nic.mac, nic.vni
                );
                warn!(NIC = id.as_str(), VNI = nic.vni.number(), "nic {} {text}", id.as_str());
                self.note_nic(EventKind::NicWaits, &nic, text);
            }
        }
        for id in waited
            .iter()
            .filter(|id| !waiting.contains(id) && self.waits_for(id.as_str()).is_none())
            .collect::<Vec<_>>()
        {
            if let Some(nic) = self.desired.vnics().get(id.as_str()).cloned() {
                self.tell_nic(
                    EventKind::NicTookOver,
                    &nic,
                    format!("has its MAC address {} now", nic.mac),
                );
            }
        }
    }

    /// Returns the path of a vnic's socket, or the name of its TAP device when it was made.
    pub(super) fn path(&self, nic: &Nic) -> Option<String> {
        match &nic.kind {
            Kind::VhostUser { socket, .. } => Some(socket.to_string()),
            Kind::Tap { .. } => match self.dataplane.vnic(nic.id.as_str())?.guest? {
                GuestReport::Tap { interface, .. } => Some(interface),
                GuestReport::Bench(_) | GuestReport::Wire(_) => None,
            },
            Kind::Bench(_) => None,
        }
    }

    /// The same in words.
    fn other_side(&self, nic: &Nic) -> String {
        let path = self.path(nic).unwrap_or_default();
        match &nic.kind {
            Kind::VhostUser { .. } => format!("socket {path}"),
            Kind::Tap { netns: None } => format!("TAP device {path}"),
            Kind::Tap { netns: Some(netns) } => {
                format!("TAP device {path} in network namespace {netns}")
            }
            Kind::Bench(Bench::IcmpSender { ip, mac }) => format!("pings {ip} at {mac}"),
            Kind::Bench(Bench::IcmpReceiver) => "answers pings".to_owned(),
        }
    }

    /// A guest of our own ended by itself: its TAP device was deleted.
    pub(super) fn guest_is_gone(&self, id: &str) -> bool {
        self.dataplane
            .vnic(id)
            .is_some_and(|report| report.guest.is_some() && report.device.attached.is_none())
    }

    /// Checks that a vnic could be made in place of the one with its id.
    pub(super) fn may_replace(&self, nic: &Nic) -> Result<(), Failure> {
        self.dataplane.may_replace(&self.spec(nic)).map_err(|why| self.not_made(why, &nic.kind))
    }

    /// Checks that a vnic could be added, before others go.
    pub(super) fn may_add(&self, nic: &Nic) -> Result<(), Failure> {
        self.dataplane.may_add(&self.spec(nic)).map_err(|why| self.not_made(why, &nic.kind))
    }

    /// Returns whether a VM, or a guest of our own, is attached to a vnic.
    pub(super) fn is_attached(&self, id: &str) -> bool {
        self.dataplane.vnic(id).is_some_and(|report| report.device.attached.is_some())
    }

    /// The commonest reason that is not in the request has its own help.
    fn not_made(&self, why: AddError, kind: &Kind) -> Failure {
        let folder = self.socket_dir.path();
        match kind {
            Kind::VhostUser { role: Role::Server, .. } if !folder.is_dir() => refusal(why)
                .with_help(format!(
                    "the socket folder {} is gone: create it again",
                    folder.display()
                )),
            _ => refusal(why),
        }
    }

    /// Says that a vnic which is to be recorded is not.
    fn tell_of_recording(&self, nic: &Nic) {
        if let Some(why) = self.recorder.without(nic.id.as_str()) {
            warn!(
                NIC = nic.id.as_str(),
                VNI = nic.vni.number(),
                "nic {} is not recorded: {why}",
                nic.id
            );
            self.note_nic(EventKind::NotRecorded, nic, why);
        }
    }

    pub(super) fn change_in_place(
        &mut self,
        new: Nic,
        prepare: fn(&Recorder, &Nic) -> Result<Prepared, Failure>,
    ) -> Result<(), Failure> {
        let id = new.id.as_str();
        let prepared = self.prepare(Change::ChangeVnic(new.clone().into()))?;
        let recording = prepare(&self.recorder, &new)?;
        let waited = self.waiting_beside(&new);
        let told = self.recorder.without(id);
        let old = self.desired.vnics().get(id);
        if !old.is_some_and(|old| policy(old) == policy(&new)) {
            self.dataplane.update_vnic(id, policy(&new)).map_err(refusal)?;
        }
        self.recorder.commit(id, recording);
        info!(
            EVENT = EventKind::NicUpdated.name(),
            NIC = id,
            VNI = new.vni.number(),
            "nic {id} changed in place"
        );
        let what = old.map_or_else(String::new, |old| difference(old, &new));
        self.note_nic(EventKind::NicUpdated, &new, format!("changed in place: {what}"));
        if self.recorder.without(id) != told {
            self.tell_of_recording(&new);
        }
        self.commit(prepared);
        self.tell_of_turns(&new, &waited);
        Ok(())
    }

    pub(super) fn recreate(&mut self, new: Nic, reasons: &[&str]) -> Result<(), Failure> {
        let prepared = self.prepare(Change::RemakeVnic(new.clone().into()))?;
        let id = new.id.as_str();
        let recording = self.recorder.prepare_or_go_without(&new)?;
        // What may be refused is tried before anything is cut.
        self.may_replace(&new)?;
        let old = self.desired.vnics().get(id).cloned();
        // It may have another address from now on: those that wait for the old one have it, and of
        // the new one it may wait itself.
        let waited = [old.as_ref(), Some(&new)]
            .map(|nic| nic.map(|nic| self.waiting_beside(nic)).unwrap_or_default());
        self.dataplane.keep_address(id);
        self.dataplane.remove_vnic(id);
        self.announcer.forget(id);
        let made = self.make(&new);
        // As it was: only the machine has to attach again.
        let restored = old.as_ref().filter(|_| made.is_err()).map(|old| self.make(old));
        self.dataplane.give_up_address();
        let Err(why) = made else {
            self.tell_nic(
                EventKind::NicRemade,
                &new,
                format!("made anew, as these changed: {}", reasons.join(", ")),
            );
            self.recorder.commit(id, recording);
            self.tell_of_recording(&new);
            self.commit(prepared);
            let [beside_old, beside_new] = waited;
            match old.filter(|old| (old.vni, old.mac.octets()) != (new.vni, new.mac.octets())) {
                Some(old) => {
                    self.tell_of_turns(&old, &beside_old);
                    self.tell_of_turns(&new, &beside_new);
                }
                None => self.tell_of_turns(&new, &beside_new),
            }
            return Ok(());
        };
        self.recorder.refresh();
        let failure = refusal(why);
        Err(match restored {
            Some(Ok(())) => failure
                .with_help("the nic is as it was before, but its virtual machine was cut off"),
            Some(Err(why)) => {
                let text = format!("could be neither changed nor restored: {why}");
                error!(NIC = id, VNI = new.vni.number(), "nic {id} {text}");
                self.note_nic(EventKind::NicRemoved, &new, text.clone());
                let before = self.desired.clone();
                if let Ok(gone) = self.desired.prepare(Change::RemoveVnic(new.id.clone())) {
                    self.desired.commit(gone);
                }
                let again = self.note_missing(before, vec![format!("nic {id:?} {text}")]);
                self.recorder.forget(id);
                if let (Some(old), [beside_old, _]) = (&old, &waited) {
                    self.tell_of_turns(old, beside_old);
                }
                let what = "the nic could not be restored either";
                failure.with_help(match again {
                    true => format!("{what} and is made again as soon as it can be: {why}"),
                    false => format!("{what} and is gone: {why}"),
                })
            }
            None => failure,
        })
    }
}

/// Turns a change into making the vnic anew, because nothing is left of `what`.
fn gone_with(change: NicChange, what: &'static str) -> NicChange {
    let mut reasons = match change {
        NicChange::Recreate(reasons) => reasons,
        NicChange::Nothing | NicChange::InPlace => Vec::new(),
    };
    reasons.push(what);
    NicChange::Recreate(reasons)
}

/// Returns the extra rights of a vnic, for the record of the request that gave them.
fn rights(nic: &Nic) -> String {
    let all = [
        (nic.forwards, ", forwards"),
        (nic.shared_ip, ", shares its addresses"),
        (nic.router, ", is a router"),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, words)| words).collect()
}

/// Returns the other side of a vnic, for the data path.
fn front(kind: &Kind) -> Front {
    match kind {
        Kind::VhostUser { role, socket } => Front::Socket {
            role: match role {
                Role::Server => butterfly_datapath::Role::Server,
                Role::Client => butterfly_datapath::Role::Client,
            },
            path: socket.path().to_owned(),
        },
        Kind::Tap { netns } => {
            Front::Inside(Machine::Tap { namespace: netns.as_ref().map(Netns::path) })
        }
        Kind::Bench(Bench::IcmpSender { ip, mac }) => {
            Front::Inside(Machine::Ping { ip: *ip, mac: Mac(mac.octets()) })
        }
        Kind::Bench(Bench::IcmpReceiver) => Front::Inside(Machine::Echo),
    }
}

fn policy(nic: &Nic) -> VnicPolicy {
    VnicPolicy {
        bypass: nic.bypass_filtering,
        ip_anti_spoof: nic.ip_anti_spoof,
        forwards: nic.forwards,
        shared_ip: nic.shared_ip,
        router: nic.router,
        limits: nic.limits,
        ips: nic.ips.addresses().collect(),
        prefixes: nic.prefixes.iter().collect(),
        groups: nic.security_groups.names().to_vec(),
    }
}

pub(super) fn unknown(id: &str) -> Failure {
    Failure::new(format!("NIC does not exist with id {id}"))
}

pub(super) fn refusal(why: AddError) -> Failure {
    Failure::new(why.to_string())
}
