//! The writes that a device's processor takes out of its ring at once.
//!
//! To follow costs a device as much as to be waited for: an engine's put is mostly lookups, and the wait of
//! its fence. Several that lie in the ring are a *lot*: the lines of each are asked for while the one before
//! is made, and all share a fence, as far as the engine has writes that nobody waits for
//! ([`Completion::Early`](coreplane_engine::Completion::Early)). Only behind it the processor is past
//! them.
//!
//! ```text
//!   ring ─▶ lot ─▶ make a, make b, … ─▶ make all durable ─▶ tell, come to its end
//! ```

use super::{Device, Rings};
use crate::group::Group;
use crate::race::Scratch;
use crate::ring::{Decision, Decisions, Taken};
use coreplane_engine::Horizon;

/// Writes of a lot at most: it is also how often the processor says how far it is, since who looks takes
/// the line away.
pub(super) const LOT: usize = 16;

/// Writes that were taken out of a ring.
#[derive(Debug, Default)]
pub(super) struct Lot {
    /// The first of these, whose buffers are used again for the next lot.
    taken: [One; LOT],
    len: usize,
    /// What those wait for that were made.
    horizon: Horizon,
}

/// A write of a lot.
#[derive(Debug, Default)]
struct One {
    taken: Taken,
    /// Where the processor is past it.
    end: u64,
    is_made: bool,
}

impl Lot {
    /// Takes what is in a ring, as much as it has room for, and asks for the key of the first meanwhile;
    /// false if nothing is there.
    pub(super) fn take(&mut self, ring: &Decisions, prefetch: &mut dyn FnMut(&[u8])) -> bool {
        self.len = 0;
        while let Some(one) = self.taken.get_mut(self.len)
            && let Some(end) = ring.pop(&mut one.taken)
        {
            (one.end, one.is_made) = (end, false);
            if self.len == 0 && !one.taken.is_nothing {
                prefetch(one.taken.decision().decided.key);
            }
            self.len += 1;
        }
        self.len > 0
    }

    /// Where the first of them ends.
    pub(super) fn begin(&self) -> u64 {
        self.taken[0].end
    }

    /// Where the last of them ends.
    pub(super) fn end(&self) -> u64 {
        self.taken[self.len.saturating_sub(1)].end
    }

    fn all(&self) -> &[One] {
        &self.taken[..self.len]
    }

    /// What is to be made.
    pub(super) fn decisions(&self) -> impl Iterator<Item = Decision<'_>> {
        self.all().iter().filter_map(One::decision)
    }

    /// What was made of it.
    fn made(&self) -> impl Iterator<Item = (&One, Decision<'_>)> {
        let made = self.all().iter().filter(|one| one.is_made);
        made.filter_map(|one| one.decision().map(|decision| (one, decision)))
    }
}

impl One {
    fn decision(&self) -> Option<Decision<'_>> {
        (!self.taken.is_nothing).then(|| self.taken.decision())
    }
}

impl Device {
    /// Makes a lot, answers the reads that come meanwhile, and says how far it is.
    pub(super) fn make_lot(
        &self,
        (group, rings): (&Group, &Rings),
        lot: &mut Lot,
        scratch: &mut Scratch,
    ) {
        if let [one] = lot.all() {
            let is_told = one.taken.is_told;
            if let Some(decision) = one.decision()
                && !self.in_call(|| group.catch_up(self, &decision, is_told))
            {
                self.track.stop(one.end);
            }
        } else {
            self.pace.puts.of_each(lot.len as u32, || {
                self.make_several((group, rings), lot, scratch);
            });
        }
        self.track.come_to(lot.end());
        lot.len = 0;
    }

