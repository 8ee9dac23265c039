//! The export: its name, and the parameters that a client may add.
//!
//! ```text
//!   NAME                          no parameters
//!   NAME@device=7                 the requests belong to device 7
//!   NAME@device=7,interval=10ms   and come every 10 ms
//! ```
//!
//! The protocol has no other place for information about a client, and every client passes the name
//! on from its command line. An empty name denotes the only export.

use crate::disk::{Disk, SECTOR, Source};
use crate::protocol::export_flag as flag;
use std::time::Duration;

/// The longest string of the protocol, in bytes.
pub(crate) const STRING_MAX: usize = 4096;
/// The longest read or write, in bytes.
pub(crate) const REQUEST_MAX: u32 = 32 << 20;

/// The description of an export for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Its name: not empty, without `@`.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// True if it cannot be written.
    pub read_only: bool,
}

/// The parameters behind the name.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    device: Option<u64>,
    interval: Option<Duration>,
}

impl Parameters {
    pub(crate) fn source(self, connection: u64) -> Source {
        Source { connection, device: self.device, interval: self.interval }
    }
}

impl Export {
    /// True if the name is valid.
    pub fn has_good_name(&self) -> bool {
        let Self { name, .. } = self;
        !name.is_empty() && name.len() <= STRING_MAX / 2 && !name.contains(['@', '\0'])
    }

    /// The parameters of a client that asks for `name`; a message if there is no such export.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Parameters, String> {
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| name.len() <= STRING_MAX)
        else {
            return Err("the name of the export is no string of the protocol".to_owned());
        };
        let (base, parameters) = match name.split_once('@') {
            Some((base, parameters)) => (base, Some(parameters)),
            None => (name, None),
        };
        if !base.is_empty() && base != self.name {
            return Err(format!("there is no such export, but {}", self.name));
        }
        parameters.map_or(Ok(Parameters::default()), parse)
    }

    /// The full name of the export that was requested as `asked`.
    pub(crate) fn full_name(&self, asked: &[u8]) -> Vec<u8> {
        match asked.first() {
            None | Some(b'@') => [self.name.as_bytes(), asked].concat(),
            Some(_) => asked.to_vec(),
        }
    }

    /// The flags of the transmission.
    pub(crate) fn flags(&self, is_structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        flags |= match self.read_only {
            true => flag::READ_ONLY,
            false => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        };
        if is_structured {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// The minimum, the preferred and the maximum length of a request.
    pub(crate) fn block_sizes() -> [u32; 3] {
        [SECTOR, SECTOR, REQUEST_MAX]
    }
}

/// True if `disk` has a length that can be exported.
pub(crate) fn has_good_length(disk: &dyn Disk) -> bool {
    let len = disk.len();
    len.is_multiple_of(SECTOR.into()) && i64::try_from(len).is_ok()
}

fn parse(text: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(wrong(part));
        };
        let is_new = match key {
            "device" => {
                parameters.device.replace(number(value).ok_or_else(|| wrong(part))?).is_none()
            }
            "interval" => {
                let interval = duration(value).ok_or_else(|| wrong(part))?;
                parameters.interval.replace(interval).is_none()
            }
            _ => return Err(wrong(part)),
        };
        if !is_new {
            return Err(format!("`{}` twice in the name of the export", shown(key)));
        }
    }
    Ok(parameters)
}

fn wrong(part: &str) -> String {
    let part = shown(part);
    format!("`{part}` in the name of the export: device=NUMBER, interval=NUMBER and us, ms or s")
}

/// As much of a client's text as fits into a message.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Only digits; Rust's parser would accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    let count = number(digits)?;
    match unit {
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> Export {
        Export { name: "disk".to_owned(), description: String::new(), read_only: false }
    }

    fn found(name: &str) -> Option<(Option<u64>, Option<Duration>)> {
        let Parameters { device, interval } = export().find(name.as_bytes()).ok()?;
        Some((device, interval))
    }

    #[test]
    fn names_carry_device_and_interval() {
        assert_eq!(found("disk"), Some((None, None)));
        assert_eq!(found(""), Some((None, None)));
        assert_eq!(found("disk@device=7"), Some((Some(7), None)));
        let ten = Some(Duration::from_millis(10));
        assert_eq!(found("disk@device=7,interval=10ms"), Some((Some(7), ten)));
        assert_eq!(found("@interval=10ms,device=7"), Some((Some(7), ten)));
        assert_eq!(found("disk@interval=3us"), Some((None, Some(Duration::from_micros(3)))));
        assert_eq!(found("disk@interval=2s"), Some((None, Some(Duration::from_secs(2)))));
        let greatest = format!("disk@device={}", u64::MAX);
        assert_eq!(found(&greatest), Some((Some(u64::MAX), None)));
    }

    #[test]
    fn other_names_are_unknown() {
        for name in [
            "other",
            "disk2",
            "DISK",
            "disk@",
            "disk@device",
            "disk@device=",
            "disk@device=x",
            "disk@device=-1",
            "disk@device=+1",
            "disk@device=1,",
            "disk@device=1,device=2",
            "disk@device=18446744073709551616",
            "disk@interval=10",
            "disk@interval=ms",
            "disk@interval=10 ms",
            "disk@interval=1h",
            "disk@speed=1",
            "disk@device=1@device=2",
            "disk@interval=1s,interval=1s",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
        assert!(export().find(b"\xff").is_err());
        assert!(export().find(&[b'a'; STRING_MAX + 1]).is_err());
    }

    #[test]
    fn messages_are_short() {
        let name = format!("disk@{}", "x".repeat(4000));
        assert!(export().find(name.as_bytes()).unwrap_err().len() < 256);
    }

    #[test]
    fn full_names_can_be_asked_for_again() {
        let full = |asked: &str| String::from_utf8(export().full_name(asked.as_bytes())).unwrap();
        assert_eq!(full(""), "disk");
        assert_eq!(full("@device=7"), "disk@device=7");
        assert_eq!(full("disk@device=7"), "disk@device=7");
    }
}
