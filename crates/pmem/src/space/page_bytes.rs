//! The published bytes of a page, for reading many of its records.

use super::Space;
use crate::epoch::Guard;
use crate::order::LINE;

/// The published bytes of a log page at one moment.
#[derive(Debug, Clone, Copy)]
pub struct PageBytes<'g> {
    space: &'g Space,
    start: u64,
    bytes: &'g [u8],
}

impl<'g> PageBytes<'g> {
    /// The offset of the page in the pool.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The number of published bytes.
    #[inline]
    pub fn published(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Prefetches the line of a byte.
    #[inline]
    pub fn prefetch(&self, within: u32) {
        if let Some(byte) = self.bytes.get(within as usize) {
            crate::arch::prefetch(byte);
        }
    }

    /// `len` bytes from offset `within` of the page; none if not all of them are published.
    #[inline(always)]
    pub fn get(&self, within: u32, len: usize) -> Option<&'g [u8]> {
        let from = within as usize;
        let bytes = self.bytes.get(from..from.checked_add(len)?)?;
        self.space.before_load(self.start + u64::from(within), len as u64, || {
            for line in bytes.chunks(LINE) {
                std::hint::black_box(line[0]);
            }
        });
        Some(bytes)
    }
}

impl Space {
    /// The published bytes of a log page, to be read piece by piece: as [`Space::bytes`], but the
    /// role of the page is checked only once, and the result stays valid while the guard lives.
    #[inline]
    pub fn page_bytes<'g>(&'g self, guard: &'g Guard, page: u32) -> Option<PageBytes<'g>> {
        self.bytes_of_page(guard, u64::from(page))
    }

    /// As [`Space::page_bytes`], for the page that contains `offset`, which may be any number.
    #[inline(always)]
    pub fn page_at<'g>(&'g self, guard: &'g Guard, offset: u64) -> Option<PageBytes<'g>> {
        // The full page number: a truncated number could denote another page.
        self.bytes_of_page(guard, offset >> self.page_shift)
    }

    #[inline(always)]
    fn bytes_of_page<'g>(&'g self, guard: &'g Guard, page: u64) -> Option<PageBytes<'g>> {
        let published = self.readable_with(guard, page)?;
        let start = page << self.page_shift;
        // SAFETY: as in `bytes`: the page has a role, so that it is mapped, the bytes are below the
        // watermark that it had after the guard was pinned, and the page is neither claimed again
        // nor cut before the guard is dropped. The mapping outlives `'g` because `self` does.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.mapping.at(start), published as usize) };
        Some(PageBytes { space: self, start, bytes })
    }
}
