//! The request that asks what would happen to a packet.

use super::{
    Daemon,
    session::{admission, in_range},
};
use crate::{dataplane::Dataplane, handlers::convert};
use butterfly_api::{
    Answer, Failure,
    proto::{ExplainReq, ExplainRes, ExplainWalk, Response, explain_walk},
};
use butterfly_datapath::{
    Fate, Mac, Mark, NoAnswer, Origin, Question, Refused, Rewritten, Step, Target, Walk,
};
use butterfly_model::canonical;
use protobuf::MessageField;
use std::net::IpAddr;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn explain(&self, request: &ExplainReq) -> Answer {
        let question = self.question(request)?;
        let explanation = match self.dataplane.explain(&question) {
            Ok(explanation) => explanation,
            Err(why) => return self.never_sent(&why).ok_or_else(|| self.refused(&why)),
        };
        let explain = ExplainRes {
            allowed: Some(explanation.is_allowed()),
            vni: Some(explanation.vni),
            external: self.external_of(explanation.vni),
            destination_mac: Some(explanation.destination_mac.to_string()),
            walk: explanation.walks.into_iter().map(|found| self.walk(found)).collect(),
            ..Default::default()
        };
        Ok(Response { explain: MessageField::some(explain), ..Default::default() })
    }

    /// The answer about a vnic that nothing reaches, as another one has its MAC address.
    fn never_sent(&self, why: &NoAnswer) -> Option<Response> {
        let NoAnswer::Waits(id, having) = why else { return None };
        let nic = self.desired.vnics().get(id)?;
        let remedy =
            format!("`butterfly nic del {having}`, or give one of the two another MAC address");
        let step = explain_walk::Step {
            stage: Some("lookup".to_owned()),
            mark: Some(explain_walk::step::Mark::STOP.into()),
            text: Some(why.to_string()),
            detail: vec![format!("what to do: {remedy}")],
            ..Default::default()
        };
        let walk = ExplainWalk {
            packet: Some(format!("a packet for {id}")),
            step: vec![step],
            fate: Some(explain_walk::Fate::NO_ADDRESS.into()),
            ..Default::default()
        };
        let explain = ExplainRes {
            allowed: Some(false),
            vni: Some(nic.vni.number()),
            destination_mac: Some(nic.mac.to_string()),
            walk: vec![walk],
            ..Default::default()
        };
        Some(Response { explain: MessageField::some(explain), ..Default::default() })
    }

    fn question(&self, request: &ExplainReq) -> Result<Question, Failure> {
        let known = |id: &String| self.declared(id).map(|_| id.clone());
        let from = match (&request.from_nic, request.vni, &request.external) {
            (Some(id), ..) => Origin::Vnic(known(id)?),
            (None, None, Some(external)) => Origin::Outside(self.number_of(external)?),
            (None, Some(vni), None) => Origin::Outside(vni),
            (None, Some(_), Some(_)) => {
                return Err(Failure::new("a packet comes from a network or from an external")
                    .with_help("give either vni (`--vni`) or external (`--external`)"));
            }
            (None, None, None) => {
                return Err(Failure::new("nobody sends the packet").with_help(
                    "give from_nic (`--from`), or for somebody outside of this host vni (`--vni`) or external (`--external`)",
                ));
            }
        };
        let to = match (request.to_address.as_deref(), &request.to_nic) {
            (Some(address), _) => Target::Address(convert::address(address)?),
            (None, Some(id)) => Target::Vnic(known(id)?),
            (None, None) => {
                return Err(Failure::new("the packet is for nobody")
                    .with_help("give to_address or to_nic (`--to`)"));
            }
        };
        let source = request.source.as_deref().map(convert::address).transpose()?;
        let v6 = match (&to, &source) {
            (Target::Address(ip), _) | (_, Some(ip)) => ip.is_ipv6(),
            (Target::Vnic(id), None) => {
                let nic = self.declared(id)?;
                nic.ips.texts().first().is_some_and(|ip| ip.contains(':'))
            }
        };
        let protocol = in_range("protocol", request.protocol, u8::MAX)?;
        let icmp = match (
            in_range("icmp_type", request.icmp_type, u8::MAX)?,
            in_range("icmp_code", request.icmp_code, u8::MAX)?,
        ) {
            (Some(kind), code) => Some((kind, code.unwrap_or(0))),
            (None, _) => None,
        };
        Ok(Question {
            from,
            to,
            source,
            source_mac: request.source_mac.as_deref().map(mac).transpose()?,
            destination_mac: request.destination_mac.as_deref().map(mac).transpose()?,
            protocol: protocol.unwrap_or(if v6 { ICMPV6 } else { ICMP }),
            source_port: in_range("source_port", request.source_port, u16::MAX)?,
            destination_port: in_range("destination_port", request.destination_port, u16::MAX)?,
            flags: in_range("tcp_flags", request.tcp_flags, u8::MAX)?,
            icmp,
            length: in_range("length", request.length, u16::MAX)?,
            reply: request.reply(),
        })
    }

    /// Returns the number of the network of an external that is in effect.
    fn number_of(&self, external: &str) -> Result<u32, Failure> {
        let external = self.external(external)?;
        let id = external.id();
        match self.missing_wires.why(id) {
            Some(why) => Err(Failure::new(format!("external {id} is not in effect: {why}"))
                .with_help("nothing comes from outside until it is: `butterfly external list`")),
            None => Ok(external.vni().number()),
        }
    }

    /// Returns why there is no answer, with the ids of externals.
    fn refused(&self, why: &NoAnswer) -> Failure {
        let text = self.with_externals(&why.to_string());
        match help(why) {
            Some(help) => Failure::new(text).with_help(help),
            None => Failure::new(text),
        }
    }

    fn step(&self, step: Step) -> explain_walk::Step {
        let mark = match step.mark {
            Mark::Pass => explain_walk::step::Mark::PASS,
            Mark::Stop => explain_walk::step::Mark::STOP,
            Mark::Note => explain_walk::step::Mark::NOTE,
        };
        explain_walk::Step {
            stage: Some(step.stage.to_owned()),
            mark: Some(mark.into()),
            text: Some(self.with_externals(&step.text)),
            detail: step.details.iter().map(|detail| self.with_externals(detail)).collect(),
            ..Default::default()
        }
    }

    fn rewritten(&self, way: Rewritten) -> explain_walk::Routed {
        explain_walk::Routed {
            vni: Some(way.vni),
            source_mac: Some(way.source.to_string()),
            destination_mac: Some(way.destination.to_string()),
            external: self.external_of(way.vni),
            ..Default::default()
        }
    }

    fn walk(&self, walk: Walk) -> ExplainWalk {
        let frame = walk.frame;
        let drop = |refused: Refused| {
            drop(&refused, self.adviser().advice(refused.reason.remedy, &frame, &refused.charged))
        };
        let [egress, ingress] = walk.admitted.map(|by| by.map(admission).into());
        let mut message = ExplainWalk {
            packet: Some(walk.packet),
            step: walk.steps.into_iter().map(|step| self.step(step)).collect(),
            egress,
            ingress,
            routed: walk.routed.map(|way| self.rewritten(way)).into(),
            ..Default::default()
        };
        let hosts = |hosts: Vec<IpAddr>| hosts.into_iter().map(canonical).collect();
        let fate = match walk.fate {
            Fate::Delivered(nic) => {
                message.nic_id = vec![nic];
                explain_walk::Fate::DELIVERED
            }
            Fate::Leaves(host) => {
                message.host = hosts(vec![host]);
                explain_walk::Fate::LEAVES
            }
            Fate::Flooded { here, away, refused } => {
                (message.nic_id, message.host) = (here, hosts(away));
                message.drop = refused.into_iter().map(drop).collect();
                explain_walk::Fate::FLOODED
            }
            Fate::Dropped(refused) => {
                message.drop = vec![drop(refused)];
                explain_walk::Fate::DROPPED
            }
            Fate::Answered => explain_walk::Fate::ANSWERED,
            Fate::Waits => explain_walk::Fate::WAITS,
            Fate::NoAddress => explain_walk::Fate::NO_ADDRESS,
        };
        message.fate = Some(fate.into());
        message
    }
}

