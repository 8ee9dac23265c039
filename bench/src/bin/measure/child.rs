//! A child process that measures, and prints a JSON object a line.

use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::Outcome;

/// `program` under `timeout`, which ends it after `seconds`, and its children too.
pub(super) fn limited(program: impl Into<OsString>, seconds: u64) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "10", &seconds.to_string()]).arg(program.into()).stdin(Stdio::null());
    command
}

/// What it prints; an error with its last words if it fails.
pub(super) fn output(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().next_back().unwrap_or_default();
    Err(format!("{} ({last})", output.status).into())
}

/// The objects that it prints.
pub(super) fn lines(command: &mut Command) -> Outcome<Vec<Value>> {
    output(command)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Kills a child that takes too long, unless it is dropped before: for those that are timed or
/// killed by their own process number, which `timeout` would hide.
#[derive(Debug)]
pub(super) struct Watchdog {
    // Dropping it wakes the thread.
    _still_wanted: mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches `child`. Drop it as soon as the child has been waited for: its number may be given
    /// to another process.
    pub(super) fn over(child: &Child, limit: Duration) -> Self {
        let (still_wanted, dropped) = mpsc::channel();
        let process = rustix::process::Pid::from_child(child);
        std::thread::spawn(move || {
            if dropped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                let killed = rustix::process::kill_process(process, rustix::process::Signal::KILL);
                eprintln!("measure: a child took more than {limit:?} and was killed: {killed:?}");
            }
        });
        Self { _still_wanted: still_wanted }
    }
}

/// Seconds of processor time that process `id` has used, in user and kernel mode.
pub(super) fn processor_seconds(id: u32) -> Outcome<f64> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat"))?;
    let ticks = ticks(&stat).ok_or("/proc/PID/stat cannot be read")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The fields `utime` and `stime`, the 14th and the 15th.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in brackets, which may hold anything.
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_and_failures_say_why() {
        let mut good = limited("sh", 5);
        good.args(["-c", "echo '{\"a\":1}'; echo '{\"a\":2}'"]);
        let read = lines(&mut good).unwrap();
        assert_eq!(
            read.iter().map(|line| line["a"].as_u64()).collect::<Vec<_>>(),
            [Some(1), Some(2)]
        );
        let mut bad = limited("sh", 5);
        bad.args(["-c", "echo first >&2; echo last >&2; exit 3"]);
        assert!(lines(&mut bad).unwrap_err().to_string().contains("last"));
        let mut slow = limited("sleep", 1);
        assert!(output(slow.arg("30")).is_err());
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let watchdog = Watchdog::over(&child, Duration::from_millis(50));
        while child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(watchdog);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn processor_time_is_read_past_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20";
        assert_eq!(ticks(stat), Some(42));
        assert!(processor_seconds(std::process::id()).is_ok());
    }
}
