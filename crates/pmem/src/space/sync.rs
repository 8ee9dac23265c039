//! The durable fence of `file` media: one sync of the file, shared by all waiting threads.
//!
//! A flush marks the file as dirty. A fence ensures that a round (one `fdatasync`) which *began*
//! after the flush has ended: the first thread to arrive leads the round; threads that arrive
//! meanwhile wait for the next round, which one of them leads. So a round covers every writer that
//! came during the one before, and a single writer waits for no other.
//!
//! ```text
//!   round        |-------- 1 --------|-------- 2 --------|
//!   A  flush fence (leads 1) ........ done
//!   B        flush fence (waits) .....  leads 2 ......... done
//!   C            flush fence (waits) .  follows ......... done
//! ```
//!
//! A *generation* is the number of the round that covers a flush. For an event loop, which must not
//! wait, [`Space::sync_generation`] returns it for each write, and [`Space::sync_request`] requests
//! it once all writes of a turn are made: a thread of the space then runs rounds while any are
//! requested, and listeners are called as rounds end. The numbering, without the device and the
//! waiting, is in `space/rounds.rs`, which the crash simulator uses, too.
//!
//! # Order of a flush and the start of a round
//!
//! A flush *swaps* `dirty` to true after its stores, a leader *swaps* it to false before it
//! syncs. Swaps of one variable are ordered: either the flush came first, and then the leader has
//! acquired its stores and the sync writes them; or it came later, and then `dirty` stays true for
//! the next round. It would be wrong to skip the swap if `dirty` is already true: the stores could
//! still be in the store buffer when the leader syncs.
//!
//! # Failure
//!
//! A sync that fails may have lost the dirty pages (the kernel marks them clean), so that later
//! syncs prove nothing: the first failure stops all. Rounds that ended before it stay valid.
//!
//! # Why the whole file
//!
//! On ext4, one dirty range takes the same time by `msync` of the range and by `fdatasync`; four
//! take half or a third of the time by one `fdatasync` (otherwise each needs a device flush). And
//! the next fence must cover all dirty bytes of a file pool anyway, since its index lives in DRAM.

use super::rounds::Rounds;
use crate::dram::background;
use crate::poison::LostAt;
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// A sync of the medium failed: writes that were not yet durable may be lost.
#[derive(Debug, Clone, thiserror::Error)]
#[error("sync failed: {0}")]
pub struct SyncError(pub String);

#[cold]
pub(super) fn lost(at: LostAt) -> SyncError {
    SyncError(at.to_string())
}

/// Called as rounds end; must be quick and must not call back into the space.
pub(super) type Listener = Arc<dyn Fn() + Send + Sync>;

pub(super) struct Syncer {
    shared: Arc<Shared>,
    /// The thread that runs rounds for [`Space::sync_request`], once it is needed.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    sync: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    /// True if there was a flush that no round covers yet.
    dirty: AtomicBool,
    state: Mutex<State>,
    /// Signals that a round has ended, or (to the thread) that there is one to run.
    changed: Condvar,
    /// The last round that succeeded.
    ended: AtomicU64,
    failed: AtomicBool,
    fail_next: AtomicBool,
    listeners: Mutex<Vec<Listener>>,
    /// Called when a sync fails, or another description of the file gets an error.
    on_failure: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct State {
    rounds: Rounds,
    closing: bool,
}

impl Syncer {
    pub(super) fn new(file: Arc<File>) -> Self {
        Self::with(move || file.sync_data())
    }

    fn with(sync: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let shared = Shared {
            sync: Box::new(sync),
            dirty: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            ended: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            fail_next: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            on_failure: OnceLock::new(),
        };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Notes a store that a later fence must cover.
    #[inline]
    pub(super) fn dirty(&self) {
        self.shared.dirty.swap(true, Ordering::AcqRel);
    }

    /// Returns once all flushes before the call are durable.
    pub(super) fn sync(&self) -> Result<(), SyncError> {
        self.sync_to(self.draw())
    }

    /// Returns once the round `wanted` has ended; leads rounds if no other thread does.
    pub(super) fn sync_to(&self, wanted: u64) -> Result<(), SyncError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        loop {
            if shared.ended.load(Ordering::Acquire) >= wanted {
                return Ok(());
            }
            if let Some(error) = state.rounds.error() {
                return Err(error.clone());
            }
            if state.rounds.is_running() {
                shared.changed.wait(&mut state);
                continue;
            }
            shared.round(state);
            state = shared.state.lock();
        }
    }

