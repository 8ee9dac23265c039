//! `LMDB`: a transaction a write, a renewed read transaction a look.

use crate::memory::Meter;
use crate::{Error, Peer, Room, Safety, no_order};
use coreplane_bench::{Costs, Result, Session, Target};
use coreplane_bench_peers_bindings::lmdb::{Reader, Settings, Store, version};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) struct Lmdb {
    store: Store,
    settings: Settings,
    meter: Meter,
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
        let meter = Meter::new();
        let store = Store::open(directory, &settings).map_err(Error::Target)?;
        Ok(Self { store, settings, meter })
    }
}

impl Peer for Lmdb {
    fn settings(&self) -> Value {
        json!({
            "library": format!("LMDB {} (lmdb-master-sys)", version()),
            "map_size": self.settings.map_size,
            "MDB_WRITEMAP": self.settings.write_map,
            "MDB_NOSYNC": !self.settings.sync,
            "reads": "renewed transaction; one a batch of multi_get",
        })
    }
}

impl Target for Lmdb {
    fn name(&self) -> String {
        if self.settings.write_map { "lmdb" } else { "lmdb-nomap" }.to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let reader = self.store.reader().map_err(Error::Target)?;
        Ok(Box::new(LmdbSession { peer: self, reader, syncs: 0 }))
    }

    fn costs(&self) -> Costs {
        self.meter.costs()
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct LmdbSession<'a> {
    peer: &'a Lmdb,
    reader: Reader<'a>,
    syncs: u64,
}

impl Session for LmdbSession<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut found = false;
        let mut show = |_: usize, value: &[u8]| {
            found = true;
            visit(value);
        };
        self.reader.get(&[key], &mut show).map_err(Error::Target)?;
        Ok(found)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.syncs += u64::from(self.peer.settings.sync);
        self.peer.store.put(key, value).map_err(Error::Target)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.reader.get(keys, visit).map_err(Error::Target)
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

impl Drop for LmdbSession<'_> {
    fn drop(&mut self) {
        self.peer.meter.add_syncs(self.syncs);
    }
}
