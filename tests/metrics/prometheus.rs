//! Debian's Prometheus with Butterfly's packaged rules.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use butterfly_tests::{eventually, metrics::get};
use serde_json::Value;
use tempfile::TempDir;

/// Returns the path of a packaged file.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging"))
        .join(name)
        .canonicalize()
        .unwrap()
}

/// Returns the text of a packaged file.
pub fn packaged(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

/// Runs promtool. Asserts that it finds nothing wrong.
#[track_caller]
pub fn promtool(words: &[&str], input: &str) {
    let mut tool = Command::new("promtool");
    tool.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().expect("promtool (package prometheus) runs");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    assert!(output.status.success(), "promtool {words:?}: {output:?}");
}

/// A running Prometheus, which ends when this is dropped.
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    _room: TempDir,
}

/// A rule that Prometheus has loaded.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    pub query: String,
    annotations: Value,
}

impl Rule {
    pub fn annotation(&self, name: &str) -> &str {
        self.annotations[name].as_str().unwrap_or_default()
    }
}

impl Prometheus {
    /// Starts Prometheus. It scrapes `target` as the job "butterfly"; waits for the first scrape.
    pub fn start(target: SocketAddr) -> Prometheus {
        let room = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{ scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 1s }}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{ job_name: butterfly, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n",
            path("prometheus/butterfly-rules.yml").display(),
        );
        let file = room.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        // Prometheus takes no socket from its parent, and does not print a port that it chose.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = fs::File::create(room.path().join("log")).unwrap();
        // Prometheus must not outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "prometheus"]);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", room.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = command.spawn().expect("setpriv (package util-linux) runs");
        let mut prometheus = Prometheus { process, address, _room: room };
        eventually("Prometheus scrapes the daemon", || {
            let ended = prometheus.process.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "it ended: {}",
                fs::read_to_string(prometheus._room.path().join("log")).unwrap()
            );
            matches!(get(prometheus.address, "/-/ready"), Ok((200, _)))
                && !prometheus.query("up == 1").is_empty()
        });
        prometheus
    }

    fn api(&self, path: &str) -> Value {
        let (status, body) = get(self.address, path).unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        let answer: Value =
            serde_json::from_str(&body).unwrap_or_else(|why| panic!("{why}: {body}"));
        answer["data"].clone()
    }

    /// Evaluates an expression now.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
        let data = self.api(&format!("/api/v1/query?query={encoded}"));
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).clone()
    }

    /// Returns the loaded rules.
    pub fn rules(&self) -> Vec<Rule> {
        let data = self.api("/api/v1/rules");
        let groups = data["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rule = |rule: &Value| Rule {
            name: text(&rule["name"]),
            query: text(&rule["query"]),
            annotations: rule["annotations"].clone(),
        };
        rules.map(rule).collect()
    }

    /// Waits for two more scrapes, as a rate needs two samples.
    pub fn scrapes_twice_more(&self) {
        let scraped = || {
            let samples = self.query("count_over_time(up[5m])");
            samples
                .first()
                .map_or(0, |sample| sample["value"][1].as_str().unwrap().parse::<u64>().unwrap())
        };
        let before = scraped();
        eventually("Prometheus goes on", || {
            std::thread::sleep(Duration::from_millis(50));
            scraped() >= before + 3
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
