//! Time series behind InfluxDB's and OpenTSDB's interfaces.

mod export;
mod import;
mod lines;
mod query;
mod scrub;

use crate::arguments::{Http, Serve, Ts, TsAsked, TsGrow, TsPool, TsServe};
use crate::failure::{self, FAILED, Failure, NO_SPACE, Outcome, REFUSED, UNUSABLE};
use crate::message;
use crate::progress::Bar;
use crate::scrub::Scrub;
use crate::terms;
use coreplane::MediaChoice;
use coreplane_http::{Figures, Server};
use coreplane_pmem::PoolError;
use coreplane_server::TimeSeries;
use coreplane_tsdb::{Error, Options, Store};
use indicatif::FormattedDuration;
use serde_json::json;
use std::io::{self, Write};
use std::net::TcpListener;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The longest body of a write that is executed in the thread of its connection, where a fence is an instruction.
const INLINE_MAX: usize = 64 << 10;

pub(crate) fn run(ts: &Ts) -> Outcome {
    match ts {
        Ts::Serve(serve) => self::serve(serve),
        Ts::Query(query) => query::run(query),
        Ts::Import(import) => import::import(import),
        Ts::Export(export) => export::export(export),
        Ts::Stats(asked) => stats(asked),
        Ts::Verify(asked) => verify(asked),
        Ts::Grow(grow) => self::grow(grow),
    }
}

