//! Keys that are damaged, or in [doubt](crate::tree::doubt), for callers that have copies elsewhere.

use crate::leaf::Head;
use crate::read::Reader;
use crate::read::newer::Passed;
use coreplane_engine::{DamagedKey, Error, KeyRange, Result};
use coreplane_pmem::epoch;
use std::borrow::Cow;

/// A long key of a leaf whose rest is damaged, or a key whose large value cannot be found, or whose record means
/// absence and is damaged.
pub(crate) struct DamagedField {
    /// The error to report for it.
    pub(crate) error: Error,
    /// The known part of the key: its prefix, or all of it; none: any key of its leaf.
    pub(crate) known: Option<Box<[u8]>>,
    pub(crate) is_whole: bool,
    /// The offset of its record.
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    /// It may have a record that is not a tombstone.
    pub(crate) is_record: bool,
}

impl DamagedField {
    /// The range that contains the key.
    fn within(&self, leaf: &Head) -> KeyRange {
        let Some(known) = &self.known else {
            let end = leaf.bound.as_ref().map(|bound| bound.to_vec());
            return KeyRange { start: leaf.least.to_vec(), end };
        };
        let start = known.to_vec();
        if self.is_whole {
            return KeyRange { end: Some([start.as_slice(), &[0]].concat()), start };
        }
        let mut end = start.clone();
        // The first key without this prefix; a prefix that consists of the greatest byte alone has none.
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let end = end.split_last().map(|(last, before)| [before, &[last + 1]].concat());
        KeyRange { start, end }
    }
}

impl Reader {
    /// The damaged keys whose records are newer than `sequence`.
    ///
    /// # Errors
    /// If a leaf cannot be read, and if the medium fails.
    pub(crate) fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        let (mut found, mut from) = (Vec::new(), Box::<[u8]>::default());
        loop {
            if let Passed::Old(bound) = self.pass(&from, sequence) {
                let Some(bound) = bound else { return Ok(found) };
                from = bound;
                continue;
            }
            let guard = epoch::pin();
            let leaf = self.leaf_of(&guard, &from)?;
            let hurt = leaf.hurt.iter().filter(|it| it.sequence > sequence);
            let head = &leaf.head;
            found.extend(
                hurt.map(|it| DamagedKey { within: it.within(head), sequence: it.sequence }),
            );
            match leaf.head.bound {
                None => return Ok(found),
                Some(bound) => from = bound,
            }
        }
    }

    /// The leaves that are in doubt.
    ///
    /// # Errors
    /// If the path from one leaf to the next is lost.
    pub(crate) fn lost_ranges(&self) -> Result<Vec<KeyRange>> {
        let mut doubts = Vec::new();
        let mut from: Box<[u8]> = Box::default();
        loop {
            let guard = epoch::pin();
            let descent = self.inner.descend(&from);
            let Some((leaf, version)) = self.arrive(&descent) else {
                self.load_leaf_to_read(descent.leaf)?;
                continue;
            };
            let is_in_doubt = leaf.doubt() > 0;
            let bounds = self.bounds(&guard, descent.leaf);
            // Otherwise the page may have another use by now, which is no damage.
            if !leaf.is_at(version) {
                continue;
            }
            let (least, bound) = bounds?;
            if is_in_doubt {
                let (start, end) = (least.into_owned(), bound.clone().map(Cow::into_owned));
                doubts.push(KeyRange { start, end });
            }
            match bound {
                None => return Ok(doubts),
                Some(bound) if *bound <= *from => return Err(self.not_a_leaf(descent.leaf)),
                Some(bound) => from = bound.into(),
            }
        }
    }
}
