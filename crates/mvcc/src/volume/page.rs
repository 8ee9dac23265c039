//! What a page of the stream holds, as an opening finds it.

use crate::volume::Volume;
use crate::volume::stream::end_mark;
use coreplane_pmem::Recovery;
use coreplane_record::{HEADER, Reader};

/// What a page of the stream was found to hold.
#[derive(Debug)]
pub(crate) struct Found {
    /// Where its sound records begin, in order.
    pub(crate) records: Vec<u64>,
    /// Where what is no sound record begins, unless the page ends well.
    pub(crate) broken: Option<u64>,
    /// Where the sound records behind that begin, in order.
    pub(crate) behind: Vec<u64>,
    /// Where the end mark is, or the page ends.
    pub(crate) end: u64,
    /// A sound record behind that follows.
    pub(crate) follows_behind: bool,
}

impl Volume {
    /// Looks at all of a page that a recovery has adopted.
    pub(crate) fn look_at_page(&self, recovery: &Recovery, page: u32, birth: u64) -> Found {
        self.look_from(recovery, page, birth, 0)
    }

    /// As that, from a record on that begins so many bytes behind the start of the page, or the end mark.
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
