//! The accesses that threads which meet a staged write rely on, generic over the atomic, so that a
//! model checker runs the same code as the store.
//!
//! ```text
//!   stage:    (log and group are held) append; staged = n ─▶ let go of the log, not of the group
//!   meet:     is the group locked? ─▶ hold and commit each log that has staged writes
//!   commit:   (log is held) fence; fenced = number; publish; number + 1; unlock groups; staged = 0
//! ```

use crate::table::index::kernel::Atomic;
use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word that can be stored ahead of loads.
pub(super) trait Barrier: Atomic {
    /// Stores it, visible to every thread before this one loads anything else.
    fn store_ahead_of_loads(&self, value: u64);
}

impl Barrier for AtomicU64 {
    #[inline]
    fn store_ahead_of_loads(&self, value: u64) {
        self.store(value, Ordering::SeqCst);
        // On x86 the store is the barrier.
        if cfg!(not(target_arch = "x86_64")) {
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }
}

/// The state of a log's staged writes that is readable without its lock.
#[derive(Debug)]
pub(super) struct OfLog<A> {
    /// Writes that are staged.
    staged: A,
    /// The number of the commit that the staged writes wait for; all before it are visible.
    next_commit: A,
    /// The number of the last commit that was fenced: durable, and perhaps not visible yet.
    fenced: A,
}

/// A commit that was tried and failed.
#[derive(Debug)]
pub(super) struct Lost;

impl<A: Barrier> OfLog<A> {
    pub(super) fn new(word: impl Fn(u64) -> A) -> Self {
        Self { staged: word(0), next_commit: word(1), fenced: word(0) }
    }

    /// The number of the commit that writes staged now wait for. The caller holds the log.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        self.next_commit.load(Ordering::Relaxed)
    }

    /// Notes the number of staged writes, whose groups are locked. The caller holds the log.
    ///
    /// Two threads that each stage a write and then look for the other's cannot both miss it.
    #[inline]
    pub(super) fn note(&self, staged: u64) {
        self.staged.store_ahead_of_loads(staged);
    }

    #[inline]
    pub(super) fn has_staged(&self) -> bool {
        self.staged.load(Ordering::Acquire) > 0
    }

    /// Ends a commit whose fence had `result`: publishes its writes and unlocks their groups. The
    /// caller holds the log.
    #[inline]
    pub(super) fn commit<E>(
        &self,
        mut result: Result<(), E>,
        publish: impl FnOnce() -> Result<(), E>,
        unlock: impl FnOnce(),
    ) -> Result<(), E> {
        let number = self.position();
        if result.is_ok() {
            // Before any reader can see a write of it: a visible write is durable, and reports so.
            self.fenced.store(number, Ordering::Release);
            result = publish();
        }
        // After a failure too: no later write gets the tickets of the lost ones.
        self.next_commit.store(number + 1, Ordering::Release);
        unlock();
        self.staged.store(0, Ordering::Release);
        result
    }

    /// True if the commit of this number was made.
    ///
    /// # Errors
    /// If it never will be.
    #[inline]
    pub(super) fn is_committed(&self, position: u64) -> Result<bool, Lost> {
        let is_over = self.next_commit.load(Ordering::Acquire) > position;
        let is_fenced = self.fenced.load(Ordering::Acquire) >= position;
        if is_over && !is_fenced { Err(Lost) } else { Ok(is_fenced) }
    }

