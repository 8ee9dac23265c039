//! Batches: in one group or over several, all of it or none.
//!
//! The key locks of all keys are taken, in the order of their stripes. In one group a batch is one call of
//! each device's engine, which makes all of it or none, and readers go to one device until all devices that
//! the write waits for have it.
//!
//! Over several groups the whole batch is first recorded as an [`intent`](crate::keyspace::intent); then it
//! is made in each group; then the intent is deleted. Meanwhile readers of its keys wait, so that no reader
//! sees a part.

use crate::device::{Decided, Device, Guarded, Job, make};
use crate::filter::hash_of;
use crate::group::{Group, NotMade, taken_back, undo_options};
use crate::in_flight::{Hashed, KeyLock, Old, Torn};
use crate::keyspace::intent::{Intent, Lost};
use crate::matrix::Matrix;
use crate::membership::Moment;
use crate::shape::{Devices, Order};
use crate::stats::Count;
use coreplane_engine::{
    Batch, ChangeRef, Completion, Error, Record, Remedy, Result, Ticket, WriteOptions, Written,
};
use coreplane_pmem::spin::Backoff;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys whose cache lines are requested before the first of them is read.
const LANE: usize = 16;

/// A change, and the value before it.
struct Step<'b> {
    change: ChangeRef<'b>,
    hash: u64,
    old: Old,
}

/// The device on which a batch failed, if on one, and the error.
type Failed = (Option<Arc<Device>>, Error);

/// The result of a batch.
enum Made {
    All,
    /// It is made; but a device could not be told, and the next open of the matrix may take it back.
    Perhaps(Error),
    /// It was taken back.
    Nothing(Failed),
}

/// The part of a batch in one group.
struct Share<'b> {
    group: &'b Arc<Group>,
    steps: Vec<Step<'b>>,
    batch: Arc<Batch>,
    /// The devices that the batch waits for, all of which have the newest writes of all keys, and the others.
    order: Order,
    /// The devices on which it was made.
    made: Devices,
    /// The states of the group by which those devices are enough.
    then: Option<Moment>,
}

impl<'b> Step<'b> {
    /// The key, with its hash.
    fn key(&self) -> Hashed<'b> {
        (self.hash, self.change.key())
    }
}

impl Share<'_> {
    fn hashes(&self) -> Vec<u64> {
        self.steps.iter().map(|step| step.hash).collect()
    }

    /// Changes its intent on all members, and on devices that may become members before the batch is acknowledged.
    /// A device that fails to is no longer a member.
    ///
    /// # Errors
    /// The last one of a device that can neither change it nor leave.
    fn change_intent(&self, change: impl Fn(&Guarded) -> Result<()>) -> Result<()> {
        let mut changed = Ok(());
        for device in self.holders() {
            if let Err(error) = change(&device.engine) {
                device.note_failure(&error);
                if self.group.drop_member(device).is_err() {
                    let at = device.at;
                    let what = format!("{at} could not change the batch's intent ({error})");
                    changed = Err(Error::Unusable(what));
                }
            }
        }
        changed
    }

    fn holders(&self) -> impl Iterator<Item = &Arc<Device>> {
        let now = self.group.states.now();
        self.group.of(now.members() | now.candidates())
    }
}

impl Matrix {
    /// Makes all changes of a batch or none; durable when it returns.
    ///
    /// # Errors
    /// As a write of each, and [`Error::BatchTooLarge`].
    pub(crate) fn write_batch(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.failover.check_writable()?;
        self.check_batch(batch)?;
        if self.keyspace.relaxed.is_first(options) {
            self.failover.note_relaxed()?;
        }
        let mut applied = self.apply_in_turn(batch, options);
        // Without the key locks, since a checkpoint waits for them.
        if let Err(error) = &applied
            && self.failover.make_space(error, options.use_reserve)
        {
            applied = self.apply_in_turn(batch, options);
        }
        let written = applied?;
        for change in batch.changes() {
            self.look_after(self.keyspace.group_of(hash_of(change.key())), written.sequence);
        }
        Ok(written)
    }

