//! Filters that a clean close keeps, so that the next open need not read every key.
//!
//! ```text
//!   close   head, not sealed ─▶ counters, a few records ─▶ sync ─▶ head, sealed ─▶ records: clean
//!   open    records: clean, of this epoch? counters as their checksum says? ─▶ filter
//!           ─▶ records: not clean, the next epoch ─▶ the snapshot is deleted
//! ```
//!
//! A snapshot has the epoch of the close, and every open raises the epoch durably before anything is written.
//! So a snapshot is never used twice, whatever is left of it. It is on one member of the group; if that
//! member is missing, or has no space, keys are read.

use crate::device::{Device, Guarded, is_damage};
use crate::group::Group;
use crate::keyspace::intent::{filter_key, filter_part_key};
use crate::rebuild::filter_resize::Filters;
use coreplane_engine::{Completion, Durability, Error, Result, WriteOptions};
use coreplane_pmem::mutant;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// The most bytes of counters in a record.
const CHUNK: usize = 256 << 10;

/// The device must have so many times the snapshot's size free.
const FREE: u64 = 2;

/// The description of the counters.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    version: u32,
    /// The epoch of the membership records at the close.
    epoch: u64,
    /// All records of the snapshot are there.
    is_sealed: bool,
    chunks: u64,
    chunk_len: usize,
    /// The filter's capacity; and the number of counted keys.
    capacity: u64,
    keys: u64,
    /// The checksum of the counters.
    checksum: u64,
    /// The checksum of the fields above: with another capacity the same counters would deny existing keys.
    #[serde(default)]
    head_checksum: u64,
}

/// A head of the first version had no checksum, and in the second keys had other lines: such snapshots are not used.
const VERSION: u32 = 3;

impl Head {
    /// The checksum that the head must have.
    fn sum(&self) -> u64 {
        let Self { version, epoch, is_sealed, chunks, chunk_len, capacity, keys, checksum, .. } =
            *self;
        let words = [u64::from(version), epoch, u64::from(is_sealed), chunks, chunk_len as u64];
        let mut sum = Xxh3::new();
        for word in words.into_iter().chain([capacity, keys, checksum]) {
            sum.update(&word.to_le_bytes());
        }
        sum.digest()
    }

    fn write(&self, engine: &Guarded) -> Result<()> {
        let sealed = Self { head_checksum: self.sum(), ..*self };
        let text =
            serde_json::to_vec(&sealed).map_err(|error| Error::Unusable(error.to_string()))?;
        let durability = Some(Durability::Strict);
        let options = WriteOptions { durability, ..WriteOptions::default() };
        engine.call(|it| it.put(&filter_key(), &text, &options)).map(|_| ())
    }

    /// The head, of whatever version, if its checksum is right.
    fn of(text: Option<Vec<u8>>) -> Option<Self> {
        let head = text.and_then(|text| serde_json::from_slice(&text).ok());
        head.filter(|head: &Self| head.sum() == head.head_checksum)
    }
}

/// Deletes the snapshot on a device, whole or not.
pub(crate) fn drop_all(engine: &Guarded) -> Result<()> {
    let head = match engine.call(|it| it.get(&filter_key())) {
        Ok(None) => return Ok(()),
        Err(error) if is_damage(&error) => None,
        head => Head::of(head?),
    };
    let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    // If the head cannot be read, all chunks that exist.
    let chunks = head.map_or(u64::MAX, |head| head.chunks);
    for number in 0..chunks {
        let outcome = engine.call(|it| it.delete(&filter_part_key(number), &early))?;
        if chunks == u64::MAX && outcome.written().is_none() {
            break;
        }
    }
    // The head last: it states which chunks there are.
    engine.call(|it| it.sync())?;
    engine.call(|it| it.delete(&filter_key(), &WriteOptions::default())).map(|_| ())
}

