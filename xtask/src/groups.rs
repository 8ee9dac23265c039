//! Process groups that run for this process: a signal that ends it ends them, too. Otherwise Ctrl-C would leave the
//! test program that runs at that moment, and all that it has started.

use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

use crate::Outcome;

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A process group that runs, until this is dropped.
pub(crate) struct Running(Pid);

impl Running {
    /// The group that a process leads.
    pub(crate) fn of(leader: Pid) -> Self {
        with_running(|running| running.push(leader));
        Self(leader)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        with_running(|running| running.retain(|it| *it != self.0));
    }
}

fn with_running<R>(change: impl FnOnce(&mut Vec<Pid>) -> R) -> R {
    change(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Kills groups. One that has ended in the meantime is none.
fn kill(groups: &[Pid]) {
    for group in groups {
        let _gone = kill_process_group(*group, Signal::KILL).is_err();
    }
}

/// From now on a signal that ends this process ends the groups first. A signal that is ignored stays so, as a hang-up
/// under `nohup`.
///
/// # Errors
/// If the system refuses.
pub(crate) fn end_with_this_process() -> Outcome<()> {
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status")?);
    let ends =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = signal_hook::iterator::Signals::new(ends)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            with_running(|running| {
                kill(running);
                // A thread that waits for a killed program waits here as well, and reports nothing about it.
                let _refused = emulate_default_handler(signal).is_err();
                std::process::exit(128 + signal);
            });
        }
    });
    Ok(())
}

/// The signals that a process ignores, a bit each, by its status.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60"]).process_group(0);
        command.spawn().unwrap()
    }

    #[test]
    fn a_signal_that_is_ignored_is_known() {
        let status = "Name:\txtask\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000004002\n";
        assert_eq!(ignored(status) >> (SIGHUP - 1) & 1, 1);
        assert_eq!(ignored(status) >> (SIGTERM - 1) & 1, 0);
        assert_eq!(ignored(""), 0);
    }

    #[test]
    fn groups_are_killed_with_all_that_they_have_started_while_they_run() {
        let mut children = [sleeper(), sleeper()];
        let pids = children.each_ref().map(Pid::from_child);
        let registered = || pids.map(|pid| with_running(|running| running.contains(&pid)));
        let running = pids.map(Running::of);
        assert_eq!(registered(), [true, true]);
        kill(&pids);
        for child in &mut children {
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        }
        let [first, second] = running;
        drop(first);
        assert_eq!(registered(), [false, true]);
        drop(second);
        kill(&pids);
    }
}
