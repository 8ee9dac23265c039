//! `LevelDB`, Debian's build.

use crate::adapter::Adapter;
use crate::{Error, Room, Safety};
use coreplane_bench::{Result, Session};
use coreplane_bench_peers_bindings::leveldb::{Settings, Store, version};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct LevelDb {
    store: Store,
    settings: Settings,
}

impl LevelDb {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
        let settings = Settings {
            cache: usize::try_from(room.cache()).unwrap_or(usize::MAX),
            write_buffer: 64 << 20,
            file_size: 32 << 20,
            bloom_bits: 10,
            sync: safety == Safety::Power,
        };
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings })
    }
}

impl Adapter for LevelDb {
    type Access<'a> = &'a Self;

    fn name(&self) -> &'static str {
        "leveldb"
    }

    fn settings(&self) -> Value {
        json!({
            "library": format!("libleveldb {} (Debian)", version()),
            "block_cache": self.settings.cache,
            "write_buffer": self.settings.write_buffer,
            "max_file_size": self.settings.file_size,
            "bloom_bits_per_key": self.settings.bloom_bits,
            "compression": "none",
            "sync": self.settings.sync,
            "scans": "an iterator each",
        })
    }

    fn access(&self) -> Result<Self::Access<'_>> {
        Ok(self)
    }
}

impl Session for &LevelDb {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.store.get(key, visit).map_err(Error::Target)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(Error::Target)
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
