//! The search for room: the attempts, and their order, before a write is refused for lack of space.
//!
//! 1. A leaf without room is rewritten with the new record in it, as one or as two; as one, if it would be refused
//!    as two, or shrinks. It needs no room beside the old record. A batch does so with all of its leaves at once,
//!    and if there are not enough pages, one after the other is rewritten with room for its share.
//! 2. The records of a full leaf and its neighbours are spread evenly over as many leaves, unless an additional
//!    record is among the demands ([`compact`](crate::write::compact)).
//! 3. Other writers are about to give back pages: those are waited for, for as long as a leaf takes to be rewritten.
//!    Otherwise each would look through the whole tree for the page that another one has in its hands.
//! 4. Some leaves elsewhere are rewritten as fewer, which gains a page.
//! 5. Pages that were given back, and that readers may still use, are waited for.
//! 6. The write is refused; but one that replaces other records only after some more tries, since other writers soon
//!    give back the pages that they have taken. One writer at a time searches for these.
//!
//! After each successful step the write, or the whole batch, is tried again. A thread that searches has no guard
//! and no lock: otherwise the pages that it waits for could not come back.
//!
//! A rewritten leaf gives back a page. So only one kind of write is refused in a full pool although nothing grows: a
//! batch over more completely full leaves than there are pages.
//!
//! Other operations that take pages, none of which needs room in a leaf, only wait for them
//! ([`Pages::wait_for_more`](crate::volume::pages::Pages::wait_for_more)).

use crate::tree::fill_factor::FillFactor;
use crate::volume::hurt::is_damage;
use crate::volume::pages::{Demand, Patience};
use crate::write::Writer;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use coreplane_pmem::spin::{self, Backoff};
use std::collections::BTreeSet;

/// Tries for the sake of others: some milliseconds, if no thread gives anything back.
const TRIES_MAX: u32 = 32;

/// Steps in a row for which it is enough that other writers give back pages; the next one is not content with that.
const WAITS_MAX: u32 = 8;

/// Room that a leaf lacks.
#[derive(Debug)]
pub(super) struct Want {
    /// One of the keys that the leaf serves.
    pub(super) key: Box<[u8]>,
    /// Bytes of records, and the number of records without a place.
    pub(super) len: usize,
    pub(super) places: usize,
    pub(super) demand: Demand,
    /// No page was found to rewrite it for this alone.
    pub(super) is_rewritten: bool,
}

/// The search of one write, or of one batch.
pub(super) struct PageSearch<'w> {
    writer: &'w Writer,
    /// The demand of the last try for pages, and the leaves in which it needs room.
    demand: Demand,
    wants: Vec<Want>,
    /// Keys of leaves that were given room, each only once.
    served: BTreeSet<Box<[u8]>>,
    patience: Patience,
    /// Tries for the sake of other searches.
    tries: u32,
    /// Steps for which pages of other writers were enough, since the last one that was not content with them.
    waits: u32,
    backoff: Backoff,
    /// A leaf was rewritten, which is not paid for yet.
    is_in_debt: bool,
}

impl<'w> PageSearch<'w> {
    pub(super) fn new(writer: &'w Writer) -> Self {
        Self {
            writer,
            demand: Demand::default(),
            wants: Vec::new(),
            served: BTreeSet::new(),
            patience: Patience::default(),
            tries: 0,
            waits: 0,
            backoff: Backoff::new(),
            is_in_debt: false,
        }
    }

    /// Merges other leaves if pages are short, in return for rewritten ones. To be called when the write is made,
    /// or has failed: before, leaves that were split for it could be merged again, and so on without end.
    pub(super) fn pay(&mut self) {
        if std::mem::take(&mut self.is_in_debt) {
            self.writer.compact_if_due();
        }
    }

    /// The number of pages that the next request must leave; it needs room in no leaf.
    pub(super) fn ask_for_pages(&mut self, demand: Demand) -> u32 {
        self.wants.clear();
        self.demand = demand;
        self.writer.pages.reserve(demand)
    }

    /// Notes that leaves lack room, and that there were no pages for their successors.
    pub(super) fn want(&mut self, wants: Vec<Want>) {
        self.demand = wants.iter().map(|want| want.demand).max().unwrap_or_default();
        self.wants = wants;
    }

    /// Notes that a leaf was rewritten for the write.
    pub(super) fn owe(&mut self) {
        self.is_in_debt = true;
    }

