//! Externals where an operator looks: what passes by their wires, and their ids in place of the
//! numbers of their networks, which are all that the data path knows.

use super::{Daemon, report::drops};
use crate::{
    dataplane::Dataplane,
    metrics::{ExternalCondition, RoutedCounts},
};
use butterfly_api::{Failure, proto};
use butterfly_datapath::{GuestReport, VnicReport, WireLoss, WireReport, WireState};
use butterfly_model::External;
use protobuf::MessageField;

/// Beginning of the ids of wires, which no vnic can have.
const WIRE: &str = "wire/";
/// Word before the number of a network in texts of the data path.
const VNI: &str = "VNI ";

impl<D: Dataplane> Daemon<D> {
    /// Returns what the wire of an external does; `None` if it has none, or is not in effect.
    pub(super) fn wire(&self, external: &External) -> MessageField<proto::Wire> {
        let is_out = self.missing_wires.why(external.id()).is_some();
        let port = external.wire().filter(|_| !is_out);
        let report = port.and_then(|_| self.dataplane.vnic(&format!("{WIRE}{}", external.id())));
        report.map(wire).into()
    }

    /// Fails for what is neither a declared vnic nor the wire of a declared external, `wire/ID`.
    pub(super) fn vnic_or_wire(&self, id: &str) -> Result<(), Failure> {
        let Some(external) = id.strip_prefix(WIRE) else { return self.declared(id).map(|_| ()) };
        let external = self.external(external)?;
        let id = external.id();
        match (external.wire(), self.missing_wires.why(id)) {
            (None, _) if external.via().is_some() => {
                Err(Failure::new(format!("external {id} has no wire on this host"))
                    .with_help("it leads out by another host: ask there"))
            }
            (None, _) => Err(Failure::new(format!("external {id} has no wire"))
                .with_help("its outside are its NICs here: ask about those")),
            (_, Some(why)) => Err(Failure::new(format!("external {id} is not in effect: {why}"))),
            (Some(_), None) => Ok(()),
        }
    }

    /// Counts what is declared for routers.
    pub(super) fn routed_counts(&self) -> RoutedCounts {
        let routed = self.desired.routed();
        let effect = |external: &External| {
            let id = external.id();
            ExternalCondition {
                id: id.as_str().to_owned(),
                vni: external.vni().number(),
                in_effect: self.missing_wires.why(id).is_none(),
            }
        };
        RoutedCounts {
            routers: (routed.routers().len(), routed.route_count()),
            nats: routed.nat_counts(),
            externals: routed.externals().map(effect).collect(),
        }
    }

    /// Returns the id of the external whose network has this number.
    pub(super) fn external_of(&self, vni: u32) -> Option<String> {
        let mut all = self.desired.routed().externals();
        let found = all.find(|external| external.vni().number() == vni);
        found.map(|external| external.id().as_str().to_owned())
    }

    /// Returns a text of the data path with the ids of externals in place of their numbers.
    pub(super) fn with_externals(&self, text: &str) -> String {
        let mut told = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(VNI) {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let (number, behind) = after.split_at(digits);
            let external = number.parse().ok().and_then(|vni| self.external_of(vni));
            told.push_str(before);
            match external {
                Some(id) => told.push_str(&format!("external {id}")),
                None => told.push_str(&format!("{VNI}{number}")),
            }
            rest = behind;
        }
        told + rest
    }
}

fn wire(report: VnicReport) -> proto::Wire {
    let guest = match &report.guest {
        Some(GuestReport::Wire(guest)) => Some(guest),
        _ => None,
    };
    let detached = report.device.attached.is_none().then(|| {
        let detach = report.device.last_detach.as_ref();
        detach.map_or_else(|| "its thread has not begun".to_owned(), |it| it.reason.clone())
    });
    let mut drop = drops(&report.drops);
    drop.retain(|drop| drop.count() > 0);
    let losses = guest.iter().flat_map(|guest| {
        let lost = guest.losses.iter().filter(|loss| loss.frames > 0);
        lost.map(|loss| self::loss(loss, &guest.interface))
    });
    proto::Wire {
        interface: guest.map(|guest| guest.interface.clone()),
        trouble: guest.and_then(trouble).or(detached),
        in_packets: Some(report.received.0),
        in_bytes: Some(report.received.1),
        out_packets: Some(report.delivered.0),
        out_bytes: Some(report.delivered.1),
        drop,
        loss: losses.collect(),
        ..Default::default()
    }
}

fn loss(loss: &WireLoss, interface: &str) -> proto::wire::Loss {
    proto::wire::Loss {
        reason: Some(loss.name.to_owned()),
        count: Some(loss.frames),
        description: Some(loss.description.to_owned()),
        remedy: Some(loss.remedy.replace("IFACE", interface)),
        ..Default::default()
    }
}

/// Returns the trouble of the interface of a wire, and the remedy.
fn trouble(guest: &WireReport) -> Option<String> {
    let name = &guest.interface;
    match (guest.state, guest.is_tap) {
        (WireState::Up, _) => None,
        (WireState::Down, _) => Some(format!(
            "its interface {name} is down, nothing passes: `ip link set dev {name} up`"
        )),
        (WireState::NoCarrier, _) => Some(format!(
            "its interface {name} has no carrier, nothing passes: look at the cable and the switch behind it"
        )),
        (WireState::Gone, false) => Some(format!(
            "its interface {name} is gone, nothing passes: it is opened anew when it is back"
        )),
        (WireState::Gone, true) => Some(format!(
            "its TAP device {name} is gone, nothing passes: detach its routers, `butterfly external del`, and declare it anew"
        )),
    }
}
