//! fjall: one keyspace.

use crate::adapter::Adapter;
use crate::{Room, Safety, failed};
use coreplane_bench::{Result, Session};
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
}

impl Fjall {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
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
        Ok(Self { database, keyspace, safety, cache, journal })
    }
}

impl Adapter for Fjall {
    type Access<'a> = &'a Self;

    fn name(&self) -> &'static str {
        "fjall"
    }

    fn settings(&self) -> Value {
        json!({
            "cache": self.cache,
            "max_memtable_size": MEMTABLE,
            "max_journaling_size": self.journal,
            "worker_threads": 2,
            "expect_point_read_hits": true,
            "compression": "none",
            "scans": "a range each",
            "persist": if self.safety == Safety::Power { "SyncData at each write" } else { "Buffer" },
        })
    }

    fn access(&self) -> Result<Self::Access<'_>> {
        Ok(self)
    }
}

impl Session for &Fjall {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key).map_err(failed)?;
        if let Some(value) = &value {
            visit(value);
        }
        Ok(value.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value).map_err(failed)?;
        if self.safety == Safety::Power {
            self.database.persist(PersistMode::SyncData).map_err(failed)?;
        }
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for record in self.keyspace.range(start..).take(limit) {
            let (key, value) = record.into_inner().map_err(failed)?;
            visit(&key, &value);
        }
        Ok(())
    }
}
