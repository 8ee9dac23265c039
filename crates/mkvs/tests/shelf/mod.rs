//! A rack of pools in a directory in memory.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod gate;
pub(crate) mod sample;

use coreplane_bptree::Bptree;
use coreplane_conformance::interceptor::Intercepted;
use coreplane_engine::{Error, Result, StorageEngine};
use coreplane_mkvs::{Position, Rack, TimeSource};
use coreplane_mvcc::{MapEngine, MapKind};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Geometry, Placement, Scmkv};
use gate::{Gate, Power};
use memchr::memmem;
use std::collections::HashMap;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The engine of the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bptree,
    Scmkv,
    Map(MapKind),
}

/// A fault that a device has as soon as it is created or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operating system cannot read it.
    Unreadable,
    /// It has no space at all, not even its reserve.
    Full,
    /// When it is created this device is pulled out.
    Pulls(Position),
}

/// Pools in a directory, which is removed when this is dropped.
pub(crate) struct Shelf {
    directory: tempfile::TempDir,
    kind: Kind,
    /// Every second device has the other engine.
    is_mixed: bool,
    media: MediaChoice,
    size: u64,
    /// The sizes of devices that have less, or more.
    sizes: Mutex<HashMap<Position, u64>>,
    /// The faults of devices that are created or opened from now on.
    faults: Mutex<HashMap<Position, Fault>>,
    /// The gates of the devices that were opened.
    gates: Mutex<HashMap<Position, Arc<Gate>>>,
    /// The engines of the same devices, past their gates.
    engines: Mutex<HashMap<Position, Weak<dyn StorageEngine>>>,
    /// The power of devices that are opened from now on: set when it is cut.
    power: Mutex<Arc<Power>>,
    /// Threads that fill filters in the background wait.
    pub(crate) holds_filters: Arc<AtomicBool>,
    /// Devices that are opened from now on check what they read.
    pub(crate) checks_reads: AtomicBool,
}

/// Waits for something that comes soon. If it does not, the program ends: threads that hang would keep a
/// failing test from ending.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        if since.elapsed() > Duration::from_mins(2) {
            eprintln!("it never comes: {}", std::backtrace::Backtrace::force_capture());
            std::process::abort();
        }
        std::thread::yield_now();
    }
}

impl Shelf {
    pub(crate) fn new(kind: Kind, size: u64) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        Self::of(directory, kind, size)
    }

    /// Where a fence is a sync: of a disk, or of memory, where it takes no time.
    pub(crate) fn on_files(kind: Kind, size: u64, is_disk: bool) -> Self {
        let shelf = match is_disk {
            true => Self::of(tempfile::tempdir().expect("a directory"), kind, size),
            false => Self::new(kind, size),
        };
        Self { media: MediaChoice::File, ..shelf }
    }

    /// Devices of both engines.
    pub(crate) fn mixed(size: u64) -> Self {
        Self { is_mixed: true, ..Self::new(Kind::Bptree, size) }
    }

    fn of(directory: tempfile::TempDir, kind: Kind, size: u64) -> Self {
        let (sizes, gates, engines) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (media, power, faults) = (MediaChoice::Auto, Mutex::default(), Mutex::default());
        let holds_filters = Arc::default();
        Self {
            directory,
            kind,
            is_mixed: false,
            media,
            size,
            sizes,
            faults,
            gates,
            engines,
            power,
            holds_filters,
            checks_reads: AtomicBool::new(false),
        }
    }

    fn kind_at(&self, place: Position) -> Kind {
        let is_other = self.is_mixed && (place.group + u16::from(place.device)) % 2 == 1;
        match self.kind {
            Kind::Bptree if is_other => Kind::Scmkv,
            Kind::Scmkv if is_other => Kind::Bptree,
            kind => kind,
        }
    }

    /// Sets the size of devices that are created at `place` from now on.
    pub(crate) fn size(&self, place: Position, size: u64) {
        self.sizes.lock().expect("lock").insert(place, size);
    }

    /// Sets the fault of the device that is created or opened at `place` from now on.
    pub(crate) fn set_fault(&self, place: Position, fault: Option<Fault>) {
        let mut faults = self.faults.lock().expect("lock");
        faults.remove(&place);
        faults.extend(fault.map(|fault| (place, fault)));
    }

    fn fault(&self, place: Position) -> Option<Fault> {
        self.faults.lock().expect("lock").get(&place).copied()
    }

    pub(crate) fn path(&self, place: Position) -> PathBuf {
        self.directory.path().join(place.to_string())
    }

    /// Flips a bit of the third byte of `needle` in all places in the device's file; the number of places.
    pub(crate) fn damage(&self, place: Position, needle: &[u8]) -> usize {
        let pool = std::fs::read(self.path(place)).expect("read");
        let file = std::fs::File::options().write(true).open(self.path(place)).expect("open");
        let mut flipped = 0;
        for offset in memmem::find_iter(&pool, needle) {
            file.write_at(&[needle[2] ^ 4], offset as u64 + 2).expect("write");
            flipped += 1;
        }
        flipped
    }

    /// Makes every call of the device fail from now on.
    pub(crate) fn pull(&self, place: Position) {
        self.gate(place).is_out.store(true, Ordering::SeqCst);
    }

    /// The device answers again, with its records.
    pub(crate) fn put_back(&self, place: Position) {
        self.gate(place).put_back();
    }

    /// Makes every call of every device fail that has been opened so far.
    pub(crate) fn cut_power(&self) {
        self.power().is_dead.store(true, Ordering::SeqCst);
    }

    /// Devices that are opened from now on work again.
    pub(crate) fn restore_power(&self) {
        *self.power.lock().expect("lock") = Arc::default();
    }

    /// The power of the devices that were opened last.
    pub(crate) fn power(&self) -> Arc<Power> {
        Arc::clone(&self.power.lock().expect("lock"))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.power().is_dead.load(Ordering::SeqCst)
    }

    /// The gate of the device at `place`, which has been opened.
    pub(crate) fn gate(&self, place: Position) -> Arc<Gate> {
        Arc::clone(&self.gates.lock().expect("lock")[&place])
    }

    /// The device at `place`, which is open, for changes without the matrix.
    pub(crate) fn engine(&self, place: Position) -> Arc<dyn StorageEngine> {
        self.engines.lock().expect("lock")[&place].upgrade().expect("it is open")
    }

    /// The device at `place`, which may be gone by now.
    pub(crate) fn weak_engine(&self, place: Position) -> Weak<dyn StorageEngine> {
        self.engines.lock().expect("lock")[&place].clone()
    }

    fn with_gate(&self, place: Position, engine: Arc<dyn StorageEngine>) -> Arc<dyn StorageEngine> {
        let gate = Arc::new(Gate::powered_by(self.power(), Arc::clone(&self.holds_filters)));
        let is_full = self.fault(place) == Some(Fault::Full);
        gate.is_full_to_the_last.store(is_full, Ordering::SeqCst);
        self.gates.lock().expect("lock").insert(place, Arc::clone(&gate));
        self.engines.lock().expect("lock").insert(place, Arc::downgrade(&engine));
        Arc::new(Intercepted { engine, around: gate })
    }
}

