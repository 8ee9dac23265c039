//! A pool: a file that says what it is.
//!
//! ```text
//!   page 0   0     static part: magic, version, uuid, geometry, kind, parameters, CRC
//!            512   root slot A      the root twice: generation, size, eight words, CRC
//!            1024  root slot B
//!            1536  root state       one word: which generation is acknowledged
//!            2048  body of page 0: words of the engine (HEADER_LEN)
//!   page 1…  as the engine claims them
//! ```
//!
//! Where pages have 1 KiB or 2 KiB the header takes as many of them as it needs, all claimed as pages of
//! words, and nothing is left of them: the engine's own begin at [`Pool::first_page`].
//!
//! The static part is written once, its magic last of all: a creation that is cut short leaves
//! no pool, never half of one. The root is for state larger than 8 bytes that must change
//! atomically (module `root` says how, and how a torn write is told from a flipped bit). The size that
//! the pool has grown to travels with the root.
//!
//! # What opening checks
//!
//! That nobody else has the pool open (`flock` on the file, which holds within one process too
//! and lasts as long as the mapping); that the file is a pool, of a version and kind that is
//! understood, whose checksums are right; that it is as long as it was acknowledged to be. What
//! is wrong is said with evidence ([`PoolError`]).
//!
//! # A full file system
//!
//! A store to a mapped page for which the file system has no block is a SIGBUS. So blocks are
//! allocated when a pool is created or grown, where a full file system is an error
//! ([`PoolError::NoSpace`]); and the pages are faulted in then too, since a first touch costs
//! more than the store.

