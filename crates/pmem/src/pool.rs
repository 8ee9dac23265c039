//! A pool: a file that describes itself.
//!
//! ```text
//!   page 0   0     static part: magic, version, uuid, geometry, kind, parameters, CRC
//!            512   root slot A      the root twice: generation, size, eight words, CRC
//!            1024  root slot B
//!            1536  root state       one word: the acknowledged generation
//!            2048  body of page 0: words of the engine (HEADER_LEN)
//!   page 1…  as the engine claims them
//! ```
//!
//! Where pages have 1 KiB or 2 KiB the header takes as many of them as it needs, all claimed as pages of
//! words, and fills them completely: the pages of the engine begin at [`Pool::first_page`].
//!
//! The static part is written once, its magic last: an interrupted creation leaves no pool, never half
//! of one. The root is for state larger than 8 bytes that must change atomically (module `root`
//! explains how, and how a torn write is distinguished from a flipped bit). The size that the pool has
//! grown to is part of the root.
//!
//! # What opening checks
//!
//! That the pool is not open elsewhere (`flock` on the file, which also excludes a second open in
//! the same process and lasts as long as the mapping); that the file is a pool of a known version,
//! with correct checksums; that it has the acknowledged length. Errors contain the details
//! ([`PoolError`]).
//!
//! # A full file system
//!
//! A store to a mapped page for which the file system has no block is a SIGBUS. So blocks are
//! allocated when a pool is created or grown, where a full file system is an error
//! ([`PoolError::NoSpace`]); and the pages are faulted in at the same time, since the first access
//! to a page costs more than the store.

mod allocate;
mod choose;
mod cut_short;
mod error;
mod header;
mod lock;
mod mark;
mod repair;
mod reserve;
mod root;
mod sync_failure;
mod types;

pub use allocate::{FaultInHold, space_at, sync_directory};
pub use error::PoolError;
pub use types::{
    CreateOptions, FileState, HEADER_LEN, MediaChoice, Medium, OpenOptions, ROOT_WORDS,
    UnsafeShutdowns, first_page,
};

use crate::epoch::barrier;
use crate::mutant;
use crate::space::{Claim, Space};
use allocate::FaultIn;
use choose::Chosen;
use error::IoContext;
use header::Static;
use parking_lot::Mutex;
use root::{Root, Roots};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An open pool. The file stays locked until the pool and every [`Arc`] of its space are gone.
#[derive(Debug)]
pub struct Pool {
    space: Arc<Space>,
    header: Static,
    roots: Mutex<Roots>,
    /// Held while the pool grows, by nothing else: readers and writers of the root wait for no growth.
    growing: Mutex<()>,
    medium: Medium,
    file: Option<Opened>,
    unsafe_shutdowns: Option<UnsafeShutdowns>,
    faulting_in: OnceLock<Option<FaultIn>>,
}

/// The file beneath a pool.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: Arc<File>,
}

impl Pool {
    /// Creates a pool at `path`, which must not exist. Allocates and faults in all of it; durable
    /// when it returns.
    ///
    /// # Errors
    /// [`PoolError::Exists`], [`PoolError::NoSpace`] (no file is left behind),
    /// [`PoolError::Geometry`], [`PoolError::NotPowerSafe`], [`PoolError::NotMemory`],
    /// [`PoolError::Profile`], [`PoolError::Io`].
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self, PoolError> {
        barrier::prepare();
        let header = Static::of(options, header::random_uuid()?)?;
        let file = allocate::create_file(path)?;
        let made = Self::create_in(path, file, header, options);
        if made.is_err() {
            // This call created the file, and the mark if there is one. If it cannot be removed, it still is no pool.
            let _removed = std::fs::remove_file(path).is_ok();
            let _lifted = sync_failure::lift(path).is_ok();
        }
        made
    }

    fn create_in(
        path: &Path,
        file: File,
        header: Static,
        options: &CreateOptions,
    ) -> Result<Self, PoolError> {
        // The marks of an earlier pool at this path.
        cut_short::lift(path)?;
        sync_failure::lift(path)?;
        lock::exclusively(&file, path)?;
        allocate::blocks(&file, path, 0, header.size)?;
        let chosen = choose::medium(&file, path, &options.media)?;
        sync_failure::sync(&file, path)?;
        let file = Arc::new(file);
        let space = reserve::map(file, path, &header, header.size, chosen.behaviour.clone())?;
        allocate::fault_in(&space, 0, header.size);
        let mut pool = Self::format(space, header, &chosen, false)?;
        allocate::sync_directory(path)?;
        pool.file = pool.space.backing().map(|file| Opened { path: path.to_owned(), file });
        Ok(pool)
    }

