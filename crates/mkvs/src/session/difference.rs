//! What the members of a group have written since they were level last, and which keys some of them lack.

use super::unsure::Unsure;
use crate::device::decision::is_damage;
use crate::membership::rack::Found;
use crate::rebuild::filter_snapshot::side_by_side;
use crate::rebuild::scrub::show_sure;
use crate::shape::position::{Devices, Position, is_reserved};
use coreplane_engine::{Entry, KeyRange, Progress, Result, StorageEngine};
use coreplane_pmem::mutant;

/// The newest of a key, which some members lack.
pub(super) struct Missing {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    /// Those that have it.
    pub(super) has: Devices,
}

/// The keys that are newer than `since` on one of the devices, without it all keys, of which not all have the newest.
///
/// # Errors
/// As the engines.
pub(super) fn difference_since(
    members: &[(&Position, &Found)],
    since: Option<u64>,
    (threads, progress): (usize, &(dyn Fn(Progress) + Sync)),
    unsure: &mut Unsure,
) -> Result<Vec<Missing>> {
    let read = side_by_side(members, threads, |(_, device)| Written::since(&*device.engine, since));
    let written: Vec<Written> = read.into_iter().collect::<Result<_>>()?;
    unsure.ranges.clear();
    let (mut runs, mut all) = (Vec::new(), 0);
    for ((position, _), written) in members.iter().zip(&written) {
        all |= 1 << position.device;
        runs.push((position.device, written.entries().peekable()));
        written.doubts.iter().for_each(|doubt| unsure.add(position.device, doubt.clone()));
    }
    let (mut missing, mut compared) = (Vec::new(), 0);
    while let Some(key) = runs.iter_mut().filter_map(|(_, run)| Some(run.peek()?.0)).min() {
        let (mut sequence, mut has) = (0, 0);
        for (device, run) in &mut runs {
            // There are several where it was shown again.
            while let Some((_, its)) = run.next_if(|(next, _)| *next == key) {
                if its > sequence {
                    (sequence, has) = (its, 0);
                }
                if its == sequence || mutant!("mkvs.reconcile.older_has") {
                    has |= 1 << *device;
                }
            }
        }
        if has != all {
            missing.push(Missing { key: key.to_vec(), sequence, has });
        }
        compared += 1;
    }
    progress(Progress { stage: "comparing members", done: compared, total: compared });
    Ok(missing)
}

/// What a device has that is newer than some sequence.
#[derive(Default)]
struct Written {
    /// Their keys, one behind the other: there may be millions.
    keys: Vec<u8>,
    /// Where each key ends, and its sequence.
    ends: Vec<(usize, u64)>,
    /// Their order, if they are not in it: those of an engine that is ordered are.
    order: Option<Vec<usize>>,
    /// Where it cannot show all.
    doubts: Vec<KeyRange>,
}

impl Written {
    /// Reads it; without a sequence all that there is.
    ///
    /// # Errors
    /// As the engine.
    fn since(engine: &dyn StorageEngine, since: Option<u64>) -> Result<Self> {
        let Self { mut keys, mut ends, mut doubts, order } = Self::default();
        let mut note = |entry: Entry<'_>| {
            if !is_reserved(entry.key) {
                keys.extend_from_slice(entry.key);
                ends.push((keys.len(), entry.sequence));
            }
        };
        let (from, mut is_hurt) = (since.unwrap_or(engine.tombstone_horizon()), false);
        if let Err(error) = engine.changes_since(from, &mut note) {
            // It has shown all that is sure: of the rest it is given what others have, as if it lacked it.
            if !is_damage(&error) {
                return Err(error);
            }
            (doubts, is_hurt) =
                (engine.lost_ranges()?, !engine.damaged_keys_since(from)?.is_empty());
            if doubts.is_empty() && !is_hurt {
                return Err(error);
            }
        }
        if since.is_none() {
            match show_sure(engine, &doubts, &mut note) {
                // It has shown the others.
                Err(error) if is_damage(&error) && is_hurt && doubts.is_empty() => {}
                shown => shown?,
            }
        }
        let written = Self { keys, ends, doubts, order };
        let key = |at: &usize| written.entry(*at).0;
        let order = (!(0..written.ends.len()).is_sorted_by_key(|at| key(&at))).then(|| {
            let mut order: Vec<_> = (0..written.ends.len()).collect();
            order.sort_unstable_by_key(key);
            order
        });
        Ok(Self { order, ..written })
    }

    /// One of the keys, as they were shown, and its sequence.
    fn entry(&self, at: usize) -> (&[u8], u64) {
        let begin = if at == 0 { 0 } else { self.ends[at - 1].0 };
        let (end, sequence) = self.ends[at];
        (&self.keys[begin..end], sequence)
    }

    /// Keys and sequences, by their keys.
    fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.ends.len()).map(|at| self.entry(self.order.as_ref().map_or(at, |order| order[at])))
    }
}
