//! Keys that are too long for a page: a prefix is in the record, the rest in pages of its own.
//!
//! ```text
//!   key      ├─ prefix ─┼─────────────── rest ───────────────┤
//!   field    ├─ prefix ─┼─ name ─┤                              exactly `field_max` bytes
//!                           └─▶ pages, as those of a large value
//! ```
//!
//! A key is represented in a page by its *field*: the key, if it is shorter than `field_max`; otherwise its prefix,
//! and the name of its rest. So the length of a field tells which it is, and short keys cost no extra check.
//!
//! **Ownership of a rest.** In a leaf a key has one rest, from its first record on, for as long as the leaf knows
//! the key: later records name the same rest, tombstones too, and so do those of a leaf that replaces this one. So
//! within a leaf equal keys have equal fields, a delete needs no pages, and a rest is given back when a leaf is
//! rewritten without the key. The rest is durable before the first record that names it.
//!
//! **Bounds** are keys as well, mostly short ones: the shortest that separate two neighbours. Where the neighbours
//! share more than a prefix, the bound has a rest. It belongs to the upper leaf, whose least key it is; the lower
//! one names it too. Both are rewritten with the same name, and the rest is given back with the bound, when the two
//! leaves become one. Inner nodes, which are in DRAM, have whole keys.
//!
//! **Comparisons** use prefixes, and read rests only where those are equal. For a key whose rest is damaged see
//! [`hurt`](crate::volume::hurt).

use crate::leaf::tag_from;
use crate::volume::Volume;
use crate::volume::hurt::Match;
use crate::volume::overflow::{NAME, Overflow, Row};
use coreplane_engine::{Error, KEY_LEN_MAX, Result, UnixMillis};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::Header;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A long key whose rest is written. The rest is given back unless a record or bound comes to name it durably.
pub(crate) struct Rest<'s> {
    field: Box<[u8]>,
    overflow: Overflow<'s>,
}

impl Rest<'_> {
    /// The field of the key.
    pub(crate) fn field(&self) -> &[u8] {
        &self.field
    }

    /// A record names the rest durably.
    pub(crate) fn own(self) {
        self.overflow.own();
    }
}

/// The least key of a leaf that is being made.
pub(crate) struct Edge<'s> {
    /// The whole key, by which the tree will lead to the leaf; empty for a leaf in the place of another.
    pub(crate) whole: Box<[u8]>,
    /// The field of the key.
    pub(crate) field: Box<[u8]>,
    /// Its rest, if that is new.
    pub(crate) rest: Option<Rest<'s>>,
}

impl Edge<'_> {
    /// The edge below all keys.
    pub(crate) fn first() -> Self {
        Self::of_old(&[])
    }

    /// The edge of a leaf in the place of another, with the field of that one's least key. The rest of the key is not
    /// read: if it is damaged, the tree still leads there.
    pub(crate) fn of_old(field: &[u8]) -> Self {
        Self { whole: Box::default(), field: field.into(), rest: None }
    }
}

/// A key in place, in pieces.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'g> {
    prefix: &'g [u8],
    rest: Vec<&'g [u8]>,
}

impl<'g> Parts<'g> {
    /// A key in one piece.
    pub(crate) fn of(key: &'g [u8]) -> Self {
        Self { prefix: key, rest: Vec::new() }
    }

    fn slices<'p>(&'p self) -> impl Iterator<Item = &'g [u8]> + 'p {
        std::iter::once(self.prefix).chain(self.rest.iter().copied())
    }

    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        compare(self.slices(), other.slices())
    }

    pub(crate) fn cmp_key(&self, key: &[u8]) -> Ordering {
        compare(self.slices(), std::iter::once(key))
    }

    /// The key in one piece.
    pub(crate) fn whole(&self) -> Cow<'g, [u8]> {
        if self.rest.is_empty() {
            return Cow::Borrowed(self.prefix);
        }
        Cow::Owned(self.slices().collect::<Vec<_>>().concat())
    }
}

/// Compares byte strings that are in several pieces.
fn compare<'a>(
    mut a: impl Iterator<Item = &'a [u8]>,
    mut b: impl Iterator<Item = &'a [u8]>,
) -> Ordering {
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left.is_empty() {
            left = a.find(|piece| !piece.is_empty()).unwrap_or_default();
        }
        if right.is_empty() {
            right = b.find(|piece| !piece.is_empty()).unwrap_or_default();
        }
        let len = left.len().min(right.len());
        let order = left[..len].cmp(&right[..len]);
        if len == 0 || order.is_ne() {
            return order.then(left.len().cmp(&right.len()));
        }
        (left, right) = (&left[len..], &right[len..]);
    }
}

