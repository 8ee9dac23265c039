//! Asking for lines ahead of their use.

use super::Space;

impl Space {
    /// Asks for the line at `offset` ahead of its use. Any offset will do.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        if offset < self.len() {
            self.mapping.prefetch(offset);
        }
    }

    /// As [`Space::prefetch`], ahead of a store.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64) {
        if offset < self.len() {
            self.mapping.prefetch_to_write(offset);
        }
    }

    /// Asks for what is known of a page ahead of its use: where there are many pages, that is as
    /// far away as what is in them.
    #[inline]
    pub fn prefetch_page(&self, page: u32) {
        self.roles.prefetch(page);
    }
}
