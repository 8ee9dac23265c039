//! The work of the background thread: it seals points, merges segments, and drops shards that have expired.

use super::{Shared, Store};
use crate::error::{Error, Result};
use crate::set::{Extent, Set};
use coreplane_pmem::{background, spin};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The interval at which expired shards are looked for.
const ROUND: Duration = Duration::from_secs(10);
/// Cold shards are merged in a round that has nothing else to do, and after this time in any.
const COLD_ROUND: Duration = Duration::from_secs(60);
/// Writers wait once a head has this many times the bytes at which it is sealed.
const CROWD: u64 = 4;
/// A shard whose time ended this long ago, in nanoseconds, is cold: its segments become one.
const COLD_NS: i64 = 3_600_000_000_000;

/// How long a writer still waits for room, if heads have far more points than are sealed at once.
#[derive(Debug, Clone)]
pub struct Patience {
    left: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::of(Duration::from_secs(10))
    }
}

impl Patience {
    /// Patience to wait at most so long.
    #[must_use]
    pub fn of(left: Duration) -> Self {
        Self { left }
    }

    /// No patience: the writer does not wait.
    #[must_use]
    pub fn none() -> Self {
        Self::of(Duration::ZERO)
    }

    /// True if no time is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.left.is_zero()
    }
}

/// Statistics of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Series in the store.
    pub series: u64,
    /// Measurements in the store.
    pub measurements: u64,
    /// Bytes of DRAM for names, about.
    pub names_bytes: u64,
    /// Values in heads.
    pub head_points: u64,
    /// Bytes of the records of heads.
    pub head_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Values in segments; a value that was written again may count twice until segments are merged.
    pub sealed_points: u64,
    /// Bytes of chunks.
    pub sealed_bytes: u64,
    /// Bytes of pages in use.
    pub used_bytes: u64,
    /// Bytes of all usable pages.
    pub total_bytes: u64,
    /// Cache lines flushed.
    pub flushes: u64,
    /// Fences made.
    pub fences: u64,
    /// Cached last values of sealed points.
    pub last_values: u64,
    /// Bytes of DRAM that they take.
    pub last_bytes: u64,
    /// Pages of segments that scrubs have read since the store was opened.
    pub scrub_pages: u64,
    /// Complete rounds of scrubs over all segments.
    pub scrub_rounds: u64,
    /// Damaged chunks and entries that scrubs have reported.
    pub scrub_damaged: u64,
}

impl Shared {
    /// Tells the background thread that there may be work.
    pub(super) fn ring(&self) {
        spin::lock(&self.bell.state).is_due = true;
        self.bell.changed.notify_all();
    }

    /// Notes that series were dropped that may have points, for which the background thread looks.
    pub(super) fn note_dropped_series(&self) {
        self.sets.iter().for_each(Set::note_dropped_series);
        self.ring();
    }

    fn is_live(&self, shard: u32, series: u32) -> bool {
        let names = self.names.read();
        names.is_shard_live(shard) && names.is_series_live(series)
    }

    /// Bytes at which the head of this set is sealed: a small pool has no room for large heads, nor has one that is
    /// almost full.
    fn head_bytes_max(&self, set: &Set) -> u64 {
        if set.is_short() {
            return 1;
        }
        let pool = set.pages.usable() * u64::from(set.pages.page_len());
        self.options.head_bytes.min(pool / 4).max(1)
    }

    /// Seals the head of a set, if it has at least `bytes_min` bytes.
    pub(super) fn seal(&self, set: &Set, bytes_min: u64) -> Result<bool> {
        set.seal(bytes_min, &|shard, series| self.is_live(shard, series))
    }

