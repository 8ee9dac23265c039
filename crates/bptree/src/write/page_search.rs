//! The search for room: what is tried, and in which order, before anybody is told that there is no space.
//!
//! 1. A leaf that has no room is written anew, as one or as two. A batch does so with all of its leaves at
//!    once, and if there are not as many pages, with one after the other.
//! 2. What a full leaf and those beside it have is spread evenly over as many leaves, unless one record more
//!    is among what is wanted ([`compact`](crate::write::compact)).
//! 3. Some leaves elsewhere are put together as fewer, which gains a page.
//! 4. Pages that were given back, and that somebody may still read, are waited for.
//! 5. It is refused; but what takes the place of other records only after some more tries, for what others
//!    have taken they give back in a moment. One at a time searches for that.
//!
//! After each step that has gained something the write, or the whole batch, is tried again. Nobody who
//! searches has a guard or a lock: what he waits for could not come back.
//!
//! A put that has found nothing is made as a batch of one: a batch writes the leaf anew with the record in it,
//! and has no need of room beside the old one. So one thing is refused in a full pool although nothing grows: a
//! batch over more leaves that are full to the last record than there are pages.
//!
//! Others who take pages, and none of whom needs room in a leaf, wait for them alone
//! ([`Pages::wait_for_more`](crate::volume::pages::Pages::wait_for_more)).

use crate::tree::fill_factor::FillFactor;
use crate::volume::hurt::is_damage;
use crate::volume::pages::{Demand, Patience};
use crate::write::Writer;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch;
use coreplane_pmem::spin::{self, Backoff};
use std::collections::BTreeSet;

/// So many tries for the sake of others: some milliseconds, if nobody gives anything back.
const TRIES_MAX: u32 = 32;

/// Room that a leaf has not.
#[derive(Debug)]
pub(super) struct Want {
    /// One of the keys that the leaf serves.
    pub(super) key: Box<[u8]>,
    /// Bytes of records, and how many of them have no place yet.
    pub(super) len: usize,
    pub(super) places: usize,
    pub(super) demand: Demand,
    /// It was written anew for this by itself, and no page was found.
    pub(super) is_rewritten: bool,
}

