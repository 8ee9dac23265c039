//! `RocksDB`, Debian's build, with its makers' preset for point lookups.

use crate::memory::Meter;
use crate::{Error, Peer, Room, Safety, no_order};
use coreplane_bench::{Costs, Result, Session, Target};
use coreplane_bench_peers_bindings::rocksdb::{BATCH, Settings, Store};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct RocksDb {
    store: Store,
    settings: Settings,
    meter: Meter,
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
        let meter = Meter::new();
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings, meter })
    }
}

impl Peer for RocksDb {
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
        })
    }
}

impl Target for RocksDb {
    fn name(&self) -> String {
        "rocksdb".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession { peer: self, syncs: 0 }))
    }

    fn costs(&self) -> Costs {
        self.meter.costs()
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct RocksSession<'a> {
    peer: &'a RocksDb,
    syncs: u64,
}

impl Session for RocksSession<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.peer.store.get(key, visit).map_err(Error::Target)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.syncs += u64::from(self.peer.settings.sync);
        self.peer.store.put(key, value).map_err(Error::Target)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (at, batch) in keys.chunks(BATCH).enumerate() {
            let mut show = |index: usize, value: &[u8]| visit(at * BATCH + index, value);
            self.peer.store.multi_get(batch, &mut show).map_err(Error::Target)?;
        }
        Ok(())
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

impl Drop for RocksSession<'_> {
    fn drop(&mut self) {
        self.peer.meter.add_syncs(self.syncs);
    }
}
