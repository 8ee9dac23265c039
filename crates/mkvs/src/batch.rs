//! Batches: in one group or over several, all of it or none.
//!
//! The turns of all keys are taken, in the order of their stripes. In one group a batch is one call
//! of each device's engine, which makes all of it or none, and readers go to one device until all
//! that the write waits for have it.
//!
//! Over several groups it is first written down as a whole, durably, as an *intent*, on all members
//! of one of them; then made in each; then the intent is deleted. Opening makes what it finds of
//! intents: again, since sequences decide. Meanwhile readers of its keys wait, so that nobody sees
//! a part.

use crate::bloom::hash_of;
use crate::counters::Count;
use crate::decided::Decided;
use crate::device::{Job, make};
use crate::group::{Group, NotMade, Order, numbers};
use crate::label::RESERVED;
use crate::matrix::Shared;
use crate::pending::{Devices, Entry, Pending, Turn};
use coreplane_engine::{
    Batch, Change, Completion, Durability, Engine, Error, Record, Result, Ticket, UnixMillis,
    Visibility, WriteOptions, Written,
};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Intents at most at a time.
const INTENTS: u32 = 64;

/// The numbers of intents that are free.
#[derive(Debug)]
pub(crate) struct Intents {
    free: Mutex<Vec<u32>>,
    freed: Condvar,
}

impl Intents {
    pub(crate) fn new() -> Self {
        Self { free: Mutex::new((0..INTENTS).collect()), freed: Condvar::new() }
    }

    fn take(&self) -> u32 {
        let mut free = self.free.lock();
        loop {
            if let Some(number) = free.pop() {
                return number;
            }
            self.freed.wait(&mut free);
        }
    }

    fn give_back(&self, number: u32) {
        self.free.lock().push(number);
        self.freed.notify_one();
    }
}

/// The key of an intent.
fn intent_key(number: u32) -> Vec<u8> {
    [RESERVED, format!("intent/{number:02}").as_bytes()].concat()
}

/// An intent as it is written.
fn encode(sequence: u64, changes: &[&Change]) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    for change in changes {
        let (kind, value, expires_at): (u8, &[u8], u64) = match change {
            Change::Put { value, expires_at: None, .. } => (0, value, 0),
            Change::Put { value, expires_at: Some(at), .. } => (1, value, at.0),
            Change::Delete { .. } => (2, &[], 0),
        };
        bytes.push(kind);
        bytes.extend_from_slice(&(change.key().len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&expires_at.to_le_bytes());
        bytes.extend_from_slice(change.key());
        bytes.extend_from_slice(value);
    }
    bytes
}

/// The sequence and the changes of an intent; none if it is not one.
fn decode(bytes: &[u8]) -> Option<(u64, Vec<Change>)> {
    let (sequence, mut rest) = bytes.split_first_chunk()?;
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let (kind, after) = rest.split_first()?;
        let (key_len, after) = after.split_first_chunk()?;
        let (value_len, after) = after.split_first_chunk()?;
        let (expires_at, after) = after.split_first_chunk()?;
        let (key, after) = after.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        let (value, after) = after.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
        let (key, expires_at) = (key.to_vec(), UnixMillis(u64::from_le_bytes(*expires_at)));
        changes.push(match kind {
            0 => Change::Put { key, value: value.to_vec(), expires_at: None },
            1 => Change::Put { key, value: value.to_vec(), expires_at: Some(expires_at) },
            2 => Change::Delete { key },
            _ => return None,
        });
        rest = after;
    }
    Some((u64::from_le_bytes(*sequence), changes))
}

/// What a device has open of intents.
///
/// # Errors
/// As the engine, and if an intent makes no sense.
pub(crate) fn open_intents(engine: &dyn Engine) -> Result<Vec<(u32, u64, Vec<Change>)>> {
    let mut open = Vec::new();
    for number in 0..INTENTS {
        if let Some(bytes) = engine.get(&intent_key(number))? {
            let (sequence, changes) = decode(&bytes)
                .ok_or_else(|| Error::Unusable(format!("intent {number} makes no sense")))?;
            open.push((number, sequence, changes));
        }
    }
    Ok(open)
}

