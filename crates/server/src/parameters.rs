//! Parameters that `CONFIG GET` shows and `CONFIG SET` changes while the server runs.
//!
//! A parameter that Redis has, too, has the same meaning, bounds and error messages. A parameter that Redis can
//! change and this server cannot (the port, the policy for a full memory …) may be set to its present value.

use crate::config::{Config, OutputLimit};
use crate::host::Host;
use crate::settings::{BULK_LEN_MAX, Settings};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Why a value is refused.
type Complaint = Cow<'static, str>;

/// Changes a parameter.
type Set = fn(&Host, &str) -> Result<(), Complaint>;

/// How a parameter may be set.
enum Access {
    /// Not at all.
    Fixed,
    /// To its present value.
    Held,
    Changeable(Set),
}

/// One parameter.
pub(crate) struct Parameter {
    /// Its name in lower case.
    pub name: &'static str,
    get: fn(&Host) -> String,
    access: Access,
}

const IMMUTABLE: &str = "can't set immutable config";

impl Parameter {
    /// Its value now.
    pub(crate) fn get(&self, host: &Host) -> String {
        (self.get)(host)
    }

    /// True if it cannot be set while the server runs.
    pub(crate) fn is_immutable(&self) -> bool {
        matches!(self.access, Access::Fixed)
    }

    /// Changes it; the complaint if the value is invalid.
    pub(crate) fn set(&self, host: &Host, value: &str) -> Result<(), Complaint> {
        match self.access {
            Access::Changeable(set) => set(host, value),
            Access::Held if self.get(host) == value => Ok(()),
            Access::Held | Access::Fixed => Err(IMMUTABLE.into()),
        }
    }
}

const fn fixed(name: &'static str, get: fn(&Host) -> String) -> Parameter {
    Parameter { name, get, access: Access::Fixed }
}

const fn held(name: &'static str, get: fn(&Host) -> String) -> Parameter {
    Parameter { name, get, access: Access::Held }
}

const fn changeable(name: &'static str, get: fn(&Host) -> String, set: Set) -> Parameter {
    Parameter { name, get, access: Access::Changeable(set) }
}

