//! Making a batch visible, and counting it.
//!
//! While readers wait there is one store for each slot. All else, the counters and the dead
//! records, follows behind the gate: the groups are locked until it is done.

use super::members::{AHEAD, Member};
use crate::table::counters::Count;
use crate::table::index::GroupLock;
use crate::write::Writer;
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use std::sync::atomic::{Ordering, fence};

impl Writer {
    /// Lets the slots of all members point at their records, which are durable. The caller keeps
    /// readers out.
    ///
    /// # Errors
    /// If the index is damaged.
    pub(super) fn publish_slots(
        &self,
        held: &[GroupLock<'_>],
        members: &[Member<'_>],
    ) -> Result<()> {
        for (number, member) in members.iter().enumerate() {
            if let Some(next) = members.get(number + AHEAD) {
                self.index.prefetch_to_write(next.place);
            }
            if !member.is_idle {
                let lock = lock_of(held, member)?;
                let slot = lock.slot_of(member.place, member.offset, &member.header);
                lock.publish_staged(member.at, slot)?;
            }
        }
        // As `GroupLock::publish`, once for all: this thread's later loads come after these stores.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Counts the records that were published, and those that they replaced.
    pub(super) fn account_all(
        &self,
        guard: &Guard,
        held: &[GroupLock<'_>],
        members: &mut [Member<'_>],
    ) {
        let (mut deletes, mut puts, mut user_bytes) = (0, 0, 0);
        for member in members.iter_mut().filter(|member| !member.is_idle) {
            let Ok(lock) = lock_of(held, member) else { continue };
            let is_delete = member.is_delete();
            self.expiries.note(member.header.expires_at);
            self.leave_to_census(lock, member.offset, member.len);
            if let Some(overflow) = member.overflow.take() {
                overflow.own(lock, member.len);
            }
            if is_delete {
                self.count_tombstone(lock, member.len);
            }
            deletes += i64::from(is_delete);
            puts += i64::from(!is_delete);
            user_bytes += member.user_len() as i64;
            if lock.is_counted() {
                self.drop_replaced(guard, lock, member);
            }
        }
        self.counters.add(Count::Deletes, deletes);
        self.counters.add(Count::Puts, puts);
        self.counters.add(Count::UserBytes, user_bytes);
    }

    /// The number of records that a batch adds to the counted ones; it may be negative.
    pub(super) fn records_of(held: &[GroupLock<'_>], members: &[Member<'_>]) -> i64 {
        let added = |member: &Member<'_>| {
            let was_there = member.slot.is_used() && !member.slot.is_tombstone();
            i64::from(!member.is_delete()) - i64::from(was_there)
        };
        let is_counted =
            |it: &&Member<'_>| lock_of(held, it).is_ok_and(|lock| lock.has_counted_records());
        members.iter().filter(|it| !it.is_idle).filter(is_counted).map(added).sum()
    }

    /// Counts the record that a member has replaced as dead.
    fn drop_replaced(&self, guard: &Guard, lock: &GroupLock<'_>, member: &Member<'_>) {
        let Some(old) = member.old else { return };
        if old.is_large
            && let Ok(view) = self.record(guard, member.slot)
        {
            // With the overflow records that it names.
            return self.drop_live(lock, &view);
        }
        self.add_live(member.slot.offset(), -i64::from(old.len));
        if old.is_tombstone {
            self.counters.add(Count::TombstoneBytes, -i64::from(old.len));
        }
    }
}

fn lock_of<'h, 'a>(held: &'h [GroupLock<'a>], member: &Member<'_>) -> Result<&'h GroupLock<'a>> {
    held.get(member.lock as usize)
        .ok_or_else(|| Error::Corrupt { offset: member.at, what: "a batch lost a lock".to_owned() })
}
