//! Wires of externals: opened with what they lead to, and closed.
//!
//! Behind a wire is a thread of ours, as behind a TAP vnic ([`butterfly_guest`]): the port of an
//! external is served like a vnic's, so nothing of the packet path knows of it. A wire that cannot
//! be opened changes nothing. A new process opens an interface anew, and takes up a TAP device
//! where the former one left it.

use butterfly_guest::{Machine, WireConfig};
use butterfly_model::{External, Vni, WireDevice};
use butterfly_packet::Mac;

use crate::plane::{
    routed::{NotInEffect, RoutingChange},
    vnics::WIRE,
};
use crate::switch::{Switch, declared::VnicSpec, front::Front};
use crate::world::{outside::WirePlace, policy::VnicPolicy};

/// Largest IP packet of a TAP device for which none is declared, in bytes.
const USUAL_MTU: u32 = 1500;

/// Means to open a wire.
struct Opening {
    place: WirePlace,
    spec: VnicSpec,
}

/// Returns the id of the port of an external.
fn id_of(external: &External) -> String {
    format!("{WIRE}{}", external.id())
}

impl Switch {
    /// Changes what is routed. Returns when no packet goes by the old state any more. Fails for a
    /// wire that this host cannot have, and for addresses that machines share without memory for
    /// their ports. Nothing has changed then, but a former wire may be lost
    /// ([`leads_out`](Self::leads_out)): the error says so.
    pub fn change_routing(&self, change: RoutingChange) -> Result<(), NotInEffect> {
        match change {
            RoutingChange::DeclareWire(external) => self.declare_wire(external),
            RoutingChange::RemoveWire(vni) => {
                let mut wires = self.wires();
                if let Some(old) = wires.remove(&vni) {
                    self.remove_vnic(&id_of(&old));
                }
                self.plane().change_routing(RoutingChange::RemoveWire(vni), &())
            }
            other => match &self.hold {
                Some(hold) => self.plane().change_routing(other, hold),
                None => self.plane().change_routing(other, &()),
            },
        }
    }

    /// Returns whether an external with this number is in effect.
    pub fn leads_out(&self, vni: Vni) -> bool {
        self.wires().contains_key(&vni)
    }

    fn declare_wire(&self, new: External) -> Result<(), NotInEffect> {
        let vni = new.vni();
        let mut wires = self.wires();
        let opening = self.opening(&new)?;
        let old = wires.get(&vni).cloned();
        let device = |it: &External| (it.id().clone(), it.wire().cloned(), it.vlan());
        // The port of an interface has its MAC address.
        let mac = self.vnics().get(&id_of(&new)).map(|port| port.spec.mac);
        let stays = old.as_ref().is_some_and(|old| {
            device(old) == device(&new)
                && old.network().mtu() == new.network().mtu()
                && opening.as_ref().map(|opening| opening.spec.mac) == mac
        });
        if stays {
            let place = opening.as_ref().map(|opening| opening.place);
            self.plane().set_wire(vni, place);
            self.plane().change_routing(RoutingChange::DeclareWire(new.clone()), &())?;
            wires.insert(vni, new);
            return Ok(());
        }
        if let Some(old) = &old {
            self.remove_vnic(&id_of(old));
        }
        match self.open_wire(&new, opening) {
            Ok(()) => {
                wires.insert(vni, new);
                Ok(())
            }
            Err(why) => {
                let back = old
                    .as_ref()
                    .map(|old| self.opening(old).and_then(|opening| self.open_wire(old, opening)));
                match back {
                    None => self.plane().change_routing(RoutingChange::RemoveWire(vni), &())?,
                    Some(Ok(())) => {}
                    Some(Err(again)) => {
                        wires.remove(&vni);
                        return Err(NotInEffect(format!(
                            "{why}; the former wire does not come back, and nothing leaves by the external: {again}"
                        )));
                    }
                }
                Err(why)
            }
        }
    }

    /// Opens a wire. Its network is an external before a frame can come by it.
    fn open_wire(&self, external: &External, opening: Option<Opening>) -> Result<(), NotInEffect> {
        let place = opening.as_ref().map(|opening| opening.place);
        self.plane().set_wire(external.vni(), place);
        self.plane().change_routing(RoutingChange::DeclareWire(external.clone()), &())?;
        let Some(Opening { spec, .. }) = opening else { return Ok(()) };
        self.add_vnic(spec)
            .map_err(|why| NotInEffect(format!("external {} gets no wire: {why}", external.id())))
    }

    /// Looks at what an external wants of this host. `None` if it has no wire.
    fn opening(&self, external: &External) -> Result<Option<Opening>, NotInEffect> {
        let Some(device) = external.wire() else { return Ok(None) };
        let vlan = external.vlan().unwrap_or(0);
        let (place, mac, machine) = match device {
            WireDevice::Interface(name) => {
                let config = WireConfig { interface: name.to_string(), vlan };
                let (mac, mtu) = config.look().map_err(|why| {
                    NotInEffect(format!("external {} gets no wire: {why}", external.id()))
                })?;
                (WirePlace { mac, mtu }, mac, Machine::Wire(config))
            }
            WireDevice::Tap(_) if vlan != 0 => {
                return Err(NotInEffect(format!(
                    "external {} cannot be VLAN {vlan} of a TAP device: declare it without a VLAN, and make a VLAN device on the TAP device, or have the bridge that it is in set the tag",
                    external.id()
                )));
            }
            WireDevice::Tap(name) => {
                let mtu = external.network().mtu().map_or(USUAL_MTU, u32::from);
                let name = name.as_ref().map(ToString::to_string);
                let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
                let [own, theirs] = external.tap_macs(&machine).map(Mac);
                (WirePlace { mac: own, mtu }, theirs, Machine::WireTap { name, mtu, own })
            }
        };
        let spec = VnicSpec {
            id: id_of(external),
            mac,
            vni: external.vni(),
            front: Front::Inside(machine),
            policy: VnicPolicy { bypass: true, ..VnicPolicy::default() },
            sniff_target: None,
            order: 0,
            birth: 0,
        };
        Ok(Some(Opening { place, spec }))
    }
}
