//! Metrics of a daemon, in Prometheus' text format, read without a library.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use crate::{daemon::Daemon, wait::PATIENCE};

/// Gets a path from a web server. Returns the status and the body.
#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String), std::io::Error> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // In HTTP/1.0 the answer ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// All series of a daemon with their values. A series is named as on the page:
/// `name{label="value",..}`.
#[derive(Clone, Debug, Default)]
pub struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    /// Scrapes a daemon that was started with `--metrics`.
    #[track_caller]
    pub fn of(daemon: &Daemon) -> Scrape {
        let (status, body) = get(daemon.metrics(), "/metrics").unwrap();
        assert_eq!(status, 200, "{body}");
        Scrape::read(&body)
    }

    /// Reads a page.
    #[track_caller]
    pub fn read(page: &str) -> Scrape {
        let series = page.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) =
                line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        });
        Scrape(series.collect())
    }

    /// The value of a series, if there is one.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// The value of a counter, which must be there.
    #[track_caller]
    pub fn count(&self, series: &str) -> u64 {
        let value = self
            .get(series)
            .unwrap_or_else(|| panic!("there is no {series} in {:#?}", self.0.keys()));
        assert_eq!(value.fract(), 0.0, "{series}");
        value as u64
    }

    /// The sum of a counter of all workers. `more`: labels behind the worker's, with a comma.
    #[track_caller]
    pub fn of_workers(&self, metric: &str, more: &str) -> u64 {
        let (start, end) = (format!("butterfly_worker_{metric}{{worker=\""), format!("\"{more}}}"));
        let ours = self.0.keys().filter(|name| name.starts_with(&start) && name.ends_with(&end));
        let counts: Vec<u64> = ours.map(|name| self.count(name)).collect();
        assert!(!counts.is_empty(), "there is no {metric} in {:#?}", self.0.keys());
        counts.iter().sum()
    }

    /// All series that begin with `start`, without that beginning.
    pub fn starting<'a>(&'a self, start: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(series, value)| Some((series.strip_prefix(start)?, *value)))
    }
}
