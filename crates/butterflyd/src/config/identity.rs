//! The name under which a daemon keeps its sessions.

use super::Config;
use butterfly_model::libstdcxx_hash;
use std::{os::unix::ffi::OsStrExt, path::Path};

impl Config {
    /// Returns the name of the file with the daemon's sessions: the same at each of its starts.
    pub fn session_file(&self) -> String {
        session_file(self.name.as_deref(), &self.endpoints, &self.socket_dir)
    }
}

/// Returns the name of the file with the daemon's sessions: the same at each of its starts.
///
/// A daemon without a name is identified by the first address of its API. Network namespaces may
/// have the same addresses, so its socket folder is part of the name, too.
fn session_file(name: Option<&str>, endpoints: &[String], socket_dir: &Path) -> String {
    let identity = match name {
        Some(name) => name.as_bytes().to_vec(),
        None => [
            endpoints.first().map_or("", |first| first).as_bytes(),
            socket_dir.as_os_str().as_bytes(),
        ]
        .join(&0),
    };
    format!("butterfly-{:016x}", libstdcxx_hash(&identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_name_or_by_its_address_in_its_folder() {
        let at = |name, endpoint: &str, folder: &str| {
            session_file(name, &[endpoint.to_owned()], Path::new(folder))
        };
        assert_eq!(at(Some("one"), "tcp://a", "/x"), at(Some("one"), "tcp://b", "/y"));
        let all = [
            at(Some("one"), "tcp://a", "/x"),
            at(Some("two"), "tcp://a", "/x"),
            at(None, "tcp://a", "/x"),
            at(None, "tcp://b", "/x"),
            at(None, "tcp://a", "/y"),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }
}
