//! The notation of sizes, times and levels on the command line.

use crate::failure::{self, Failure};
use coreplane::{Durability, Placement};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `4GiB`, `512MiB`, `64K`, `1000000`: binary multiples, with or without `i` and `B`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("`{unit}` is no unit; KiB, MiB, GiB, TiB are")),
    };
    let number: u64 =
        digits.trim_end().parse().map_err(|_| format!("`{text}` is no size; 4GiB is one"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Bytes of a page.
pub(crate) fn page_size(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| format!("`{text}` is too large for a page"))
}

/// A size other than 0, of something that must end.
pub(crate) fn some(text: &str) -> Result<u64, String> {
    Some(size(text)?).filter(|bytes| *bytes > 0).ok_or_else(|| "with 0 it never ends".to_owned())
}

/// `1500ms`, `10s`, `5m`, `2h`, `7d`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is no time; 10s or 1500ms are"))?;
    let milliseconds = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        unit => return Err(format!("`{unit}` is no unit; ms, s, m, h, d are")),
    };
    number
        .checked_mul(milliseconds)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is too long"))
}

/// The lifetime of a record: a time other than 0.
pub(crate) fn lifetime(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() {
        return Err("a record with 0 would be gone at once; without --ttl it stays".to_owned());
    }
    Ok(time)
}

/// The mode of a file, in octal.
pub(crate) fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("`{text}` is no mode; 700 is one"))
}

/// `strict`, `group`, `relaxed`.
pub(crate) fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "strict" => Ok(Durability::Strict),
        "group" => Ok(Durability::GROUP),
        "relaxed" => Ok(Durability::RELAXED),
        _ => Err(format!("`{text}` is none of strict, group, relaxed")),
    }
}

/// The name of a level.
pub(crate) fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Strict => "strict",
        Durability::Group { .. } => "group",
        Durability::Relaxed { .. } => "relaxed",
    }
}

/// `auto`, `pmem`, `dram`.
pub(crate) fn placement(text: &str) -> Result<Placement, String> {
    match text {
        "auto" => Ok(Placement::Auto),
        "pmem" => Ok(Placement::Pool),
        "dram" => Ok(Placement::Dram),
        _ => Err(format!("`{text}` is none of auto, pmem, dram")),
    }
}

/// Bytes for a person: `1.5 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// The password in a file: all of it except its end of line. It is not empty: that would be none.
pub(crate) fn password_in(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        let message = format!("{}: there is no password in the file", path.display());
        return Err(Failure::new(failure::USAGE, message));
    }
    Ok(password.to_owned())
}

/// The default pool: in the user's data directory.
pub(crate) fn default_pool() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let data = set("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    data.or_else(home).unwrap_or_else(|| PathBuf::from("/var/lib")).join("coreplane/default.pool")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("4g"), Ok(4 << 30));
        assert_eq!(size("512 MiB"), Ok(512 << 20));
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!(size("1000"), Ok(1000));
        for wrong in ["", "GiB", "4 apples", "-1", "1.5G", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_and_levels() {
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert!(duration("3y").is_err() && duration("s").is_err());
        assert_eq!((lifetime("1ms"), lifetime("0s").is_err()), (duration("1ms"), true));
        for name in ["strict", "group", "relaxed"] {
            assert_eq!(durability(name).map(durability_name), Ok(name));
        }
        assert!(durability("always").is_err() && placement("disk").is_err());
    }
}