    /// Creates a pool in the simulator's memory; size and page size are those of `space`. The uuid
    /// is always the same, so that a run can be replayed.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub fn simulated_create(space: Arc<Space>, options: &CreateOptions) -> Result<Self, PoolError> {
        let options =
            CreateOptions { size: space.len(), page_size: space.page_size(), ..options.clone() };
        let header = Static::of(&options, header::SIMULATED_UUID)?;
        Self::format(space, header, &Chosen::simulated(), true)
    }

    /// Writes the header into a space that is not a pool yet: roots and static part, then the
    /// magic.
    fn format(
        space: Arc<Space>,
        header: Static,
        chosen: &Chosen,
        flush_page: bool,
    ) -> Result<Self, PoolError> {
        claim_header(&space, Claim::Words)?;
        if flush_page {
            space.persist(0, space.start_of(first_page(header.page_size)))?;
        }
        let root = Root {
            size: header.size,
            unsafe_shutdowns: chosen.unsafe_shutdowns,
            words: [0; ROOT_WORDS],
        };
        let roots = Roots::format(&space, header.uuid, root)?;
        header.write(&space)?;
        Ok(Self::over(space, header, roots, chosen))
    }

    fn over(space: Arc<Space>, header: Static, roots: Roots, chosen: &Chosen) -> Self {
        Self {
            space,
            header,
            roots: Mutex::new(roots),
            growing: Mutex::new(()),
            medium: chosen.medium.clone(),
            file: None,
            unsafe_shutdowns: None,
            faulting_in: OnceLock::new(),
        }
    }

    /// Opens the pool at `path`.
    ///
    /// # Errors
    /// [`PoolError::Locked`], [`PoolError::NotAPool`], [`PoolError::WrongVersion`],
    /// [`PoolError::ChecksumMismatch`], [`PoolError::Truncated`], [`PoolError::Unrepaired`],
    /// [`PoolError::Geometry`], [`PoolError::NoSpace`] (a sparse copy on a full file system), and those of the medium as
    /// for [`Pool::create`].
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, PoolError> {
        Self::open_whole(path, options, cut_short::check_whole)
    }

    /// Opens the pool at `path` if `check` finds that so long a file covers the size of the pool.
    fn open_whole(
        path: &Path,
        options: &OpenOptions,
        check: fn(&Path, u64, u64) -> Result<(), PoolError>,
    ) -> Result<Self, PoolError> {
        barrier::prepare();
        let file = lock::open(path)?;
        sync_failure::settle(&file, path)?;
        sync_failure::lift(path)?;
        let (header, root) = header::read_file(&file, path)?;
        check(path, allocate::file_len(&file, path)?, root.size)?;
        allocate::fill_holes(&file, path, root.size)?;
        let chosen = choose::medium(&file, path, &options.media)?;
        let file = Arc::new(file);
        let space = reserve::map(file, path, &header, root.size, chosen.behaviour.clone())?;
        let mut pool = Self::adopt(space, &chosen)?;
        pool.note_unsafe_shutdowns(chosen.unsafe_shutdowns)?;
        pool.file = pool.space.backing().map(|file| Opened { path: path.to_owned(), file });
        Ok(pool)
    }

    /// Opens a private copy of the pool at `path`; a page is copied at the first store to it. No change reaches the
    /// file, and no permission to write it is needed. Others may have copies open at the same time, but not the pool
    /// itself. The copy cannot grow.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_copy(path: &Path, options: &OpenOptions) -> Result<Self, PoolError> {
        barrier::prepare();
        let file = lock::open_to_read(path)?;
        // The mark stays: it may not be permitted to remove it.
        sync_failure::settle(&file, path)?;
        let (header, root) = header::read_file(&file, path)?;
        cut_short::check_whole(path, allocate::file_len(&file, path)?, root.size)?;
        let chosen = choose::medium(&file, path, &options.media)?;
        // Writes of a killed process may not be durable yet, and are about to be shown.
        if !mutant!("pmem.copy.sync") {
            sync_failure::sync(&file, path)?;
        }
        let file = Arc::new(file);
        let space = Space::copy(Arc::clone(&file), root.size, header.page_size)
            .io(format!("map {}", path.display()))?;
        space.set_name(path);
        let mut pool = Self::adopt(Arc::new(space), &chosen)?;
        // Faulting in a page for stores would copy it: memory is used only for pages that are stored to.
        pool.faulting_in = OnceLock::from(None);
        // The open file keeps the lock.
        pool.file = Some(Opened { path: path.to_owned(), file });
        Ok(pool)
    }

    /// Opens the pool that is in the simulator's memory, after a simulated power cut or not.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn simulated_open(space: Arc<Space>) -> Result<Self, PoolError> {
        Self::adopt(space, &Chosen::simulated())
    }

    fn adopt(space: Arc<Space>, chosen: &Chosen) -> Result<Self, PoolError> {
        claim_header(&space, Claim::WordsAsStored)?;
        let header = Static::read(&space)?;
        if header.page_size != space.page_size() {
            return Err(PoolError::Geometry(format!(
                "the pool has pages of {} bytes, the space of {}",
                header.page_size,
                space.page_size()
            )));
        }
        let roots = Roots::recover(&space, header.uuid)?;
        let size = roots.root().size;
        if size > space.len() {
            return Err(PoolError::Truncated { expected: size, found: space.len() });
        }
        Ok(Self::over(space, header, roots, chosen))
    }

    /// Compares the medium's count of unsafe shutdowns with the stored one, and stores it.
    fn note_unsafe_shutdowns(&mut self, now: Option<u64>) -> Result<(), PoolError> {
        let roots = self.roots.get_mut();
        let root = roots.root();
        if root.unsafe_shutdowns == now {
            return Ok(());
        }
        if let (Some(before), Some(now)) = (root.unsafe_shutdowns, now) {
            self.unsafe_shutdowns = Some(UnsafeShutdowns { before, now });
        }
        roots.replace(&self.space, Root { unsafe_shutdowns: now, ..root })
    }

    /// The kind of the pool at `path`, for example `scmkv`; it may be open elsewhere.
    ///
    /// # Errors
    /// [`PoolError::NotAPool`], [`PoolError::WrongVersion`], [`PoolError::ChecksumMismatch`],
    /// [`PoolError::Io`].
    pub fn kind_at(path: &Path) -> Result<String, PoolError> {
        Self::static_at(path).map(|header| header.kind)
    }

    /// Bytes of a page of the pool at `path`, which may be open elsewhere.
    ///
    /// # Errors
    /// As [`Pool::kind_at`].
    pub fn page_size_at(path: &Path) -> Result<u32, PoolError> {
        Self::static_at(path).map(|header| header.page_size)
    }

    /// The parameters of the pool at `path`, which may be open elsewhere.
    ///
    /// # Errors
    /// As [`Pool::kind_at`].
    pub fn parameters_at(path: &Path) -> Result<[u64; 8], PoolError> {
        Self::static_at(path).map(|header| header.parameters)
    }

    fn static_at(path: &Path) -> Result<Static, PoolError> {
        lock::check_file(path)?;
        let file = File::open(path).io(format!("open {}", path.display()))?;
        header::static_of_file(&file, path)
    }

    /// Checks the header again, as it is on the medium now.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn check(&self) -> Result<(), PoolError> {
        let roots = self.roots.lock();
        Static::read(&self.space)?;
        Roots::recover(&self.space, self.header.uuid).and_then(|found| {
            if found.root() == roots.root() { Ok(()) } else { Err(found.not_as_acknowledged()) }
        })
    }

    /// From now on the process survives a loss of the medium under the mapping (its file truncated, a
    /// page poisoned, the device gone). The pool then reads as zeroes, stores to it have no effect,
    /// every fence fails, and so does [`Space::check_lost`], which users of the pool must call before
    /// they rely on any bytes read: the module [`poison`](crate::poison) states all obligations. False
    /// if this is impossible: the pool is not a file, or too many are mapped.
    ///
    /// # Errors
    /// If the handler of SIGBUS cannot be installed.
    pub fn outlive(&self) -> std::io::Result<bool> {
        crate::poison::install_handler()?;
        Ok(self.space.outlive())
    }

    /// Faults in an opened pool in the background, so that later accesses do not fault. Call it when the data
    /// needed at the start has been read: before, it would compete with the caller for processor and kernel
    /// locks. A caller that opens several pools holds it back until all are open ([`FaultInHold`]). A pool of up to
    /// 256 KiB is faulted in when it returns, unless that is held. Does nothing where it is not worth it, or a second
    /// time.
    pub fn fault_in(&self) {
        self.faulting_in.get_or_init(|| FaultIn::start(&self.space));
    }

    /// The first page that belongs to the engine as a whole: [`first_page`].
    pub fn first_page(&self) -> u32 {
        first_page(self.header.page_size)
    }

    /// The mapped pool.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The identity of the pool; drawn at random when it was created.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// The kind of the pool, for example `scmkv`.
    pub fn kind(&self) -> &str {
        &self.header.kind
    }

    /// Fails unless the pool is of kind `expected`.
    ///
    /// # Errors
    /// [`PoolError::WrongKind`].
    pub fn expect_kind(&self, expected: &str) -> Result<(), PoolError> {
        if self.header.kind == expected {
            return Ok(());
        }
        Err(PoolError::WrongKind { expected: expected.to_owned(), found: self.header.kind.clone() })
    }

    /// The engine's parameters, as they were at creation.
    pub fn parameters(&self) -> [u64; 8] {
        self.header.parameters
    }

    /// The version of the format that the pool was written with.
    pub fn version(&self) -> u32 {
        header::VERSION
    }

    /// Bytes that the root states. The space may be longer: a growth has not ended, or a crash has cut it off.
    pub fn size(&self) -> u64 {
        self.roots.lock().root().size
    }

    /// The current root.
    pub fn root(&self) -> [u64; ROOT_WORDS] {
        self.roots.lock().root().words
    }

    /// Replaces the root, all words or none; durable when it returns. Four fences: for rare use.
    /// After an error the root is the old or the new one; the next open shows which.
    ///
    /// # Errors
    /// [`PoolError::Sync`].
    pub fn set_root(&self, words: [u64; ROOT_WORDS]) -> Result<(), PoolError> {
        let mut roots = self.roots.lock();
        let root = Root { words, ..roots.root() };
        roots.replace(&self.space, root)
    }

    /// Grows the pool to `size` bytes (rounded down to whole pages) while it is in use; durable when it returns. Does
    /// nothing if it is already that large. This may take seconds; the new pages are in the space before the end.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`], [`PoolError::OutOfRange`] and [`PoolError::Truncated`], after which the pool is as before;
    /// [`PoolError::Sync`], [`PoolError::Io`].
    pub fn grow(&self, size: u64) -> Result<(), PoolError> {
        let page_size = self.header.page_size;
        let to = self.space.reserved().min(header::size_max(page_size));
        let from = self.space.start_of(first_page(page_size));
        if !(from..=to).contains(&size) {
            let what = "bytes of the pool until it is opened again";
            return Err(PoolError::OutOfRange { what, given: size, from, to });
        }
        let size = size - size % u64::from(page_size);
        let _growing = self.growing.lock();
        let old = self.size();
        if size <= old {
            return Ok(());
        }
        // A truncated file must not get its length back, which would hide the loss.
        self.space.check_lost().map_err(std::io::Error::from).io("grow the pool")?;
        if let Some(Opened { path, file }) = &self.file {
            // Without `/proc` there is no other description.
            allocate::extend(self.space.file_to_write().unwrap_or(file), path, old, size)?;
            // Where a fence is a sync of the file, the fences of the root cover its length. A sync here could get the
            // error of a failed write, which the kernel reports once, in place of the fence that has to fail.
            if self.space.fences_at_once() {
                sync_failure::sync(file, path)?;
            }
        }
        self.space.grow(size).io("map the grown pool")?;
        if self.file.is_some() {
            allocate::fault_in(&self.space, old, size - old);
        }
        if mutant!("pmem.grow.root") {
            return Ok(());
        }
        let mut roots = self.roots.lock();
        let root = Root { size, ..roots.root() };
        roots.replace(&self.space, root)
    }

    /// The medium of the pool.
    pub fn medium(&self) -> Medium {
        self.medium.clone()
    }

    /// Its file; none in the simulator.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|opened| opened.path.as_path())
    }

    /// The state of its file now, which may have been changed under the open pool. None in the simulator.
    pub fn file_state(&self) -> Option<std::io::Result<FileState>> {
        let expected = self.space.len();
        let state = |metadata: std::fs::Metadata| {
            let (len, links) = (metadata.len(), metadata.nlink());
            FileState { len, expected, links }
        };
        self.file.as_ref().map(|opened| opened.file.metadata().map(state))
    }

    /// Set if the medium counted unsafe shutdowns (power lost before its buffers were drained)
    /// since the pool was last open: data written shortly before may be damaged, and `verify`
    /// should be run.
    pub fn unsafe_shutdowns(&self) -> Option<UnsafeShutdowns> {
        self.unsafe_shutdowns
    }
}

/// Claims the pages of the header.
fn claim_header(space: &Space, claim: Claim) -> Result<(), PoolError> {
    let mut pages = 0..first_page(space.page_size());
    if pages.all(|page| space.claim_words(page, claim)) {
        return Ok(());
    }
    let what = "a page that the header is in is missing from the space or in use";
    Err(PoolError::Geometry(what.to_owned()))
}
