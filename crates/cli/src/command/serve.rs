//! A pool behind the Redis protocol.

use crate::arguments::Serve;
use crate::command::ts;
use crate::failure::{Failure, Outcome};
use crate::message;
use crate::pool;
use crate::terms;
use coreplane::Store;
use coreplane::admin::{CopyOptions, Work};
use coreplane_server::administration::Administered;
use coreplane_server::{Config, Server, Sockets, Summary};
use indicatif::FormattedDuration;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// From here on a signal ends the server in an orderly way, and no thread waits for a reader of its messages.
pub(super) fn begin() -> io::Result<Signals> {
    let signals = Signals::new([SIGINT, SIGTERM])?;
    message::detach()?;
    Ok(signals)
}

pub(crate) fn run(serve: Serve) -> Outcome {
    let password = serve.requirepass_file.as_deref().map(terms::password_in).transpose()?;
    if !serve.pool.path().exists() {
        serve.pool.expect_directory()?;
    }
    let mut signals = begin()?;
    if serve.cluster.cluster_id.is_some() {
        return super::cluster::serve(&serve, password, &mut signals);
    }
    // No pool is created or recovered for a server that cannot run.
    let sockets = Sockets::bind(&self::config(&serve, password.clone()))?;
    let series_sockets = ts::listen_beside(&serve)?;
    let config = serve
        .new
        .config(&serve.pool)
        .durability(serve.durability)
        .check_reads(!serve.no_check_reads);
    let config = serve.paths.of(config);
    if !config.path().exists() {
        let size = terms::human(serve.new.size);
        let devices = serve.new.matrix.map(|shape| format!("{shape} devices of "));
        let size = devices.unwrap_or_default() + &size;
        message::tell(format_args!("creating {} ({size})", config.path().display()));
    }
    let store = config.open_or_create().map_err(|error| Failure::of_pool(&error, config.path()))?;
    let store = Arc::new(store);
    pool::warn(&store);
    pool::refuse_device(&store, config.path())?;
    let series = match ts::beside(&serve, password.clone(), series_sockets) {
        Ok(series) => series,
        Err(failure) => {
            store.close()?;
            return Err(failure);
        }
    };
    let serving = Serving { serve: &serve, password, store: &store, series: series.as_ref() };
    let served = serving.run(sockets, &mut signals);
    drop(series);
    let closed = store.close();
    let summary = served?;
    closed?;
    farewell(&summary, config.path());
    Ok(0)
}

/// The store that is served, and its parameters.
struct Serving<'s> {
    serve: &'s Serve,
    password: Option<String>,
    store: &'s Arc<Store>,
    series: Option<&'s ts::Served>,
}

impl Serving<'_> {
    fn run(self, sockets: Sockets, signals: &mut Signals) -> Result<Summary, Failure> {
        let Self { serve, password, store, series } = self;
        let config = Config {
            medium: store.medium().name.clone(),
            power_cut_loses: store.power_cut_loses(),
            power_safe: store.medium().power_safe,
            store: Some(administered(store, &serve.pool.path())),
            time_series: series.and_then(ts::Served::told),
            max_clients: series.map_or(serve.maxclients, |series| series.room_beside),
            ..config(serve, password)
        };
        let server = Server::on(sockets, config, store.engine().clone(), None)?;
        let is_degraded = store.matrix().is_some_and(|matrix| matrix.is_degraded());
        let (medium, loses) = (&store.medium().name, store.power_cut_loses());
        let note = if is_degraded { "(degraded)" } else { "" };
        let series = series.map(ts::Served::said).unwrap_or_default();
        let place = Place { medium, loses: &loses, note, series: &series };
        serve_until_signal(serve, server, signals, &place, &|| ())
    }
}

/// The common configuration of all servers.
pub(super) fn config(serve: &Serve, password: Option<String>) -> Config {
    Config {
        bind: serve.bind.clone(),
        port: Some(serve.port),
        unix_socket: serve.unixsocket.clone(),
        unix_socket_mode: serve.unixsocketperm,
        threads: serve.threads,
        max_clients: serve.maxclients,
        idle_timeout: serve.timeout.unwrap_or(Duration::ZERO),
        password,
        protected_mode: !serve.no_protected_mode,
        durability: serve.durability,
        metrics: serve.metrics.clone(),
        ..Config::default()
    }
}

/// The parts of the start-up line.
pub(super) struct Place<'p> {
    pub(super) medium: &'p str,
    pub(super) loses: &'p str,
    /// Text behind the path of the pool.
    pub(super) note: &'p str,
    /// The time series served beside it, if any.
    pub(super) series: &'p str,
}

/// Serves until a signal ends the server in an orderly way; `leave` is called before the end.
pub(super) fn serve_until_signal(
    serve: &Serve,
    server: Server,
    signals: &mut Signals,
    place: &Place<'_>,
    leave: &(dyn Fn() + Sync),
) -> Result<Summary, Failure> {
    let line = start_up_line(serve, place, &server);
    tell_of_room(server.max_clients() as usize, serve.maxclients as usize, "clients");
    let signals_end = signals.handle();
    let (handle, done) = (server.handle(), server.handle());
    std::thread::scope(|scope| {
        let watcher = std::thread::Builder::new().name("coreplane-signals".to_owned());
        watcher.spawn_scoped(scope, || {
            if signals.forever().next().is_some() {
                leave();
                handle.shutdown();
            }
        })?;
        message::say(&line);
        let served = server.run();
        signals_end.close();
        served.map_err(Failure::from)
    })
    .map(|()| done.summary())
}

/// Tells that there is room for fewer clients than `wanted`.
pub(super) fn tell_of_room(room: usize, wanted: usize, clients: &str) {
    if room < wanted {
        message::tell(format_args!(
            "{room} {clients} at a time, not {wanted}: the limit of open files (ulimit -n) has no room for more"
        ));
    }
}

/// The last line: the totals, the uptime, and that the pool is closed.
pub(super) fn farewell(summary: &Summary, pool: &Path) {
    let Summary { commands, connections, uptime } = *summary;
    let uptime = FormattedDuration(uptime);
    message::say(format_args!(
        "ended: {commands} commands of {connections} connections in {uptime}; pool {} is closed",
        pool.display()
    ));
}

/// The store as a server administers it. An interrupted move of slots goes on.
fn administered(store: &Arc<Store>, path: &Path) -> Arc<Administered> {
    if let Some(matrix) = store.matrix().filter(|matrix| matrix.is_moving()) {
        // If it cannot go on now, the status reports it.
        let _begun = matrix.begin(Work::FinishMoves(CopyOptions::default())).is_ok();
    }
    Administered::new(Arc::clone(store), path)
}

/// Medium, durability, the data that a power cut loses, the addresses, and "ready".
fn start_up_line(serve: &Serve, place: &Place<'_>, server: &Server) -> String {
    let mut places: Vec<_> =
        server.local_addr().map(|address| address.to_string()).into_iter().collect();
    places.extend(serve.unixsocket.as_ref().map(|path| path.display().to_string()));
    let Place { medium, loses, note, series } = place;
    let note = if note.is_empty() { String::new() } else { format!(" {note}") };
    let metrics = server.metrics_addr().map(|address| format!("; metrics on {address}"));
    let metrics = metrics.unwrap_or_default();
    format!(
        "medium {medium}, durability {}, a power cut loses {loses}; pool {}{note}{metrics}{series}; ready on {}",
        terms::durability_name(serve.durability),
        serve.pool.path().display(),
        places.join(" and "),
    )
}
