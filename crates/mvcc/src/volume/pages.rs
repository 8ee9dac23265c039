//! Pages: which are free, how many bytes of each are live, and which is worth cleaning.
//!
//! None of this is on the medium except the birth of each page ([`table`](crate::volume::table)). The live bytes of a
//! page are counted as records are appended and superseded, so that a page without live records is free without being
//! read, and the cleaner need not search for the page with the fewest live bytes.
//!
//! The thesis collects by reachability alone: everything that is not reached from the root and was born before
//! `stale_head` is free. Here an open does so once; from then on the counts yield the same result at no cost.

use coreplane_engine::Error;
use coreplane_pmem::Space;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Pages with about as many dead bytes are of one class; the first class has the most.
const CLASSES: usize = 32;

/// The state of a page.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// 0: the page is not in use.
    birth: u64,
    /// Bytes of its live records.
    live: u32,
    /// Bytes of all records that were appended to it.
    used: u32,
    /// No more records are appended to it.
    is_full: bool,
    /// It is no page of the stream.
    is_apart: bool,
    /// Of a page apart: the birth of the page of the stream that was open when this one was begun.
    since: u64,
    /// It was cleaned, and is not cleaned again before a pin goes: its live records cannot be moved until then.
    is_aside: bool,
    /// Not all of its live bytes were added yet, so that more may have been removed than added.
    is_uncounted: bool,
}

/// With so many retired pages, a search for readers is worth its cost.
const RETIRED: usize = 64;

/// All pages of a pool.
#[derive(Debug)]
pub(crate) struct Pages {
    space: Arc<Space>,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Pages of the stream and their births, in the order of the births. Some are no longer in use.
    order: VecDeque<(u64, u32)>,
    /// Full pages by their class. A page that has changed its class since is listed in both.
    classes: [VecDeque<u32>; CLASSES],
    /// Live bytes of all pages.
    live: u64,
    /// Pages that can be in use.
    total: u32,
    /// Full pages without live records, until they are taken.
    emptied: Vec<u32>,
    /// Pages that were set aside. Some are no longer in use, or are listed twice.
    aside: Vec<u32>,
}

impl Pages {
    /// No page is free yet.
    pub(crate) fn new(space: &Arc<Space>) -> Self {
        Self::of(space, space.pages() as usize)
    }

    fn of(space: &Arc<Space>, count: usize) -> Self {
        Self {
            space: Arc::clone(space),
            pages: vec![Page::default(); count],
            free: Vec::new(),
            order: VecDeque::new(),
            classes: std::array::from_fn(|_| VecDeque::new()),
            live: 0,
            total: 0,
            emptied: Vec::new(),
            aside: Vec::new(),
        }
    }

    /// No pages, until all are known.
    pub(crate) fn none(space: &Arc<Space>) -> Self {
        Self::of(space, 0)
    }

    /// The pool has more pages, which are free. The lowest is used first.
    pub(crate) fn offer(&mut self, pages: impl DoubleEndedIterator<Item = u32>) {
        self.pages.resize(self.space.pages() as usize, Page::default());
        let before = self.free.len();
        self.free.splice(0..0, pages.rev());
        self.total += (self.free.len() - before) as u32;
    }

