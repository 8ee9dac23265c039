//! Reads a leaf's page: which records it has, and where they end.
//!
//! The records are taken one after the other, as they were written: each replaces an earlier one of its key, which
//! is found as a get finds it, by its tag.
//!
//! A record that is not sound may be the end, where the power cut hit; or it is *damaged*. Bytes below a *proof*
//! were durable once, so that they can only be damaged:
//!
//! ```text
//!   head │ image …… │ record │ ??? │ record, which follows │ record │ ???
//!                    ◀── damaged ──▶ proof: all before it was durable   the end, or the last record
//! ```
//!
//! - a record that *follows* proves the bytes before it. Where a fence is an instruction, every record does,
//!   except those of a batch, of which only the first does, and those behind a `relaxed` record that was not
//!   flushed yet; where a fence is a sync, every record that was written after the sync of all before it;
//! - the image of a leaf was durable before the leaf counted;
//! - a checkpoint states where the records of a leaf end;
//! - a proof of one part of a batch is a proof of all its parts ([`prove`](crate::recovery::prove)).
//!
//! The lost records may have been of any key of the leaf. So from there on the records before the damage, and
//! absent keys, are in *doubt*, and reads of them report that.
//!
//! Without a proof, the words of a record tell whether all of it has arrived ([`fill`](crate::tree::fill)): then it
//! is damaged, even if it is the last record. Only a record that has not arrived completely was never acknowledged.

use crate::leaf::{Begun, Directory, Head, Life, PLACES, generation};
use crate::tree::fill::Filled;
use crate::tree::image::{Item, live_len};
use crate::tree::mend::SupersededMark;
use crate::tree::multi_leaf_commit::{CommitLink, Part};
use crate::tree::{Tree, multi_leaf_commit};
use crate::volume::keys::tag_of_field;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{PageBytes, mutant};
use coreplane_record::{self as record, Form, Header, Kind, View};

/// The result of reading a page.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) page: u32,
    pub(crate) head: Head,
    /// Offsets in the page of the records with large values or long keys.
    pub(crate) large: Vec<u64>,
    /// The number of keys whose record is not a tombstone.
    pub(crate) live: i64,
    pub(crate) live_bytes: i64,
    /// The greatest version in the page.
    pub(crate) given: u64,
    /// The end of the last sound record.
    pub(crate) end: u32,
    pub(crate) is_dead: bool,
    /// Everything below this was durable.
    pub(crate) proven: u32,
    /// From here to the end the page may be in the caches alone, if the process was killed without a power cut.
    pub(crate) cached_from: u32,
    /// An appended record states that all before it was durable, and so was the change that made the leaf.
    pub(crate) has_proof: bool,
    /// Not 0 if records were lost: see [`Directory::doubt`].
    pub(crate) doubt: u32,
    /// The parts of batches in the leaf.
    pub(crate) parts: Vec<Part>,
    /// The pages of the rests of its bounds, where these are long keys.
    pub(crate) rests: Vec<u32>,
    /// Remains behind the last record, which must be wiped before the next append.
    pub(crate) has_remains: bool,
}

impl Found {
    pub(crate) fn new(page: u32, head: Head) -> Self {
        Self {
            page,
            large: Vec::new(),
            live: 0,
            live_bytes: 0,
            given: head.version,
            end: head.len() as u32,
            is_dead: false,
            proven: head.image_len,
            // The predecessor of an image was marked superseded only when the image was durable. Without a
            // predecessor nothing was.
            cached_from: head.predecessor.map_or(0, |_| head.image_len),
            has_proof: false,
            doubt: if head.is_lost { head.len() as u32 } else { 0 },
            parts: Vec::new(),
            rests: Vec::new(),
            has_remains: false,
            head,
        }
    }

    pub(crate) fn life(&self) -> Life {
        Life { page: self.page, birth: self.head.birth }
    }

    /// Takes the record at `end`.
    fn take(&mut self, header: &Header, len: u32) {
        self.given = self.given.max(header.version);
        if header.follows && self.end >= self.head.image_len {
            self.proven = self.proven.max(self.end);
            self.cached_from = self.end;
            self.has_proof = true;
        }
        self.end += len;
    }

    /// Takes the superseded mark at `end`, of a batch that begins at `start`.
    fn take_mark(&mut self, mark: &SupersededMark, start: u32) {
        self.parts.push(Part { start, at: self.end, link: mark.link });
        self.take(&mark.header, multi_leaf_commit::LEN as u32);
        self.is_dead = true;
    }

