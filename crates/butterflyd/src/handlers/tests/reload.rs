//! The configuration read again.

use super::host::Host;
use crate::{log::Level, metrics::Server};
use butterfly_datapath::Timeouts;
use std::path::PathBuf;

/// A daemon with an uplink and a configuration file.
struct Configured {
    host: Host,
    directory: tempfile::TempDir,
}

impl Configured {
    fn new(file: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ini"), file).unwrap();
        let at = directory.path().display();
        let mut host = Host::configured(&format!(
            "-s {at} -i 192.0.2.1 --uplink eth0 --timeout other=9 -c {at}/ini"
        ));
        host.fake().uplink = true;
        // No metrics without a switch: here an address is only tried.
        let refused = |address| Server::bind(address).map(|_| unreachable!("{address}"));
        host.envelope.handler_mut().reload.with_metrics(None, Box::new(refused));
        Self { host, directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ini")
    }

    /// Has the daemon read another file. Returns the last event: its kind and its text.
    fn reload(&mut self, file: &str) -> (String, String) {
        std::fs::write(self.file(), file).unwrap();
        self.reload_as_it_is()
    }

    fn reload_as_it_is(&mut self) -> (String, String) {
        self.host.hang_up();
        self.host
            .ask("event_list { }")
            .event_list
            .event
            .last()
            .map_or_else(Default::default, |event| {
                (event.kind().to_owned(), event.text().to_owned())
            })
    }

    /// Has the daemon take over another file, and returns the words for it.
    #[track_caller]
    fn takes(&mut self, file: &str) -> String {
        let (kind, text) = self.reload(file);
        assert_eq!(kind, "config-reloaded", "{text}");
        text.strip_prefix("the configuration was read again: ").unwrap().to_owned()
    }

    /// Has the daemon refuse another file, and returns why.
    #[track_caller]
    fn refuses(&mut self, file: &str) -> String {
        let (kind, text) = self.reload(file);
        assert_eq!(kind, "config-refused", "{text}");
        let why = text.strip_prefix("the configuration was read again, and nothing has changed: ");
        why.unwrap().to_owned()
    }

    fn peers(&mut self) -> Vec<String> {
        let peers = self.host.ask("peer_list: true").peer_list;
        let all = self.host.fake().peers.all.clone();
        let mut peers: Vec<_> = peers.iter().map(|peer| peer.address().to_owned()).collect();
        let mut all: Vec<_> = all.iter().map(ToString::to_string).collect();
        peers.sort();
        all.sort();
        assert_eq!(peers, all, "what is declared is in force");
        peers
    }
}

#[test]
fn an_unchanged_configuration_changes_nothing() {
    let mut it = Configured::new("[general]\nlog-level = info\n");
    assert_eq!(it.host.ask("app_health: true").app_health.reload_date, None);
    assert_eq!(it.takes("[general]\nlog-level=info\n# words\n"), "nothing changed");
    assert!(it.host.ask("app_health: true").app_health.reload_date.is_some());
    assert!(it.host.levels.try_recv().is_err());
    assert_eq!((it.host.fake().times, it.host.fake().fdb_ageing), (None, None));
}

#[test]
fn what_may_change_does_and_the_rest_is_told() {
    let mut it = Configured::new("");
    let text = it.takes(
        "[general]\nlog-level = debug\nfdb-ageing = 10\ntcp-pickup = 5\nsessions = 1000\npoll = true\n[timeouts]\ntcp-new = 7\n",
    );
    assert_eq!(
        text,
        "poll, sessions changed: take effect at the next start; log-level is debug; fdb-ageing is 10; tcp-pickup is 5; tcp-new is 7"
    );
    assert_eq!(it.host.levels.try_recv(), Ok(Level::Debug));
    let timeouts = Timeouts { tcp_new: 7, other: 9, ..Timeouts::default() };
    assert_eq!(it.host.fake().times, Some((timeouts, 5)));
    assert_eq!(it.host.fake().fdb_ageing, Some(10));
    // Settings without a line are as on the command line again, and what waits is told again.
    let text = it.takes("[general]\nsessions = 1000\n");
    assert_eq!(
        text,
        "sessions changed: takes effect at the next start; log-level is error; fdb-ageing is 300; tcp-pickup is 120; tcp-new is 30"
    );
    assert_eq!(it.host.levels.try_recv(), Ok(Level::Error));
    let timeouts = Timeouts { other: 9, ..Timeouts::default() };
    assert_eq!(it.host.fake().times, Some((timeouts, 120)));
}

#[test]
fn what_a_client_changed_stays() {
    let mut it = Configured::new("[general]\npeer = 192.0.2.2 192.0.2.3\n");
    for peer in ["192.0.2.2", "192.0.2.3", "192.0.2.8"] {
        it.host.succeeds(&format!("peer_add {{ address: \"{peer}\" }}"));
    }
    it.host.succeeds("app_config { log_level: \"debug\" }");
    assert_eq!(it.host.levels.try_recv(), Ok(Level::Debug));
    let text = it.takes("[general]\npeer = 192.0.2.2 192.0.2.4, 192.0.2.8\n");
    assert_eq!(text, "2 peers are named; peer 192.0.2.3 is not named any more");
    assert_eq!(it.peers(), ["192.0.2.2", "192.0.2.4", "192.0.2.8"]);
    // The client named 192.0.2.8 before the file did.
    it.takes("[general]\npeer = 192.0.2.4\n");
    assert_eq!(it.peers(), ["192.0.2.4", "192.0.2.8"]);
    // What a client took back is not named again by a file that goes on naming it.
    it.host.succeeds("peer_del { address: \"192.0.2.4\" }");
    assert_eq!(it.takes("[general]\npeer = 192.0.2.4\n"), "nothing changed");
    assert_eq!(it.peers(), ["192.0.2.8"]);
    it.takes("");
    assert_eq!(it.peers(), ["192.0.2.8"]);
    assert!(it.host.levels.try_recv().is_err());
}

#[test]
fn a_wrong_configuration_changes_nothing_at_all() {
    let mut it = Configured::new("[general]\npeer = 192.0.2.2\n");
    it.host.succeeds("peer_add { address: \"192.0.2.2\" }");
    let others = "log-level = debug\nfdb-ageing = 10\npeer = 192.0.2.3\n";
    assert_eq!(
        it.refuses(&format!("[general]\n{others}tcp-pickup = x\nsessions = 1\n")),
        "sessions \"1\" is refused: it is a number from 64 to 16777216; tcp-pickup \"x\" is refused: it is a number from 0 to 31536000"
    );
    assert!(it.refuses("[general\n").starts_with("Failed to open configuration file; "));
    // Metrics that cannot be served are not there before the rest is taken over.
    let why = it.refuses(&format!("[general]\n{others}metrics = 192.0.2.250:1\n"));
    assert!(why.starts_with("cannot serve metrics on 192.0.2.250:1: "), "{why}");
    // Nor are peers of which only the first has room.
    it.host.fake().full_for = Some("192.0.2.4".parse().unwrap());
    let why = it.refuses("[general]\nlog-level = debug\npeer = 192.0.2.3 192.0.2.4\n");
    assert!(why.starts_with("peer 192.0.2.4 is refused: "), "{why}");
    std::fs::remove_file(it.file()).unwrap();
    let (kind, text) = it.reload_as_it_is();
    assert_eq!(kind, "config-refused");
    assert!(text.contains("ini: No such file"), "{text}");

    assert_eq!(it.peers(), ["192.0.2.2"]);
    assert!(it.host.levels.try_recv().is_err());
    assert_eq!((it.host.fake().times, it.host.fake().fdb_ageing), (None, None));
    assert_eq!(it.host.ask("app_health: true").app_health.reload_date, None);
    assert_eq!(it.takes("[general]\npeer = 192.0.2.2\n"), "nothing changed");
}

/// A pipe would have the daemon wait for a writer.
#[test]
fn a_pipe_is_not_read_again() {
    let mut it = Configured::new("");
    std::fs::remove_file(it.file()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        it.file(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let (kind, text) = it.reload_as_it_is();
    assert_eq!(kind, "config-refused");
    assert!(text.ends_with("is no file, and cannot be read again"), "{text}");
}

#[test]
fn without_a_file_there_is_nothing_to_change() {
    let mut host = Host::new();
    host.hang_up();
    let events = host.ask("event_list { }").event_list;
    let last = events.event.last().unwrap();
    assert_eq!(last.text(), "the configuration was read again: nothing changed");
}
