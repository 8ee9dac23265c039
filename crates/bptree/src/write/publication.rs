//! The record of a write: its version, its bytes in the page, and its publication to readers.

use crate::tree::image::{Counted, Item, live_len};
use crate::tree::lock::Locked;
use crate::tree::look::Standing;
use crate::volume::root::STEP;
use crate::write::Writer;
use coreplane_engine::{Result, WriteOptions, Written};
use coreplane_pmem::{PageWriter, WriteMode, mutant};
use coreplane_record::Header;
use std::sync::atomic::Ordering;

/// The state that a record replaces. Not the old record itself, which is a view: a copy of a struct right after it
/// is made waits for all earlier stores, which include the appended record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Replaced {
    pub(super) is_live: bool,
    /// Bytes of the page.
    len: u32,
    counted: Counted,
}

impl Writer {
    /// The part of the old state that matters to its replacement.
    #[inline(always)]
    pub(super) fn replaced(&self, standing: &Standing<'_>) -> Replaced {
        let Some(old) = &standing.old else { return Replaced::default() };
        Replaced { is_live: standing.live, len: live_len(old), counted: self.counted(old) }
    }

    /// Writes a record behind the others of a page, and flushes it; returns its offset in the page.
    pub(super) fn write_record(
        &self,
        writer: &mut PageWriter,
        birth: u64,
        header: &Header,
        key: &[u8],
        value: &[u8],
    ) -> Option<u32> {
        let offset = writer.next_offset();
        let encoded = self.encode(birth, offset, header, key, value);
        let parts = [encoded.bytes(), key, value];
        if self.space.append_mode() == WriteMode::NonTemporal {
            writer.append_nt(&parts)?;
        } else {
            writer.append_in_words(&parts)?;
            if !mutant!("bptree.put.flush") {
                writer.flush_from(offset);
            }
        }
        Some((offset - self.space.start_of(writer.page())) as u32)
    }

    /// Lets readers find a record that was appended.
    #[inline(always)]
    pub(super) fn publish(
        &self,
        mut locked: Locked<'_>,
        item: &Item<'_>,
        options: &WriteOptions,
        replaced: Replaced,
        (place, tag, offset): (usize, u8, u32),
    ) -> Written {
        let generation = self.cover();
        // Under the lock: a thread that has shut all leaves finds the counters exact.
        self.count_write(item, replaced.counted);
        locked.held.begin();
        self.note(locked.page, offset, generation, self.level(options));
        locked.held.set(place, (tag, offset, item.live_len()), replaced.len);
        self.count_replaced(locked.leaf, replaced.len, item.live_len());
        if item.header.large {
            locked.held.note_large();
        }
        if self.is_long(item.key) {
            locked.held.note_long();
        }
        drop(locked);
        let sequence = item.header.sequence.unwrap_or(item.header.version);
        let ticket = self.written_ticket(generation, item.len(), options);
        Written { sequence, ticket, replaced: replaced.is_live }
    }

    /// The version of a write: above all that its leaf has given out, and at least the given sequence. Without a
    /// given sequence it is above the base.
    pub(super) fn draw_version(&self, locked: &Locked<'_>, sequence: Option<u64>) -> Result<u64> {
        let base = self.version_base.load(Ordering::Acquire);
        let version = locked.held.give(sequence.map_or(base, |given| given.saturating_sub(1)));
        if version >= base + STEP / 2 {
            self.raise_version_base(version)?;
        }
        Ok(version)
    }
}
