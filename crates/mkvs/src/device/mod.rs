//! A device: a pool, the engine in it, and its embedded processor.
//!
//! The paper's devices have a processor of their own that runs the engine, and new system calls to reach it. Here
//! the engine runs in the caller's thread wherever the caller waits for it anyway and the device is steady. All
//! other requests go through the device's *submission rings* to a thread that belongs to the device, and that is
//! started when the first request comes.
//!
//! ```text
//!   reads       requests that callers wait for, served first: hedged reads (`group/hedge.rs`)
//!   decisions   writes of one key that another device has decided (`ring`)
//!   jobs        batches of such writes, and writes that are too long for that ring
//! ```
//!
//! For writes the rings carry the outcome: to put or to delete, with its sequence. So a write may come late, twice
//! or after a newer one, and the engine keeps the newest.
//!
//! A device that was replaced or retired goes (`release`): its processor ends, and its rings and its engine are
//! freed once no caller is in them. Its shell of a few KiB stays, so that callers that have found it before need
//! not be waited for.

mod apply_batch;
mod backlog;
mod decision;
mod drain;
mod fault_guard;
mod host;
mod idle;
mod processor;
mod record_copy;
mod records;
mod release;
mod ring;
mod stretch;
mod submit;
mod user_code;
mod write;

pub(crate) use decision::{Decided, is_damage, is_dead, is_failure};
pub(crate) use drain::Drained;
pub(crate) use fault_guard::{Guarded, panicked};
pub(crate) use host::Host;
pub(crate) use record_copy::RecordCopy;
pub(crate) use records::{Walk, each_entry, each_lot};
pub(crate) use ring::{Decision, Room};
pub(crate) use stretch::{Bounds, Stretch};
pub(crate) use submit::Place;
pub(crate) use user_code::UserCode;
pub(crate) use write::{If, Write};

use crate::device::ring::{Decisions, RING_BYTES};
use crate::in_flight::{Track, Way};
use crate::shape::Position;
use crate::stats::Pace;
use apply_batch::APPLY_MAX;
use backlog::Backlog;
use coreplane_engine::{Batch, Error, Result, WriteOptions};
use coreplane_pmem::background;
use coreplane_pmem::epoch::{Calls, Guard, Published, pin_in};
use coreplane_pmem::spin::{self, Backoff};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use idle::{ASLEEP, AWAKE};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Batches, and long writes, that may wait for a device.
const JOBS: usize = 1024;

/// Reads that may wait for a device.
const READS: usize = 1024;

/// How often [`Device::is_behind`] looks before it says so.
const MOMENTS: u32 = 300;

/// Looks at empty rings after a read before the thread rests.
const SPINS: u32 = 100;

/// Apply batches, or batch jobs, between two looks at whether the group is still there.
const AT_A_TIME: usize = 64 / APPLY_MAX;

/// Decided changes for a device that does not have them yet.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) batch: Arc<Batch>,
    /// They contain its sequence.
    pub(crate) options: WriteOptions,
    /// The hash of each key of the batch.
    pub(crate) hashes: Vec<u64>,
}

/// A request in the ring of a device, for which a caller waits.
pub(crate) trait Asked: Send + Sync {
    /// Executes it in a device's processor; `asked_at` is when it was submitted.
    fn run(&self, device: &Device, asked_at: Instant);
}

/// A device of a group.
pub(crate) struct Device {
    /// Its place, and its number in the group.
    pub(crate) at: Position,
    pub(crate) number: u8,
    pub(crate) engine: Arc<Guarded>,
    /// The pace of lookups.
    pub(crate) pace: Pace,
    /// None once the device has gone.
    rings: Published<Option<Rings>, Calls>,
    /// The progress of the processor with decisions.
    track: Arc<Track>,
    backlog: Backlog,
    submitted: AtomicU64,
    completed: AtomicU64,
    rest: AtomicU32,
    is_closed: AtomicBool,
    /// Calls that the processor has begun, and ended.
    beat: CachePadded<AtomicU64>,
    /// The call in which the watch has seen the processor, since when, and how often before.
    watched: Mutex<Option<(u64, Instant, u32)>>,
    /// Why it failed: the first error.
    why: OnceLock<String>,
    /// How often a thread was about to leave it out, and how often that was over.
    failures: AtomicU64,
    failures_over: AtomicU64,
    /// True if it has not written the membership record in time.
    timed_out: AtomicBool,
    thread: OnceLock<Thread>,
    processor: Mutex<Option<JoinHandle<()>>>,
}

