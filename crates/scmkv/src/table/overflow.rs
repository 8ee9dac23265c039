//! Overflow records that were written, and the records that own them.
//!
//! [`overflow`](crate::write::overflow) writes large values.

use crate::table::Table;
use crate::table::index::GroupLock;
use crate::table::log::Appended;
use coreplane_record::View;

/// The offsets of the overflow records of a large value, in order.
pub(crate) fn overflow_offsets<'a>(view: &View<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let view = *view;
    (1..).map_while(move |n| view.value_word(n))
}

/// Overflow records that were written and have no owner yet.
pub(crate) struct Overflow<'s> {
    store: &'s Table,
    /// The value of their owner, which names them.
    list: Vec<u8>,
    records: Vec<Appended>,
}

impl<'s> Overflow<'s> {
    pub(crate) fn of(store: &'s Table, value_len: usize) -> Self {
        Self { store, list: (value_len as u64).to_le_bytes().to_vec(), records: Vec::new() }
    }

    pub(crate) fn add(&mut self, record: Appended) {
        self.cell(record).pin();
        self.list.extend_from_slice(&record.offset.to_le_bytes());
        self.records.push(record);
    }

    fn cell(&self, record: Appended) -> &'s crate::table::page::Cell {
        self.store.pages.cell(self.store.space.page_of(record.offset))
    }

    /// The value of the owner, which names the overflow records.
    pub(crate) fn list(&self) -> &[u8] {
        &self.list
    }

    /// The owner, a record of `len` bytes, was published under the lock `held`.
    pub(crate) fn own(mut self, held: &GroupLock<'_>, len: u32) {
        if held.is_counted() {
            let records = std::mem::take(&mut self.records);
            self.store.charge(records.iter().map(|record| record.offset), i64::from(len));
            for record in records {
                self.cell(record).unpin();
            }
        }
        // In a group that is not counted yet the census will count them.
    }
}

impl Drop for Overflow<'_> {
    fn drop(&mut self) {
        for record in std::mem::take(&mut self.records) {
            self.store.add_live(record.offset, -i64::from(record.len));
            self.cell(record).unpin();
        }
    }
}
