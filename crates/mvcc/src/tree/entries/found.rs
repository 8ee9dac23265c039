//! The pending entries that an open finds: from the commit that counts back along the chain, and then the changes of
//! each entry, up to the record that closes it.
//!
//! The commit states how many entries there are, and each of them how many changes it has. The commit counts only if
//! everything that it rests on was found whole, or was durable before. So a missing record is damage, never the
//! result of a torn end.

use super::{Entries, LINKS, Pending};
use crate::control::{Control, closing};
use crate::key::Key;
use crate::map::Part;
use crate::volume::Volume;
use crate::volume::stream::end_mark;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};

use super::super::seal::Commit;

/// The pending entries that were found.
#[derive(Debug, Default)]
pub(in crate::tree) struct Found {
    pub(super) entries: Entries,
    /// Pages of large values of pending entries.
    pub(super) chains: Vec<u32>,
}

/// A record that closes an entry.
#[derive(Clone, Copy)]
struct Closing<'g> {
    view: View<'g>,
    count: usize,
    first: u64,
    before: u64,
}

/// A place from which records are read one behind the other.
struct Cursor<'v> {
    volume: &'v Volume,
    guard: &'v Guard,
    /// Pages in the order of their births, as far as they are needed.
    pages: &'v [(u64, u32)],
    index: usize,
    at: u64,
}

fn damaged(timestamp: u64, offset: u64, what: &str) -> Error {
    Error::Corrupt { offset, what: format!("entry {timestamp}: {what}") }
}

/// Finds the pending entries that the commit at `commit` leads to, in these pages of the stream.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::ChecksumMismatch`] if a part is missing or damaged.
pub(in crate::tree) fn find(
    volume: &Volume,
    guard: &Guard,
    commit: Option<u64>,
    pages: &[(u64, u32)],
) -> Result<Found> {
    let Some(offset) = commit.filter(|_| volume.is_log()) else { return Ok(Found::default()) };
    let said = Commit::said(&volume.view(guard, offset)?).and_then(Control::of_said);
    let (mut control, last) = said.ok_or_else(|| {
        let what = "a commit that says nothing of the log".to_owned();
        Error::Corrupt { offset, what }
    })?;
    if mutant!("mvcc.pending.forgotten") {
        control.newest = control.applied;
    }
    let (mut closings, mut at) = (Vec::new(), last);
    for before in (control.applied..control.newest).rev() {
        let closing = match Closing::read(volume, guard, at, before + 1) {
            Err(_) if mutant!("mvcc.pending.torn") => {
                control.newest = control.applied;
                closings.clear();
                break;
            }
            closing => closing?,
        };
        at = closing.before;
        closings.push(closing);
    }
    let mut found = Found::default();
    let oldest = closings.last().map_or(Ok(u64::MAX), |it| it.birth(volume))?;
    let mut order: Vec<(u64, u32)> =
        pages.iter().copied().filter(|(birth, _)| *birth >= oldest).collect();
    order.sort_unstable();
    found.entries.control = control;
    for closing in closings.into_iter().rev() {
        let entry = closing.entry(volume, guard, &order, &mut found.chains)?;
        found.entries.push(entry, |offset| volume.space.page_of(offset));
    }
    Ok(found)
}

impl<'g> Closing<'g> {
    fn read(volume: &'g Volume, guard: &'g Guard, offset: u64, timestamp: u64) -> Result<Self> {
        let view = volume.view(guard, offset)?;
        volume.check(&view)?;
        let (count, _) = closing(&view)?;
        let links = view.key().first_chunk::<LINKS>().filter(|_| view.key().len() == LINKS);
        let word = |at| {
            let word = links.and_then(|it| it.get(at..)).and_then(<[u8]>::first_chunk);
            word.map(|it| u64::from_le_bytes(*it))
        };
        match (word(0), word(8)) {
            (Some(first), Some(before)) if view.header.version == timestamp => {
                Ok(Self { view, count, first, before })
            }
            _ => Err(damaged(timestamp, offset, "the record that closes it is another's")),
        }
    }

    /// The offset at which the entry begins.
    fn begins(&self) -> u64 {
        if self.count == 0 { self.view.offset } else { self.first }
    }

    /// The birth of the page in which it begins.
    fn birth(&self, volume: &Volume) -> Result<u64> {
        let life = volume.table.life(volume.space.page_of(self.begins()))?;
        Ok(life.map_or(0, |life| life.birth))
    }

    fn entry(
        &self,
        volume: &'g Volume,
        guard: &'g Guard,
        pages: &[(u64, u32)],
        chains: &mut Vec<u32>,
    ) -> Result<Pending> {
        let timestamp = self.view.header.version;
        let wrong = |offset| damaged(timestamp, offset, "its changes are not what they should be");
        let birth = self.birth(volume)?;
        let index = pages.binary_search_by_key(&birth, |it| it.0);
        let index = index.map_err(|_| wrong(self.begins()))?;
        let mut cursor = Cursor { volume, guard, pages, index, at: self.begins() };
        let (mut keys, mut changes): (Vec<Key>, Vec<Part>) = (Vec::new(), Vec::new());
        for _ in 0..self.count {
            let view = cursor.next()?;
            volume.check(&view)?;
            let is_change = matches!(view.header.kind, Kind::Put | Kind::Delete);
            let is_next = keys.last().is_none_or(|last| last.bytes() < view.key());
            if !is_change || !is_next || view.header.version != timestamp {
                return Err(wrong(view.offset));
            }
            if view.header.large {
                let chain = volume.chain(guard, view.value(), false)?;
                chains.extend(chain.into_iter().map(|(page, _)| page));
            }
            keys.push(Key::new(view.key()));
            let (offset, len, is_large) = (view.offset, view.len(), view.header.large);
            changes.push(Part { offset, len, is_large });
        }
        let view = cursor.next()?;
        if view.offset != self.view.offset {
            return Err(wrong(view.offset));
        }
        let closing = Part { offset: view.offset, len: view.len(), is_large: false };
        Ok(Pending { keys, changes, closing })
    }
}

impl<'v> Cursor<'v> {
    /// The next record, in this page or in one behind it.
    fn next(&mut self) -> Result<View<'v>> {
        let space = &self.volume.space;
        let size = u64::from(space.page_size());
        while let Some((birth, page)) = self.pages.get(self.index).copied() {
            let end = space.start_of(page) + size;
            let word = space.bytes(self.guard, self.at, 8).filter(|_| self.at + 8 <= end);
            let word = word.and_then(|it| it.first_chunk().copied()).map(u64::from_le_bytes);
            if word.is_some_and(|word| word != end_mark(birth, self.at)) {
                let view = self.volume.view(self.guard, self.at)?;
                self.at += u64::from(view.len());
                return Ok(view);
            }
            self.index += 1;
            self.at = self.pages.get(self.index).map_or(0, |it| space.start_of(it.1));
        }
        let what = "a change of an entry is missing".to_owned();
        Err(Error::Corrupt { offset: self.at, what })
    }
}
