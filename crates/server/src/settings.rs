//! The settings that may change while the server runs.

use crate::config::{Config, OutputLimit};
use crate::slow_log::SlowLog;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The settings that may change while the server runs.
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
    /// Of replicas and of subscribers, which do not exist here: kept for `CONFIG GET`.
    pub other_output_limits: Mutex<[OutputLimit; 2]>,
    /// Bytes of memory above which commands that need more are refused; 0: never.
    pub max_memory: AtomicU64,
    /// Latencies are recorded by command.
    pub tracks_latency: AtomicBool,
    /// The percentiles of latencies in `INFO latencystats`.
    pub latency_percentiles: Mutex<Vec<f64>>,
}

impl Settings {
    /// The settings at the start.
    pub(crate) fn new(config: &Config) -> Self {
        let limit = config.output_limit;
        let password = config.password.clone().filter(|password| !password.is_empty());
        Self {
            max_clients: u64::from(config.max_clients).into(),
            idle_timeout_ms: millis(config.idle_timeout).into(),
            tcp_keepalive_secs: config.tcp_keepalive.as_secs().into(),
            bulk_len_max: config.bulk_len_max.min(BULK_LEN_MAX).into(),
            query_buffer_max: config.query_buffer_max.into(),
            output_pause_bytes: config.output_pause_bytes.into(),
            protected_mode: config.protected_mode.into(),
            has_password: password.is_some().into(),
            password: Mutex::new(password),
            output_limit: Mutex::new(limit),
            limits_output: (limit.hard_bytes > 0 || limit.soft_bytes > 0).into(),
            other_output_limits: Mutex::default(),
            max_memory: AtomicU64::new(0),
            tracks_latency: AtomicBool::new(true),
            latency_percentiles: Mutex::new(vec![50.0, 99.0, 99.9]),
        }
    }

    /// Changes the password; none or an empty one: no password.
    pub(crate) fn set_password(&self, password: Option<String>) {
        let password = password.filter(|password| !password.is_empty());
        self.has_password.store(password.is_some(), Ordering::Release);
        *self.password.lock() = password;
    }

    /// True if the duration of a command is needed.
    pub(crate) fn times_commands(&self, slow_log: &SlowLog) -> bool {
        self.tracks_latency.load(Ordering::Relaxed) || slow_log.is_on()
    }

    /// Changes the limits of a client's pending output.
    pub(crate) fn set_output_limit(&self, limit: OutputLimit) {
        *self.output_limit.lock() = limit;
        let limits = limit.hard_bytes > 0 || limit.soft_bytes > 0;
        self.limits_output.store(limits, Ordering::Release);
    }
}

/// A bulk string must be addressable, with room for arithmetic on its length.
pub(crate) const BULK_LEN_MAX: u64 = 1 << 40;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one that everybody knows the server would not be protected from other machines.
    #[test]
    fn an_empty_password_is_none() {
        for password in [None, Some(String::new())] {
            let settings = Settings::new(&Config { password, ..Config::default() });
            assert!(!settings.has_password.load(Ordering::Relaxed));
            assert_eq!(*settings.password.lock(), None);
        }
    }
}
