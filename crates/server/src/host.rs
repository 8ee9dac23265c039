//! The state that all event loops of a server share.

use crate::clients::Clients;
use crate::command::engine_error_text;
use crate::config::Config;
use crate::connection::Stream;
use crate::counters::{LoopCounters, Totals};
use crate::descriptors;
use crate::isolation::Isolation;
use crate::monitor::Monitors;
use crate::pause::Pause;
use crate::settings::Settings;
use crate::slow_log::SlowLog;
use crate::watch::WatchedAbsences;
use coreplane_engine::{Deferred, Error, UnixMillis};
use coreplane_pmem::background;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A message from one loop to another.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this connection.
    Serve(Stream),
    /// Disconnect the connection at this place if it has this id.
    Kill(usize, u64),
    /// Send this line to the connection at this place if it has this id.
    Push(usize, u64, Arc<[u8]>),
}

/// The means to reach a loop.
#[derive(Debug)]
pub(crate) struct Port {
    /// The messages to the loop.
    pub inbox: Mutex<Vec<Message>>,
    /// Wakes it.
    pub waker: mio::Waker,
    /// Some of its answers wait for durability.
    pub awaits_durable: AtomicBool,
    /// Some of its clients watch changes.
    pub has_feeds: AtomicBool,
    /// Its counters.
    pub counters: LoopCounters,
}

impl Port {
    /// Sends `message`.
    pub(crate) fn send(&self, message: Message) {
        self.inbox.lock().push(message);
        self.wake();
    }

    /// Wakes the loop.
    pub(crate) fn wake(&self) {
        // A full counter of wake-ups means that one is on its way.
        drop(self.waker.wake());
    }
}

/// Syncs that clients ask for: each makes all writes before its beginning durable, one at a time.
#[derive(Debug)]
pub(crate) struct Saves {
    /// The number of those that have begun.
    pub begun: u64,
    /// The number of those that have ended.
    pub ended: u64,
    /// Why the last one failed.
    pub error: Option<String>,
    /// Unix seconds of the last good one, or of the start.
    pub last: u64,
}

impl Saves {
    fn since(start: UnixMillis) -> Self {
        Self { begun: 0, ended: 0, error: None, last: start.0 / 1000 }
    }

    /// True if one runs.
    pub(crate) fn is_running(&self) -> bool {
        self.begun > self.ended
    }

    fn end(&mut self, error: Option<&Error>) {
        self.ended += 1;
        self.error = error.map(engine_error_text);
        if error.is_none() {
            self.last = UnixMillis::now().0 / 1000;
        }
    }
}

/// Which of the saves of a host.
pub(crate) type SavesOf = fn(&Host) -> &Mutex<Saves>;

/// Commands a second, sampled by the first loop.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// When and at which count the last sample was taken.
    pub last: Mutex<Option<(Instant, u64)>>,
    /// The rate of the last sample.
    pub per_second: AtomicU64,
}

/// Figures of the engine at the last `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub(crate) struct EngineBase {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub expired: AtomicU64,
}

