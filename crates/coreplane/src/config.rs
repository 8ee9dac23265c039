//! The configuration of a store.

use crate::Store;
use crate::db::Db;
use crate::matrix::MatrixShape;
use coreplane_engine::{Durability, Result};
use coreplane_mkvs::{Ack, Prototype, ReadPath};
use coreplane_mvcc::MapKind;
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Placement, Repair, Tell};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The default size of a new pool: 1 GiB.
pub const SIZE_DEFAULT: u64 = 1 << 30;

/// The engine of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The log-structured hash engine, in a pool.
    #[default]
    Scmkv,
    /// The ordered engine, a B+-tree in a pool: scans in the order of keys.
    Bptree,
    /// A persistent multi-version map of NVM-Raft, in a pool: scans in the order of keys, and snapshots.
    Map(MapKind),
    /// The reference engine: a sorted map in DRAM, which has no pool and loses everything when it is dropped. For
    /// tests: in builds with the feature `model`.
    Model,
}

impl EngineChoice {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scmkv => "scmkv",
            Self::Bptree => "bptree",
            Self::Map(kind) => kind.name(),
            Self::Model => "model",
        }
    }

    /// True if its stores have access in key order.
    pub fn is_ordered(self) -> bool {
        match self {
            Self::Scmkv => false,
            Self::Bptree | Self::Map(_) | Self::Model => true,
        }
    }
}

/// `scmkv`, `bptree`, `list` or `cow-tree`; with the feature `model`, `model`.
impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "scmkv" => Ok(Self::Scmkv),
            "bptree" => Ok(Self::Bptree),
            "list" => Ok(Self::Map(MapKind::List)),
            "cow-tree" => Ok(Self::Map(MapKind::CowTree)),
            "model" if cfg!(feature = "model") => Ok(Self::Model),
            _ => Err(format!("`{text}` is none of scmkv, bptree, list and cow-tree")),
        }
    }
}

/// The configuration of a store. [`StoreConfig::at`] begins one.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) engine: Option<EngineChoice>,
    pub(crate) media: MediaChoice,
    pub(crate) page_size: Option<u32>,
    pub(crate) fan_out: Option<u32>,
    pub(crate) placement: Placement,
    pub(crate) durability: Durability,
    pub(crate) background: bool,
    pub(crate) check_reads: bool,
    pub(crate) matrix: Option<MatrixShape>,
    pub(crate) ack: Option<Ack>,
    pub(crate) prototype: Option<Prototype>,
    pub(crate) accept_loss: bool,
    pub(crate) is_copy: bool,
    pub(crate) answers_within: Option<Duration>,
    pub(crate) read_path: ReadPath,
}

