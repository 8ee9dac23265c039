//! The matrix's face.

use crate::filter::hash_of;
use crate::matrix::condition::If;
use crate::matrix::{Answer, Matrix, Shared};
use coreplane_engine::{
    Batch, Damage, DurableListener, Engine, Entry, Expected, Found, Horizon, Limits, Mutation,
    Ordered, Outcome, Progress, Record, Result, Stats, UnixMillis, Value, VerifyReport, Visibility,
    WriteOptions, Written,
};
use coreplane_pmem::spin::Backoff;
use std::sync::atomic::Ordering;

/// Keys of which the lines are asked for before the first is read.
const LANE: usize = 16;

/// Looks at several keys before their key locks are taken.
const TRIES: usize = 8;

impl Shared {
    /// The records of keys, as they were at one moment as far as batches go.
    fn answers(&self, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>> {
        let read = || {
            let lanes = keys.chunks(LANE).map(|lane| self.lane_of(lane));
            lanes.collect::<Result<Vec<_>>>().map(|lanes| lanes.into_iter().flatten().collect())
        };
        let mut backoff = Backoff::new();
        for _ in 0..TRIES {
            let Some(quiet) = self.isolation.quiet() else {
                backoff.wait();
                continue;
            };
            let answers: Result<Vec<Option<Answer>>> = read();
            if self.isolation.is_quiet_since(quiet) {
                return answers;
            }
        }
        let _turns = self.lock_keys(keys.iter().map(|key| hash_of(key)));
        read()
    }
}

impl Shared {
    /// Of a few keys: the engines go ahead for all, and are asked then.
    fn lane_of(&self, keys: &[&[u8]]) -> Result<Vec<Option<Answer>>> {
        keys.iter().for_each(|key| self.group_of(hash_of(key)).prefetch_to_read(key));
        keys.iter().map(|key| self.answer(key)).collect()
    }
}

impl Engine for Matrix {
    fn name(&self) -> &'static str {
        crate::shape::NAME
    }

    fn limits(&self) -> Limits {
        self.shared.limits
    }

    fn get_with(
        &self,
        key: &[u8],
        _visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.shared.get_with(key, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        _visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        for (at, answer) in self.shared.answers(keys)?.iter().enumerate() {
            visit(at, answer.as_ref().map(Answer::record));
        }
        Ok(Horizon::new())
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.shared.put(key, value, options)
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.shared.write_value((key, value), If::Missing, options)
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.shared.write_value((key, value), If::There, options)
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.shared.delete(key, options)
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.shared.write_value((key, value), expected.into(), options)
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.shared.modify(key, options, decide)
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.shared.apply(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.shared.iterate(cursor, count, visit)
    }

    fn advance_sequence(&self) -> Result<u64> {
        Ok(self.shared.groups[0].draw(None))
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        self.shared.changes_since(sequence, visit)
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.shared.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.shared.tombstone_horizon()
    }

    fn len(&self) -> Result<u64> {
        self.shared.len()
    }

    fn clear(&self) -> Result<()> {
        self.shared.clear()
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.shared.sweep_expired()
    }

    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.shared.wait_durable(horizon).map(|()| true)
    }

    fn now(&self) -> UnixMillis {
        self.shared.clock.now()
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        Ok(self.shared.is_durable(horizon))
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.shared.wait_durable(horizon)
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    fn on_durable(&self, _listener: DurableListener) {}

    fn stats(&self) -> Stats {
        self.shared.stats()
    }

    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.shared.verify(progress)
    }

    fn close(&self) -> Result<()> {
        self.shared.close()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.shared.is_ordered().then_some(&*self.shared as &dyn Ordered)
    }
}

impl Matrix {
    /// Ends whatever is filled or moved, or is about to be: it goes on when the matrix is opened again.
    pub fn interrupt(&self) {
        self.shared.interrupted.store(true, Ordering::SeqCst);
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    /// Verifies every device, and holds the members of each group against each other.
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        for group in self.groups.iter() {
            let mut is_first = true;
            for device in group.of(group.members()) {
                device.drain();
                let of_device = device.engine.verify(progress)?;
                if is_first {
                    let own = crate::matrix::intent::own_records(&*device.engine)?;
                    report.records += of_device.records.saturating_sub(own);
                    report.bytes += of_device.bytes;
                }
                is_first = false;
                let name = format!("g{}d{}", group.number, device.number);
                let named = of_device
                    .damages
                    .into_iter()
                    .map(|damage| Damage { what: format!("{name}: {}", damage.what), ..damage });
                report.damages.extend(named);
            }
            if let Some(what) = self.difference(group)? {
                report.damages.push(Damage { offset: 0, what });
            }
        }
        Ok(report)
    }
}

impl Answer {
    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            value: Value::Whole(&self.value),
            sequence: self.sequence,
            expires_at: self.expires_at,
            ticket: coreplane_engine::Ticket::DURABLE,
        }
    }
}
