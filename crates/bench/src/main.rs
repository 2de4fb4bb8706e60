//! `butterfly-bench`: two simulated VMs on one core that load, verify and measure a vhost-user
//! switch.
//!
//! VM A (02:00:00:00:00:01, 10.0.0.1) and VM B (02:00:00:00:00:02, 10.0.0.2) are guests of
//! [`butterfly_guest_driver`]. Each is on one vhost-user socket of the switch under test, ours or
//! another, or sends and receives through a network interface. A run has three parts: a paced
//! learning part, in which every flow is seen at least twice in each direction; a warm-up at the
//! wanted rate; and the measured seconds.
#![forbid(unsafe_code)]

mod flows;
mod frames;
mod histogram;
mod inbox;
mod interface;
mod live;
mod made;
mod manual;
mod options;
mod pcap;
mod plot;
mod replay;
mod report;
mod rng;
mod run;
mod search;
mod sequence;
mod vms;
mod watch;

use std::{io::Write, process::ExitCode};

use clap::Parser;

/// Exit code of a run in which nothing was wrong.
const OK: u8 = 0;
/// The run could not be made.
const FAILED: u8 = 1;
/// Frames were corrupted, duplicated, reordered, or more lost than allowed.
const VERIFY_FAILED: u8 = 3;

/// Returns the output of `--generate WHAT`, for package builders.
fn generated() -> Option<String> {
    let mut words = std::env::args_os().skip(1);
    let asked = words.next()? == "--generate";
    words.next().filter(|_| asked)?.to_str().and_then(manual::generate)
}

fn main() -> ExitCode {
    if let Some(text) = generated() {
        let written = std::io::stdout().write_all(text.as_bytes());
        return if written.is_ok() { OK.into() } else { FAILED.into() };
    }
    let options = options::Options::parse();
    if options.made {
        return match made::made(&options, &mut std::io::stdout()) {
            Ok(_) => OK.into(),
            Err(error) => {
                eprintln!("butterfly-bench: {error:#}");
                FAILED.into()
            }
        };
    }
    match run::run(&options) {
        Ok(report) if report.failures.is_empty() => OK.into(),
        Ok(report) => {
            report.failures.iter().for_each(|failure| eprintln!("butterfly-bench: {failure}"));
            VERIFY_FAILED.into()
        }
        Err(error) => {
            eprintln!("butterfly-bench: {error:#}");
            FAILED.into()
        }
    }
}
