//! The keys of the configuration file, and the options they stand for.

use crate::config::timeouts;

const GENERAL: &str = "general";

/// Groups and keys, each with its option's long name.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let same = [
        "ip",
        "socket-dir",
        "state-dir",
        "name",
        "endpoint",
        "metrics",
        "log-level",
        "poll",
        "fdb-ageing",
        "sessions",
        "workers",
        "worker-cores",
        "session-share",
        "session-rate",
        "tcp-pickup",
        "uplink",
        "uplink-queues",
        "underlay-vlan",
        "peer",
        "gateway",
        "group6",
        "udp6-checksum",
        "strict-peers",
        "nic-mtu",
        "dpdk-args",
        "dpdk-port",
        "no-offload",
    ];
    let general = same.map(|name| (GENERAL, name, name));
    let others = [
        (GENERAL, "graph-core-id", "graph-cpu-core"),
        // As the sample file of the original has it.
        (GENERAL, "graph-cpu-core", "graph-cpu-core"),
        ("security", "encryption_key_path", "key"),
        ("security", "legacy_encryption", "no-legacy-encryption"),
    ];
    general
        .into_iter()
        .chain(others)
        .chain(timeouts::ALL.iter().map(|timeout| ("timeouts", timeout.name, "timeout")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, file::known_keys, ini::Ini, options::Options};
    use clap::{CommandFactory, Parser};
    use std::collections::{BTreeMap, BTreeSet};

    const SAMPLE: &str = include_str!("../../../../packaging/butterflyd.ini");

    /// A line of the sample: in force, what holds without it, or an example.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
    enum Line {
        InForce,
        Default,
        Example,
    }

    /// Every line that is or could be a key, with its group.
    fn sample() -> Vec<(Line, &'static str, &'static str)> {
        let mut group = "";
        let mut lines = Vec::new();
        for line in SAMPLE.lines() {
            let (kind, rest) = match line.strip_prefix("# Example: ") {
                Some(rest) => (Line::Example, rest),
                None if line.starts_with("# ") => continue,
                None => match line.strip_prefix('#') {
                    Some(rest) => (Line::Default, rest),
                    None => (Line::InForce, line),
                },
            };
            match rest.strip_prefix('[') {
                Some(name) => group = name.trim_end_matches(']'),
                None if rest.is_empty() => {}
                None => lines.push((kind, group, rest)),
            }
        }
        lines
    }

    fn key(line: &str) -> &str {
        line.split_once('=').expect(line).0.trim()
    }

    /// Loads a file with these lines and the required options.
    fn loaded<'a>(ip: &str, lines: impl IntoIterator<Item = (&'a str, &'a str)>) -> Config {
        let directory = std::env::temp_dir();
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: String =
            lines.into_iter().map(|(group, line)| format!("[{group}]\n{line}\n")).collect();
        std::fs::write(file.path(), &lines).unwrap();
        let words = [
            "butterflyd",
            "-i",
            ip,
            "-s",
            directory.to_str().unwrap(),
            "-c",
            file.path().to_str().unwrap(),
        ];
        Config::load(Options::parse_from(words)).unwrap_or_else(|error| panic!("{error}\n{lines}"))
    }

    #[test]
    fn the_sample_explains_every_key_and_no_other() {
        let explained: BTreeSet<_> = sample()
            .iter()
            .map(|(_, group, line)| ((*group).to_owned(), key(line).to_owned()))
            .collect();
        assert_eq!(explained, known_keys());
        assert!(Ini::parse(SAMPLE).is_ok());
    }

    /// A key without a default is off, or mandatory; then there is an example or a value in force.
    #[test]
    fn the_defaults_of_the_sample_are_the_daemon_s() {
        let defaults = sample()
            .into_iter()
            .filter(|(kind, ..)| *kind == Line::Default)
            .map(|(_, group, line)| (group, line));
        let defaults: Vec<_> = defaults.collect();
        assert!(defaults.len() > 25, "{defaults:?}");
        // Two are refused with an endpoint over IPv4.
        assert_eq!(loaded("2001:db8::1", defaults.iter().copied()), loaded("2001:db8::1", []));
        // Each key is unique, and can be told from the others.
        let mut seen = BTreeMap::new();
        for (group, line) in defaults {
            assert_eq!(seen.insert((group, key(line)), line), None, "{line}");
        }
    }

    #[test]
    fn the_examples_of_the_sample_are_understood() {
        for (kind, group, line) in sample() {
            // The key that is named there is not here.
            if kind == Line::Example && group != "security" {
                let uplink = (group, "uplink = eth0");
                assert_ne!(
                    loaded("42.0.0.1", [uplink, (group, line)]),
                    loaded("42.0.0.1", [uplink]),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn these_are_the_keys_that_are_read() {
        let listed: Vec<_> =
            keys().map(|(group, key, _)| (group.to_owned(), key.to_owned())).collect();
        assert_eq!(listed.len(), known_keys().len(), "each once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), known_keys());
    }

    #[test]
    fn every_key_stands_for_an_option() {
        let command = Options::command();
        for (group, key, option) in keys() {
            assert!(
                command.get_arguments().any(|it| it.get_long() == Some(option)),
                "[{group}] {key}: --{option}"
            );
        }
    }
}
