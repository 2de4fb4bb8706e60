//! The life of a service, which is longer than that of its processes.

use crate::events::RecordTaken;
use butterfly_api::{RequestCount, Requests};
use butterfly_datapath::TakenOver;
use butterfly_mem::cpu::since_boot;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// No count comes that far. A larger one was forged.
const MOST: u64 = 1 << 62;

/// A service: what stays the same when one process of it dies and another one goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// The start of the host that it runs in.
    pub boot: String,
    /// Start of its first process, in milliseconds since the epoch.
    pub started: u64,
    /// Number of processes that went on for one that had died.
    pub restarts: u64,
}

/// Text of a process.
#[derive(Serialize, Deserialize)]
struct LifeText<'a> {
    layout: u32,
    /// In rehearsals alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rehearsed: Option<u32>,
    #[serde(flatten)]
    life: Life,
    /// Moment of this text, in milliseconds since the host was started (CLOCK_BOOTTIME).
    written: u64,
    #[serde(default)]
    requests: Vec<OfRequest<'a>>,
}

#[derive(Serialize, Deserialize)]
struct OfRequest<'a> {
    request: Cow<'a, str>,
    succeeded: u64,
    failed: u64,
    nanoseconds: u64,
}

/// Account of what a process goes on with.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The service, with one more restart; as new if the process before it is not known.
    pub life: Life,
    /// Time for which no process ran, from the last note of the one before; `None` if not known.
    pub stood_still: Option<Duration>,
    pub taken: TakenOver,
    pub record: RecordTaken,
    /// Reasons for which something was not read.
    pub problems: Vec<String>,
}

impl Life {
    /// The service begins now.
    pub fn begin() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { boot: boot(), started: milliseconds(started), restarts: 0 }
    }

    /// Returns the text for a successor.
    pub fn note(&self, requests: Option<&Requests>) -> Vec<u8> {
        let requests = requests.into_iter().flat_map(Requests::list);
        let requests = requests.filter(|count| count.succeeded + count.failed > 0);
        let layout = butterfly_layout::in_force();
        let text = LifeText {
            layout,
            rehearsed: butterfly_layout::rehearsed(layout),
            life: self.clone(),
            written: milliseconds(since_boot()),
            requests: requests
                .map(|count| OfRequest {
                    request: count.request.into(),
                    succeeded: count.succeeded,
                    failed: count.failed,
                    nanoseconds: count.time.as_nanos().try_into().unwrap_or(MOST),
                })
                .collect(),
        };
        serde_json::to_vec(&text).unwrap_or_default()
    }
}

/// Checks that a text can be read here. Returns the reason if not.
pub fn check(text: &[u8]) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    read(text).map(drop).map_err(|why| format!("the life of the service was not read: {why}"))
}

fn read(text: &[u8]) -> Result<LifeText<'_>, String> {
    let read: LifeText<'_> = serde_json::from_slice(text).map_err(|why| why.to_string())?;
    butterfly_layout::check(read.layout)?;
    match read.rehearsed == butterfly_layout::rehearsed(read.layout) {
        true => Ok(read),
        false => Err("it has a field of another layout".to_owned()),
    }
}

impl Resumed {
    /// Reads the text of the process before, and goes on with its counts.
    pub fn of(text: &[u8], requests: &Requests) -> Self {
        let mut resumed = Self {
            life: Life::begin(),
            stood_still: None,
            taken: TakenOver::default(),
            record: RecordTaken::default(),
            problems: Vec::new(),
        };
        if text.is_empty() {
            return resumed;
        }
        let former = match read(text) {
            Ok(former) => former,
            Err(why) => {
                resumed.problems.push(format!("its life was not read: {why}"));
                return resumed;
            }
        };
        for OfRequest { request, succeeded, failed, nanoseconds } in &former.requests {
            let sound = [succeeded, failed, nanoseconds].into_iter().all(|n| *n < MOST);
            let count = RequestCount {
                request,
                succeeded: *succeeded,
                failed: *failed,
                time: Duration::from_nanos(*nanoseconds),
            };
            if !sound || !requests.add_former(&count) {
                resumed.problems.push("counts of a request were not taken over".to_owned());
                break;
            }
        }
        let now = milliseconds(since_boot());
        if former.life.boot == resumed.life.boot && former.written <= now {
            resumed.stood_still = Some(Duration::from_millis(now - former.written));
        }
        resumed.life.started = former.life.started.min(resumed.life.started);
        resumed.life.restarts = former.life.restarts.saturating_add(1);
        resumed
    }
}

impl Resumed {
    /// Returns whether everything was taken over.
    pub fn is_whole(&self) -> bool {
        self.taken.not_taken() + self.taken.problems.len() + self.problems.len() == 0
            && self.record.refused == 0
            && self.record.problem.is_none()
    }
}

/// The words of the event.
impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, stood_still, taken, record, problems } = self;
        write!(f, "restart {}", life.restarts)?;
        if let Some(time) = stood_still {
            write!(f, ", {} ms after the last note", time.as_millis())?;
        }
        write!(f, "; taken over: {} events, {taken}", record.events)?;
        if record.refused > 0 {
            write!(f, "; {} events were not", record.refused)?;
        }
        record.problem.iter().chain(problems).try_for_each(|problem| write!(f, "; {problem}"))
    }
}

fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
