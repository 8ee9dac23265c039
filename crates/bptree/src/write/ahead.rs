//! A put that does not depend on the old record: the new record is appended before the look at the old one, so that
//! the medium and the look work side by side.

use crate::leaf::tag_of;
use crate::tree::image::{Item, Source};
use crate::write::Writer;
use crate::write::publication::Replaced;
use coreplane_engine::{Beside, Result, WriteOptions, Written};
use coreplane_pmem::{PageWriter, epoch, mutant};
use coreplane_record::{HEADER, Header};

impl Writer {
    /// Puts a value, regardless of the old record, if that needs no more than an append to its leaf. None if the
    /// value is large, or the key long; if the leaf has no room, or no place for another key; or if the leaf may have
    /// a record newer than the given sequence. For a recovery finds the appended record, and takes the last record as
    /// the newest. None also for a put beside another, where a fence is a sync.
    #[inline(always)]
    pub(super) fn put_ahead(
        &self,
        (key, value): (&[u8], &[u8]),
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Result<Option<Written>> {
        let is_elsewhere = value.len() > self.inline_max() || self.is_long(key);
        if is_elsewhere || beside.is_some() && self.early.is_some() {
            return Ok(None);
        }
        let guard = epoch::pin();
        let tag = tag_of(key);
        let locked = self.lock_to_append((key, tag), HEADER + key.len() + value.len())?;
        // No sequence in a leaf is above the versions that it has given out.
        let is_older = options.sequence.is_some_and(|given| given <= locked.held.given());
        if is_older && !mutant!("bptree.put.older_ahead") {
            return Ok(None);
        }
        let (expires_at, sequence) = (options.expires_at, options.sequence);
        let follows = self.is_proven(locked.page);
        let mut header = Header { expires_at, sequence, follows, ..Header::put(0) };
        let has_room = header.record_len(key, value.len()) <= self.room(&locked);
        let Some(vacancy) = locked.leaf.vacancy().filter(|_| has_room) else { return Ok(None) };
        header.version = self.draw_version(&locked, header.sequence)?;
        let (page, leaf, birth) = (locked.page, locked.leaf, locked.held.birth());
        let (mut place, mut replaced, mut large) = (vacancy, Replaced::default(), None);
        let mut damage = None;
        let record = |writer: &mut PageWriter| {
            let appended = self.write_record(writer, birth, &header, key, value)?;
            let standing = match self.look_for(&guard, page, leaf, (key, tag, 1)) {
                Ok(standing) => standing,
                Err(error) => {
                    // If damage is found, nothing is published.
                    damage = Some(error);
                    return None;
                }
            };
            replaced = self.replaced(&standing);
            place = standing.place.unwrap_or(vacancy);
            large = standing.old.filter(|old| old.header.large);
            Some(appended)
        };
        let appended = match beside {
            None => self.append_to(page, record).map(Some),
            Some(beside) => self.append_beside(page, &mut { record }, beside),
        };
        let Some(appended) = damage.map_or(appended, Err)? else { return Ok(None) };
        let item = Item { header, key, value, source: Source::Caller };
        let written = self.publish(locked, &item, options, replaced, (place, tag, appended));
        if let Some(old) = large {
            self.retire_overflow_after(&guard, &old);
        }
        Ok(Some(written))
    }
}
