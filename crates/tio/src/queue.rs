//! A queue set: a write and a read ring, and one at a time who empties them.
//!
//! ```text
//!   idle      the caller does its own requests, and nobody hands anything over
//!   busy      requests go to the rings; who is at it leaves what has come meanwhile to the set's thread
//!   thread    some writes, as one batch ─▶ the reads that may go ─▶ some writes …
//! ```
//!
//! Writes go first. A read waits for the batch that is being written, for one more, and for the writes that came before it
//! and overlap it; no longer.

use crate::tio::Tio;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Requests that are written as one batch at most, and their bytes.
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

    /// Waits until so many are done; they, with their numbers.
    pub(crate) fn wait(&self, count: usize) -> Vec<(usize, Tio)> {
        let mut done = self.done.lock();
        while done.len() < count {
            self.changed.wait(&mut done);
        }
        std::mem::take(&mut *done)
    }
}

/// A request in a ring.
#[derive(Debug)]
pub(crate) struct Job {
    sequence: u64,
    index: usize,
    pub(crate) tio: Tio,
    group: Arc<Group>,
}

impl Job {
    pub(crate) fn finish(self) {
        self.group.finish(self.index, self.tio);
    }
}

#[derive(Debug, Default)]
struct Rings {
    writes: VecDeque<Job>,
    reads: VecDeque<Job>,
    sequence: u64,
    /// Somebody is at it.
    is_running: bool,
    /// What is there is the thread's to do.
    is_handed: bool,
    is_closed: bool,
}

/// A queue set.
#[derive(Debug, Default)]
pub(crate) struct QueueSet {
    rings: Mutex<Rings>,
    work: Condvar,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl QueueSet {
    /// True if nobody was at it: the caller is, until [`QueueSet::end`]. Otherwise its requests are to be
    /// [queued](QueueSet::push).
    pub(crate) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.rings.lock().is_running, true)
    }

    /// Queues a request for whoever is at it, or the set's thread.
    pub(crate) fn push(&self, index: usize, tio: Tio, group: &Arc<Group>) {
        let mut rings = self.rings.lock();
        rings.sequence += 1;
        let is_read = tio.op == crate::tio::Op::Read;
        let job = Job { sequence: rings.sequence, index, tio, group: Arc::clone(group) };
        if is_read {
            rings.reads.push_back(job)
        } else {
            rings.writes.push_back(job)
        }
        if !rings.is_running {
            rings.is_running = true;
            self.hand_over(&mut rings);
        }
    }

    fn hand_over(&self, rings: &mut Rings) {
        rings.is_handed = true;
        self.work.notify_one();
    }

    /// The caller has done its own requests.
    pub(crate) fn end(&self) {
        let mut rings = self.rings.lock();
        match rings.writes.is_empty() && rings.reads.is_empty() {
            true => rings.is_running = false,
            false => self.hand_over(&mut rings),
        }
    }

    /// No more is handed to the thread, which ends when the rings are empty.
    pub(crate) fn close(&self) {
        self.rings.lock().is_closed = true;
        self.work.notify_one();
    }

    /// The work of the set's thread: does what is handed to it, until the set is closed.
    pub(crate) fn serve(&self, mut run: impl FnMut(&mut Vec<Job>)) {
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
            let wrote = batch.first().is_some_and(|job| job.tio.op != crate::tio::Op::Read);
            run(&mut batch);
            batch.drain(..).for_each(Job::finish);
            if wrote {
                self.rings.lock().take_reads(&mut batch);
                if !batch.is_empty() {
                    run(&mut batch);
                    batch.drain(..).for_each(Job::finish);
                }
            }
        }
    }
}

impl Rings {
    fn take_writes(&mut self, batch: &mut Vec<Job>) {
        let mut bytes = 0;
        while batch.len() < BATCH_LEN
            && let Some(job) = self.writes.pop_front_if(|job| {
                bytes += job.tio.len;
                bytes <= BATCH_BYTES || batch.is_empty()
            })
        {
            batch.push(job);
        }
    }

    /// Takes the reads that no write that came before them and waits overlaps.
    fn take_reads(&mut self, batch: &mut Vec<Job>) {
        let mut left = VecDeque::new();
        for job in self.reads.drain(..) {
            let range = job.tio.range();
            let waits = self.writes.iter().take_while(|write| write.sequence < job.sequence);
            let is_overlapped = waits.map(|write| write.tio.range()).any(|it| overlap(&it, &range));
            if is_overlapped && !coreplane_pmem::mutant!("tio.read.overtakes") {
                left.push_back(job);
            } else {
                batch.push(job);
            }
        }
        self.reads = left;
    }
}
