//! Whether the members of a group have the same: what `verify` holds against each other.
//!
//! Writers go on meanwhile, and each member is read at a moment of its own. So sums are held against
//! each other first, each over the keys of a *bucket*; then the keys of those buckets that differ; and
//! each key that differs is looked at again within its key lock, when every member has made what it was
//! given. What differs then does, however busy the matrix is, and nobody is held up but who writes that
//! key.

use crate::device::Device;
use crate::filter::hash_of;
use crate::group::Group;
use crate::in_flight::InFlight;
use crate::keyspace::Keyspace;
use crate::shape::position::is_reserved;
use coreplane_engine::{Damage, Record, Result, StorageEngine, UnixMillis, Visibility};
use std::collections::HashMap;
use std::sync::Arc;

/// Records are read so many at a time.
const AT_A_TIME: usize = 1024;

/// Keys of a bucket, about; and how many buckets there are at least and at most.
const KEYS_OF_ONE: u64 = 16;
const BUCKETS: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 20;

/// What will have expired when the last member is read is on some and not on others: of what expires
/// before that nothing is said.
const HOUR_MS: u64 = 3_600_000;

/// Bytes of a key that are shown.
const SHOWN: usize = 64;

/// A record of a device, as a number: sequence, expiry and value.
fn mark_of(record: &Record<'_>) -> u64 {
    let expires_at = record.expires_at.map_or(0, |at| at.0);
    let mixed = record.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ expires_at.rotate_left(32);
    mixed.rotate_left(17) ^ hash_of(&record.value.to_cow())
}

/// A key that some members had alike by now.
struct KeyOnMembers {
    members: usize,
    mark: u64,
    is_alike: bool,
}

/// Goes through the keys of a group on one of its members.
struct Look<'a> {
    keyspace: &'a Keyspace,
    group: &'a Group,
    lasting: UnixMillis,
}

impl Look<'_> {
    /// Shows each record that lasts, by its key, the key's hash, and its mark.
    fn each(
        &self,
        engine: &dyn StorageEngine,
        mut show: impl FnMut(&[u8], u64, u64),
    ) -> Result<()> {
        let mut cursor = 0;
        loop {
            cursor = engine.iterate(cursor, AT_A_TIME, &mut |entry| {
                let Some(record) = entry.record.filter(|it| self.lasts(it)) else { return };
                let hash = hash_of(entry.key);
                // What is on its way to another group, or has left, is not on every member.
                if !is_reserved(entry.key) && self.keyspace.is_of(self.group.number, hash) {
                    show(entry.key, hash, mark_of(&record));
                }
            })?;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    fn lasts(&self, record: &Record<'_>) -> bool {
        record.expires_at.is_none_or(|at| at > self.lasting)
    }

    /// The buckets in which members differ; none if they do not.
    fn buckets(&self, members: &[Arc<Device>]) -> Result<Option<Vec<bool>>> {
        let len = members[0].engine.len()? / KEYS_OF_ONE;
        let count = len.next_power_of_two().clamp(*BUCKETS.start(), *BUCKETS.end()) as usize;
        let mut first: Vec<u64> = Vec::new();
        let mut differs = vec![false; count];
        for device in members {
            device.drain();
            let mut sums = vec![0_u64; count];
            self.each(&*device.engine, |_, hash, mark| {
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

    /// The keys of these buckets that members do not have alike, as far as each was read at another
    /// moment.
    fn suspects(&self, members: &[Arc<Device>], differs: &[bool]) -> Result<Vec<Vec<u8>>> {
        let mut known: HashMap<Vec<u8>, KeyOnMembers> = HashMap::new();
        for device in members {
            device.drain();
            self.each(&*device.engine, |key, hash, mark| {
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

    /// What each member has of a key, in words, if they differ: within the key's lock, when each has
    /// made what it was given.
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
            device.engine.get_with(key, Visibility::Durable, &mut |shown| {
                record = self.lasts(&shown).then(|| (mark_of(&shown), shown.sequence));
            })?;
            found.push((device.number, record));
        }
        if found.iter().all(|(_, record)| *record == found[0].1) {
            return Ok(None);
        }
        let told = found.iter().map(|(number, record)| {
            let name = format!("g{}d{number}", self.group.number);
            match record {
                Some((_, sequence)) => format!("{name} has it of {sequence}"),
                None => format!("{name} has it not"),
            }
        });
        Ok(Some(told.collect::<Vec<_>>().join(", ")))
    }
}

fn bucket_of(hash: u64, count: usize) -> usize {
    // Other bits than those that say the stripe, and mostly than those that say the slot.
    (hash >> 40) as usize & (count - 1)
}

/// How the members of a group differ, if they do, whoever writes meanwhile.
///
/// # Errors
/// As the devices.
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