impl Rack for Shelf {
    fn present(&self) -> Result<Vec<Position>> {
        let places = (0..16).flat_map(|group| (0..8).map(move |device| Position { group, device }));
        Ok(places.filter(|place| self.path(*place).exists()).collect())
    }

    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        let path = self.path(place);
        if path.exists() {
            return Err(Error::Unusable(format!("there is a device at {place}")));
        }
        let time = Some(Arc::clone(time));
        let size = self.sizes.lock().expect("lock").get(&place).copied().unwrap_or(self.size);
        let engine: Arc<dyn StorageEngine> = match self.kind_at(place) {
            Kind::Bptree => {
                let options = coreplane_bptree::Options { time, ..Default::default() };
                Arc::new(Bptree::create(&path, size, 8192, self.media.clone(), &options)?)
            }
            Kind::Scmkv => {
                let options = coreplane_scmkv::Options { time, ..Default::default() };
                let (media, placement) = (self.media.clone(), Placement::Auto);
                // A small device has small pages.
                let small = Geometry { page_size: 256 << 10, ..Geometry::default() };
                let geometry = match size >> 20 {
                    0 => Some(Geometry::TINY),
                    1..16 => Some(small),
                    _ => None,
                };
                Arc::new(match geometry {
                    Some(it) => Scmkv::create_with(&path, size, it, media, placement, options),
                    None => Scmkv::create(&path, size, media, placement, options),
                }?)
            }
            Kind::Map(kind) => {
                let options = coreplane_mvcc::Options { time, ..Default::default() };
                let (media, geometry) = (self.media.clone(), coreplane_mvcc::Geometry::default());
                Arc::new(MapEngine::create(kind, &path, size, geometry, media, &options)?)
            }
        };
        let engine = self.with_gate(place, engine);
        if let Some(Fault::Pulls(device)) = self.fault(place) {
            self.pull(device);
        }
        Ok(engine)
    }

    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn StorageEngine>> {
        if self.fault(place) == Some(Fault::Unreadable) {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            return Err(Error::Io { context: "read".to_owned(), source });
        }
        let (path, time) = (self.path(place), Some(Arc::clone(time)));
        let check_reads = self.checks_reads.load(Ordering::SeqCst);
        let engine: Arc<dyn StorageEngine> = match self.kind_at(place) {
            Kind::Bptree => {
                let options = coreplane_bptree::Options { time, check_reads, ..Default::default() };
                Arc::new(Bptree::open(&path, self.media.clone(), &options, &|_| {})?)
            }
            Kind::Scmkv => {
                let options = coreplane_scmkv::Options { time, check_reads, ..Default::default() };
                Arc::new(Scmkv::open(&path, self.media.clone(), options)?)
            }
            Kind::Map(kind) => {
                let options = coreplane_mvcc::Options { time, check_reads, ..Default::default() };
                let media = self.media.clone();
                Arc::new(MapEngine::open(kind, &path, media, &options, &|_| {})?)
            }
        };
        Ok(self.with_gate(place, engine))
    }

    fn remove(&self, place: Position) -> Result<()> {
        match std::fs::remove_file(self.path(place)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { context: "remove a device".to_owned(), source: error })
            }
            _ => Ok(()),
        }
    }
}
