//! Parameters that `CONFIG GET` shows and `CONFIG SET` changes while the server runs.

use crate::config::{Config, OutputLimit};
use crate::host::Host;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What may change while the server runs.
#[derive(Debug)]
pub(crate) struct Settings {
    pub max_clients: AtomicU64,
    pub idle_timeout_ms: AtomicU64,
    pub tcp_keepalive_secs: AtomicU64,
    pub bulk_len_max: AtomicU64,
    pub query_buffer_max: AtomicU64,
    pub output_pause_bytes: AtomicU64,
    pub protected_mode: AtomicBool,
    /// There is a password; saves the lock where there is none.
    pub has_password: AtomicBool,
    pub password: Mutex<Option<String>>,
    pub output_limit: Mutex<OutputLimit>,
    /// `output_limit` has a bound; saves the lock where there is none.
    pub limits_output: AtomicBool,
}

impl Settings {
    /// As the server was started.
    pub(crate) fn new(config: &Config) -> Self {
        let limit = config.output_limit;
        Self {
            max_clients: u64::from(config.max_clients).into(),
            idle_timeout_ms: millis(config.idle_timeout).into(),
            tcp_keepalive_secs: config.tcp_keepalive.as_secs().into(),
            bulk_len_max: config.bulk_len_max.min(BULK_LEN_MAX).into(),
            query_buffer_max: config.query_buffer_max.into(),
            output_pause_bytes: config.output_pause_bytes.into(),
            protected_mode: config.protected_mode.into(),
            has_password: config.password.is_some().into(),
            password: Mutex::new(config.password.clone()),
            output_limit: Mutex::new(limit),
            limits_output: (limit.hard_bytes > 0 || limit.soft_bytes > 0).into(),
        }
    }

    /// Changes the password; none or an empty one: no password.
    pub(crate) fn set_password(&self, password: Option<String>) {
        let password = password.filter(|password| !password.is_empty());
        self.has_password.store(password.is_some(), Ordering::Release);
        *self.password.lock() = password;
    }

    fn set_output_limit(&self, limit: OutputLimit) {
        *self.output_limit.lock() = limit;
        let limits = limit.hard_bytes > 0 || limit.soft_bytes > 0;
        self.limits_output.store(limits, Ordering::Release);
    }
}

/// A bulk string must be addressable, with room for arithmetic on its length.
const BULK_LEN_MAX: u64 = 1 << 40;

/// Changes a parameter; the complaint if the value is not one.
type Set = fn(&Settings, &str) -> Result<(), &'static str>;

/// One parameter.
pub(crate) struct Parameter {
    /// Its name in lower case.
    pub name: &'static str,
    get: fn(&Host) -> String,
    set: Option<Set>,
}

impl Parameter {
    /// Its value now.
    pub(crate) fn get(&self, host: &Host) -> String {
        (self.get)(host)
    }

    /// True if it cannot change while the server runs.
    pub(crate) fn is_immutable(&self) -> bool {
        self.set.is_none()
    }

    /// Changes it; the complaint if the value is not one.
    pub(crate) fn set(&self, settings: &Settings, value: &str) -> Result<(), &'static str> {
        match self.set {
            Some(set) => set(settings, value),
            None => Err("can't set immutable config"),
        }
    }
}

const fn fixed(name: &'static str, get: fn(&Host) -> String) -> Parameter {
    Parameter { name, get, set: None }
}

const fn changeable(name: &'static str, get: fn(&Host) -> String, set: Set) -> Parameter {
    Parameter { name, get, set: Some(set) }
}