    /// Adds a page of the stream that an open has found. No more records are appended to it.
    pub(crate) fn adopt(&mut self, page: u32, birth: u64) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, ..Page::default() };
        }
        self.order.push_back((birth, page));
    }

    /// As [`Pages::adopt`], for a page that is not part of the stream.
    pub(crate) fn adopt_apart(&mut self, page: u32, birth: u64) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, is_full: true, is_apart: true, ..Page::default() };
        }
    }

    /// A page that an open has found, in the stream or apart. Its live bytes are added later; then it is
    /// [closed](Pages::close). Until then it is not cleaned.
    pub(crate) fn adopt_uncounted(&mut self, page: u32, birth: u64, is_apart: bool) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, is_apart, is_uncounted: true, ..Page::default() };
        }
    }

    /// Pages that can be in use, and pages that are free now.
    pub(crate) fn total_and_free(&self) -> (u32, u32) {
        (self.total, self.free.len() as u32)
    }

    /// Pages of the pool, without those of a growth that were not offered yet.
    pub(crate) fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Takes back the retired pages that no reader can hold any more; returns the number of free pages.
    pub(crate) fn refresh_free(&mut self) -> u32 {
        let Self { space, free, .. } = self;
        space.reclaim_all(|page| free.push(page));
        self.free.len() as u32
    }

    /// The same, but while twice as many pages as `needed` are free, retired pages come back in batches only: a
    /// search for readers interrupts all other threads.
    pub(crate) fn refresh_some(&mut self, needed: u32) -> u32 {
        let free = self.free.len() as u32;
        if free >= 2 * needed && self.space.retired_len() < RETIRED {
            return free;
        }
        self.refresh_free()
    }

    /// A free page.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A page that was taken and not begun.
    pub(crate) fn give_back(&mut self, page: u32) {
        self.free.push(page);
    }

    /// Begins the life of a page apart; `since` is the birth of the page in which the stream was then.
    pub(crate) fn begin_apart(&mut self, page: u32, birth: u64, since: u64) {
        self.begin(page, birth, false);
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.since = since;
        }
    }

    /// The birth of the page of the stream that was open when this page apart was begun; 0 if that was before the
    /// open.
    pub(crate) fn since(&self, page: u32) -> u64 {
        self.pages.get(page as usize).map_or(0, |page| page.since)
    }

    /// Begins the life of a page that was taken; it is a page of the stream if it is `in_order`.
    pub(crate) fn begin(&mut self, page: u32, birth: u64, in_order: bool) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, is_apart: !in_order, ..Page::default() };
        }
        if in_order {
            if self.order.len() > 2 * self.pages.len() + 64 {
                let Self { order, pages, .. } = self;
                order.retain(|(birth, page)| pages[*page as usize].birth == *birth);
            }
            self.order.push_back((birth, page));
        }
    }

    /// The page, which has no live records yet, gets no records but the one that is being written.
    pub(crate) fn fill(&mut self, page: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.is_full = true;
        }
    }

    /// True if it is no page of the stream.
    #[inline]
    pub(crate) fn is_apart(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|page| page.is_apart)
    }

    /// The birth of a page; 0 if the page is not in use.
    #[inline]
    pub(crate) fn birth(&self, page: u32) -> u64 {
        self.pages.get(page as usize).map_or(0, |page| page.birth)
    }

    /// A record of so many bytes was appended, or was found to be live.
    pub(crate) fn add_live(&mut self, page: u32, len: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            (it.live, it.used) = (it.live.wrapping_add(len), it.used.wrapping_add(len));
            self.live = self.live.wrapping_add(u64::from(len));
        }
    }

    /// A record of so many bytes is no longer live.
    pub(crate) fn remove_live(&mut self, page: u32, len: u32) {
        let size = self.space.page_size();
        let Some(it) = self.pages.get_mut(page as usize).filter(|_| len > 0) else { return };
        if it.is_uncounted {
            it.live = it.live.wrapping_sub(len);
            self.live = self.live.wrapping_sub(u64::from(len));
            return;
        }
        let before = it.class(size);
        debug_assert!(it.live >= len, "page {page} has {} bytes, not {len}", it.live);
        it.live = it.live.saturating_sub(len);
        self.live = self.live.saturating_sub(u64::from(len));
        if it.is_full || it.is_aside {
            match (it.live, it.class(size)) {
                (0, _) => {
                    it.is_aside = false;
                    self.emptied.push(page);
                }
                // Of a page that is aside the class counts when it is closed again.
                _ if it.is_aside => {}
                (_, Some(class)) if before != Some(class) => self.classify(page, class),
                _ => {}
            }
        }
    }

    /// Adds a page to its class. Entries of pages that have left the class are dropped in time.
    fn classify(&mut self, page: u32, class: usize) {
        let Self { pages, classes, space, .. } = self;
        let (of_class, size) = (&mut classes[class], space.page_size());
        if of_class.len() > 2 * pages.len() + 64 {
            let mut seen = HashSet::new();
            of_class.retain(|page| {
                let is_its = pages[*page as usize].is_victim_of(class, size);
                is_its && seen.insert(*page)
            });
        }
        of_class.push_back(page);
    }

    /// No more records are appended to the page.
    pub(crate) fn close(&mut self, page: u32) {
        let size = self.space.page_size();
        let Some(it) = self.pages.get_mut(page as usize) else { return };
        (it.is_full, it.is_aside, it.is_uncounted) = (true, false, false);
        match (it.live, it.class(size)) {
            (0, _) => self.emptied.push(page),
            (_, Some(class)) => self.classify(page, class),
            _ => {}
        }
    }

    /// States how many bytes of a page that an open has found are in use.
    pub(crate) fn set_used(&mut self, page: u32, used: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.used = used.max(it.live);
        }
    }

    /// The full page with the most dead bytes, and their number.
    pub(crate) fn victim(&mut self) -> Option<(u32, u32)> {
        let size = self.space.page_size();
        for class in 0..CLASSES {
            while let Some(page) = self.classes[class].front().copied() {
                let it = self.pages[page as usize];
                if it.is_victim_of(class, size) {
                    return Some((page, it.used - it.live));
                }
                self.classes[class].pop_front();
            }
        }
        None
    }

    /// Live bytes of the page.
    pub(crate) fn live_of(&self, page: u32) -> u32 {
        self.pages.get(page as usize).map_or(0, |page| page.live)
    }

    /// Excludes a page from cleaning until it is closed: it is damaged, or is being cleaned.
    pub(crate) fn keep(&mut self, page: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.is_full = false;
        }
    }

    /// The page was cleaned. What still lives in it goes with the commits to come or with a pin, and the page with
    /// the last of it; it is not cleaned again before a pin goes.
    pub(crate) fn set_aside(&mut self, page: u32) {
        let Some(it) = self.pages.get_mut(page as usize) else { return };
        if it.live == 0 {
            return self.close(page);
        }
        (it.is_full, it.is_aside) = (false, true);
        if self.aside.len() > 2 * self.pages.len() + 64 {
            let Self { aside, pages, .. } = self;
            let mut seen = HashSet::new();
            aside.retain(|page| pages[*page as usize].is_aside && seen.insert(*page));
        }
        self.aside.push(page);
    }

    /// A pin has gone: pages that were set aside may be cleaned again.
    pub(crate) fn release(&mut self) {
        for page in std::mem::take(&mut self.aside) {
            if self.is_aside(page) {
                self.close(page);
            }
        }
    }

    fn is_aside(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|it| it.is_aside)
    }

    /// The number of pages that are set aside.
    #[cfg(test)]
    pub(crate) fn count_aside(&self) -> usize {
        self.pages.iter().filter(|it| it.is_aside).count()
    }

    /// The oldest page of the stream that is in use. None if it is still written to, or has no live records and so
    /// becomes free by itself.
    pub(crate) fn oldest(&mut self) -> Option<u32> {
        self.oldest_birth()?;
        let page = self.order.front()?.1;
        let it = self.pages[page as usize];
        (it.is_full && it.live > 0).then_some(page)
    }

    /// The least birth of any page of the stream that is in use.
    pub(crate) fn oldest_birth(&mut self) -> Option<u64> {
        while let Some((birth, page)) = self.order.front().copied() {
            if self.birth(page) == birth {
                return Some(birth);
            }
            self.order.pop_front();
        }
        None
    }

    /// True if a page of the stream other than `page` has the birth `birth` or a lesser one.
    pub(crate) fn is_any_older(&mut self, birth: u64, page: u32) -> bool {
        let _front = self.oldest_birth();
        let in_use = |it: &&(u64, u32)| self.birth(it.1) == it.0 && it.1 != page;
        self.order.iter().find(in_use).is_some_and(|it| it.0 <= birth)
    }

    /// Pages of the stream in use whose birth is between these two.
    pub(crate) fn count_between(&self, after: u64, before: u64) -> u32 {
        let newer = self.order.iter().rev().take_while(|it| it.0 > after);
        newer.filter(|it| it.0 < before && self.birth(it.1) == it.0).count() as u32
    }

    /// The number of pages that [`Pages::take_emptied`] would return.
    pub(crate) fn emptied(&self) -> usize {
        self.emptied.len()
    }

    /// Full pages that have lost their last live record since the last call.
    pub(crate) fn take_emptied(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.emptied)
    }

    /// The page is no longer in use, as its word in the table states.
    pub(crate) fn end(&mut self, page: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page::default();
        }
    }

    /// Live bytes; fewer while some pages are not counted.
    pub(crate) fn live(&self) -> u64 {
        i64::try_from(self.live).map_or(0, i64::cast_unsigned)
    }

    /// The error of a request for so many pages.
    pub(crate) fn no_space(&self, pages: u32) -> Error {
        let size = u64::from(self.space.page_size());
        let in_use = (u64::from(self.total) - self.free.len() as u64) * size;
        let reclaimable = in_use.saturating_sub(self.live());
        Error::NoSpace { needed: u64::from(pages) * size, reclaimable }
    }

    /// Bytes of DRAM that this struct takes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let of_classes: usize = self.classes.iter().map(|class| 4 * class.capacity()).sum();
        (size_of::<Page>() * self.pages.capacity()
            + 4 * self.free.capacity()
            + 16 * self.order.capacity()
            + of_classes) as u64
    }
}