/// The length of the key's own bytes in a field.
// media-format: begin pool
pub(crate) fn prefix_len(field_max: usize) -> usize {
    field_max - NAME
}

// media-format: end

/// The length of the key that a field of `field_max` bytes stands for.
pub(crate) fn long_len(field: &[u8], field_max: usize) -> usize {
    let prefix_len = prefix_len(field_max);
    let rest = field[prefix_len..].first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
    prefix_len.saturating_add(rest as usize)
}

/// The checksum of the key that a field of `field_max` bytes stands for.
pub(crate) fn crc_of(field: &[u8]) -> u32 {
    field.last_chunk().map_or(0, |crc| u32::from_le_bytes(*crc))
}

/// The tag of the key that a field stands for.
#[inline]
pub(crate) fn tag_of_field(field: &[u8], field_max: usize) -> u8 {
    if field.len() < field_max { crate::leaf::tag_of(field) } else { tag_from(crc_of(field)) }
}

/// True if this may be the field of a key with this tag: of a long key the checksum of the key is in it, and no
/// field is longer.
#[inline]
pub(crate) fn has_tag(field: &[u8], field_max: usize, tag: u8) -> bool {
    field.len() <= field_max && tag_of_field(field, field_max) == tag
}

impl Volume {
    /// The length of the field of a long key; all others are shorter. A leaf between two bounds of this length has
    /// room for two records of the greatest length, so that each can be replaced.
    #[inline]
    pub(crate) fn field_max(&self) -> usize {
        self.space.page_size() as usize / 8 - 64
    }

    /// The length of the longest record in a page.
    pub(crate) fn record_len_max(&self) -> usize {
        let header =
            Header { expires_at: Some(UnixMillis(0)), sequence: Some(0), ..Header::put(0) };
        (header.len() + self.field_max() + self.inline_max()).next_multiple_of(8)
    }

    /// True if a key, or a field, has a rest.
    #[inline]
    pub(crate) fn is_long(&self, key: &[u8]) -> bool {
        key.len() >= self.field_max()
    }

    /// The length of the key that a field stands for: at least that of the field, and at most that of the longest
    /// key, even if the field is damaged.
    #[inline]
    pub(crate) fn key_len_of(&self, field: &[u8]) -> usize {
        if !self.is_long(field) {
            return field.len();
        }
        long_len(field, self.field_max()).min(KEY_LEN_MAX).max(field.len())
    }

    /// The maximum number of pages of a rest.
    pub(crate) fn rest_pages(&self) -> usize {
        (KEY_LEN_MAX - prefix_len(self.field_max())).div_ceil(self.overflow_page_max())
    }