    /// True if the leaf is known to be dead, and its superseded mark is lost.
    pub(crate) fn has_lost_mark(&self) -> bool {
        self.proven == DEAD && !self.parts.last().is_some_and(|part| part.link.is_superseded)
    }

    /// True if records were lost, and nothing durable in the page states it explicitly.
    pub(crate) fn is_to_be_told(&self) -> bool {
        self.doubt > 0 && (!self.head.is_lost || self.doubt > self.head.len() as u32)
    }
}

/// The last record of each key.
#[derive(Debug)]
pub(crate) struct Latest<'g> {
    /// By tags, as in the directory of the leaf.
    keys: Directory,
    views: Vec<View<'g>>,
    is_sorted: bool,
    field_max: usize,
}

impl<'g> Latest<'g> {
    fn new(field_max: usize) -> Self {
        let keys = Directory::new();
        keys.begin(Begun::default(), std::iter::empty());
        keys.allow_full();
        Self { keys, views: Vec::with_capacity(PLACES), is_sorted: true, field_max }
    }

    /// Takes the record in place of an earlier one of its key; false if there are too many keys.
    fn take(&mut self, view: View<'g>) -> bool {
        // In one leaf equal keys have equal fields.
        let (key, tag) = (view.key(), tag_of_field(view.key(), self.field_max));
        for place in self.keys.candidates(tag) {
            if self.views[place].key() == key {
                self.views[place] = view;
                return true;
            }
        }
        let Some(place) = self.keys.vacancy() else { return false };
        // Where the prefixes of long keys are equal, their fields do not tell the order.
        let is_below = |last: &[u8]| last < key && last.len().max(key.len()) < self.field_max;
        self.is_sorted &= self.views.last().is_none_or(|last| is_below(last.key()));
        self.keys.add(place, tag);
        self.views.push(view);
        true
    }
}

impl Latest<'_> {
    /// The tag, the offset in the page and the length of each record.
    pub(crate) fn records(&self, start: u64) -> impl Iterator<Item = (u8, u32, u32)> {
        let record = move |view: &View<'_>| {
            (tag_of_field(view.key(), self.field_max), (view.offset - start) as u32, live_len(view))
        };
        self.views.iter().map(record)
    }

    /// The records.
    pub(crate) fn views(&self) -> &[View<'_>] {
        &self.views
    }

    /// The initial state of a leaf with these records.
    pub(crate) fn begun(&self, found: &Found, sealed_births: u64) -> Begun {
        let birth = found.head.birth;
        // No record may overwrite the damage, which is the only sign of the loss.
        let is_sealed = birth < sealed_births || found.is_to_be_told();
        let has_large = self.views.iter().any(|view| view.header.large);
        let has_long = self.views.iter().any(|view| view.key().len() >= self.field_max);
        let (given, is_sorted, doubt) = (found.given, self.is_sorted, found.doubt);
        Begun { birth, given, is_sealed, is_sorted, has_large, has_long, doubt }
    }
}

/// The sound records of a page.
struct Records<'g> {
    bytes: PageBytes<'g>,
    /// The seed of the pool.
    seed: u32,
    birth: u64,
    /// The store was closed, so that every write that was begun has arrived.
    nothing_is_torn: bool,
    /// The length of the longest possible record.
    len_max: usize,
}

impl<'g> Records<'g> {
    fn filled(&self) -> Filled<'_, 'g> {
        Filled::new(&self.bytes, self.seed, self.birth)
    }

    /// The record at a place; none if the bytes there are not sound.
    fn at(&self, within: u32) -> Option<View<'g>> {
        // Bytes that only look like a record may claim to reach to the end of the page.
        let view = View::of(&self.bytes, within).filter(|it| it.len() as usize <= self.len_max)?;
        let seed = record::seed(self.seed, generation(self.birth), view.offset);
        (view.check(seed).is_ok() || mutant!("bptree.recover.checksum")).then_some(view)
    }

    /// The superseded mark at a place where no record is sound, if one bit of the mark is damaged.
    fn mended_mark(&self, at: u32) -> Option<SupersededMark> {
        if self.at(at).is_some() { None } else { self.filled().mended_mark(at) }
    }

    /// The first record from a place on.
    fn next(&self, from: u32) -> Option<(u32, View<'g>)> {
        let rest = self.bytes.get(from, self.bytes.published().checked_sub(from)? as usize)?;
        let mut words = (from..).step_by(8).zip(rest.chunks_exact(8));
        // Mostly zeroes, or remains of an earlier use of the page.
        words.find_map(|(at, word)| {
            let view = if Form::may_begin(word) { self.at(at) } else { None };
            view.map(|view| (at, view))
        })
    }

    /// The end of the bytes that records from a place on prove durable.
    fn proof(&self, from: u32) -> u32 {
        let (mut at, mut proven) = (from, 0);
        while let Some((start, view)) = self.next(at) {
            if view.header.follows && !mutant!("bptree.recover.proof") {
                proven = start;
            }
            let link =
                Some(&view).filter(|it| it.header.kind == Kind::Commit).and_then(CommitLink::of);
            if link.is_some_and(|link| link.is_superseded) {
                break;
            }
            at = start + view.len();
        }
        proven
    }
}

