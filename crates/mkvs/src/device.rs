//! A device: a pool, the engine in it, and its embedded processor.
//!
//! The paper's devices have a processor of their own that runs the engine, and new system calls to
//! reach it. Here the engine runs in the caller wherever the caller waits for it anyway; what it
//! does not wait for goes through the device's *submission ring* to a thread that belongs to the
//! device, and is started when there is something for it to do for the first time. What the ring
//! carries is the outcome of a write, which another device has decided: to put or to delete, with
//! its sequence. So it may come late, twice or behind a newer one, and the engine keeps what is
//! newest.

use crate::group::Group;
use coreplane_engine::{Batch, Change, Engine, Outcome, Result, WriteOptions};
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Writes that may wait for a device.
const RING: usize = 4096;

/// Looks at an empty ring before the thread sleeps.
const SPINS: u32 = 200;

/// What was decided, for a device that has not got it yet.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) batch: Batch,
    /// With its sequence.
    pub(crate) options: WriteOptions,
    /// Of each key of the batch.
    pub(crate) hashes: Vec<u64>,
}

/// A device of a group.
pub(crate) struct Device {
    /// Its number in the group.
    pub(crate) number: u8,
    pub(crate) engine: Arc<dyn Engine>,
    ring: ArrayQueue<Job>,
    submitted: AtomicU64,
    completed: AtomicU64,
    is_asleep: AtomicBool,
    is_closed: AtomicBool,
    processor: Mutex<Option<(Thread, JoinHandle<()>)>>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("number", &self.number)
            .field("queued", &self.queued())
            .finish_non_exhaustive()
    }
}

/// Makes the changes of a batch on an engine, as they were decided.
///
/// # Errors
/// As the engine.
pub(crate) fn make(engine: &dyn Engine, batch: &Batch, options: &WriteOptions) -> Result<()> {
    match batch.changes() {
        [Change::Put { key, value, expires_at }] => {
            let options = WriteOptions { expires_at: *expires_at, ..*options };
            engine.put(key, value, &options).map(drop_outcome)
        }
        [Change::Delete { key }] => engine.delete(key, options).map(drop_outcome),
        _ => engine.apply(batch, options).map(|_| ()),
    }
}

/// Written, or not newer than what is there: both will do.
fn drop_outcome(_: Outcome) {}

impl Device {
    pub(crate) fn new(number: u8, engine: Arc<dyn Engine>) -> Self {
        Self {
            number,
            engine,
            ring: ArrayQueue::new(RING),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            is_asleep: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            processor: Mutex::new(None),
        }
    }

    /// Writes that wait for the device, or are being made.
    pub(crate) fn queued(&self) -> u64 {
        let completed = self.completed.load(Ordering::Acquire);
        self.submitted.load(Ordering::Acquire).saturating_sub(completed)
    }

    /// Hands a write to the device's processor; gives it back if its ring is full, or there can be
    /// no processor.
    pub(crate) fn submit(self: &Arc<Self>, group: &Arc<Group>, job: Job) -> Option<Job> {
        if !self.has_processor(group) {
            return Some(job);
        }
        self.submitted.fetch_add(1, Ordering::AcqRel);
        if let Err(job) = self.ring.push(job) {
            self.submitted.fetch_sub(1, Ordering::AcqRel);
            return Some(job);
        }
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some((thread, _)) = &*self.processor.lock()
        {
            thread.unpark();
        }
        None
    }

    fn has_processor(self: &Arc<Self>, group: &Arc<Group>) -> bool {
        if self.submitted.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let mut processor = self.processor.lock();
        if processor.is_none() && !self.is_closed.load(Ordering::Acquire) {
            let (device, group) = (Arc::clone(self), Arc::downgrade(group));
            let name = format!("coreplane-d{}", self.number);
            let run = move || {
                device.run(&|job| {
                    if let Some(group) = group.upgrade() {
                        group.catch_up(&device, &job);
                    }
                })
            };
            if let Ok(handle) = std::thread::Builder::new().name(name).spawn(run) {
                *processor = Some((handle.thread().clone(), handle));
            }
        }
        processor.is_some()
    }

    /// The processor: makes writes as they come. Those of a device that is no member any more go by.
    fn run(&self, make: &dyn Fn(Job)) {
        let mut idle = 0;
        loop {
            match self.ring.pop() {
                Some(job) => {
                    idle = 0;
                    make(job);
                    self.completed.fetch_add(1, Ordering::AcqRel);
                }
                None if self.is_closed.load(Ordering::Acquire) => return,
                None if idle < SPINS => {
                    idle += 1;
                    std::hint::spin_loop();
                }
                None => {
                    self.is_asleep.store(true, Ordering::SeqCst);
                    // What was pushed before it was said is seen now; who pushes later sees it.
                    if self.ring.is_empty() && !self.is_closed.load(Ordering::SeqCst) {
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                    self.is_asleep.store(false, Ordering::SeqCst);
                    idle = 0;
                }
            }
        }
    }

    /// Waits until what was submitted before the call is made.
    pub(crate) fn drain(&self) {
        let submitted = self.submitted.load(Ordering::Acquire);
        let mut backoff = coreplane_pmem::spin::Backoff::new();
        // One that did not fit into the ring is counted for a moment.
        let goal = || submitted.min(self.submitted.load(Ordering::Acquire));
        while self.completed.load(Ordering::Acquire) < goal()
            && !self.is_closed.load(Ordering::Acquire)
        {
            backoff.wait();
        }
    }

    /// Ends the processor, once it has made what it was given.
    pub(crate) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let processor = self.processor.lock().take();
        if let Some((thread, handle)) = processor {
            thread.unpark();
            if std::thread::current().id() != thread.id() {
                // A panic there has been reported by its thread.
                let _ended = handle.join().is_ok();
            }
        }
    }
}
