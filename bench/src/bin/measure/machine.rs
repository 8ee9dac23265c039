//! What a figure depends on and does not show: machine, kernel, versions.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Lines `what: value` about the machine and the versions of everything that runs.
pub(super) fn describe(root: &Path) -> Vec<(String, String)> {
    let cpu = read("/proc/cpuinfo");
    let field = |name: &str| {
        cpu.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok())
        .map_or(0, |kib: u64| kib >> 10);
    let flushes: Vec<&str> = ["clwb", "clflushopt", "clflush"]
        .into_iter()
        .filter(|name| cpu.split_whitespace().any(|word| word == *name))
        .collect();
    let mut lines = vec![
        (
            "processor".to_owned(),
            format!(
                "{} (family {}, model {}), {cores} cores",
                field("model name"),
                field("cpu family"),
                field("model")
            ),
        ),
        ("cache".to_owned(), field("cache size")),
        ("flush instructions".to_owned(), flushes.join(", ")),
        ("memory".to_owned(), format!("{memory} MiB")),
        ("kernel".to_owned(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load when it began".to_owned(), read("/proc/loadavg").trim().to_owned()),
        ("date".to_owned(), said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("rustc".to_owned(), said("rustc", &["--version"])),
        ("coreplane".to_owned(), revision(root)),
    ];
    for package in ["librocksdb7.8", "libleveldb1d", "redis-server", "memcached", "nbdkit"] {
        let version = said("dpkg-query", &["-W", "-f", "${Version}", package]);
        if !version.is_empty() {
            lines.push((package.to_owned(), version));
        }
    }
    let lock = read(root.join("Cargo.lock"));
    for name in ["lmdb-master-sys", "redb", "fjall"] {
        if let Some(version) = locked(&lock, name) {
            lines.push((name.to_owned(), version));
        }
    }
    lines
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What a program prints; nothing if it fails.
fn said(program: &str, arguments: &[&str]) -> String {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => String::new(),
    }
}

/// The commit, and whether the tree differs from it.
fn revision(root: &Path) -> String {
    let path = root.to_string_lossy();
    let commit = said("git", &["-C", &path, "rev-parse", "--short", "HEAD"]);
    let changed = said("git", &["-C", &path, "status", "--porcelain", "--untracked-files=no"]);
    let files = changed.lines().count();
    if files == 0 { commit } else { format!("{commit} with {files} changed files") }
}

/// The version of a package in Cargo.lock.
fn locked(lock: &str, name: &str) -> Option<String> {
    let heading = format!("name = \"{name}\"");
    let after = lock.lines().skip_while(|line| *line != heading).nth(1)?;
    Some(after.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_lock() {
        let lock = "[[package]]\nname = \"redb-derive\"\nversion = \"9.9.9\"\n\n\
                    [[package]]\nname = \"redb\"\nversion = \"4.4.0\"\n";
        assert_eq!(locked(lock, "redb"), Some("4.4.0".to_owned()));
        assert_eq!(locked(lock, "sled"), None);
    }

    #[test]
    fn this_machine_has_a_processor_and_a_kernel() {
        let lines = describe(Path::new("/nowhere"));
        for what in ["processor", "kernel", "memory"] {
            let line = lines.iter().find(|(name, _)| name == what);
            assert!(line.is_some_and(|(_, value)| value.len() > 2), "{what}: {line:?}");
        }
    }
}