/// The state that all event loops of a server share.
pub(crate) struct Host {
    pub config: Config,
    pub settings: Settings,
    pub engine: Arc<dyn Deferred>,
    pub clients: Clients,
    pub isolation: Isolation,
    pub watched: WatchedAbsences,
    pub ports: Vec<Port>,
    pub addresses: Vec<SocketAddr>,
    /// Those of `SAVE` and `BGSAVE`.
    pub saves: Mutex<Saves>,
    /// Those of `WAITAOF`, which are no saves to a client that asks about these.
    pub syncs: Mutex<Saves>,
    pub rate: Rate,
    pub engine_base: EngineBase,
    pub slow_log: SlowLog,
    pub monitors: Monitors,
    pub pause: Pause,
    /// More memory is in use than `maxmemory`.
    pub is_over_memory: AtomicBool,
    pub started: Instant,
    pub run_id: String,
    pub is_ending: AtomicBool,
    /// Itself, for threads that outlive a command.
    this: Weak<Host>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Host {
    /// Shares `engine` among loops at `ports`, which listen at `addresses`.
    pub(crate) fn new(
        config: Config,
        engine: Arc<dyn Deferred>,
        ports: Vec<Port>,
        addresses: Vec<SocketAddr>,
    ) -> Arc<Self> {
        let started_at = UnixMillis::now();
        Arc::new_cyclic(|this| Self {
            settings: Settings::new(&config),
            config,
            engine,
            clients: Clients::default(),
            isolation: Isolation::new(ports.len()),
            watched: WatchedAbsences::default(),
            ports,
            addresses,
            saves: Saves::since(started_at).into(),
            syncs: Saves::since(started_at).into(),
            rate: Rate::default(),
            engine_base: EngineBase::default(),
            slow_log: SlowLog::default(),
            monitors: Monitors::default(),
            pause: Pause::default(),
            is_over_memory: AtomicBool::new(false),
            started: Instant::now(),
            run_id: run_id(started_at),
            is_ending: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// The number of clients, up to `max_clients`, for which there is room among the open files. A client whose commands
    /// a leader runs has a connection there, too.
    pub(crate) fn room_for(&self, max_clients: u32) -> u32 {
        let each = if self.config.cluster.is_some() { 2 } else { 1 };
        descriptors::make_room(max_clients, self.clients.count(), each)
    }

    /// The TCP port, 0 if there is none.
    pub(crate) fn tcp_port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// The kind of server, as clients ask for it: one whose clients are redirected is part of a Redis cluster to them.
    pub(crate) fn mode(&self) -> &'static str {
        match &self.config.cluster {
            Some(cluster) if cluster.redirects() => "cluster",
            _ => "standalone",
        }
    }

    /// Ends the server.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.ports.iter().for_each(Port::wake);
    }

    /// The sum of one counter over all loops.
    pub(crate) fn sum(&self, counter: impl Fn(&LoopCounters) -> u64) -> u64 {
        self.ports.iter().map(|port| counter(&port.counters)).sum()
    }

    /// The sum of one histogram over all loops.
    pub(crate) fn total(
        &self,
        histogram: impl Fn(&LoopCounters) -> &crate::counters::Histogram,
    ) -> Totals {
        let mut total = Totals::default();
        for port in &self.ports {
            histogram(&port.counters).add_to(&mut total);
        }
        total
    }

    /// Sets the statistics to zero, as `CONFIG RESETSTAT` asks.
    pub(crate) fn reset_statistics(&self) {
        self.ports.iter().for_each(|port| port.counters.reset());
        let (stats, base) = (self.engine.stats(), &self.engine_base);
        base.hits.store(stats.hits, Ordering::Relaxed);
        base.misses.store(stats.misses, Ordering::Relaxed);
        base.expired.store(stats.expired, Ordering::Relaxed);
    }

    /// Checks whether memory use is above the limit.
    pub(crate) fn check_memory(&self) {
        let max = self.settings.max_memory.load(Ordering::Relaxed);
        let is_over = max > 0 && self.engine.stats().dram_bytes > max;
        self.is_over_memory.store(is_over, Ordering::Relaxed);
    }

    /// Samples the commands per second, and checks the memory.
    pub(crate) fn sample_rate(&self, now: Instant) {
        self.check_memory();
        let count = self.sum(|counters| counters.commands.get());
        let mut last = self.rate.last.lock();
        if let Some((when, before)) = *last {
            let millis = now.duration_since(when).as_millis().max(1) as u64;
            let rate = count.saturating_sub(before) * 1000 / millis;
            self.rate.per_second.store(rate, Ordering::Relaxed);
        }
        *last = Some((now, count));
    }

    /// Begins one of these saves in a thread of its own; false if one of them runs.
    pub(crate) fn begin(&self, of: SavesOf) -> coreplane_engine::Result<bool> {
        let mut saves = of(self).lock();
        if saves.is_running() {
            return Ok(false);
        }
        let this = self.this.clone();
        let spawned = background::spawn_in_time("coreplane-save", move || {
            if let Some(host) = this.upgrade() {
                let result = host.engine.sync();
                of(&host).lock().end(result.as_ref().err());
                host.ports.iter().for_each(Port::wake);
            }
        });
        match spawned {
            Ok(_) => saves.begun += 1,
            Err(source) => {
                return Err(Error::Io { context: "starting a thread".to_owned(), source });
            }
        }
        Ok(true)
    }
}

/// 40 hexadecimal digits that tell this run from others.
fn run_id(started_at: UnixMillis) -> String {
    use std::hash::{BuildHasher, RandomState};
    (0..3u64)
        .map(|part| RandomState::new().hash_one((started_at.0, part)))
        .map(|hash| format!("{hash:016x}"))
        .collect::<String>()
        .chars()
        .take(40)
        .collect()
}
