//! Keys that are watched although they are absent.
//!
//! `WATCH` remembers the sequence of a key's record; whatever happens to the key, its record has
//! another sequence afterwards, or none. One history leaves no trace in the record: absent when
//! watched, created, and deleted again before `EXEC`. So an absent key that is being watched is
//! entered here, and every write asks first whether anything is entered at all: one load of a
//! counter that hardly ever changes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The absent keys that somebody watches.
#[derive(Debug, Default)]
pub(crate) struct WatchedAbsences {
    count: AtomicUsize,
    keys: Mutex<HashMap<Vec<u8>, Watched>>,
}

#[derive(Debug, Default)]
struct Watched {
    watchers: usize,
    writes: u64,
}

impl WatchedAbsences {
    /// Enters `key`; the number of writes that it has seen.
    pub(crate) fn enter(&self, key: &[u8]) -> u64 {
        let mut keys = self.keys.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let watched = keys.entry(key.to_vec()).or_default();
        watched.watchers += 1;
        watched.writes
    }

    /// Takes back one `enter`; the number of writes that the key has seen.
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
}
