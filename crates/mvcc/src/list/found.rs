//! The records that an open finds in a log, before it is known which of them count.
//!
//! Control records, which may stand anywhere behind, state which records are void, and up to where entries are
//! applied. So all records are noted first, and sorted when all control records are known:
//!
//! ```text
//!   version ≤ applied    ─▶ the index, the greatest version of a key
//!   above                ─▶ pending: by timestamp its changes and the record that closes it
//!   void                 ─▶ nothing
//! ```
//!
//! A record may be found several times, at its old place and where it was moved to: the last one counts. An entry
//! with a missing part, or a gap in the timestamps, is damage: a power cut leaves neither.

use super::entries::{Entries, Newest, Pending};
use crate::control::{Control, Void, closing};
use crate::map::Part;
use crate::volume::Volume;
use crate::volume::stream::Position;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, VecDeque};

/// The records that were read of a log.
#[derive(Debug, Default)]
pub(super) struct Found {
    records: Vec<(Position, u64)>,
    /// Control records by their numbers: place and offset of each.
    controls: BTreeMap<u64, (Position, u64)>,
}

/// The state of a log.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) entries: Entries,
    /// Records of the applied timestamp or older ones, in the order of the stream.
    pub(super) applied: Vec<u64>,
    /// Control records that take records back, except the newest: the offset of each, and the greatest birth of a
    /// page that may have such records.
    pub(super) voids: Vec<(u64, u64)>,
}

/// The parts of a pending entry that were found.
#[derive(Debug, Default)]
struct Parts<'g> {
    /// By key.
    changes: BTreeMap<&'g [u8], Part>,
    closing: Option<View<'g>>,
}

fn part(view: &View<'_>) -> Part {
    Part { offset: view.offset, len: view.len(), is_large: view.header.large }
}

impl Found {
    /// Takes a record of a whole group.
    pub(super) fn take(&mut self, place: Position, view: &View<'_>) {
        if view.header.kind == Kind::Commit {
            self.controls.insert(view.header.version, (place, view.offset));
        } else {
            self.records.push((place, view.offset));
        }
    }

    /// Sorts the records that were found.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if something is missing.
    pub(super) fn sort(self, volume: &Volume, guard: &Guard) -> Result<Standing> {
        let (mut standing, mut voids) = (Standing::default(), Vec::new());
        for (serial, (place, offset)) in self.controls {
            let view = volume.view(guard, offset)?;
            let (control, void) = Control::decode(&view)?;
            let void =
                if mutant!("mvcc.log.origin") { Void { origin: place, ..void } } else { void };
            let newest = Newest { offset, len: view.len(), void };
            let entries = &mut standing.entries;
            if let Some(last) = entries.newest.replace(newest).filter(|it| it.void.is_any()) {
                standing.voids.push((last.offset, last.void.origin.birth));
            }
            (entries.control, entries.serial) = (control, serial);
            voids.extend(void.is_any().then_some(void));
        }
        let control = &standing.entries.control;
        let mut parked: BTreeMap<u64, Parts<'_>> = BTreeMap::new();
        for (place, offset) in self.records {
            let view = volume.view(guard, offset)?;
            let version = view.header.version;
            if control.is_installing || is_void(&voids, place, version) {
                continue;
            }
            match view.header.kind {
                Kind::Put | Kind::Delete if version <= control.applied => {
                    standing.applied.push(offset);
                }
                Kind::Put | Kind::Delete => {
                    let parts = parked.entry(version).or_default();
                    parts.changes.insert(view.key(), part(&view));
                }
                Kind::Entry if version > control.applied => {
                    parked.entry(version).or_default().closing = Some(view);
                }
                _ => {}
            }
        }
        standing.entries.set_pending(parked)?;
        Ok(standing)
    }
}

fn is_void(voids: &[Void], place: Position, version: u64) -> bool {
    !mutant!("mvcc.log.rolled_back") && voids.iter().any(|void| void.includes(place, version))
}

impl Entries {
    fn set_pending(&mut self, parked: BTreeMap<u64, Parts<'_>>) -> Result<()> {
        let known = self.control.newest;
        let mut pending = VecDeque::with_capacity(parked.len());
        let mut expected = self.control.applied;
        for (timestamp, parts) in parked {
            expected += 1;
            let damaged = |offset, what: &str| {
                let what = format!("entry {timestamp}: {what}");
                Error::Corrupt { offset, what }
            };
            let Some(view) = parts.closing else {
                let offset = parts.changes.values().next().map_or(0, |part| part.offset);
                return Err(damaged(offset, "the record that closes it is missing"));
            };
            if timestamp != expected {
                return Err(damaged(view.offset, "the one before it is missing"));
            }
            if closing(&view)?.0 != parts.changes.len() {
                return Err(damaged(view.offset, "it has not as many changes as it should"));
            }
            let changes = parts.changes.into_values().collect();
            pending.push_back(Pending { changes, closing: part(&view) });
        }
        if expected < known && !self.control.is_installing {
            let offset = self.newest.map_or(0, |newest| newest.offset);
            let what = format!("there are entries up to {known}, of which {expected} is the last");
            return Err(Error::Corrupt { offset, what });
        }
        (self.control.newest, self.pending) = (expected, pending);
        Ok(())
    }
}