    fn apply_in_turn(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        let mut changes: BTreeMap<&[u8], ChangeRef<'_>> = BTreeMap::new();
        // The last of several changes of a key counts.
        changes.extend(batch.changes().map(|change| (change.key(), change)));
        let _turns = self.turns_to_write(&changes);
        let given = options.sequence;
        self.failover.make_way_for(given)?;
        // Before any key is read, as the filters require.
        let counting: Vec<_> =
            self.keyspace.groups.iter().map(|group| group.filter.change()).collect();
        self.keyspace.check_writable()?;
        loop {
            // Within the key locks, so that it is above all earlier writes of these keys. Anew each time, since a
            // write that takes back has a newer sequence than the write that was tried. One for each key: they count
            // what was written.
            let sequence = self.keyspace.groups[0].draw_many(given, changes.len().max(1));
            let options = WriteOptions {
                sequence: Some(sequence),
                durability: self.keyspace.relaxed.raised(options),
                completion: Completion::Wait,
                expires_at: None,
                ..*options
            };
            let nothing = Written { sequence, ticket: Ticket::DURABLE, replaced: false };
            let mut shares = self.shares(&changes, given)?;
            if shares.is_empty() {
                return Ok(nothing);
            }
            let replaced = shares.iter().flat_map(|it| &it.steps).any(|step| step.old.is_some());
            let (device, error) = match self.make_shares(&mut shares, &options, &counting)? {
                Made::Nothing(failed) => failed,
                made => {
                    self.note_made(&shares, sequence);
                    return match made {
                        Made::Perhaps(error) => Err(error),
                        _ => Ok(Written { replaced, ..nothing }),
                    };
                }
            };
            if given.is_some() {
                let is_made = shares.iter().any(|share| share.made != 0);
                return Err(if is_made { taken_back(given, error) } else { error });
            }
            let Some(device) = device else { return Err(error) };
            self.keyspace.groups[usize::from(device.at.group)].go_on_without(&device, error)?;
        }
    }

