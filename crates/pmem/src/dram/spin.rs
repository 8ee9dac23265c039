//! Waiting for another thread: spin a little, then let it run.
//!
//! Under the crash simulator only one thread runs at a time, so that a spinning thread would wait
//! for ever. Both kinds of waiting here let another thread run instead
//! ([`media::sim`](crate::media::sim)).

use crate::media::sim::schedule;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The number of looks at a held mutex before the thread sleeps: about as long as putting a thread to
/// sleep and waking it takes. Most critical sections here are shorter.
const LOOKS: u32 = 400;

/// Further looks, between which the thread yields the processor: a thread that releases a lock and takes it again at
/// once would otherwise have to wake sleeping threads each time.
const YIELDS: u32 = 200;

/// Turns for which a lock is left to other threads.
const LEFT: u32 = 200;

/// Turns of a wait before it sleeps.
const AWAKE: u32 = 200;

/// The length of a wait so far.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    /// A wait that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if the wait sleeps from here on. Under the crash simulator it never does.
    pub fn is_long(&self) -> bool {
        self.turns >= AWAKE
    }

    /// Waits a little, longer each time; yields the processor after a few turns, and sleeps if the
    /// wait goes on.
    pub fn wait(&mut self) {
        if schedule::waiting() {
            return;
        }
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..=6 => (0..1_u32 << self.turns).for_each(|_| std::hint::spin_loop()),
            7..=AWAKE => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// A wait with a limit, for other threads of this process.
///
/// Counted by looks, not by the clock alone: while a process or its machine is stopped, the other threads are stopped
/// as well, and after that they need a moment. So the time between two looks counts an eighth of the limit at most:
/// there are eight looks at least.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    /// The most that the time between two looks counts.
    look_max: Duration,
    spent: Duration,
    looked_at: Option<Instant>,
    backoff: Backoff,
}

impl Patience {
    /// A wait that has not begun.
    pub fn new(limit: Duration) -> Self {
        let look_max = (limit / 8).max(Duration::from_nanos(1));
        let (spent, backoff) = (Duration::ZERO, Backoff::new());
        Self { limit, look_max, spent, looked_at: None, backoff }
    }

    /// A wait that has not begun, by the clock alone: for a caller that can ask again.
    pub fn brief(limit: Duration) -> Self {
        Self { look_max: Duration::MAX, ..Self::new(limit) }
    }

    /// Waits a little, as [`Backoff::wait`], after a look in vain; false, and no wait, if it has lasted as long as
    /// the limit.
    pub fn wait(&mut self) -> bool {
        let goes_on = self.goes_on();
        if goes_on {
            self.backoff.wait();
        }
        goes_on
    }

    /// Counts a look in vain, for a caller that waits by other means; false if the wait has lasted as long as the limit.
    pub fn goes_on(&mut self) -> bool {
        self.look(Instant::now())
    }

    /// Counts a look at this time.
    fn look(&mut self, now: Instant) -> bool {
        let before = self.looked_at.replace(now).unwrap_or(now);
        self.spent += now.saturating_duration_since(before).min(self.look_max);
        self.spent < self.limit
    }
}

/// Locks `mutex`; in a simulated thread, lets the thread that holds it run.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| {
        look(|| (!mutex.is_locked()).then(|| mutex.try_lock())?).unwrap_or_else(|| mutex.lock())
    })
}

/// Locks `lock` for reading, shared with others; waits as [`lock`] does.
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.try_read().unwrap_or_else(|| {
        look(|| (!lock.is_locked_exclusive()).then(|| lock.try_read())?)
            .unwrap_or_else(|| lock.read())
    })
}

/// Locks `lock` for writing, exclusively; waits as [`lock`] does.
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.try_write().unwrap_or_else(|| {
        look(|| (!lock.is_locked()).then(|| lock.try_write())?).unwrap_or_else(|| lock.write())
    })
}