/// All parameters. Where Redis has one of the same name, it means the same.
pub(crate) static PARAMETERS: &[Parameter] = &[
    held("appendfsync", |host| append_fsync(&host.config).to_owned()),
    held("appendonly", |_| "no".to_owned()),
    held("bind", |host| host.config.bind.join(" ")),
    changeable("client-output-buffer-limit", show_output_limits, |host, value| {
        parse_output_limits(&host.settings, value)
    }),
    changeable(
        "client-output-pause",
        |host| load(&host.settings.output_pause_bytes),
        |host, value| store_bytes(&host.settings.output_pause_bytes, value, 1 << 10, u64::MAX >> 1),
    ),
    changeable(
        "client-query-buffer-limit",
        |host| load(&host.settings.query_buffer_max),
        |host, value| store_bytes(&host.settings.query_buffer_max, value, 1 << 20, u64::MAX >> 1),
    ),
    fixed("daemonize", |_| "no".to_owned()),
    fixed("databases", |_| "1".to_owned()),
    held("dir", |_| {
        std::env::current_dir().map_or_else(|_| String::new(), |dir| dir.display().to_string())
    }),
    held("durability", |host| host.config.durability_name().to_owned()),
    fixed("io-threads", |host| host.ports.len().to_string()),
    changeable(
        "latency-tracking",
        |host| yes_no(host.settings.tracks_latency.load(Ordering::Relaxed)),
        |host, value| store_yes_no(&host.settings.tracks_latency, value),
    ),
    changeable("latency-tracking-info-percentiles", show_percentiles, parse_percentiles),
    changeable("maxclients", |host| load(&host.settings.max_clients), set_max_clients),
    changeable(
        "maxmemory",
        |host| load(&host.settings.max_memory),
        |host, value| store_bytes(&host.settings.max_memory, value, 0, u64::MAX >> 1),
    ),
    held("maxmemory-policy", |_| "noeviction".to_owned()),
    held("medium", |host| host.config.medium.clone()),
    held("notify-keyspace-events", |_| String::new()),
    held("port", |host| host.tcp_port().to_string()),
    held("power-cut-loses", |host| host.config.power_cut_loses.clone()),
    changeable(
        "protected-mode",
        |host| yes_no(host.settings.protected_mode.load(Ordering::Relaxed)),
        |host, value| store_yes_no(&host.settings.protected_mode, value),
    ),
    changeable(
        "proto-max-bulk-len",
        |host| load(&host.settings.bulk_len_max),
        |host, value| store_bytes(&host.settings.bulk_len_max, value, 1 << 20, BULK_LEN_MAX),
    ),
    changeable(
        "requirepass",
        |host| host.settings.password.lock().clone().unwrap_or_default(),
        |host, value| {
            host.settings.set_password(Some(value.to_owned()));
            Ok(())
        },
    ),
    held("save", |_| String::new()),
    changeable(
        "slowlog-log-slower-than",
        |host| host.slow_log.slower_than.load(Ordering::Relaxed).to_string(),
        |host, value| store_integer(&host.slow_log.slower_than, value, -1, i64::MAX),
    ),
    changeable(
        "slowlog-max-len",
        |host| load(&host.slow_log.len_max),
        |host, value| store_number(&host.slow_log.len_max, value, 0, u64::MAX >> 1),
    ),
    changeable(
        "tcp-keepalive",
        |host| load(&host.settings.tcp_keepalive_secs),
        |host, value| store_number(&host.settings.tcp_keepalive_secs, value, 0, i32::MAX as u64),
    ),
    changeable(
        "timeout",
        |host| host.settings.idle_timeout_ms.load(Ordering::Relaxed).div_ceil(1000).to_string(),
        |host, value| {
            let seconds = AtomicU64::new(0);
            store_number(&seconds, value, 0, i32::MAX as u64)?;
            let millis = seconds.into_inner() * 1000;
            host.settings.idle_timeout_ms.store(millis, Ordering::Relaxed);
            Ok(())
        },
    ),
    fixed("unixsocket", |host| {
        let path = host.config.unix_socket.as_deref();
        path.map_or_else(String::new, |path| path.display().to_string())
    }),
];

fn append_fsync(config: &Config) -> &'static str {
    if config.withholds() { "always" } else { "everysec" }
}

