//! The accounting of each command: counts and times, a line in the slow log, a line for `MONITOR`.

use super::table::Command;
use super::{secret, specification};
use crate::clients::ClientInfo;
use crate::command_counters::CommandCounters;
use crate::host::Host;
use crate::monitor;
use crate::resp::frame::Words;
use crate::session::Session;
use crate::slow_log::{SlowCommand, shortened};
use crate::stopwatch::Stopwatch;
use coreplane_engine::UnixMillis;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A command that was run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done<'a> {
    pub command: &'static Command,
    /// Its number.
    pub number: usize,
    pub words: Words<'a>,
    /// How long it took, if that is known.
    pub took: Option<Duration>,
    pub has_failed: bool,
}

/// A command begins: the start time, if this command is timed.
pub(super) fn begin(host: &Host, member: usize, watch: &mut Stopwatch, number: usize) -> Began {
    if !host.settings.times_commands(&host.slow_log) {
        return Began::Untimed;
    }
    let counters = host.ports.get(member).and_then(|it| it.counters.by_command.get(number));
    let is_rare = counters.is_some_and(CommandCounters::is_rare);
    Began::Timed(watch.begin(is_rare || host.slow_log.wants_quick()))
}

/// When a command began.
#[derive(Debug, Clone, Copy)]
pub(super) enum Began {
    /// Commands are not timed.
    Untimed,
    /// Commands are timed; none if this one is recorded only if it is slow.
    Timed(Option<Instant>),
}

impl Began {
    /// Ends the command; its duration, if known.
    pub(super) fn end(self, watch: &mut Stopwatch) -> Option<Duration> {
        match self {
            Self::Untimed => None,
            Self::Timed(began) => watch.end(began),
        }
    }
}

/// A command ends, or goes on in a later turn; its duration up to now, if known.
pub(super) fn end(session: &mut Session, began: Began) -> Option<Duration> {
    let before = std::mem::take(&mut session.took_before);
    let took = began.end(&mut session.stopwatch).unwrap_or_default() + before;
    Some(took).filter(|took| !took.is_zero())
}

/// Records the command for loop `member` and this client.
pub(super) fn keep(host: &Host, member: usize, client: &ClientInfo, done: &Done<'_>) {
    let counters = host.ports.get(member).map(|it| &it.counters);
    if let Some(counters) = counters {
        counters.commands.add(1);
    }
    if let Some(counters) = counters.and_then(|it| it.by_command.get(done.number)) {
        counters.calls.add(1);
        if done.has_failed {
            counters.failed.add(1);
        }
        if let Some(took) = done.took {
            counters.time(took, host.settings.tracks_latency.load(Ordering::Relaxed));
        }
    }
    if let Some(took) = done.took
        && host.slow_log.wants(took)
    {
        keep_slow(host, client, done, took);
    }
    if !host.monitors.is_empty() {
        tell_monitors(host, client, done);
    }
}

#[cold]
fn keep_slow(host: &Host, client: &ClientInfo, done: &Done<'_>, took: Duration) {
    let name = done.command.name;
    if specification::has_flag(name, "skip_slowlog") {
        return;
    }
    host.slow_log.push(SlowCommand {
        id: 0,
        at: UnixMillis::now().0 / 1000,
        micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        words: shortened(secret::shown(name, done.words)),
        address: client.address.clone(),
        name: client.names.lock().name.clone(),
    });
}

#[cold]
fn tell_monitors(host: &Host, client: &ClientInfo, done: &Done<'_>) {
    let name = done.command.name;
    // The commands of an administrator are not shown to others.
    if !specification::has_flag(name, "admin") && !specification::has_flag(name, "skip_monitor") {
        monitor::tell(host, &client.address, secret::shown(name, done.words));
    }
}
