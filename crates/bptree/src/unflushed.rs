//! What is seen and not flushed yet, where a fence is an instruction.
//!
//! To flush a record and wait for its fence is a third of what a put costs. A write that is `relaxed`
//! need not: it is seen at once, and what it has appended is noted at the thread's *desk*. There some
//! writes come together, and share a flush and a fence; the end of a window does the same for what is
//! on all desks, and so do a sync and a close.
//!
//! ```text
//!   strict    append ─▶ flush, from where the leaf is durable ─▶ fence ─▶ the place
//!   relaxed   append ─▶ the place ─▶ noted at the desk … flush and fence of all that is noted there
//! ```
//!
//! **Of a leaf** the records are durable in their order, as far as anybody relies on them: a strict
//! write flushes what is before it in the leaf too, and so does the farewell of a leaf that is written
//! anew, whose heirs are durable before it. So a crash takes the last of a leaf's `relaxed` records,
//! never one from between them. What it leaves behind those is not sound, or follows nothing.
//!
//! **Rounds** say whether all of a leaf is durable. A write notes the number of the round in its leaf;
//! a round ends when all that was noted in it is flushed and fenced. A record that follows
//! ([`read`](crate::read)) is written only to a leaf whose last round has ended.
//!
//! ```text
//!   write        desk locked: round = current; noted; leaf's round = round
//!   end a round  current += 1 ─▶ each desk locked: what is noted taken ─▶ flush, fence ─▶ ended = round
//! ```
//!
//! Whoever is noted in the round that ends had locked his desk before that was looked at, so that it was
//! found there.
//!
//! What gives pages back at once is never `relaxed`: should the record be lost, the one that it took the
//! place of would name them.

use crate::leaf::Directory;
use crate::lock::Locked;
use crate::store::Store;
use coreplane_engine::{Durability, Result, WriteOptions};
use coreplane_pmem::mutant;
use coreplane_pmem::{PageWriter, Pen, spin, thread_number};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// So many bytes come together before their thread flushes them: enough to share a fence, few enough
/// for nobody to notice when they are flushed.
const TOGETHER: u64 = 16 << 10;

/// Desks of a store: one for each thread, more or less.
pub(crate) const DESKS: usize = 64;

/// When what is appended is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Where a fence is an instruction, before anybody sees it; where it is a sync, by the next one.
    Now,
    /// Later: when so many bytes have come together, and within a time if there is one.
    Later(u64, Option<Duration>),
}

/// What a thread, more or less, writes with.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) pen: Option<Pen>,
    /// Where in the pool something was written and not flushed, and its length.
    noted: Vec<(u64, u32)>,
    /// Bytes of that.
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rounds {
    current: AtomicU64,
    ended: AtomicU64,
    /// Held by whoever ends one.
    ending: Mutex<()>,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        Self { current: AtomicU64::new(1), ended: AtomicU64::new(0), ending: Mutex::new(()) }
    }

    /// True if a round has ended, or is none (0).
    #[inline]
    pub(crate) fn is_over(&self, round: u64) -> bool {
        round == 0 || round <= self.ended.load(Ordering::Acquire)
    }
}

