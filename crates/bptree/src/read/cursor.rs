//! Walks the records in no particular order: iterations and changes.
//!
//! The position of an iteration is a key, for which a number stands ([`Cursors`](coreplane_engine::Cursors)). Long
//! keys whose rests are damaged, large values that are not found, and damaged records that mean absence are skipped,
//! and reported when all others have been shown.

use crate::read::Reader;
use crate::read::get::{Leaf, Listed};
use crate::read::newer::Passed;
use coreplane_engine::{Entry, Error, Result, UnixMillis};
use coreplane_pmem::{epoch, spin};
use coreplane_record::Kind;
use std::sync::atomic::Ordering;

/// Tombstones and empty leaves that a call of an iteration passes, unless it is asked for more records.
const PASSED_MAX: usize = 128;

/// The position where an iteration goes on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    From {
        key: Box<[u8]>,
        /// The offset of a damaged record that was skipped.
        hurt: Option<u64>,
    },
    /// All others have been shown.
    DamagedField(u64),
}

impl Default for Place {
    fn default() -> Self {
        Self::From { key: Box::default(), hurt: None }
    }
}

#[cold]
fn passed_by(offset: u64) -> Error {
    Error::Corrupt { offset, what: "a damaged record was passed by".to_owned() }
}

/// The expiries of the records of a leaf.
fn expiries(records: &[Listed<'_>]) -> impl Iterator<Item = UnixMillis> {
    records.iter().filter_map(|(_, whole)| whole.view.header.expires_at)
}

impl Reader {
    /// Shows the live records of whole leaves from `cursor` on, until `count` were met, expired ones included, or as
    /// many tombstones and empty leaves, but not fewer than [`PASSED_MAX`].
    ///
    /// # Errors
    /// If a leaf is damaged, or in doubt; and, for skipped records, when all others have been shown, by a call that
    /// shows none.
    pub(crate) fn iterate(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let (mut from, mut hurt) = match spin::lock(&self.cursors).place_of(cursor) {
            Place::From { key, hurt } => (key, hurt),
            Place::DamagedField(offset) => return Err(passed_by(offset)),
        };
        let (mut met, mut passed, mut shown) = (0, 0, 0);
        loop {
            let guard = epoch::pin();
            let leaf = self.leaf_of(&guard, &from)?;
            if let Some(error) = leaf.in_doubt {
                return Err(error);
            }
            for (key, whole) in leaf.records.iter().filter(|(key, _)| **key >= *from) {
                let view = &whole.view;
                if view.header.kind != Kind::Put {
                    passed += 1;
                    continue;
                }
                met += 1;
                if self.is_live(view, leaf.head.birth, || expiries(&leaf.records))? {
                    shown += 1;
                    visit(whole.entry(key));
                }
            }
            passed += usize::from(leaf.records.is_empty());
            let is_enough = met >= count.max(1) || passed >= count.max(PASSED_MAX);
            let mut skipped = leaf.hurt.iter().filter(|it| it.is_record);
            hurt = hurt.or_else(|| skipped.next().map(|it| it.offset));
            let place = match (leaf.head.bound, hurt) {
                (None, None) => {
                    spin::lock(&self.cursors).end(cursor);
                    return Ok(0);
                }
                (None, Some(offset)) if shown == 0 => return Err(passed_by(offset)),
                (None, Some(offset)) => Place::DamagedField(offset),
                (Some(key), hurt) if is_enough => Place::From { key, hurt },
                (Some(key), _) => {
                    from = key;
                    continue;
                }
            };
            return Ok(spin::lock(&self.cursors).remember(cursor, place));
        }
    }

    /// Shows changes newer than `sequence`, tombstones too.
    ///
    /// # Errors
    /// [`Error::HistoryGone`], also when all else has been shown; and then, if a part of it is in doubt.
    pub(crate) fn changes_since(
        &self,
        sequence: u64,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<()> {
        self.check_history(sequence)?;
        let mut from: Box<[u8]> = Box::default();
        let mut doubt = None;
        loop {
            if let Passed::Old(bound) = self.pass(&from, sequence) {
                let Some(bound) = bound else { break };
                from = bound;
                continue;
            }
            let guard = epoch::pin();
            let (leaf, _) = self.leaf_since(&guard, &from, Some(sequence))?;
            let Leaf { head, records, in_doubt, hurt, .. } = leaf;
            doubt = doubt.or(in_doubt).or_else(|| hurt.into_iter().next().map(|it| it.error));
            for (key, whole) in &records {
                let view = &whole.view;
                let live = self.is_live(view, head.birth, || expiries(&records))?;
                let entry = whole.entry(key);
                visit(Entry { record: entry.record.filter(|_| live), ..entry });
            }
            match head.bound {
                None => break,
                Some(bound) => from = bound,
            }
        }
        // Checked again: a tombstone may have been forgotten in a leaf before its turn came.
        self.check_history(sequence)?;
        doubt.map_or(Ok(()), Err)
    }

    /// # Errors
    /// [`Error::HistoryGone`] if a tombstone above `sequence` was forgotten.
    fn check_history(&self, sequence: u64) -> Result<()> {
        let horizon = self.forgotten_tombstones.load(Ordering::Acquire);
        if sequence < horizon {
            return Err(Error::HistoryGone { asked: sequence, horizon });
        }
        Ok(())
    }
}
