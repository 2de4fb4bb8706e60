//! Single values of the configuration: read from their text, or refused.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use butterfly_api::server;
use butterfly_datapath::MAX_WORKERS;

use crate::log::Level;

const DEFAULT_ENDPOINT: &str = "tcp://0.0.0.0:9999";
/// Bytes.
const MAX_NAME: usize = 64;

pub(super) fn directory(path: &Path) -> Result<PathBuf, String> {
    let refused = |why: &dyn fmt::Display| format!("socket folder {path:?} is refused: {why}");
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            refused(&"it does not exist: create it, or name another with -s")
        }
        _ => refused(&error),
    })?;
    if !real.is_dir() {
        return Err(refused(&"it is not a directory"));
    }
    // Clients get paths of sockets as text.
    if real.to_str().is_none_or(|text| text.contains(char::is_control)) {
        return Err(refused(&"its real path has to be printable UTF-8"));
    }
    Ok(real)
}

/// Returns the folder of what outlasts the daemon, which need not be there yet.
pub(super) fn state_dir(path: &Path) -> Result<PathBuf, String> {
    let refused = |why: &dyn fmt::Display| format!("state folder {path:?} is refused: {why}");
    let path = std::path::absolute(path).map_err(|error| refused(&error))?;
    if path.exists() && !path.is_dir() {
        return Err(refused(&"it is not a directory"));
    }
    // The holder's socket is in it.
    let most = butterfly_holder::MAX_PATH - "/holder".len();
    if path.as_os_str().len() > most {
        return Err(refused(&format_args!("its path may have {most} bytes")));
    }
    Ok(path)
}

/// Returns the endpoints of the API; of several that are the same, one.
pub(super) fn api_endpoints(given: &[String]) -> Result<Vec<String>, String> {
    let mut endpoints = Vec::new();
    for endpoint in given {
        server::check(endpoint).map_err(|error| error.to_string())?;
        if !endpoints.contains(endpoint) {
            endpoints.push(endpoint.clone());
        }
    }
    if endpoints.is_empty() {
        endpoints.push(DEFAULT_ENDPOINT.to_owned());
    }
    Ok(endpoints)
}

/// Checks the name of a daemon: it is part of lines that people read.
pub(super) fn name(text: &str) -> Result<String, String> {
    let fits = (1..=MAX_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("name {text:?} is refused: it has 1 to {MAX_NAME} bytes, none of them a control character"))
}

/// Reads the address of metrics. An empty text switches them off.
pub(super) fn metrics(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let refused = || {
        format!(
            "metrics {text:?} is refused: it is an address and a port, as in 127.0.0.1:9998 or [::1]:9998"
        )
    };
    text.parse().map(Some).map_err(|_| refused())
}

pub(super) fn level(text: &str) -> Result<Level, String> {
    Level::parse(text).ok_or_else(|| {
        format!("log level {text:?} is refused: it is none, error, warning, info or debug")
    })
}

pub(super) fn core(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("core {text:?} is refused: it is a number from 0"))
}

/// Reads a list of cores, as 2,4-6.
pub(super) fn cores(text: &str) -> Result<Vec<usize>, String> {
    let refused = || {
        format!(
            "worker-cores {text:?} is refused: it is a list of numbers from 0, as 2,4-6, each once, \
             {MAX_WORKERS} at most"
        )
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| refused());
        let range = usize::from(number(first)?)..=usize::from(number(last)?);
        if range.is_empty() || range.clone().any(|core| cores.contains(&core)) {
            return Err(refused());
        }
        cores.extend(range);
        if cores.len() > MAX_WORKERS {
            return Err(refused());
        }
    }
    Ok(cores)
}

pub(super) fn seconds(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err(format!("fdb-ageing {text:?} is refused: it is a number of seconds from 1")),
    }
}

pub(super) fn number(name: &str, text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number
        .ok_or_else(|| format!("{name} {text:?} is refused: it is a number from {least} to {most}"))
}
