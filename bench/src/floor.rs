//! The least that physics allows.
//!
//! Whatever a store does beside, for a put it must bring the record's bytes to the medium and
//! note where they are, and for a get it must look up where, then go there. The floor does that
//! and nothing else: no locks, no versions, no space to give back, no collisions.
//!
//! ```text
//!   index   one word a record, at a scattered place: offset of the record
//!   log     [ 20 bytes of header ][ key ][ value ] …   appended page by page
//! ```
//!
//! | phase | touches |
//! |---|---|
//! | `floor-put` | append, flush, fence; one random word of the index |
//! | `floor-overwrite` | the same, and reads the key of the old record, which comes while the new one is flushed |
//! | `floor-get` | a random word of the index, then the record: compares the key, shows the value |
//! | scan (workload `e`) | as `floor-get`, then the records that lie behind that one, one after the other |
//! | `floor-mget` | as `floor-get` for 16 at a time, each line asked for before it is needed |
//!
//! The driver makes keys and values, copies and checks what is shown, and reads the clock, here as
//! for any store. All memory is faulted in beforehand: the pool by its creation, as any pool, and
//! the index in DRAM by [`Floor::new`].
//!
//! With [`FloorIndex::Pmem`] the index lies in the pool and its line is flushed with the put
//! (the next fence covers it); with [`FloorIndex::Dram`] it lies in DRAM.
//!
//! # Stored or seen
//!
//! The floor of a put stores the index word and goes on: the word may stay in the processor's
//! store buffer, behind the fence, while the next operations run. So its operations overlap each
//! other. A store whose readers take no lock cannot do that: when a put has returned, a get on
//! any thread must find it, so the word must have left the store buffer, which is when the medium
//! has the record. [`Floor::seen`] is the floor of such a store: the same, with an exchange in
//! place of the store.
//!
//! # Where the floor is kinder or harder than a store's work
//!
//! Harder to reach: 8 bytes of index a record and no slot empty but for rounding up to a power of
//! two, where stores leave a quarter free; no checksum; one guard for a whole session, since
//! nothing is ever given back; no hash, the key's number gives each record a word of its own. Kinder:
//! every access passes the checks of `pmem`'s safe face, as all above that crate do.

use crate::record::number_of;
use crate::{Costs, Error, Plan, Report, Result, Session, Target, Workload, drive};
use coreplane_pmem::{
    Claim, CreateOptions, MediaChoice, Medium, PageWriter, Pool, Space, SpaceOptions, Volatile,
    WriteMode, epoch,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the floor's index lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorIndex {
    /// In the pool.
    Pmem,
    /// In DRAM.
    Dram,
}

/// What a floor must be able to hold.
#[derive(Debug, Clone, Copy)]
pub struct FloorRoom {
    /// Records, those included that are inserted after the load.
    pub records: u64,
    /// Records that are written, overwritten ones included.
    pub appends: u64,
}

const PAGE: u32 = 2 << 20;
/// As the header of a record of scmkv.
const HEADER: usize = 20;
const WORD: u64 = 8;

/// A log and an index, and nothing else.
#[derive(Debug)]
pub struct Floor {
    pool: Pool,
    /// Holds the index from `base` on.
    index: Arc<Space>,
    placement: FloorIndex,
    base: u64,
    /// The index has `mask + 1` words.
    mask: u64,
    /// Half of the bits of `mask`.
    shift: u32,
    next_page: AtomicU32,
    key_size: usize,
    value_size: usize,
    /// A put returns when every thread sees it.
    is_seen: bool,
}

impl Floor {
    /// A floor for `plan` in a pool at `path`, large enough for each of its phases once. The file
    /// is removed at once; its memory lasts as long as the floor.
    ///
    /// # Errors
    /// [`Error::Plan`], [`Error::Pool`].
    pub fn new(
        path: &Path,
        media: MediaChoice,
        plan: &Plan,
        placement: FloorIndex,
    ) -> Result<Self> {
        let room = FloorRoom { records: plan.records, appends: plan.records + plan.operations };
        Self::with_room(path, media, plan, placement, room)
    }

