//! Where a leaf may be cut: not between long keys that share the prefix of a key whose rest is damaged
//! ([`hurt`](crate::volume::hurt)).

use crate::leaf::PLACES;
use crate::tree::Tree;
use crate::tree::image::{Item, page_capacity};
use crate::volume::keys::prefix_len;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;

/// The places between records where a leaf may be cut into two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cuts {
    /// Keys with the same prefix of this length stay together.
    alike: Option<usize>,
}

impl Cuts {
    /// True if a leaf may begin with any of its records.
    pub(crate) fn are_free(self) -> bool {
        self.alike.is_none()
    }

    /// True if a leaf may begin with the record at a place.
    fn may_be(self, items: &[Item<'_>], at: usize) -> bool {
        let Some(len) = self.alike else { return true };
        let start = |at: usize| &items[at].key[..items[at].key.len().min(len)];
        at > 0 && at < items.len() && start(at - 1) != start(at)
    }

    /// The place nearest to `wanted` where the records behind `from` may be cut; none if there is none.
    fn nearest(self, items: &[Item<'_>], from: usize, wanted: usize) -> Option<usize> {
        let places = (from + 1..items.len()).filter(|at| self.may_be(items, *at));
        places.min_by_key(|at| at.abs_diff(wanted))
    }

    /// The lengths nearest to `lens` at which the records of a leaf may be cut. They may be fewer.
    fn all(self, items: &[Item<'_>], lens: &[usize]) -> Vec<usize> {
        let (mut cut, mut from, mut wanted) = (Vec::with_capacity(lens.len()), 0, 0);
        for len in lens {
            wanted += len;
            let is_inner = wanted > from && wanted < items.len();
            if let Some(at) = self.nearest(items, from, wanted).filter(|_| is_inner) {
                cut.push(at - from);
                from = at;
            }
        }
        cut.push(items.len() - from);
        cut
    }

    /// The lengths if each leaf takes as many of the remaining records as fit.
    fn packed(self, items: &[Item<'_>], do_fit: impl Fn(&[Item<'_>]) -> bool) -> Vec<usize> {
        let (mut cut, mut from, mut last) = (Vec::new(), 0, 0);
        for at in 1..=items.len() {
            if at < items.len() && !self.may_be(items, at) {
                continue;
            }
            if last > from && !do_fit(&items[from..at]) {
                cut.push(last - from);
                from = last;
            }
            last = at;
        }
        cut.push(items.len() - from);
        cut
    }
}

impl Tree {
    /// Puts records in the order of their keys; returns where the leaf may then be cut.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn sort_items<'i>(
        &'i self,
        guard: &'i Guard,
        items: &mut Vec<Item<'i>>,
    ) -> Result<Cuts> {
        if !items.iter().any(|item| self.is_long(item.key)) {
            crate::tree::image::sort(items);
            return Ok(Cuts::default());
        }
        let mut cuts = Cuts::default();
        let mut keyed = Vec::with_capacity(items.len());
        for item in &*items {
            let (parts, is_damaged) = self.parts_or_prefix(guard, item.key, true)?;
            if is_damaged {
                cuts.alike = Some(prefix_len(self.field_max()));
            }
            keyed.push((parts, *item));
        }
        keyed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        *items = keyed.into_iter().map(|(_, item)| item).collect();
        Ok(cuts)
    }

    /// The numbers of records for the lower and the upper one of two leaves: `lower` for the lower one, or the
    /// nearest number that is possible.
    ///
    /// # Errors
    /// If they cannot be cut.
    pub(crate) fn halves(
        &self,
        page: u32,
        (items, cuts): (&[Item<'_>], Cuts),
        lower: usize,
    ) -> Result<Vec<usize>> {
        let lens = |lower| vec![lower, items.len() - lower];
        if cuts.alike.is_none() {
            return Ok(lens(lower));
        }
        let lens = cuts.nearest(items, 0, lower).map(lens).filter(|lens| self.do_fit(items, lens));
        lens.ok_or_else(|| self.cannot_cut(page))
    }

    /// The number of records for each leaf: `lens`, or the nearest numbers that are possible. If those do not fit,
    /// each leaf takes as many as it can.
    ///
    /// # Errors
    /// If they cannot be cut.
    pub(crate) fn cut(
        &self,
        page: u32,
        (items, cuts): (&[Item<'_>], Cuts),
        lens: Vec<usize>,
    ) -> Result<Vec<usize>> {
        if cuts.alike.is_none() {
            return Ok(lens);
        }
        let near = cuts.all(items, &lens);
        if self.do_fit(items, &near) {
            return Ok(near);
        }
        let packed = cuts.packed(items, |mine| self.do_fit(mine, &[mine.len()]));
        if self.do_fit(items, &packed) { Ok(packed) } else { Err(self.cannot_cut(page)) }
    }

    /// True if leaves of these numbers of records fit into a page each, by bytes and by places.
    fn do_fit(&self, items: &[Item<'_>], lens: &[usize]) -> bool {
        let capacity = page_capacity(&self.space, self.field_max());
        let mut rest = items;
        lens.iter().all(|len| {
            let (mine, others) = rest.split_at(*len);
            rest = others;
            mine.len() <= PLACES && mine.iter().map(Item::len).sum::<usize>() <= capacity
        })
    }

    #[cold]
    fn cannot_cut(&self, page: u32) -> Error {
        let what = "a leaf is full of keys that begin like one whose rest is damaged: put that, \
                    or delete it with a sequence";
        Error::Corrupt { offset: self.space.start_of(page), what: what.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::image::Source;
    use coreplane_record::Header;

    /// Records with these keys; those with the same first letter stay together.
    fn items<'k>(keys: &'k [&'k [u8]]) -> Vec<Item<'k>> {
        let item = |key: &&'k [u8]| Item {
            header: Header::put(1),
            key,
            value: b"",
            source: Source::Caller,
        };
        keys.iter().map(item).collect()
    }

    #[test]
    fn a_cut_moves_to_the_nearest_place_between_groups() {
        let keys: Vec<&[u8]> = vec![b"a", b"b", b"l1", b"l2", b"l3", b"l4", b"y", b"z"];
        let (items, cuts) = (items(&keys), Cuts { alike: Some(1) });
        assert_eq!(cuts.all(&items, &[3, 5]), [2, 6]);
        assert_eq!(cuts.all(&items, &[4, 4]), [2, 6]);
        assert_eq!(cuts.all(&items, &[5, 3]), [6, 2]);
        assert_eq!(cuts.all(&items, &[3, 2, 3]), [2, 4, 2]);
        assert_eq!(cuts.all(&items, &[5, 1, 2]), [6, 2], "one cut for both");
        assert_eq!(cuts.all(&items[2..6], &[2, 2]), [4], "no place");
        assert_eq!(cuts.all(&[], &[0]), [0]);
    }

    #[test]
    fn leaves_are_packed_where_the_nearest_places_do_not_do() {
        let keys: Vec<&[u8]> = vec![b"a", b"b", b"l1", b"l2", b"l3", b"l4", b"y", b"z"];
        let (items, cuts) = (items(&keys), Cuts { alike: Some(1) });
        assert_eq!(cuts.packed(&items, |mine| mine.len() <= 5), [2, 5, 1]);
        assert_eq!(cuts.packed(&items, |mine| mine.len() <= 6), [6, 2]);
        assert_eq!(cuts.packed(&items, |mine| mine.len() <= 3), [2, 4, 2], "a group is too long");
    }
}
