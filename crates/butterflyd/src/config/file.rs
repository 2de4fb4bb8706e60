//! The configuration file over the command line.

use std::path::Path;

use crate::config::{
    ini::Ini, options::Options, problems::Problems, slips::unknown_lines, timeouts,
};

/// Puts what `ini` has into `options`; it is stronger than the command line.
pub(super) fn override_with(options: &mut Options, ini: &mut Ini, problems: &mut Problems) {
    fn stronger<T: From<String>>(option: &mut Option<T>, value: Option<String>) {
        if let Some(value) = value {
            *option = Some(value.into());
        }
    }
    stronger(&mut options.ip, ini.take("general", "ip"));
    stronger(&mut options.socket_dir, ini.take("general", "socket-dir"));
    stronger(&mut options.state_dir, ini.take("general", "state-dir"));
    stronger(&mut options.name, ini.take("general", "name"));
    stronger(&mut options.metrics, ini.take("general", "metrics"));
    stronger(&mut options.log_level, ini.take("general", "log-level"));
    stronger(&mut options.fdb_ageing, ini.take("general", "fdb-ageing"));
    stronger(&mut options.sessions, ini.take("general", "sessions"));
    stronger(&mut options.session_share, ini.take("general", "session-share"));
    stronger(&mut options.session_rate, ini.take("general", "session-rate"));
    stronger(&mut options.tcp_pickup, ini.take("general", "tcp-pickup"));
    stronger(&mut options.uplink, ini.take("general", "uplink"));
    stronger(&mut options.uplink_queues, ini.take("general", "uplink-queues"));
    stronger(&mut options.underlay_vlan, ini.take("general", "underlay-vlan"));
    stronger(&mut options.group6, ini.take("general", "group6"));
    // One key, several values.
    for (list, key) in [(&mut options.peers, "peer"), (&mut options.gateways, "gateway")] {
        if let Some(value) = ini.take("general", key) {
            *list = vec![value];
        }
    }
    if let Some(value) = ini.take("general", "endpoint") {
        options.endpoints = value.split_whitespace().map(str::to_owned).collect();
        // Nothing is no endpoint, and not the default either.
        if options.endpoints.is_empty() {
            options.endpoints.push(value);
        }
    }
    // Of those with one name the last holds.
    let timeouts = timeouts::ALL.iter().map(|timeout| timeout.name);
    options.timeouts.extend(
        timeouts.filter_map(|name| Some(format!("{name}={}", ini.take("timeouts", name)?))),
    );
    stronger(&mut options.workers, ini.take("general", "workers"));
    stronger(&mut options.worker_cores, ini.take("general", "worker-cores"));
    stronger(&mut options.dpdk_args, ini.take("general", "dpdk-args"));
    stronger(&mut options.dpdk_port, ini.take("general", "dpdk-port"));
    stronger(&mut options.nic_mtu, ini.take("general", "nic-mtu"));
    stronger(&mut options.key, ini.take("security", "encryption_key_path"));
    match ini.take("security", "legacy_encryption").as_deref() {
        None => {}
        Some("true") => options.no_legacy_encryption = false,
        Some("false") => options.no_legacy_encryption = true,
        Some(other) => {
            problems.add(format!("legacy_encryption={other} is refused: it is true or false"))
        }
    }
    // The sample file of the original has the second spelling.
    match (ini.take("general", "graph-core-id"), ini.take("general", "graph-cpu-core")) {
        (Some(one), Some(other)) if one != other => {
            problems.notice(format!(
                "graph-cpu-core={other} in the configuration file has no effect beside graph-core-id={one}: remove it"
            ));
            stronger(&mut options.graph_cpu_core, Some(one));
        }
        (one, other) => stronger(&mut options.graph_cpu_core, one.or(other)),
    }
    flags(options, ini, problems);
    unknown_lines(ini, problems);
}

/// Puts what `ini` has of switches into `options`.
fn flags(options: &mut Options, ini: &mut Ini, problems: &mut Problems) {
    let flags = [
        (&mut options.poll, "poll"),
        (&mut options.udp6_checksum, "udp6-checksum"),
        (&mut options.strict_peers, "strict-peers"),
        (&mut options.no_offload, "no-offload"),
    ];
    for (flag, key) in flags {
        match ini.take("general", key).as_deref() {
            None => {}
            Some("true") => *flag = true,
            Some("false") => *flag = false,
            Some(other) => problems.add(format!("{key}={other} is refused: it is true or false")),
        }
    }
}

/// Every group and key that is looked for.
#[cfg(test)]
pub fn known_keys() -> std::collections::BTreeSet<(String, String)> {
    let mut ini = Ini::default();
    let mut options = <Options as clap::Parser>::parse_from(["butterflyd"]);
    override_with(&mut options, &mut ini, &mut Problems::default());
    ini.asked
}

/// Reads a configuration file, which is small: something endless, like a device, is an error.
pub(super) fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read};
    const LIMIT: u64 = 1 << 20;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LIMIT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LIMIT {
        return Err(Error::new(
            ErrorKind::InvalidData,
            "larger than 1 MiB: that is no configuration file",
        ));
    }
    Ok(text)
}
