//! The work that an open defers: all pages except those in which the commit that counts was searched for.
//!
//! ```text
//!   opened      the root is known; a page is adopted when a thread reads a record in it ([`Volume::adopt_late`])
//!   whole       all pages are adopted, free ones are known, a commit has begun the new life: writes go on
//! ```
//!
//! So the first answer takes the same time, however many pages there are. Nothing is written before the tree is
//! whole, so records that were read before stay as they were.

use super::Tree;
use super::count::Count;
use super::recover::Chosen;
use crate::map::Rest;
use crate::volume::pages::Pages;
use coreplane_engine::{Error, Result};

/// The input of the deferred work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    /// The commit that counts, if there was one.
    pub(super) chosen: Option<Chosen>,
}

impl Tree {
    /// Adopts all pages. Called while other threads read.
    pub(super) fn find_rest(&self, left: Left) -> Result<Rest> {
        let Left { chosen } = left;
        let volume = &*self.stream.volume;
        let mut pages = Pages::new(&volume.space);
        let (mut free, mut before, mut voids) = (Vec::new(), Vec::new(), Vec::new());
        let end = chosen.map_or(0, |it| it.end.birth);
        volume.table.lives(0..volume.table.len(), |page, life| {
            let Some(life) = life else {
                free.push(page);
                return 0;
            };
            // If not, a reader has adopted the page.
            let _is_first = volume.space.adopt_log(page, volume.space.page_size());
            pages.adopt_uncounted(page, life.birth, life.is_apart);
            let is_void = !life.is_apart && life.birth > end;
            if is_void {
                voids.push(page)
            } else {
                before.push(page)
            }
            0
        })?;
        pages.offer(free.into_iter());
        if let Some(Chosen { offset, len, .. }) = chosen {
            pages.add_live(volume.space.page_of(offset), len);
        }
        Ok(Rest { pages, before, voids })
    }

    /// Takes over the deferred work; durable when it returns.
    pub(super) fn take_left(&mut self, rest: Rest) -> Result<()> {
        let Some(left) = self.left else { return Ok(()) };
        let voids = self.adopt(left, rest);
        self.begin_life(left, &voids)?;
        self.left = None;
        Ok(())
    }

    /// Takes over all pages; returns those in which no record counts.
    pub(super) fn adopt(&mut self, left: Left, rest: Rest) -> Vec<u32> {
        let Rest { pages, before, voids } = rest;
        self.stream.pages = pages;
        self.stream.volume.adopted_all();
        let root = left.chosen.map(|it| it.commit.root).filter(|root| *root != 0);
        self.count = Some(Count::new(root, before));
        voids
    }

    /// Begins the new life with a commit; durable when it returns.
    pub(super) fn begin_life(&mut self, left: Left, voids: &[u32]) -> Result<()> {
        let Left { chosen } = left;
        voids.iter().for_each(|page| self.stream.pages.close(*page));
        if self.stream.pages.refresh_free() == 0 {
            self.stream.settle()?;
        }
        if !self.stream.await_free()
            && let Some(Chosen { commit, end, .. }) = chosen
        {
            // Until the new commit is written, an open has to find the one that counts again, as it was found now.
            self.count_all_but(&(commit.proven.birth..=end.birth));
            self.stream.settle()?;
            let _found = self.stream.await_free();
        }
        if chosen.is_some() || !voids.is_empty() {
            (self.is_due, self.is_unborn) = (true, chosen.is_some());
            match self.seal_all() {
                // The tree can be read, and the next commit names the same root.
                Ok(()) | Err(Error::NoSpace { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.stream.settle()
    }
}
