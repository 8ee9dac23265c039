//! Pages apart from the stream, for records that were moved.
//!
//! A record that is there when its page is cleaned has outlived all else in it: most of what a tree writes are nodes,
//! which the next writes replace. Moved to the end of the stream it would be among such nodes again, and moved again
//! with each page that comes round; and each move writes the way to the record, which is several times as long as most
//! records. So it goes to a page with others of its kind.
//!
//! Such a page is not in the order of the stream: no commit looks whether it is whole. So what is in it is durable
//! before a commit is written that leads to it ([`Stream::fence_cold`]): one fence more for a commit that shares it with
//! some pages of moves. It may be read before, for what is moved is durable where it was, and stays there until then.

use crate::volume::stream::Stream;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, mutant};
use coreplane_record::{Header, sync_failed};

/// What is written to such pages.
#[derive(Default)]
pub(super) struct Cold {
    open: Option<(PageWriter, u64)>,
    /// Pages that are full, and not durable.
    full: Vec<PageWriter>,
    /// What was stored and not flushed: offset and length.
    dirty: Vec<(u64, u64)>,
    /// Pages whose words in the table were not flushed.
    begun: Vec<u32>,
}

impl Stream {
    /// Free pages that a move of so many bytes takes.
    pub(crate) fn pages_for_cold(&self, len: usize) -> u32 {
        let room = self.cold.open.as_ref().map_or(0, |(writer, _)| writer.remaining() as usize);
        u32::from(room < len)
    }

    /// Appends a record that was moved, and is durable where it was; the offset where it is. Visible, but not durable
    /// before [`Stream::fence_cold`].
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no page is free; if the medium fails.
    pub(crate) fn append_cold(&mut self, header: Header, key: &[u8], value: &[u8]) -> Result<u64> {
        let len = header.record_len(key, value.len());
        if self.pages_for_cold(len) > 0 {
            self.cold.full.extend(self.cold.open.take().map(|(writer, _)| writer));
            let (writer, birth) = self.begin_cold()?;
            self.cold.begun.push(writer.page());
            self.cold.open = Some((writer, birth));
        }
        let no_space = Error::NoSpace { needed: len as u64, reclaimable: 0 };
        let Some((writer, birth)) = &mut self.cold.open else { return Err(no_space) };
        let offset = writer.next_offset();
        let encoded = header.encode(self.volume.seed_at(*birth, offset), key, &[value]);
        writer.append(&[encoded.bytes(), key, value]).ok_or(no_space)?;
        writer.publish_early();
        self.pages.add_live(writer.page(), len as u32);
        self.bytes_appended += len as u64;
        match self.cold.dirty.last_mut() {
            Some((from, held)) if *from + *held == offset => *held += len as u64,
            _ => self.cold.dirty.push((offset, len as u64)),
        }
        Ok(offset)
    }

    /// Makes what was moved durable, by a fence if there is anything. Before a commit that leads to it is written.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn fence_cold(&mut self) -> Result<()> {
        if self.cold.dirty.is_empty() {
            return Ok(());
        }
        for (offset, len) in self.cold.dirty.drain(..) {
            self.volume.space.flush(offset, len);
        }
        self.cold.begun.drain(..).for_each(|page| self.volume.table.flush_life(page));
        if !mutant!("mvcc.cold.fence") {
            self.volume.space.fence().map_err(sync_failed)?;
        }
        if let Some((writer, _)) = &mut self.cold.open {
            writer.publish();
        }
        for writer in self.cold.full.drain(..) {
            let page = writer.page();
            let _pen = writer.finish();
            self.pages.close(page);
        }
        Ok(())
    }

    /// Ends the open page; what was moved is durable.
    pub(super) fn close_cold(&mut self) {
        if let Some((writer, _)) = self.cold.open.take() {
            let page = writer.page();
            let _pen = writer.finish();
            self.pages.close(page);
        }
    }
}
