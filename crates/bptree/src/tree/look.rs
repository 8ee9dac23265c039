//! Looks up a key in its leaf: the places of its tag, and the records there.

use crate::leaf::{Directory, generation, tag_of};
use crate::tree::Tree;
use crate::tree::doubt::is_doubtful;
use crate::volume::hurt::{Match, is_damage};
use crate::volume::keys::has_tag;
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::LINE;
use coreplane_pmem::epoch::Guard;
use coreplane_record::{Kind, View};

/// The state of a key in its leaf.
#[derive(Clone, Copy)]
pub(crate) struct Standing<'g> {
    pub(crate) place: Option<usize>,
    /// The record or tombstone of the key.
    pub(crate) old: Option<View<'g>>,
    /// It is a record, and has not expired.
    pub(crate) live: bool,
    /// A newer record may have been lost, or, if there is none, any record; for one, if there is a damaged record
    /// that may be that of the key.
    pub(crate) is_doubtful: bool,
    /// Its key is damaged, or the rest of the key; or it means absence, and is damaged.
    pub(crate) is_hurt: bool,
}

impl Tree {
    /// The record of a place.
    ///
    /// # Errors
    /// If there is none. In a leaf that has not changed since the lookup that is damage.
    pub(crate) fn record_at<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        place: usize,
    ) -> Result<View<'g>> {
        let within = leaf.offset(place);
        let offset = self.space.start_of(page) + u64::from(within);
        self.reader().view(guard, offset).ok_or_else(|| self.no_record(page, within))
    }

    #[cold]
    pub(crate) fn no_record(&self, page: u32, within: u32) -> Error {
        let offset = self.space.start_of(page) + u64::from(within);
        Error::Corrupt { offset, what: "no record where the leaf has one".to_owned() }
    }

    /// The expiries of the records of a leaf.
    fn expiries_in<'a>(
        &'a self,
        guard: &'a Guard,
        page: u32,
        leaf: &'a Directory,
    ) -> impl Iterator<Item = UnixMillis> + 'a {
        let views = leaf.used().map(move |place| self.record_at(guard, page, leaf, place));
        views.filter_map(|view| view.ok()?.header.expires_at)
    }

    /// True if a record of a leaf is no tombstone, and has not expired.
    ///
    /// # Errors
    /// As [`Volume::is_live`](crate::volume::Volume::is_live).
    #[inline]
    pub(crate) fn is_live_in(
        &self,
        guard: &Guard,
        page: u32,
        leaf: &Directory,
        view: &View<'_>,
    ) -> Result<bool> {
        self.is_live(view, leaf.birth(), || self.expiries_in(guard, page, leaf))
    }

    /// Looks up a key in a leaf, and prefetches `lines` lines of each candidate before its first line arrives.
    ///
    /// # Errors
    /// As [`Tree::record_at`].
    // Inlined as `View::of` is.
    #[inline(always)]
    pub(crate) fn look<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        (key, lines): (&[u8], u32),
    ) -> Result<Standing<'g>> {
        self.look_for(guard, page, leaf, (key, tag_of(key), lines))
    }

    /// As [`Tree::look`], for a write. The new record of a long key will share the rest of the old one: so the
    /// whole rest is checked against its checksums, including parts that a comparison does not reach.
    ///
    /// # Errors
    /// As [`Tree::look`].
    #[inline(always)]
    pub(crate) fn look_to_write<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        key: &[u8],
    ) -> Result<Standing<'g>> {
        let mut standing = self.look(guard, page, leaf, (key, 1))?;
        if self.is_long(key)
            && let Some(old) = &standing.old
        {
            let rest = self.parts(guard, old.key(), true);
            standing.is_hurt |= rest.is_err_and(|error| is_damage(&error));
        }
        Ok(standing)
    }

    /// As [`Tree::look`], for a key with this tag.
    ///
    /// # Errors
    /// As [`Tree::record_at`].
    #[inline(always)]
    pub(crate) fn look_for<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        leaf: &Directory,
        (key, tag, lines): (&[u8], u8, u32),
    ) -> Result<Standing<'g>> {
        let candidates = leaf.candidates(tag);
        let bytes = self.space.page_bytes(guard, page);
        for place in candidates {
            let offset = leaf.offset(place);
            let view = bytes.as_ref().and_then(|bytes| {
                (0..lines).for_each(|line| bytes.prefetch(offset + line * LINE as u32));
                View::of(bytes, offset)
            });
            let Some(view) = view else { return Err(self.no_record(page, offset)) };
            let found = self.is_key(guard, view.key(), key)?;
            if found != Match::No {
                let live = self.is_live_in(guard, page, leaf, &view);
                let is_no_absence = live.as_ref().is_err_and(is_damage);
                if is_no_absence {
                    // By its kind a record is counted, or is not.
                    self.counters.be_unsure();
                }
                let live = !is_no_absence && live?;
                let is_doubtful = is_doubtful(leaf, view.header.doubtful, offset);
                let is_hurt = found == Match::Damaged || is_no_absence;
                let (place, old) = (Some(place), Some(view));
                return Ok(Standing { place, old, live, is_doubtful, is_hurt });
            }
        }
        let mut is_doubtful = leaf.doubt() > 0;
        if !candidates.is_empty() {
            let (place, may_be_lost) = self.hurt_place(guard, page, leaf, (key, tag));
            if let Some(place) = place {
                let old = self.record_at(guard, page, leaf, place)?;
                let live = old.header.kind == Kind::Put
                    && !self.is_expired(&old, || self.expiries_in(guard, page, leaf))?;
                let (place, old) = (Some(place), Some(old));
                return Ok(Standing { place, old, live, is_doubtful: false, is_hurt: true });
            }
            is_doubtful |= may_be_lost;
        }
        Ok(Standing { place: None, old: None, live: false, is_doubtful, is_hurt: false })
    }

    /// Looks for places of this tag whose keys now have another tag: they are not the keys that were written, which
    /// no lookup finds any more. Returns the place of the record that is sound with `key` in place of its own; and
    /// if there is none, whether there is any such place: then its record may be that of `key`, or of another key
    /// with this tag, so that no write may take its place.
    #[inline(never)]
    fn hurt_place(
        &self,
        guard: &Guard,
        page: u32,
        leaf: &Directory,
        (key, tag): (&[u8], u8),
    ) -> (Option<usize>, bool) {
        let mut may_be_lost = false;
        for place in leaf.candidates(tag) {
            let Ok(view) = self.record_at(guard, page, leaf, place) else { continue };
            if self.is_hurt_inline(view.key(), tag) {
                let seed = coreplane_record::seed(self.seed, generation(leaf.birth()), view.offset);
                if view.had_key(seed, key) {
                    return (Some(place), false);
                }
                may_be_lost = true;
            }
        }
        (None, may_be_lost)
    }

    /// True if the field of a key is not the one that had this tag when it was written.
    #[inline]
    pub(crate) fn is_hurt_inline(&self, field: &[u8], tag: u8) -> bool {
        !has_tag(field, self.field_max(), tag)
    }
}
