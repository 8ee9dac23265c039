//! Pages: which are free, how much of each is alive, and which is worth cleaning.
//!
//! Nothing of this is on the medium but the birth of each page ([`table`](crate::volume::table)). What lives in
//! a page is counted as records are appended and superseded, so that a page of which nothing lives is free
//! without a look at it, and the cleaner need not look for the page with the least.
//!
//! The thesis collects by reachability alone: all that is not reached from the root, born before `stale_head`,
//! is free. Here an opening does so once; from then on the counts say the same at no cost.

use coreplane_pmem::Space;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Pages of which about as much is dead are of one class: the first has those with the most.
const CLASSES: usize = 32;

/// What is known of a page.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// 0: nobody uses it.
    birth: u64,
    /// Bytes of its records that are needed.
    live: u32,
    /// Bytes of all that was appended to it.
    used: u32,
    /// Nothing is appended to it any more.
    is_full: bool,
    /// It is no page of the stream.
    is_apart: bool,
    /// The page of the stream that was open when it was begun apart from that, by its birth.
    since: u64,
    /// Not all that lives in it was added yet, so that what was taken away may be more.
    is_uncounted: bool,
}

/// So many pages are worth a look for readers.
const RETIRED: usize = 64;

/// All pages of a pool.
#[derive(Debug)]
pub(crate) struct Pages {
    space: Arc<Space>,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Pages of the stream and their births, in the order of these. Some are in use no more.
    order: VecDeque<(u64, u32)>,
    /// Full pages by their class. A page that has changed its class since stands in the other, too.
    classes: [VecDeque<u32>; CLASSES],
    /// Bytes that live.
    live: u64,
    /// Pages that can be in use.
    total: u32,
    /// Full pages of which nothing lives, until they are taken.
    emptied: Vec<u32>,
    /// Pages in which nothing but pinned versions is left.
    kept: Vec<u32>,
}

