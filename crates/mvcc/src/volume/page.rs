//! The contents of a page of the stream, as an open finds them.

use crate::volume::Volume;
use crate::volume::stream::end_mark;
use coreplane_pmem::epoch::Guard;
use coreplane_record::View;

/// The contents of a page of the stream.
#[derive(Debug)]
pub(crate) struct Found<'g> {
    /// Its sound records, in order.
    pub(crate) records: Vec<View<'g>>,
    /// Offset of the first bytes that are no sound record, unless the page ends well.
    pub(crate) broken: Option<u64>,
    /// The sound records behind that, in order.
    pub(crate) behind: Vec<View<'g>>,
    /// Offset of the end mark, or of the end of the page.
    pub(crate) end: u64,
    /// One of the records behind `broken` has the flag `follows`.
    pub(crate) follows_behind: bool,
}

impl Volume {
    /// Examines all of a page that a recovery has adopted, which `guard` is for.
    pub(crate) fn look_at_page<'g>(&'g self, guard: &'g Guard, page: u32, birth: u64) -> Found<'g> {
        self.look_from(guard, page, birth, 0)
    }

    /// The same, from offset `within` of the page on, where a record or the end mark begins.
    pub(crate) fn look_from<'g>(
        &'g self,
        guard: &'g Guard,
        page: u32,
        birth: u64,
        within: u32,
    ) -> Found<'g> {
        let (start, size) = (self.space.start_of(page), self.space.page_size());
        let (records, behind, end) = (Vec::new(), Vec::new(), start + u64::from(size));
        let mut found = Found { records, broken: None, behind, end, follows_behind: false };
        let Some(bytes) = self.space.page_at(guard, start) else {
            found.broken = Some(start + u64::from(within));
            return found;
        };
        let mut at = within;
        while at + 8 <= size {
            let offset = start + u64::from(at);
            let word = bytes.get(at, 8).and_then(|it| it.first_chunk().copied());
            if word.is_some_and(|word| u64::from_le_bytes(word) == end_mark(birth, offset)) {
                found.end = offset;
                return found;
            }
            let view =
                View::of(&bytes, at).filter(|view| view.check(self.seed_at(birth, offset)).is_ok());
            at += match view {
                Some(view) if found.broken.is_none() => {
                    let len = view.len();
                    found.records.push(view);
                    len
                }
                Some(view) => {
                    found.follows_behind |= view.header.follows;
                    let len = view.len();
                    found.behind.push(view);
                    len
                }
                None => {
                    found.broken = found.broken.or(Some(offset));
                    8
                }
            };
        }
        found
    }
}
