//! `butterflyd`: the daemon of one host.

#![forbid(unsafe_code)]

mod announce;
mod config;
mod convert;
mod dataplane;
mod dpdk;
mod encryption;
mod events;
mod graph;
mod handlers;
mod ini;
mod keys;
mod limits;
mod listen;
mod log;
mod manual;
mod metrics;
mod mtu;
mod notify;
mod options;
mod recorder;
mod run;
mod signals;
mod timeouts;
mod tunnel;
mod watchdog;

use clap::Parser;
use config::Config;
use options::Options;
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

/// Writes a line to standard error, if anybody reads it.
fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
