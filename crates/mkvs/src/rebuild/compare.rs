//! The comparison of the members of a group, for `verify`.
//!
//! Writers continue meanwhile, and each member is read at a moment of its own. So sums are compared first,
//! each over the keys of a *bucket*; then the keys of the buckets that differ; and each key that differs is
//! read again within its key lock, when every member has executed the writes on its way to it. A difference
//! that remains is real, however busy the matrix is, and only writers of that key wait.

use crate::device::{Device, Guarded, each_entry};
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use crate::keyspace::Keyspace;
use crate::shape::is_reserved;
use coreplane_engine::{Damage, Record, Result, UnixMillis, Visibility};
use std::collections::HashMap;
use std::sync::Arc;

/// The approximate number of keys of a bucket; and the least and the greatest number of buckets.
const KEYS_OF_ONE: u64 = 16;
const BUCKETS: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 20;

/// A record that expires before the last member is read is on some members and not on others: records that
/// expire within this time are not compared.
const HOUR_MS: u64 = 3_600_000;

/// Bytes of a key that a report shows.
const SHOWN: usize = 64;

/// A number for the record of a device: sequence, expiry and value.
fn mark_of(record: &Record<'_>) -> u64 {
    let expires_at = record.expires_at.map_or(0, |at| at.0);
    let mixed = record.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ expires_at.rotate_left(32);
    mixed.rotate_left(17) ^ hash_of(&record.value.to_cow())
}

/// A key that has been read on some members.
struct KeyOnMembers {
    members: usize,
    mark: u64,
    is_alike: bool,
}

/// Reads the keys of a group on its members.
struct Look<'a> {
    keyspace: &'a Keyspace,
    group: &'a Group,
    lasting: UnixMillis,
}

impl Look<'_> {
    /// Shows each record that does not expire soon, by its key, the key's hash, and its number.
    fn each(&self, engine: &Guarded, mut show: impl FnMut(&[u8], u64, u64)) -> Result<()> {
        each_entry(engine, &[], &mut |entry| {
            let Some(record) = entry.record.filter(|it| self.lasts(it)) else { return };
            let hash = hash_of(entry.key);
            // A record on its way to another group, or one that has moved, is not on every member.
            if !is_reserved(entry.key) && self.keyspace.is_of(self.group.number, hash) {
                show(entry.key, hash, mark_of(&record));
            }
        })
    }

    fn lasts(&self, record: &Record<'_>) -> bool {
        record.expires_at.is_none_or(|at| at > self.lasting)
    }

    /// The buckets in which members differ; none if no bucket differs.
    fn buckets(&self, members: &[Arc<Device>]) -> Result<Option<Vec<bool>>> {
        let len = members[0].engine.call(|it| it.len())? / KEYS_OF_ONE;
        let count = len.next_power_of_two().clamp(*BUCKETS.start(), *BUCKETS.end()) as usize;
        let mut first: Vec<u64> = Vec::new();
        let mut differs = vec![false; count];
        for device in members {
            device.drain();
            let mut sums = vec![0_u64; count];
            self.each(&device.engine, |_, hash, mark| {
                let sum = &mut sums[bucket_of(hash, count)];
                *sum = sum.wrapping_add((hash ^ mark.rotate_left(29)).wrapping_mul(mark | 1));
            })?;
            if first.is_empty() {
                first = sums;
                continue;
            }
            let pairs = first.iter().zip(&sums).zip(&mut differs);
            pairs.for_each(|((a, b), differs)| *differs |= a != b);
        }
        Ok(differs.contains(&true).then_some(differs))
    }

    /// The keys of these buckets in which members seem to differ, each member having been read at another moment.
    fn suspects(&self, members: &[Arc<Device>], differs: &[bool]) -> Result<Vec<Vec<u8>>> {
        let mut known: HashMap<Vec<u8>, KeyOnMembers> = HashMap::new();
        for device in members {
            device.drain();
            self.each(&device.engine, |key, hash, mark| {
                if !differs[bucket_of(hash, differs.len())] {
                    return;
                }
                let state = KeyOnMembers { members: 0, mark, is_alike: true };
                let state = known.entry(key.to_vec()).or_insert(state);
                state.members += 1;
                state.is_alike &= state.mark == mark;
            })?;
        }
        let is_suspect = |it: &KeyOnMembers| !it.is_alike || it.members != members.len();
        let mut suspects: Vec<Vec<u8>> =
            known.into_iter().filter(|(_, it)| is_suspect(it)).map(|(key, _)| key).collect();
        suspects.sort_unstable();
        Ok(suspects)
    }

    /// Describes the record of a key on each member, if they differ: within the key lock, when each member
    /// has executed the writes on its way to it.
    fn differing(&self, key: &[u8]) -> Result<Option<String>> {
        let hash = hash_of(key);
        let _turn = self.keyspace.in_flight.lock_key(InFlight::stripe_of(hash));
        if !self.keyspace.is_of(self.group.number, hash) {
            return Ok(None);
        }
        let mut found = Vec::new();
        for device in self.group.of(self.group.members()) {
            device.drain();
            let mut record = None;
            let mut note = |shown: Record<'_>| {
                record = self.lasts(&shown).then(|| (mark_of(&shown), shown.sequence));
            };
            device.engine.call(|it| it.get_with(key, Visibility::Durable, &mut note))?;
            found.push((device.at, record));
        }
        if found.iter().all(|(_, record)| *record == found[0].1) {
            return Ok(None);
        }
        let told = found.iter().map(|(at, record)| match record {
            Some((_, sequence)) => format!("{at} has it of {sequence}"),
            None => format!("{at} has it not"),
        });
        Ok(Some(told.collect::<Vec<_>>().join(", ")))
    }
}

fn bucket_of(hash: u64, count: usize) -> usize {
    // Bits below those of the slot: a group has some slots only, and all buckets.
    (hash >> 34) as usize & (count - 1)
}

/// The difference between the members of a group, if there is one, whether or not writers are active.
pub(crate) fn difference(keyspace: &Keyspace, group: &Group) -> Result<Option<Damage>> {
    let members: Vec<Arc<Device>> = group.of(group.members()).map(Arc::clone).collect();
    if members.len() < 2 {
        return Ok(None);
    }
    let lasting = UnixMillis(keyspace.clock.now().0 + HOUR_MS);
    let look = Look { keyspace, group, lasting };
    let Some(buckets) = look.buckets(&members)? else { return Ok(None) };
    let (mut count, mut first) = (0_u64, None);
    for key in look.suspects(&members, &buckets)? {
        if let Some(how) = look.differing(&key)? {
            count += 1;
            first.get_or_insert((key, how));
        }
    }
    Ok(first.map(|(key, how)| {
        let shown = key[..key.len().min(SHOWN)].escape_ascii();
        let what = format!(
            "members of group {} differ in {count} keys, as in \"{shown}\": {how}",
            group.number
        );
        Damage::new(0, what).of(&key)
    }))
}
