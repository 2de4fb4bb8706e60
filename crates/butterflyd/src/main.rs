//! `butterflyd`: the daemon of one host.
//!
//! Folders and files are floors, and imports go down only (`tests/lib/imports.py`):
//!
//! | floor | holds |
//! |---|---|
//! | [`run`] | the wiring: everything made, the API served, everything stopped |
//! | [`handlers`] | what each request of the API does |
//! | [`dataplane`] | what the daemon needs from a data path |
//! | [`metrics`] | the page for Prometheus, and its server |
//! | [`recorder`] | traces and captures |
//! | [`events`] | what happened, and the lines on standard output |
//! | [`host`] | the host below: open files, interfaces, signals, systemd |
//! | [`config`] | options and the configuration file, checked |
//! | [`log`] | where log lines go |

#![forbid(unsafe_code)]

mod config;
mod dataplane;
mod events;
mod handlers;
mod host;
mod log;
mod metrics;
mod recorder;
mod run;

use clap::Parser;
use config::{Config, dpdk, encryption, manual, options::Options};
use std::{fmt::Display, io::Write, process::ExitCode};

/// Cannot start, or cannot go on.
const FAILED: u8 = 1;
/// Wrong options or configuration; clap uses it too.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.version {
        let _ = writeln!(std::io::stdout(), "{}", butterfly_version::line(butterfly_api::REVISION));
        return ExitCode::SUCCESS;
    }
    if options.dpdk_help {
        let _ = write!(std::io::stdout(), "{}", dpdk::help());
        return ExitCode::SUCCESS;
    }
    if let Some(what) = &options.generate {
        return match manual::generate(what) {
            Ok(text) => {
                let _ = write!(std::io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            Err(problem) => {
                tell(problem);
                ExitCode::from(USAGE)
            }
        };
    }
    let config = match Config::load(options) {
        Ok(config) => config,
        Err(problems) => {
            tell(problems);
            return ExitCode::from(USAGE);
        }
    };
    tell(encryption::state(config.encryption.as_ref()));
    match run::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("butterflyd: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Writes a line to standard error, if it is open.
fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
