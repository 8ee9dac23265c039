//! The background threads of an open store. One counts records after an open and cleans ahead of
//! the writers; one takes checkpoints as they fall due; one turns expired records into tombstones;
//! one ends the windows of `relaxed` writes, and of early ones at `group`, which nothing else may
//! delay; and where a fence is a sync, one makes pages ready for it before they are filled. All but
//! the windows' thread have the batch policy.

use crate::store::Store;
use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::upkeep::scrub::Round;
use crate::write::sweep_expired::Sweep;
use coreplane_engine::{Error, Result, SCRUB_PACE, scrub_rest};
use coreplane_pmem::background;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the first two check without being woken.
const TICK: Duration = SCRUB_PACE;
/// The most ticks until cleaning that failed is tried again.
const PAUSE_MAX: u32 = 600;

/// Starts the threads. They end when the store is closed.
pub(crate) fn start(store: &Arc<Store>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let spawn = |name: &str, run: fn(&Store)| {
        let store = Arc::clone(store);
        background::spawn(name, move || run(&store))
    };
    let in_time = |name: &str, run: fn(&Store)| {
        let store = Arc::clone(store);
        background::spawn_in_time(name, move || run(&store))
    };
    let cleaning = spawn("coreplane-clean", clean)?;
    let others = [
        in_time("coreplane-windows", end_windows_in_time),
        spawn("coreplane-checkpoint", take_checkpoints),
        spawn("coreplane-expire", sweep_expired),
    ];
    let preparing = store.space.is_preparable().then(|| spawn("coreplane-prepare", prepare_pages));
    let mut threads = vec![cleaning];
    let mut failure = None;
    for thread in others.into_iter().chain(preparing) {
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        None => Ok(threads),
        Some(error) => {
            store.closed.store(true, Ordering::SeqCst);
            store.wake();
            store.windows.wake();
            for thread in threads {
                let _ended = thread.join().is_ok();
            }
            Err(error)
        }
    }
}

/// Takes checkpoints as they fall due, beside the counting and cleaning, which can take long.
fn take_checkpoints(store: &Store) {
    if store.index.in_pool() {
        return;
    }
    let mut pause = TICK;
    loop {
        {
            let mut woken = store.wake.0.lock();
            if store.closed.load(Ordering::Acquire) {
                return;
            }
            store.wake.1.wait_for(&mut woken, pause);
        }
        pause = match store.checkpoint_if_due() {
            Ok(()) => TICK,
            Err(_) => {
                store.counters.add(Count::BackgroundFailures, 1);
                TICK * PAUSE_MAX
            }
        };
    }
}

/// Keeps the next pages ready for small syncs. If a file cannot be written, the threads that sync
/// it report the error. Here it is tried again much later.
fn prepare_pages(store: &Store) {
    loop {
        let pause = match store.prepare_free() {
            Ok(_) => TICK,
            Err(_) => {
                store.counters.add(Count::BackgroundFailures, 1);
                TICK * PAUSE_MAX
            }
        };
        if !rest(store, Instant::now() + pause) {
            return;
        }
    }
}

/// Waits until `until`; false if the store is closed before.
fn rest(store: &Store, until: Instant) -> bool {
    let mut woken = store.wake.0.lock();
    // Other threads are woken by the same condition, which this one ignores.
    while !store.closed.load(Ordering::Acquire) {
        if store.wake.1.wait_until(&mut woken, until).timed_out() {
            return !store.closed.load(Ordering::Acquire);
        }
    }
    false
}

/// Goes on with the sweep of expired records, and rests as long as it says.
fn sweep_expired(store: &Store) {
    let mut sweep = Sweep::default();
    loop {
        let until = Instant::now() + store.sweep_on(&mut sweep);
        if !rest(store, until) {
            return;
        }
    }
}

fn clean(store: &Store) {
    let mut failures = u32::from(store.take_census().is_err());
    let mut pause = failures;
    let (mut scrub, mut scrub_at) = (Round::default(), Instant::now());
    while !store.closed.load(Ordering::Acquire) {
        let is_woken = {
            let mut woken = store.wake.0.lock();
            if !*woken {
                store.wake.1.wait_for(&mut woken, TICK);
            }
            std::mem::take(&mut *woken)
        };
        let begun_at = Instant::now();
        if !is_woken && begun_at >= scrub_at {
            let scrubbed = store.scrub_next(&mut scrub);
            scrub_at = begun_at + scrub_rest(begun_at.elapsed());
            store.counters.add(Count::BackgroundFailures, i64::from(scrubbed.is_err()));
        }
        if pause > 0 {
            pause -= 1;
            continue;
        }
        // Writers meet the error themselves and report it; it may be temporary.
        match store.take_census().and_then(|()| store.clean_if_due()) {
            Ok(()) => failures = 0,
            Err(_) => {
                store.counters.add(Count::BackgroundFailures, 1);
                failures += 1;
                pause = 1_u32.checked_shl(failures).unwrap_or(PAUSE_MAX).min(PAUSE_MAX);
            }
        }
    }
}

fn end_windows_in_time(store: &Store) {
    store.windows.end_in_time(
        || store.closed.load(Ordering::Acquire),
        || {
            store.request_early();
            let ended = store.end_windows_at_hand();
            if ended.is_err() {
                // The medium has failed; writers get the error.
                store.counters.add(Count::BackgroundFailures, 1);
            }
            ended.is_ok()
        },
    );
}

impl Store {
    /// Makes the pages that will be filled next ready for small syncs; returns how many were not.
    pub(crate) fn prepare_free(&self) -> Result<u64> {
        let mut prepared = 0;
        while self.space.is_preparable()
            && !self.closed.load(Ordering::Acquire)
            && self.pages.prepare_next()?
        {
            prepared += 1;
        }
        Ok(prepared)
    }

    /// Keeps some pages free as long as that is cheap.
    fn clean_if_due(&self) -> Result<()> {
        let low = (self.pages.len() / 16).max(self.reserve(Demand::Insert) + 2);
        let quarter = u64::from(self.geometry.page_size) / 4;
        while self.pages.refresh_free() < low {
            let mut state = self.cleaner_state.lock();
            // Checked under the lock: a closed store's logs are sealed.
            if self.closed.load(Ordering::Acquire) {
                return Ok(());
            }
            match self.clean_one(&mut state, quarter) {
                Ok(Some(_)) => {}
                // Cleaning is due again when readers have let go of pages.
                Ok(None) | Err(Error::NoSpace { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
