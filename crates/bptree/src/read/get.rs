//! Reads: down the tree, one line of tags, the record. No fence, no copy, and no lock, unless writers change the
//! leaf at each look.

use crate::leaf::{Directory, Head, generation, tag_of};
use crate::read::Reader;
use crate::read::damage::DamagedField;
use crate::tree::doubt::is_doubtful;
use crate::tree::lock::Locked;
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use coreplane_engine::{Entry, Error, Found, Horizon, Record, Result, Ticket, Value, Visibility};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{epoch, mutant};
use coreplane_record::{Kind, View};
use std::borrow::Cow;

/// A record or none, and the ticket that the answer rests on.
type Answer<'g> = (Option<Whole<'g>>, Ticket);

/// The same, without its value.
type Seen<'g> = (Option<View<'g>>, Ticket);

/// A record or tombstone and its key.
pub(crate) type Listed<'g> = (Cow<'g, [u8]>, Whole<'g>);

/// Lines of a record that are prefetched before its length is known.
pub(super) const LINES: u32 = 3;

/// Attempts to read several keys, or pages that are gone each time, before leaves are locked.
pub(super) const TRIES: usize = 8;

impl Reader {
    /// Looks at the leaf that serves `key` until it has not changed meanwhile. The ticket that the answer rests on
    /// comes with it, for a record and for none.
    ///
    /// Pages of the value or of the key that the record names are read after that, even if the leaf changes: a page
    /// that could be read when the record was there can still be read, or is no longer such a page, but it is not
    /// reused as long as the guard lives.
    #[inline]
    fn find<'g>(&'g self, guard: &'g Guard, key: &[u8], checked: bool) -> Result<Answer<'g>> {
        let mut lost = 0;
        while lost <= TRIES {
            let descent = self.inner.descend(key);
            let Some((leaf, version)) = self.arrive(&descent) else {
                self.load_leaf_to_read(descent.leaf)?;
                continue;
            };
            let seen = self.seen(guard, descent.leaf, leaf, key);
            let birth = leaf.birth();
            if !leaf.is_at(version) {
                // A look at a long key may take longer than the time between writes.
                lost += usize::from(self.is_long(key));
                continue;
            }
            match self.answer(guard, seen?, (birth, checked)) {
                // A write may have replaced the record and freed its pages since.
                Err(_) if !leaf.is_at(version) => lost += 1,
                answer => return answer,
            }
        }
        self.find_locked(guard, key, checked)
    }