/// Writes a snapshot to a device; durable when it returns.
fn write(group: &Group, engine: &Guarded, epoch: u64) -> Result<()> {
    let image = group.filter.image();
    let chunk_len = CHUNK.min(engine.tell(|it| it.limits()).value_len_max) / 64 * 64;
    if chunk_len == 0 || engine.tell(|it| it.stats()).free_bytes < FREE * image.len_bytes() {
        return Ok(());
    }
    let (capacity, keys) = (image.capacity(), image.len());
    let chunks = image.len_bytes().div_ceil(chunk_len as u64);
    let (version, is_sealed, checksum, head_checksum) = (VERSION, false, 0, 0);
    let mut head = Head {
        version,
        epoch,
        is_sealed,
        chunks,
        chunk_len,
        capacity,
        keys,
        checksum,
        head_checksum,
    };
    head.write(engine)?;
    let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    let (mut sum, mut bytes) = (Xxh3::new(), Vec::with_capacity(chunk_len));
    for number in 0..chunks {
        image.read(number * chunk_len as u64, chunk_len, &mut bytes);
        sum.update(&bytes);
        let _outcome = engine.call(|it| it.put(&filter_part_key(number), &bytes, &early))?;
    }
    engine.call(|it| it.sync())?;
    (head.is_sealed, head.checksum) = (true, sum.digest());
    head.write(engine)
}

/// Restores the filter of a group from a snapshot of this epoch; false if the device has none.
fn read(group: &Group, engine: &Guarded, epoch: u64) -> Result<bool> {
    let Some(head) = Head::of(engine.call(|it| it.get(&filter_key()))?) else { return Ok(false) };
    let is_current = head.version == VERSION || mutant!("mkvs.kept.version");
    if !is_current || !head.is_sealed || head.epoch != epoch {
        return Ok(false);
    }
    let Ok(rebuild) = group.filter.rebuild(head.capacity) else { return Ok(false) };
    let mut sum = Xxh3::new();
    for number in 0..head.chunks {
        let bytes = engine.call(|it| it.get(&filter_part_key(number)))?;
        let Some(bytes) = bytes.filter(|it| it.len() <= head.chunk_len) else { return Ok(false) };
        sum.update(&bytes);
        if !rebuild.restore(number * head.chunk_len as u64, &bytes) {
            return Ok(false);
        }
    }
    if sum.digest() != head.checksum {
        return Ok(false);
    }
    rebuild.restored(head.keys);
    rebuild.finish();
    Ok(true)
}

impl Filters {
    /// Keeps the filters of a matrix that is being closed. Without a snapshot, the next open reads the keys.
    pub(crate) fn keep_filters(&self, epoch: u64) {
        let worth = |group: &&std::sync::Arc<Group>| group.filter.len() >= self.keeps_from;
        // A filter that lacks keys is not asked, and not kept.
        let is_listed = |group: &&std::sync::Arc<Group>| group.is_listed.load(Ordering::Acquire);
        for group in self.keyspace.groups.iter().filter(worth).filter(is_listed) {
            let Ok(device) = group.primary() else { continue };
            if write(group, &device.engine, epoch).is_err() {
                // Perhaps there was no space.
                let _dropped = drop_all(&device.engine).is_ok();
            }
        }
    }

    /// Makes the filters: from snapshots of the close with this epoch, or from all keys, now or later.
    ///
    /// # Errors
    /// As the engines, and if there is no memory.
    pub(crate) fn make_filters(
        &self,
        kept_at: Option<u64>,
        (threads, lists_at_open): (usize, u64),
    ) -> Result<()> {
        let groups: Vec<_> = self.keyspace.groups.iter().collect();
        let made = side_by_side(&groups, threads, |group| {
            let mut members = group.of(group.members());
            let is_kept = kept_at.is_some_and(|epoch| {
                let read = |device: &std::sync::Arc<Device>| read(group, &device.engine, epoch);
                members.any(|device| matches!(read(device), Ok(true)))
            });
            if is_kept { Ok(()) } else { self.fill_now_or_later(group, lists_at_open) }
        });
        made.into_iter().collect::<Result<Vec<()>>>()?;
        let mut members = self.keyspace.groups.iter().flat_map(|group| group.of(group.members()));
        members.try_for_each(|device| drop_all(&device.engine))
    }
}

/// Calls a function for each item, with at most so many threads; returns the results in the order of the items.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    make: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads < 2 {
        return items.iter().map(make).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let mut made = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return made };
            made.push((at, make(item)));
        }
    };
    let mut made: Vec<(usize, R)> = std::thread::scope(|scope| {
        // If the system gives fewer threads, those do everything.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, take).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let mut made = take();
        for other in others {
            made.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        made
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_side_by_side_is_in_order() {
        let items: Vec<u64> = (0..100).collect();
        for threads in [0, 1, 3] {
            let made = side_by_side(&items, threads, |item| item * 2);
            assert!(made.iter().copied().eq((0..100).map(|it| it * 2)));
        }
    }
}
