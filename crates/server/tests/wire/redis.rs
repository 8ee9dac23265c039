//! The installed Redis, to compare with.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A redis-server that runs until it is dropped.
pub(crate) struct Redis {
    child: Child,
    directory: tempfile::TempDir,
}

impl Redis {
    /// None where it is not installed; then a message says that `what` is skipped.
    pub(crate) fn start(what: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--databases", "1"])
            .args(["--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(directory.path())
            .arg("--unixsocket")
            .arg(directory.path().join("socket"))
            .stdout(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(why) => {
                // By `writeln!`, which the test runner does not swallow.
                let said = writeln!(std::io::stdout(), "\nSKIPPED: {what}: redis-server: {why}");
                said.expect("write to stdout");
                return None;
            }
        };
        let mut redis = Self { child, directory };
        // The file of the socket is there before it accepts connections.
        while UnixStream::connect(redis.socket()).is_err() {
            let ended = redis.child.try_wait().expect("a child");
            assert!(ended.is_none(), "redis-server ended at once: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
