//! A device's processor: the thread that executes the requests in its rings.

use super::apply_batch::ApplyBatch;
use super::idle::{NAPS, Urgency};
use super::{AT_A_TIME, Device, Host, Rings, SPINS};
use coreplane_pmem::epoch::pin_in;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl Device {
    /// Runs the processor. If it panics outside the engine, its device counts as failed.
    pub(super) fn run<H: Host>(&self, group: &Weak<H>) {
        let mut batch = ApplyBatch::default();
        if catch_unwind(AssertUnwindSafe(|| self.serve(group, &mut batch))).is_err() {
            if let Some(group) = group.upgrade()
                && group.leave_out(self).is_err()
            {
                // It keeps what it has made. The writes that remain are reported as never made.
                let guard = pin_in();
                loop {
                    batch.decisions().for_each(|decision| group.give_up_write(self, &decision));
                    let rings = self.rings(&guard);
                    if !rings.is_some_and(|it| batch.take(&it.decisions, &mut |_| {})) {
                        break;
                    }
                }
            }
            self.is_closed.store(true, Ordering::SeqCst);
        }
    }

    fn serve<H: Host>(&self, group: &Weak<H>, batch: &mut ApplyBatch) {
        // Spins until it naps, and rests until it sleeps.
        let (mut spins, mut rests, mut urgency) = (0, 0, Urgency::default());
        loop {
            let (answered, made) = (self.answered(), self.made());
            if self.work(group, batch) {
                // For reads it need not look by itself.
                rests = if self.made() == made { NAPS.min(rests) } else { 0 };
                let has_answered = self.answered() != answered;
                spins = if has_answered { SPINS } else { 0 };
                urgency.note(has_answered);
            } else if self.is_closed.load(Ordering::SeqCst) {
                // Requests that came before the close are still executed.
                if self.is_idle() {
                    return;
                }
            } else if spins > 0 {
                spins -= 1;
                std::hint::spin_loop();
            } else {
                self.rest(rests);
                rests = rests.saturating_add(1);
            }
        }
    }

    /// Writes and batches that it has dealt with, as far as that has been published.
    fn made(&self) -> u64 {
        self.track.past() + self.completed.load(Ordering::Relaxed)
    }

    /// Requests of waiting callers that it has dealt with.
    fn answered(&self) -> u64 {
        self.pace.reads()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.rings(&pin_in()).is_none_or(Rings::is_idle)
    }

    /// Executes some requests, those reads that wait before each write; false if there were none.
    fn work<H: Host>(&self, group: &Weak<H>, batch: &mut ApplyBatch) -> bool {
        let guard = pin_in();
        let Some(rings) = self.rings(&guard).filter(|rings| !rings.is_idle()) else {
            return false;
        };
        let Some(group) = group.upgrade() else {
            // The group is gone, so the requests do not matter any more.
            while batch.take(&rings.decisions, &mut |_| {}) {
                self.track.stop(batch.begin());
                self.track.come_to(batch.end());
            }
            while let Some(job) = rings.jobs.pop() {
                self.backlog.remove(job.batch.bytes_len() as u64);
                self.completed.fetch_add(1, Ordering::AcqRel);
            }
            while rings.reads.pop().is_some() {}
            return false;
        };
        for _ in 0..AT_A_TIME {
            self.answer(rings);
            let mut prefetch = |key: &[u8]| self.engine.hint(|it| it.prefetch(key));
            let has_batch = batch.take(&rings.decisions, &mut prefetch);
            if has_batch {
                self.apply_batch((&*group, rings), batch);
            }
            // Behind each apply batch, since the ring of decisions may never be empty. The order does not matter: an
            // engine keeps the greatest sequence.
            if !rings.jobs.is_empty()
                && let Some(job) = rings.jobs.pop()
            {
                self.in_call(|| group.catch_up_all(self, &job));
                self.backlog.remove(job.batch.bytes_len() as u64);
                self.completed.fetch_add(1, Ordering::AcqRel);
            } else if !has_batch && rings.reads.is_empty() {
                break;
            }
        }
        true
    }

    /// Answers the reads that wait at this moment: others may follow for ever, and writes wait meanwhile.
    #[inline]
    pub(super) fn answer(&self, rings: &Rings) {
        if rings.reads.is_empty() {
            return;
        }
        for _ in 0..rings.reads.len() {
            let Some((asked, asked_at)) = rings.reads.pop() else { return };
            self.in_call(|| asked.run(self, asked_at));
        }
    }
}
