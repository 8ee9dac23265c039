//! The manifest: which segments a queue set has, and where the log of its head begins.
//!
//! One record changes both: sealed points leave the log in the moment in which their chunks count. A change too
//! large for one record is made in several, additions first: a point that is in two places for a while is the same
//! in both.

use crate::error::{Error, Result};
use crate::log::Log;
use crate::pages::{Pages, Role};
use crate::segment::Info;
use std::collections::BTreeMap;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Edit {
    /// The first page of the log that counts; 0 if that does not change.
    pub(crate) log_from: u64,
    pub(crate) removed: Vec<u32>,
    pub(crate) added: Vec<Info>,
}

// media-format: begin pool
/// Bytes of a segment in a record.
const INFO: usize = 56;
/// Bytes of a record without segments.
const HEAD: usize = 16;

fn encode_info(info: &Info, out: &mut Vec<u8>) {
    for word in
        [info.number, info.shard, info.pages, info.index_page, info.index_within, info.entries]
    {
        out.extend(word.to_le_bytes());
    }
    for word in [info.age, info.points, info.bytes, 0] {
        out.extend(word.to_le_bytes());
    }
}

fn decode_info(bytes: &[u8]) -> Option<Info> {
    let (numbers, words) = bytes.split_at_checked(24)?;
    let (numbers, _) = numbers.as_chunks::<4>();
    let (words, _) = words.as_chunks::<8>();
    let number = |at: usize| numbers.get(at).copied().map(u32::from_le_bytes);
    let word = |at: usize| words.get(at).copied().map(u64::from_le_bytes);
    Some(Info {
        number: number(0)?,
        shard: number(1)?,
        pages: number(2)?,
        index_page: number(3)?,
        index_within: number(4)?,
        entries: number(5)?,
        age: word(0)?,
        points: word(1)?,
        bytes: word(2)?,
    })
}

impl Edit {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + 4 * self.removed.len() + INFO * self.added.len());
        out.extend(self.log_from.to_le_bytes());
        out.extend((self.removed.len() as u32).to_le_bytes());
        out.extend((self.added.len() as u32).to_le_bytes());
        self.removed.iter().for_each(|number| out.extend(number.to_le_bytes()));
        self.added.iter().for_each(|info| encode_info(info, &mut out));
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (log_from, rest) = bytes.split_first_chunk::<8>()?;
        let (removed_len, rest) = rest.split_first_chunk::<4>()?;
        let (added_len, rest) = rest.split_first_chunk::<4>()?;
        let removed_len = u32::from_le_bytes(*removed_len) as usize;
        let (removed, added) = rest.split_at_checked(removed_len.checked_mul(4)?)?;
        let removed = removed.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes);
        let (added, behind) = added.as_chunks::<INFO>();
        let is_whole = behind.is_empty() && added.len() == u32::from_le_bytes(*added_len) as usize;
        let added = added.iter().map(|it| decode_info(it)).collect::<Option<Vec<Info>>>()?;
        let log_from = u64::from_le_bytes(*log_from);
        is_whole.then_some(Self { log_from, removed: removed.collect(), added })
    }
}
// media-format: end

/// The manifest of a queue set.
#[derive(Debug)]
pub(crate) struct Manifest {
    log: Log,
    /// The first page of the head's log that counts.
    pub(crate) log_from: u64,
    pub(crate) segments: BTreeMap<u32, Info>,
}

/// Bytes of history from which the log is written anew.
const HISTORY: u64 = 64 << 10;

impl Manifest {
    pub(crate) fn new() -> Self {
        Self { log: Log::new(Role::Manifest), log_from: 0, segments: BTreeMap::new() }
    }

    /// The manifest whose log `recover` finds; `recover` shows its records.
    ///
    /// # Errors
    /// That of `recover`; [`Error::Damage`].
    pub(crate) fn recover(
        recover: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Log>,
    ) -> Result<Self> {
        let mut found = Self::new();
        let mut visit = |bytes: &[u8]| {
            let damage = || Error::Damage("a record of the manifest".to_owned());
            found.apply(&Edit::decode(bytes).ok_or_else(damage)?);
            Ok(())
        };
        found.log = recover(&mut visit)?;
        Ok(found)
    }

    fn apply(&mut self, edit: &Edit) {
        self.log_from = self.log_from.max(edit.log_from);
        self.segments.extend(edit.added.iter().map(|info| (info.number, *info)));
        for number in &edit.removed {
            self.segments.remove(number);
        }
    }

    /// Makes a change. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Sync`], after which a part of the additions may be made.
    pub(crate) fn commit(&mut self, pages: &Pages, edit: &Edit) -> Result<()> {
        for part in parts(edit, Log::record_max(pages)) {
            self.log.commit(pages, &part.encode(), 0)?;
            self.apply(&part);
        }
        let is_history = self.log.bytes > HISTORY + 2 * self.log.checkpoint_bytes;
        if is_history || self.log.is_sparse(pages) {
            let added = self.segments.values().copied().collect();
            let whole = Edit { log_from: self.log_from, removed: Vec::new(), added };
            let parts = parts(&whole, Log::record_max(pages));
            // Without room for it a later commit tries again.
            self.log.checkpoint(pages, || parts.iter().map(Edit::encode), 0)?;
        }
        Ok(())
    }

    /// Ends its log.
    pub(crate) fn end(&mut self, pages: &Pages) {
        self.log.end(pages);
    }

    /// The pages of its log.
    pub(crate) fn page_list(&self) -> impl Iterator<Item = u32> {
        self.log.page_list()
    }
}

/// Splits a change into changes whose records are not longer than `record_max`. Removals and the new beginning of
/// the log come last.
fn parts(edit: &Edit, record_max: usize) -> Vec<Edit> {
    let (infos, numbers) = ((record_max - HEAD) / INFO, (record_max - HEAD) / 4);
    if edit.added.len() * INFO + edit.removed.len() * 4 + HEAD <= record_max {
        return vec![edit.clone()];
    }
    let added = edit.added.chunks(infos.max(1));
    let mut all: Vec<Edit> =
        added.map(|added| Edit { added: added.to_vec(), ..Edit::default() }).collect();
    let removed = edit.removed.chunks(numbers.max(1));
    all.extend(removed.map(|removed| Edit { removed: removed.to_vec(), ..Edit::default() }));
    if let Some(last) = all.last_mut() {
        last.log_from = edit.log_from;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_its_parts_are_together() {
        let info = |number: u32| Info {
            number,
            shard: number % 3,
            age: 1 << 40,
            pages: 7,
            index_page: 6,
            index_within: 800,
            entries: 12,
            points: 99,
            bytes: 1000,
        };
        let edit = Edit {
            log_from: 77,
            removed: (0..500).collect(),
            added: (500..700).map(info).collect(),
        };
        assert_eq!(Edit::decode(&edit.encode()).as_ref(), Some(&edit));
        assert_eq!(Edit::decode(&edit.encode()[1..]), None);
        let mut manifest = Manifest::new();
        for part in parts(&edit, 1000) {
            let bytes = part.encode();
            assert!(bytes.len() <= 1000);
            manifest.apply(&Edit::decode(&bytes).expect("a part"));
        }
        assert_eq!(manifest.log_from, 77);
        assert_eq!(
            manifest.segments.keys().copied().collect::<Vec<_>>(),
            (500..700).collect::<Vec<_>>()
        );
    }
}
