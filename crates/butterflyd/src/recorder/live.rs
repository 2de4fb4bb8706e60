//! Packets that a client watches through the API: kept until it asks for them, within bounds.

use super::{describe::traced, encode::Encoder};
use butterfly_api::proto::TracedPacket;
use butterfly_datapath::{TapPacket, TapRole, TapSink};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Packets that wait for the client at most, and that one reply has.
const WAITING: usize = 8192;
const REPLIED: usize = 2000;
/// Bytes of a capture that wait at most: half of what a message may have.
const BYTES: usize = butterfly_api::MAX_FRAME / 2;
/// Time without a query after which a client is gone.
const GONE: Duration = Duration::from_secs(10);

/// A trace or a capture.
pub struct Live {
    pub sink: Arc<TapSink>,
    state: Mutex<State>,
}

struct State {
    asked: Instant,
    seen: u64,
    /// Packets that were not kept: beyond the rate, or beyond what can wait.
    suppressed: u64,
    output: Output,
}

enum Output {
    Trace { packets: VecDeque<TracedPacket>, rate: u32, tokens: f64, filled: Instant },
    Capture { encoder: Encoder, packets: u64 },
}

/// Reply to a client.
#[derive(Default)]
pub struct Told {
    pub packets: Vec<TracedPacket>,
    pub data: Vec<u8>,
    pub count: u64,
    pub seen: u64,
    pub lost: u64,
    pub suppressed: u64,
    /// True if there is more.
    pub more: bool,
}

impl Live {
    /// A trace that tells `rate` packets per second at most.
    pub fn trace(sink: Arc<TapSink>, rate: u32) -> Live {
        let now = Instant::now();
        Live::new(
            sink,
            Output::Trace { packets: VecDeque::new(), rate, tokens: rate.into(), filled: now },
        )
    }

    /// A capture.
    pub fn capture(sink: Arc<TapSink>, encoder: Encoder) -> Live {
        Live::new(sink, Output::Capture { encoder, packets: 0 })
    }

    fn new(sink: Arc<TapSink>, output: Output) -> Live {
        Live {
            sink,
            state: Mutex::new(State { asked: Instant::now(), seen: 0, suppressed: 0, output }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it is a trace, and no capture.
    pub fn is_trace(&self) -> bool {
        matches!(self.state().output, Output::Trace { .. })
    }

    /// True if the client has not asked for long.
    pub fn is_abandoned(&self) -> bool {
        self.state().asked.elapsed() > GONE
    }

    /// A packet that passed the filter, or did not.
    pub fn add(&self, packet: &TapPacket<'_>, role: TapRole, passes: bool) {
        let mut state = self.state();
        state.seen += 1;
        if !passes {
            return;
        }
        let kept = match &mut state.output {
            Output::Trace { packets, rate, tokens, filled } => {
                let now = Instant::now();
                let most = f64::from(*rate);
                *tokens = (*tokens + now.duration_since(*filled).as_secs_f64() * most).min(most);
                *filled = now;
                let room = *tokens >= 1.0 && packets.len() < WAITING;
                if room {
                    *tokens -= 1.0;
                    packets.push_back(traced(packet));
                }
                room
            }
            Output::Capture { encoder, packets } => {
                let kept = encoder.pending() + packet.data.len() < BYTES
                    && encoder.add(packet, role).is_ok();
                *packets += u64::from(kept);
                kept
            }
        };
        state.suppressed += u64::from(!kept);
    }

    /// Returns the packets since the last call, as many as a reply holds.
    pub fn tell(&self) -> Told {
        let mut state = self.state();
        state.asked = Instant::now();
        let mut told = Told {
            seen: state.seen,
            lost: self.sink.lost(),
            suppressed: state.suppressed,
            ..Told::default()
        };
        match &mut state.output {
            Output::Trace { packets, .. } => {
                told.packets = packets.drain(..packets.len().min(REPLIED)).collect();
                told.more = !packets.is_empty();
            }
            Output::Capture { encoder, packets } => {
                told.data = encoder.take();
                told.count = *packets;
            }
        }
        told
    }
}
