//! The proof that this program can go on for one that runs: everything that it would find is read
//! here from a copy, as it would be at a start.
//!
//! A process of its own does it, which ends with the proof, and touches nothing that the running
//! daemon has. Only the file of sessions is looked at where it is, and only read.

use crate::{
    checkpoint,
    config::{Config, options::Options},
    handlers::{declared_in, stored_in},
    host::listen,
    metrics,
    upgrade::Case,
};
use butterfly_api::server::Server;
use butterfly_datapath::{Former, check_checkpoint, check_front_end, check_uplink, look_at};
use butterfly_holder::protocol;
use butterfly_model::SocketDir;
use butterfly_store::disk::Disk;
use clap::Parser;
use rustix::process::Signal;
use std::{ffi::OsString, os::unix::ffi::OsStringExt, thread, time::Duration};

/// Most reasons that are told.
const REASONS: usize = 8;

/// Runs the proof on the case in standard input. Returns what this program cannot go on with.
pub fn run() -> Result<(), String> {
    // It ends with the daemon, if that is killed.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // The guests' packets come first, and so does the daemon if memory runs out.
    let _ = rustix::process::nice(10);
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    if butterfly_layout::rehearsal::proves_slowly() {
        thread::sleep(Duration::from_secs(60));
    }
    let case =
        Case::read(std::io::stdin()).map_err(|why| format!("the case cannot be read: {why}"))?;
    let mut reasons = Vec::new();
    let outcome = prove(&case, &mut reasons);
    let _ = std::fs::remove_dir_all(&case.store);
    reasons.extend(outcome.err());
    if reasons.is_empty() {
        return Ok(());
    }
    let more = reasons.len().saturating_sub(REASONS);
    reasons.truncate(REASONS);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    Err(reasons.join("\n"))
}

/// Tries to listen where the one before does not.
fn may_listen(config: &Config, before: &[String]) -> Result<(), String> {
    let others: Vec<&String> =
        config.endpoints.iter().filter(|endpoint| !before.contains(endpoint)).collect();
    let resolved = listen::resolved(&others.into_iter().cloned().collect::<Vec<_>>());
    let resolved = resolved.map_err(|why| why.to_string())?;
    Server::bind(&resolved).map_err(|why| why.to_string())?;
    if let Some(address) = config.metrics.filter(|it| !before.contains(&it.to_string())) {
        metrics::Server::bind(address).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Proves this program. What it cannot use is added to `reasons`; an error ends the proof.
fn prove(case: &Case, reasons: &mut Vec<String>) -> Result<(), String> {
    let words = case.words.iter().cloned().map(OsString::from_vec);
    let words = std::iter::once(OsString::from("butterflyd")).chain(words);
    let options = Options::try_parse_from(words).map_err(|why| {
        let text = why.to_string();
        format!("it does not take the command line: {}", text.lines().next().unwrap_or_default())
    })?;
    let config = Config::load(options)
        .map_err(|why| format!("it does not take the configuration: {why}"))?;
    if case.layout > 0 {
        let read = butterfly_layout::check(case.layout);
        read.map_err(|why| format!("it cannot read what is kept: {why}"))?;
    }
    if case.holder != protocol::VERSION {
        return Err(format!(
            "the holder speaks version {} of its protocol, and this program {}: install a release first that speaks the holder's; or, if all machines may be cut off until they reconnect, `systemctl restart butterfly-holder butterflyd` with this one",
            case.holder,
            protocol::VERSION
        ));
    }
    if config.state_dir.as_ref() != Some(&case.state_dir) {
        return Err("state-dir is another one now, which takes a restart".to_owned());
    }
    if config.socket_dir != case.socket_dir {
        return Err("socket-dir is another one now, which takes a restart".to_owned());
    }
    may_listen(&config, &case.listens)?;
    if let Some(spec) = config.tunnel.as_ref().filter(|_| case.uplink_is_open) {
        check_uplink(spec).map_err(|why| format!("it would have no uplink: {why}"))?;
    }
    let sockets = SocketDir::new(config.socket_dir.clone());
    if let Err(why) = declared_in(&case.declaration, &sockets) {
        reasons.push(format!("what is declared: {why}"));
    }
    let stored = Disk::open_there(&case.store)
        .and_then(|disk| disk.read())
        .map_err(|why| why.to_string())
        .and_then(|contents| stored_in(&contents, &sockets));
    if let Err(why) = stored {
        reasons.push(format!("the store: {why}"));
    }
    for (id, state) in &case.front_ends {
        if let Err(why) = check_front_end(state) {
            reasons.push(format!("nic {id}: {why}"));
        }
    }
    let text = |at: usize| case.checkpoint.get(at).map(Vec::as_slice).unwrap_or_default();
    let [life, counters, rules, stations, events] = std::array::from_fn(text);
    if let Err(why) = check_checkpoint(Former { counters, rules, stations }) {
        reasons.push(why);
    }
    reasons.extend(checkpoint::check(life, events).err());
    if let Some(path) = &case.sessions {
        let ours = config.session_file();
        if path.file_name().is_none_or(|name| name != ours.as_str()) {
            reasons.push("name or endpoint is another one now, which takes a restart".to_owned());
        } else if let Err(why) = look_at(path, config.sessions, &config.timeouts) {
            reasons.push(format!("all sessions would be lost: {why}"));
        }
    }
    Ok(())
}
