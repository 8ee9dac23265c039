//! Watches of absent keys.
//!
//! `WATCH` remembers the sequence of a key's record; after any change of the key its record has another sequence, or
//! there is none. One history leaves no trace in the record: absent when watched, created, and deleted again before
//! `EXEC`. So an absent key that is being watched is entered here, and every write checks first whether anything is
//! entered at all: one load of a counter that hardly ever changes.
//!
//! A read of many keys in slices needs more, for a short time: the keys that are written meanwhile. [`Marks`] record
//! them, not by key but by bucket of keys, so that a mark takes one bit and not every key has to be entered.

use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The absent keys that clients watch.
#[derive(Debug, Default)]
pub(crate) struct WatchedAbsences {
    /// The number of keys entered, and of marks that may still be needed.
    count: AtomicUsize,
    keys: Mutex<HashMap<Vec<u8>, Watched>>,
    marks: Mutex<Vec<Weak<Marks>>>,
}

#[derive(Debug, Default)]
struct Watched {
    watchers: usize,
    writes: u64,
}

impl WatchedAbsences {
    /// Enters `key`; the number of its writes so far.
    pub(crate) fn enter(&self, key: &[u8]) -> u64 {
        let mut keys = self.keys.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let watched = keys.entry(key.to_vec()).or_default();
        watched.watchers += 1;
        watched.writes
    }

    /// Takes back one `enter`; the number of writes of the key so far.
    pub(crate) fn leave(&self, key: &[u8]) -> u64 {
        let mut keys = self.keys.lock();
        let Some(watched) = keys.get_mut(key) else {
            return u64::MAX;
        };
        let writes = watched.writes;
        watched.watchers -= 1;
        if watched.watchers == 0 {
            keys.remove(key);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
        writes
    }

    /// `key` has been written.
    pub(crate) fn written(&self, key: &[u8]) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(watched) = self.keys.lock().get_mut(key) {
            watched.writes += 1;
        }
        self.mark(&|marks| marks.mark(key));
    }

    /// Everything has been removed, or is being removed.
    pub(crate) fn cleared(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.mark(&|marks| marks.state.lock().is_all = true);
        }
    }

    fn mark(&self, mark: &dyn Fn(&Marks)) {
        self.marks.lock().retain(|wanted| match wanted.upgrade() {
            Some(marks) => {
                if !mutant!("server.marks.mark") {
                    mark(&marks);
                }
                true
            }
            // The reader that needed them has gone.
            None => {
                self.count.fetch_sub(1, Ordering::SeqCst);
                false
            }
        });
    }

    /// Marks all keys written from now on, in at least so many buckets, as long as the result lives.
    pub(crate) fn mark_writes(&self, buckets: usize) -> Arc<Marks> {
        let marks = Arc::new(Marks::new(buckets));
        let mut wanted = self.marks.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        // Without writers, unused marks are removed only here.
        let before = wanted.len();
        wanted.retain(|other| other.strong_count() > 0);
        self.count.fetch_sub(before - wanted.len(), Ordering::SeqCst);
        wanted.push(Arc::downgrade(&marks));
        marks
    }
}

/// The buckets whose keys have been written.
#[derive(Debug)]
pub(crate) struct Marks {
    hasher: RandomState,
    /// A power of two.
    buckets: usize,
    state: Mutex<MarkState>,
}

#[derive(Debug)]
struct MarkState {
    /// By bucket, in words of 64.
    bits: Vec<u64>,
    /// The buckets whose bits are set.
    list: Vec<u32>,
    is_all: bool,
}

/// The result of [`Marks::take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    Buckets(Vec<u32>),
    All,
}

impl Marks {
    const BUCKETS_MAX: usize = 1 << 30;

    fn new(buckets: usize) -> Self {
        let buckets = buckets.clamp(1, Self::BUCKETS_MAX).next_power_of_two();
        let bits = vec![0; buckets.div_ceil(u64::BITS as usize)];
        let state = Mutex::new(MarkState { bits, list: Vec::new(), is_all: false });
        Self { hasher: RandomState::new(), buckets, state }
    }

    /// The number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets
    }

    /// The bucket that `key` is in.
    pub(crate) fn bucket_of(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize & (self.buckets - 1)
    }

    fn mark(&self, key: &[u8]) {
        let bucket = self.bucket_of(key);
        let mut state = self.state.lock();
        let MarkState { bits, list, .. } = &mut *state;
        let bit = 1 << (bucket % u64::BITS as usize);
        if let Some(word) = bits.get_mut(bucket / u64::BITS as usize)
            && *word & bit == 0
        {
            *word |= bit;
            list.extend(u32::try_from(bucket));
        }
    }

    /// The marks since the last call.
    pub(crate) fn take(&self) -> Marked {
        let mut state = self.state.lock();
        let list = std::mem::take(&mut state.list);
        for bucket in &list {
            if let Some(word) = state.bits.get_mut(*bucket as usize / u64::BITS as usize) {
                *word = 0;
            }
        }
        match std::mem::take(&mut state.is_all) {
            true => Marked::All,
            false => Marked::Buckets(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_seen_while_watched() {
        let absences = WatchedAbsences::default();
        absences.written(b"k");
        let before = absences.enter(b"k");
        assert_eq!(absences.enter(b"k"), before);
        absences.written(b"other");
        assert_eq!(absences.leave(b"k"), before);
        absences.written(b"k");
        assert_ne!(absences.leave(b"k"), before);
        assert!(absences.keys.lock().is_empty());
        assert_eq!(absences.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_written_is_marked_once_and_as_long_as_somebody_wants_to_know() {
        let absences = WatchedAbsences::default();
        let marks = absences.mark_writes(1000);
        assert_eq!((marks.buckets(), marks.take()), (1024, Marked::Buckets(Vec::new())));
        for _ in 0..2 {
            absences.written(b"a");
            absences.written(b"a");
            let bucket = u32::try_from(marks.bucket_of(b"a")).unwrap();
            assert_eq!(marks.take(), Marked::Buckets(vec![bucket]));
        }
        absences.written(b"a");
        absences.cleared();
        assert_eq!(marks.take(), Marked::All);
        assert_eq!(marks.take(), Marked::Buckets(Vec::new()));
        drop(marks);
        absences.written(b"a");
        assert!(absences.marks.lock().is_empty());
        assert_eq!(absences.count.load(Ordering::Relaxed), 0);
    }
}
