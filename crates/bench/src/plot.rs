//! Pictures of a run, as SVG: how long frames took, or how many came in each second.

use std::fmt::Write;

use crate::{histogram::Latency, report::Report};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;

/// Draws a run: its latency if that was measured, else its rate.
pub fn svg(report: &Report) -> String {
    match &report.latency {
        Some(latency) => percentiles(&title(report, "time"), latency),
        None => rates(&title(report, "rate"), report),
    }
}

fn title(report: &Report, what: &str) -> String {
    let rate = report.rate.map_or(String::new(), |rate| format!(", {rate} frames/s"));
    format!(
        "{what}: {}, {} flows, {} bytes, {}{rate}",
        report.dir, report.flows, report.size, report.proto
    )
}

/// A page with axes.
struct Page(String);

impl Page {
    fn new(title: &str, x: &str, y: &str) -> Page {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let (middle, bottom, half) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0, HEIGHT / 2.0);
        let title = escaped(title);
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"26\" text-anchor=\"middle\" font-size=\"15\">{title}</text>\n\
             <text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{x}</text>\n\
             <text x=\"18\" y=\"{half}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {half})\">{y}</text>"
        );
        Page(text)
    }

    /// Draws a line across, with its value at the left. `at` is 0 below to 1 above.
    fn across(&mut self, at: f64, value: &str) {
        let y = y(at);
        let _ = writeln!(
            self.0,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ccc\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }

    /// Draws a line upwards, with its value below. `at` is 0 at the left to 1 at the right.
    fn up(&mut self, at: f64, value: &str) {
        let x = x(at);
        let _ = writeln!(
            self.0,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#ccc\"/>\n\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0
        );
    }

    /// Draws the measured values.
    fn finish(mut self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let points: Vec<String> =
            points.map(|(at_x, at_y)| format!("{:.1},{:.1}", x(at_x), y(at_y))).collect();
        let _ = writeln!(
            self.0,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6f8b\" stroke-width=\"2\"/>\n</svg>",
            points.join(" ")
        );
        self.0
    }
}

fn x(at: f64) -> f64 {
    LEFT + at.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
}

fn y(at: f64) -> f64 {
    HEIGHT - BOTTOM - at.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Draws the part of all frames that took at most so long, each nine as wide as the one before.
fn percentiles(title: &str, latency: &Latency) -> String {
    const NINES: f64 = 5.0;
    let (low, high) =
        (latency.min_us.max(0.01).log10().floor(), latency.max_us.max(0.02).log10().ceil());
    let high = high.max(low + 1.0);
    let mut page = Page::new(title, "part of all frames that took at most so long", "microseconds");
    let mut decade = low;
    while decade <= high {
        page.across((decade - low) / (high - low), &format!("{}", 10f64.powf(decade)));
        decade += 1.0;
    }
    for (nines, label) in
        ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"].into_iter().enumerate()
    {
        page.up(nines as f64 / NINES, label);
    }
    let all = latency.samples.max(1) as f64;
    let mut before = 0;
    page.finish(latency.histogram.iter().map(move |(us, count)| {
        let above = 1.0 - before as f64 / all;
        before += count;
        (-above.log10() / NINES, (us.max(0.01).log10() - low) / (high - low))
    }))
}

fn rates(title: &str, report: &Report) -> String {
    let seconds = &report.seconds;
    let most = seconds.iter().map(|second| second.rx_mpps).fold(0.001, f64::max);
    let step = 10f64.powf(most.log10().floor());
    let top = (most / step).ceil() * step;
    let mut page = Page::new(title, "second", "million frames per second");
    for n in 0..=4 {
        page.across(f64::from(n) / 4.0, &format!("{:.3}", top * f64::from(n) / 4.0));
    }
    let last = seconds.len().max(2) as f64 - 1.0;
    for n in 0..=4 {
        let at = f64::from(n) / 4.0;
        page.up(at, &format!("{:.0}", 1.0 + last * at));
    }
    page.finish(
        seconds.iter().enumerate().map(|(n, second)| (n as f64 / last, second.rx_mpps / top)),
    )
}
