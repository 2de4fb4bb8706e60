//! Requests about vnics whose machines move to another host, or come from one.

use super::Daemon;
use super::nic::unknown;
use crate::{
    dataplane::Dataplane,
    events::{Kind, counted},
};
use butterfly_api::{
    Answer, Failure,
    proto::{Counter, FwData, NicExportRes, NicExportToReq, NicImportReq, NicImportRes, Response},
};
use butterfly_datapath::{Moved, MovedVnic};
use butterfly_model::Nic;
use protobuf::MessageField;
use std::net::IpAddr;

impl<D: Dataplane> Daemon<D> {
    /// The original has it, and its data was always empty there. The machine is about to leave for
    /// another host.
    pub(super) fn nic_export(&mut self, id: &str) -> Answer {
        self.export(id, None)
    }

    pub(super) fn nic_export_to(&mut self, request: &NicExportToReq) -> Answer {
        let to = request.to().parse::<IpAddr>().map_err(|_| {
            Failure::new(format!("{:?} is no IP address of a tunnel endpoint", request.to()))
                .with_help("`butterfly uplink` on the other host tells the address of its endpoint")
        })?;
        self.export(request.id(), Some(to))
    }

    fn export(&mut self, id: &str, to: Option<IpAddr>) -> Answer {
        let nic = self.desired.vnics().get(id).cloned().ok_or_else(|| unknown(id))?;
        self.dataplane.vnic_leaves(id, to).map_err(|why| {
            Failure::new(match to {
                Some(to) => format!("nic {id} cannot leave for {to}: {why}"),
                None => why.to_string(),
            })
        })?;
        let exported = self.dataplane.export_vnic(declared(&nic)).ok_or_else(|| unknown(id))?;
        if let Some(to) = to {
            let text = format!("exported to {to}, with {}", counted(exported.sessions, "session"));
            self.tell_nic(Kind::NicExported, &nic, text);
        }
        let data = FwData { data: Some(exported.text), ..Default::default() };
        let result = NicExportRes {
            fw_data: MessageField::some(data),
            sessions: Some(exported.sessions),
            left_out: Some(exported.left_out),
            ..Default::default()
        };
        Ok(Response { nic_export: MessageField::some(result), ..Default::default() })
    }

    pub(super) fn nic_import(&mut self, request: &NicImportReq) -> Answer {
        let moved = Moved::read(request.data())
            .map_err(|why| Failure::new(format!("the export is refused: {why}")))?;
        let there = &moved.vnic;
        let nic = self.desired.vnics().get(&there.id).cloned().ok_or_else(|| {
            unknown(&there.id)
                .with_help("declare it here first, as it is declared on the other host")
        })?;
        let here = declared(&nic);
        let different = difference(&here, there);
        if !different.is_empty() {
            return Err(Failure::new(format!(
                "nic {} is not declared as on the other host: {}",
                here.id,
                different.join("; ")
            ))
            .with_help("declare both alike, then import again"));
        }
        let imported = self.dataplane.import_vnic(&moved).ok_or_else(|| unknown(&here.id))?;
        let sessions = &imported.sessions;
        let refused: u64 = sessions.refused.values().sum();
        let text = format!(
            "imported: {} taken over, {} known here, {refused} refused",
            counted(sessions.taken, "session"),
            sessions.known
        );
        self.tell_nic(Kind::NicImported, &nic, text);
        let refused = sessions.refused.iter().map(|(why, n)| Counter {
            name: Some((*why).to_owned()),
            value: Some(*n),
            ..Default::default()
        });
        let result = NicImportRes {
            id: Some(here.id),
            taken: Some(sessions.taken),
            known: Some(sessions.known),
            ended: Some(sessions.ended),
            refused: refused.collect(),
            left_out: Some(imported.left_out),
            ..Default::default()
        };
        Ok(Response { nic_import: MessageField::some(result), ..Default::default() })
    }
}

/// Returns the part of a declaration that has to be the same on both hosts.
fn declared(nic: &Nic) -> MovedVnic {
    let mut addresses: Vec<IpAddr> = nic.ips.addresses().collect();
    addresses.sort_unstable();
    let mut prefixes = nic.prefixes.texts();
    prefixes.sort_unstable();
    let names = nic.security_groups.names().iter();
    let mut groups: Vec<String> = names.map(|name| name.as_str().to_owned()).collect();
    groups.sort_unstable();
    MovedVnic {
        id: nic.id.as_str().to_owned(),
        mac: butterfly_datapath::Mac(nic.mac.octets()).to_string(),
        vni: nic.vni.number(),
        addresses,
        prefixes,
        groups,
        bypass: nic.bypass_filtering,
    }
}

/// Most letters of a text of another host in an answer.
const LONGEST: usize = 200;

/// Returns what differs between two declarations, in words.
fn difference(here: &MovedVnic, there: &MovedVnic) -> Vec<String> {
    let cut = |text: String| text.chars().take(LONGEST).collect::<String>();
    let mut all = Vec::new();
    let mut compare = |what: &str, here: String, there: String| {
        if here != there {
            all.push(format!("{what} {} here, {} there", cut(here), cut(there)));
        }
    };
    compare("MAC", here.mac.clone(), there.mac.clone());
    compare("VNI", here.vni.to_string(), there.vni.to_string());
    compare("addresses", format!("{:?}", here.addresses), format!("{:?}", there.addresses));
    compare("prefixes", format!("{:?}", here.prefixes), format!("{:?}", there.prefixes));
    compare("security groups", format!("{:?}", here.groups), format!("{:?}", there.groups));
    compare("bypass filtering", here.bypass.to_string(), there.bypass.to_string());
    all
}
