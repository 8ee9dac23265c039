//! Pages apart from the stream, for records that were moved.
//!
//! A record that is still live when its page is cleaned has outlived everything else in that page: most of the
//! records of a tree are nodes, which the next writes replace. At the end of the stream it would be among such nodes
//! again, and would be moved again whenever its page is cleaned; and each move rewrites the path to the record, which
//! is several times as long as most records. So it is moved to a page with other records of its kind.
//!
//! Such a page is not in the order of the stream: no commit checks whether it is complete. So its records are made
//! durable before a commit that leads to them is written ([`Stream::fence_cold`]): one more fence for a commit,
//! shared by some pages of moves. The records may be read earlier, because the originals are durable and stay in
//! place until then.

use crate::volume::stream::Stream;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{PageWriter, mutant};
use coreplane_record::{Header, sync_failed};

/// The records that were moved to such pages, as far as they are not durable.
#[derive(Default)]
pub(super) struct Cold {
    open: Option<(PageWriter, u64)>,
    /// Pages that are full and not durable.
    full: Vec<PageWriter>,
    /// Bytes that were stored and not flushed: offset and length.
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

    /// Appends a record that was moved and whose original is durable; returns its new offset. It is visible at once,
    /// and durable after [`Stream::fence_cold`].
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

    /// Makes moved records durable, with a fence if there are any. Called before a commit that leads to them is
    /// written.
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

    /// Ends the open page, whose records are durable.
    pub(super) fn close_cold(&mut self) {
        if let Some((writer, _)) = self.cold.open.take() {
            let page = writer.page();
            let _pen = writer.finish();
            self.pages.close(page);
        }
    }
}
