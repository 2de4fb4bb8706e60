//! The holder as a service manager runs it.

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

/// Ends it when the test does.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold(state: &Path, notify: &Path) -> Holder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.arg("--hold-service").arg(state).env("NOTIFY_SOCKET", notify);
    Holder(command.spawn().unwrap())
}

/// A daemon that is started when the holder is ready finds it, and starts none of its own. One that
/// finds another holder says so, too, and ends well.
#[test]
fn a_holder_is_ready_when_it_listens() {
    let room = tempfile::tempdir().unwrap();
    let (state, notify) = (room.path().join("state"), room.path().join("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ready = || {
        let mut word = [0; 64];
        let length = manager.recv(&mut word).unwrap();
        assert_eq!(&word[..length], b"READY=1");
    };
    let _first = hold(&state, &notify);
    ready();
    let socket = std::fs::read_dir(&state).unwrap().filter_map(|entry| {
        use std::os::unix::fs::FileTypeExt;
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_socket().then(|| entry.path())
    });
    assert_eq!(socket.count(), 1);
    let mut second = hold(&state, &notify);
    ready();
    assert!(second.0.wait().unwrap().success());
}
