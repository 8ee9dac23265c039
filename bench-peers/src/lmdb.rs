//! `LMDB`: a transaction a write, a renewed read transaction a look.

use crate::adapter::{Adapter, get_by_batch};
use crate::{Error, Room, Safety};
use coreplane_bench::{Result, Session};
use coreplane_bench_peers_bindings::lmdb::{Reader, Settings, Store, version};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct Lmdb {
    store: Store,
    settings: Settings,
}

impl Lmdb {
    pub(crate) fn open(
        directory: &Path,
        safety: Safety,
        write_map: bool,
        room: Room,
    ) -> Result<Self> {
        // Pages half full, and those that a reader holds back.
        let map_size = (room.data * 4 + (256 << 20)).next_multiple_of(1 << 20);
        let settings = Settings {
            map_size: usize::try_from(map_size).unwrap_or(usize::MAX),
            write_map,
            sync: safety == Safety::Power,
        };
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings })
    }
}

impl Adapter for Lmdb {
    type Access<'a> = LmdbAccess<'a>;

    fn name(&self) -> &'static str {
        if self.settings.write_map { "lmdb" } else { "lmdb-nomap" }
    }

    fn settings(&self) -> Value {
        json!({
            "library": format!("LMDB {} (lmdb-master-sys)", version()),
            "map_size": self.settings.map_size,
            "MDB_WRITEMAP": self.settings.write_map,
            "MDB_NOSYNC": !self.settings.sync,
            "reads": "renewed transaction; one a batch of multi_get",
            "scans": "renewed transaction and cursor",
        })
    }

    fn access(&self) -> Result<Self::Access<'_>> {
        let reader = self.store.reader().map_err(Error::Target)?;
        Ok(LmdbAccess { store: &self.store, reader })
    }
}

pub(crate) struct LmdbAccess<'a> {
    store: &'a Store,
    reader: Reader<'a>,
}

impl Session for LmdbAccess<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        get_by_batch(self, key, visit)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(Error::Target)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.reader.get(keys, visit).map_err(Error::Target)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.reader.scan(start, limit, visit).map_err(Error::Target)
    }
}