    /// The same of more than one, which share what they wait for.
    fn make_several(&self, (group, rings): (&Group, &Rings), lot: &mut Lot, scratch: &mut Scratch) {
        lot.horizon.clear();
        for at in 0..lot.len {
            self.answer(group, rings, scratch);
            let (before, behind) = lot.taken[..lot.len].split_at_mut(at + 1);
            let (one, next) = (&mut before[at], behind.first().and_then(One::decision));
            if let Some(next) = &next {
                self.engine.prefetch(next.decided.key);
            }
            if let Some(decision) = one.decision() {
                let horizon = &mut lot.horizon;
                one.is_made = self.in_call(|| group.catch_up_early(self, &decision, horizon));
                if !one.is_made {
                    self.track.stop(one.end);
                }
            }
            if let Some(next) = &next {
                let len = next.decided.put.map_or(0, |(value, _)| value.len());
                self.engine.prefetch_to_write(next.decided.key, len);
            }
        }
        let made = || lot.made().map(|(_, decision)| decision);
        if !self.in_call(|| group.make_durable(self, made(), &lot.horizon)) {
            lot.made().for_each(|(one, _)| self.track.stop(one.end));
            return;
        }
        let tells_of_each = self.has_stopped();
        for (_, decision) in lot.made().filter(|(one, _)| tells_of_each || one.taken.is_told) {
            group.tell(self, decision.options.sequence, decision.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair::pair;
    use super::*;
    use crate::bloom::hash_of;
    use crate::group::Demote;
    use crate::pending::Pending;
    use coreplane_engine::around::{Around, Call, Surrounded};
    use coreplane_engine::{Engine, Error, Result, WriteOptions};
    use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// Keys that follow in one lot.
    const KEYS: u8 = 5;

    /// Holds puts, and what makes them durable, until they are let go; and says how many have come.
    #[derive(Default)]
    struct Gates {
        holds_puts: AtomicBool,
        puts: AtomicU64,
        holds_care: AtomicBool,
        care: AtomicU64,
        refuses_care: AtomicBool,
    }

    impl Around for Gates {
        type Held<'a> = ();

        fn begin(&self, call: Call<'_>) -> Result<()> {
            let (come, holds) = match call {
                Call::Put(_) => (&self.puts, &self.holds_puts),
                Call::Care => (&self.care, &self.holds_care),
                _ => return Ok(()),
            };
            come.fetch_add(1, Ordering::SeqCst);
            wait_until(|| !holds.load(Ordering::SeqCst));
            if matches!(call, Call::Care) && self.refuses_care.load(Ordering::SeqCst) {
                return Err(Error::SyncFailed("it is refused".to_owned()));
            }
            Ok(())
        }
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
            std::thread::yield_now();
        }
    }

    /// A pair, the second of which has made some keys, one more than a lot; the first of the others is
    /// made, and they wait for being made durable.
    fn held(
        directory: &tempfile::TempDir,
        demote: Demote,
    ) -> (Arc<Group>, Arc<Pending>, Arc<Gates>) {
        let engine = |number: u8| -> Arc<dyn Engine> {
            let path = directory.path().join(number.to_string());
            let (media, options) = (coreplane_pmem::MediaChoice::Auto, Options::default());
            let (geometry, index) = (Geometry::TINY, Placement::Pool);
            let made = Scmkv::create_with(&path, 1 << 20, geometry, media, index, options);
            Arc::new(made.expect("create"))
        };
        let gates = Arc::new(Gates::default());
        let follows = Arc::new(Surrounded { engine: engine(0), around: Arc::clone(&gates) });
        let pending = Arc::new(Pending::new());
        let group = pair([follows, engine(1)], &pending, demote);
        gates.holds_puts.store(true, Ordering::SeqCst);
        gates.holds_care.store(true, Ordering::SeqCst);
        for key in 0..=KEYS {
            let options = WriteOptions::default();
            assert!(group.put_plainly(hash_of(&[key]), (&[key], b"value"), &options).is_some());
            // The first is taken out of the ring before the others come into it.
            wait_until(|| gates.puts.load(Ordering::SeqCst) == 1);
        }
        gates.holds_puts.store(false, Ordering::SeqCst);
        wait_until(|| gates.care.load(Ordering::SeqCst) == 1);
        assert_eq!(gates.puts.load(Ordering::SeqCst), u64::from(KEYS) + 1, "all were made");
        (group, pending, gates)
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
    }

    #[test]
    fn nobody_is_told_of_a_lot_before_it_is_durable() {
        let directory = directory();
        let (group, pending, gates) = held(&directory, Box::new(|_, _| Ok(())));
        let follower = group.device(0).expect("it is there");
        let lacks = |key: u8| pending.entry(hash_of(&[key])).is_some_and(|it| it.done == 0b10);
        assert!(follower.queued() > 0 && !lacks(0), "the first was made by itself");
        assert!((1..=KEYS).all(lacks), "they are not durable");
        gates.holds_care.store(false, Ordering::SeqCst);
        wait_until(|| follower.queued() == 0);
        assert!(!(0..=KEYS).any(lacks));
        group.devices().for_each(|device| device.stop());
    }

    #[test]
    fn a_lot_that_does_not_become_durable_was_not_made() {
        let directory = directory();
        let refuse = |_, _: &Device| Err(Error::Unusable("no record can be written".to_owned()));
        let (group, pending, gates) = held(&directory, Box::new(refuse));
        let follower = group.device(0).expect("it is there");
        gates.refuses_care.store(true, Ordering::SeqCst);
        gates.holds_care.store(false, Ordering::SeqCst);
        wait_until(|| follower.queued() == 0);
        let reached = |key: u8| pending.reached(hash_of(&[key]), 0b11);
        assert_eq!(reached(0), 0b11);
        assert!((1..=KEYS).all(|key| reached(key) == 0b10), "they are in doubt");
        group.devices().for_each(|device| device.stop());
    }
}
