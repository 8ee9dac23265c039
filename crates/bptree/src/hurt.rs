//! Long keys whose rests are damaged, and short keys that are.
//!
//! Of a short key a leaf has its tag. Where a record has this tag, and its key another, that is not the
//! key that was written: whoever looks for a key with the tag and does not find it is told of the damage,
//! and not that it is not there; a write that does not ask what was there takes its place; an iteration
//! shows all others, and says so last. One in 256 has the same tag with the damage: a key that is not found
//! among records of its tag, one of which is not what its checksum says, is answered with that damage where
//! reads are [checked](coreplane_record::Options::check_reads). Else it is not known to them; the scrub and
//! `verify`, which hold every record against its checksum, tell of it.
//!
//! A leaf that is written anew has no record of a damaged short key: its tag would be made of the damaged bytes, and
//! be that of another key. The leaves in its place are in [doubt](crate::doubt) of all keys that they have not, until
//! a peer has settled that; in a store by itself such reads fail from then on.
//!
//! Of a long key a leaf still has the prefix, the length and the checksum. That is enough to know it
//! again when somebody asks for it: a read is told that it is damaged, and a write that does not ask what
//! was there takes its place, with a rest of its own. For that the leaf is written anew without the old
//! field, as for a batch: two fields of one key would be two keys.
//!
//! Where it is among the keys that begin like it nobody knows. It is sorted before all of them; a leaf is
//! never cut between them, lest the key be looked for in another leaf than it is in; and a scan that
//! would show any of them says that there is damage. An order from before the damage is none any more: a
//! scan sorts such keys by what it sees of them itself. An iteration shows all others, and says so last.
//! A matrix asks which they are ([`Store::damaged_keys_since`]), and whose peers have the same.

use crate::image::{Item, page_capacity};
use crate::keys::{Parts, crc_of, long_len, prefix_len};
use crate::leaf::{Head, PLACES};
use crate::newer::Passed;
use crate::store::Store;
use coreplane_engine::{DamagedKey, Error, KeyRange, Result};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::{self, Guard};

/// Whether a field stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    No,
    Yes,
    /// It does, and its rest is damaged.
    Damaged,
}

/// Between which records of a leaf it may be cut into two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cuts {
    /// Keys stay together that begin with the same so many bytes.
    alike: Option<usize>,
}

impl Cuts {
    /// True if a leaf may begin with any of them.
    pub(crate) fn are_free(self) -> bool {
        self.alike.is_none()
    }