    /// The generation that covers all flushes before the call. The caller requests it
    /// ([`Syncer::request`]) or waits for it.
    pub(super) fn draw(&self) -> u64 {
        let state = self.shared.state.lock();
        state.rounds.covering(self.shared.dirty.load(Ordering::Acquire))
    }

    /// Requests the rounds up to `wanted`, without waiting for them. A thread that runs a round
    /// checks for more when it has ended, so that only an idle thread is woken.
    pub(super) fn request(&self, wanted: u64) {
        let shared = &self.shared;
        if shared.ended.load(Ordering::Acquire) >= wanted {
            return;
        }
        let mut state = shared.state.lock();
        if !state.rounds.want(wanted) {
            return;
        }
        let is_running = state.rounds.is_running();
        drop(state);
        let mut thread = self.thread.lock();
        if thread.is_some() {
            if !is_running {
                shared.changed.notify_all();
            }
            return;
        }
        let shared = Arc::clone(shared);
        match background::spawn_in_time("pool-sync", move || shared.run()) {
            Ok(handle) => *thread = Some(handle),
            Err(_) => {
                drop(thread);
                // No thread can be started: the caller waits, which is slow but correct.
                let _kept_for_is_done = self.sync().is_ok();
            }
        }
    }

    pub(super) fn is_done(&self, generation: u64) -> Result<bool, SyncError> {
        if self.shared.ended.load(Ordering::Acquire) >= generation {
            return Ok(true);
        }
        self.check().map(|()| false)
    }

    pub(super) fn listen(&self, listener: Listener) {
        self.shared.listeners.lock().push(listener);
    }

    /// Calls `call` when a round fails, before anybody else hears of it, or another description of the file gets an
    /// error; a second call of this has no effect.
    pub(super) fn on_failure(&self, call: Box<dyn Fn() + Send + Sync>) {
        let _is_first = self.shared.on_failure.set(call).is_ok();
    }

    /// Makes the call that [`Syncer::on_failure`] has: another description of the file got the error that the next round
    /// will get.
    pub(super) fn tell_failure(&self) {
        self.shared.on_failure.get().inspect(|call| call());
    }

    /// The last round that succeeded.
    pub(super) fn ended(&self) -> u64 {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// For tests: every later round fails.
    pub(super) fn fail(&self) {
        self.shared.fail_next.store(true, Ordering::Release);
    }

    /// True if a sync has failed.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// The error of the round that failed, if one did.
    #[inline]
    pub(super) fn check(&self) -> Result<(), SyncError> {
        if !self.has_failed() {
            return Ok(());
        }
        let error = self.shared.state.lock().rounds.error().cloned();
        Err(error.unwrap_or_else(|| SyncError("unknown".to_owned())))
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().take() {
            // A listener may have held the last reference to the space: then this is that thread.
            if thread.thread().id() != std::thread::current().id() {
                let _even_if_a_listener_panicked = thread.join().is_ok();
            }
        }
    }
}

impl Shared {
    /// Runs one round. The caller has seen that none is running.
    fn round(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        let number = state.rounds.begin();
        self.dirty.swap(false, Ordering::AcqRel);
        drop(state);
        let result = if self.fail_next.load(Ordering::Acquire) {
            Err(io::Error::other("a failure that a test asked for"))
        } else {
            (self.sync)()
        };
        if result.is_err() {
            // Before anybody hears of the failure, and may end the process.
            self.on_failure.get().inspect(|call| call());
        }
        let mut state = self.state.lock();
        if state.rounds.end(result.map_err(|error| SyncError(error.to_string()))) {
            self.ended.store(number, Ordering::Release);
        } else {
            self.failed.store(true, Ordering::Release);
        }
        drop(state);
        self.changed.notify_all();
        let listeners = self.listeners.lock().clone();
        for listener in &listeners {
            listener();
        }
    }