/// The search of one write, or of one batch.
pub(super) struct PageSearch<'w> {
    writer: &'w Writer,
    /// What the last try asked of the pages, and of which leaves.
    demand: Demand,
    wants: Vec<Want>,
    /// Keys of leaves that were given room: once each.
    served: BTreeSet<Box<[u8]>>,
    patience: Patience,
    /// Tries for the sake of others who search.
    tries: u32,
    backoff: Backoff,
    /// A leaf was written anew, which is not paid for yet.
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
            backoff: Backoff::new(),
            is_in_debt: false,
        }
    }

    /// Puts other leaves together if pages are short, for those that were written anew. To be called when the write is
    /// made, or has failed: before, what was cut in two for it could be put together again, and so on without end.
    pub(super) fn pay(&mut self) {
        if std::mem::take(&mut self.is_in_debt) {
            self.writer.compact_if_due();
        }
    }

    /// How many pages are to be left by what is about to take some, and room in no leaf.
    pub(super) fn ask_for_pages(&mut self, demand: Demand) -> u32 {
        self.wants.clear();
        self.demand = demand;
        self.writer.pages.reserve(demand)
    }

    /// What was last looked for was to take the place of another record.
    pub(super) fn is_for_overwrite(&self) -> bool {
        self.demand == Demand::Overwrite
    }

    /// Leaves have not the room that is wanted, and there were no pages for others in their place.
    pub(super) fn want(&mut self, wants: Vec<Want>) {
        self.demand = wants.iter().map(|want| want.demand).max().unwrap_or_default();
        self.wants = wants;
    }

    /// Sees to it that the leaf that serves `key` has room for one more record of `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and if the medium fails.
    pub(super) fn make(&mut self, key: &[u8], len: usize, demand: Demand) -> Result<()> {
        match self.writer.make_room(key, (len, 1), demand) {
            Ok(is_rewritten) => {
                self.is_in_debt |= is_rewritten;
                Ok(())
            }
            Err(error) => {
                let key = key.into();
                self.want(vec![Want { key, len, places: 1, demand, is_rewritten: true }]);
                Err(error)
            }
        }
    }

    /// A leaf was written anew for the write, elsewhere.
    pub(super) fn owe(&mut self) {
        self.is_in_debt = true;
    }

    /// From here on the same is looked for in another way. A reader that has stayed is not waited for once more.
    pub(super) fn begin_anew(&mut self) {
        self.again_for_all();
        self.tries = 0;
    }

    fn again_for_all(&mut self) {
        self.served.clear();
        self.patience.renew();
    }

    /// Looks for what a try was refused for. To be called without a guard and without a lock. `is_last`: nothing
    /// else can be tried then. `let_go` gives back what was written already, and says whether that was anything: it is
    /// called when nothing is found beside that, and when somebody else may wait for it.
    ///
    /// # Errors
    /// If there is none: why it was refused; and if the medium fails.
    pub(super) fn run(
        &mut self,
        refused: Error,
        is_last: bool,
        let_go: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        if !matches!(refused, Error::NoSpace { .. }) {
            return Err(refused);
        }
        if self.demand == Demand::Insert || !is_last {
            let is_found = self.is_found(let_go)? || self.is_waited_for();
            return if is_found { Ok(()) } else { Err(refused) };
        }
        let turn = self.writer.search_turn.try_lock();
        if turn.is_none() {
            let_go();
            // What another one finds may be enough for both.
            drop(spin::lock(&self.writer.search_turn));
            return self.again(refused);
        }
        let is_found = self.is_found(let_go)?;
        // Others need not wait for who waits, each for the same readers behind the one before.
        drop(turn);
        if is_found || self.is_waited_for() {
            return Ok(());
        }
        self.again(refused)
    }

    fn is_found(&mut self, let_go: &mut dyn FnMut() -> bool) -> Result<bool> {
        if self.serve_all()? || self.writer.gain_page(self.demand)? {
            return Ok(true);
        }
        // A leaf that wants room may have it then.
        Ok(let_go() && !self.wants.is_empty() && self.serve_all()?)
    }

    /// True if pages have come back that readers had.
    fn is_waited_for(&mut self) -> bool {
        self.writer.pages.wait_for_more(&mut self.patience)
    }

    /// Others have taken pages, of which they give back as many in a moment: tries again, so many times.
    fn again(&mut self, refused: Error) -> Result<()> {
        if self.tries == TRIES_MAX {
            // Who has never had the turn has not waited yet.
            return if self.is_waited_for() { Ok(()) } else { Err(refused) };
        }
        self.tries += 1;
        self.backoff.wait();
        // They may have filled the leaf, too.
        self.again_for_all();
        Ok(())
    }

    /// Gives room to leaves that want it, as far as that can be; true if some have it now.
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
            // It has given back as many pages as it took: those are waited for once more.
            self.patience.renew();
        }
        Ok(is_any)
    }
}

impl Writer {
    /// Gives room to a leaf; false if there is none for it now.
    fn serve(&self, want: &Want) -> Result<bool> {
        let Want { key, len, places, demand, is_rewritten } = want;
        if !is_rewritten {
            match self.make_room(key, (*len, *places), *demand) {
                Err(Error::NoSpace { .. }) => {}
                // Whoever comes to it is told.
                Err(error) if is_damage(&error) => return Ok(false),
                made => return made.map(|_| true),
            }
        }
        // One record more is no reason to write others anew for each.
        if *demand == Demand::Insert { Ok(false) } else { self.spread(key, (*len, *places)) }
    }

    /// Writes the leaf anew that serves `key` if it has no room for `len` bytes, or not so many places; false if it
    /// has.
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