impl Pages {
    /// None of them is free yet.
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
            kept: Vec::new(),
        }
    }

    /// None at all, until all are known.
    pub(crate) fn none(space: &Arc<Space>) -> Self {
        Self::of(space, 0)
    }

    /// The pool has more pages: these are free. The lowest is used first.
    pub(crate) fn offer(&mut self, pages: impl DoubleEndedIterator<Item = u32>) {
        self.pages.resize(self.space.pages() as usize, Page::default());
        let before = self.free.len();
        self.free.splice(0..0, pages.rev());
        self.total += (self.free.len() - before) as u32;
    }

    /// A page of records that an opening has found: it is full.
    pub(crate) fn adopt(&mut self, page: u32, birth: u64) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, ..Page::default() };
        }
        self.order.push_back((birth, page));
    }

    /// As [`Pages::adopt`], of a page that is no part of the stream.
    pub(crate) fn adopt_apart(&mut self, page: u32, birth: u64) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, is_full: true, is_apart: true, ..Page::default() };
        }
    }

    /// A page that an opening has found, of the stream or not. What lives in it is added in time, and it is
    /// [closed](Pages::close) then; until then it stays.
    pub(crate) fn adopt_uncounted(&mut self, page: u32, birth: u64, is_apart: bool) {
        self.total += 1;
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page { birth, is_apart, is_uncounted: true, ..Page::default() };
        }
    }

    /// Pages that can be in use, and those that are free now.
    pub(crate) fn total_and_free(&self) -> (u32, u32) {
        (self.total, self.free.len() as u32)
    }

    /// Pages that are free, after those that no reader can hold any more have come back.
    pub(crate) fn refresh_free(&mut self) -> u32 {
        let Self { space, free, .. } = self;
        space.reclaim_all(|page| free.push(page));
        self.free.len() as u32
    }

    /// The same, but pages come back by many at once as long as there are twice as many as are `needed`: who looks for
    /// readers interrupts all other threads.
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

    /// A page that was taken has a life apart from the stream, which was in the page born `since` then.
    pub(crate) fn begin_apart(&mut self, page: u32, birth: u64, since: u64) {
        self.begin(page, birth, false);
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.since = since;
        }
    }

    /// The page of the stream that was open when this one was begun apart from that, by its birth: 0 if that was before
    /// the opening.
    pub(crate) fn since(&self, page: u32) -> u64 {
        self.pages.get(page as usize).map_or(0, |page| page.since)
    }

    /// A page that was taken has a life; it is one of the stream if it is `in_order`.
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

    /// The page, of which nothing lives yet, has all that it will.
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

    /// The birth of the page that is in use; 0 if it is not.
    #[inline]
    pub(crate) fn birth(&self, page: u32) -> u64 {
        self.pages.get(page as usize).map_or(0, |page| page.birth)
    }

    /// A record of so many bytes was appended, or is found to be needed.
    pub(crate) fn add_live(&mut self, page: u32, len: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            (it.live, it.used) = (it.live.wrapping_add(len), it.used.wrapping_add(len));
            self.live = self.live.wrapping_add(u64::from(len));
        }
    }

    /// A record of so many bytes is needed no more.
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
        if it.is_full {
            match (it.live, it.class(size)) {
                (0, _) => self.emptied.push(page),
                (_, Some(class)) if before != Some(class) => self.classify(page, class),
                _ => {}
            }
        }
    }

    /// The page is of a class now. Pages that have left the class since are forgotten in time.
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

    /// Nothing is appended to the page any more. Of one that was found so, `used` bytes are in use.
    pub(crate) fn close(&mut self, page: u32) {
        let size = self.space.page_size();
        let Some(it) = self.pages.get_mut(page as usize) else { return };
        (it.is_full, it.is_uncounted) = (true, false);
        match (it.live, it.class(size)) {
            (0, _) => self.emptied.push(page),
            (_, Some(class)) => self.classify(page, class),
            _ => {}
        }
    }

    /// So many bytes are in use of a page that an opening has found.
    pub(crate) fn set_used(&mut self, page: u32, used: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.used = used.max(it.live);
        }
    }

    /// The full page of which most is dead, and how much that is.
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

    /// Bytes of the page that live.
    pub(crate) fn live_of(&self, page: u32) -> u32 {
        self.pages.get(page as usize).map_or(0, |page| page.live)
    }

    /// The page is no victim: it is damaged, or what lives in it cannot be moved before a pin goes.
    pub(crate) fn keep(&mut self, page: u32, is_damaged: bool) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            it.is_full = false;
        }
        if !is_damaged {
            self.kept.push(page);
        }
    }

    /// A pin has gone: what was kept for it may be a victim again.
    pub(crate) fn release(&mut self) {
        for page in std::mem::take(&mut self.kept) {
            self.close(page);
        }
    }

    /// The oldest page of the stream that is in use, unless something is still appended to it, or nothing of it lives:
    /// then it goes by itself.
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

    /// True if a page of the stream but `page` was born before `birth`, or with it.
    pub(crate) fn is_any_older(&mut self, birth: u64, page: u32) -> bool {
        let _front = self.oldest_birth();
        let in_use = |it: &&(u64, u32)| self.birth(it.1) == it.0 && it.1 != page;
        self.order.iter().find(in_use).is_some_and(|it| it.0 <= birth)
    }

    /// Pages of the stream that are in use and were born between these two.
    pub(crate) fn count_between(&self, after: u64, before: u64) -> u32 {
        let newer = self.order.iter().rev().take_while(|it| it.0 > after);
        newer.filter(|it| it.0 < before && self.birth(it.1) == it.0).count() as u32
    }

    /// How many [`Pages::take_emptied`] would take.
    pub(crate) fn emptied(&self) -> usize {
        self.emptied.len()
    }

    /// Full pages of which nothing lives since this was asked last.
    pub(crate) fn take_emptied(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.emptied)
    }

    /// The page is in use no more: its word in the table says so.
    pub(crate) fn end(&mut self, page: u32) {
        if let Some(it) = self.pages.get_mut(page as usize) {
            *it = Page::default();
        }
    }

    /// Bytes that live; less as long as pages are not counted.
    pub(crate) fn live(&self) -> u64 {
        i64::try_from(self.live).map_or(0, i64::cast_unsigned)
    }

    /// Bytes of DRAM that this takes.
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

    /// None if nothing of it is dead.
    fn class(&self, size: u32) -> Option<usize> {
        let dead = self.used - self.live.min(self.used);
        let class = u64::from(size - dead.min(size)) * CLASSES as u64 / u64::from(size.max(1));
        (dead > 0).then_some((class as usize).min(CLASSES - 1))
    }
}
