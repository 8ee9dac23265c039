//! redb: a transaction a write, a transaction a look.

use crate::adapter::{Adapter, get_by_batch};
use crate::{Room, Safety, failed};
use coreplane_bench::{Result, Session};
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, StorageBackend, TableDefinition};
use serde_json::{Value, json};
use std::io;
use std::path::Path;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// A file whose syncs do nothing: what is written is the kernel's and survives a kill.
#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    // tidy-allow: persistence: a peer's file, left unsynced on purpose
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

pub(crate) struct Redb {
    database: Database,
    safety: Safety,
    cache: usize,
}

impl Redb {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
        let cache = usize::try_from(room.cache()).unwrap_or(usize::MAX);
        let path = directory.join("redb");
        let mut builder = Builder::new();
        builder.set_cache_size(cache);
        let database = match safety {
            Safety::Power => builder.create(path),
            Safety::Kill => {
                let file = std::fs::File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(path)
                    .map_err(failed)?;
                let backend = FileBackend::new(file).map_err(failed)?;
                builder.create_with_backend(Unsynced(backend))
            }
        }
        .map_err(failed)?;
        let peer = Self { database, safety, cache };
        // Reads of a table that was never made are errors.
        let transaction = peer.database.begin_write().map_err(failed)?;
        transaction.open_table(TABLE).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(peer)
    }
}

impl Adapter for Redb {
    type Access<'a> = &'a Self;
    const BATCHES: bool = true;

    fn name(&self) -> &'static str {
        "redb"
    }

    fn settings(&self) -> Value {
        let backend = match self.safety {
            Safety::Kill => "file, syncs left out",
            Safety::Power => "file",
        };
        json!({
            "cache": self.cache,
            "durability": "Immediate",
            "backend": backend,
            "scans": "a transaction and a range each",
        })
    }

    fn access(&self) -> Result<Self::Access<'_>> {
        Ok(self)
    }
}

impl Session for &Redb {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        get_by_batch(self, key, visit)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_all(&[(key, value)])
    }

    /// All in one transaction.
    fn put_all(&mut self, records: &[(&[u8], &[u8])]) -> Result<()> {
        let transaction = self.database.begin_write().map_err(failed)?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            for (key, value) in records {
                table.insert(*key, *value).map_err(failed)?;
            }
        }
        transaction.commit().map_err(failed)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        for (index, key) in keys.iter().enumerate() {
            if let Some(value) = table.get(key).map_err(failed)? {
                visit(index, value.value());
            }
        }
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let table = transaction.open_table(TABLE).map_err(failed)?;
        for record in table.range(start..).map_err(failed)?.take(limit) {
            let (key, value) = record.map_err(failed)?;
            visit(key.value(), value.value());
        }
        Ok(())
    }
}
