//! ext4 on a disk whose power is cut at any moment of the requests that a file system has really made.
//!
//! ```text
//!   mkfs.ext4, mount, files ─▶ nbdfuse ─▶ NBD server ─▶ Recorder: requests in order, and acknowledged files
//!                                                          │ once
//!                            simulated disk ◀──────────────┘ again; cut behind any store, unfenced stores kept or lost
//!                                  └─▶ opened ─▶ image ─▶ journal ─▶ e2fsck -fn, and the acknowledged files
//! ```
//!
//! A kill leaves the page cache, a cut does not: here every store that was not made durable may be lost. The test
//! needs what `mount` needs. Thirty cuts of each medium; three hundred at `COREPLANE_TEST_SCALE=full`;
//! `COREPLANE_CUTS=seed`: from that seed on.
//!
//! Each run records another trace. If something is wrong with a cut, the trace is kept in a file, and
//! `COREPLANE_CUTS_TRACE` names a trace to use instead of a new one.

use crate::disk::{lack, succeeds};
use crate::mount::{self, Mount, bytes_of};
use crate::pool::Place;
use crate::session::{Outcome, text};
use crate::trace::{Entry, Recorder, from_bytes, to_bytes};
use coreplane_nbd as nbd;
use coreplane_pmem::media::sim::{Eviction, Fault, Model, Sim, SimOptions};
use coreplane_tio::{Disk, Options, Source, Tio};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// The value of Linux.
const O_DSYNC: i32 = 0o10000;
const LEN: usize = 24 << 20;
const FILES: u64 = 60;
const SECTOR: usize = 4096;
/// Requests that are executed together, like those that arrive at once.
const BATCH: usize = 6;

fn file_len(number: u64) -> usize {
    1 + (number * 7919 % 23) as usize * 1500
}

/// Writes files that are synced, and others that are created and removed meanwhile.
fn work(at: &Path, recorder: &Recorder) -> Outcome<()> {
    let path = |name: &str, number: u64| at.join(format!("{name}-{number}"));
    for number in 1..=FILES {
        let options = || File::options().create_new(true).write(true).clone();
        options().open(path("loose", number))?.write_all(&bytes_of(number, 9000))?;
        let mut file = options().custom_flags(O_DSYNC).open(path("file", number))?;
        for piece in bytes_of(number, file_len(number)).chunks(10_000) {
            file.write_all(piece)?;
        }
        recorder.note(Entry::Synced(number));
        match number % 4 {
            0 => std::fs::remove_file(path("loose", number - 2))?,
            1 => std::fs::create_dir(path("directory", number))?,
            2 => std::fs::rename(path("loose", number - 1), path("moved", number))?,
            _ => {}
        }
    }
    Ok(())
}

/// The requests of a file system to a disk from its creation to its end.
fn recorded() -> Outcome<Vec<Entry>> {
    let place = Place::in_memory()?;
    let recorder = Arc::new(Recorder::new(LEN));
    let socket = place.path("socket");
    let uri = format!("nbd+unix:///disk?socket={}", text(&socket)?);
    let config = nbd::Config { port: None, unix_socket: Some(socket), ..nbd::Config::new("disk") };
    let server = nbd::Server::bind(config, recorder.clone())?;
    let handle = server.handle();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run());
        let session = || -> Outcome<()> {
            let mut mount = Mount::attach_export(&uri, &place)?;
            mount.make()?;
            recorder.note(Entry::Made);
            let at = mount.mount()?.to_owned();
            work(&at, &recorder)?;
            mount.detach()
        };
        let outcome = session();
        handle.shutdown();
        running.join().map_err(|_| "the server has panicked")??;
        outcome
    })?;
    Ok(recorder.entries())
}

fn options() -> Options {
    Options { size: LEN as u64, partitions: 2, ..Options::default() }
}

/// A simulated disk that has executed all requests.
struct Done {
    sim: Sim,
    /// The number of events of the medium when the file system was made, and at each acknowledgement.
    made: usize,
    synced: Vec<(usize, u64)>,
}

/// Executes all requests again, except flushes if the disk `forgets` them.
fn done(entries: &[Entry], model: Model, fault: Option<Fault>, forgets: bool) -> Outcome<Done> {
    let len = Disk::partition_len(&options())?;
    let page_size = SECTOR as u32;
    let sizes = SimOptions { spaces: 2, len, max_len: len, page_size, ..SimOptions::default() };
    let sim = Sim::new(&SimOptions { model, fault, ..sizes })?;
    let disk = Disk::simulated_create(sim.spaces(), &options())?;
    let mut done = Done { sim, made: 0, synced: Vec::new() };
    let mut batch = Vec::new();
    for entry in entries {
        match entry {
            Entry::Write { place, bytes, fua } => {
                batch.push(Tio { fua: *fua && !forgets, ..Tio::write(*place, bytes.clone()) });
            }
            Entry::Zero { place, len, fua } => {
                batch.push(Tio { fua: *fua && !forgets, ..Tio::zero(*place, *len) });
            }
            Entry::Flush | Entry::Made | Entry::Synced(_) => run(&disk, &mut batch)?,
        }
        if batch.len() == BATCH {
            run(&disk, &mut batch)?;
        }
        match entry {
            Entry::Flush if !forgets => disk.flush()?,
            Entry::Made => done.made = done.sim.events(),
            Entry::Synced(file) => done.synced.push((done.sim.events(), *file)),
            _ => {}
        }
    }
    run(&disk, &mut batch)?;
    Ok(done)
}

