//! Operations of a story on its matrix.

use super::NOW;
use coreplane_engine::{
    Batch, Error, Expected, Horizon, Outcome, Result, StorageEngine, UnixMillis, WriteOptions,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The value of a key from then on; none: the key is absent.
pub(crate) type Change = (u16, Option<Vec<u8>>);

/// The way in which a change is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    Put,
    Insert,
    Update,
    Delete,
    /// Compares with the current value.
    Swap(Option<Vec<u8>>),
    /// Compares with another value.
    WrongSwap(Vec<u8>),
    /// Puts a value that expires at a time before the matrix is opened again.
    Expiring(UnixMillis, Vec<u8>),
    /// One batch of all changes.
    Batch,
    /// A batch that cannot be made: its last key is too long.
    WrongBatch,
    /// All keys are removed.
    Clear,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Write(How, Vec<Change>),
    /// Expired records are removed.
    Sweep,
    /// A device is pulled out.
    Pull,
    /// A device is filled and becomes a member, or a group.
    Fill,
    Close,
}

/// Short, to be read in a violation.
impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Write(how, changes) = self else {
            return f.write_str(match self {
                Self::Create => "create",
                Self::Sweep => "sweep",
                Self::Pull => "a device is pulled out",
                Self::Fill => "a device or a group is filled",
                _ => "close",
            });
        };
        let how = match how {
            How::Expiring(at, _) => format!("Expiring at {}", at.0 - NOW.0),
            How::Swap(_) | How::WrongSwap(_) => "Swap".to_owned(),
            other => format!("{other:?}"),
        };
        let lens: Vec<_> =
            changes.iter().map(|(key, it)| (key, it.as_ref().map(Vec::len))).collect();
        write!(f, "{how} {lens:?}")
    }
}

/// The keys that a thread knows, except those that expire.
pub(crate) type Known = BTreeMap<u16, Option<Vec<u8>>>;

pub(crate) fn key(number: u16) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

/// The source of a story's choices.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn value(&mut self, serial: u64, at: u64, large_in: u64) -> Vec<u8> {
        let len = if self.next(large_in) == 0 { 500 + self.next(3000) } else { 8 + self.next(120) };
        (0..len).map(|byte| (serial * 31 + at * 7 + byte) as u8).collect()
    }

    /// A change, one in three a delete.
    fn change(&mut self, mine: &Range<u16>, (serial, at): (u64, u64), large_in: u64) -> Change {
        let number = mine.start + self.next(u64::from(mine.end - mine.start)) as u16;
        let value = self.value(serial, at, large_in);
        (number, (self.next(3) > 0).then_some(value))
    }

    pub(crate) fn op(
        &mut self,
        mine: &Range<u16>,
        serial: u64,
        large_in: u64,
        known: &Known,
    ) -> Op {
        let (number, _) = self.change(mine, (serial, 0), large_in);
        let value = self.value(serial, 0, large_in);
        let one = |how, value: &Vec<u8>| Op::Write(how, vec![(number, Some(value.clone()))]);
        let held = known.get(&number);
        match (self.next(20), held) {
            (0..=4, _) => one(How::Put, &value),
            (5..=7, _) => Op::Write(How::Delete, vec![(number, None)]),
            (8, None) | (9, Some(None)) => one(How::Insert, &value),
            (8, Some(Some(_))) => one(How::Update, &value),
            (9 | 10, Some(held)) => one(How::Swap(held.clone()), &value),
            (11, Some(Some(_))) => one(How::WrongSwap(value.clone()), &value),
            (12 | 13, _) => {
                let at = UnixMillis(NOW.0 + (serial + self.next(20)) * 1000);
                Op::Write(How::Expiring(at, value), vec![(number, None)])
            }
            (14, _) => Op::Sweep,
            (kind, _) => {
                let how = if kind == 19 { How::WrongBatch } else { How::Batch };
                self.batch(how, mine, serial, large_in)
            }
        }
    }

    pub(crate) fn batch(&mut self, how: How, mine: &Range<u16>, serial: u64, large_in: u64) -> Op {
        let count = 2 + self.next(5);
        let changes: BTreeMap<_, _> =
            (0..count).map(|at| self.change(mine, (serial, at), large_in)).collect();
        Op::Write(how, changes.into_iter().collect())
    }
}