/// A failure of the store at `path`.
fn failure_of(error: &Error, path: &Path) -> Failure {
    let code = match error {
        Error::Full(_) | Error::Pool(PoolError::NoSpace { .. }) => NO_SPACE,
        Error::Pool(_) | Error::Pools(_) | Error::Damage(_) => UNUSABLE,
        Error::NotFound(_) | Error::Input(_) | Error::Limit(_) => REFUSED,
        _ => FAILED,
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}

fn is_there(path: &Path, media: &MediaChoice) -> Result<bool, Failure> {
    Store::is_there(path, media).map_err(|error| failure_of(&error, path))
}

/// The options of a command that opens a store by itself. The limits of names are the server's, which it does not know;
/// and what is over by the policies of the store stays, since the command may be there to rescue it.
fn offline(media: &MediaChoice) -> Options {
    Options {
        media: media.clone(),
        series_max: u64::MAX,
        names_bytes: u64::MAX,
        upkeep: false,
        ..Options::default()
    }
}

/// Opens a store that must exist, and says what in it is damaged.
fn open_there(path: &Path, options: &Options) -> Result<Store, Failure> {
    let store = find(path, options)?;
    say_damage(&store, path);
    Ok(store)
}

/// Says what was found to be damaged at the open: the answers do not have it.
fn say_damage(store: &Store, path: &Path) {
    for what in store.damage() {
        message::tell(format_args!("{}: damaged: {what}", path.display()));
    }
}

/// Opens a store that must exist.
fn find(path: &Path, options: &Options) -> Result<Store, Failure> {
    if !is_there(path, &options.media)? {
        let message = format!(
            "{}: there is no time-series store; `coreplane ts serve --pool {0}` makes one",
            path.display()
        );
        return Err(Failure::new(UNUSABLE, message));
    }
    Store::open(path, options).map_err(|error| failure_of(&error, path))
}

fn open(pool: &TsPool) -> Result<Store, Failure> {
    open_there(&pool.pool, &offline(&pool.media))
}

/// A server of time series, which ends in an orderly way when it is dropped.
pub(crate) struct Served {
    server: Option<Server>,
    scrub: Option<Scrub>,
    store: Arc<Store>,
    path: PathBuf,
    addresses: String,
    /// The number of Redis clients for which there is room beside it.
    pub(crate) room_beside: u32,
}

impl Served {
    /// A part of the line that reports what is served.
    pub(crate) fn said(&self) -> String {
        format!("; time series {}, http on {}", self.path.display(), self.addresses)
    }

    /// The source of the figures in `INFO`.
    pub(crate) fn told(&self) -> Option<Arc<dyn TimeSeries>> {
        let figures = self.server.as_ref()?.figures();
        Some(Arc::new(Told(figures)))
    }
}

/// The report about the time series for the Redis side.
#[derive(Debug)]
struct Told(Figures);

impl TimeSeries for Told {
    fn figures(&self) -> Vec<(String, String)> {
        let named = |(name, value): (&str, u64)| (name.to_owned(), value.to_string());
        let mut figures: Vec<_> = self.0.all().into_iter().map(named).collect();
        let trouble = self.0.trouble().unwrap_or_else(|| "none".to_owned());
        figures.push(("trouble".to_owned(), trouble.replace(['\r', '\n'], " ")));
        figures
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.scrub.take());
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn refused(error: coreplane_http::Error) -> Failure {
    Failure::new(REFUSED, error.to_string())
}

/// A server of Redis clients beside one of time series.
#[derive(Default)]
struct Beside {
    clients: u32,
    event_loops: usize,
}

/// Of the connections of HTTP, and Redis clients beside them, the numbers for which there is room among the open files.
fn room_for(http: &Http, beside: &Beside) -> (usize, u32) {
    /// Descriptors of a runtime and of an event loop, which are opened later.
    const OF_RUNTIME: usize = 3;
    const OF_LOOP: usize = 2;
    let runtimes = http.http_threads.saturating_add(1).saturating_mul(OF_RUNTIME);
    let later = runtimes.saturating_add(beside.event_loops.saturating_mul(OF_LOOP));
    let later = u32::try_from(later).unwrap_or(u32::MAX);
    let connections = http.http_connections_max;
    let wanted = u32::try_from(connections).unwrap_or(u32::MAX);
    let both = wanted.saturating_add(beside.clients);
    let room = coreplane_server::make_room(both.saturating_add(later), 0, 1).saturating_sub(later);
    let share = u64::from(room) * u64::from(wanted) / u64::from(both);
    let share = u32::try_from(share).unwrap_or(room).max(1);
    super::serve::tell_of_room(share as usize, connections, "connections of HTTP");
    (share as usize, room.saturating_sub(share).max(1))
}

/// Starts a server, on sockets that may listen already, beside one of so many Redis clients.
fn start(
    serve: &TsServe,
    password: Option<String>,
    listeners: Option<Vec<TcpListener>>,
    beside: &Beside,
) -> Result<Served, Failure> {
    let (path, http, own) = (&serve.pool.pool, &serve.http, &serve.store);
    // No store is created for a server that cannot run.
    let listeners = match listeners {
        Some(listeners) => listeners,
        None => coreplane_http::listen(&http.http_bind, serve.http_port).map_err(refused)?,
    };
    let options = Options {
        sets: own.ts_sets,
        size: own.ts_size,
        media: serve.pool.media.clone(),
        policy: own.ts_balance,
        interval_tag: own.ts_interval_tag.clone(),
        series_max: own.ts_series_max,
        names_bytes: own.ts_names_memory_max,
        last_bytes: own.ts_last_memory_max,
        ..Options::default()
    };
    if !is_there(path, &options.media)? {
        let (size, sets) = (terms::human(options.size), options.sets);
        message::tell(format_args!("creating {} ({sets} queue sets of {size})", path.display()));
    }
    let store = Store::open(path, &options).map_err(|error| failure_of(&error, path))?;
    let store = Arc::new(store);
    say_damage(&store, path);
    let (connections_max, room_beside) = room_for(http, beside);
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let options = coreplane_http::Options {
        threads: http.http_threads,
        connections_max,
        body_max: size(http.http_body_max),
        memory_max: size(http.http_memory_max),
        inline_max: if store.is_durable_at_once() { INLINE_MAX } else { 0 },
        queries_max: http.http_queries_max,
        query_time_max: http.http_query_time_max,
        query_bytes_max: size(http.http_query_memory_max),
        query_threads: own.ts_query_threads,
        rows_max: http.http_rows_max,
        idle_timeout: http.http_timeout,
        user: http.http_user.clone(),
        password: password.filter(|password| !password.is_empty()),
        is_protected: !serve.no_protected_mode,
        opentsdb_database: http.opentsdb_database.clone(),
        opentsdb_strings_as_numbers: http.opentsdb_strings_as_numbers,
        ..coreplane_http::Options::default()
    };
    let server = Server::start(listeners, Arc::clone(&store), options).map_err(refused)?;
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    let addresses = addresses.join(" and ");
    let scrub = scrub::begin(&store, path, own.ts_scrub_percent)?;
    let path = path.clone();
    Ok(Served { server: Some(server), scrub, store, path, addresses, room_beside })
}

/// Listens for the clients of time series beside a pool of records, if requested.
pub(crate) fn listen_beside(serve: &Serve) -> Result<Option<Vec<TcpListener>>, Failure> {
    let Some(port) = serve.series.http_port else { return Ok(None) };
    coreplane_http::listen(&serve.series.http.http_bind, port).map(Some).map_err(refused)
}

/// Serves time series beside a pool of records, if requested.
pub(crate) fn beside(
    serve: &Serve,
    password: Option<String>,
    listeners: Option<Vec<TcpListener>>,
) -> Result<Option<Served>, Failure> {
    let series = &serve.series;
    let Some(port) = series.http_port else { return Ok(None) };
    let path = series.ts_pool.clone().unwrap_or_else(|| {
        let mut path = serve.pool.path().into_os_string();
        path.push(".ts");
        path.into()
    });
    let own = TsServe {
        pool: TsPool { pool: path, media: serve.pool.media.clone() },
        store: series.store.clone(),
        http_port: port,
        requirepass_file: serve.requirepass_file.clone(),
        no_protected_mode: serve.no_protected_mode,
        http: series.http.clone(),
    };
    let event_loops = match serve.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    let beside = Beside { clients: serve.maxclients, event_loops };
    start(&own, password, listeners, &beside).map(Some)
}

fn serve(serve: &TsServe) -> Outcome {
    let password = serve.requirepass_file.as_deref().map(terms::password_in).transpose()?;
    let mut signals = super::serve::begin()?;
    let begun = Instant::now();
    let served = start(serve, password, None, &Beside::default())?;
    let medium = served.store.medium();
    let (name, loses) = medium.map_or_else(Default::default, |it| (it.name, it.power_cut_loses));
    message::say(format_args!(
        "medium {name}, a power cut loses {loses}; time series {}; ready on {}",
        served.path.display(),
        served.addresses,
    ));
    let _signal = signals.forever().next();
    drop(served);
    let (uptime, path) = (FormattedDuration(begun.elapsed()), serve.pool.pool.display());
    message::say(format_args!("ended: up {uptime}; time series {path} are closed"));
    Ok(0)
}

fn stats(TsAsked { pool, json }: &TsAsked) -> Outcome {
    let store = open(pool)?;
    let stats = store.stats();
    let mut out = io::stdout().lock();
    let figures = [
        ("series", stats.series),
        ("measurements", stats.measurements),
        ("head_points", stats.head_points),
        ("head_bytes", stats.head_bytes),
        ("segments", stats.segments),
        ("sealed_points", stats.sealed_points),
        ("sealed_bytes", stats.sealed_bytes),
        ("used_bytes", stats.used_bytes),
        ("total_bytes", stats.total_bytes),
    ];
    let sets: Vec<_> = store.loads();
    if *json {
        let mut told: serde_json::Map<_, _> =
            figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))).collect();
        told.insert("databases".to_owned(), json!(names_of(&store)));
        told.insert("sets".to_owned(), json!(sets.len()));
        writeln!(out, "{}", serde_json::Value::from(told))?;
        return Ok(0);
    }
    for (name, figure) in figures {
        writeln!(out, "{name:<16} {figure}")?;
    }
    writeln!(out, "{:<16} {}", "sets", sets.len())?;
    writeln!(out, "{:<16} {}", "databases", names_of(&store).join(" "))?;
    Ok(0)
}

