//! A queue set: a write ring and a read ring, which one thread at a time empties.
//!
//! ```text
//!   idle      the caller executes its own requests; nothing is handed over
//!   busy      requests go to the rings; the active caller leaves those that arrive to the set's thread
//!   thread    some writes, as one batch ─▶ the reads that are allowed ─▶ some writes …
//! ```
//!
//! Writes go first. A read waits for the batch that is being written, for one more, and for earlier writes that
//! overlap it; a write waits for earlier reads that overlap it.

use crate::error::Error;
use crate::tio::{Op, Tio};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most requests of a batch, and the most bytes.
const BATCH_LEN: usize = 64;
const BATCH_BYTES: u64 = 4 << 20;

/// Requests of one caller that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Group {
    done: Mutex<Vec<(usize, Tio)>>,
    changed: Condvar,
}

impl Group {
    fn finish(&self, index: usize, tio: Tio) {
        self.done.lock().push((index, tio));
        self.changed.notify_one();
    }

    /// Waits until `count` requests are done; returns them with their numbers.
    pub(crate) fn wait(&self, count: usize) -> Vec<(usize, Tio)> {
        let mut done = self.done.lock();
        while done.len() < count {
            self.changed.wait(&mut done);
        }
        std::mem::take(&mut *done)
    }
}

/// A request in a ring. Dropping it finishes the request in its current state.
#[derive(Debug)]
pub(crate) struct Job {
    sequence: u64,
    index: usize,
    /// The partition that it is for.
    pub(crate) partition: usize,
    op: Op,
    range: Range<u64>,
    tio: Option<Tio>,
    group: Arc<Group>,
}

impl Job {
    /// The request.
    pub(crate) fn tio(&mut self) -> Option<&mut Tio> {
        self.tio.as_mut()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(tio) = self.tio.take() {
            self.group.finish(self.index, tio);
        }
    }
}

#[derive(Debug, Default)]
struct Rings {
    writes: VecDeque<Job>,
    reads: VecDeque<Job>,
    sequence: u64,
    /// True while a caller or the thread executes requests of the set.
    is_running: bool,
    /// True if the requests in the rings are for the thread.
    is_handed: bool,
    is_closed: bool,
    #[cfg(test)]
    longest: u64,
}

/// A queue set.
#[derive(Debug, Default)]
pub(crate) struct QueueSet {
    rings: Mutex<Rings>,
    work: Condvar,
}

/// The right to execute requests of a set. When it is dropped, requests that have arrived meanwhile go to the thread.
#[derive(Debug)]
pub(crate) struct Running<'s>(&'s QueueSet);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut rings = self.0.rings.lock();
        match rings.writes.is_empty() && rings.reads.is_empty() {
            true => rings.is_running = false,
            false => self.0.hand_over(&mut rings),
        }
    }
}

/// True if two ranges have a byte in common.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl QueueSet {
    /// Gives the caller the right to execute its requests, if the set is idle. Otherwise they must be
    /// [queued](QueueSet::push).
    pub(crate) fn begin(&self) -> Option<Running<'_>> {
        let was_running = std::mem::replace(&mut self.rings.lock().is_running, true);
        // Lazily: a right that is dropped would end that of the caller which has it.
        (!was_running).then(|| Running(self))
    }

    /// Queues a request, with its number and its partition, for the set's thread.
    pub(crate) fn push(&self, (index, partition): (usize, usize), tio: Tio, group: &Arc<Group>) {
        let mut rings = self.rings.lock();
        rings.sequence += 1;
        let (sequence, op, range, group) = (rings.sequence, tio.op, tio.range(), Arc::clone(group));
        #[cfg(test)]
        {
            rings.longest = rings.longest.max(tio.len);
        }
        let job = Job { sequence, index, partition, op, range, tio: Some(tio), group };
        if op == Op::Read {
            rings.reads.push_back(job)
        } else {
            rings.writes.push_back(job)
        }
        if !rings.is_running {
            rings.is_running = true;
            self.hand_over(&mut rings);
        }
    }

    /// The most bytes of a request that was queued.
    #[cfg(test)]
    pub(crate) fn longest(&self) -> u64 {
        self.rings.lock().longest
    }

    fn hand_over(&self, rings: &mut Rings) {
        rings.is_handed = true;
        self.work.notify_one();
    }

    /// Closes the set: its thread ends when the rings are empty.
    pub(crate) fn close(&self) {
        self.rings.lock().is_closed = true;
        self.work.notify_one();
    }

    /// The work of the set's thread: executes the requests handed to it, until the set is closed.
    pub(crate) fn serve(&self, run: impl Fn(&mut Vec<Job>)) {
        // A panic in our code fails the requests, and ends neither the thread nor the waiting callers.
        let run = |batch: &mut Vec<Job>| {
            if catch_unwind(AssertUnwindSafe(|| run(batch))).is_err() {
                let all = batch.iter_mut().filter_map(Job::tio);
                all.for_each(|tio| tio.outcome = Err(Error::Closed));
            }
            batch.clear();
        };
        let mut batch = Vec::with_capacity(BATCH_LEN);
        loop {
            {
                let mut rings = self.rings.lock();
                while !rings.is_handed {
                    if rings.is_closed {
                        return;
                    }
                    self.work.wait(&mut rings);
                }
                rings.take_writes(&mut batch);
                if batch.is_empty() {
                    rings.take_reads(&mut batch);
                }
                if batch.is_empty() {
                    (rings.is_handed, rings.is_running) = (false, false);
                    continue;
                }
            }
            let wrote = batch.first().is_some_and(|job| job.op != Op::Read);
            run(&mut batch);
            if wrote {
                self.rings.lock().take_reads(&mut batch);
                run(&mut batch);
            }
        }
    }
}

impl Rings {
    /// Takes the next writes, up to the first that overlaps an earlier waiting read.
    fn take_writes(&mut self, batch: &mut Vec<Job>) {
        let mut bytes = 0;
        let reads = &self.reads;
        while batch.len() < BATCH_LEN
            && let Some(job) = self.writes.pop_front_if(|job| {
                let earlier = reads.iter().take_while(|read| read.sequence < job.sequence);
                bytes += job.range.end - job.range.start;
                (bytes <= BATCH_BYTES || batch.is_empty())
                    && !earlier.map(|read| &read.range).any(|it| overlap(it, &job.range))
            })
        {
            batch.push(job);
        }
    }

    /// Takes the reads that do not overlap an earlier waiting write.
    fn take_reads(&mut self, batch: &mut Vec<Job>) {
        let mut left = VecDeque::new();
        for job in self.reads.drain(..) {
            let earlier = self.writes.iter().take_while(|write| write.sequence < job.sequence);
            let is_overlapped = earlier.map(|it| &it.range).any(|it| overlap(it, &job.range));
            if is_overlapped && !coreplane_pmem::mutant!("tio.read.overtakes") {
                left.push_back(job);
            } else {
                batch.push(job);
            }
        }
        self.reads = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_one_active_caller_however_many_ask() {
        let set = QueueSet::default();
        let running = set.begin();
        assert!(running.is_some());
        assert!(set.begin().is_none());
        assert!(set.begin().is_none(), "a refused caller has ended the right of the active one");
        drop(running);
        assert!(set.begin().is_some());
    }
}
