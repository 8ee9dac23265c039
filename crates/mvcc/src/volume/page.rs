//! The contents of a page of the stream, as an open finds them.

use crate::volume::Volume;
use crate::volume::stream::end_mark;
use coreplane_pmem::Recovery;
use coreplane_record::{HEADER, Reader};

/// The contents of a page of the stream.
#[derive(Debug)]
pub(crate) struct Found {
    /// Offsets of its sound records, in order.
    pub(crate) records: Vec<u64>,
    /// Offset of the first bytes that are no sound record, unless the page ends well.
    pub(crate) broken: Option<u64>,
    /// Offsets of the sound records behind that, in order.
    pub(crate) behind: Vec<u64>,
    /// Offset of the end mark, or of the end of the page.
    pub(crate) end: u64,
    /// One of the records behind `broken` has the flag `follows`.
    pub(crate) follows_behind: bool,
}

impl Volume {
    /// Examines all of a page that a recovery has adopted.
    pub(crate) fn look_at_page(&self, recovery: &Recovery, page: u32, birth: u64) -> Found {
        self.look_from(recovery, page, birth, 0)
    }

    /// The same, from offset `within` of the page on, where a record or the end mark begins.
    pub(crate) fn look_from(
        &self,
        recovery: &Recovery,
        page: u32,
        birth: u64,
        within: u32,
    ) -> Found {
        let guard = recovery.pin();
        let (start, size) = (self.space.start_of(page), u64::from(self.space.page_size()));
        let (records, behind, end) = (Vec::new(), Vec::new(), start + size);
        let mut found = Found { records, broken: None, behind, end, follows_behind: false };
        let mut at = start + u64::from(within);
        while at + 8 <= start + size {
            let word = self.space.bytes(&guard, at, 8).and_then(|it| it.first_chunk().copied());
            if word.is_some_and(|word| u64::from_le_bytes(word) == end_mark(birth, at)) {
                found.end = at;
                return found;
            }
            let view = (at + HEADER as u64 <= start + size)
                .then(|| Reader { space: &self.space }.view(&guard, at))
                .flatten()
                .filter(|view| view.check(self.seed_at(birth, at)).is_ok());
            match view {
                Some(view) if found.broken.is_none() => {
                    found.records.push(at);
                    at += u64::from(view.len());
                }
                Some(view) => {
                    found.behind.push(at);
                    found.follows_behind |= view.header.follows;
                    at += u64::from(view.len());
                }
                None => {
                    found.broken = found.broken.or(Some(at));
                    at += 8;
                }
            }
        }
        found
    }
}