    /// Searches for the room for which a try was refused. To be called without a guard and without a lock.
    /// `let_go` gives back pages that were written already, and returns whether there were any: it is called when
    /// nothing else is found, and when another search may wait for them.
    ///
    /// # Errors
    /// If there is none: the reason of the refusal; and if the medium fails.
    pub(super) fn run(&mut self, refused: Error, let_go: &mut dyn FnMut() -> bool) -> Result<()> {
        let Error::NoSpace { needed, .. } = refused else { return Err(refused) };
        let goal = self.writer.pages.goal(needed, self.writer.pages.reserve(self.demand));
        if self.demand == Demand::Insert {
            let is_found = self.is_found(goal, let_go)? || self.is_waited_for();
            return if is_found { Ok(()) } else { Err(refused) };
        }
        let turn = self.writer.search_turn.try_lock();
        if turn.is_none() {
            let_go();
            // The pages that the other search finds may be enough for both.
            drop(spin::lock(&self.writer.search_turn));
            return self.again(refused);
        }
        let is_found = self.is_found(goal, let_go)?;
        // Other searches need not wait behind this one, each for the same readers.
        drop(turn);
        if is_found || self.is_waited_for() {
            return Ok(());
        }
        self.again(refused)
    }

    /// True if there is room, or `goal` pages are free.
    fn is_found(&mut self, goal: u32, let_go: &mut dyn FnMut() -> bool) -> Result<bool> {
        if self.serve_all()? || self.is_gained(goal)? {
            return Ok(true);
        }
        // A leaf that wants room may get it then.
        Ok(let_go() && !self.wants.is_empty() && self.serve_all()?)
    }

    /// True if a page was gained, or other writers have given back those that it lacked.
    fn is_gained(&mut self, goal: u32) -> Result<bool> {
        // It may lack something else, although so many pages are free. An additional record is no reason to wait.
        let may_wait = self.demand != Demand::Insert && self.waits < WAITS_MAX;
        let goal = if may_wait { goal } else { u32::MAX };
        let is_gained = may_wait && self.writer.pages.wait_for_writers(goal)
            || self.writer.gain_page(self.demand, goal)?;
        self.waits = if may_wait { self.waits + 1 } else { 0 };
        Ok(is_gained)
    }

    /// True if pages have come back from readers.
    fn is_waited_for(&mut self) -> bool {
        self.writer.pages.wait_for_more(&mut self.patience)
    }

    /// Other threads have taken pages, and soon give back as many: tries again, up to a limit.
    fn again(&mut self, refused: Error) -> Result<()> {
        if self.tries == TRIES_MAX {
            // A search that has never had the turn has not waited yet.
            return if self.is_waited_for() { Ok(()) } else { Err(refused) };
        }
        self.tries += 1;
        self.backoff.wait();
        // They may have filled the leaf, too.
        self.served.clear();
        self.patience.renew();
        Ok(())
    }

    /// Gives room to leaves that want it, as far as possible; true if some have it now.
    fn serve_all(&mut self) -> Result<bool> {
        let mut is_any = false;
        for want in std::mem::take(&mut self.wants) {
            if self.served.contains(&want.key) {
                continue;
            }
            if self.writer.serve(&want)? {
                self.served.insert(want.key);
                (is_any, self.is_in_debt) = (true, true);
            } else {
                self.wants.push(want);
            }
        }
        if is_any {
            // This gave back as many pages as it took: those are waited for again.
            self.patience.renew();
        }
        Ok(is_any)
    }
}

impl Writer {
    /// Gives room to a leaf; false if that is impossible now.
    fn serve(&self, want: &Want) -> Result<bool> {
        let Want { key, len, places, demand, is_rewritten } = want;
        if !is_rewritten {
            match self.make_room(key, (*len, *places), *demand) {
                Err(Error::NoSpace { .. }) => {}
                // An operation on that leaf reports the damage.
                Err(error) if is_damage(&error) => return Ok(false),
                made => return made.map(|_| true),
            }
        }
        // An additional record is no reason to rewrite other leaves.
        if *demand == Demand::Insert { Ok(false) } else { self.spread(key, (*len, *places)) }
    }

    /// Rewrites the leaf that serves `key` if it has no room for `len` bytes, or not enough places; false if it has
    /// room.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    fn make_room(&self, key: &[u8], (len, places): (usize, usize), demand: Demand) -> Result<bool> {
        let guard = epoch::pin();
        let locked = self.lock_to_write(key, 0)?;
        if self.room(&locked) >= len {
            if self.fill_factor() != FillFactor::AMPLE {
                locked.leaf.allow_full();
            }
            if locked.leaf.vacancies() >= places {
                return Ok(false);
            }
        }
        self.rewrite(&guard, locked, (key, len), self.pages.reserve(demand)).map(|()| true)
    }
}
