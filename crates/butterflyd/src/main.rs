//! `butterflyd`: the daemon of one host.
//!
//! Folders and files are floors, and imports go down only (`tests/lib/imports.py`):
//!
//! | floor | holds |
//! |---|---|
//! | [`run`] | the wiring: everything made, the API served, everything stopped |
//! | [`proof`] | whether this program can go on for one that runs |
//! | [`handlers`] | what each request of the API does |
//! | [`upgrade`] | how another program goes on in this one's place |
//! | [`dataplane`] | what the daemon needs from a data path |
//! | [`keeper`] | the store: changes on their way, births of vnics, trouble |
//! | [`metrics`] | the page for Prometheus, and its server |
//! | [`recorder`] | traces and captures |
//! | [`events`] | what happened, and the lines on standard output |
//! | [`poison`] | vnics by which workers ended, and starts that come to nothing |
//! | [`holding`] | what the holder keeps for a successor |
//! | [`host`] | the host below: open files, interfaces, signals, systemd |
//! | [`config`] | options and the configuration file, checked |
//! | [`log`] | where log lines go |

#![forbid(unsafe_code)]

mod checkpoint;
mod config;
mod dataplane;
mod events;
mod handlers;
mod holding;
mod host;
mod keeper;
mod log;
mod metrics;
mod poison;
mod proof;
mod recorder;
mod run;
mod upgrade;
mod wires;

use clap::Parser;
use config::{Config, dpdk, encryption, manual, options::Options};
use std::{
    ffi::OsString,
    fmt::Display,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::ExitCode,
};
use upgrade::passage::{self, Came, Guard};

/// Cannot start, or cannot go on.
const FAILED: u8 = 1;
/// Wrong options or configuration; clap uses it too.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Not this program's options: the holder and the closer are processes of the same file.
    if let Some(status) = butterfly_holder::run_if_asked() {
        return ExitCode::from(status);
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == upgrade::PROVE) {
        return match proof::run() {
            Ok(()) => {
                let _ = writeln!(std::io::stdout(), "{}", upgrade::PROVED);
                ExitCode::SUCCESS
            }
            Err(why) => {
                tell(why);
                ExitCode::from(FAILED)
            }
        };
    }
    if let [word, directory] = &std::env::args_os().skip(1).collect::<Vec<_>>()[..]
        && word == host::answers::WRITE
    {
        return match host::answers::run(directory.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                tell(why);
                ExitCode::from(FAILED)
            }
        };
    }
    butterfly_mem::cpu::begin_to_measure();
    let words: Vec<OsString> = std::env::args_os().take(1).chain(passage::words()).collect();
    let options = match Options::try_parse_from(&words) {
        Ok(options) => options,
        Err(problem) => {
            let _ = problem.print();
            if problem.exit_code() == i32::from(USAGE) {
                have_machines_stay(&words);
            }
            return ExitCode::from(u8::try_from(problem.exit_code()).unwrap_or(USAGE));
        }
    };
    if let Some(status) = answer(&options) {
        return status;
    }
    let came = passage::came();
    if came != Came::New {
        passage::take_name();
    }
    if passage::rehearse(&came, "start").is_err() {
        return ExitCode::from(FAILED);
    }
    let guard = match &came {
        Came::Upgraded { .. } => Guard::start(),
        _ => Guard::none(),
    };
    let (status, why) = match serve(options, came, &guard) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(ended) => ended,
    };
    tell(&why);
    if guard.may_go_back() {
        // Returns only if that cannot be executed; then the service manager starts another one.
        tell(passage::fall_back(&why));
    }
    if status == USAGE {
        have_machines_stay(&words);
    }
    ExitCode::from(status)
}

/// Has the holder keep the connections of machines until the operator has mended what is wrong.
fn have_machines_stay(words: &[OsString]) {
    if holding::stay(config::possible_state_dirs(words)) {
        tell(
            "machines stay connected, without traffic, until a daemon begins: mend that and start it; or let them go: systemctl stop butterfly-holder",
        );
    }
}

/// Carries out words that ask for something else than a daemon. `None` if there are none.
fn answer(options: &Options) -> Option<ExitCode> {
    if options.version {
        let _ = writeln!(std::io::stdout(), "{}", butterfly_version::line(butterfly_api::REVISION));
        return Some(ExitCode::SUCCESS);
    }
    if options.dpdk_help {
        let _ = write!(std::io::stdout(), "{}", dpdk::help());
        return Some(ExitCode::SUCCESS);
    }
    if let Some(what) = &options.generate {
        return Some(match manual::generate(what) {
            Ok(text) => {
                let _ = write!(std::io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            Err(problem) => {
                tell(problem);
                ExitCode::from(USAGE)
            }
        });
    }
    if let Some(state) = &options.upgrade_holder {
        return Some(match holding::upgrade_holder(state) {
            Ok(line) => {
                let _ = writeln!(std::io::stdout(), "{line}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                tell(format_args!("butterflyd: {why}"));
                ExitCode::from(FAILED)
            }
        });
    }
    let directory = options.write_store.as_ref()?;
    Some(match run::write_store(directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("butterflyd: the writer of the store: {error}"));
            ExitCode::from(FAILED)
        }
    })
}

/// Runs the daemon. Returns its exit status and the reason if it cannot begin or go on.
fn serve(options: Options, came: Came, guard: &Guard) -> Result<(), (u8, String)> {
    let config = Config::load(options.clone()).map_err(|why| (USAGE, why.to_string()))?;
    tell(encryption::state(config.encryption.as_ref()));
    // A program that panics before it is ready is one that cannot begin.
    let ran = catch_unwind(AssertUnwindSafe(|| run::run(config, options, came, guard)));
    match ran {
        Ok(ran) => ran.map_err(|why| (FAILED, format!("butterflyd: {why}"))),
        Err(panic) if guard.may_go_back() => {
            drop(panic);
            Err((FAILED, "butterflyd: it panicked before it was ready: see the log".to_owned()))
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Writes a line to standard error, if it is open.
fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
