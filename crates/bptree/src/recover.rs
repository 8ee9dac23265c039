//! After a crash, or a close: the leaves are found by their heads, read, and led to.
//!
//! A page holds a leaf that counts if
//!
//! - its head is sound, and its records do not end with a farewell;
//! - the page that it was made of says farewell, or is something else by now (or it was made of
//!   none: the first leaf). Of two pages it names the first: both say farewell, or none does.
//!
//! What begins like a leaf and does not count, and says no farewell itself, was being made when the
//! power went. It is wiped before anything else is written ([`rewrite`](crate::rewrite)).
//!
//! A batch of which a leaf has a part counts if all of its ring is there ([`ring`](crate::ring)); so
//! does a farewell, which is such a part. What does not count is struck out in the same way.
//!
//! The leaves that count must then tile the whole range of keys. If they do not, one is damaged,
//! and the store says which keys are missing rather than that they are absent.

use crate::counters::Count;
use crate::image::{Item, live_len};
use crate::leaf::{Begun, Head, Life, PLACES, tag_of};
use crate::ring::{Closing, Part, Rings};
use crate::store::Store;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::Pen;
use coreplane_pmem::epoch::{self, Guard};
use coreplane_pmem::spin;
use coreplane_record::{self as record, Kind, View};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages that a thread reads before it looks for more.
const AT_A_TIME: u32 = 1024;

/// What was found in a page.
pub(crate) struct Found {
    page: u32,
    pub(crate) head: Head,
    /// Tag, offset in the page and length of the last record of each key.
    pub(crate) records: Vec<(u8, u32, u32)>,
    /// Where in the page those are whose values are large.
    large: Vec<u64>,
    /// How many of them are not tombstones.
    live: i64,
    live_bytes: i64,
    /// The greatest version.
    pub(crate) given: u64,
    /// Where the last sound record ends.
    pub(crate) end: u32,
    pub(crate) is_dead: bool,
    /// What it has of batches.
    parts: Vec<Part>,
}

impl Found {
    fn life(&self) -> Life {
        Life { page: self.page, birth: self.head.birth }
    }
}

