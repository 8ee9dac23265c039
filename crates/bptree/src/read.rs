//! Reading a leaf's page: which records it has, and where they end.
//!
//! The records are taken one after the other, as they were written: each takes the place of an
//! earlier one of its key, which is found as a get finds it, by its tag.

use crate::image::{Item, live_len};
use crate::keys::tag_of_field;
use crate::leaf::{Begun, Directory, Head, Life, PLACES};
use crate::ring::{Closing, Part};
use crate::store::Store;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_record::{self as record, Kind, View};

/// What was found in a page.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) page: u32,
    pub(crate) head: Head,
    /// Where in the page those records are whose values are large, or whose keys are long.
    pub(crate) large: Vec<u64>,
    /// How many of its keys have a record that is no tombstone.
    pub(crate) live: i64,
    pub(crate) live_bytes: i64,
    /// The greatest version.
    pub(crate) given: u64,
    /// Where the last sound record ends.
    pub(crate) end: u32,
    pub(crate) is_dead: bool,
    /// What it has of batches.
    pub(crate) parts: Vec<Part>,
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
            parts: Vec::new(),
            head,
        }
    }

    pub(crate) fn life(&self) -> Life {
        Life { page: self.page, birth: self.head.birth }
    }
}

/// The last record of each key.
#[derive(Debug)]
pub(crate) struct Latest<'g> {
    /// By tags, as the leaf will have it.
    keys: Directory,
    views: Vec<View<'g>>,
    is_sorted: bool,
    field_max: usize,
}

impl<'g> Latest<'g> {
    fn new(field_max: usize) -> Self {
        let keys = Directory::new();
        keys.begin(Begun::default(), std::iter::empty());
        Self { keys, views: Vec::with_capacity(PLACES), is_sorted: true, field_max }
    }

    /// Takes the record in the place of an earlier one; false if there are too many keys.
    fn take(&mut self, view: View<'g>) -> bool {
        // In one leaf equal keys have equal fields.
        let (key, tag) = (view.key(), tag_of_field(view.key(), self.field_max));
        let mut candidates = self.keys.candidates(tag);
        while candidates != 0 {
            let place = candidates.trailing_zeros() as usize;
            if self.views[place].key() == key {
                self.views[place] = view;
                return true;
            }
            candidates &= candidates - 1;
        }
        let Some(place) = self.keys.vacancy() else { return false };
        // Fields of long keys do not tell the order where their prefixes are equal.
        let is_below = |last: &[u8]| last < key && last.len().max(key.len()) < self.field_max;
        self.is_sorted &= self.views.last().is_none_or(|last| is_below(last.key()));
        self.keys.add(place, tag);
        self.views.push(view);
        true
    }
}

impl Latest<'_> {
    /// Tag, offset in the page and length of each.
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

    /// What a leaf of these begins with.
    pub(crate) fn begun(&self, found: &Found, sealed_births: u64) -> Begun {
        let birth = found.head.birth;
        let is_sealed = birth < sealed_births;
        let has_large = self.views.iter().any(|view| view.header.large);
        let has_long = self.views.iter().any(|view| view.key().len() >= self.field_max);
        let (given, is_sorted) = (found.given, self.is_sorted);
        Begun { birth, given, is_sealed, is_sorted, has_large, has_long }
    }
}

impl Store {
    /// Reads the records of a leaf, up to `limit` within its page.
    ///
    /// # Errors
    /// If there are more keys than a leaf can have.
    pub(crate) fn read_leaf_page<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        head: Head,
        limit: u32,
    ) -> Result<(Found, Latest<'g>)> {
        let (mut found, mut latest, open) = self.read_records(guard, page, head, limit)?;
        if let Some(start) = open {
            // The power went before the closing came.
            (found, latest, _) = self.read_records(guard, page, found.head, start)?;
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

    /// As [`Store::read_leaf_page`]; and where the batch begins that has no closing.
    fn read_records<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        head: Head,
        limit: u32,
    ) -> Result<(Found, Latest<'g>, Option<u32>)> {
        let start = self.space.start_of(page);
        let mut found = Found::new(page, head);
        let mut latest = Latest::new(self.field_max());
        // Where the batch began to which the last records belong.
        let mut open: Option<u32> = None;
        let bytes = self.space.page_bytes(guard, page).ok_or_else(|| self.not_a_leaf(page))?;
        while found.end < limit
            && let Some(view) = View::of(&bytes, found.end)
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
                    open = open.or(Some(at));
                }
                if !latest.take(view) {
                    let what = format!("page {page} has more keys than a leaf can have");
                    return Err(Error::Corrupt { offset: start + u64::from(at), what });
                }
                continue;
            }
            let Some(closing) = Closing::of(&view) else { break };
            found.parts.push(Part { start: open.take().unwrap_or(at), at, closing });
            found.is_dead = closing.is_farewell;
            if found.is_dead {
                break;
            }
        }
        Ok((found, latest, open))
    }
}