/// Executes the requests of a batch, as one of several connections, so that both partitions have extents.
fn run(disk: &Disk, batch: &mut Vec<Tio>) -> Outcome<()> {
    let connection = batch.first().map_or(0, |tio| tio.place / SECTOR as u64 % 4);
    disk.run(&Source::of_connection(connection), batch);
    for tio in batch.drain(..) {
        tio.outcome?;
    }
    Ok(())
}

/// A cut behind so many events must leave a file system that needs only its journal, with all files acknowledged by
/// then; returns their number.
fn check(done: &Done, events: usize, eviction: Eviction, place: &Place) -> Outcome<usize> {
    let sim = done.sim.crash_at(events, eviction).reopen()?;
    let disk = Disk::simulated_open(sim.spaces(), &options())?;
    let mut tios = [Tio::read(0, disk.len())];
    disk.run(&Source::of_connection(0), &mut tios);
    let [tio] = tios;
    tio.outcome?;
    disk.check_blocks()?;
    let (image, files) = (place.argument("image")?, place.path("files"));
    std::fs::write(&image, &tio.bytes)?;
    mount::check(&image)?;
    if files.exists() {
        std::fs::remove_dir_all(&files)?;
    }
    std::fs::create_dir(&files)?;
    succeeds("debugfs", &["-R", &format!("rdump / {}", text(&files)?), &image])?;
    let acknowledged = done.synced.iter().filter(|synced| synced.0 <= events);
    let mut count = 0;
    for (_, number) in acknowledged {
        let found = std::fs::read(files.join(format!("file-{number}")));
        let found = found.map_err(|error| format!("file {number}: {error}"))?;
        if found != bytes_of(*number, file_len(*number)) {
            return Err(format!("file {number} has other bytes").into());
        }
        count += 1;
    }
    Ok(count)
}

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below.max(1)
    }
}

/// Cuts at places by seed; the number of cuts, the number of files checked, and the faults.
fn cut(done: &Done, seeds: std::ops::Range<u64>) -> Outcome<(u64, usize, Vec<String>)> {
    let place = Place::in_memory()?;
    let (mut cuts, mut files, mut wrong) = (0, 0, Vec::new());
    for seed in seeds {
        let mut draw = Draw(seed ^ 0x5851_f42d);
        let events = done.made + draw.next(done.sim.events() - done.made);
        let eviction = match seed % 8 {
            0 => Eviction::Nothing,
            1 => Eviction::Everything,
            _ => Eviction::Seeded(seed),
        };
        match check(done, events, eviction, &place) {
            Ok(count) => files += count,
            Err(error) => wrong.push(format!("seed {seed}, behind event {events}: {error}")),
        }
        cuts += 1;
    }
    Ok((cuts, files, wrong))
}

/// Fails if these cuts have faults; then the trace is kept, so that the cuts can be repeated.
fn is_right(entries: &[Entry], what: &str, wrong: &[String]) -> Outcome<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/block_cuts.trace");
    std::fs::write(path, to_bytes(entries))?;
    Err(format!("{what}, COREPLANE_CUTS_TRACE={path}: {wrong:#?}").into())
}

#[test]
fn a_file_system_survives_cuts_of_its_disk() -> Outcome<()> {
    if lack(&mount::NEEDED)? {
        return Ok(());
    }
    let entries = match std::env::var("COREPLANE_CUTS_TRACE") {
        Ok(path) => from_bytes(&std::fs::read(path)?).ok_or("no trace")?,
        Err(_) => recorded()?,
    };
    assert_eq!(from_bytes(&to_bytes(&entries)).as_ref(), Some(&entries));
    let count = |wanted: fn(&Entry) -> bool| entries.iter().filter(|it| wanted(it)).count();
    let writes = count(|it| matches!(it, Entry::Write { .. }));
    let flushes = count(|it| matches!(it, Entry::Flush));
    assert!(writes > 200 && flushes > 60, "{writes} writes, {flushes} flushes");
    let first = std::env::var("COREPLANE_CUTS").map_or(Ok(0), |seed| seed.parse::<u64>())?;
    let full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    for model in [Model::X86, Model::File] {
        let done = done(&entries, model, None, false)?;
        let (cuts, files, wrong) = cut(&done, first..first + if full { 300 } else { 30 })?;
        is_right(&entries, &format!("{model:?}"), &wrong)?;
        assert!(files > 100, "{files}");
        let what = format!("{writes} writes, {flushes} flushes, {cuts} cuts, {files} files");
        writeln!(std::io::stdout(), "\n{model:?}: {what}")?;
    }
    // Worse disks, on which faults must be found.
    let faulty = done(&entries, Model::X86, Some(Fault::DropEveryFlush), false)?;
    for worse in [faulty, done(&entries, Model::File, None, true)?] {
        let (cuts, _, wrong) = cut(&worse, first..first + 10)?;
        assert!(
            !wrong.is_empty(),
            "{cuts} cuts of a disk that flushes nothing, and nothing is lost"
        );
    }
    Ok(())
}