fn load(number: &AtomicU64) -> String {
    number.load(Ordering::Relaxed).to_string()
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn store_yes_no(to: &AtomicBool, value: &str) -> Result<(), Complaint> {
    let on = match value.to_ascii_lowercase().as_str() {
        "yes" => true,
        "no" => false,
        _ => return Err("argument must be 'yes' or 'no'".into()),
    };
    to.store(on, Ordering::Relaxed);
    Ok(())
}

const NO_NUMBER: &str = "argument couldn't be parsed into an integer";

fn between(min: impl std::fmt::Display, max: impl std::fmt::Display) -> Complaint {
    format!("argument must be between {min} and {max} inclusive").into()
}

fn set_max_clients(host: &Host, value: &str) -> Result<(), Complaint> {
    let number = AtomicU64::new(0);
    store_number(&number, value, 1, u64::from(u32::MAX))?;
    let wanted = u32::try_from(number.into_inner()).unwrap_or(u32::MAX);
    let room = host.room_for(wanted);
    if room < wanted {
        return Err(format!(
            "The operating system is not able to handle the specified number of clients, try with {room}"
        )
        .into());
    }
    host.settings.max_clients.store(wanted.into(), Ordering::Relaxed);
    Ok(())
}

fn store_number(to: &AtomicU64, value: &str, min: u64, max: u64) -> Result<(), Complaint> {
    let number: i128 = value.parse().map_err(|_| NO_NUMBER)?;
    let number = u64::try_from(number).ok().filter(|number| (min..=max).contains(number));
    to.store(number.ok_or_else(|| between(min, max))?, Ordering::Relaxed);
    Ok(())
}

fn store_integer(to: &AtomicI64, value: &str, min: i64, max: i64) -> Result<(), Complaint> {
    let number: i128 = value.parse().map_err(|_| NO_NUMBER)?;
    let number = i64::try_from(number).ok().filter(|number| (min..=max).contains(number));
    to.store(number.ok_or_else(|| between(min, max))?, Ordering::Relaxed);
    Ok(())
}

fn store_bytes(to: &AtomicU64, value: &str, min: u64, max: u64) -> Result<(), Complaint> {
    let bytes = parse_bytes(value).ok_or("argument must be a memory value")?;
    if !(min..=max).contains(&bytes) {
        return Err(between(min, max));
    }
    to.store(bytes, Ordering::Relaxed);
    Ok(())
}

fn show_percentiles(host: &Host) -> String {
    let percentiles = host.settings.latency_percentiles.lock();
    percentiles.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}

fn parse_percentiles(host: &Host, value: &str) -> Result<(), Complaint> {
    const BAD: &str = "Invalid latency-tracking-info-percentiles parameters";
    const BOUNDS: &str =
        "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]";
    let percentiles: Result<Vec<f64>, _> = value.split_whitespace().map(str::parse).collect();
    let percentiles = percentiles.map_err(|_| BAD)?;
    if !percentiles.iter().all(|percent| (0.0..=100.0).contains(percent)) {
        return Err(BOUNDS.into());
    }
    *host.settings.latency_percentiles.lock() = percentiles;
    Ok(())
}

/// `100`, `64k` (thousand), `64kb` (times 1024), `1gb`…
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn show_output_limits(host: &Host) -> String {
    let [replicas, subscribers] = *host.settings.other_output_limits.lock();
    let all = [
        ("normal", *host.settings.output_limit.lock()),
        ("slave", replicas),
        ("pubsub", subscribers),
    ];
    let all = all.map(|(class, OutputLimit { hard_bytes, soft_bytes, soft_time })| {
        format!("{class} {hard_bytes} {soft_bytes} {}", soft_time.as_secs())
    });
    all.join(" ")
}

fn parse_output_limits(settings: &Settings, value: &str) -> Result<(), Complaint> {
    const COUNT: &str = "Wrong number of arguments in buffer limit configuration.";
    const BAD: &str = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
    const CLASS: &str = "Invalid client class specified in buffer limit configuration.";
    let words: Vec<&str> = value.split_whitespace().collect();
    let (classes, []) = words.as_chunks::<4>() else {
        return Err(COUNT.into());
    };
    let mut normal = *settings.output_limit.lock();
    let mut others = *settings.other_output_limits.lock();
    let [replicas, subscribers] = &mut others;
    for [class, hard, soft, seconds] in classes {
        let limit = match class.to_ascii_lowercase().as_str() {
            "normal" => &mut normal,
            "slave" | "replica" => &mut *replicas,
            "pubsub" => &mut *subscribers,
            _ => return Err(CLASS.into()),
        };
        *limit = OutputLimit {
            hard_bytes: parse_bytes(hard).ok_or(BAD)?,
            soft_bytes: parse_bytes(soft).ok_or(BAD)?,
            soft_time: Duration::from_secs(seconds.parse().map_err(|_| BAD)?),
        };
    }
    settings.set_output_limit(normal);
    *settings.other_output_limits.lock() = others;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("100"), Some(100));
        assert_eq!(parse_bytes("1k"), Some(1_000));
        assert_eq!(parse_bytes("1KB"), Some(1_024));
        assert_eq!(parse_bytes("2gb"), Some(2 << 30));
        for bad in ["", "kb", "1x", "-1", "99999999999999999999"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_sorted_and_lower_case() {
        assert!(PARAMETERS.is_sorted_by(|a, b| a.name < b.name));
        assert!(PARAMETERS.iter().all(|one| one.name == one.name.to_ascii_lowercase()));
    }

    #[test]
    fn output_limits() {
        let settings = Settings::new(&Config::default());
        assert_eq!(parse_output_limits(&settings, "normal 10mb 1mb 60 pubsub 1 2 3"), Ok(()));
        assert_eq!(settings.other_output_limits.lock()[1].soft_time, Duration::from_secs(3));
        assert_eq!(settings.output_limit.lock().hard_bytes, 10 << 20);
        assert!(settings.limits_output.load(Ordering::Relaxed));
        assert!(parse_output_limits(&settings, "normal 1").is_err());
        assert!(parse_output_limits(&settings, "nobody 1 1 1").is_err());
    }
}