impl StoreConfig {
    /// The store in the pool at `path`, with the defaults: the engine of the pool (scmkv for a new one), the detected
    /// medium, the index where the engine works best, [`Durability::Strict`], and 1 GiB for a new pool.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            size: SIZE_DEFAULT,
            engine: None,
            media: MediaChoice::Auto,
            page_size: None,
            fan_out: None,
            placement: Placement::Auto,
            durability: Durability::Strict,
            background: true,
            check_reads: true,
            matrix: None,
            ack: None,
            prototype: None,
            accept_loss: false,
            is_copy: false,
            answers_within: coreplane_mkvs::Options::default().answers_within,
            read_path: ReadPath::default(),
        }
    }

    /// Bytes of a new pool; without meaning for an existing one.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// The engine. An existing pool must hold it.
    #[must_use]
    pub fn engine(mut self, engine: EngineChoice) -> Self {
        self.engine = Some(engine);
        self
    }

    /// The medium.
    #[must_use]
    pub fn media(mut self, media: MediaChoice) -> Self {
        self.media = media;
        self
    }

    /// Bytes of a page of a map, or of a leaf of bptree, in a new pool; they never change.
    ///
    /// For a map 4 KiB by default. A key has nearly half of that at most in a list, and a quarter in a cow-tree.
    ///
    /// For bptree a power of two from 4 KiB to 512 KiB, 16 KiB by default. As long as pages abound a leaf has at most
    /// 64 records (else 128): if it has a fifth more room than those take, it is rewritten as seldom as possible. So
    /// 16 KiB suit records of up to 200 bytes, 64 KiB those of up to 800.
    #[must_use]
    pub fn page_size(mut self, bytes: u32) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// The most entries of a node of cow-tree, in a new pool: from 4 to 256, for good; 7 by default, which is the
    /// most that a tree of NVM-Raft has (section 3.2). More entries make reads and scans of many keys faster, and
    /// each commit larger.
    #[must_use]
    pub fn fan_out(mut self, entries: u32) -> Self {
        self.fan_out = Some(entries);
        self
    }

    /// The place of the index of a new pool; it never changes. Only for scmkv: the inner nodes of bptree are in DRAM.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Whether an opened store stays unchanged: all changes (its recovery too, and that of a matrix without all its
    /// devices) are made to a copy in memory, page by page, which is lost when the store is dropped. For inspection
    /// only.
    #[must_use]
    pub fn copy(mut self, is_copy: bool) -> Self {
        self.is_copy = is_copy;
        self
    }

    /// When a write is durable, unless the write itself states otherwise.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Whether threads clean and checkpoint beside the caller's. A program that makes a few calls and ends needs
    /// none.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Whether a read checks the record's checksum before it shows it, so that damage at rest is an error and never a
    /// wrong value; it does by default. Without it a read of 100 bytes takes some 10 ns less, and may show damage
    /// that `verify` and the scrub have not found yet.
    #[must_use]
    pub fn check_reads(mut self, check_reads: bool) -> Self {
        self.check_reads = check_reads;
        self
    }

    /// Makes a matrix of devices: the path is a directory with a pool for each, `g0d0` and so on, of
    /// [`StoreConfig::size`] bytes each, with the engine bptree unless another is asked for. A directory that holds a
    /// matrix is opened with the shape that it has.
    #[must_use]
    pub fn matrix(mut self, shape: MatrixShape) -> Self {
        self.matrix = Some(shape);
        self
    }

    /// How many copies a write to a matrix waits for. An existing matrix must have been made so.
    #[must_use]
    pub fn ack(mut self, ack: Ack) -> Self {
        self.ack = Some(ack);
        self
    }

    /// The paper's prototype that a matrix follows: how its reads are served. `mkvs-ekv` is one device, whatever
    /// shape is given. An existing matrix must have been made so.
    #[must_use]
    pub fn prototype(mut self, prototype: Prototype) -> Self {
        self.prototype = Some(prototype);
        self
    }

    /// Opens a matrix even if only missing devices may have some acknowledged writes: these are lost then. A repair takes
    /// a device of a matrix, although its peers lose what it gives up.
    #[must_use]
    pub fn accept_loss(mut self, accept_loss: bool) -> Self {
        self.accept_loss = accept_loss;
        self
    }

    /// How long a device of a matrix may take for one call in its own thread, before it is left out as failed; none:
    /// for ever. Half a minute by default.
    #[must_use]
    pub fn answers_within(mut self, answers_within: Option<Duration>) -> Self {
        self.answers_within = answers_within;
        self
    }

    /// The path of reads to a device of a matrix: in the caller's thread, or through its ring.
    #[must_use]
    pub fn read_path(mut self, path: ReadPath) -> Self {
        self.read_path = path;
        self
    }

    /// The path of the pool.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the pool, where no file may exist yet, and opens it. Its directory must exist.
    ///
    /// # Errors
    /// [`coreplane_engine::Error::Unusable`] or [`coreplane_engine::Error::Io`] if a file exists, its directory does
    /// not, the file system is full, or the medium is not the one asked for.
    pub fn create(&self) -> Result<Store> {
        Store::create(self)
    }

    /// Opens the pool, after recovery if it was not closed.
    ///
    /// # Errors
    /// As [`StoreConfig::create`], and the errors of a recovery.
    pub fn open(&self) -> Result<Store> {
        Store::open(self)
    }

    /// Makes each device of the matrix at the path at least `size` bytes large. The matrix is first opened and
    /// closed, so that all devices are level; it must not be open elsewhere meanwhile. If the call is cut off, some
    /// devices have grown, and the same call continues.
    ///
    /// # Errors
    /// As [`StoreConfig::open`]; [`coreplane_engine::Error::NoSpace`].
    pub fn grow_devices(&self, size: u64) -> Result<()> {
        crate::admin_job::grow_devices(self, size)
    }

    /// Repairs the pool, as far as it is damaged, and opens it. `tell` is called with each damage and its loss,
    /// before anything is given up for it; that a file got its length back, or a copy of the root was restored from the
    /// other one, is told afterwards. A sound pool is left as it is: then there are no findings.
    ///
    /// # Errors
    /// As [`StoreConfig::open`], for damage that cannot be repaired: of the pool's header, of both copies of its
    /// root, of the table with the state of each page. [`coreplane_engine::Error::NoSpace`] if the pool has no free
    /// page for the repair. [`coreplane_engine::Error::Unusable`] for a device of a matrix, unless losses are accepted.
    pub fn repair(&self, tell: Tell<'_>) -> Result<(Store, Repair)> {
        Store::repair(self, tell)
    }

    /// Opens the pool if there is one, else creates it.
    ///
    /// # Errors
    /// As [`StoreConfig::create`] and [`StoreConfig::open`].
    pub fn open_or_create(&self) -> Result<Store> {
        let is_there = match self.matrix {
            Some(_) => crate::matrix::is_matrix(&self.path),
            None => self.path.exists(),
        };
        if self.engine != Some(EngineChoice::Model) && is_there {
            return self.open();
        }
        self.create()
    }

    /// As [`StoreConfig::create`]: the store as a map ([`Db`]).
    ///
    /// # Errors
    /// As [`StoreConfig::create`].
    pub fn create_db(&self) -> Result<Db> {
        Db::of(self, self.create()?)
    }

    /// As [`StoreConfig::open`]: the store as a map ([`Db`]).
    ///
    /// # Errors
    /// As [`StoreConfig::open`]; [`coreplane_engine::Error::Unusable`] for one device of a matrix, whose peers would
    /// not have the writes to it.
    pub fn open_db(&self) -> Result<Db> {
        Db::of(self, self.open()?)
    }

    /// As [`StoreConfig::open_or_create`]: the store as a map ([`Db`]).
    ///
    /// # Errors
    /// As [`StoreConfig::create_db`] and [`StoreConfig::open_db`].
    pub fn open_or_create_db(&self) -> Result<Db> {
        Db::of(self, self.open_or_create()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_no_engine_of_a_release() {
        assert_eq!("scmkv".parse(), Ok(EngineChoice::Scmkv));
        assert_eq!("model".parse::<EngineChoice>().is_ok(), cfg!(feature = "model"));
        let config = StoreConfig::at("/nowhere").engine(EngineChoice::Model);
        assert_eq!(config.create().is_ok(), cfg!(feature = "model"));
    }
}