    /// Merges segments of a set where due, or writes one anew without the points of dropped series; true if there was
    /// any. Shards that get no points and whose time ended before `cold` are cold; if that is none, all that get no
    /// points become one segment.
    pub(super) fn merge(&self, set: &Set, cold: Option<i64>) -> Result<bool> {
        let is_over = |shard| match cold {
            Some(cold) => self.names.read().shard(shard).is_some_and(|it| it.end < cold),
            None => true,
        };
        let extent = |shard| match cold {
            _ if !is_over(shard) || set.is_filled(shard) => Extent::Tier,
            Some(_) => Extent::Cold,
            None => Extent::All,
        };
        let is_there = |shard| self.names.read().is_shard_live(shard);
        let is_live = |shard, series| self.is_live(shard, series);
        match set.merge(&is_there, &extent, &is_live, &|| self.breathe()) {
            Ok(true) => Ok(true),
            // What has no room to be merged must not keep the room that dropped points take.
            merged @ (Ok(false) | Err(Error::Full(_) | Error::Limit(_))) => {
                match set.collect_garbage(&is_live, &|| self.breathe())? {
                    true => Ok(true),
                    false => merged,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Called between the parts of a merge, so that neither writers nor the closing of the store wait for its end.
    pub(super) fn breathe(&self) -> Result<()> {
        if spin::lock(&self.bell.state).is_over {
            return Err(Error::Ended("the store is closed"));
        }
        for set in self.sets.iter().filter(|set| set.head_bytes() >= self.head_bytes_max(set)) {
            // A head without room to be sealed is not tried again during the merge, which may make room: a later
            // round tries it.
            if spin::lock(&self.bell.trouble).is_none() {
                let sealed = self.seal(set, self.head_bytes_max(set)).map(drop);
                spin::lock(&self.bell.state).is_due |= sealed.is_err();
                self.note_sealed(&sealed);
            }
        }
        Ok(())
    }

    /// Tells writers the outcome of a sealing: if there is no room for it they do not wait.
    fn note_sealed(&self, sealed: &Result<()>) {
        self.tell(sealed.as_ref().err().map(ToString::to_string));
    }

    fn tell(&self, trouble: Option<String>) {
        *spin::lock(&self.bell.trouble) = trouble;
        self.bell.changed.notify_all();
    }

    /// Does everything that is due; also merges cold shards, if asked to. A failure holds up nothing else.
    fn round(&self, is_cold: bool) -> Result<()> {
        if self.bell.is_to_panic.load(Ordering::Relaxed) {
            resume_unwind(Box::new("as a test has asked for it"));
        }
        let cold = if is_cold { self.now().saturating_sub(COLD_NS) } else { i64::MIN };
        let expired = self.expire();
        self.tidy_all(self.options.head_bytes, cold).and(expired)
    }

    /// Seals the heads of sets that have enough points, and then merges whatever is due; also where there is no
    /// room to seal, since merging makes room.
    pub(super) fn tidy_all(&self, bytes_min: u64, cold: i64) -> Result<()> {
        let seal = |set: &Set| self.seal(set, bytes_min.min(self.head_bytes_max(set))).map(drop);
        // All sets, even if one of them fails.
        let seal_all = || -> Result<()> {
            let sealed: Vec<Result<()>> = self.sets.iter().map(seal).collect();
            let sealed: Result<()> = sealed.into_iter().collect();
            self.note_sealed(&sealed);
            sealed
        };
        let mut sealed = seal_all();
        let mut merged = Ok(());
        for set in &self.sets {
            merged = loop {
                match self.merge(set, Some(cold)) {
                    // The merge may have made the missing room.
                    Ok(true) if sealed.is_err() => sealed = seal_all(),
                    Ok(true) => {}
                    Ok(false) => break merged,
                    Err(error) => break merged.and(Err(error)),
                }
            };
        }
        merged.and(sealed)
    }

    /// Fails once the background thread has ended early.
    ///
    /// # Errors
    /// [`Error::Upkeep`].
    pub(super) fn check_upkeep(&self) -> Result<()> {
        self.bell.failure.get().map_or(Ok(()), |why| Err(Error::Upkeep(why.clone())))
    }

    /// All work of the background thread. A panic ends it for good: the state of a set may then be broken, so
    /// nothing is sealed after it, and writers get an error instead of waiting for room that never comes.
    fn run(&self) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve())) else { return };
        let why = format!("sealing points has panicked: {}", message_of(&*panic));
        // Nothing else sets it.
        let _is_first = self.bell.failure.set(why.clone()).is_ok();
        self.tell(Some(why));
    }

    fn serve(&self) {
        let mut merged_cold = Instant::now();
        loop {
            let mut is_idle = false;
            {
                let mut state = self.bell.state.lock();
                // The same bell tells writers that points were sealed: that is no work for this thread.
                let until = Instant::now() + ROUND;
                while !state.is_due && !state.is_over && !is_idle {
                    is_idle = self.bell.changed.wait_until(&mut state, until).timed_out();
                }
                if state.is_over {
                    return;
                }
                state.is_due = false;
            }
            // While points come without an end, no wait times out.
            let is_cold = is_idle || merged_cold.elapsed() >= COLD_ROUND;
            let done = self.round(is_cold);
            if is_cold {
                merged_cold = Instant::now();
            }
            // It is tried again; writers meet the same error.
            self.note_sealed(&done);
        }
    }
}

/// The message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl Store {
    /// Begins to seal, merge and drop in a thread of its own.
    pub(super) fn begin_upkeep(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        self.upkeep = Some(background::spawn("tsdb-upkeep", move || shared.run())?);
        Ok(())
    }

