//! `butterfly upgrade`: another program goes on in the daemon's place.

use crate::commands::process::ask_health;
use crate::daemon::session::Session;
use crate::daemon::settings::Settings;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::text::table::{counted, safe};
use crate::tree::Node;
use butterfly_api::proto::{AppHealthRes, Request, UpgradeReq};
use clap::Command;
use protobuf::MessageField;
use serde_json::json as object;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for one answer. The daemon does not answer while one program becomes the other.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest silence of a daemon that becomes another program, or goes back to the one before.
const SILENCE: Duration = Duration::from_secs(20);

const LONG: &str = "\
Has another program go on in the daemon's place, while virtual machines stay connected.

It first proves itself on copies of all that it will find. If it cannot go on, nothing changes, and the exit
code is 1. Traffic stands still for about 0.2 s; clients of the API connect again, captures and traces end.
The way back, until --commit: the same with the old program. The holder, which keeps the connections of
machines, has an upgrade of its own: systemctl reload butterfly-holder.";

/// `upgrade`.
pub fn node() -> Node {
    Node::run(
        Command::new("upgrade")
            .about("Has another program go on in the daemon's place, while virtual machines stay connected.")
            .long_about(LONG)
            .arg(
                word("PROGRAM").required(false).help(
                    "path of the program on the daemon's host, root's alone (default: the one that the daemon was started from, as a package replaced it)",
                ),
            )
            .args([
                flag("commit").help(
                    "rewrite the store in the newest layout of the program that runs: the release before cannot go on in its place any more",
                ),
                json(),
            ])
            .after_help(
                "butterfly upgrade\n\
                 butterfly upgrade /opt/butterfly/2.0/butterflyd\n\
                 butterfly upgrade --commit",
            ),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let wants_json = session.wants_json(arguments);
    match (arguments.word(0), arguments.has("commit")) {
        (None, true) => return commit(session, wants_json),
        (Some(_), true) => return Err(Failure::usage("name a program, or give --commit")),
        (_, false) => {}
    }
    let before = ask_health(session)?.restarts();
    let wanted =
        UpgradeReq { program: arguments.word(0).map(str::to_owned), ..UpgradeReq::default() };
    session.ask(Request { upgrade: MessageField::some(wanted), ..Request::default() })?;
    // As systemd names it to what reloads.
    let process = std::env::var_os("MAINPID").map(|pid| PathBuf::from("/proc").join(pid));
    let mut heard = Instant::now();
    // A question that is lost on the way to a program that ends is asked again.
    let mut settings = Settings { timeout: None, ..session.settings().clone() };
    let mut patient = session.with(&settings);
    loop {
        sleep(PAUSE);
        let question = Request { app_health: Some(true), ..Request::default() };
        let answer = match patient.ask_in_time(question, PATIENCE) {
            // It may have another endpoint or key by now, and say so in the client's file.
            Ok(None) | Err(_) if heard.elapsed() < SILENCE => {
                settings = settings.again();
                patient = session.with(&settings);
                None
            }
            answer => answer?,
        };
        if let Some(answer) = answer {
            heard = Instant::now();
            let health = answer.app_health.unwrap_or_default();
            if let Some(why) = &health.upgrade_failed {
                return Err(Failure::said(format!(
                    "the upgrade failed: {}\nthe program before it goes on",
                    safe(why)
                )));
            }
            if health.restarts() > before && health.upgraded == Some(false) {
                return Err(Failure::said(format!(
                    "the daemon ended on the way, and was started again: {}",
                    safe(health.resumed.as_deref().unwrap_or("nothing was taken over"))
                )));
            }
            if health.restarts() > before && health.upgrade.is_none() {
                return match wants_json {
                    true => patient.json(&object!({
                        "version": health.version,
                        "stood_still_ms": health.stood_still_ms(),
                        "resumed": health.resumed,
                    })),
                    false => patient.line(told(&health)),
                };
            }
        }
        // A service manager starts nothing before its reload has ended.
        let gone = process.as_ref().is_some_and(|process| !process.exists());
        if gone || heard.elapsed() > SILENCE {
            return Err(Failure::said(
                "the daemon does not answer any more: look at its log, and whether it runs",
            ));
        }
    }
}

/// Has the store rewritten in the newest layout.
fn commit(session: &mut Session, wants_json: bool) -> Result<(), Failure> {
    let wanted = Request { upgrade_commit: Some(true), ..Request::default() };
    let done = session.ask(wanted)?.upgrade_commit.unwrap_or_default();
    let (from, to, records) = (done.from(), done.to(), done.records());
    if wants_json {
        return session.json(&object!({ "from": from, "to": to, "records": records }));
    }
    session.line(match from == to {
        true => format!("the store is of the newest layout already, {to}: nothing to do"),
        false => format!(
            "the store is rewritten in layout {to}, after layout {from}: {}; a release that does not read layout {to} cannot go on any more",
            counted(records, "record")
        ),
    })
}

/// Words for an upgrade that was carried out.
fn told(health: &AppHealthRes) -> String {
    let resumed = health.resumed.as_deref().unwrap_or("nothing was taken over");
    format!(
        "butterflyd {} goes on; traffic stood still for {} ms\n{}",
        safe(health.version()),
        health.stood_still_ms(),
        safe(resumed)
    )
}
