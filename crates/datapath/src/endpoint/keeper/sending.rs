//! Frames of the endpoint's own for the uplink, and results of questions for the workers.

use std::sync::atomic::Ordering;

use butterfly_packet::{ethernet, protocol};

use crate::endpoint::{
    control::{ControlEvent, Count},
    keeper::State,
    silence::Refusal,
};
use crate::overlay::{Own, Tunnel};
use crate::plane::Plane;

/// Most frames of the endpoint's own that wait for their turn: as many as there may be groups.
const KEPT: usize = 1 << 16;

impl State {
    /// Sends frames, and tells workers the results of questions.
    pub(super) fn carry_out(&mut self, plane: &Plane, tunnel: &Tunnel, ageing: u32) {
        let clock = plane.shared.clock.now();
        for event in self.out.events.drain(..) {
            let (ControlEvent::Resolved(peer, _)
            | ControlEvent::Unreachable(peer)
            | ControlEvent::Refused(peer, _)) = event;
            let Some(at) = tunnel.peers.find(crate::world::rules::number(peer)) else { continue };
            let Some(peer) = tunnel.peers.get(at) else { continue };
            match event {
                ControlEvent::Resolved(..) => self.silences.answers(at),
                ControlEvent::Unreachable(_) => {
                    self.silences.refused(at, Refusal::NoNextHop, clock)
                }
                ControlEvent::Refused(_, why) => {
                    self.silences.refused(at, why, clock);
                    continue;
                }
            }
            if let ControlEvent::Resolved(_, mac) = event {
                peer.set_mac(Some(mac));
            } else if !peer.was_heard(clock, ageing) {
                // Otherwise frames came from the peer: there is a way, though no station there
                // answers questions (a router, for one).
                peer.set_mac(None);
            }
            peer.stop_waiting();
        }
        let counts = self.control.counts();
        let lost = self.lost + counts.of(Count::NoAnswer) + counts.of(Count::WaitingFull);
        tunnel.lost_waiting.store(lost, Ordering::Relaxed);
        if self.out.frames.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        for frame in self.out.frames.drain(..) {
            let counted = is_encapsulated(&frame);
            let frame = in_vlan(frame, tunnel.vlan);
            let Err(own) = tunnel.punt.send(Own { frame, counted }) else { continue };
            // Messages that are said only once, such as leaving a group, are sent in the next turn.
            // No other host can make us owe more than those.
            if counted || kept.len() >= KEPT {
                self.lost += u64::from(counted);
            } else {
                kept.push(own.frame);
            }
        }
        self.out.frames = kept;
        plane.board.handles().iter().for_each(|worker| worker.wake());
    }
}

/// Returns whether a frame has a tag.
fn is_tagged(frame: &[u8]) -> bool {
    butterfly_packet::be16(frame, 12) == Some(ethernet::VLAN)
}

/// Puts a frame into the underlay's VLAN. A frame that waited for its next hop, or for its turn,
/// has a tag already.
fn in_vlan(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    if vlan != 0 && frame.len() >= ethernet::HEADER_LEN && !is_tagged(&frame) {
        let [[a, b], [c, d]] = [ethernet::VLAN, vlan].map(u16::to_be_bytes);
        frame.splice(12..12, [a, b, c, d]);
    }
    frame
}

/// Returns whether a frame is a network's that waited for its next hop. The endpoint itself sends
/// no UDP.
fn is_encapsulated(frame: &[u8]) -> bool {
    let tag = if is_tagged(frame) { ethernet::TAG_LEN } else { 0 };
    let byte = |at: usize| frame.get(at + tag).copied().unwrap_or(0);
    match (byte(12), byte(13)) {
        (0x08, 0x00) => byte(23) == protocol::UDP,
        (0x86, 0xdd) => byte(20) == protocol::UDP,
        _ => false,
    }
}
