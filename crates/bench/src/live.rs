//! A live view: one line on standard error, drawn anew each second: progress and recent values.

use std::io::{Write, stderr};

use crate::options::Options;

/// Steps of a bar in a row of values, lowest first.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Values that are shown, and characters of the progress bar.
const RECENT: usize = 20;
const BAR: usize = 20;

/// State of the line.
#[derive(Debug)]
pub struct Live {
    values: Vec<f64>,
    seconds: u64,
    unit: &'static str,
}

impl Live {
    /// Begins one, if it is wanted, for the measured seconds.
    pub fn begin(options: &Options, unit: &'static str) -> Option<Live> {
        options.live.then(|| Live { values: Vec::new(), seconds: options.secs, unit })
    }

    /// Takes the value of one more second and draws the line. Nobody may look: an error is none.
    pub fn show(&mut self, value: f64) {
        self.values.push(value);
        let mut terminal = stderr().lock();
        let _ = write!(terminal, "\r\x1b[2K{}", self.line());
        let _ = terminal.flush();
    }

    fn line(&self) -> String {
        let done = self.values.len() as u64;
        let filled = (done * BAR as u64).checked_div(self.seconds).unwrap_or_default() as usize;
        let bar: String = (0..BAR).map(|at| if at < filled { '=' } else { ' ' }).collect();
        let recent = &self.values[self.values.len().saturating_sub(RECENT)..];
        let most = recent.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let step =
            |value: &f64| ((value / most * STEPS.len() as f64) as usize).min(STEPS.len() - 1);
        let row: String = recent.iter().map(|value| STEPS[step(value)]).collect();
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        format!(
            "[{bar}] {done} of {} s  {row}  {:.3} {}, median {median:.3}",
            self.seconds,
            self.values.last().copied().unwrap_or_default(),
            self.unit
        )
    }
}

impl Drop for Live {
    /// Leaves the last state of the line where it is.
    fn drop(&mut self) {
        let _ = writeln!(stderr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_progress_values_and_their_median() {
        let mut live = Live { values: vec![1.0, 4.0], seconds: 4, unit: "Mpps" };
        live.values.push(8.0);
        assert_eq!(live.line(), "[===============     ] 3 of 4 s  ▂▅█  8.000 Mpps, median 4.000");
        live.values = vec![0.0; 100];
        live.seconds = 100;
        assert!(
            live.line().starts_with("[====================] 100 of 100 s  ▁▁▁"),
            "{}",
            live.line()
        );
    }
}