    /// As [`Reader::find`], for a key whose leaf, or record, was changed during each look.
    #[cold]
    fn find_locked<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
        checked: bool,
    ) -> Result<Answer<'g>> {
        let locked = self.lock_leaf(key)?;
        let seen = self.seen(guard, locked.page, locked.leaf, key)?;
        self.answer(guard, seen, (locked.held.birth(), checked))
    }

    /// The present record of a key, durable.
    ///
    /// # Errors
    /// If it is damaged, and if the medium fails.
    #[cold]
    pub(super) fn newest<'g>(&'g self, guard: &'g Guard, key: &[u8]) -> Result<Option<Whole<'g>>> {
        let (found, ticket) = self.find(guard, key, self.check_reads)?;
        if !ticket.is_durable() {
            self.wait_durable(&Horizon::from(ticket))?;
        }
        Ok(found.map(|whole| Whole { ticket: Ticket::DURABLE, ..whole }))
    }

    /// The record that was seen, with its value.
    ///
    /// # Errors
    /// If the value is not where the record says, or, if `checked`, is damaged.
    #[inline]
    fn answer<'g>(
        &'g self,
        guard: &'g Guard,
        (view, ticket): Seen<'g>,
        (birth, checked): (u64, bool),
    ) -> Result<Answer<'g>> {
        let Some(view) = view else { return Ok((None, ticket)) };
        if checked {
            self.check(guard, &view, birth)?;
        }
        let whole = self.whole(guard, view)?;
        Ok((Some(Whole { ticket, ..whole }), ticket))
    }

    #[inline]
    fn seen<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        key: &[u8],
    ) -> Result<Seen<'g>> {
        let standing = self.look(guard, page, leaf, (key, LINES))?;
        if let Some(old) = standing.old.filter(|_| standing.is_hurt) {
            return Err(self.damaged_key(guard, old.offset, old.key()));
        }
        if standing.is_doubtful {
            return Err(self.in_doubt(guard, page));
        }
        let ticket = self.rests_on_old(page, standing.old.as_ref());
        if self.check_reads && standing.old.is_none() {
            self.check_others(guard, page, leaf, key)?;
        }
        Ok((standing.old.filter(|_| standing.live), ticket))
    }

    /// Checks the records of a key's tag, which have other keys, against their checksums: one of them may be the
    /// record of the key, with damage that has left the tag unchanged.
    ///
    /// # Errors
    /// If one is damaged, of any key.
    #[inline(never)]
    pub(crate) fn check_others(
        &self,
        guard: &Guard,
        page: u32,
        leaf: &Directory,
        key: &[u8],
    ) -> Result<()> {
        for place in leaf.candidates(tag_of(key)) {
            let view = self.record_at(guard, page, leaf, place)?;
            view.check(coreplane_record::seed(self.seed, generation(leaf.birth()), view.offset))?;
        }
        Ok(())
    }

    /// Checks a record, and the pages of a large value, against their checksums.
    ///
    /// # Errors
    /// If they are damaged.
    pub(crate) fn check(&self, guard: &Guard, view: &View<'_>, birth: u64) -> Result<()> {
        if !mutant!("bptree.get.checksum") {
            view.check(coreplane_record::seed(self.seed, generation(birth), view.offset))?;
        }
        if view.header.large {
            self.overflow_of(guard, view, true)?;
        }
        self.parts(guard, view.key(), true).map(drop)
    }

    /// A record with its value, as long as the guard lives. The record is still in the leaf.
    #[inline]
    pub(crate) fn whole<'g>(&'g self, guard: &'g Guard, view: View<'g>) -> Result<Whole<'g>> {
        let pieces = if view.header.large && view.header.kind == Kind::Put {
            let pieces = self.overflow_of(guard, &view, false)?;
            pieces.into_iter().map(|(_, bytes)| bytes).collect()
        } else {
            Vec::new()
        };
        Ok(Whole { view, pieces, ticket: Ticket::DURABLE })
    }

    pub(crate) fn get_with(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let guard = epoch::pin();
        let (mut found, mut ticket) = self.find(&guard, key, self.check_reads)?;
        if !ticket.is_durable() && visibility == Visibility::Durable {
            self.wait_durable(&Horizon::from(ticket))?;
            ticket = Ticket::DURABLE;
        }
        if let Some(whole) = &mut found {
            whole.ticket = ticket;
            visit(whole.record());
        }
        self.counters.add(if found.is_some() { Count::Hits } else { Count::Misses }, 1);
        Ok(Found { hit: found.is_some(), ticket })
    }

    /// Checks the record of `key` against its checksums; false if there is none.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn check_record_of(&self, key: &[u8]) -> Result<bool> {
        let guard = epoch::pin();
        self.find(&guard, key, true).map(|(found, _)| found.is_some())
    }

    /// True if `key` has a record, as far as that is known.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let guard = epoch::pin();
        self.find(&guard, key, false).is_ok_and(|(found, _)| found.is_some())
    }

    /// Shows the record of each key, or that there is none, all as of one moment with respect to batches.
    ///
    /// # Errors
    /// If a leaf is damaged.
    pub(crate) fn multi_get(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let guard = epoch::pin();
        let mut found = match self.find_all(&guard, keys)? {
            Some(found) => found,
            None => self.find_all_locked(&guard, keys)?,
        };
        let mut horizon = Horizon::new();
        found.iter().for_each(|(_, ticket)| horizon.include(*ticket));
        if visibility == Visibility::Durable && !horizon.is_empty() {
            self.wait_durable(&horizon)?;
            horizon.clear();
            found.iter_mut().flat_map(|it| &mut it.0).for_each(|it| it.ticket = Ticket::DURABLE);
        }
        let hits = found.iter().filter(|(whole, _)| whole.is_some()).count();
        self.counters.add(Count::Hits, hits as i64);
        self.counters.add(Count::Misses, (keys.len() - hits) as i64);
        for (at, (whole, _)) in found.iter().enumerate() {
            visit(at, whole.as_ref().map(Whole::record));
        }
        Ok(horizon)
    }

    /// None if no attempt was free of batches.
    fn find_all<'g>(&'g self, guard: &'g Guard, keys: &[&[u8]]) -> Result<Option<Vec<Answer<'g>>>> {
        let mut backoff = Backoff::new();
        self.prefetch_all(keys);
        for _ in 0..TRIES {
            let Some(quiet) = self.isolation.quiet() else {
                backoff.wait();
                continue;
            };
            let found = keys
                .iter()
                .map(|key| self.find(guard, key, self.check_reads))
                .collect::<Result<_>>()?;
            if self.isolation.is_quiet_since(quiet) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_all_locked<'g>(&'g self, guard: &'g Guard, keys: &[&[u8]]) -> Result<Vec<Answer<'g>>> {
        // In the order in which all threads lock leaves.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| keys[*at]);
        loop {
            if let Some(found) = self.find_all_in(guard, keys, &order)? {
                return Ok(found);
            }
        }
    }

    /// None if the store was emptied meanwhile.
    fn find_all_in<'g>(
        &'g self,
        guard: &'g Guard,
        keys: &[&[u8]],
        order: &[usize],
    ) -> Result<Option<Vec<Answer<'g>>>> {
        let mut locks: Vec<(Locked<'_>, Option<Cow<'_, [u8]>>)> = Vec::new();
        let mut found: Vec<Answer<'g>> = Vec::new();
        found.resize_with(keys.len(), || (None, Ticket::DURABLE));
        for at in order.iter().copied() {
            let key = keys[at];
            let is_mine =
                |bound: &Option<Cow<'_, [u8]>>| bound.as_deref().is_none_or(|bound| key < bound);
            if !locks.last().is_some_and(|(_, bound)| is_mine(bound)) {
                let locked = self.lock_leaf(key)?;
                let (_, bound) = self.bounds(guard, locked.page)?;
                if !is_mine(&bound) {
                    // The next key would lock it again.
                    return Err(self.not_a_leaf(locked.page));
                }
                locks.push((locked, bound));
            }
            if let Some((locked, _)) = locks.last() {
                let seen = self.seen(guard, locked.page, locked.leaf, key)?;
                found[at] = self.answer(guard, seen, (locked.held.birth(), self.check_reads))?;
            }
        }
        // A clear leads to its new leaf without the locks of the others, for which it then waits: some of the keys
        // may have been looked up there; none, if the tree still leads to the first leaf.
        let first = locks.first().zip(order.first());
        let is_one_moment =
            first.is_none_or(|((locked, _), at)| self.inner.descend(keys[*at]).leaf == locked.page);
        Ok(is_one_moment.then_some(found))
    }

    /// All records and tombstones of the leaf that serves `key`.
    pub(crate) fn leaf_of<'g>(&'g self, guard: &'g Guard, key: &[u8]) -> Result<Leaf<'g>> {
        self.leaf_and_page_of(guard, key).map(|(leaf, _)| leaf)
    }

    /// As [`Reader::leaf_of`], and the page of that leaf.
    pub(crate) fn leaf_and_page_of<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
    ) -> Result<(Leaf<'g>, u32)> {
        self.leaf_since(guard, key, None)
    }

    /// The same; with a sequence, only newer records.
    pub(crate) fn leaf_since<'g>(
        &'g self,
        guard: &'g Guard,
        key: &[u8],
        since: Option<u64>,
    ) -> Result<(Leaf<'g>, u32)> {
        let mut lost = 0;
        loop {
            let descent = self.inner.descend(key);
            let Some((leaf, version)) = self.arrive(&descent) else {
                self.load_leaf_to_read(descent.leaf)?;
                continue;
            };
            let outline = self.outline(guard, descent.leaf, leaf, since);
            if !leaf.is_at(version) {
                continue;
            }
            let read = self.leaf_in(guard, outline?);
            let is_whole = read.as_ref().is_ok_and(|leaf| leaf.hurt.is_empty());
            if is_whole || leaf.is_at(version) {
                return Ok((read?, descent.leaf));
            }
            // Missing pages may have been freed by a write since.
            lost += 1;
            if lost > TRIES {
                let locked = self.lock_leaf(key)?;
                let read = self.read_leaf(guard, locked.page, locked.leaf, since)?;
                return Ok((read, locked.page));
            }
        }
    }

    /// All records of a leaf; valid if it has not changed meanwhile.
    pub(crate) fn read_leaf<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        since: Option<u64>,
    ) -> Result<Leaf<'g>> {
        self.leaf_in(guard, self.outline(guard, page, leaf, since)?)
    }

    /// The head of a leaf and the places of its records; valid if it has not changed meanwhile.
    fn outline<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        since: Option<u64>,
    ) -> Result<Outline<'g>> {
        let head = self.head_of(guard, page)?;
        let used = leaf.used();
        let mut records = Vec::with_capacity(used.count());
        for place in used {
            let view = self.record_at(guard, page, leaf, place)?;
            if since.is_some_and(|since| view.sequence() <= since) {
                continue;
            }
            records.push(Line {
                view,
                ticket: self.rests_on(page, view.offset),
                is_doubtful: is_doubtful(leaf, view.header.doubtful, leaf.offset(place)),
                is_hurt: self.is_hurt_inline(view.key(), leaf.tag(place)),
            });
        }
        let in_doubt = (leaf.doubt() > 0).then(|| self.in_doubt(guard, page));
        Ok(Outline { head, records, in_doubt })
    }

    /// The leaf at the moment of an outline, with the pages that its records and its bounds name. Pages that are
    /// gone since make a key hurt, or cause an error.
    fn leaf_in<'g>(&'g self, guard: &'g Guard, outline: Outline<'g>) -> Result<Leaf<'g>> {
        let Outline { mut head, records: lines, in_doubt } = outline;
        let bounds = std::iter::once(&mut head.least).chain(&mut head.bound);
        bounds.into_iter().try_for_each(|bound| self.make_whole(guard, bound))?;
        let mut records = Vec::with_capacity(lines.len());
        let (mut doubtful, mut hurt) = (Vec::new(), Vec::new());
        for Line { view, ticket, is_doubtful, is_hurt } in lines {
            let is_record = view.header.kind != Kind::Delete;
            let (offset, sequence) = (view.offset, view.sequence());
            let mut hurts = |error, known: Option<&[u8]>, is_whole| {
                let known = known.map(Into::into);
                // A record that is damaged says nothing of its kind.
                let is_record = is_record || is_whole;
                hurt.push(DamagedField { error, known, is_whole, offset, sequence, is_record });
            };
            if is_hurt {
                hurts(self.damaged_key(guard, offset, view.key()), None, false);
                continue;
            }
            // Checked at any setting of `check_reads`: a caller that walks all keys would take it for another key.
            let Ok(parts) = self.parts(guard, view.key(), true) else {
                let error = self.damaged_key(guard, offset, view.key());
                hurts(error, Some(self.prefix_of(view.key())), false);
                continue;
            };
            let key = parts.whole();
            if is_doubtful {
                doubtful.push(key);
                continue;
            }
            match self.means_absence(&view, head.birth).and_then(|_| self.whole(guard, view)) {
                Ok(whole) => records.push((key, Whole { ticket, ..whole })),
                Err(error) if is_damage(&error) => hurts(error, Some(&*key), true),
                Err(error) => return Err(error),
            }
        }
        records.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        doubtful.sort_unstable();
        Ok(Leaf { head, records, in_doubt, doubtful, hurt })
    }
}

