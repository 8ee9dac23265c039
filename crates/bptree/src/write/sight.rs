//! A write that looks at the record that it replaces: the checks before the decision, and the provision of missing
//! room or pages before another look.

use crate::read::get::Whole;
use crate::tree::fill_factor::FillFactor;
use crate::tree::image::{Item, Source};
use crate::tree::lock::Locked;
use crate::tree::look::Standing;
use crate::volume::durable::Level;
use crate::volume::keys::{Rest, tag_of_field};
use crate::volume::overflow::Overflow;
use crate::volume::pages::Demand;
use crate::write::Writer;
use crate::write::batch::Step;
use crate::write::batch::shares::Share;
use crate::write::page_search::{PageSearch, Want};
use crate::write::plan::RestsOn;
use coreplane_engine::{Outcome, Result, Ticket, UnixMillis, WriteOptions};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use smallvec::smallvec;

/// A large value that was decided on and written. It stays valid as long as no other write of the key has come in
/// between: the decision is not made twice. A value that rests on nothing stays valid in any case: for a key that
/// is written all the time the write would never end, if its value were written again after each other write.
pub(super) struct Prepared<'s> {
    pub(super) overflow: Overflow<'s>,
    pub(super) seen: Option<u64>,
    pub(super) expires_at: Option<UnixMillis>,
}

impl Prepared<'_> {
    /// True if the value is still valid when the live record has this version.
    pub(super) fn is_for(&self, seen: Option<u64>, rests_on: RestsOn) -> bool {
        rests_on == RestsOn::Nothing || self.seen == seen
    }
}

/// The pages that were written ahead of a record.
#[derive(Default)]
pub(super) struct Preparation<'s> {
    pub(super) value: Option<Prepared<'s>>,
    /// The rest of the key, which does not depend on the decision.
    pub(super) rest: Option<Rest<'s>>,
}

/// The result of one look.
pub(super) enum Attempt {
    Done(Outcome),
    /// A write that has left so few records in the leaf that it could be merged with another.
    LeftLittle(Outcome),
    /// The value is large and not yet in pages of its own; the version of the live record on which the decision is
    /// based.
    NeedOverflow(Vec<u8>, Option<u64>, Option<UnixMillis>),
    /// The key is long, the leaf does not know it, and its rest is not yet in pages of its own.
    NeedRest(Kind),
}