    /// True if a leaf may begin with the record at a place.
    fn may_be(self, items: &[Item<'_>], at: usize) -> bool {
        let Some(len) = self.alike else { return true };
        let start = |at: usize| &items[at].key[..items[at].key.len().min(len)];
        at > 0 && at < items.len() && start(at - 1) != start(at)
    }

    /// The place nearest to `wanted` where a leaf of some records may be cut; none if there is none.
    fn nearest(self, items: &[Item<'_>], wanted: usize) -> Option<usize> {
        let places = (1..items.len()).filter(|at| self.may_be(items, *at));
        places.min_by_key(|at| at.abs_diff(wanted))
    }

    /// Where to cut the records of a leaf, which are to be in leaves of so many; none if that cannot be.
    fn all(self, items: &[Item<'_>], lens: Vec<usize>) -> Option<Vec<usize>> {
        let (mut cut, mut from, mut at) = (Vec::with_capacity(lens.len()), 0, 0);
        for len in lens {
            at += len;
            if at == items.len() || self.may_be(items, at) {
                cut.push(at - from);
                from = at;
            }
        }
        (at == from).then_some(cut)
    }
}

/// A long key of a leaf whose rest is damaged, or a key whose large value cannot be found.
pub(crate) struct DamagedField {
    /// What is to be said of it.
    pub(crate) error: Error,
    /// What is known of the key: what it begins with, or all of it; none: it is one of its leaf.
    pub(crate) known: Option<Box<[u8]>>,
    pub(crate) is_whole: bool,
    /// Where its record is.
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    /// It has a record, and no tombstone.
    pub(crate) is_record: bool,
}

impl DamagedField {
    /// The keys of which this is one.
    fn within(&self, leaf: &Head) -> KeyRange {
        let Some(known) = &self.known else {
            let end = leaf.bound.as_ref().map(|bound| bound.to_vec());
            return KeyRange { start: leaf.least.to_vec(), end };
        };
        let start = known.to_vec();
        if self.is_whole {
            return KeyRange { end: Some([start.as_slice(), &[0]].concat()), start };
        }
        let mut end = start.clone();
        // The first that does not begin so; what begins with nothing but the greatest byte has none.
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let end = end.split_last().map(|(last, before)| [before, &[last + 1]].concat());
        KeyRange { start, end }
    }
}

pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
}

impl Store {
    /// The error of whoever needs a key that is damaged.
    #[cold]
    pub(crate) fn damaged_key(&self, guard: &Guard, offset: u64, field: &[u8]) -> Error {
        if !self.is_long(field) {
            return Error::Corrupt { offset, what: "a damaged key".to_owned() };
        }
        let why =
            self.parts(guard, field, true).err().map_or(String::new(), |it| format!(": {it}"));
        let what = format!("a long key whose rest is damaged{why}");
        Error::Corrupt { offset, what }
    }

    /// The keys that are hurt and whose records are newer than `sequence`.
    ///
    /// # Errors
    /// If a leaf cannot be read, and if the medium fails.
    pub(crate) fn damaged_keys_since(&self, sequence: u64) -> Result<Vec<DamagedKey>> {
        let (mut found, mut from) = (Vec::new(), Box::<[u8]>::default());
        loop {
            if let Passed::Old(bound) = self.pass(&from, sequence) {
                let Some(bound) = bound else { return Ok(found) };
                from = bound;
                continue;
            }
            let guard = epoch::pin();
            let leaf = self.leaf_of(&guard, &from)?;
            let hurt = leaf.hurt.iter().filter(|it| it.sequence > sequence);
            let head = &leaf.head;
            found.extend(
                hurt.map(|it| DamagedKey { within: it.within(head), sequence: it.sequence }),
            );
            match leaf.head.bound {
                None => return Ok(found),
                Some(bound) => from = bound,
            }
        }
    }

    /// Whether a field stands for a long key.
    ///
    /// # Errors
    /// As [`Store::parts`], but for damage.
    #[cold]
    pub(crate) fn match_long(&self, guard: &Guard, field: &[u8], key: &[u8]) -> Result<Match> {
        let field_max = self.field_max();
        let prefix_len = prefix_len(field_max);
        // What a damaged rest says may be another key: this one's checksum tells.
        if field.len() != field_max || crc_of(field) != crc32c_append(0, key) {
            return Ok(Match::No);
        }
        if field[..prefix_len] != key[..prefix_len] || long_len(field, field_max) != key.len() {
            return Ok(Match::Damaged);
        }
        match self.parts(guard, field, false) {
            Ok(parts) if parts.cmp_key(key).is_eq() => return Ok(Match::Yes),
            // It should be the same, unless its checksums say that it is another.
            Ok(_) => {}
            Err(error) if is_damage(&error) => return Ok(Match::Damaged),
            Err(error) => return Err(error),
        }
        match self.parts(guard, field, true) {
            Ok(_) => Ok(Match::No),
            Err(error) if is_damage(&error) => Ok(Match::Damaged),
            Err(error) => Err(error),
        }
    }

    /// The key that a field stands for, its prefix alone if its rest is damaged; and whether it is.
    ///
    /// # Errors
    /// As [`Store::parts`], but for damage.
    pub(crate) fn parts_or_prefix<'g>(
        &'g self,
        guard: &'g Guard,
        field: &'g [u8],
        checked: bool,
    ) -> Result<(Parts<'g>, bool)> {
        match self.parts(guard, field, checked) {
            Err(error) if is_damage(&error) => Ok((Parts::of(self.prefix_of(field)), true)),
            parts => Ok((parts?, false)),
        }
    }

    /// What a key, or its field, begins with: as much as a field has of a long one.
    pub(crate) fn prefix_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        &key[..key.len().min(prefix_len(self.field_max()))]
    }

    /// Puts records in the order of their keys; where the leaf may be cut then.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn sort_items<'i>(
        &'i self,
        guard: &'i Guard,
        items: &mut Vec<Item<'i>>,
    ) -> Result<Cuts> {
        if !items.iter().any(|item| self.is_long(item.key)) {
            crate::image::sort(items);
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

    /// How many of some records are to be in the lower one of two leaves and in the upper one: so many, or
    /// as near to it as may be.
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
        let lens = cuts.nearest(items, lower).map(lens).filter(|lens| self.do_fit(items, lens));
        lens.ok_or_else(|| self.cannot_cut(page))
    }

    /// How many of some records are to be in each leaf: so many, or as near to it as may be.
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
        let lens = cuts.all(items, lens).filter(|lens| self.do_fit(items, lens));
        lens.ok_or_else(|| self.cannot_cut(page))
    }

    /// True if leaves of so many records each are not longer than a page, nor have more records.
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