    /// As [`Floor::new`], with other room.
    ///
    /// # Errors
    /// As [`Floor::new`].
    pub fn with_room(
        path: &Path,
        media: MediaChoice,
        plan: &Plan,
        placement: FloorIndex,
        room: FloorRoom,
    ) -> Result<Self> {
        plan.check()?;
        let FloorRoom { records, appends } = room;
        let words = records.next_power_of_two();
        let index_pages = (words * WORD).div_ceil(u64::from(PAGE));
        let record = (HEADER + plan.key_size + plan.value_size).next_multiple_of(8) as u64;
        let in_page = u64::from(PAGE) / record;
        if in_page == 0 {
            return Err(Error::Plan(format!("a record of {record} bytes is over {PAGE}")));
        }
        // Each thread of each phase begins a page.
        let log_pages = appends.div_ceil(in_page) + 16 * plan.threads as u64;
        let in_pool = if placement == FloorIndex::Pmem { index_pages } else { 0 };
        let options = CreateOptions {
            size: (1 + in_pool + log_pages) * u64::from(PAGE),
            media,
            page_size: PAGE,
            kind: "floor".to_owned(),
            parameters: [0; 8],
        };
        let pool = Pool::create(path, &options)?;
        std::fs::remove_file(path)
            .map_err(|error| Error::Plan(format!("remove {}: {error}", path.display())))?;
        let (index, first) = match placement {
            FloorIndex::Pmem => (Arc::clone(pool.space()), 1),
            FloorIndex::Dram => {
                let len = index_pages * u64::from(PAGE);
                let space = Space::dram(
                    len,
                    &SpaceOptions { page_size: PAGE, reserve: len, own_epochs: false },
                )
                .map_err(|error| Error::Plan(format!("{len} bytes of DRAM: {error}")))?;
                space.populate(0, len);
                (Arc::new(space), 0)
            }
        };
        for page in first..first + index_pages as u32 {
            if !index.claim_words(page, Claim::Words) {
                return Err(Error::Plan(format!("page {page} of the index is not free")));
            }
        }
        Ok(Self {
            index,
            placement,
            base: u64::from(first) * u64::from(PAGE),
            mask: words - 1,
            shift: words.ilog2().div_ceil(2),
            next_page: AtomicU32::new(1 + in_pool as u32),
            key_size: plan.key_size,
            value_size: plan.value_size,
            is_seen: false,
            pool,
        })
    }

    /// Whether its puts return when every thread sees them, not before.
    #[must_use]
    pub fn seen(self, is_seen: bool) -> Self {
        Self { is_seen, ..self }
    }

    /// What its pool rests on.
    pub fn medium(&self) -> Medium {
        self.pool.medium()
    }

    /// Runs every phase of the floor once; of the floor whose puts are seen, those that put.
    ///
    /// # Errors
    /// As [`drive::run`].
    pub fn run(&self, plan: &Plan) -> Result<Vec<Report>> {
        let phases = [
            (Workload::Load, "floor-put"),
            (Workload::Overwrite, "floor-overwrite"),
            (Workload::C, "floor-get"),
            (Workload::Mget, "floor-mget"),
        ];
        let run = |(workload, name): (Workload, &str)| {
            let phase = format!("{name}{}", if self.is_seen { "-seen" } else { "" });
            Ok(Report { phase, ..drive::run(self, plan, workload)? })
        };
        let is_meant = |(workload, _): &(Workload, &str)| {
            !self.is_seen || matches!(workload, Workload::Load | Workload::Overwrite)
        };
        phases.into_iter().filter(is_meant).map(run).collect()
    }

    /// Where the word of `key` is: a word of its own for every record, as no index has it.
    #[inline]
    fn place(&self, key: &[u8]) -> u64 {
        let number = number_of(key).unwrap_or_default();
        // Multiplication by an odd number and a shift from the upper half are bijections.
        let mut at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
        at ^= at >> self.shift;
        at = at.wrapping_mul(0xd6e8_feb8_6659_fd93) & self.mask;
        self.base + at * WORD
    }

    #[inline]
    fn load(&self, place: u64) -> u64 {
        self.index.word::<Volatile>(place).map_or(0, |word| word.load())
    }

    /// Shows the value at `offset` if its key is `key`.
    #[inline]
    fn visit(
        &self,
        guard: &epoch::Guard,
        offset: u64,
        key: &[u8],
        show: impl FnOnce(&[u8]),
    ) -> bool {
        let len = (HEADER + self.key_size + self.value_size) as u64;
        let Some(record) = self.pool.space().bytes(guard, offset, len) else {
            return false;
        };
        let (stored, value) = record[HEADER..].split_at(self.key_size);
        let is_its = is_same(stored, key);
        if is_its {
            show(value);
        }
        is_its
    }
}

/// True if the keys are the same, without a call.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let ((words, rest), (others, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    one.len() == other.len()
        && words.iter().zip(others).all(|(one, other)| one == other)
        && (rest.is_empty() || rest == other_rest)
}

