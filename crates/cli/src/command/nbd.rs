//! A disk behind the NBD protocol.

mod export;
mod scrub;

use crate::arguments::{Nbd, NbdGrow, NbdPool, NbdServe, NbdVerify};
use crate::failure::{self, FAILED, Failure, NO_SPACE, Outcome, REFUSED, UNUSABLE};
use crate::message;
use crate::progress::Bar;
use crate::terms;
use coreplane_nbd::{Config, Export, Server, Sockets};
use coreplane_pmem::PoolError;
use coreplane_tio::{Disk, Error, Options};
use export::DiskExport;
use indicatif::FormattedDuration;
use serde_json::json;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The registered port of NBD.
const PORT: u16 = 10809;

pub(crate) fn run(nbd: &Nbd) -> Outcome {
    match nbd {
        Nbd::Serve(serve) => self::serve(serve),
        Nbd::Verify(verify) => self::verify(verify),
        Nbd::Grow(grow) => self::grow(grow),
    }
}

fn failure_of(error: &Error, path: &Path) -> Failure {
    let code = match error {
        Error::Pool(PoolError::NoSpace { .. }) | Error::NoSpace { .. } => NO_SPACE,
        Error::Pool(_) | Error::Partitions(_) => UNUSABLE,
        _ => FAILED,
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}

fn open(pool: &NbdPool) -> Result<Disk, Failure> {
    let options = Options { media: pool.media.clone(), ..Options::default() };
    opened(Disk::open(&pool.pool, &options), &pool.pool)
}

/// Whoever opens a disk tells at once which flushed writes are lost: no later open finds them any more.
fn opened(disk: coreplane_tio::Result<Disk>, path: &Path) -> Result<Disk, Failure> {
    let disk = disk.map_err(|error| failure_of(&error, path))?;
    if disk.unnamed() > 0 {
        message::tell(of_unnamed(disk.unnamed()));
    }
    Ok(disk)
}

fn open_or_create(serve: &NbdServe) -> Result<Disk, Failure> {
    let path = &serve.pool.pool;
    let options = Options {
        size: serve.size,
        partitions: serve.queues,
        media: serve.pool.media.clone(),
        policy: serve.balance,
        mode: serve.driver,
        ..Options::default()
    };
    let is_there = Disk::is_there(path, &options.media);
    let is_there = is_there.map_err(|error| failure_of(&error, path))?;
    if !is_there {
        let (size, queues) = (terms::human(serve.size), serve.queues);
        message::tell(format_args!("creating {} ({size}, {queues} queue sets)", path.display()));
    }
    let disk = match is_there {
        true => Disk::open(path, &options),
        false => Disk::create(path, &options),
    };
    opened(disk, path)
}

fn config(serve: &NbdServe, description: String) -> Config {
    let name = serve.export.clone();
    let port = serve.port.or_else(|| serve.unixsocket.is_none().then_some(PORT));
    Config {
        export: Export { name, description, read_only: serve.read_only },
        bind: serve.bind.clone(),
        port,
        unix_socket: serve.unixsocket.clone(),
        unix_socket_mode: serve.unixsocketperm,
        connections_max: serve.maxclients,
        ..Config::new(&serve.export)
    }
}

/// The number of clients, up to `wanted`, for which there is room among the open files: each has a socket and a bell.
fn clients_max(wanted: usize) -> usize {
    let room = coreplane_server::make_room(u32::try_from(wanted).unwrap_or(u32::MAX), 0, 2);
    super::serve::tell_of_room(room as usize, wanted, "clients");
    room as usize
}

fn serve(serve: &NbdServe) -> Outcome {
    let mut signals = super::serve::begin()?;
    let refused = |error: coreplane_nbd::Error| Failure::new(REFUSED, error.to_string());
    let begun = Instant::now();
    // No disk is created for a server that cannot run.
    let sockets = Sockets::bind(&config(serve, String::new())).map_err(refused)?;
    let disk = Arc::new(open_or_create(serve)?);
    let name = disk.medium().map_or_else(Default::default, |medium| medium.name);
    let loses = disk.power_cut_loses();
    if disk.sector_len() < coreplane_nbd::SECTOR {
        let message = "the sectors of the disk are smaller than those that NBD promises";
        return Err(Failure::new(REFUSED, message));
    }
    let exported = Arc::new(DiskExport::new(Arc::clone(&disk))?);
    let mut config = config(serve, format!("coreplane, medium {name}"));
    config.connections_max = clients_max(serve.maxclients);
    let exports = Arc::clone(&exported) as Arc<dyn coreplane_nbd::Disk>;
    let server = Server::on(sockets, config, exports).map_err(refused)?;
    let mut places: Vec<String> =
        server.local_addr().map(|address| address.to_string()).into_iter().collect();
    places.extend(serve.unixsocket.as_ref().map(|path| path.display().to_string()));
    let (signals_end, handle) = (signals.handle(), server.handle());
    std::thread::scope(|scope| {
        // Before the watcher, for which the scope waits.
        let scrub = scrub::begin(&disk)?;
        let watcher = std::thread::Builder::new().name("coreplane-signals".to_owned());
        watcher.spawn_scoped(scope, move || {
            if signals.forever().next().is_some() {
                handle.shutdown();
            }
        })?;
        message::say(format_args!(
            "medium {name}, a power cut loses {loses}; disk {} of {}; export {} ready on {}",
            serve.pool.pool.display(),
            terms::human(disk.len()),
            serve.export,
            places.join(" and "),
        ));
        let served = server.run();
        drop(scrub);
        signals_end.close();
        served.map_err(|error| Failure::new(FAILED, error.to_string()))
    })?;
    drop(exported);
    // Nobody else has it any more.
    let closed = Arc::into_inner(disk).map_or(Ok(()), Disk::close);
    closed.map_err(|error| failure_of(&error, &serve.pool.pool))?;
    let (uptime, path) = (FormattedDuration(begun.elapsed()), serve.pool.pool.display());
    message::say(format_args!("ended: up {uptime}; disk {path} is closed"));
    Ok(0)
}

/// For an operator: see [`coreplane_tio::Findings::unnamed`].
fn of_unnamed(count: u64) -> String {
    format!(
        "up to {count} writes that were flushed before the last kill may be lost: their entries in the journal are \
         damaged, and do not tell their sectors, which may have earlier bytes"
    )
}

/// For an operator: see [`coreplane_tio::Findings::unreadable_maps`].
fn of_unreadable_map(sectors: &Range<u64>) -> String {
    format!(
        "the names of the sectors {} to {} cannot be read any more: copy them by reads alone while the disk is served, \
         since they are lost when it is closed",
        sectors.start,
        sectors.end - 1
    )
}

fn verify(NbdVerify { pool, json }: &NbdVerify) -> Outcome {
    let disk = open(pool)?;
    let bar = Bar::new("verify", 0, false);
    let found = disk.verify(&mut |done, total| {
        bar.show(coreplane::admin::Progress { stage: "verify", done, total });
    });
    drop(bar);
    let found = found.map_err(|error| failure_of(&error, &pool.pool))?;
    let (sectors, damaged, names) = (found.sectors, &found.damaged, &found.names);
    let mut out = io::stdout().lock();
    if *json {
        let repaired = found.repaired;
        let sound = found.is_sound();
        let told = json!({
            "sound": sound, "sectors": sectors, "damaged": damaged, "names": names, "repaired": repaired,
            "unnamed": found.unnamed, "unreadable_maps": found.unreadable_maps,
        });
        writeln!(out, "{told}")?;
    } else {
        for sector in damaged {
            let at = sector * u64::from(disk.sector_len());
            writeln!(
                out,
                "sector {sector} (byte {at}): its bytes are not those that were written"
            )?;
        }
        for sector in names {
            writeln!(out, "sector {sector}: its name in the pool was damaged; it is stored anew")?;
        }
        for sectors in &found.unreadable_maps {
            writeln!(out, "{}", of_unreadable_map(sectors))?;
        }
        if found.unnamed > 0 {
            writeln!(out, "{}", of_unnamed(found.unnamed))?;
        }
        let verdict =
            if found.is_sound() { "sound" } else { "damaged; a sector is mended by writing it" };
        writeln!(out, "{sectors} sectors read: {verdict}")?;
    }
    Ok(if found.is_sound() { 0 } else { failure::NO })
}

fn grow(grow: &NbdGrow) -> Outcome {
    let NbdPool { pool, media } = &grow.pool;
    let disk = open(&grow.pool)?;
    disk.grow(media, grow.size).map_err(|error| failure_of(&error, pool))?;
    let disk = open(&grow.pool)?;
    if grow.json {
        writeln!(
            io::stdout(),
            "{}",
            json!({ "pool": pool.display().to_string(), "bytes": disk.len() })
        )?;
    } else {
        writeln!(io::stdout(), "{} has {} now", pool.display(), terms::human(disk.len()))?;
    }
    Ok(0)
}
