//! Who had the machine's processors meanwhile: others than this process, or the machine under this one.
//!
//! The counters of the first lines of `/proc/stat` are sampled by the timer, and hardly see what wakes
//! by it and sleeps again. Each process's own time is exact, so that all of them are added up.

use std::ffi::OsStr;
use std::fs::{read_dir, read_to_string};
use std::num::NonZero;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of what times are told in: Linux's for programs, whatever the kernel's own is.
const TICKS_A_SECOND: f64 = 100.0;

/// Processors' time so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors {
    at: Instant,
    ticks: Ticks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    /// All processes, and those that they have seen the end of.
    all: u64,
    own: u64,
    stolen: u64,
}

/// Shares of the processors' time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shares {
    /// Other processes', threads of the kernel among them.
    pub(crate) others: f64,
    /// Taken away by the machine under this one, as far as that tells.
    pub(crate) stolen: f64,
}

impl Processors {
    /// None where the system does not say.
    pub(crate) fn now() -> Option<Self> {
        Some(Self { at: Instant::now(), ticks: Ticks::now()? })
    }

    /// Who had them from then until now.
    pub(crate) fn since(self) -> Option<Shares> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Ticks::now()?.since(self.ticks, self.at.elapsed() * u32::try_from(processors).ok()?)
    }
}

impl Ticks {
    fn now() -> Option<Self> {
        let stolen = stolen(&read_to_string("/proc/stat").ok()?)?;
        let of_process = |path: &Path| of_process(&read_to_string(path.join("stat")).ok()?);
        let own = of_process(Path::new("/proc/self"))?;
        // One that has ended meanwhile has no such file.
        let entries = read_dir("/proc").ok()?.flatten();
        let processes = entries.filter(|entry| is_process(&entry.file_name()));
        let all = processes.filter_map(|entry| of_process(&entry.path())).sum();
        Some(Self { all, own, stolen })
    }

    fn since(self, before: Self, time: Duration) -> Option<Shares> {
        let own = self.own.saturating_sub(before.own);
        let all = self.all.saturating_sub(before.all);
        let share = |ticks: u64| ticks as f64 / (time.as_secs_f64() * TICKS_A_SECOND);
        let others = share(all.saturating_sub(own));
        let stolen = share(self.stolen.saturating_sub(before.stolen));
        (!time.is_zero()).then_some(Shares { others, stolen })
    }
}

/// The eighth figure of the first line of `/proc/stat`.
fn stolen(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

/// True for a number: `self` and `thread-self` are there too, which is this one once more.
fn is_process(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

/// The sum of the fields from the 14th to the 17th of `/proc/PID/stat`: its own time and that of its
/// children that have ended, in user and kernel mode.
fn of_process(stat: &str) -> Option<u64> {
    // The second field is a name in brackets, which may hold anything.
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<i64> = after
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    (fields.len() == 4).then(|| fields.iter().map(|ticks| ticks.max(&0).unsigned_abs()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_did_not_have_others_had() {
        let line = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 5 0 20";
        assert_eq!((of_process(line), of_process("7 (a) S 1")), (Some(47), None));
        assert_eq!(stolen("cpu  60 0 20 120 5 5 0 10 3 0\ncpu0 1"), Some(10));
        let before = Ticks { all: 1000, own: 100, stolen: 10 };
        let now = Ticks { all: 1150, own: 150, stolen: 20 };
        let shares = now.since(before, Duration::from_secs(2));
        assert_eq!(shares, Some(Shares { others: 0.5, stolen: 0.05 }));
        assert_eq!(now.since(before, Duration::ZERO), None);
    }

    #[test]
    fn we_are_one_process() {
        let names = ["1", "4711", "self", "thread-self", "sys"];
        assert_eq!(
            names.map(|name| is_process(OsStr::new(name))),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn the_time_of_a_child_is_counted() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let before = Ticks::now().expect("Linux says");
        let busy = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .status();
        assert!(busy.expect("a shell").success());
        let now = Ticks::now().expect("Linux says");
        // A child that has ended counts as ours. The sum of all processes may be less than before: one
        // of them that ends while they are read is in neither its own time nor its parent's.
        assert!(now.own > before.own && now.all >= now.own);
    }
}