    /// A batch was made: writes it to the groups that its slots move to as well, and counts it.
    fn note_made(&self, shares: &[Share<'_>], sequence: u64) {
        self.keyspace.counters.add(Count::Batches, 1);
        for step in shares.iter().flat_map(|share| &share.steps) {
            if let Some(to) = self.keyspace.owners.of(step.hash).to() {
                self.keyspace.write_ahead(to, step.hash, &Decided::of(step.change), sequence);
            }
            let is_put = step.change.value().is_some();
            self.keyspace.counters.add(if is_put { Count::Puts } else { Count::Deletes }, 1);
            self.keyspace.in_flight.keep_tombstones(u64::from(!is_put));
        }
    }

    /// Takes the key locks of all keys, when none of them is in a slot that is just changing hands.
    fn turns_to_write(&self, changes: &BTreeMap<&[u8], ChangeRef<'_>>) -> Vec<KeyLock<'_>> {
        let mut backoff = Backoff::new();
        loop {
            let turns = self.keyspace.lock_keys(changes.keys().map(|key| hash_of(key)));
            if !changes.keys().any(|key| self.keyspace.owners.of(hash_of(key)).is_frozen()) {
                return turns;
            }
            drop(turns);
            backoff.wait();
        }
    }

    fn check_batch(&self, batch: &Batch) -> Result<()> {
        batch.check(&self.keyspace.limits)?;
        for change in batch.changes() {
            self.keyspace.check_key(change.key())?;
            change.value().map_or(Ok(()), |value| self.keyspace.check_value(value))?;
        }
        Ok(())
    }

    /// The changes to make in each group, given the current records. Without a given sequence a delete of an absent
    /// key is left out; with one, every change that is not newer than the current record or a known delete.
    fn shares<'b>(
        &'b self,
        changes: &BTreeMap<&[u8], ChangeRef<'b>>,
        given: Option<u64>,
    ) -> Result<Vec<Share<'b>>> {
        let mut by_group: BTreeMap<u16, Vec<Step<'b>>> = BTreeMap::new();
        let mut ahead = changes.keys();
        for (at, (key, change)) in changes.iter().enumerate() {
            if at.is_multiple_of(LANE) {
                self.prefetch_lane(ahead.by_ref().take(LANE));
            }
            let hash = hash_of(key);
            let (mut old, mut newest) = (None, None);
            // Not a damaged record: it may be written again, with a valid checksum.
            self.keyspace.find_sound(hash, key, &mut |record: Record<'_>| {
                old = Some((record.value.to_vec(), record.expires_at));
                newest = Some(record.sequence);
            })?;
            let is_idle = match given {
                Some(given) if newest.is_none() => {
                    let group = self.keyspace.group_of(hash);
                    self.keyspace.newer_delete(group, key, given)?.is_some()
                }
                Some(given) => newest >= Some(given),
                None => old.is_none() && change.value().is_none(),
            };
            if is_idle {
                continue;
            }
            let step = Step { change: *change, hash, old };
            by_group.entry(self.keyspace.group_of(hash).number).or_default().push(step);
        }
        let share = |(number, steps): (u16, Vec<Step<'b>>)| {
            let mut batch = Batch::new();
            for step in &steps {
                batch.push(step.change);
            }
            let group = &self.keyspace.groups[usize::from(number)];
            let keys: Vec<_> = steps.iter().map(Step::key).collect();
            let order = group.order_of(&keys)?;
            Ok(Share { group, steps, batch: Arc::new(batch), order, made: 0, then: None })
        };
        by_group.into_iter().map(share).collect()
    }

    /// Prefetches keys that are about to be read.
    fn prefetch_lane<'k>(&self, keys: impl Iterator<Item = &'k &'k [u8]>) {
        let keyed = keys.map(|key| (self.keyspace.group_of(hash_of(key)), *key));
        let lane: SmallVec<[_; LANE]> = keyed.collect();
        lane.iter().for_each(|(group, key)| group.prefetch_to_read(key));
        lane.iter().for_each(|(group, key)| group.prefetch_record(key));
    }

    /// Makes all of the batch; or none, and reports which device refused, and the error.
    fn make_shares(
        &self,
        shares: &mut [Share<'_>],
        options: &WriteOptions,
        counting: &[crate::filter::Change<'_>],
    ) -> Result<Made> {
        let sequence = options.sequence.unwrap_or_default();
        let is_held = shares.len() > 1;
        for share in shares.iter() {
            for step in &share.steps {
                let asked = share.order.asked();
                self.keyspace.in_flight.begin(step.key(), sequence, asked, is_held);
            }
        }
        let _publishing = self.keyspace.isolation.begin();
        // Drawn now, within the key locks, so that every later write of these keys is newer.
        let undone = self.keyspace.groups[0].draw(None);
        let intent = is_held.then(|| self.write_intent(shares, (sequence, undone))).transpose();
        let (intent, failed) = match intent {
            Ok(intent) => {
                let made = self.make_on_devices(shares, options);
                let follow = |share: &mut Share<'_>| self.let_follow(share, options);
                (intent, made.or_else(|| shares.iter_mut().find_map(follow)))
            }
            Err(failed) => (None, Some(failed)),
        };
        let Some(failed) = failed else {
            self.count(shares, counting);
            let dropped = intent.map_or(Ok(()), |intent| self.drop_intent(&shares[0], intent));
            shares.iter().for_each(|share| self.release(share, sequence));
            return Ok(dropped.map_or_else(Made::Perhaps, |()| Made::All));
        };
        // From here on an open that finds the intent takes the batch back.
        let refuse = |it: Lost| shares[0].change_intent(|engine| Intent::refuse(engine, it.number));
        let refused = intent.map_or(Ok(()), refuse);
        let taken_back = refused.and_then(|()| self.take_back(shares, undone));
        match (intent, &taken_back) {
            (Some(intent), Ok(())) => {
                let _dropped = self.drop_intent(&shares[0], intent).is_ok();
            }
            // The scrub or the next open takes the batch back.
            (Some(it), Err(_)) => self.failover.intents.lose(Lost { is_over: false, ..it }),
            (None, _) => {}
        }
        self.keyspace.in_flight.count_taken_back();
        for share in shares.iter() {
            for step in &share.steps {
                // The value that was found is known to be the last one written.
                let (old, known) = (Some(step.old.clone()), u64::MAX);
                let torn = || Torn { made: share.made, asked: share.order.asked(), old, known };
                let torn = taken_back.is_err().then(torn);
                share.group.refuse(step.hash, step.change.key(), torn);
            }
        }
        taken_back.map(|()| Made::Nothing(failed))
    }

    /// A batch was made: counts its new keys in the filters, and uncounts those that it has deleted.
    fn count(&self, shares: &[Share<'_>], counting: &[crate::filter::Change<'_>]) {
        for share in shares {
            let change = &counting[usize::from(share.group.number)];
            for step in &share.steps {
                match (step.change, &step.old) {
                    (ChangeRef::Put { .. }, None) => drop(change.insert(step.hash)),
                    (ChangeRef::Delete { .. }, Some(_)) => change.remove(step.hash),
                    _ => {}
                }
            }
        }
    }

    /// Has the other devices follow while the intent still exists, since a member that leaves meanwhile may
    /// have been one that has the batch. Returns a failure, if there is one.
    fn let_follow(&self, share: &mut Share<'_>, options: &WriteOptions) -> Option<Failed> {
        loop {
            for device in share.group.of(share.group.followers() & !share.made) {
                let (batch, hashes) = (Arc::clone(&share.batch), share.hashes());
                let job = Job { batch, options: *options, hashes };
                share.group.follow_all(device, job);
            }
            if share.then.is_none_or(|then| share.group.is_as_then(then)) {
                return None;
            }
            let failed = self.make_on_devices(std::slice::from_mut(share), options);
            if failed.is_some() {
                return failed;
            }
        }
    }

    /// Shows a share to readers.
    fn release(&self, share: &Share<'_>, sequence: u64) {
        for step in &share.steps {
            self.keyspace.in_flight.let_go(step.key());
            let followers = share.group.followers();
            self.keyspace.in_flight.done(step.key(), sequence, share.made, followers);
        }
    }

    /// Makes every share on the devices that the batch waits for; returns a failure, if there is one.
    fn make_on_devices(&self, shares: &mut [Share<'_>], options: &WriteOptions) -> Option<Failed> {
        for share in shares {
            let group = share.group;
            let make_on = |device: &Arc<Device>| make(&device.engine, &share.batch, options);
            match group.copy(&share.order, share.made, make_on) {
                Ok((made, then)) => (share.made, share.then) = (made, Some(then)),
                Err(NotMade { made, device, error }) => {
                    share.made = made;
                    return Some((device, error));
                }
            }
        }
        None
    }

    /// Takes back the shares that were made: each on each device at once, as it was made. So a power cut leaves a
    /// batch of one group, which has no intent, as a whole or not at all.
    fn take_back(&self, shares: &[Share<'_>], undone: u64) -> Result<()> {
        // A share that was made nowhere needs no undo, and there may be no space for one.
        for share in shares.iter().filter(|share| share.made != 0) {
            let options = undo_options(undone);
            share.group.restore(share.made, |device, is_spared| {
                let mut batch = Batch::new();
                for step in &share.steps {
                    let old = Decided::to(step.change.key(), &step.old);
                    if !(is_spared && old.is_idle(&device.engine)) {
                        batch.push(old.as_change());
                    }
                }
                if batch.is_empty() {
                    return Ok(());
                }
                match make(&device.engine, &batch, &options) {
                    // Others have taken pages of the old values since: one by one they need fewer.
                    Err(error) if error.remedy() == Remedy::FreeSpace => {
                        share.steps.iter().try_for_each(|step| {
                            let old = Decided::to(step.change.key(), &step.old);
                            old.restore(&device.engine, &options, is_spared).map(|_| ())
                        })
                    }
                    made => made,
                }
            })?;
            for step in &share.steps {
                self.keyspace.give_anew_after_refusal(step.hash, step.change.key());
            }
        }
        Ok(())
    }

    /// Records the whole batch on all members of its first group; durable when it returns. Returns what is lost if
    /// the intent cannot be deleted when the batch is over.
    fn write_intent(
        &self,
        shares: &[Share<'_>],
        (made, undone): (u64, u64),
    ) -> std::result::Result<Lost, Failed> {
        let group = shares[0].group;
        let number = self.failover.intents.take().map_err(|error| (None, error))?;
        let least = made.min(undone);
        let written = Lost { number, group: group.number, least, is_over: true };
        let steps = shares.iter().flat_map(|share| &share.steps);
        let intent = Intent::encode((made, undone), steps.map(|it| (it.change, &it.old)));
        for device in shares[0].holders() {
            if let Err(error) = Intent::write(&device.engine, number, &intent) {
                let is_member = group.members() & 1 << device.number != 0;
                if !is_member && group.drop_member(device).is_ok() {
                    // The candidate does not become a member, which is no reason to refuse the batch.
                    continue;
                }
                // The next open must not find the intent and make the batch.
                let unmade = Lost { is_over: false, ..written };
                let _dropped = self.drop_intent(&shares[0], unmade).is_ok();
                return Err((Some(Arc::clone(device)), error));
            }
        }
        Ok(written)
    }

    /// Deletes the intent of a batch that is over.
    ///
    /// # Errors
    /// If a device fails to delete it and is the last of its group: then the batch is made or taken back
    /// again when the matrix is opened, unless the intent can be deleted before.
    fn drop_intent(&self, share: &Share<'_>, intent: Lost) -> Result<()> {
        let dropped = share.change_intent(|engine| Intent::drop(engine, intent.number));
        match dropped {
            Ok(()) => self.failover.intents.give_back(intent.number),
            Err(_) => self.failover.intents.lose(intent),
        }
        dropped.map_err(|error| {
            Error::Unusable(format!(
                "the batch was made, and {error}: it may be taken back when the matrix is opened again"
            ))
        })
    }
}