impl Page {
    /// It is a full page of this class.
    fn is_victim_of(&self, class: usize, size: u32) -> bool {
        self.birth != 0 && self.is_full && self.live > 0 && self.class(size) == Some(class)
    }

    /// None if no byte of it is dead.
    fn class(&self, size: u32) -> Option<usize> {
        let dead = self.used - self.live.min(self.used);
        let class = u64::from(size - dead.min(size)) * CLASSES as u64 / u64::from(size.max(1));
        (dead > 0).then_some((class as usize).min(CLASSES - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;
    use coreplane_pmem::media::sim::{Sim, SimOptions};
    use std::sync::Arc;

    /// A page that was cleaned waits for its last live byte, and nobody has to look for that.
    #[test]
    fn a_page_that_was_cleaned_is_free_with_its_last_byte() {
        let options = SimOptions {
            len: 64 << 12,
            max_len: 64 << 12,
            page_size: 4096,
            ..SimOptions::default()
        };
        let sim = Sim::new(&options).expect("memory");
        let mut pages = Pages::new(&Arc::clone(sim.space()));
        pages.offer(1..60);
        for birth in 1..2_000 {
            let page = pages.take().expect("a free page");
            pages.begin(page, birth, true);
            pages.add_live(page, 100);
            pages.close(page);
            pages.set_aside(page);
            pages.remove_live(page, 60);
            assert_eq!(pages.emptied(), 0);
            if birth % 50 == 0 {
                pages.release();
                assert_eq!(pages.victim(), Some((page, 60)));
            }
            pages.remove_live(page, 40);
            assert_eq!(pages.take_emptied(), [page], "with birth {birth}");
            pages.end(page);
            pages.give_back(page);
            assert!(pages.aside.len() < 500, "{} pages are listed", pages.aside.len());
        }
        pages.release();
        assert_eq!(pages.emptied(), 0, "it is free already");
    }
}