    /// Writes the rest of a long key; durable after a fence.
    ///
    /// # Errors
    /// [`NoSpace`](coreplane_engine::Error::NoSpace), and if the medium fails.
    pub(crate) fn write_rest(&self, key: &[u8], reserve: u32) -> Result<Rest<'_>> {
        self.expect_long_keys();
        let (prefix, rest) = key.split_at(prefix_len(self.field_max()));
        let overflow = self.write_row(Row::Key, rest, reserve)?;
        let mut field = [prefix, overflow.name()].concat();
        if let Some(crc) = field.last_chunk_mut() {
            *crc = crc32c_append(0, key).to_le_bytes();
        }
        Ok(Rest { field: field.into_boxed_slice(), overflow })
    }

    /// From now on pages are kept for the rests of bounds, which are made when space is made.
    pub(crate) fn expect_long_keys(&self) {
        self.pages.keep_for_bounds(self.rest_pages() as u32);
    }

    /// The key that a field stands for. Its rest is checked against its checksums if `checked`.
    ///
    /// # Errors
    /// If its rest is not the one that was written.
    #[inline]
    pub(crate) fn parts<'g>(
        &'g self,
        guard: &'g Guard,
        field: &'g [u8],
        checked: bool,
    ) -> Result<Parts<'g>> {
        if !self.is_long(field) {
            return Ok(Parts { prefix: field, rest: Vec::new() });
        }
        let (prefix, name) = field.split_at(prefix_len(self.field_max()));
        let row = self.row(guard, Row::Key, name, checked)?;
        Ok(Parts { prefix, rest: row.into_iter().map(|(_, bytes)| bytes).collect() })
    }

    /// The whole key of the bound of a leaf, given its field. Its rest is checked, whatever `check_reads` says: a
    /// bound that reads as another key leads past other leaves.
    ///
    /// # Errors
    /// If its rest is not the one that was written.
    #[inline]
    pub(crate) fn bound<'g>(&'g self, guard: &'g Guard, field: &'g [u8]) -> Result<Cow<'g, [u8]>> {
        if !self.is_long(field) {
            return Ok(Cow::Borrowed(field));
        }
        self.parts(guard, field, !mutant!("bptree.bound.checksum")).map(|parts| parts.whole())
    }

    /// As [`Volume::bound`], replacing the field.
    ///
    /// # Errors
    /// As [`Volume::bound`].
    pub(crate) fn make_whole(&self, guard: &Guard, field: &mut Box<[u8]>) -> Result<()> {
        if self.is_long(field) {
            *field = self.bound(guard, field)?.into();
        }
        Ok(())
    }

    /// Compares a field with `key`.
    ///
    /// # Errors
    /// As [`Volume::parts`], but for damage.
    #[inline]
    pub(crate) fn is_key(&self, guard: &Guard, field: &[u8], key: &[u8]) -> Result<Match> {
        if self.is_long(key) {
            return self.match_long(guard, field, key);
        }
        Ok(if field == key { Match::Yes } else { Match::No })
    }

    /// The shortest key between two fields of a leaf; its rest is written if it is long, durable after a fence.
    ///
    /// # Errors
    /// As [`Volume::parts`] and [`Volume::write_rest`].
    pub(crate) fn edge_between(
        &self,
        guard: &Guard,
        (lower, upper): (&[u8], &[u8]),
        reserve: u32,
    ) -> Result<Edge<'_>> {
        // A damaged key differs from the other in its prefix.
        let whole = |field| Ok(self.parts_or_prefix(guard, field, false)?.0.whole());
        self.edge(separator(&whole(lower)?, &whole(upper)?), reserve)
    }

    /// An edge; its rest is written if it is long, durable after a fence.
    ///
    /// # Errors
    /// As [`Volume::write_rest`].
    pub(crate) fn edge(&self, whole: Box<[u8]>, reserve: u32) -> Result<Edge<'_>> {
        if !self.is_long(&whole) {
            return Ok(Edge { field: whole.clone(), whole, rest: None });
        }
        let rest = self.write_rest(&whole, reserve)?;
        Ok(Edge { whole, field: rest.field().into(), rest: Some(rest) })
    }

    /// The pages of the rest of a field; none for a short key, and none if the rest is damaged: then its pages are
    /// unknown, and reads of the key report the damage.
    ///
    /// # Errors
    /// As [`Volume::parts`], for any other reason.
    pub(crate) fn rest_of(&self, guard: &Guard, field: &[u8]) -> Result<Vec<u32>> {
        if !self.is_long(field) {
            return Ok(Vec::new());
        }
        let name = &field[prefix_len(self.field_max())..];
        match self.row(guard, Row::Key, name, false) {
            Err(Error::Corrupt { .. }) => Ok(Vec::new()),
            row => Ok(row?.into_iter().map(|(page, _)| page).collect()),
        }
    }

    /// Gives back the rests of keys that no leaf knows any more, or of a bound that no longer exists, as far as their
    /// pages are [known](Volume::known).
    ///
    /// # Errors
    /// As [`Volume::retire`], after all of them were tried.
    pub(crate) fn retire_rests(&self, guard: &Guard, fields: &[&[u8]]) -> Result<()> {
        let long = fields.iter().filter(|field| self.is_long(field));
        let pages = |field: &&[u8]| self.known(self.rest_of(guard, field).unwrap_or_default());
        self.retire_all(long.flat_map(pages))
    }
}

/// The shortest key above `lower` and not above `upper`, which is greater than `lower`.
pub(crate) fn separator(lower: &[u8], upper: &[u8]) -> Box<[u8]> {
    let common = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
    upper[..(common + 1).min(upper.len())].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(bytes: &[u8], at: &[usize]) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        for at in at {
            let (piece, after) = rest.split_at((*at).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = after;
        }
        pieces.push(rest.to_vec());
        pieces
    }

    proptest! {
        #[test]
        fn pieces_are_compared_as_the_whole_is(
            a in prop::collection::vec(0_u8..2, 0..12),
            b in prop::collection::vec(0_u8..2, 0..12),
            a_cuts in prop::collection::vec(0_usize..4, 0..6),
            b_cuts in prop::collection::vec(0_usize..4, 0..6),
        ) {
            let (in_a, in_b) = (cut(&a, &a_cuts), cut(&b, &b_cuts));
            let order = compare(in_a.iter().map(Vec::as_slice), in_b.iter().map(Vec::as_slice));
            prop_assert_eq!(order, a.cmp(&b));
        }
    }
}
