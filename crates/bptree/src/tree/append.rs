//! Appends to the page of a leaf whose lock the caller holds.

use crate::tree::Tree;
use coreplane_engine::{Beside, Result};
use coreplane_pmem::{PageWriter, Pen, fence_mark, mutant};
use coreplane_record::sync_failed;

impl Tree {
    /// Lets `write` append to the page of a locked leaf, and flush it: published when it returns, and durable where
    /// a fence is an instruction. Where it is a sync, [`Volume::cover`](crate::volume::Volume::cover) tells the
    /// sync that makes it durable. Returns the place of the record, in a register: loading bytes that were stored
    /// in other pieces would wait until all of them have reached the medium.
    ///
    /// # Errors
    /// If the medium fails: no reader is led to the record then.
    #[inline(always)]
    pub(crate) fn append_to(
        &self,
        page: u32,
        write: impl FnOnce(&mut PageWriter) -> Option<u32>,
    ) -> Result<u32> {
        let mut pen = self.pen();
        let mut writer = self.writer_of(&mut pen, page)?;
        let start = writer.next_offset();
        let written = write(&mut writer).ok_or_else(|| self.not_a_leaf(page));
        let is_fenced = self.early.is_none() && !mutant!("bptree.put.fence");
        let fenced = if is_fenced { self.fence() } else { Ok(()) };
        let is_made = written.is_ok() && fenced.is_ok();
        *pen = Some(if is_made && self.early.is_none() {
            writer.finish()
        } else {
            if is_made {
                writer.publish_early();
            } else {
                self.take_back(&mut writer, start);
            }
            writer.lay_down()
        });
        fenced.and(written)
    }

    /// As [`Tree::append_to`], where a fence is an instruction, and beside the same put on another engine. None if
    /// no record was made.
    ///
    /// # Errors
    /// As [`Tree::append_to`].
    pub(crate) fn append_beside(
        &self,
        page: u32,
        write: &mut dyn FnMut(&mut PageWriter) -> Option<u32>,
        beside: Beside<'_>,
    ) -> Result<Option<u32>> {
        let mut pen = self.pen();
        let mut writer = self.writer_of(&mut pen, page)?;
        let start = writer.next_offset();
        let mut written = None;
        let goes_on = beside(&mut || {
            written = write(&mut writer).map(|written| (written, fence_mark()));
            written.is_some()
        });
        let fenced = match &written {
            Some((_, mark)) if goes_on => self.space.fence_since(*mark).map_err(sync_failed),
            _ => Ok(()),
        };
        let made = written.filter(|_| goes_on && fenced.is_ok());
        *pen = Some(if made.is_some() {
            writer.finish()
        } else {
            // Later bytes at this place must reach the medium after these.
            if writer.next_offset() != start && self.fence().is_ok() {
                self.take_back(&mut writer, start);
            }
            writer.lay_down()
        });
        fenced.map(|()| made.map(|(written, _)| written))
    }

    fn writer_of(&self, pen: &mut Option<Pen>, page: u32) -> Result<PageWriter> {
        let taken = pen.take().unwrap_or_else(|| Pen::new(&self.space));
        taken.take_up(page).map_err(|_| self.not_a_leaf(page))
    }

    /// Publishes nothing of the bytes appended from `start` on, as if they had not been appended.
    #[cold]
    pub(crate) fn take_back(&self, writer: &mut PageWriter, start: u64) {
        let birth = self.leaves.get(writer.page() as usize).birth();
        // On a failed medium nothing more is written.
        let _taken_back =
            writer.rewind(start) && self.fill_rest(writer, birth).is_ok() && self.fence().is_ok();
    }
}
