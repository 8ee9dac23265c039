//! What an engine tells of itself.

/// Counters since the store was opened, and sizes as they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that found a record.
    pub hits: u64,
    /// Reads that found none.
    pub misses: u64,
    /// Records written.
    pub puts: u64,
    /// Records deleted.
    pub deletes: u64,
    /// Batches applied.
    pub batches: u64,
    /// Bytes of keys and values given to writes.
    pub user_bytes_written: u64,
    /// Bytes appended to logs for them.
    pub log_bytes_written: u64,
    /// Bytes that the cleaner copied.
    pub cleaner_bytes_copied: u64,
    /// Pages that the cleaner gave back.
    pub cleaner_pages_freed: u64,
    /// Lines flushed.
    pub flushes: u64,
    /// Fences (on `file`: syncs).
    pub fences: u64,
    /// Live records, as far as counted: an engine may count them in the background after a crash.
    /// [`Engine::len`](crate::Engine::len) is exact.
    pub records: u64,
    /// Bytes of live records in the pool.
    pub live_bytes: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of the pool that are free without cleaning.
    pub free_bytes: u64,
    /// Bytes of DRAM for index and tables.
    pub dram_bytes: u64,
    /// Records removed because they had expired.
    pub expired: u64,
    /// Anything else, by name.
    pub more: Vec<(&'static str, u64)>,
    /// The devices of an engine that has several.
    pub devices: Vec<DeviceStats>,
}

/// What one device of an engine tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Its name, such as `g0d1`.
    pub name: String,
    /// Its figures, by name.
    pub figures: Vec<(&'static str, u64)>,
}

impl Stats {
    /// The figure of that name among [`Stats::more`].
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.more.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure)
    }
}

/// How far a long job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, for a person.
    pub stage: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in all; 0 if unknown.
    pub total: u64,
}

/// One thing that `verify` found wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where in the pool.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// Keys of which records were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The first of them.
    pub start: Vec<u8>,
    /// The first that is too great; none: there is none.
    pub end: Option<Vec<u8>>,
}

/// What `verify` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Live records checked.
    pub records: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// What is wrong; empty if the store is sound.
    pub damages: Vec<Damage>,
}

impl VerifyReport {
    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }
}