    /// Makes the writes that are staged now visible. `try_commit` commits them if no thread holds
    /// the log, and otherwise waits a little: the owner may be making another write, after which
    /// the log is free, or its own commit.
    ///
    /// # Errors
    /// Those of `try_commit`.
    #[inline]
    pub(super) fn see<E>(&self, mut try_commit: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let commit = self.next_commit.load(Ordering::Acquire);
        while self.has_staged() && self.next_commit.load(Ordering::Acquire) == commit {
            try_commit()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! One thread stages and leaves the group locked, another meets it: exactly one thread commits,
    //! every group is unlocked and keeps its version, and a thread that knows of a write sees it
    //! durable. Each step that this needs is left out in turn.

    use super::*;
    use crate::table::index::kernel::{LOCKED, release, try_acquire};
    use loom::sync::{Arc, Mutex, MutexGuard};
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    type Word = loom::sync::atomic::AtomicU64;

    impl Barrier for Word {
        fn store_ahead_of_loads(&self, value: u64) {
            self.store(value, Ordering::Release);
            // loom has no stores that are ahead of loads.
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// A word whose stores are not ahead of loads.
    struct Lazy(Word);

    impl Atomic for Lazy {
        fn load(&self, order: Ordering) -> u64 {
            Atomic::load(&self.0, order)
        }

        fn store(&self, value: u64, order: Ordering) {
            Atomic::store(&self.0, value, order);
        }

        fn replace(&self, current: u64, new: u64) -> bool {
            self.0.replace(current, new)
        }
    }

    impl Barrier for Lazy {
        fn store_ahead_of_loads(&self, value: u64) {
            Atomic::store(self, value, Ordering::Release);
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Version {
        Right,
        /// A reader does not check whether the group is locked.
        Blind,
        /// A reader that finds the log held reads on.
        Hasty,
        /// A group is unlocked before its slot is published.
        UnlocksFirst,
        /// A slot is published before its record is fenced.
        PublishesFirst,
        /// A commit forgets to unlock.
        ForgetsToUnlock,
        /// A commit leaves its writes staged.
        KeepsStaged,
        /// Right, and the fence of a commit fails.
        Fails,
    }

    /// A group whose lock is suspended, and the new value of its slot.
    struct Suspended {
        group: usize,
        word: u64,
        value: u64,
    }

    /// Two groups of one slot, two logs.
    struct World<A> {
        version: Version,
        groups: [Word; 2],
        slots: [Word; 2],
        /// The durable value of each group.
        durable: [Word; 2],
        logs: [Mutex<Vec<Suspended>>; 2],
        of_log: [OfLog<A>; 2],
        /// Set once the first thread has told the others of its write.
        told: Word,
        commits: AtomicUsize,
    }

    /// The first version that a group gives out is this; the bit above the lock's.
    const VERSION: u64 = 2;

    fn two<T>(make: impl Fn() -> T) -> [T; 2] {
        [make(), make()]
    }

    impl<A: Barrier> World<A> {
        fn new(version: Version, word: fn(u64) -> A) -> Self {
            Self {
                version,
                groups: two(|| Word::new(0)),
                slots: two(|| Word::new(0)),
                durable: two(|| Word::new(0)),
                logs: two(|| Mutex::new(Vec::new())),
                of_log: two(|| OfLog::new(word)),
                told: Word::new(0),
                commits: AtomicUsize::new(0),
            }
        }

        fn log(&self, log: usize) -> MutexGuard<'_, Vec<Suspended>> {
            self.logs[log].lock().unwrap()
        }

        /// Locks a group, helping while another thread holds it; returns the word that it leaves
        /// behind.
        fn lock(&self, group: usize) -> u64 {
            loop {
                if let Some(word) = try_acquire(&self.groups[group]) {
                    return word + VERSION;
                }
                (0..2).filter(|log| self.of_log[*log].has_staged()).for_each(|log| {
                    if let Ok(mut staged) = self.logs[log].try_lock() {
                        self.commit(log, &mut staged);
                    }
                });
                loom::thread::yield_now();
            }
        }

        /// Stages a write in `log`, which the caller holds; its position.
        fn stage(&self, log: usize, staged: &mut Vec<Suspended>, group: usize, value: u64) -> u64 {
            let word = self.lock(group);
            let position = self.of_log[log].position();
            staged.push(Suspended { group, word, value });
            self.of_log[log].note(staged.len() as u64);
            position
        }

        fn fence(&self, staged: &[Suspended]) {
            staged.iter().for_each(|it| self.durable[it.group].store(it.value, Ordering::Relaxed));
        }

        fn publish(&self, staged: &[Suspended]) {
            staged.iter().for_each(|it| self.slots[it.group].store(it.value, Ordering::Release));
        }

        fn unlock(&self, staged: &[Suspended]) {
            if self.version != Version::ForgetsToUnlock {
                staged.iter().for_each(|it| release(&self.groups[it.group], it.word));
            }
        }

        fn commit(&self, log: usize, staged: &mut Vec<Suspended>) {
            if staged.is_empty() {
                return;
            }
            self.commits.fetch_add(1, Ordering::Relaxed);
            let taken = std::mem::take(staged);
            let result = if self.version == Version::Fails { Err(()) } else { Ok(()) };
            if result.is_ok() && self.version != Version::PublishesFirst {
                self.fence(&taken);
            }
            let publish = || {
                match self.version {
                    Version::UnlocksFirst => self.unlock(&taken),
                    _ => self.publish(&taken),
                }
                Ok(())
            };
            let unlock = || match self.version {
                Version::UnlocksFirst => self.publish(&taken),
                _ => self.unlock(&taken),
            };
            let done = self.of_log[log].commit(result, publish, unlock);
            assert_eq!(done, result);
            if self.version == Version::PublishesFirst {
                self.fence(&taken);
            }
            if self.version == Version::KeepsStaged {
                *staged = taken;
            }
        }

        /// Commits the staged writes of `log`, unless another thread holds it.
        fn try_commit(&self, log: usize) {
            match self.logs[log].try_lock() {
                Ok(mut staged) => self.commit(log, &mut staged),
                Err(_) => loom::thread::yield_now(),
            }
        }

        /// The value that a reader finds in the slot; it must be durable.
        fn read(&self, group: usize) -> u64 {
            let is_locked = self.groups[group].load(Ordering::Acquire) & LOCKED != 0;
            if is_locked && self.version != Version::Blind {
                for (log, of_log) in self.of_log.iter().enumerate() {
                    if self.version == Version::Hasty {
                        self.try_commit(log);
                        continue;
                    }
                    let try_commit = || -> Result<(), Infallible> {
                        self.try_commit(log);
                        Ok(())
                    };
                    of_log.see(try_commit).unwrap_or_else(|never| match never {});
                }
            }
            let value = self.slots[group].load(Ordering::Acquire);
            let durable = self.durable[group].load(Ordering::Relaxed);
            assert!(durable >= value, "{value} was shown before it was durable");
            value
        }

        fn tell(&self) {
            self.told.store(1, Ordering::Release);
        }

        fn is_told(&self) -> bool {
            self.told.load(Ordering::Acquire) == 1
        }

        /// At the end: no group is locked, no write is staged, all versions were given out.
        fn check(&self, versions: [u64; 2], commits: usize) {
            for (group, versions) in self.groups.iter().zip(versions) {
                assert_eq!(group.load(Ordering::Acquire), versions * VERSION, "a lost unlock");
            }
            assert_eq!(self.commits.load(Ordering::Relaxed), commits, "committed twice");
            assert!(self.of_log.iter().all(|of_log| !of_log.has_staged()));
        }
    }

    fn explore<A: Barrier + 'static>(
        version: Version,
        word: fn(u64) -> A,
        check: fn(Arc<World<A>>),
    ) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.max_branches = 20_000;
        builder.check(move || check(Arc::new(World::new(version, word))));
    }

    fn spawn<A: Barrier + 'static>(
        world: &Arc<World<A>>,
        work: fn(&World<A>),
    ) -> loom::thread::JoinHandle<()> {
        let world = world.clone();
        loom::thread::spawn(move || work(&world))
    }

    /// The owner commits at the end of its turn, the reader when it meets the group.
    fn a_reader_meets(world: Arc<World<Word>>) {
        let owner = spawn(&world, |world| {
            let mut log = world.log(0);
            let position = world.stage(0, &mut log, 0, 7);
            drop(log);
            world.tell();
            while !world.of_log[0].is_committed(position).unwrap() {
                world.try_commit(0);
            }
            assert_eq!(world.read(0), 7, "committed, and not visible to its owner");
        });
        let is_told = world.is_told();
        let seen = world.read(0);
        assert!(seen == 7 || !is_told, "it was told of a write and has not seen it");
        owner.join().unwrap();
        assert_eq!(world.read(0), 7);
        world.check([1, 0], 1);
    }

    /// The owner does not come back: a writer that needs the group commits for it. Two keys of the
    /// group are staged, so that the second borrows the lock.
    fn a_writer_meets(world: Arc<World<Word>>) {
        let owner = spawn(&world, |world| {
            let mut log = world.log(0);
            world.stage(0, &mut log, 0, 7);
            let borrowed = log[0].word + VERSION;
            log[0].word = borrowed;
            log[0].value = 8;
            world.of_log[0].note(2);
        });
        let mut log = world.log(1);
        world.stage(1, &mut log, 0, 9);
        world.commit(1, &mut log);
        drop(log);
        owner.join().unwrap();
        world.read(0);
        world.check([3, 0], 2);
    }

    /// Each thread stages in its own log and then reads the key that the other stages.
    fn two_read_of_each_other<A: Barrier + 'static>(world: Arc<World<A>>) {
        fn stage_and_read<A: Barrier>(world: &World<A>, me: usize) -> u64 {
            let mut log = world.log(me);
            world.stage(me, &mut log, me, 7);
            drop(log);
            world.read(1 - me)
        }
        let (world, other) = (world.clone(), world);
        let other = loom::thread::spawn(move || stage_and_read(&other, 1));
        let mine = stage_and_read(&world, 0);
        let others = other.join().unwrap();
        assert!(mine == 7 || others == 7, "neither has seen what the other has staged");
    }

    /// The write is lost; no thread is told otherwise or waits for ever.
    fn a_reader_meets_a_failed_commit(world: Arc<World<Word>>) {
        let owner = spawn(&world, |world| {
            let mut log = world.log(0);
            let position = world.stage(0, &mut log, 0, 7);
            drop(log);
            while let Ok(is_committed) = world.of_log[0].is_committed(position) {
                assert!(!is_committed, "what was lost is called committed");
                world.try_commit(0);
            }
        });
        assert_eq!(world.read(0), 0);
        owner.join().unwrap();
        world.check([1, 0], 1);
    }

    /// The message with which a model panics.
    fn complaint(explore: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(explore)).expect_err("nothing was caught");
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref().map(|text: &&str| (*text).to_owned())).unwrap()
    }

    #[test]
    fn whoever_is_told_of_a_staged_write_sees_it_and_one_alone_commits_it() {
        explore(Version::Right, Word::new, a_reader_meets);
    }

    #[test]
    fn whoever_wants_a_suspended_group_gets_it_with_its_versions() {
        explore(Version::Right, Word::new, a_writer_meets);
    }

    #[test]
    fn of_two_who_stage_and_read_of_each_other_one_sees() {
        explore(Version::Right, Word::new, two_read_of_each_other);
    }

    #[test]
    fn a_commit_that_fails_is_told_to_everybody() {
        explore(Version::Fails, Word::new, a_reader_meets_a_failed_commit);
    }

    #[test]
    fn without_a_store_ahead_of_loads_neither_may() {
        let lazy = |word| Lazy(Word::new(word));
        let complaint = complaint(|| explore(Version::Right, lazy, two_read_of_each_other));
        assert!(complaint.contains("neither has seen"), "{complaint}");
    }

    #[test]
    fn whatever_is_left_out_is_missed() {
        for (version, what) in [
            (Version::Blind, "has not seen it"),
            (Version::Hasty, "has not seen it"),
            (Version::UnlocksFirst, "has not seen it"),
            (Version::PublishesFirst, "before it was durable"),
            (Version::ForgetsToUnlock, "a lost unlock"),
            (Version::KeepsStaged, "committed twice"),
        ] {
            let complaint = complaint(|| explore(version, Word::new, a_reader_meets));
            assert!(complaint.contains(what), "{version:?}: {complaint}");
        }
    }
}