impl Op {
    /// True if it may find nothing to delete.
    pub(crate) fn deletes(&self) -> bool {
        matches!(self, Self::Write(_, changes) if changes.iter().any(|(_, it)| it.is_none()))
    }

    /// Performs it, and notes the tickets that it depends on; false if it was refused as expected.
    pub(crate) fn perform(
        &self,
        matrix: &dyn StorageEngine,
        known: &mut Known,
        (options, rests): (&WriteOptions, &mut Horizon),
    ) -> Result<bool> {
        let Self::Write(how, changes) = self else {
            return matrix.sweep_expired().map(|_| true);
        };
        let is_made = perform(how, changes, matrix, (options, rests))?;
        for (number, value) in changes.iter().filter(|_| is_made) {
            match how {
                How::Expiring(..) => known.remove(number),
                _ => known.insert(*number, value.clone()),
            };
        }
        Ok(is_made)
    }
}

fn perform(
    how: &How,
    changes: &[Change],
    matrix: &dyn StorageEngine,
    (options, rests): (&WriteOptions, &mut Horizon),
) -> Result<bool> {
    let (number, value) = &changes[0];
    let (key, value) = (key(*number), value.as_deref().unwrap_or_default());
    let outcome = match how {
        How::Put => matrix.put(&key, value, options)?,
        How::Insert => {
            // The key may have held a value that expires: then the insert may fail.
            let outcome = matrix.insert(&key, value, options)?;
            rests.include(outcome.ticket());
            return Ok(outcome.written().is_some());
        }
        How::Update => matrix.update(&key, value, options)?,
        How::Delete => {
            let outcome = matrix.delete(&key, options)?;
            rests.include(outcome.ticket());
            assert!(matches!(outcome, Outcome::Written(_) | Outcome::Missing(_)), "{outcome:?}");
            return Ok(true);
        }
        How::Swap(held) => {
            let expected = held.as_ref().map_or(Expected::Absent, |held| Expected::Value(held));
            matrix.compare_and_set(&key, expected, value, options)?
        }
        How::WrongSwap(other) => {
            let expected = Expected::Value(other);
            let outcome = matrix.compare_and_set(&key, expected, value, options)?;
            assert!(matches!(outcome, Outcome::Mismatch(_)), "{outcome:?}");
            return Ok(false);
        }
        How::Expiring(at, value) => {
            matrix.put(&key, value, &WriteOptions { expires_at: Some(*at), ..*options })?
        }
        How::Clear => return matrix.clear().map(|()| true),
        How::Batch | How::WrongBatch => {
            let batch = batch(changes, *how == How::WrongBatch, matrix);
            return match matrix.apply(&batch, options) {
                Err(Error::KeyTooLong { .. }) if *how == How::WrongBatch => Ok(false),
                other => other.map(|written| {
                    rests.include(written.ticket);
                    true
                }),
            };
        }
    };
    assert!(outcome.written().is_some(), "{how:?}: {outcome:?}");
    rests.include(outcome.ticket());
    Ok(true)
}

fn batch(changes: &[Change], is_wrong: bool, matrix: &dyn StorageEngine) -> Batch {
    let mut batch = Batch::new();
    for (number, value) in changes {
        match value {
            Some(value) => batch.put(&key(*number), value),
            None => batch.delete(&key(*number)),
        };
    }
    if is_wrong {
        // A value that is too long would be half a gigabyte.
        batch.put(&vec![0; matrix.limits().key_len_max + 1], b"");
    }
    batch
}
