//! The records that an open has found and that may be the newest of their keys.
//!
//! ```text
//!   stream    b₁ a₂ c₃ a₄ b₅ …      noted as they are read, in memory that is written from one end to the other
//!   sorted    a₂ a₄ b₁ b₅ c₃        by key, those of a key in the order of the stream
//!   newest    a₄ b₅ c₃          ─▶  the index is built from them, with full nodes
//! ```
//!
//! A search of the index for each record would wait for memory several times, and so would a second look at the
//! records in the order of their keys. Sorting needs neither: what the open has to know of a record is in its note.
//! A note takes 48 bytes, besides the heap bytes of a long key; those of superseded records are dropped each time
//! they are half of all.

use crate::key::Key;
use coreplane_record::{Header, Kind, View};

/// With fewer notes than this, superseded ones are not looked for.
const COMPACT_MIN: usize = 1 << 16;

/// What an open notes of a record.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) offset: u64,
    /// Bytes of the record.
    pub(super) len: u32,
    pub(super) kind: Kind,
    pub(super) is_large: bool,
}

impl Candidate {
    pub(super) fn new(view: &View<'_>) -> Self {
        Self::of_header(Key::new(view.key()), &view.header, view.offset, view.len())
    }

    /// A record of which a bit is flipped.
    pub(super) fn of_header(key: Key, header: &Header, offset: u64, len: u32) -> Self {
        let Header { version, kind, large, .. } = *header;
        Self { key, version, offset, len, kind, is_large: large }
    }
}

/// The notes of an open.
#[derive(Debug)]
pub(super) struct Candidates {
    notes: Vec<Candidate>,
    /// Records with this version, or an older one, were cleared.
    cleared: u64,
    /// With so many notes, superseded ones are dropped.
    compact_at: usize,
}

impl Default for Candidates {
    fn default() -> Self {
        Self { notes: Vec::new(), cleared: 0, compact_at: COMPACT_MIN }
    }
}

impl Candidates {
    /// Takes the next record of the stream.
    pub(super) fn push(&mut self, candidate: Candidate) {
        if candidate.version <= self.cleared {
            return;
        }
        if self.notes.len() >= self.compact_at {
            self.compact();
            self.compact_at = (2 * self.notes.len()).max(COMPACT_MIN);
        }
        self.notes.push(candidate);
    }

    /// Drops the records with this version, or an older one.
    pub(super) fn clear(&mut self, version: u64) {
        if version > self.cleared {
            self.cleared = version;
            self.notes.retain(|it| it.version > version);
        }
    }

    /// The newest record of each key, in the order of the keys.
    pub(super) fn into_newest(mut self) -> Vec<Candidate> {
        self.compact();
        self.notes
    }

    /// Sorts the notes, and keeps the newest of each key. A sort finds and merges the parts that are sorted already.
    fn compact(&mut self) {
        self.notes.sort_by(|a, b| a.key.cmp(&b.key));
        self.notes.dedup_by(|next, kept| {
            let is_same = next.key == kept.key;
            // Of a moved record the copy counts, so that its old page is free.
            if is_same && next.version >= kept.version {
                std::mem::swap(next, kept);
            }
            is_same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Candidates};
    use crate::key::Key;
    use coreplane_record::{Header, Kind};
    use std::collections::BTreeMap;

    fn put(key: u64, version: u64, offset: u64) -> Candidate {
        let bytes = [b"a key".as_slice(), &key.to_be_bytes(), &[0; 15][..(key % 16) as usize]];
        Candidate::of_header(Key::new(&bytes.concat()), &Header::put(version), offset, 64)
    }

    /// Also where the notes are compacted again and again, with keys in place and on the heap.
    #[test]
    fn the_newest_of_each_key_is_left_and_of_one_version_the_last() {
        for compact_at in [1, 7, 1000] {
            let mut candidates = Candidates { compact_at, ..Candidates::default() };
            let mut model: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
            let mut draw = 1_u64;
            for offset in 0..4000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Versions rise, with moved records of older ones between them.
                let version = (offset / 8 + 1_u64).saturating_sub(draw >> 56);
                let it = put((draw >> 33) % 300, version, offset);
                let newest = model.entry(it.key.clone()).or_default();
                if version > 0 && version >= newest.0 {
                    *newest = (version, offset);
                }
                candidates.push(it);
                candidates.compact_at = candidates.compact_at.min(compact_at + offset as usize / 9);
            }
            candidates.clear(400);
            candidates.push(put(1, 400, 9000));
            model.retain(|_, newest| newest.0 > 400);
            let found = candidates.into_newest().into_iter();
            let found: Vec<_> = found.map(|it| (it.key, (it.version, it.offset))).collect();
            assert!(found.len() > 50, "{}", found.len());
            assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_note_takes_as_many_bytes_as_the_lecture_says() {
        assert_eq!(size_of::<Candidate>(), 48);
        assert_eq!(put(1, 1, 1).kind, Kind::Put);
    }
}