/// Tries `find` repeatedly for as long as a wait that does not sleep.
#[cold]
fn look<G>(mut find: impl FnMut() -> Option<G>) -> Option<G> {
    while schedule::waiting() {
        if let found @ Some(_) = find() {
            return found;
        }
    }
    let looked = (0..LOOKS).find_map(|_| {
        std::hint::spin_loop();
        find()
    });
    looked.or_else(|| {
        (0..YIELDS).find_map(|_| {
            std::thread::yield_now();
            find()
        })
    })
}

/// Leaves a lock to waiting threads on other processors before it is taken again: some microseconds.
pub fn leave() {
    if !schedule::waiting() {
        (0..LEFT).for_each(|_| std::hint::spin_loop());
    }
}

/// Yields the processor to other threads that can run on it, among them those that wait for a lock. For occasional
/// use: where there are more threads than processors it takes as long as the others run.
pub fn yield_processor() {
    if !schedule::waiting() {
        std::thread::yield_now();
    }
}

/// A mutex for a value that is nearly always used by one thread. It is released by a plain store:
/// the locked instruction that an ordinary mutex needs for its release waits until all earlier
/// flushes and stores past the caches have left the processor.
pub struct Lock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Held`, of which there is one at a time; each may
// belong to another thread, hence `Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that is not held.
    pub fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread holds it, and takes it.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = self.try_lock() {
                return held;
            }
            backoff.wait();
        }
    }

    /// Takes it if it is not held.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let free = !self.locked.load(Ordering::Relaxed)
            && self
                .locked
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        free.then(|| Held { lock: self, held: PhantomData })
    }
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock").field("locked", &self.locked).finish_non_exhaustive()
    }
}

/// A [`Lock`] that is held until this is dropped. Threads share it only if they may share the value:
///
/// ```compile_fail,E0277
/// # use coreplane_pmem::spin::Lock;
/// let lock = Lock::new(std::cell::Cell::new(0));
/// let held = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(|| held.set(1));
/// });
/// ```
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
    /// Gives it the auto traits of this type: sharing it shares the value.
    held: PhantomData<&'a mut T>,
}

impl<T> std::fmt::Debug for Held<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `self` exists only between the compare-and-swap that took the lock (Acquire)
        // and the store that releases it, so that no other `Held` gives out references.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` keeps this `Held` from giving out another.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_of_the_process_is_one_look() {
        let (begun, stop) = (Instant::now(), Duration::from_secs(3600));
        let limit = Duration::from_secs(8);
        let mut patience = Patience::new(limit);
        assert!(patience.look(begun));
        let resumed = begun + stop;
        assert!(patience.look(resumed));
        // The stop has counted one second.
        let after = |ms: u64| resumed + Duration::from_millis(ms);
        assert!((1..70).all(|look| patience.look(after(100 * look))));
        assert!(!patience.look(after(7000)));
        // A clock that is set back ends nothing.
        let mut patience = Patience::new(limit);
        assert!(patience.look(resumed) && patience.look(begun) && patience.look(begun));
        // One look after another that takes long.
        let mut patience = Patience::new(limit);
        let looks = (0..).take_while(|look| patience.look(begun + stop * *look)).count();
        assert_eq!(looks, 8);
        let mut patience = Patience::brief(limit);
        assert!(patience.look(begun) && !patience.look(begun + limit));
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        assert!(!Patience::new(Duration::ZERO).wait());
        let mut patience = Patience::new(Duration::from_nanos(7));
        while patience.wait() {}
        let (limit, begun) = (Duration::from_millis(20), Instant::now());
        let mut patience = Patience::new(limit);
        while patience.wait() {}
        assert!(begun.elapsed() >= limit);
    }

    #[test]
    fn one_thread_writes_and_several_read() {
        let lock = RwLock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut held = write(&lock);
                        held.0 += 1;
                        held.1 += 1;
                        drop(held);
                        leave();
                    }
                });
            }
            let mut last = 0;
            while last < 20_000 {
                let (one, other) = *read(&lock);
                assert!(one == other && one >= last);
                last = one;
            }
        });
        assert_eq!(*read(&lock), (20_000, 20_000));
    }

    #[test]
    fn one_thread_at_a_time_has_what_is_locked() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        let held = lock.lock();
        assert_eq!(*held, 40_000);
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