    /// True if a set has far too many unsealed points, so that a writer would wait for room.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let shared = &self.shared;
        // A small head waits for the pages of the log whose points are being sealed.
        let is_crowded = |set: &Set| {
            set.is_short() || set.head_bytes() >= shared.head_bytes_max(set).saturating_mul(CROWD)
        };
        // Without room to seal no writer waits: the next write gets the error.
        self.upkeep.is_some()
            && shared.sets.iter().any(is_crowded)
            && spin::lock(&shared.bell.trouble).is_none()
    }

    /// Asks for sealing where a set has enough points; waits where a set has far too many.
    pub(super) fn make_room(&self, patience: &mut Patience) -> Result<()> {
        let is_due =
            |set: &Set| set.is_short() || set.head_bytes() >= self.shared.head_bytes_max(set);
        if !self.shared.sets.iter().any(is_due) {
            return Ok(());
        }
        if self.upkeep.is_none() {
            return self.shared.round(false);
        }
        self.shared.ring();
        while !patience.is_over() && self.is_crowded() {
            let since = Instant::now();
            let mut state = self.shared.bell.state.lock();
            let turn = Duration::from_millis(10).min(patience.left);
            let is_late = self.shared.bell.changed.wait_for(&mut state, turn).timed_out();
            drop(state);
            patience.left = patience.left.saturating_sub(since.elapsed());
            if is_late {
                // Not each time: other writers wait here, too.
                self.shared.ring();
            }
        }
        Ok(())
    }

    /// Seals all points of heads, and merges where due. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Damage`], [`Error::Sync`], [`Error::Upkeep`].
    pub fn seal(&self) -> Result<()> {
        self.shared.check_upkeep()?;
        self.shared.tidy_all(0, i64::MIN)
    }

    /// Seals all points, and merges the segments of each shard of a set into one. Durable when it returns.
    ///
    /// # Errors
    /// As [`Store::seal`].
    pub fn merge(&self) -> Result<()> {
        self.seal()?;
        for set in &self.shared.sets {
            while self.shared.merge(set, None)? {}
        }
        Ok(())
    }

    /// For tests: the next work of the background thread panics.
    #[doc(hidden)]
    pub fn panic_upkeep(&self) {
        self.shared.bell.is_to_panic.store(true, Ordering::Relaxed);
        self.shared.ring();
    }

    /// For tests: keeps points from being sealed or merged until the result is dropped.
    #[doc(hidden)]
    #[must_use]
    pub fn hold_upkeep(&self) -> impl Sized {
        self.shared.sets.iter().map(Set::hold).collect::<Vec<_>>()
    }

    /// For tests: sets the current time, in nanoseconds since 1970; 0 is that of the system.
    #[doc(hidden)]
    pub fn set_clock(&self, now: i64) {
        self.shared.clock.store(now, Ordering::Relaxed);
    }

    /// Makes all pools larger. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Pool`], after which some of them may be larger.
    pub fn grow(&self, size: u64) -> Result<()> {
        self.shared.sets.iter().try_for_each(|set| set.pages.grow(size))
    }

    /// The statistics of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        {
            let names = self.shared.names.read();
            stats.series = names.series_count() as u64;
            stats.measurements = names.measurement_count() as u64;
            stats.names_bytes = names.memory_bytes() as u64;
        }
        for set in &self.shared.sets {
            set.add_to(&mut stats);
        }
        let scrubbed = &self.shared.scrubbed;
        stats.scrub_pages = scrubbed.pages.load(Ordering::Relaxed);
        stats.scrub_rounds = scrubbed.rounds.load(Ordering::Relaxed);
        stats.scrub_damaged = scrubbed.damaged.load(Ordering::Relaxed);
        stats
    }

    /// Why no more writes are accepted until the store is opened again: the background thread has panicked. None if
    /// it has not.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.shared.bell.failure.get().map(String::as_str)
    }

    /// Why sealing failed the last time; none if it did not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        spin::lock(&self.shared.bell.trouble).clone()
    }
}

impl Set {
    fn add_to(&self, stats: &mut Stats) {
        let view = self.view();
        let heads = view.frozen.iter().map(|(head, _)| head).chain([&view.active]);
        for head in heads {
            let head = spin::read(head);
            stats.head_points += head.points;
            stats.head_bytes += head.bytes;
        }
        for segment in view.segments.values().flatten() {
            stats.segments += 1;
            stats.sealed_points += segment.info.points;
            stats.sealed_bytes += segment.info.bytes;
        }
        let (lasts, last_bytes) = self.known_lasts();
        stats.last_values += lasts;
        stats.last_bytes += last_bytes;
        let (page, usable) = (u64::from(self.pages.page_len()), self.pages.usable());
        stats.total_bytes += usable * page;
        stats.used_bytes += usable.saturating_sub(self.pages.free_count() as u64) * page;
        let (flushes, fences) = self.pages.space().flushes_and_fences();
        stats.flushes += flushes;
        stats.fences += fences;
    }
}
