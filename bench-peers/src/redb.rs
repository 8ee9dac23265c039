//! redb: a transaction a write, a transaction a look.

use crate::memory::Meter;
use crate::{Peer, Room, Safety, failed, no_order};
use coreplane_bench::{Costs, Result, Session, Target};
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
    meter: Meter,
}

impl Redb {
    pub(crate) fn open(directory: &Path, safety: Safety, room: Room) -> Result<Self> {
        let cache = usize::try_from(room.cache()).unwrap_or(usize::MAX);
        let meter = Meter::new();
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
        let peer = Self { database, safety, cache, meter };
        // Reads of a table that was never made are errors.
        let transaction = peer.database.begin_write().map_err(failed)?;
        transaction.open_table(TABLE).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(peer)
    }
}

impl Peer for Redb {
    fn settings(&self) -> Value {
        let backend = match self.safety {
            Safety::Kill => "file, syncs left out",
            Safety::Power => "file",
        };
        json!({"cache": self.cache, "durability": "Immediate", "backend": backend})
    }
}

impl Target for Redb {
    fn name(&self) -> String {
        "redb".to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { peer: self, syncs: 0 }))
    }

    fn costs(&self) -> Costs {
        self.meter.costs()
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

struct RedbSession<'a> {
    peer: &'a Redb,
    syncs: u64,
}

impl Session for RedbSession<'_> {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut found = false;
        let mut show = |_: usize, value: &[u8]| {
            found = true;
            visit(value);
        };
        self.multi_get(&[key], &mut show)?;
        Ok(found)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.syncs += u64::from(self.peer.safety == Safety::Power);
        let transaction = self.peer.database.begin_write().map_err(failed)?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            table.insert(key, value).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.peer.database.begin_read().map_err(failed)?;
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
        _start: &[u8],
        _limit: usize,
        _visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        no_order()
    }
}

impl Drop for RedbSession<'_> {
    fn drop(&mut self) {
        self.peer.meter.add_syncs(self.syncs);
    }
}
