//! Writes of a group's members since they were equal last, and the keys that some of them lack.

use super::unsure::Unsure;
use crate::device::{Guarded, each_entry, is_damage};
use crate::membership::Found;
use crate::rebuild::side_by_side;
use crate::shape::{DEVICES_MAX, Devices, Position, is_reserved};
use coreplane_engine::{DamagedKey, Entry, KeyRange, Progress, Result};
use coreplane_pmem::mutant;

/// The newest write of a key, which some members lack.
pub(super) struct Missing {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    /// The members that have it.
    pub(super) has: Devices,
    /// The newest write of each member, as far as members were asked for it; 0: they have shown none.
    pub(super) own: [u64; DEVICES_MAX],
}

/// The keys whose newest write some device lacks: those newer than `since` on a device, or without it all keys.
pub(super) fn difference_since(
    members: &[(&Position, &Found)],
    since: Option<u64>,
    (threads, progress): (usize, &(dyn Fn(Progress) + Sync)),
    unsure: &mut Unsure,
) -> Result<Vec<Missing>> {
    let read = side_by_side(members, threads, |(_, device)| Written::since(&device.engine, since));
    *unsure = Unsure::default();
    let mut written = Vec::new();
    for ((position, _), read) in members.iter().zip(read) {
        unsure.unreadable = read.is_err().then_some(**position);
        written.push(read?);
    }
    let (mut runs, mut all) = (Vec::new(), 0);
    for ((position, _), Written { entries, doubts, hurt }) in members.iter().zip(&written) {
        all |= 1 << position.device;
        runs.push((position.device, entries.iter().peekable()));
        unsure.ranges.extend(doubts.iter().map(|doubt| (**position, doubt.clone())));
        unsure.hurt.extend(hurt.iter().map(|it| (**position, it.clone())));
    }
    let (mut missing, mut compared) = (Vec::new(), 0);
    while let Some((key, _)) = runs.iter_mut().filter_map(|(_, run)| run.peek().copied()).min() {
        let (mut sequence, mut has, mut own) = (0, 0, [0; DEVICES_MAX]);
        for (device, run) in &mut runs {
            // A key that was shown again has several entries.
            while let Some((_, its)) = run.next_if(|(next, _)| next == key) {
                own[usize::from(*device)] = own[usize::from(*device)].max(*its);
                if *its > sequence {
                    (sequence, has) = (*its, 0);
                }
                if *its == sequence || mutant!("mkvs.reconcile.older_has") {
                    has |= 1 << *device;
                }
            }
        }
        if has != all {
            missing.push(Missing { key: key.to_vec(), sequence, has, own });
        }
        compared += 1;
    }
    progress(Progress { stage: "comparing members", done: compared, total: compared });
    Ok(missing)
}

/// The writes of a device that are newer than some sequence.
struct Written {
    /// Keys and sequences, in the order of the keys.
    entries: Vec<(Box<[u8]>, u64)>,
    /// The ranges in which it cannot show all keys.
    doubts: Vec<KeyRange>,
    /// The keys whose records are damaged.
    hurt: Vec<DamagedKey>,
}

impl Written {
    /// Reads the writes since a sequence; without one, everything.
    fn since(engine: &Guarded, since: Option<u64>) -> Result<Self> {
        let (mut entries, mut doubts, mut hurt) = (Vec::new(), Vec::new(), Vec::new());
        let mut note = |entry: Entry<'_>| {
            if !is_reserved(entry.key) {
                entries.push((Box::from(entry.key), entry.sequence));
            }
        };
        let from = since.unwrap_or(engine.tell(|it| it.tombstone_horizon()));
        if let Err(error) = engine.call(|it| it.changes_since(from, &mut note)) {
            // It has shown everything that is sure. For the rest it is given the writes of others, as if it
            // lacked them.
            if !is_damage(&error) {
                return Err(error);
            }
            doubts = engine.call(|it| it.lost_ranges())?;
            hurt = engine.call(|it| it.damaged_keys_since(from))?;
            if doubts.is_empty() && hurt.is_empty() {
                return Err(error);
            }
        }
        if since.is_none() {
            match each_entry(engine, &doubts, &mut note) {
                // It has shown all other records.
                Err(error) if is_damage(&error) && !hurt.is_empty() && doubts.is_empty() => {}
                shown => shown?,
            }
        }
        entries.sort_unstable();
        Ok(Self { entries, doubts, hurt })
    }
}
