//! Is a second worth anything? Shares of a core that threads had.

use std::time::{Duration, Instant};

use anyhow::Context;

/// A second counts when generator and switch each had more than this share of their core.
pub const VALID_SHARE: f64 = 0.98;

/// CPU time of this thread.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// CPU time of any thread; None when it is gone.
fn thread_cpu(tid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/schedstat")).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// Threads whose share is wanted: the busiest of them counts.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    tids: Vec<u32>,
}

/// A stretch of time that has begun.
#[derive(Clone, Debug)]
pub struct Span {
    start: Instant,
    own: Duration,
    watched: Vec<(Instant, Option<Duration>)>,
}

/// Shares of a core over a stretch of time, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shares {
    /// Seconds it lasted.
    pub secs: f64,
    /// This thread's.
    pub own: f64,
    /// The busiest watched thread's; None when none is watched.
    pub watched: Option<f64>,
}

impl Shares {
    /// True if figures of this stretch mean anything.
    pub fn are_valid(&self) -> bool {
        self.own > VALID_SHARE && self.watched.is_none_or(|share| share > VALID_SHARE)
    }
}

impl Watch {
    /// These threads, and all that these processes have now.
    pub fn new(tids: &[u32], pids: &[u32]) -> anyhow::Result<Watch> {
        let mut all = tids.to_vec();
        for pid in pids {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
                .with_context(|| format!("no process {pid} to watch"))?;
            all.extend(
                tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()),
            );
        }
        for tid in &all {
            thread_cpu(*tid).with_context(|| format!("no thread {tid} to watch"))?;
        }
        Ok(Watch { tids: all })
    }

    pub fn start(&self) -> Span {
        let watched = self.tids.iter().map(|tid| (Instant::now(), thread_cpu(*tid))).collect();
        Span { start: Instant::now(), own: own_cpu(), watched }
    }

    pub fn end(&self, span: &Span) -> Shares {
        let secs = span.start.elapsed().as_secs_f64();
        let own = (own_cpu() - span.own).as_secs_f64() / secs;
        // Reading /proc takes time too: each thread relates to the moments at which it was read.
        let share = |(tid, (start, before)): (&u32, &(Instant, Option<Duration>))| {
            let used = thread_cpu(*tid)?.checked_sub((*before)?)?;
            Some((used.as_secs_f64() / start.elapsed().as_secs_f64()).min(1.0))
        };
        let busiest = self.tids.iter().zip(&span.watched).filter_map(share).fold(0.0, f64::max);
        Shares { secs, own: own.min(1.0), watched: (!self.tids.is_empty()).then_some(busiest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_has_its_core_and_a_sleeper_has_none() {
        let watch =
            Watch::new(&[rustix::thread::gettid().as_raw_nonzero().get() as u32], &[]).unwrap();
        let span = watch.start();
        let begin = own_cpu();
        while own_cpu() - begin < Duration::from_millis(50) {}
        let busy = watch.end(&span);
        assert!(busy.own > 0.0 && busy.watched.is_some_and(|share| share > 0.0), "{busy:?}");
        let span = watch.start();
        std::thread::sleep(Duration::from_millis(50));
        let idle = watch.end(&span);
        assert!(idle.own < 0.5 && !idle.are_valid(), "{idle:?}");
    }

    #[test]
    fn who_is_not_there_is_named() {
        assert!(Watch::new(&[], &[4_000_000_000]).unwrap_err().to_string().contains("4000000000"));
        assert!(Watch::new(&[4_000_000_000], &[]).unwrap_err().to_string().contains("4000000000"));
    }
}