/// The rings of a device's processor.
struct Rings {
    decisions: Decisions,
    jobs: ArrayQueue<Job>,
    reads: ArrayQueue<(Arc<dyn Asked>, Instant)>,
}

impl Rings {
    fn new() -> Self {
        let (jobs, reads) = (ArrayQueue::new(JOBS), ArrayQueue::new(READS));
        Self { decisions: Decisions::new(), jobs, reads }
    }

    fn is_idle(&self) -> bool {
        self.decisions.is_empty() && self.jobs.is_empty() && self.reads.is_empty()
    }
}

/// Makes the changes of a batch on an engine, as they were decided.
pub(crate) fn make(engine: &Guarded, batch: &Batch, options: &WriteOptions) -> Result<()> {
    match batch.only() {
        Some(change) => Decided::of(change).make(engine, options),
        None => engine.call(|it| it.apply(batch, options)).map(|_| ()),
    }
}

impl Device {
    pub(crate) fn new(at: Position, engine: Arc<Guarded>) -> Self {
        Self {
            at,
            number: at.device,
            engine,
            pace: Pace::new(),
            rings: Published::new(Some(Rings::new())),
            track: Arc::new(Track::new()),
            backlog: Backlog::default(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            rest: AtomicU32::new(AWAKE),
            is_closed: AtomicBool::new(false),
            beat: CachePadded::new(AtomicU64::new(0)),
            watched: Mutex::default(),
            why: OnceLock::new(),
            failures: AtomicU64::new(0),
            failures_over: AtomicU64::new(0),
            timed_out: AtomicBool::new(false),
            thread: OnceLock::new(),
            processor: Mutex::new(None),
        }
    }

    /// Its rings, unless it has gone.
    #[inline]
    fn rings<'a>(&'a self, guard: &'a Guard<Calls>) -> Option<&'a Rings> {
        self.rings.get(guard).as_ref()
    }

    /// Lines of its ring that were reserved so far.
    pub(crate) fn lines_submitted(&self) -> u64 {
        self.rings(&pin_in()).map_or(0, |rings| rings.decisions.submitted())
    }

    /// True if a request is published in its ring from a place on.
    fn has_published(&self, from: u64) -> bool {
        self.rings(&pin_in()).is_some_and(|rings| rings.decisions.has_published(from))
    }

    /// Notes the error with which it has failed.
    #[cold]
    pub(crate) fn note_failure(&self, error: &Error) {
        self.why.get_or_init(|| error.to_string());
    }

    /// Why it failed.
    pub(crate) fn why(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Requests that wait for the device or are being made: lines of its ring, batches and reads.
    pub(crate) fn queued(&self) -> u64 {
        let (made, completed) = (self.track.past(), self.completed.load(Ordering::Acquire));
        let jobs = self.submitted.load(Ordering::Acquire).saturating_sub(completed);
        self.lines_submitted().saturating_sub(made) + jobs + self.reads_queued()
    }

    /// Reads that wait for the device.
    #[inline]
    pub(crate) fn reads_queued(&self) -> u64 {
        self.rings(&pin_in()).map_or(0, |rings| rings.reads.len() as u64)
    }

    /// The place at which a write ends in its ring.
    #[inline]
    pub(crate) fn way_to(&self, place: u64) -> Way<'_> {
        Way { track: &self.track, place, number: self.number }
    }

    /// True if its processor reports each write that it makes.
    pub(crate) fn has_stopped(&self) -> bool {
        self.track.has_stopped()
    }

    /// Hands changes to the device's processor; gives them back if its ring is full, or there can be
    /// no processor.
    pub(crate) fn submit<H: Host>(self: &Arc<Self>, group: &Arc<H>, job: Job) -> Option<Job> {
        let guard = pin_in();
        let Some(rings) = self.rings(&guard).filter(|_| self.has_processor(group)) else {
            return Some(job);
        };
        let (bytes, max) = (job.batch.bytes_len() as u64, group.queue_bytes_max());
        if !self.backlog.add(bytes, max.saturating_sub(RING_BYTES)) {
            self.backlog.note_refusal();
            return Some(job);
        }
        self.submitted.fetch_add(1, Ordering::AcqRel);
        if let Err(job) = rings.jobs.push(job) {
            self.submitted.fetch_sub(1, Ordering::AcqRel);
            self.backlog.remove(bytes);
            self.backlog.note_refusal();
            return Some(job);
        }
        // Either the processor sees the request in the ring, or this thread sees that the processor rests.
        fence(Ordering::SeqCst);
        if self.rest.load(Ordering::Relaxed) == ASLEEP {
            self.wake();
        }
        None
    }

    /// Hands the device's processor a request that the caller waits for; false if that is impossible.
    pub(crate) fn ask<H: Host>(self: &Arc<Self>, group: &Arc<H>, asked: Arc<dyn Asked>) -> bool {
        let guard = pin_in();
        let rings = self.rings(&guard).filter(|_| self.has_processor(group));
        let is_asked = rings.is_some_and(|it| it.reads.push((asked, Instant::now())).is_ok());
        if is_asked {
            fence(Ordering::SeqCst);
            if self.rest.load(Ordering::Relaxed) != AWAKE {
                self.wake();
            }
        }
        // A processor that has ended meanwhile may not have seen the request, and never will.
        is_asked && !self.is_closed()
    }

    /// Wakes the processor.
    pub(crate) fn wake(&self) {
        if self.rest.swap(AWAKE, Ordering::SeqCst) != AWAKE
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    #[inline]
    fn has_processor<H: Host>(self: &Arc<Self>, group: &Arc<H>) -> bool {
        self.thread.get().is_some() || self.start(group)
    }

    #[cold]
    fn start<H: Host>(self: &Arc<Self>, group: &Arc<H>) -> bool {
        let mut processor = spin::lock(&self.processor);
        if self.thread.get().is_none() && !self.is_closed.load(Ordering::Acquire) {
            let (device, weak) = (Arc::clone(self), Arc::downgrade(group));
            let name = format!("coreplane-d{}", self.number);
            let run = move || device.run(&weak);
            if let Ok(handle) = background::spawn(name, run) {
                self.thread.get_or_init(|| handle.thread().clone());
                *processor = Some(handle);
                group.watch_processors();
            }
        }
        self.thread.get().is_some()
    }

    /// Makes a call of the processor.
    #[inline]
    fn in_call<T>(&self, make: impl FnOnce() -> T) -> T {
        // Only the processor changes this counter.
        let beat = self.beat.load(Ordering::Relaxed);
        self.beat.store(beat + 1, Ordering::Release);
        let made = make();
        self.beat.store(beat + 2, Ordering::Release);
        made
    }

    /// The call that the processor is in, if it is in one.
    pub(crate) fn call(&self) -> Option<u64> {
        let beat = self.beat.load(Ordering::Acquire);
        (beat % 2 == 1).then_some(beat)
    }

    /// True if the watch has seen the processor in one call for so long. It has looked several times by then: a
    /// process that was stopped for a while has not.
    pub(crate) fn hangs(&self, within: Duration) -> bool {
        let mut watched = spin::lock(&self.watched);
        *watched = self.call().map(|call| match *watched {
            Some((known, since, looks)) if known == call => (call, since, looks + 1),
            _ => (call, Instant::now(), 0),
        });
        watched.is_some_and(|(_, since, looks)| looks > 1 && since.elapsed() >= within)
    }

    /// It was left out since it does not answer: no thread waits for it any more.
    #[cold]
    pub(crate) fn give_up(&self) {
        self.engine.give_up();
    }

    /// True if it was left out since it does not answer.
    pub(crate) fn is_given_up(&self) -> bool {
        self.engine.is_given_up()
    }

    /// Waits while the processor stays in one call: a caller that entered the device itself might hang there, too.
    #[cold]
    pub(crate) fn wait_for_processor(&self) {
        let call = self.call();
        let mut backoff = Backoff::new();
        while call.is_some() && self.call() == call && !self.is_closed() {
            backoff.wait();
        }
    }

    /// True once its processor takes nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst) || self.is_given_up()
    }

    /// Ends the processor, once it has made its requests; a processor of a device that is given up is left behind.
    pub(crate) fn stop(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let processor = spin::lock(&self.processor).take();
        if let Some(handle) = processor {
            handle.thread().unpark();
            if std::thread::current().id() != handle.thread().id() {
                let mut backoff = Backoff::new();
                while !handle.is_finished() && !self.is_given_up() {
                    backoff.wait();
                }
                if self.is_given_up() {
                    return;
                }
                // A panic there has been reported by its thread.
                let _ended = handle.join().is_ok();
            }
        }
    }
}