impl Store {
    /// The desk of this thread.
    #[inline]
    pub(crate) fn desk(&self) -> spin::Held<'_, Desk> {
        self.desks[thread_number() % DESKS].lock()
    }

    /// The pen of this thread, if nobody else has it.
    pub(crate) fn take_pen(&self) -> Option<Pen> {
        self.desk().pen.take()
    }

    /// When a write of a record is durable that gives no pages back.
    #[inline]
    pub(crate) fn due(&self, options: &WriteOptions) -> Due {
        if self.early.is_some() {
            return Due::Now;
        }
        match options.durability.unwrap_or(self.durability) {
            Durability::Strict | Durability::Group { .. } => Due::Now,
            Durability::Relaxed { window_bytes, window } => {
                Due::Later(window_bytes.min(TOGETHER), Some(window))
            }
            Durability::NoFlush => Due::Later(TOGETHER, None),
        }
    }

    /// Where a flush has to begin for all of a leaf to be durable up to what is appended at `offset`.
    /// Under the leaf's lock.
    #[inline]
    pub(crate) fn flush_from(&self, page: u32, offset: u64) -> u64 {
        if self.early.is_some() || self.is_proven(page) {
            return offset;
        }
        let durable = self.space.watermarks(page).map_or(0, |(_, durable)| durable);
        if mutant!("bptree.relaxed.behind") {
            return offset;
        }
        offset.min(self.space.start_of(page) + u64::from(durable))
    }

    /// Publishes what was appended from `start` on to the page of a locked leaf, and notes it.
    ///
    /// # Errors
    /// If the medium fails.
    #[inline]
    pub(crate) fn publish_unflushed(
        &self,
        desk: &mut Desk,
        leaf: &Directory,
        (writer, start): (PageWriter, u64),
        (together, window): (u64, Option<Duration>),
    ) -> Result<()> {
        let is_proven = self.is_leaf_proven(writer.page(), leaf);
        let len = (writer.next_offset() - start) as u32;
        desk.pen = Some(writer.finish_unflushed(is_proven));
        leaf.note_round(self.rounds.current.load(Ordering::Relaxed));
        desk.noted.push((start, len));
        desk.bytes += u64::from(len);
        if desk.bytes >= together {
            self.flush_desk(desk);
            self.fence()?;
        }
        // Whoever ends windows finds it: the desk is locked.
        if let Some(window) = window {
            self.windows.opened(window);
        }
        Ok(())
    }

    fn flush_desk(&self, desk: &mut Desk) {
        let noted = desk.noted.drain(..);
        if !mutant!("bptree.relaxed.flush") {
            noted.for_each(|(start, len)| self.space.flush(start, u64::from(len)));
        }
        desk.bytes = 0;
    }

    /// Makes durable what is not of a locked leaf: for whoever is told what it says, or that nothing need
    /// be written for it, and is not to lose that.
    ///
    /// # Errors
    /// If the medium fails.
    #[inline]
    pub(crate) fn flush_leaf(&self, locked: &Locked<'_>) -> Result<()> {
        if self.early.is_some() || self.is_leaf_proven(locked.page, locked.leaf) {
            return Ok(());
        }
        if let Some((published, durable)) = self.space.watermarks(locked.page) {
            let start = self.space.start_of(locked.page);
            self.space.flush(start + u64::from(durable), u64::from(published - durable));
        }
        self.fence()?;
        locked.leaf.note_flushed();
        Ok(())
    }

    /// Ends a round: all that was written before the call is durable when it returns.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn end_round(&self) -> Result<()> {
        if self.early.is_some() {
            // Nothing is noted, and who calls at the same time shares a sync.
            return self.fence();
        }
        // Whoever ends this one comes to the desks after all that was written before the call.
        self.end_round_from(self.rounds.current.load(Ordering::SeqCst))
    }

    /// Ends a round, unless the one has ended meanwhile in which this was asked for.
    fn end_round_from(&self, asked: u64) -> Result<()> {
        let _ending = spin::lock(&self.rounds.ending);
        if self.rounds.is_over(asked) {
            return Ok(());
        }
        let round = self.rounds.current.fetch_add(1, Ordering::SeqCst);
        for desk in &self.desks {
            self.flush_desk(&mut desk.lock());
        }
        self.fence()?;
        self.rounds.ended.store(round, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{Options, create_options};
    use coreplane_pmem::media::sim::{Model, Sim, SimOptions};
    use coreplane_pmem::{MediaChoice, Pool};
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    const LEN: u64 = 1 << 20;

    /// With a write that nobody has made durable.
    fn written(model: Model) -> (Sim, Store) {
        let options = SimOptions { len: LEN, max_len: LEN, model, ..SimOptions::default() };
        let sim = Sim::new(&options).expect("memory");
        let create = create_options(LEN, options.page_size, MediaChoice::Auto);
        let pool = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
        let durability = Durability::NoFlush;
        let options = Options { durability, background: false, ..Options::default() };
        let store = Store::format(pool, &options).expect("a store");
        let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
        (sim, store)
    }

    #[test]
    fn who_has_waited_for_a_round_that_began_after_his_call_returns_with_it() {
        let (sim, store) = written(Model::X86);
        let asked = store.rounds.current.load(Ordering::SeqCst);
        let fences_of = |end: &dyn Fn() -> Result<()>| {
            let (_, before) = sim.space().flushes_and_fences();
            end().expect("a medium that works");
            sim.space().flushes_and_fences().1 - before
        };
        assert_eq!(fences_of(&|| store.end_round_from(asked)), 1);
        assert_eq!(fences_of(&|| store.end_round_from(asked)), 0, "he had waited");
        let _outcome = store.put(b"key", b"another", &WriteOptions::default()).expect("put");
        assert_eq!(fences_of(&|| store.end_round()), 1, "he has come since");
    }

    /// So that syncs which come together share one.
    #[test]
    fn in_a_file_nobody_waits_for_another_who_ends_a_round() {
        let (_sim, store) = written(Model::File);
        let (ended, end) = channel();
        std::thread::scope(|scope| {
            let _ending = store.rounds.ending.lock();
            scope.spawn(|| ended.send(store.end_round().is_ok()));
            // No more than a guard against waiting for ever.
            assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
        });
    }
}