/// The content of a leaf at one moment, without the pages that its records and its bounds name.
struct Outline<'g> {
    head: Head,
    records: Vec<Line<'g>>,
    in_doubt: Option<Error>,
}

/// A record or tombstone, in no order.
struct Line<'g> {
    view: View<'g>,
    ticket: Ticket,
    is_doubtful: bool,
    /// Its key is damaged.
    is_hurt: bool,
}

/// The content of a leaf at one moment.
pub(crate) struct Leaf<'g> {
    pub(crate) head: Head,
    /// The newest records and tombstones, without a doubt, with their keys, in the order of the keys.
    pub(crate) records: Vec<Listed<'g>>,
    /// The error for the others, if records were lost.
    pub(crate) in_doubt: Option<Error>,
    /// Keys with records that may not be the newest.
    pub(crate) doubtful: Vec<Cow<'g, [u8]>>,
    /// Keys whose rests are damaged, whose large values are not where their records say, or whose damaged records
    /// mean absence.
    pub(crate) hurt: Vec<DamagedField>,
}

/// A record or tombstone, and its value if that is large.
pub(crate) struct Whole<'g> {
    pub(crate) view: View<'g>,
    pieces: Vec<&'g [u8]>,
    pub(crate) ticket: Ticket,
}

impl Whole<'_> {
    pub(crate) fn record(&self) -> Record<'_> {
        let is_large = self.view.header.large;
        Record {
            value: if is_large {
                Value::Pieces(&self.pieces)
            } else {
                Value::Whole(self.view.value())
            },
            sequence: self.view.sequence(),
            expires_at: self.view.header.expires_at,
            ticket: self.ticket,
        }
    }

    /// The entry for `key`, which is the whole key of the record's field.
    pub(crate) fn entry<'w>(&'w self, key: &'w [u8]) -> Entry<'w> {
        Entry { key, record: Some(self.record()), sequence: self.view.sequence() }
    }
}
