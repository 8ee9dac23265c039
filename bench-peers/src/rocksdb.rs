//! `RocksDB`, Debian's build, with its makers' preset for point lookups.

use crate::adapter::Adapter;
use crate::{Error, Room, Safety};
use coreplane_bench::{Result, Session};
use coreplane_bench_peers_bindings::rocksdb::{BATCH, Settings, Store};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct RocksDb {
    store: Store,
    settings: Settings,
}

impl RocksDb {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
        let settings = Settings {
            cache_mib: room.cache() >> 20,
            write_buffer: 128 << 20,
            write_buffers: 4,
            background: 2,
            sync: safety == Safety::Power,
        };
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings })
    }
}

impl Adapter for RocksDb {
    type Access<'a> = &'a Self;

    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn settings(&self) -> Value {
        json!({
            "library": "librocksdb (Debian)",
            "preset": "OptimizeForPointLookup: hash index in blocks, Bloom filters of 10 bits a key",
            "block_cache_mib": self.settings.cache_mib,
            "write_buffer": self.settings.write_buffer,
            "max_write_buffer_number": self.settings.write_buffers,
            "background_threads": self.settings.background,
            "compression": "none",
            "wal": true,
            "sync": self.settings.sync,
            "reads": "pinned; batched MultiGet",
            "scans": "an iterator each",
        })
    }

    fn access(&self) -> Result<Self::Access<'_>> {
        Ok(self)
    }
}

impl Session for &RocksDb {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.store.get(key, visit).map_err(Error::Target)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(Error::Target)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (at, batch) in keys.chunks(BATCH).enumerate() {
            let mut show = |index: usize, value: &[u8]| visit(at * BATCH + index, value);
            self.store.multi_get(batch, &mut show).map_err(Error::Target)?;
        }
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.store.scan(start, limit, visit).map_err(Error::Target)
    }
}
