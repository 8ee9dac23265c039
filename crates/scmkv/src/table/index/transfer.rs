//! Copying the index out of its DRAM and into it again, for a checkpoint.
//!
//! A copy goes through the segments in the order of `y`, group after group, each under its lock, so
//! that a writer waits at most while one group is copied. A segment that splits meanwhile is copied
//! again: the result is one whole index, of which each group is as it was at a moment of the
//! copying.

use super::directory::{DEPTH_MAX, Leaf, prefix};
use super::{Index, SegmentHeader, Slot};
use crate::table::geometry::Geometry;
use crate::table::index::grow::Supply;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{LINE, Space};
use std::sync::Arc;

impl Index {
    /// Segments in use.
    pub(crate) fn segments(&self) -> u64 {
        self.growth.lock().segments_used(&self.shape)
    }

    /// Appends the slots of the segment that serves `y` to `out`; returns the header of that
    /// segment and the first `y` after it.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(crate) fn copy_segment(
        &self,
        y: u32,
        out: &mut Vec<u8>,
    ) -> Result<(SegmentHeader, Option<u32>)> {
        let begin = out.len();
        'again: loop {
            out.truncate(begin);
            let leaf = self.directory.leaf(y);
            for group in 0..self.shape.groups {
                let Some(_held) = self.lock_group(leaf, y, group) else { continue 'again };
                let start = leaf.offset() + u64::from(group) * self.shape.group_bytes();
                for bucket in 0..u64::from(self.shape.buckets) {
                    for word in self.line(start + bucket * LINE as u64)? {
                        out.extend_from_slice(&word.to_le_bytes());
                    }
                }
            }
            let depth = leaf.depth();
            let header = SegmentHeader { prefix: prefix(y, depth), depth };
            let end = (u64::from(header.prefix) + 1) << (32 - depth);
            return Ok((header, u32::try_from(end).ok()));
        }
    }

    /// An index of DRAM with the given segments, all empty; none if they do not cover every key
    /// once. Its groups are not counted yet.
    ///
    /// # Errors
    /// If there is no DRAM for them.
    pub(crate) fn with_segments(
        space: Arc<Space>,
        shape: Geometry,
        segments: &[SegmentHeader],
        supply: Supply<'_>,
    ) -> Result<Option<Self>> {
        let mut covered = 0_u64;
        for SegmentHeader { prefix, depth } in segments {
            if *depth > DEPTH_MAX || u64::from(*prefix) >= 1 << depth {
                return Ok(None);
            }
            covered += 1 << (32 - depth);
        }
        if covered != 1 << 32 {
            return Ok(None);
        }
        let index = Self::with(space, false, shape, shape.depth, false);
        let mut growth = index.growth.lock();
        for SegmentHeader { prefix, depth } in segments {
            let number = growth
                .take(&shape, supply)?
                .ok_or(Error::NoSpace { needed: u64::from(shape.page_size), reclaimable: 0 })?;
            let (offset, header) = growth.place(number, &shape);
            let content = SegmentHeader { prefix: *prefix, depth: *depth };
            index.word(header)?.store(content.to_word(header));
            index.directory.set(*prefix, Leaf::new(offset, *depth, number));
        }
        drop(growth);
        Ok(index.directory.is_complete().then_some(index))
    }

    /// Fills a segment of an index that [`Index::with_segments`] made with the slots at `slots`,
    /// except those that `keep` rejects.
    ///
    /// # Errors
    /// As `keep`.
    pub(crate) fn fill_segment(
        &self,
        header: SegmentHeader,
        slots: &[u8],
        keep: &dyn Fn(Slot) -> Result<bool>,
    ) -> Result<()> {
        let first = u64::from(header.prefix) << (32 - header.depth);
        let mut at = self.directory.leaf(first as u32).offset();
        for line in slots.chunks_exact(LINE) {
            let mut words = [0; LINE / 8];
            for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
                *word = u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte]));
            }
            // No probe passes a bucket with an empty slot, so more of its slots can be empty.
            let ends = words.contains(&Slot::EMPTY.0);
            let vacated = if ends { Slot::EMPTY } else { Slot::DELETED };
            for word in words {
                let slot = Slot(word);
                let slot = if slot.is_used() && !keep(slot)? { vacated } else { slot };
                if slot != Slot::EMPTY {
                    self.word(at)?.store(slot.0);
                }
                at += 8;
            }
        }
        Ok(())
    }
}
