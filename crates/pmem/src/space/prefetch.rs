//! Prefetching of lines.

use super::Space;

impl Space {
    /// Prefetches the line at `offset`. Any offset is allowed.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        if offset < self.len() {
            self.mapping.prefetch(offset);
        }
    }

    /// As [`Space::prefetch`], for a store.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64) {
        if offset < self.len() {
            self.mapping.prefetch_to_write(offset);
        }
    }

    /// Prefetches the role of a page: with many pages, roles are as unlikely to be cached as the
    /// pages' contents.
    #[inline]
    pub fn prefetch_page(&self, page: u32) {
        self.roles.prefetch(page);
    }
}