impl Store {
    /// Finds and reads the leaves.
    ///
    /// # Errors
    /// If keys are missing, or the medium fails.
    pub(crate) fn recover(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<()> {
        let mut found = self.read_pages(progress)?;
        self.strike_out_parts(&mut found)?;
        let lives: HashMap<u32, (u64, bool)> =
            found.iter().map(|it| (it.page, (it.head.birth, it.is_dead))).collect();
        let is_gone = |Life { page, birth }: &Life| {
            lives.get(page).is_none_or(|(now, is_dead)| now != birth || *is_dead)
        };
        let counts = |found: &Found| found.head.predecessor.as_ref().is_none_or(is_gone);
        let (counting, void): (Vec<_>, Vec<_>) =
            found.into_iter().filter(|found| !found.is_dead).partition(counts);
        let mut is_used = vec![false; self.space.pages() as usize];
        is_used[0] = true;
        let guard = epoch::pin();
        for found in &counting {
            is_used[found.page as usize] = true;
            for offset in found.large.iter().map(|within| self.space.start_of(found.page) + within)
            {
                let view = self.reader().view(&guard, offset);
                for (page, _) in
                    view.map_or(Ok(Vec::new()), |it| self.pieces_of(&guard, &it, false))?
                {
                    is_used[page as usize] = true;
                }
            }
        }
        drop(guard);
        self.strike_out_void(void)?;
        for page in (0..self.space.pages()).filter(|page| !is_used[*page as usize]) {
            if !self.space.retire(page) {
                return Err(self.not_a_leaf(page));
            }
        }
        self.lead_to(counting)
    }

    /// Strikes out what there is of batches that are not whole.
    fn strike_out_parts(&self, found: &mut [Found]) -> Result<()> {
        let mut rings = Rings::default();
        for it in found.iter() {
            rings.add(it.life(), it.head.predecessor, &it.parts);
        }
        let broken = rings.broken();
        if broken.is_empty() {
            return Ok(());
        }
        let guard = epoch::pin();
        for found in found.iter_mut() {
            let Some(part) = broken.get(&found.page) else { continue };
            let head = found.head.clone();
            *found = self.read_leaf_page(&guard, found.page, head, part.start)?;
            self.space.cut_log(found.page, part.start);
            self.strike_out(found.page)?;
        }
        self.fence()
    }

    /// Strikes out leaves that do not count. One that was made of another goes first, durably: with
    /// that one gone it would count. And all of them go after the parts of batches: what was in a
    /// leaf that is gone is taken to have been whole.
    fn strike_out_void(&self, mut void: Vec<Found>) -> Result<()> {
        while !void.is_empty() {
            let made_of: HashSet<Life> =
                void.iter().filter_map(|found| found.head.predecessor).collect();
            let (later, now): (Vec<_>, Vec<_>) =
                void.into_iter().partition(|found| made_of.contains(&found.life()));
            for found in &now {
                self.space.cut_log(found.page, 0);
                self.strike_out(found.page)?;
            }
            self.fence()?;
            if now.is_empty() {
                let page = later.first().map_or(0, |found| found.page);
                return Err(self.not_a_leaf(page));
            }
            void = later;
        }
        Ok(())
    }

    /// Sees to it that there is no record behind what is published of a page; after a fence.
    fn strike_out(&self, page: u32) -> Result<()> {
        let pen = Pen::new(&self.space);
        let mut writer = pen.take_up(page).map_err(|_| self.not_a_leaf(page))?;
        let start = writer.next_offset();
        writer.append(&[&[0; 8]]).ok_or_else(|| self.not_a_leaf(page))?;
        writer.flush_from(start);
        // It is not published: what comes next is written over it.
        Ok(())
    }

    /// Reads all pages, on as many threads as there are processors.
    fn read_pages(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<Vec<Found>> {
        let pages = self.space.pages();
        let next = AtomicU32::new(1);
        let all = Mutex::new(Ok(Vec::new()));
        let work = || loop {
            let from = next.fetch_add(AT_A_TIME, Ordering::Relaxed);
            if from >= pages {
                return;
            }
            let done = u64::from(from);
            progress(Progress { stage: "reading leaves", done, total: u64::from(pages) });
            let read = self.read_range(from..pages.min(from + AT_A_TIME));
            let mut all = spin::lock(&all);
            match (&mut *all, read) {
                (Ok(found), Ok(more)) => found.extend(more),
                (Ok(_), Err(error)) => *all = Err(error),
                (Err(_), _) => {}
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let threads = if pages > 4 * AT_A_TIME { processors } else { 1 };
        std::thread::scope(|scope| {
            // This thread works too: where no other can be had, it does it all.
            for _ in 1..threads {
                let builder = std::thread::Builder::new().name("coreplane-leaves".to_owned());
                if builder.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        all.into_inner()
    }

    fn read_range(&self, pages: std::ops::Range<u32>) -> Result<Vec<Found>> {
        let guard = epoch::pin();
        let mut found = Vec::new();
        for page in pages {
            // Those of a checkpoint that is damaged are adopted already.
            let len = self.space.page_size();
            if !self.space.adopt_log(page, len) && self.space.watermarks(page).is_none() {
                return Err(self.not_a_leaf(page));
            }
            // A head that is not sound was being written when the power went, or is none.
            let head = Head::read(&self.space, &guard, self.seed, page).ok().flatten();
            if let Some(head) = head {
                found.push(self.read_leaf_page(&guard, page, head, u32::MAX)?);
            }
        }
        Ok(found)
    }

    /// Reads the records of a leaf, up to `limit` within its page.
    pub(crate) fn read_leaf_page(
        &self,
        guard: &Guard,
        page: u32,
        head: Head,
        limit: u32,
    ) -> Result<Found> {
        let start = self.space.start_of(page);
        let mut views: Vec<View<'_>> = Vec::with_capacity(2 * PLACES);
        let mut found = Found {
            page,
            records: Vec::new(),
            large: Vec::new(),
            live: 0,
            live_bytes: 0,
            given: head.version,
            end: head.len() as u32,
            is_dead: false,
            parts: Vec::new(),
            head,
        };
        // Where the batch began to which the last records belong, and how many there were before.
        let mut open: Option<(u32, usize)> = None;
        while found.end < limit
            && let Some(view) = self.reader().view(guard, start + u64::from(found.end))
        {
            let seed = record::seed(self.seed, found.head.birth as u32, view.offset);
            let header = &view.header;
            if view.check(seed).is_err() || open.is_some() && !header.batched {
                break;
            }
            let at = found.end;
            found.end += view.len();
            found.given = found.given.max(header.version);
            if header.kind != Kind::Commit {
                if header.batched {
                    open = open.or(Some((at, views.len())));
                }
                views.push(view);
                continue;
            }
            let Some(closing) = Closing::of(&view) else { break };
            let start = open.take().map_or(at, |(start, _)| start);
            found.parts.push(Part { start, at, closing });
            found.is_dead = closing.is_farewell;
            if found.is_dead {
                break;
            }
        }
        if let Some((start, before)) = open {
            // The power went before the closing came.
            found.end = start;
            views.truncate(before);
        }
        // Of each key the last, which is the newest: the sort leaves them in their order.
        views.sort_by_key(View::key);
        let latest = views.chunk_by(|a, b| a.key() == b.key()).filter_map(<[_]>::last);
        for view in latest {
            found.live += i64::from(view.header.kind == Kind::Put);
            found.live_bytes += Item::from(view).live_bytes();
            if view.header.large {
                found.large.push(view.offset - start);
            }
            found.records.push((tag_of(view.key()), (view.offset - start) as u32, live_len(view)));
        }
        Ok(found)
    }

    fn lead_to(&self, mut counting: Vec<Found>) -> Result<()> {
        counting.sort_unstable_by(|a, b| a.head.least.cmp(&b.head.least));
        let mut expected: Option<Box<[u8]>> = Some(Box::default());
        let mut bounds = Vec::with_capacity(counting.len());
        for found in counting {
            let is_whole = found.end >= found.head.image_len;
            if expected.as_ref() != Some(&found.head.least) || !is_whole {
                return Err(Error::Corrupt {
                    offset: self.space.start_of(found.page),
                    what: format!(
                        "keys from {:?} to {:?} are missing",
                        expected.unwrap_or_default(),
                        found.head.least
                    ),
                });
            }
            self.space.cut_log(found.page, found.end);
            let birth = found.head.birth;
            let begun =
                Begun { birth, given: found.given, is_sealed: birth < self.opened.sealed_births };
            self.counters.add(Count::Records, found.live);
            self.counters.add(Count::LiveBytes, found.live_bytes);
            self.leaves.get(found.page as usize).begin(begun, found.records.into_iter());
            expected = found.head.bound;
            bounds.push((found.head.least, found.page));
        }
        if expected.is_some() || bounds.is_empty() {
            let what = format!("keys from {expected:?} on are missing");
            return Err(Error::Corrupt { offset: 0, what });
        }
        let (_, first) = bounds.remove(0);
        self.inner.build(first, bounds);
        Ok(())
    }
}
