//! Several changes at once: all of them or none, one fence.
//!
//! ```text
//!   … │ put a ∙ batched │ delete b ∙ batched │ put c ∙ batched │ commit: runs │ …
//! ```
//!
//! The members are appended one after the other and after them a commit record that names the
//! runs of bytes in which they are; one fence makes all durable together. A batched record counts
//! only if it lies in a run of a sound commit record all of whose members are sound. Where the
//! batch does not fit the rest of its page it goes on in another, as a further run, and the
//! members are fenced before the commit record is appended.
//!
//! When the cleaner moves a member it writes it as a record that stands alone; a commit record
//! with runs in other pages lives until those pages are gone ([`clean`](crate::clean)).
//!
//! **Isolation.** All groups of the batch are locked while it is published, and readers, which take
//! no lock, wait at the [`Gate`](crate::read::gate::Gate) for the moment between the first slot and
//! the last.

mod members;
mod publication;

use crate::clean::reserve::SplitPages;
use crate::table::counters::Count;
use crate::table::demand::Demand;
use crate::table::hash::Place;
use crate::table::index::Leaf;
use crate::table::log::{Log, Order};
use crate::table::run::Run;
use crate::write::Writer;
use coreplane_engine::{Batch, Completion, Horizon, Result, Ticket, WriteOptions, Written};
use coreplane_pmem::epoch;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind};
use members::{Birth, Member, Stood, prefetch_payload};
use std::collections::BTreeMap;

/// Segments, by their numbers, in which a batch finds a group full, and a place in each.
type Full = BTreeMap<u32, (Leaf, Place)>;

/// The result of an attempt at a batch.
enum Attempt {
    Done(Written),
    /// Groups have no room: the segments to split, all at once.
    NeedSplits(Full),
    /// Room was made for a lower demand than the batch has.
    NeedRoom(Demand),
}

