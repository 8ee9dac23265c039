//! A directory with a pool in it, and how stores are made and opened there.
#![allow(dead_code, reason = "each test file uses a part of it")]

use coreplane_engine::{Completion, Durability, Engine, Error, WriteOptions};
use coreplane_pmem::MediaChoice;
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes in a page of a tiny store.
pub(crate) const PAGE: u64 = 4096;

/// Options without or with a background thread.
pub(crate) fn options(background: bool) -> Options {
    Options { background, ..Options::default() }
}

/// A store whose writes are `relaxed`, with a window that does not end by itself.
pub(crate) fn relaxed() -> Options {
    let window = Duration::from_secs(10);
    Options { durability: Durability::Relaxed { window_bytes: 1 << 20, window }, ..options(false) }
}

pub(crate) fn write() -> WriteOptions {
    WriteOptions::default()
}

pub(crate) fn strict() -> WriteOptions {
    WriteOptions { durability: Some(Durability::Strict), ..write() }
}

pub(crate) fn early() -> WriteOptions {
    WriteOptions { completion: Completion::Early, ..write() }
}

/// All keys and their values, as `iterate` shows them.
pub(crate) fn contents(store: &Scmkv) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let (mut found, mut cursor) = (BTreeMap::new(), 0);
    loop {
        cursor = store.iterate(cursor, 100, &mut |entry| {
            let value = entry.record.map(|record| record.value.to_vec());
            found.insert(entry.key.to_vec(), value.unwrap_or_default());
        })?;
        if cursor == 0 {
            return Ok(found);
        }
    }
}

/// A store that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct New {
    pub(crate) size: u64,
    pub(crate) geometry: Geometry,
    pub(crate) placement: Placement,
    pub(crate) options: Options,
}

impl New {
    /// Of so many bytes in pages of the usual size, without background work.
    pub(crate) fn of_size(size: u64) -> Self {
        let geometry = Geometry::default().sized_for(size);
        Self { size, geometry, placement: Placement::Auto, options: options(false) }
    }

    /// Of so many tiny pages, the index in the pool, without background work.
    pub(crate) fn tiny(pages: u64) -> Self {
        let placement = Placement::Pool;
        Self { size: pages * PAGE, geometry: Geometry::TINY, placement, options: options(false) }
    }

    pub(crate) fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    pub(crate) fn with(self, options: Options) -> Self {
        Self { options, ..self }
    }
}

/// A directory for one pool, and the medium that it is on.
#[derive(Debug)]
pub(crate) struct Home {
    directory: tempfile::TempDir,
    media: MediaChoice,
}

impl Home {
    /// In memory: a fence is an instruction.
    pub(crate) fn in_memory() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        Self { directory, media: MediaChoice::Auto }
    }

    /// On a file system: a fence is a sync.
    pub(crate) fn file_in_memory() -> Self {
        Self { media: MediaChoice::File, ..Self::in_memory() }
    }

    pub(crate) fn on_disk() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, media: MediaChoice::File }
    }

    /// The pool.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    pub(crate) fn try_create(&self, new: New) -> Result<Scmkv, Error> {
        let New { size, geometry, placement, options } = new;
        Scmkv::create_with(&self.path(), size, geometry, self.media.clone(), placement, options)
    }

    pub(crate) fn create(&self, new: New) -> Scmkv {
        self.try_create(new).expect("create")
    }

    pub(crate) fn try_open(&self, options: Options) -> Result<Scmkv, Error> {
        Scmkv::open(&self.path(), self.media.clone(), options)
    }

    pub(crate) fn open(&self, options: Options) -> Scmkv {
        self.try_open(options).expect("open")
    }

    /// The bytes of the pool.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).expect("the pool's bytes")
    }

    /// Replaces the bytes of the closed pool by `bytes`: in place, since a file that is cut short first gets new memory.
    pub(crate) fn put_bytes(&self, bytes: &[u8]) {
        let replace = || {
            let file =
                File::options().write(true).create(true).truncate(false).open(self.path())?;
            file.write_all_at(bytes, 0)?;
            file.set_len(bytes.len() as u64)
        };
        replace().expect("write the pool's bytes");
    }
}
