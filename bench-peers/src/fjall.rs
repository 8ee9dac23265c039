//! fjall: one keyspace.

use crate::memory::Meter;
use crate::{Peer, Room, Safety, failed, no_order};
use coreplane_bench::{Costs, Result, Session, Target};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde_json::{Value, json};
use std::path::Path;

/// Bytes of a memory table.
const MEMTABLE: u64 = 128 << 20;

pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    safety: Safety,
    cache: u64,
    journal: u64,
    meter: Meter,
}

impl Fjall {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
        let meter = Meter::new();
        // Old journals are no reason to stop writers.
        let (cache, journal) = (room.cache(), room.written.max(512 << 20));
        let database = Database::builder(directory)
            .cache_size(cache)
            .max_journaling_size(journal)
            .worker_threads(2)
            .open()
            .map_err(failed)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE)
                .expect_point_read_hits(true)
        };
        let keyspace = database.keyspace("records", options).map_err(failed)?;
        Ok(Self { database, keyspace, safety, cache, journal, meter })
    }
}

impl Peer for Fjall {
    fn settings(&self) -> Value {
        json!({
            "cache": self.cache,
            "max_memtable_size": MEMTABLE,
            "max_journaling_size": self.journal,
            "worker_threads": 2,
            "expect_point_read_hits": true,
            "compression": "none",
            "persist": if self.safety == Safety::Power { "SyncData at each write" } else { "Buffer" },
        })
    }
}

impl Target for Fjall {
    fn name(&self) -> String {
        "fjall".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { peer: self, syncs: 0 }))
    }

    fn costs(&self) -> Costs {
        self.meter.costs()
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct FjallSession<'a> {
    peer: &'a Fjall,
    syncs: u64,
}

impl Session for FjallSession<'_> {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.peer.keyspace.get(key).map_err(failed)?;
        if let Some(value) = &value {
            visit(value);
        }
        Ok(value.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.peer.keyspace.insert(key, value).map_err(failed)?;
        if self.peer.safety == Safety::Power {
            self.syncs += 1;
            self.peer.database.persist(PersistMode::SyncData).map_err(failed)?;
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

impl Drop for FjallSession<'_> {
    fn drop(&mut self) {
        self.peer.meter.add_syncs(self.syncs);
    }
}
