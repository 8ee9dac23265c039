//! `STORE`, which Redis does not have: administration of the store that is served.

use super::{Answer, Call, Failure};
use crate::administration::StoreRequest;
use coreplane_engine::{Entry, Error, UnixMillis};

/// Bytes of the records in one answer, unless a single record is longer.
const BYTES_MAX: usize = 4 << 20;

/// `STORE INFO`, `STORE STATS`, `STORE STATUS`, `STORE VERIFY`, `STORE GROW bytes`,
/// `STORE RECORDS cursor [COUNT count]`: JSON of its state, or that the work has begun, and its number; records and
/// the cursor to go on with.
pub(super) fn store(call: &mut Call<'_, '_>) -> Answer {
    let request = StoreRequest::parse(&call.texts()?).map_err(|refused| refused.to_string())?;
    if let StoreRequest::Records { cursor, count } = request {
        return records(call, cursor, count);
    }
    let Some(store) = &call.host.config.store else {
        return Err("NOSTORE the server does not look after the store".into());
    };
    let told = store.run_on_store(request).map_err(|refused| refused.to_string())?;
    // The command is run again in a later turn, once the records are counted.
    let text = told.ok_or(Failure::Engine(Error::Busy))?;
    call.reply.bulk(text.as_bytes());
    Ok(())
}

/// Some records.
#[derive(Default)]
struct Page {
    records: Vec<(Vec<u8>, Vec<u8>, Option<UnixMillis>)>,
    bytes: usize,
}

impl Page {
    /// Takes a record, unless the page gets too long; with `is_last` it always takes it.
    fn see(&mut self, entry: &Entry<'_>, is_last: bool) {
        let Some(record) = &entry.record else { return };
        self.bytes = self.bytes.saturating_add(entry.key.len() + record.value.len());
        if self.bytes <= BYTES_MAX || is_last {
            let value = record.value.to_vec();
            self.records.push((entry.key.to_vec(), value, record.expires_at));
        }
    }
}

/// The next cursor, and records: key, value, and the Unix time in milliseconds at which it expires, or -1.
fn records(call: &mut Call<'_, '_>, cursor: u64, count: usize) -> Answer {
    call.slice.charge();
    let mut count = count;
    let (next, page) = loop {
        let mut page = Page::default();
        let is_last = count <= 1;
        let next = call.store.iterate(cursor, count, &mut |entry| page.see(&entry, is_last))?;
        if page.bytes <= BYTES_MAX || is_last {
            break (next, page);
        }
        count /= 2;
    };
    // A key that is not among them may have been deleted by a write that is not durable yet.
    call.store.rest_on_all();
    call.reply.array(2);
    call.reply.bulk(itoa::Buffer::new().format(next).as_bytes());
    call.reply.array(page.records.len() * 3);
    for (key, value, expires_at) in &page.records {
        call.reply.bulk(key);
        call.reply.bulk(value);
        let at = expires_at.map_or(-1, |at| i64::try_from(at.0).unwrap_or(i64::MAX));
        call.reply.int(at);
    }
    Ok(())
}