impl Target for Floor {
    fn name(&self) -> String {
        let placement = match self.placement {
            FloorIndex::Pmem => "floor-pmem",
            FloorIndex::Dram => "floor-dram",
        };
        format!("{placement}{}", if self.is_seen { "-seen" } else { "" })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FloorSession { floor: self, writer: None, version: 0, guard: epoch::pin() }))
    }

    /// What was appended one after the other stands for neighbours.
    fn is_ordered(&self) -> bool {
        true
    }

    fn keeps_order(&self) -> bool {
        false
    }

    fn costs(&self) -> Costs {
        let (flushes, fences) = self.pool.space().flushes_and_fences();
        let dram_bytes = match self.placement {
            FloorIndex::Pmem => 0,
            FloorIndex::Dram => (self.mask + 1) * WORD,
        };
        Costs { flushes, fences, dram_bytes }
    }
}

struct FloorSession<'a> {
    floor: &'a Floor,
    writer: Option<PageWriter>,
    version: u64,
    /// Held throughout: no page of the floor is ever used again.
    guard: epoch::Guard,
}

impl FloorSession<'_> {
    /// Appends the parts to the page in hand, or to a fresh one: durable with the next fence.
    #[inline]
    fn append(&mut self, parts: &[&[u8]]) -> Result<(u64, &mut PageWriter)> {
        let past_caches = self.floor.pool.space().append_mode() == WriteMode::NonTemporal;
        let append = |writer: &mut PageWriter| {
            if past_caches { writer.append_nt(parts) } else { writer.append(parts) }
        };
        let mut at = self.writer.as_mut().and_then(append);
        if at.is_none() {
            let page = self.floor.next_page.fetch_add(1, Ordering::Relaxed);
            self.writer = self.floor.pool.space().claim_log(page);
            at = self.writer.as_mut().and_then(append);
        }
        if !past_caches && let (Some(at), Some(writer)) = (at, &self.writer) {
            writer.flush_from(at);
        }
        match (at, self.writer.as_mut()) {
            (Some(at), Some(writer)) => Ok((at, writer)),
            _ => Err(Error::Target("the pool of the floor is full".to_owned())),
        }
    }
}

impl Session for FloorSession<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let offset = self.floor.load(self.floor.place(key));
        Ok(offset != 0 && self.floor.visit(&self.guard, offset, key, visit))
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let floor = self.floor;
        if key.len() != floor.key_size || value.len() != floor.value_size {
            return Err(Error::Target("the floor's records have one size".to_owned()));
        }
        let place = floor.place(key);
        floor.index.prefetch(place);
        self.version += 1;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&place.to_le_bytes());
        header[12..].copy_from_slice(&self.version.to_le_bytes());
        let (offset, writer) = self.append(&[&header, key, value])?;
        let Some(word) = floor.index.word::<Volatile>(place) else {
            return Err(Error::Target("the floor's index is too small".to_owned()));
        };
        let old = word.load();
        if old != 0 {
            floor.pool.space().prefetch(old);
        }
        floor.pool.space().fence().map_err(|error| Error::Target(error.to_string()))?;
        writer.publish();
        if old != 0 && !floor.visit(&self.guard, old, key, |_| ()) {
            return Err(Error::Target("the floor's index names another record".to_owned()));
        }
        if floor.is_seen {
            word.store_ahead_of_loads(offset);
        } else {
            word.store(offset);
        }
        word.flush();
        Ok(())
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let mut at = [0; Workload::BATCH];
        for (from, batch) in keys.chunks(Workload::BATCH).enumerate() {
            for (key, place) in batch.iter().zip(&mut at) {
                *place = self.floor.place(key);
                self.floor.index.prefetch(*place);
            }
            for offset in at.iter_mut().take(batch.len()) {
                *offset = self.floor.load(*offset);
                let len = HEADER + self.floor.key_size + self.floor.value_size;
                for line in (0..len as u64).step_by(64) {
                    self.floor.pool.space().prefetch(*offset + line);
                }
            }
            for (index, (key, offset)) in batch.iter().zip(at).enumerate() {
                if offset != 0 {
                    self.floor.visit(&self.guard, offset, key, |value| {
                        visit(from * Workload::BATCH + index, value);
                    });
                }
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
        let floor = self.floor;
        let len = (HEADER + floor.key_size + floor.value_size) as u64;
        let mut offset = floor.load(floor.place(start));
        for _ in 0..limit {
            let record = match floor.pool.space().bytes(&self.guard, offset, len) {
                Some(record) => record,
                // The page ends: the first record of the next one lies at its beginning.
                None => {
                    offset = (offset / u64::from(PAGE) + 1) * u64::from(PAGE);
                    match floor.pool.space().bytes(&self.guard, offset, len) {
                        Some(record) => record,
                        None => break,
                    }
                }
            };
            let (key, value) = record[HEADER..].split_at(floor.key_size);
            visit(key, value);
            offset += len.next_multiple_of(8);
        }
        Ok(())
    }
}
