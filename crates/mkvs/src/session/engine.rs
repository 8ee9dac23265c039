//! The engine traits of a matrix.

use crate::device::{If, UserCode, is_damage};
use crate::keyspace::intent::own_records;
use crate::matrix::Matrix;
use crate::rebuild::difference;
use coreplane_engine::{
    Batch, Damage, Deferred, DurableListener, Engine, Entry, Expected, Found, Horizon, Limits,
    Mutation, Ordered, Outcome, Progress, Record, Repairable, Replicated, Result, Stats,
    UnixMillis, VerifyReport, Visibility, WriteOptions, Written,
};
use std::sync::atomic::Ordering;

impl Engine for Matrix {
    fn name(&self) -> &'static str {
        crate::shape::NAME
    }

    fn limits(&self) -> Limits {
        self.keyspace.limits
    }

    fn prefetch(&self, key: &[u8]) {
        self.keyspace.prefetch(key);
    }

    fn get_with(
        &self,
        key: &[u8],
        _visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.keyspace.get_with(key, visit)
    }

    fn multi_get(
        &self,
        keys: &[&[u8]],
        _visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.keyspace.answers(keys)?.show(visit);
        Ok(Horizon::new())
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write_put(key, value, options)
    }

    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write_value((key, value), If::Missing, options)
    }

    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write_value((key, value), If::There, options)
    }

    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.write_delete(key, options)
    }

    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.write_value((key, value), If::Is(expected), options)
    }

    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.write_modified(key, options, decide)
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.write_batch(batch, options)
    }

    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        self.keyspace.iterate(cursor, count, visit)
    }

    fn len(&self) -> Result<u64> {
        self.keyspace.len()
    }

    fn try_len(&self) -> Result<Option<u64>> {
        self.keyspace.try_len()
    }

    fn count(&self) -> Result<()> {
        for group in self.keyspace.groups.iter() {
            for device in group.of(group.members()) {
                // A failure is ignored: reads report it.
                let _counted = device.engine.call(|it| it.count()).is_ok();
            }
        }
        Ok(())
    }

    fn clear(&self) -> Result<()> {
        self.remove_all()
    }

    fn clears_at_once(&self) -> bool {
        true
    }

    fn sweep_expired(&self) -> Result<u64> {
        self.keyspace.sweep_expired()
    }

    fn now(&self) -> UnixMillis {
        self.keyspace.clock.now()
    }

    fn sync(&self) -> Result<()> {
        self.keyspace.sync()
    }

    fn stats(&self) -> Stats {
        self.figures()
    }

    fn close(&self) -> Result<()> {
        self.leave_clean()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.keyspace.is_ordered().then_some(&*self.keyspace as &dyn Ordered)
    }
}

impl Deferred for Matrix {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.keyspace.wait_durable(horizon).map(|()| true)
    }

    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        Ok(self.keyspace.is_durable(horizon))
    }

    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.keyspace.wait_durable(horizon)
    }

    fn on_durable(&self, _listener: DurableListener) {}
}

impl Replicated for Matrix {
    fn advance_sequence(&self) -> Result<u64> {
        Ok(self.keyspace.groups[0].draw(None))
    }

    fn changes_since(&self, sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        let mut user = UserCode::default();
        let shown = self.keyspace.changes_since(sequence, &mut |entry| {
            let _shown = user.run(|| visit(entry));
        });
        user.end();
        shown
    }

    fn hold_tombstones(&self, sequence: u64) -> Result<()> {
        self.failover.hold_tombstones(sequence)
    }

    fn tombstone_horizon(&self) -> u64 {
        self.keyspace.tombstone_horizon()
    }
}

impl Repairable for Matrix {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        for group in self.keyspace.groups.iter() {
            let mut is_first = true;
            for device in group.of(group.members()) {
                device.drain();
                let mut user = UserCode::default();
                let mut tell = |done| user.run(|| progress(done)).unwrap_or_default();
                let of_device = device.engine.call(|it| it.verify(&mut tell));
                user.end();
                let of_device = of_device?;
                if is_first {
                    let own = told(own_records(&device.engine), &of_device.damages)?.unwrap_or(0);
                    report.records += of_device.records.saturating_sub(own);
                    report.bytes += of_device.bytes;
                }
                is_first = false;
                let named = of_device.damages.into_iter().map(|damage| Damage {
                    what: format!("{}: {}", device.at, damage.what),
                    ..damage
                });
                report.damages.extend(named);
            }
            let differs = told(difference(&self.keyspace, group), &report.damages)?;
            report.damages.extend(differs.flatten());
        }
        Ok(report)
    }

    fn grow(&self, size: u64) -> Result<()> {
        // One after the other. A failure of one does not stop this, and counts if it is a member: a failed device
        // has left.
        let mut outcome = Ok(());
        for group in self.keyspace.groups.iter() {
            let members = group.members();
            for device in group.devices().filter(|device| !device.has_gone()) {
                let grown = device.engine.call(|it| it.grow(size));
                if members & 1 << device.number != 0 {
                    outcome = outcome.and(grown);
                }
            }
        }
        outcome
    }
}

impl Matrix {
    /// Interrupts all fills and moves, those that are about to begin included: they continue when the matrix
    /// is opened again.
    pub fn interrupt(&self) {
        self.rebuild.interrupted.store(true, Ordering::SeqCst);
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The result; none if damage prevents it, which the devices have reported.
fn told<T>(found: Result<T>, damages: &[Damage]) -> Result<Option<T>> {
    match found {
        Err(error) if is_damage(&error) && !damages.is_empty() => Ok(None),
        found => found.map(Some),
    }
}