/// All parameters. Where Redis has one of the same name, it means the same.
pub(crate) static PARAMETERS: &[Parameter] = &[
    fixed("appendfsync", |host| append_fsync(&host.config).to_owned()),
    fixed("appendonly", |_| "no".to_owned()),
    fixed("bind", |host| host.config.bind.join(" ")),
    changeable("client-output-buffer-limit", show_output_limit, parse_output_limit),
    changeable(
        "client-output-pause",
        |host| load(&host.settings.output_pause_bytes),
        |settings, value| store_bytes(&settings.output_pause_bytes, value, 1 << 10, u64::MAX >> 1),
    ),
    changeable(
        "client-query-buffer-limit",
        |host| load(&host.settings.query_buffer_max),
        |settings, value| store_bytes(&settings.query_buffer_max, value, 1 << 20, u64::MAX >> 1),
    ),
    fixed("databases", |_| "1".to_owned()),
    fixed("dir", |_| {
        std::env::current_dir().map_or_else(|_| String::new(), |dir| dir.display().to_string())
    }),
    fixed("durability", |host| host.config.durability_name().to_owned()),
    fixed("io-threads", |host| host.ports.len().to_string()),
    changeable(
        "maxclients",
        |host| load(&host.settings.max_clients),
        |settings, value| store_number(&settings.max_clients, value, 1, u64::from(u32::MAX)),
    ),
    fixed("maxmemory", |_| "0".to_owned()),
    fixed("maxmemory-policy", |_| "noeviction".to_owned()),
    fixed("medium", |host| host.config.medium.clone()),
    fixed("port", |host| host.tcp_port().to_string()),
    fixed("power-cut-loses", |host| host.config.power_cut_loses.clone()),
    changeable(
        "protected-mode",
        |host| yes_no(host.settings.protected_mode.load(Ordering::Relaxed)),
        |settings, value| {
            let on = parse_yes_no(value)?;
            settings.protected_mode.store(on, Ordering::Relaxed);
            Ok(())
        },
    ),
    changeable(
        "proto-max-bulk-len",
        |host| load(&host.settings.bulk_len_max),
        |settings, value| store_bytes(&settings.bulk_len_max, value, 1 << 20, BULK_LEN_MAX),
    ),
    changeable(
        "requirepass",
        |host| host.settings.password.lock().clone().unwrap_or_default(),
        |settings, value| {
            settings.set_password(Some(value.to_owned()));
            Ok(())
        },
    ),
    fixed("save", |_| String::new()),
    changeable(
        "tcp-keepalive",
        |host| load(&host.settings.tcp_keepalive_secs),
        |settings, value| store_number(&settings.tcp_keepalive_secs, value, 0, i32::MAX as u64),
    ),
    changeable(
        "timeout",
        |host| host.settings.idle_timeout_ms.load(Ordering::Relaxed).div_ceil(1000).to_string(),
        |settings, value| {
            let seconds = AtomicU64::new(0);
            store_number(&seconds, value, 0, i32::MAX as u64)?;
            let millis = seconds.into_inner() * 1000;
            settings.idle_timeout_ms.store(millis, Ordering::Relaxed);
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn load(number: &AtomicU64) -> String {
    number.load(Ordering::Relaxed).to_string()
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn parse_yes_no(value: &str) -> Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("argument must be 'yes' or 'no'"),
    }
}

fn store_number(to: &AtomicU64, value: &str, min: u64, max: u64) -> Result<(), &'static str> {
    let number: u64 = value.parse().map_err(|_| "argument couldn't be parsed into an integer")?;
    if !(min..=max).contains(&number) {
        return Err("argument must be within the bounds of the parameter");
    }
    to.store(number, Ordering::Relaxed);
    Ok(())
}

fn store_bytes(to: &AtomicU64, value: &str, min: u64, max: u64) -> Result<(), &'static str> {
    let bytes = parse_bytes(value).ok_or("argument must be a memory value")?;
    if !(min..=max).contains(&bytes) {
        return Err("argument must be within the bounds of the parameter");
    }
    to.store(bytes, Ordering::Relaxed);
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

fn show_output_limit(host: &Host) -> String {
    let limit = *host.settings.output_limit.lock();
    format!(
        "normal {} {} {} slave 0 0 0 pubsub 0 0 0",
        limit.hard_bytes,
        limit.soft_bytes,
        limit.soft_time.as_secs()
    )
}

fn parse_output_limit(settings: &Settings, value: &str) -> Result<(), &'static str> {
    const BAD: &str = "Wrong number of arguments in buffer limit configuration.";
    let words: Vec<&str> = value.split_whitespace().collect();
    let (classes, []) = words.as_chunks::<4>() else {
        return Err(BAD);
    };
    let mut limit = *settings.output_limit.lock();
    for [class, hard, soft, seconds] in classes {
        let bad = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
        let parsed = OutputLimit {
            hard_bytes: parse_bytes(hard).ok_or(bad)?,
            soft_bytes: parse_bytes(soft).ok_or(bad)?,
            soft_time: Duration::from_secs(seconds.parse().map_err(|_| bad)?),
        };
        match class.to_ascii_lowercase().as_str() {
            "normal" => limit = parsed,
            // There are no such clients, so there is nothing to bound.
            "slave" | "replica" | "pubsub" => {}
            _ => return Err("Invalid client class specified in buffer limit configuration."),
        }
    }
    settings.set_output_limit(limit);
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
        assert_eq!(parse_output_limit(&settings, "normal 10mb 1mb 60 pubsub 1 1 1"), Ok(()));
        assert_eq!(settings.output_limit.lock().hard_bytes, 10 << 20);
        assert!(settings.limits_output.load(Ordering::Relaxed));
        assert!(parse_output_limit(&settings, "normal 1").is_err());
        assert!(parse_output_limit(&settings, "nobody 1 1 1").is_err());
    }
}