fn names_of(store: &Store) -> Vec<String> {
    store.databases().iter().map(ToString::to_string).collect()
}

fn verify(TsAsked { pool, json }: &TsAsked) -> Outcome {
    // The verdict has the damage of the open, too.
    let store = find(&pool.pool, &offline(&pool.media))?;
    let bar = Bar::new("verify", 0, false);
    let found = store.verify(&mut |done, total| {
        bar.show(coreplane::admin::Progress { stage: "verify", done, total });
    });
    drop(bar);
    let found = found.map_err(|error| failure_of(&error, &pool.pool))?;
    let is_sound = found.is_sound();
    let (chunks, points, damage) = (found.chunks, found.points, &found.damage);
    let mut out = io::stdout().lock();
    if *json {
        let told =
            json!({ "sound": is_sound, "chunks": chunks, "points": points, "damage": damage });
        writeln!(out, "{told}")?;
    } else {
        for what in damage {
            writeln!(out, "{what}")?;
        }
        let verdict = if is_sound { "sound" } else { "damaged" };
        writeln!(out, "{chunks} chunks with {points} values read: {verdict}")?;
    }
    Ok(if is_sound { 0 } else { failure::NO })
}

fn grow(grow: &TsGrow) -> Outcome {
    let path = &grow.pool.pool;
    let store = open(&grow.pool)?;
    store.grow(grow.size).map_err(|error| failure_of(&error, path))?;
    let total = store.stats().total_bytes;
    if grow.json {
        writeln!(
            io::stdout(),
            "{}",
            json!({ "pool": path.display().to_string(), "total_bytes": total })
        )?;
    } else {
        writeln!(io::stdout(), "{} has {} now", path.display(), terms::human(total))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_no_limits_of_names_and_drops_nothing() {
        let options = offline(&MediaChoice::Auto);
        assert_eq!((options.series_max, options.names_bytes), (u64::MAX, u64::MAX));
        assert!(!options.upkeep);
    }
}
