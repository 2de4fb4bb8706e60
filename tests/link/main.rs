//! butterfly-link: a bad link between two TAP devices, each in a network namespace. For tests on
//! kernels without netem.

#![forbid(unsafe_code)]

mod line;

use std::{
    error::Error,
    fs::File,
    io::{BufRead, stdin},
    os::fd::AsFd,
    sync::mpsc::{Receiver, TryRecvError, channel},
    time::{Duration, Instant},
};

use butterfly_uplink::{
    BURST, Inward, Outward,
    tap::{Tap, TapConfig},
};
use clap::{Args, Parser};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use line::{Counts, Impairments, Line};

/// Passes frames between two TAP devices as a bad link would. Runs until it is killed, or standard
/// input ends. A line there changes the link: options as on the command line, such as `--loss 100`;
/// what a line does not name is as on a good link; `changed` says that it holds. The word `counts`
/// prints what happened so far.
#[derive(Parser, Debug)]
#[command(name = "butterfly-link")]
struct Arguments {
    /// First device, as NAMESPACE/DEVICE or DEVICE. It is made, and goes with the program.
    a: String,
    /// Second device.
    b: String,
    /// Number that makes chance repeat itself.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    link: LinkOptions,
}

/// Line of standard input that changes the link.
#[derive(Parser, Debug)]
#[command(no_binary_name = true)]
struct Change {
    #[command(flatten)]
    link: LinkOptions,
}

/// Properties of both directions.
#[derive(Args, Clone, Copy, Debug)]
struct LinkOptions {
    /// Milliseconds that each frame is under way.
    #[arg(long, default_value_t = 0.0)]
    delay: f64,
    /// Milliseconds by which that may differ; frames keep their order.
    #[arg(long, default_value_t = 0.0)]
    jitter: f64,
    /// Frames that are lost, of 100.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Frames that come twice, of 100.
    #[arg(long, default_value_t = 0.0)]
    duplicate: f64,
    /// Frames that overtake those under way, of 100.
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Bits per second, each way.
    #[arg(long)]
    rate: Option<u64>,
}

impl LinkOptions {
    fn impairments(&self) -> Impairments {
        let ms = |n: f64| Duration::from_secs_f64(n.clamp(0.0, 1e6) / 1000.0);
        Impairments {
            delay: ms(self.delay),
            jitter: ms(self.jitter),
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            rate: self.rate,
        }
    }
}

/// Opens a device, NAMESPACE/DEVICE or DEVICE.
fn open(place: &str) -> Result<Tap, Box<dyn Error + Send + Sync>> {
    let (namespace, device) = place.rsplit_once('/').unwrap_or(("", place));
    let config = TapConfig { name: Some(device.to_owned()), mtu: Some(9000) };
    let namespace = namespace.to_owned();
    // A thread of its own: the others stay in their namespace.
    let opened = std::thread::spawn(move || -> Result<Tap, Box<dyn Error + Send + Sync>> {
        if !namespace.is_empty() {
            let file = File::open(format!("/run/netns/{namespace}"))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        Ok(Tap::open(&config)?)
    });
    opened.join().map_err(|_| "the thread that opened a device panicked")?
}

/// Passes on what has arrived. Returns when the next frame is due.
fn deliver(line: &mut Line, to: &mut Tap, now: Instant) -> Option<Instant> {
    let mut queued = 0;
    while let Some(frame) = line.take(now) {
        if let Some(room) = to.room(frame.len()) {
            room.copy_from_slice(&frame);
            to.send();
        } else {
            line.counts.refused += 1;
        }
        queued += 1;
        if queued == BURST {
            to.flush();
            queued = 0;
        }
    }
    to.flush();
    line.next_due()
}

fn receive(from: &mut Tap, line: &mut Line, now: Instant) {
    let n = from.receive(BURST);
    (0..n).for_each(|index| line.put(from.frame(index), now));
    from.release();
}

fn told(name: &str, counts: &Counts) {
    let Counts { frames, lost, duplicated, reordered, full, arrived, refused } = counts;
    println!(
        "{name}: {frames} frames, {lost} lost, {duplicated} duplicated, {reordered} reordered, \
         {full} too many, {} delivered, {refused} refused at the end",
        arrived - refused
    );
}

/// Returns the lines of standard input as they come.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Longest time between two looks at standard input.
const LOOK: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let Arguments { a, b, seed, link } = Arguments::parse();
    let mut taps = [open(&a)?, open(&b)?];
    let mut ways = [0, 1].map(|way| Line::new(link.impairments(), seed.wrapping_add(way)));
    let asked = lines();
    println!("ready");
    loop {
        match asked.try_recv().as_deref() {
            Ok("counts") => {
                let [there, back] = &ways;
                told(&format!("{a} to {b}"), &there.counts);
                told(&format!("{b} to {a}"), &back.counts);
            }
            Ok(line) => match Change::try_parse_from(line.split_whitespace()) {
                Ok(Change { link }) => {
                    ways.iter_mut().for_each(|way| way.impairments = link.impairments());
                    println!("changed");
                }
                Err(why) => eprintln!("{why}"),
            },
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        let now = Instant::now();
        let [tap_a, tap_b] = &mut taps;
        let [there, back] = &mut ways;
        receive(tap_a, there, now);
        receive(tap_b, back, now);
        let now = Instant::now();
        let due = [deliver(there, tap_b, now), deliver(back, tap_a, now)];
        let wait = due.into_iter().flatten().map(|due| due.saturating_duration_since(now)).min();
        let wait = wait.unwrap_or(LOOK).min(LOOK);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let [tap_a, tap_b] = &taps;
        let mut readable =
            [tap_a, tap_b].map(|tap| PollFd::from_borrowed_fd(tap.descriptor(), PollFlags::IN));
        poll(&mut readable, Some(&timeout))?;
    }
}