impl Writer {
    pub(crate) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.check_writable()?;
        let order = match self.order(options)? {
            Order::Early => Order::Early,
            // Its records lie side by side in the caches, so that each line is flushed once.
            Order::Strict | Order::Staged | Order::Relaxed { .. } => Order::Staged,
        };
        self.check_sequence(options.sequence)?;
        let mut log = self.my_log()?;
        let members = self.members(&mut log, batch, options.sequence, order);
        let written = members.and_then(|it| self.apply_members(&mut log, it, order));
        log.give_back(self);
        drop(log);
        let written = written?;
        if options.completion == Completion::Wait && !written.ticket.is_durable() {
            self.wait_durable(&Horizon::from(written.ticket))?;
            return Ok(Written { ticket: Ticket::DURABLE, ..written });
        }
        self.bound_early(written.ticket, options);
        Ok(written)
    }

    fn apply_members(
        &self,
        log: &mut Log,
        mut members: Vec<Member<'_>>,
        order: Order,
    ) -> Result<Written> {
        if members.is_empty() {
            let sequence = self.version_base();
            return Ok(Written { sequence, ticket: Ticket::DURABLE, replaced: false });
        }
        let deletes = members.iter().all(Member::is_delete);
        let mut demand = if deletes { Demand::Reserve } else { Demand::Overwrite };
        loop {
            // Each time, since cleaning for a split may have sealed the page in which there was
            // room.
            self.make_room_for(log, &members, demand)?;
            match self.attempt_batch(log, &mut members, (order, demand))? {
                Attempt::Done(written) => {
                    self.counters.add(Count::Batches, 1);
                    return Ok(written);
                }
                Attempt::NeedSplits(full) => {
                    for (leaf, place) in full.into_values() {
                        self.split(leaf, place, SplitPages::ByCleaning(log))?;
                    }
                }
                Attempt::NeedRoom(inserts) => demand = inserts,
            }
        }
    }

    /// Makes the batch fit the open page, or sets aside the pages that it needs, so that no other
    /// writer can take them.
    fn make_room_for(&self, log: &mut Log, members: &[Member<'_>], demand: Demand) -> Result<()> {
        let page = self.geometry.page_size as usize;
        let total = batch_len(members);
        if total <= page {
            return self.make_room(log, total, demand);
        }
        loop {
            let room = log.room();
            let lens = members.iter().map(|member| member.len as usize);
            self.set_pages_aside(log, pages_for(lens, room, page), total, demand)?;
            // Unless cleaning has sealed the open page.
            if log.room() == room {
                return Ok(());
            }
        }
    }

    /// Locks, appends, fences, publishes; or returns the reason why it cannot.
    fn attempt_batch(
        &self,
        log: &mut Log,
        members: &mut [Member<'_>],
        (order, demand): (Order, Demand),
    ) -> Result<Attempt> {
        let guard = epoch::pin();
        let held = match self.stand_all(&guard, members)? {
            Stood::Ready(held) => held,
            Stood::Full(full) => return Ok(Attempt::NeedSplits(full)),
        };
        let of = members.iter().filter(|it| !it.is_idle).map(Member::demand).max();
        if of.is_some_and(|of| of > demand) && !self.has_room_for_inserts(log) {
            return Ok(Attempt::NeedRoom(Demand::Insert));
        }
        let birth = self.pages.next_birth().to_le_bytes();
        if let Err(error) = self.append_all(log, members, birth, (order, demand)) {
            for member in members.iter().filter(|member| member.offset != 0) {
                self.add_live(member.offset, -i64::from(member.len));
            }
            return Err(error);
        }
        // Ahead of the publication: every readable record is counted.
        self.counters.add(Count::Records, Self::records_of(&held, members));
        self.gate.publish(|| self.publish_slots(&held, members))?;
        for member in members.iter().filter(|member| !member.is_idle) {
            log.note_published(self, member.at);
        }
        self.account_all(&guard, &held, members);
        let sequence_of = |it: &Member<'_>| it.header.sequence.unwrap_or(it.header.version);
        let sequence = members.iter().map(sequence_of).max().unwrap_or(0);
        let replaced = members.iter().any(|member| member.replaces);
        // The ticket of everything visible: a change that was idle rests on the writes of others.
        let ticket = if order == Order::Early { self.early_ticket() } else { Ticket::DURABLE };
        Ok(Attempt::Done(Written { sequence, ticket, replaced }))
    }

    /// Appends members and commit record, durable (or early, by `order`) when it returns.
    fn append_all(
        &self,
        log: &mut Log,
        members: &mut [Member<'_>],
        birth: Birth,
        (order, demand): (Order, Demand),
    ) -> Result<()> {
        let whole = batch_len(members) <= log.room();
        let mut runs: Vec<Run> = Vec::new();
        let mut first = None;
        for number in 0..members.len() {
            prefetch_payload(members, number);
            let member = &mut members[number];
            if member.is_idle {
                continue;
            }
            if log.room() < member.len as usize {
                if let Some(start) = first.take() {
                    log.commit(self, start, Order::Strict)?;
                }
                self.open_page_aside(log, member.len as usize, demand)?;
            }
            let appended =
                log.append(self, &member.header, member.key, &[member.value(&birth)], order)?;
            member.offset = appended.offset;
            first.get_or_insert(appended.offset);
            match runs.last_mut() {
                Some(run) if self.goes_on(run, appended.offset) => run.len += appended.len,
                _ => runs.push(Run {
                    start: appended.offset,
                    len: appended.len,
                    generation: log.generation(),
                }),
            }
        }
        let Some(mut first) = first else { return Ok(()) };
        let mut list = Vec::with_capacity(runs.len() * Run::LEN);
        runs.iter().for_each(|run| run.encode(&mut list));
        let header = Header { kind: Kind::Commit, ..Header::put(0) };
        // The pages of a longer batch are sealed: the cleaner may copy their records as records of their own, which
        // must not outlive a commit record that is lost.
        let order = if whole { order } else { Order::Strict };
        if !whole {
            log.commit(self, first, Order::Strict)?;
            self.open_page_aside(log, header.record_len(&[], list.len()), demand)?;
            first = log.next_offset();
        }
        if mutant!("scmkv.batch.no_commit_record") {
            return log.commit(self, first, order);
        }
        let commit = log.append(self, &header, &[], &[&list], order)?;
        // Only recovery uses a commit record: it does not count as live.
        log.forget_live(commit.len);
        log.commit(self, first, order)
    }

    /// True if a record at `offset` is of the same run. A run that fills its page to the last byte
    /// ends there, even where the log goes on in the page behind it: recovery reads each run with
    /// the generation of one page.
    fn goes_on(&self, run: &Run, offset: u64) -> bool {
        let page = |offset| self.space.page_of(offset);
        run.start + u64::from(run.len) == offset
            && (page(run.start) == page(offset) || mutant!("scmkv.batch.run_over_pages"))
    }

    /// Opens the next of the pages that were set aside, if the open one has no room.
    pub(super) fn open_page_aside(&self, log: &mut Log, len: usize, demand: Demand) -> Result<()> {
        if log.make_room(self, len, self.reserve(demand))? {
            return Ok(());
        }
        self.no_space(len as u64)
    }
}

/// The greatest length of a commit record with so many runs.
fn commit_len(runs: usize) -> usize {
    Header::put(0).record_len(&[], runs * Run::LEN)
}

/// The bytes that a batch takes in one page, if it fits one.
fn batch_len(members: &[Member<'_>]) -> usize {
    members.iter().map(|member| member.len as usize).sum::<usize>() + commit_len(1)
}

/// The most pages of `page` bytes that a batch takes beside the `room` bytes of the open one, in
/// any order of its members, since a split may change it. In each page less is left unused than the
/// longest record takes.
fn pages_for(lens: impl Iterator<Item = usize>, room: usize, page: usize) -> u32 {
    let (total, longest) = lens.fold((0, 0), |(sum, max), len| (sum + len, len.max(max)));
    let filled = |longest: usize| page.saturating_sub(longest).max(1);
    let commit = commit_len(total.div_ceil(filled(longest)) + 2);
    let longest = longest.max(commit);
    let rest = (total + commit).saturating_sub(room.saturating_sub(longest));
    rest.div_ceil(filled(longest)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages that records take one behind the other, the commit record last.
    fn packed(lens: &[usize], mut room: usize, page: usize) -> u32 {
        let (mut pages, mut runs) = (0, 1);
        let mut fit = |len: usize, runs: &mut usize| {
            if room < len {
                (pages, room, *runs) = (pages + 1, page, *runs + 1);
            }
            room -= len;
            pages
        };
        for len in lens {
            fit(*len, &mut runs);
        }
        fit(commit_len(runs), &mut 0)
    }

    #[test]
    fn the_pages_of_a_batch_suffice_in_any_order() {
        const PAGE: usize = 4096;
        let mut seed = 1_u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for round in 0..2000 {
            let longest = [40, 300, PAGE / 4][round % 3];
            let mut lens: Vec<usize> = (0..1 + draw(200)).map(|_| 24 + draw(longest)).collect();
            let room = draw(PAGE);
            let pages = pages_for(lens.iter().copied(), room, PAGE);
            for _ in 0..10 {
                (1..lens.len()).rev().for_each(|at| lens.swap(at, draw(at + 1)));
                assert!(packed(&lens, room, PAGE) <= pages, "{room} {lens:?}");
            }
            let total: usize = lens.iter().sum();
            assert!(pages as usize <= 3 + total * 4 / 3 / (PAGE - 24), "{pages} for {total}");
        }
    }
}