    /// The thread: runs rounds while any are requested.
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            loop {
                if state.closing || state.rounds.error().is_some() {
                    return;
                }
                if state.rounds.is_due() {
                    break;
                }
                self.changed.wait(&mut state);
            }
            self.round(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A device that counts its syncs and records how many stores are durable.
    struct Device {
        /// The number of stores, and the number of durable stores.
        stored: AtomicU64,
        durable: AtomicU64,
        syncs: AtomicU64,
    }

    fn device() -> Arc<Device> {
        Arc::new(Device {
            stored: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    fn syncer_of(device: &Arc<Device>) -> Syncer {
        let device = Arc::clone(device);
        Syncer::with(move || {
            let seen = device.stored.load(Ordering::Relaxed);
            std::thread::yield_now();
            device.durable.fetch_max(seen, Ordering::Relaxed);
            device.syncs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    #[test]
    fn a_fence_without_anything_dirty_syncs_nothing() {
        let device = device();
        let syncer = syncer_of(&device);
        syncer.sync().unwrap();
        assert!(syncer.is_done(syncer.begin()).unwrap());
        assert_eq!(device.syncs.load(Ordering::Relaxed), 0);
        syncer.dirty();
        syncer.sync().unwrap();
        syncer.sync().unwrap();
        assert_eq!(device.syncs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn whatever_was_flushed_before_a_fence_is_durable_after_it() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 500;
        let device = device();
        let syncer = syncer_of(&device);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (device, syncer) = (&device, &syncer);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let mine = device.stored.fetch_add(1, Ordering::Relaxed) + 1;
                        syncer.dirty();
                        if thread == 0 {
                            let generation = syncer.begin();
                            while !syncer.is_done(generation).unwrap() {
                                std::thread::yield_now();
                            }
                        } else {
                            syncer.sync().unwrap();
                        }
                        assert!(device.durable.load(Ordering::Relaxed) >= mine);
                    }
                });
            }
        });
        assert!(device.syncs.load(Ordering::Relaxed) <= THREADS * ROUNDS);
    }

    impl Syncer {
        fn begin(&self) -> u64 {
            let generation = self.draw();
            self.request(generation);
            generation
        }
    }

    /// A syncer whose rounds announce themselves and wait for an answer.
    fn stepped() -> (Arc<Syncer>, mpsc::Receiver<()>, mpsc::Sender<io::Result<()>>) {
        let (announce, announced) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (announce, answers) = (Mutex::new(announce), Mutex::new(answers));
        let syncer = Syncer::with(move || {
            announce.lock().send(()).unwrap();
            answers.lock().recv().unwrap()
        });
        (Arc::new(syncer), announced, answer)
    }

    #[test]
    fn those_who_come_during_a_round_share_the_next_one() {
        let (syncer, announced, answer) = stepped();
        syncer.dirty();
        let leader = std::thread::spawn({
            let syncer = Arc::clone(&syncer);
            move || syncer.sync()
        });
        announced.recv().unwrap();
        syncer.dirty();
        let early = syncer.shared.state.lock().rounds.covering(false);
        let late = syncer.begin();
        assert_eq!(late, early + 1, "the round under way began before the flush");
        let followers: Vec<_> = (0..3)
            .map(|_| {
                let syncer = Arc::clone(&syncer);
                std::thread::spawn(move || syncer.sync())
            })
            .collect();
        answer.send(Ok(())).unwrap();
        leader.join().unwrap().unwrap();
        announced.recv().unwrap();
        assert!(!syncer.is_done(late).unwrap());
        answer.send(Ok(())).unwrap();
        for follower in followers {
            follower.join().unwrap().unwrap();
        }
        assert!(syncer.is_done(late).unwrap());
        assert_eq!(syncer.shared.ended.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_failed_round_stops_all_later_ones_and_undoes_no_earlier_one() {
        let (syncer, announced, answer) = stepped();
        let told = Arc::new(AtomicU64::new(0));
        let listener = Arc::clone(&told);
        syncer.shared.listeners.lock().push(Arc::new(move || {
            listener.fetch_add(1, Ordering::Relaxed);
        }));
        answer.send(Ok(())).unwrap();
        syncer.dirty();
        let good = syncer.begin();
        announced.recv().unwrap();
        while !syncer.is_done(good).unwrap() {
            std::thread::yield_now();
        }
        syncer.dirty();
        let bad = syncer.begin();
        announced.recv().unwrap();
        answer.send(Err(io::Error::other("no more"))).unwrap();
        let error = loop {
            match syncer.is_done(bad) {
                Ok(done) => assert!(!done),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "sync failed: no more");
        assert!(syncer.is_done(good).unwrap());
        syncer.dirty();
        assert!(syncer.sync().is_err() && syncer.check().is_err());
        assert!(syncer.is_done(syncer.begin()).is_err());
        assert!(announced.try_recv().is_err(), "nothing is synced any more");
        drop(syncer);
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }
}
