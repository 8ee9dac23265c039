//! `LevelDB`, Debian's build.

use crate::memory::Meter;
use crate::{Error, Peer, Room, Safety, no_order};
use coreplane_bench::{Costs, Result, Session, Target};
use coreplane_bench_peers_bindings::leveldb::{Settings, Store, version};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct LevelDb {
    store: Store,
    settings: Settings,
    meter: Meter,
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
        let meter = Meter::new();
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings, meter })
    }
}

impl Peer for LevelDb {
    fn settings(&self) -> Value {
        json!({
            "library": format!("libleveldb {} (Debian)", version()),
            "block_cache": self.settings.cache,
            "write_buffer": self.settings.write_buffer,
            "max_file_size": self.settings.file_size,
            "bloom_bits_per_key": self.settings.bloom_bits,
            "compression": "none",
            "sync": self.settings.sync,
        })
    }
}

impl Target for LevelDb {
    fn name(&self) -> String {
        "leveldb".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LevelSession { peer: self, syncs: 0 }))
    }

    fn costs(&self) -> Costs {
        self.meter.costs()
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct LevelSession<'a> {
    peer: &'a LevelDb,
    syncs: u64,
}

impl Session for LevelSession<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.peer.store.get(key, visit).map_err(Error::Target)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.syncs += u64::from(self.peer.settings.sync);
        self.peer.store.put(key, value).map_err(Error::Target)
    }

    fn scan(
        &mut self,
        _start: &[u8],
        _limit: usize,
        _visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        no_order()
    }
}

impl Drop for LevelSession<'_> {
    fn drop(&mut self) {
        self.peer.meter.add_syncs(self.syncs);
    }
}