impl Writer {
    /// The result of an attempt; none if it is to be made again, with the missing room or pages provided.
    ///
    /// # Errors
    /// If there is no space for them, and if the medium fails.
    pub(super) fn provide<'s>(
        &'s self,
        key: &[u8],
        options: &WriteOptions,
        (preparation, search): (&mut Preparation<'s>, &mut PageSearch<'s>),
        attempt: Attempt,
    ) -> Result<Option<Outcome>> {
        match attempt {
            Attempt::Done(outcome) => return Ok(Some(outcome)),
            Attempt::LeftLittle(outcome) => {
                self.merge_after(key);
                return Ok(Some(outcome));
            }
            Attempt::NeedOverflow(value, seen, expires_at) => {
                let demand = Demand::of(Kind::Put, seen.is_some());
                let reserve = search.ask_for_pages(demand.or_reserve(options.use_reserve));
                let written = self.write_overflow(&[&value], reserve)?.pop();
                preparation.value = written.map(|it| Prepared { overflow: it, seen, expires_at });
            }
            Attempt::NeedRest(kind) => {
                // The rest of an existing key is known, so that this demands no more than an overwrite.
                let demand = Demand::of(kind, true).or_reserve(options.use_reserve);
                let reserve = search.ask_for_pages(demand);
                preparation.rest = Some(self.write_rest(key, reserve)?);
                self.fence()?;
            }
        }
        Ok(None)
    }

    /// The outcome if the old record is newer than the given sequence.
    #[inline]
    pub(super) fn not_newer(
        &self,
        locked: &Locked<'_>,
        standing: &Standing<'_>,
        options: &WriteOptions,
    ) -> Result<Option<Outcome>> {
        let newer = |old: &View<'_>| options.sequence.is_some_and(|given| given <= old.sequence());
        let Some(old) = standing.old.as_ref().filter(|old| newer(old)) else { return Ok(None) };
        let ticket = self.refused(locked, standing, options)?;
        Ok(Some(Outcome::NotNewer(old.sequence(), ticket)))
    }

    /// The ticket of a refused write: the state that it rests on is as durable as the write would have been.
    ///
    /// # Errors
    /// If the medium fails.
    pub(super) fn refused(
        &self,
        locked: &Locked<'_>,
        standing: &Standing<'_>,
        options: &WriteOptions,
    ) -> Result<Ticket> {
        if self.level(options) == Level::Covered
            && let Some(ticket) = self.unproven(locked.page)
        {
            return Ok(ticket);
        }
        Ok(self.rests_on_old(locked.page, standing.old.as_ref()))
    }

    /// The live record, as far as the write depends on it.
    ///
    /// # Errors
    /// If its value matters and is damaged.
    #[inline]
    pub(super) fn asked<'g>(
        &'g self,
        guard: &'g Guard,
        locked: &Locked<'_>,
        (live, rests_on): (Option<View<'g>>, RestsOn),
    ) -> Result<Option<Whole<'g>>> {
        let Some(view) = live.filter(|_| rests_on != RestsOn::Nothing) else { return Ok(None) };
        if rests_on == RestsOn::Value {
            self.check(guard, &view, locked.held.birth())?;
        }
        self.whole(guard, view).map(Some)
    }

    /// # Errors
    /// If the old record is unknown, or damaged.
    pub(super) fn check_old(
        &self,
        guard: &Guard,
        locked: &Locked<'_>,
        key: &[u8],
        standing: &Standing<'_>,
    ) -> Result<()> {
        match standing.old.filter(|_| standing.is_hurt) {
            Some(old) => Err(self.damaged_key(guard, old.offset, old.key())),
            None if standing.is_doubtful => Err(self.in_doubt(guard, locked.page)),
            None if self.check_reads && standing.old.is_none() => {
                self.check_others(guard, locked.page, locked.leaf, key)
            }
            None => Ok(()),
        }
    }

    /// A free place. While pages are short it may be any.
    pub(super) fn vacancy(&self, locked: &Locked<'_>) -> Option<usize> {
        locked.leaf.vacancy().or_else(|| {
            if self.fill_factor() != FillFactor::AMPLE {
                locked.leaf.allow_full();
            }
            locked.leaf.vacancy()
        })
    }

    /// Rewrites the leaf with the step in it: it has no room for the record, or no place for another key; or the key
    /// is there and damaged, and its field is to go. What was written ahead stays for another look.
    ///
    /// # Errors
    /// [`Error::NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    #[cold]
    pub(super) fn write_with_leaf<'g, 's>(
        &'g self,
        guard: &'g Guard,
        (locked, standing): (Locked<'g>, Standing<'g>),
        (step, seen): (Step<'_, 's>, Option<u64>),
        (options, preparation): (&WriteOptions, &mut Preparation<'s>),
        search: &mut PageSearch<'_>,
    ) -> Result<Attempt> {
        let demand = Demand::of(step.header.kind, standing.live).or_reserve(options.use_reserve);
        let (key, len) = (step.key.into(), step.item(0).len());
        let places = usize::from(standing.place.is_none());
        let want = Want { key, len, places, demand, is_rewritten: true };
        let shares = vec![Share::new(locked, smallvec![(0, standing)])];
        let mut steps = [step];
        let full = vec![(0, want)];
        let applied = self.apply_shares(guard, (shares, &mut steps), (options, full), search);
        let [Step { header, overflow, rest, .. }] = steps;
        if applied.is_err() {
            let expires_at = header.expires_at;
            preparation.value = overflow.map(|overflow| Prepared { overflow, seen, expires_at });
            preparation.rest = rest;
        }
        let (written, sparse) = applied?;
        let outcome = Outcome::Written(written);
        Ok(if sparse.is_empty() { Attempt::Done(outcome) } else { Attempt::LeftLittle(outcome) })
    }

    /// Appends the record after the look at the one that it replaces, makes it durable, and publishes it.
    pub(super) fn append(
        &self,
        locked: Locked<'_>,
        (key, value): (&[u8], &[u8]),
        (mut header, options): (Header, &WriteOptions),
        standing: &Standing<'_>,
        place: usize,
    ) -> Result<Attempt> {
        header.version = self.draw_version(&locked, header.sequence)?;
        header.follows = self.is_proven(locked.page) || mutant!("bptree.put.follows");
        let (leaf, birth) = (locked.leaf, locked.held.birth());
        let appended = self.append_to(locked.page, |writer| {
            self.write_record(writer, birth, &header, key, value)
        })?;
        let item = Item { header, key, value, source: Source::Caller };
        let replaced = self.replaced(standing);
        let tag = tag_of_field(key, self.field_max());
        let before = leaf.size();
        let written = self.publish(locked, &item, options, replaced, (place, tag, appended));
        let outcome = Outcome::Written(written);
        let is_delete = header.kind == Kind::Delete;
        Ok(if is_delete && self.leaves_little(before, leaf.size()) {
            Attempt::LeftLittle(outcome)
        } else {
            Attempt::Done(outcome)
        })
    }
}