/// Deletes an intent; durable when it returns.
///
/// # Errors
/// As the engine.
pub(crate) fn drop_intent(engine: &dyn Engine, number: u32) -> Result<()> {
    engine.delete(&intent_key(number), &durable()).map(|_| ())
}

fn durable() -> WriteOptions {
    WriteOptions { durability: Some(Durability::Strict), ..WriteOptions::default() }
}

/// A value and its expiry, or none.
type Old = Option<(Vec<u8>, Option<UnixMillis>)>;

/// A change, and what there was before.
struct Step<'b> {
    change: &'b Change,
    hash: u64,
    old: Old,
}

/// What a batch does in one group.
struct Share<'b> {
    group: &'b Arc<Group>,
    steps: Vec<Step<'b>>,
    batch: Batch,
    /// The devices in their order, once that is known.
    order: Option<Order>,
    /// Devices that it was made on.
    made: Devices,
}

impl Share<'_> {
    fn hashes(&self) -> Vec<u64> {
        self.steps.iter().map(|step| step.hash).collect()
    }
}

impl Shared {
    /// Makes all changes of a batch or none; durable when it returns.
    ///
    /// # Errors
    /// As a write of each, and [`Error::BatchTooLarge`].
    pub(crate) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.check_writable()?;
        self.check_batch(batch)?;
        let written = self.apply_in_turn(batch, options)?;
        // Without the turns, for which it waits.
        if let Some(change) = batch.changes().first() {
            self.look_after(hash_of(change.key()), written.sequence);
        }
        Ok(written)
    }

    fn apply_in_turn(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        let mut changes: BTreeMap<&[u8], &Change> = BTreeMap::new();
        // Of several of one key the last counts.
        changes.extend(batch.changes().iter().map(|change| (change.key(), change)));
        let _turns = self.turns(changes.keys().map(|key| hash_of(key)));
        // Within the turns, so that it is above all that was written to these keys.
        let given = options.sequence;
        let sequence = self.groups[0].draw(given);
        let options = WriteOptions {
            sequence: Some(sequence),
            completion: Completion::Wait,
            expires_at: None,
            ..*options
        };
        let nothing = Written { sequence, ticket: Ticket::DURABLE, replaced: false };
        // Before anything is looked at, as the filters want it.
        let counting: Vec<_> = self.groups.iter().map(|group| group.filter.change()).collect();
        self.check_writable()?;
        loop {
            let mut shares = self.shares(&changes, given)?;
            if shares.is_empty() {
                return Ok(nothing);
            }
            let replaced = shares.iter().flat_map(|it| &it.steps).any(|step| step.old.is_some());
            match self.make_shares(&mut shares, &options, &counting)? {
                None => {
                    self.counters.add(Count::Batches, 1);
                    for step in shares.iter().flat_map(|share| &share.steps) {
                        let is_put = matches!(step.change, Change::Put { .. });
                        self.counters.add(if is_put { Count::Puts } else { Count::Deletes }, 1);
                    }
                    return Ok(Written { replaced, ..nothing });
                }
                Some((_, None, error)) => return Err(error),
                Some((group, Some(device), error)) => {
                    self.groups[usize::from(group)].go_on_without(device, error)?;
                }
            }
        }
    }

    fn check_batch(&self, batch: &Batch) -> Result<()> {
        let (len, max) = (batch.len(), self.limits.batch_len_max);
        if len > max {
            return Err(Error::BatchTooLarge { len, max });
        }
        for change in batch.changes() {
            self.check_key(change.key())?;
            let max = self.limits.value_len_max;
            if let Change::Put { value, .. } = change
                && value.len() > max
            {
                return Err(Error::ValueTooLong { len: value.len(), max });
            }
        }
        Ok(())
    }

    /// The turns of all these keys, in the order in which everybody takes them.
    pub(crate) fn turns(&self, hashes: impl Iterator<Item = u64>) -> Vec<Turn<'_>> {
        let mut stripes: Vec<usize> = hashes.map(Pending::stripe_of).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.pending.turn(stripe)).collect()
    }

    /// What is to be done in each group, in sight of what is there. What is deleted and not there
    /// is left out, unless a sequence is given; then what is older than what is there.
    fn shares<'b>(
        &'b self,
        changes: &BTreeMap<&[u8], &'b Change>,
        given: Option<u64>,
    ) -> Result<Vec<Share<'b>>> {
        let mut by_group: BTreeMap<u16, Vec<Step<'b>>> = BTreeMap::new();
        for (key, change) in changes {
            let hash = hash_of(key);
            let (mut old, mut newest) = (None, None);
            self.find(hash, key, Visibility::Durable, &mut |record: Record<'_>| {
                old = Some((record.value.to_vec(), record.expires_at));
                newest = Some(record.sequence);
            })?;
            let is_idle = match given {
                Some(given) => newest >= Some(given),
                None => old.is_none() && matches!(change, Change::Delete { .. }),
            };
            if is_idle {
                continue;
            }
            let step = Step { change, hash, old };
            by_group.entry(self.group_of(hash).number).or_default().push(step);
        }
        let share = |(number, steps): (u16, Vec<Step<'b>>)| {
            let mut batch = Batch::new();
            for step in &steps {
                batch.push(step.change.clone());
            }
            let group = &self.groups[usize::from(number)];
            Share { group, steps, batch, order: None, made: 0 }
        };
        Ok(by_group.into_iter().map(share).collect())
    }

    /// Makes all of it; or none, and says which device refused, and how.
    fn make_shares(
        &self,
        shares: &mut [Share<'_>],
        options: &WriteOptions,
        counting: &[crate::bloom::Change<'_>],
    ) -> Result<Option<(u16, Option<u8>, Error)>> {
        let sequence = options.sequence.unwrap_or_default();
        let is_held = shares.len() > 1;
        shares.iter_mut().try_for_each(Share::choose_devices)?;
        for share in shares.iter() {
            let asked = share.order.as_ref().map_or(0, Order::asked);
            for step in &share.steps {
                let hash = step.hash;
                let entry = Entry { hash, sequence, asked, done: 0, is_held, before: None };
                self.pending.begin(entry);
            }
        }
        let _publishing = self.isolation.begin();
        let intent = is_held.then(|| self.write_intent(shares, sequence)).transpose();
        let (intent, failed) = match intent {
            Ok(intent) => (intent, self.make_on_devices(shares, options)),
            Err(failed) => (None, Some(failed)),
        };
        let mut taken_back = Ok(());
        if failed.is_some() {
            taken_back = self.take_back(shares);
        } else {
            for share in shares.iter() {
                let change = &counting[usize::from(share.group.number)];
                for step in &share.steps {
                    match (step.change, &step.old) {
                        (Change::Put { .. }, None) => drop(change.insert(step.hash)),
                        (Change::Delete { .. }, Some(_)) => change.remove(step.hash),
                        _ => {}
                    }
                }
            }
        }
        if let Some(number) = intent {
            // One that cannot be deleted is made again when the matrix is opened: sequences decide.
            for device in share_members(&shares[0]) {
                let _dropped = drop_intent(&*device.engine, number).is_ok();
            }
            self.intents.give_back(number);
        }
        if failed.is_some() {
            for share in shares.iter() {
                let members = share.group.members();
                share.steps.iter().for_each(|step| self.pending.refuse(step.hash, members));
            }
            return taken_back.map(|()| failed);
        }
        shares.iter().for_each(|share| self.release(share, options));
        Ok(None)
    }

    fn release(&self, share: &Share<'_>, options: &WriteOptions) {
        let sequence = options.sequence.unwrap_or_default();
        for device in share.group.of(share.group.members() & !share.made) {
            let (batch, hashes) = (share.batch.clone(), share.hashes());
            let job = Job { batch, options: *options, hashes };
            // If there is no such device nobody waits for it.
            let _follows = share.group.hand_over(device.number, job).is_ok();
        }
        for step in &share.steps {
            self.pending.let_go(step.hash);
            for number in numbers(share.made) {
                self.pending.done(step.hash, sequence, number, share.group.members());
            }
        }
    }

    /// Makes every share on the devices that are waited for; says what failed.
    fn make_on_devices(
        &self,
        shares: &mut [Share<'_>],
        options: &WriteOptions,
    ) -> Option<(u16, Option<u8>, Error)> {
        for share in shares {
            let group = share.group;
            let make_on = |number: u8| {
                let device = group.device(number)?;
                make(&*device.engine, &share.batch, options)
            };
            let Some(order) = &share.order else { continue };
            match group.copy(order, 0, make_on) {
                Ok(made) => share.made = made,
                Err(NotMade { made, device, error }) => {
                    share.made = made;
                    return Some((group.number, device, error));
                }
            }
        }
        None
    }

    /// Takes back what was made.
    fn take_back(&self, shares: &[Share<'_>]) -> Result<()> {
        for share in shares {
            let sequence = Some(share.group.draw(None));
            let options = WriteOptions { sequence, ..WriteOptions::default() };
            for number in numbers(share.made) {
                let engine = &*share.group.device(number)?.engine;
                let restored = share.steps.iter().try_for_each(|step| {
                    let put = step.old.as_ref().map(|(value, at)| (value.as_slice(), *at));
                    Decided { key: step.change.key(), put }.make(engine, &options)
                });
                // It has what nobody else has: then it is no member any more.
                if restored.is_err() {
                    share.group.drop_member(number)?;
                }
            }
        }
        Ok(())
    }

    /// Writes down the whole of a batch on all members of its first group; durable when it returns.
    fn write_intent(
        &self,
        shares: &[Share<'_>],
        sequence: u64,
    ) -> std::result::Result<u32, (u16, Option<u8>, Error)> {
        let number = self.intents.take();
        let changes: Vec<&Change> =
            shares.iter().flat_map(|share| &share.steps).map(|step| step.change).collect();
        let bytes = encode(sequence, &changes);
        for device in share_members(&shares[0]) {
            if let Err(error) = device.engine.put(&intent_key(number), &bytes, &durable()) {
                for device in share_members(&shares[0]) {
                    let _dropped = drop_intent(&*device.engine, number).is_ok();
                }
                self.intents.give_back(number);
                return Err((shares[0].group.number, Some(device.number), error));
            }
        }
        Ok(number)
    }
}

fn share_members<'a>(share: &'a Share<'_>) -> impl Iterator<Item = &'a Arc<crate::device::Device>> {
    share.group.of(share.group.members())
}

impl Share<'_> {
    /// The devices that are waited for, all of which have the newest of all keys, and the others.
    fn choose_devices(&mut self) -> Result<()> {
        let mut order = None;
        for step in &self.steps {
            // Waits until enough of them have it.
            order = Some(self.group.order(step.hash)?);
        }
        let Some(order) = order else { return Ok(()) };
        let (members, copies) = (order.members(), order.awaited().len());
        // One that is first for a key need not be current for another: those are taken that are
        // current for all.
        let mut current = members;
        for step in &self.steps {
            if let Some(entry) = self.group.pending.entry(step.hash) {
                current &= if entry.done == 0 { 1 << entry.asked } else { entry.done };
            }
        }
        if (current.count_ones() as usize) < copies || self.group.members() != members {
            // Every write that is under way ends soon.
            self.group.settle_all();
            return self.choose_devices();
        }
        self.order = Some(order.with_first(current));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_reads_as_it_was_written() {
        let changes = vec![
            Change::Put { key: b"a".to_vec(), value: b"one".to_vec(), expires_at: None },
            Change::Delete { key: vec![] },
            Change::Put { key: vec![7; 300], value: vec![], expires_at: Some(UnixMillis(5)) },
        ];
        let references: Vec<&Change> = changes.iter().collect();
        let bytes = encode(77, &references);
        assert_eq!(decode(&bytes), Some((77, changes)));
        for len in 0..bytes.len() {
            // Cut short it is none, or ends where a change does.
            assert!(decode(&bytes[..len]).is_none_or(|(_, changes)| changes.len() < 3));
        }
    }
}
