//! Deaths to die: each point at some passage, those of control messages for each kind of message.

use butterfly_point::Point;

/// Kinds of control messages that the guests send.
const MESSAGES: [&str; 17] = [
    "GET_FEATURES",
    "SET_FEATURES",
    "SET_OWNER",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "SET_MEM_TABLE",
    "SET_LOG_BASE",
    "SET_VRING_NUM",
    "SET_VRING_ADDR",
    "SET_VRING_BASE",
    "GET_VRING_BASE",
    "SET_VRING_KICK",
    "SET_VRING_CALL",
    "SET_VRING_ENABLE",
    "GET_MAX_MEM_SLOTS",
    "ADD_MEM_REG",
    "REM_MEM_REG",
];
/// Those of a short run: with descriptors, with an answer, with neither.
const FEW: [&str; 4] = ["SET_MEM_TABLE", "GET_VRING_BASE", "SET_VRING_CALL", "SET_FEATURES"];

/// A death.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Its place.
    pub point: Point,
    /// Kind of the message.
    pub detail: Option<&'static str>,
    /// Passage at which it comes.
    pub passage: u64,
}

impl Death {
    /// True if it comes while a ring goes from one worker to another.
    pub const fn is_of_a_move(&self) -> bool {
        matches!(self.point, Point::RingLeaves | Point::GivenUp | Point::Taken)
    }
}

/// As a value of `BUTTERFLY_DIE_AT`.
impl std::fmt::Display for Death {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let detail = self.detail.map(|detail| format!("@{detail}")).unwrap_or_default();
        to.pad(&format!("{}{detail}:{}", self.point.name(), self.passage))
    }
}

/// Returns the deaths of all points whose names contain `only`, in the order of points.
pub fn deaths(short: bool, only: &str, random: &mut fastrand::Rng) -> Vec<Death> {
    let mut all = Vec::new();
    for point in Point::ALL.iter().copied().filter(|point| point.name().contains(only)) {
        let details = match point {
            Point::MessageReceived
            | Point::MessageCarriedOut
            | Point::MessageNoted
            | Point::MessageDone => match short {
                true => FEW.map(Some).to_vec(),
                false => MESSAGES.map(Some).to_vec(),
            },
            _ => vec![None],
        };
        for detail in details {
            all.push(Death { point, detail, passage: random.u64(passages(point)) });
        }
    }
    all
}

/// Range of a death's passage: after traffic has begun again.
fn passages(point: Point) -> std::ops::Range<u64> {
    match point {
        Point::TxTaken | Point::TxEntries | Point::TxReleased | Point::RxPublished => 100..1500,
        Point::CallDue | Point::Called => 50..500,
        Point::PackedNoted => 100..1500,
        Point::RxWritten | Point::RxEntry | Point::PackedEntry => 1000..20_000,
        Point::LogUnmarked | Point::LogMarked => 1000..20_000,
        // The second of two workers has so many rings when it is to end for the first time.
        Point::RingLeaves | Point::GivenUp | Point::Taken => 1..5,
        Point::SessionWritten | Point::SessionCounted | Point::SessionLinked => 30..300,
        Point::SessionUnlinked => 5..50,
        Point::StationHalf | Point::StationLearnt => 5..200,
        Point::FrontCame | Point::FrontServed | Point::FrontGone | Point::FrontLeft => 2..6,
        Point::Dialed | Point::DialGiven => 2..4,
        // A message that killed two daemons is not to kill a third: its second one does.
        Point::MessageReceived
        | Point::MessageCarriedOut
        | Point::MessageNoted
        | Point::MessageDone => 2..6,
        Point::Registering | Point::Registered | Point::Forgetting | Point::Forgotten => 2..8,
        Point::Depositing | Point::Deposited => 5..15,
        Point::CommitHandedOver | Point::CommitHeard | Point::CommitKept => 3..10,
        Point::WriterHas | Point::WriterDone => 3..6,
    }
}