impl Tree {
    /// Reads the records of a leaf, up to `limit` within its page. Bytes below `proven` are known to have been
    /// durable.
    ///
    /// # Errors
    /// If there are more keys than a leaf can have.
    pub(crate) fn read_leaf_page<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        head: Head,
        (limit, proven): (u32, u32),
    ) -> Result<(Found, Latest<'g>)> {
        let mut read = Found::new(page, head);
        read.proven = read.proven.max(proven);
        let again = Found::new(page, read.head.clone());
        let (mut found, mut latest, open) = self.read_records(guard, read, limit)?;
        if let Some(start) = open.filter(|_| !mutant!("bptree.recover.half_batch")) {
            // The power cut came before the commit link arrived.
            let has_proof = found.has_proof;
            let again = Found { proven: found.proven, ..again };
            (found, latest, _) = self.read_records(guard, again, start)?;
            (found.has_proof, found.has_remains) = (has_proof, true);
        }
        for view in &latest.views {
            found.live += i64::from(view.header.kind == Kind::Put);
            found.live_bytes += self.live_bytes(&Item::from(view));
            if view.header.large || self.is_long(view.key()) {
                found.large.push(view.offset - self.space.start_of(page));
            }
        }
        Ok((found, latest))
    }

    /// As [`Tree::read_leaf_page`]; also returns where a batch without a commit link begins.
    fn read_records<'g>(
        &'g self,
        guard: &'g Guard,
        mut found: Found,
        limit: u32,
    ) -> Result<(Found, Latest<'g>, Option<u32>)> {
        let page = found.page;
        let mut latest = Latest::new(self.field_max());
        // The beginning of the batch to which the last records belong.
        let mut open: Option<u32> = None;
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        let nothing_is_torn = self.opened.was_closed;
        let (seed, birth) = (self.seed, found.head.birth);
        let len_max = self.record_len_max();
        let records = Records { bytes, seed, birth, nothing_is_torn, len_max };
        while found.end < limit {
            let at = found.end;
            let Some(view) = records.at(at).filter(|it| open.is_none() || it.header.batched) else {
                if let Some(mark) = records.mended_mark(at) {
                    found.take_mark(&mark, open.take().unwrap_or(at));
                    break;
                }
                let next = go_on(&records, &mut found);
                if found.doubt > at {
                    // A batch that was begun before the damage was durable.
                    open = None;
                }
                let Some(next) = next else { break };
                found.end = next;
                continue;
            };
            let header = &view.header;
            found.take(header, view.len());
            if header.kind != Kind::Commit {
                if header.batched {
                    open = open.or(Some(at));
                }
                if !latest.take(view) {
                    let what = format!("page {page} has more keys than a leaf can have");
                    let offset = self.space.start_of(page) + u64::from(at);
                    return Err(Error::Corrupt { offset, what });
                }
                continue;
            }
            let Some(link) = CommitLink::of(&view) else { break };
            found.parts.push(Part { start: open.take().unwrap_or(at), at, link });
            found.is_dead = link.is_superseded;
            if found.is_dead {
                break;
            }
        }
        Ok((found, latest, open))
    }
}

/// Where the records of a leaf go on behind bytes that are not sound; none if they end there.
fn go_on(records: &Records<'_>, found: &mut Found) -> Option<u32> {
    found.has_remains = !records.filled().is_blank(found.end);
    if !found.has_remains && found.proven <= found.end {
        return None;
    }
    // A sound record here is not damaged: it follows a batch that has no commit link.
    let is_damaged = records.at(found.end).is_none()
        && records.filled().has_arrived(found.end, records.nothing_is_torn);
    if is_damaged {
        found.proven = found.proven.max(found.end + 8);
    }
    found.proven = found.proven.max(records.proof(found.end));
    if found.proven <= found.end {
        return None;
    }
    let next = records.next(found.end);
    found.doubt = next.map_or(found.proven, |(next, _)| next).max(found.end + 8);
    next.map(|(next, _)| next)
}

/// The proof of a leaf that is known to be dead: everything in it was durable.
pub(crate) const DEAD: u32 = u32::MAX;