fn mac(text: &str) -> Result<Mac, Failure> {
    text.parse()
        .map_err(|_| Failure::new(format!("{text:?} is no MAC address, such as 52:54:00:12:34:01")))
}

/// Returns what to ask instead of what has no answer.
fn help(why: &NoAnswer) -> Option<&'static str> {
    Some(match why {
        NoAnswer::NeedsMac(_) => {
            "ask both hosts (`butterfly explain ... --far-endpoint ENDPOINT-OF-THAT-HOST`), or give its MAC address (destination_mac, `--mac`): `butterfly fdb VNI` lists those that were heard"
        }
        NoAnswer::NoAddress { .. } => {
            "give the address (`--src`, or `--to ADDRESS`), or declare one for the NIC"
        }
        NoAnswer::NeedsSource => "give source (`--src`)",
        NoAnswer::NeedsPort(_) => "give destination_port (`--port`)",
        _ => return None,
    })
}

fn drop(refused: &Refused, remedy: String) -> explain_walk::Drop {
    explain_walk::Drop {
        reason: Some(refused.reason.name.to_owned()),
        nic_id: Some(refused.charged.clone()).filter(|id| !id.is_empty()),
        description: Some(refused.reason.description.trim().to_owned()),
        remedy: Some(remedy),
        ..Default::default()
    }
}
