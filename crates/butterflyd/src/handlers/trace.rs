//! Requests about traces and captures.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    recorder::{RATE, Told},
};
use butterfly_api::{
    Answer, Failure,
    proto::{CaptureReq, CaptureRes, Response, TraceReq, TraceRes, TraceTarget, TracedPacket},
};
use butterfly_datapath::TapWhat;
use butterfly_model::Vni;
use protobuf::MessageField;

/// Reasons that security groups are behind.
const EGRESS_DENIED: &str = "egress-denied";
const INGRESS_DENIED: &str = "ingress-denied";
const FOR_ROUTERS: &str = "for-routers";
/// Prefix of a vnic that is charged.
const NIC: &str = "nic ";
/// Bytes of a packet in a capture, unless the client wants others.
const SNAP: u32 = 65_535;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn trace(&mut self, request: &TraceReq) -> Answer {
        let (number, told) = match (request.start.as_ref(), request.read, request.stop) {
            (Some(start), ..) => {
                let what = self.target(&start.target)?;
                let (sample, rate) = (start.sample.unwrap_or(1), start.rate.unwrap_or(RATE));
                let number = self.recorder.trace(what, start.filter(), sample, rate)?;
                (number.into(), Told::default())
            }
            (None, Some(number), _) => (number, self.recorder.read(number, true, false)?),
            (None, None, Some(number)) => (number, self.recorder.read(number, true, true)?),
            (None, None, None) => return Err(nothing("trace")),
        };
        let result = TraceRes {
            trace: Some(number),
            packet: told.packets.into_iter().map(|packet| self.with_groups(packet)).collect(),
            lost: Some(told.lost),
            suppressed: Some(told.suppressed),
            seen: Some(told.seen),
            more: told.more.then_some(true),
            ..TraceRes::default()
        };
        Ok(Response { trace: MessageField::some(result), ..Response::default() })
    }

    pub(super) fn capture(&mut self, request: &CaptureReq) -> Answer {
        let (number, told) = match (request.start.as_ref(), request.read, request.stop) {
            (Some(start), ..) => {
                let what = self.target(&start.target)?;
                let number = self.recorder.capture(
                    what,
                    start.filter(),
                    start.snap_length.unwrap_or(SNAP),
                )?;
                (number.into(), Told::default())
            }
            (None, Some(number), _) => (number, self.recorder.read(number, false, false)?),
            (None, None, Some(number)) => (number, self.recorder.read(number, false, true)?),
            (None, None, None) => return Err(nothing("capture")),
        };
        let result = CaptureRes {
            capture: Some(number),
            data: Some(told.data),
            packets: Some(told.count),
            lost: Some(told.lost + told.suppressed),
            more: told.more.then_some(true),
            ..CaptureRes::default()
        };
        Ok(Response { capture: MessageField::some(result), ..Response::default() })
    }

    /// Names the groups that refused a packet: they are known here, and of no interest to the
    /// workers.
    fn with_groups(&self, mut packet: TracedPacket) -> TracedPacket {
        if [EGRESS_DENIED, INGRESS_DENIED, FOR_ROUTERS].contains(&packet.reason())
            && let Some(nic) =
                packet.charged().strip_prefix(NIC).and_then(|id| self.desired.vnics().get(id))
        {
            packet.tried = nic.security_groups.texts();
        }
        packet
    }

    fn target(&self, target: &TraceTarget) -> Result<TapWhat, Failure> {
        match (&target.nic_id, target.vni) {
            (Some(_), Some(_)) => {
                Err(Failure::new("a trace is about a nic or about a network, not both"))
            }
            (Some(id), None) => {
                self.vnic_or_wire(id)?;
                Ok(TapWhat::Nic(id.clone()))
            }
            (None, Some(vni)) => {
                let vni = Vni::new(vni).map_err(|error| Failure::new(error.to_string()))?;
                Ok(TapWhat::Vni(vni.number()))
            }
            (None, None) => Ok(TapWhat::All),
        }
    }
}

fn nothing(what: &str) -> Failure {
    Failure::new(format!("{what}: nothing is asked for")).with_help("set start, read or stop")
}