mod allocate;
mod choose;
mod cut_short;
mod error;
mod header;
mod lock;
mod repair;
mod reserve;
mod root;
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
    /// Creates a pool at `path`, where nothing may be yet. Allocates and faults in all of it;
    /// durable when it returns.
    ///
    /// # Errors
    /// [`PoolError::Exists`], [`PoolError::NoSpace`] (nothing is left behind),
    /// [`PoolError::Geometry`], [`PoolError::NotPowerSafe`], [`PoolError::NotMemory`],
    /// [`PoolError::Profile`], [`PoolError::Io`].
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Self, PoolError> {
        barrier::prepare();
        let header = Static::of(options, header::random_uuid()?)?;
        let file = allocate::create_file(path)?;
        // Of a pool that was there before.
        cut_short::lift(path)?;
        let made = Self::create_in(path, file, header, options);
        if made.is_err() {
            // Ours alone since `create_file`. If it cannot be removed, it still is no pool.
            let _removed = std::fs::remove_file(path).is_ok();
        }
        made
    }

    fn create_in(
        path: &Path,
        file: File,
        header: Static,
        options: &CreateOptions,
    ) -> Result<Self, PoolError> {
        lock::exclusively(&file, path)?;
        allocate::blocks(&file, path, 0, header.size)?;
        let chosen = choose::medium(&file, path, &options.media)?;
        allocate::sync(&file, path)?;
        let file = Arc::new(file);
        let space = reserve::map(file, path, &header, header.size, chosen.behaviour.clone())?;
        allocate::fault_in(&space, 0, header.size);
        let mut pool = Self::format(space, header, &chosen, false)?;
        allocate::sync_directory(path)?;
        pool.file = pool.space.backing().map(|file| Opened { path: path.to_owned(), file });
        Ok(pool)
    }

    /// Creates a pool in the simulator's memory; size and page size are those of `space`. Its
    /// uuid is always the same, so that a run can be replayed.
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
        Ok(Self {
            space,
            header,
            roots: Mutex::new(roots),
            medium: chosen.medium.clone(),
            file: None,
            unsafe_shutdowns: None,
            faulting_in: OnceLock::new(),
        })
    }

    /// Opens the pool at `path`.
    ///
    /// # Errors
    /// [`PoolError::Locked`], [`PoolError::NotAPool`], [`PoolError::WrongVersion`],
    /// [`PoolError::ChecksumMismatch`], [`PoolError::Truncated`], [`PoolError::Geometry`],
    /// [`PoolError::NoSpace`] (a sparse copy on a full file system), and those of the medium as
    /// for [`Pool::create`].
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, PoolError> {
        let len_left =
            |file: &File, path: &Path| cut_short::len_left(path, allocate::file_len(file, path)?);
        Self::open_whole(path, options, len_left)
    }

    /// Opens the pool at `path` if the bytes that `len_of` says are left of its file are all that it has.
    fn open_whole(
        path: &Path,
        options: &OpenOptions,
        len_of: impl FnOnce(&File, &Path) -> Result<u64, PoolError>,
    ) -> Result<Self, PoolError> {
        barrier::prepare();
        let file = lock::open(path)?;
        let (header, root) = header::read_file(&file, path)?;
        let found = len_of(&file, path)?;
        if found < root.size {
            return Err(PoolError::Truncated { expected: root.size, found });
        }
        allocate::fill_holes(&file, path, root.size)?;
        let chosen = choose::medium(&file, path, &options.media)?;
        let file = Arc::new(file);
        let space = reserve::map(file, path, &header, root.size, chosen.behaviour.clone())?;
        let mut pool = Self::adopt(space, &chosen)?;
        pool.note_unsafe_shutdowns(chosen.unsafe_shutdowns)?;
        pool.file = pool.space.backing().map(|file| Opened { path: path.to_owned(), file });
        Ok(pool)
    }

    /// Opens a copy of the pool at `path`, which is made page by page as it is stored to: nothing that
    /// is done to it reaches the file, for which no permission to write is needed. Others may have copies meanwhile, but
    /// nobody has the pool. It cannot grow.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_copy(path: &Path, options: &OpenOptions) -> Result<Self, PoolError> {
        barrier::prepare();
        let file = lock::open_to_read(path)?;
        let (header, root) = header::read_file(&file, path)?;
        let found = cut_short::len_left(path, allocate::file_len(&file, path)?)?;
        if found < root.size {
            return Err(PoolError::Truncated { expected: root.size, found });
        }
        let chosen = choose::medium(&file, path, &options.media)?;
        // What a killed process has written is perhaps not durable, and is about to be shown.
        if !mutant!("pmem.copy.sync") {
            allocate::sync(&file, path)?;
        }
        let file = Arc::new(file);
        let space = Space::copy(Arc::clone(&file), root.size, header.page_size)
            .io(format!("map {}", path.display()))?;
        space.set_name(path);
        let mut pool = Self::adopt(Arc::new(space), &chosen)?;
        // A page that is faulted in to be stored to is copied: there is memory for those that are stored to.
        pool.faulting_in = OnceLock::from(None);
        // It keeps the lock.
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
        Ok(Self {
            space,
            header,
            roots: Mutex::new(roots),
            medium: chosen.medium.clone(),
            file: None,
            unsafe_shutdowns: None,
            faulting_in: OnceLock::new(),
        })
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

    /// What the pool at `path` holds, for example `scmkv`; it may be open elsewhere.
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

    /// A loss of the medium under the mapping (its file cut short, a page poisoned, the device gone)
    /// ends the process no more. The pool reads as zeroes then, what is stored to it goes nowhere, every
    /// fence fails, and so does [`Space::check_lost`], which whoever uses the pool asks before he
    /// believes anything that was read: the module [`poison`](crate::poison) has the whole duty. False
    /// if it cannot be so: the pool is not a file, or too many are mapped.
    ///
    /// # Errors
    /// If the handler of SIGBUS cannot be installed.
    pub fn outlive(&self) -> std::io::Result<bool> {
        crate::poison::install_handler()?;
        Ok(self.space.outlive())
    }

    /// Faults an opened pool in, in the background, so that later accesses need not: for whoever has read
    /// what it takes to begin. Before that it would take its processor and its locks of the kernel. Whoever opens
    /// several holds it until all are open ([`FaultInHold`]). Does nothing where it is not worth it, or a second
    /// time.
    pub fn fault_in(&self) {
        self.faulting_in.get_or_init(|| FaultIn::start(&self.space));
    }

    /// The first page of which all is the engine's: [`first_page`].
    pub fn first_page(&self) -> u32 {
        first_page(self.header.page_size)
    }

    /// The mapped pool.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Who the pool is; drawn at random when it was created.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// What it holds, for example `scmkv`.
    pub fn kind(&self) -> &str {
        &self.header.kind
    }

    /// Fails unless the pool holds `expected`.
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

    /// The current root.
    pub fn root(&self) -> [u64; ROOT_WORDS] {
        self.roots.lock().root().words
    }

    /// Replaces the root, all words or none; durable when it returns. Four fences: for rare use.
    /// After an error the root is the old or the new one, which the next open shows.
    ///
    /// # Errors
    /// [`PoolError::Sync`].
    pub fn set_root(&self, words: [u64; ROOT_WORDS]) -> Result<(), PoolError> {
        let mut roots = self.roots.lock();
        let root = Root { words, ..roots.root() };
        roots.replace(&self.space, root)
    }

    /// Grows the pool to `size` bytes (rounded down to whole pages) while it is in use; durable
    /// when it returns. Nothing to do if it is that large already.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`] and [`PoolError::Geometry`], after which the pool is as before;
    /// [`PoolError::Sync`], [`PoolError::Io`].
    pub fn grow(&self, size: u64) -> Result<(), PoolError> {
        let size = header::whole_pages(size, self.header.page_size)?;
        let mut roots = self.roots.lock();
        let root = roots.root();
        if size <= root.size {
            return Ok(());
        }
        // A file that was cut short is not made long again, as if nothing had been lost.
        self.space.check_lost().map_err(std::io::Error::from).io("grow the pool")?;
        let reserved = self.space.reserved();
        if size > reserved {
            return Err(PoolError::Geometry(format!(
                "this open pool can grow to {reserved} bytes, not to {size}; open it again"
            )));
        }
        if let Some(Opened { path, file }) = &self.file {
            allocate::extend(file, path, root.size, size)?;
        }
        self.space.grow(size).io("map the grown pool")?;
        if self.file.is_some() {
            allocate::fault_in(&self.space, root.size, size - root.size);
        }
        roots.replace(&self.space, Root { size, ..root })
    }

    /// What the pool rests on.
    pub fn medium(&self) -> Medium {
        self.medium.clone()
    }

    /// Its file; none in the simulator.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|opened| opened.path.as_path())
    }

    /// Its file as it is now: what was done to it under the open pool. None in the simulator.
    pub fn file_state(&self) -> Option<std::io::Result<FileState>> {
        let expected = self.space.len();
        let state = |metadata: std::fs::Metadata| {
            let (len, links) = (metadata.len(), metadata.nlink());
            FileState { len, expected, links }
        };
        self.file.as_ref().map(|opened| opened.file.metadata().map(state))
    }

    /// Set if the medium counted unsafe shutdowns (power lost before its buffers were drained)
    /// since the pool was last open: what was written shortly before may be damaged, and
    /// `verify` is due.
    pub fn unsafe_shutdowns(&self) -> Option<UnsafeShutdowns> {
        self.unsafe_shutdowns
    }
}

/// Claims the pages that the header is in.
fn claim_header(space: &Space, claim: Claim) -> Result<(), PoolError> {
    let mut pages = 0..first_page(space.page_size());
    if pages.all(|page| space.claim_words(page, claim)) {
        return Ok(());
    }
    let what = "a page that the header is in is missing from the space or in use";
    Err(PoolError::Geometry(what.to_owned()))
}
