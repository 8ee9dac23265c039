//! Records that no slot of the index finds.
//!
//! A slot that was zeroed looks as if it had never been used, and a zeroed line ends the probes
//! that went on past it: an index in the pool does not prove that it is whole. The logs do. They
//! hold the newest record of a key that counts, and if it is a put then a probe must find a slot of
//! the key:
//!
//! ```text
//!   log      … │ put a │ put b │ del c │ …
//!                  │       ╳               no slot: b is missed
//!   index        slot a
//! ```
//!
//! A key without a slot is not always missed: its tombstone may have been dropped, and then its
//! only older records are in the page of the tombstone; or the key was only ever in a batch that a
//! crash cut short. So a key without a slot is first a suspect, all of whose records are read.
//! Pages that were open at a crash are left to the replay.

use crate::table::Table;
#[cfg(test)]
use crate::table::counters::comparisons;
use crate::table::run::Run;
use coreplane_engine::Result;
use coreplane_record::{Kind, View};
use std::collections::{BTreeMap, HashMap};

/// Suspects that are examined at a time.
const SUSPECTS_MAX: usize = 1 << 16;

/// The newest record of a key.
#[derive(Debug, Clone, Copy)]
struct Newest {
    version: u64,
    generation: u32,
    offset: u64,
    is_put: bool,
}

/// Which records of a key are sought when no slot of it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// Puts alone: a key that was deleted is rightly without a slot.
    Puts,
    /// Tombstones too, as long as older records may lie where theirs do; and records in open pages:
    /// the caller checks again under the lock of the group.
    All,
}

/// Page generation and offset of the newest records of keys of which `has` finds no slot, in the
/// pages of `table` that `skip` does not leave out: of all
/// such keys, or of the first lot of suspects that includes some. That suffices to know that the
/// index is not whole, and each lot costs a reading of the logs.
pub(crate) fn unindexed(
    table: &Table,
    skip: &dyn Fn(u32) -> bool,
    kinds: Kinds,
    has: &dyn Fn(&View<'_>) -> Result<bool>,
) -> Result<Vec<(u32, u64)>> {
    let (mut missed, mut from) = (Vec::new(), Some(0));
    while let Some(first) = from.take()
        && missed.is_empty()
    {
        let mut suspects: HashMap<Vec<u8>, Option<Newest>> = HashMap::new();
        let mut failure = Ok(());
        table.visit_all(skip, &mut |seen| {
            if from.is_none() && seen.page > first && suspects.len() >= SUSPECTS_MAX {
                from = Some(seen.page);
            }
            let is_meant =
                seen.page >= first && from.is_none() && (seen.is_settled || kinds == Kinds::All);
            let is_of_kind = match seen.view.header.kind {
                Kind::Put => true,
                Kind::Delete => kinds == Kinds::All,
                Kind::Overflow | Kind::Commit | Kind::Lost | Kind::Node | Kind::Entry => false,
            };
            if !is_meant || !is_of_kind || failure.is_err() {
                return;
            }
            match has(&seen.view) {
                Ok(true) => {}
                Ok(false) => drop(suspects.insert(seen.view.key().to_vec(), None)),
                Err(error) => failure = Err(error),
            }
        });
        failure?;
        if !suspects.is_empty() {
            look_into(table, skip, &mut suspects);
            let is_asked = |newest: &Newest| newest.is_put || kinds == Kinds::All;
            let newest = suspects.into_values().flatten().filter(is_asked);
            missed.extend(newest.map(|newest| (newest.generation, newest.offset)));
        }
    }
    missed.sort_unstable_by_key(|(_, offset)| *offset);
    missed.dedup();
    Ok(missed)
}

/// Finds the newest record that counts of each suspect.
fn look_into(
    table: &Table,
    skip: &dyn Fn(u32) -> bool,
    suspects: &mut HashMap<Vec<u8>, Option<Newest>>,
) {
    let learn = |suspects: &mut HashMap<Vec<u8>, Option<Newest>>, key: &[u8], new: Newest| {
        if let Some(known) = suspects.get_mut(key)
            && known.is_none_or(|known| {
                new.version > known.version || new.version == known.version && !new.is_put
            })
        {
            *known = Some(new);
        }
    };
    let mut members = BTreeMap::new();
    table.visit_all(skip, &mut |seen| {
        let view = &seen.view;
        let is_put = match view.header.kind {
            Kind::Put => true,
            Kind::Delete => false,
            Kind::Overflow | Kind::Commit | Kind::Lost | Kind::Node | Kind::Entry => return,
        };
        let (version, generation) = (view.header.version, seen.generation);
        let newest = Newest { version, generation, offset: view.offset, is_put };
        if !view.header.batched {
            learn(suspects, view.key(), newest);
        } else if suspects.contains_key(view.key()) {
            members.insert((generation, view.offset), (view.key().to_vec(), newest));
        }
    });
    if !members.is_empty() {
        table.visit_all(skip, &mut |seen| {
            if seen.view.header.kind != Kind::Commit {
                return;
            }
            for run in Run::decode_all(seen.view.value()) {
                let of_run = (run.generation, run.start)..(run.generation, run.end());
                for (key, newest) in members.range(of_run).map(|(_, member)| member) {
                    #[cfg(test)]
                    comparisons::note();
                    learn(suspects, key, *newest);
                }
            }
        });
    }
}
