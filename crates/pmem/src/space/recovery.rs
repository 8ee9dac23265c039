//! Only a recovery may reduce the readable part of a page, so that the rest is overwritten.
//!
//! Published bytes never change while a slice of them can exist. A recovery needs an exception. It
//! reads pages that a crash has left open to their end, finds where their records end, and lets
//! later appends overwrite the rest. A [`Recovery`] is the right to do so:
//!
//! - a space returns it only once ([`Space::recovery`]);
//! - the pages that it adopts ([`Recovery::adopt`]) can be read only with guards that it has pinned
//!   ([`Recovery::pin`]), until it is dropped: that puts its pages into service;
//! - those guards borrow it, and slices borrow the guards; a cut ([`Recovery::cut`]) borrows it
//!   mutably, so that the compiler ensures that no slice exists.
//!
//! ```text
//!   FREE ──adopt──▶ recovered, cut as often as need be ──drop of the Recovery──▶ log page
//! ```
//!
//! While a slice exists nothing can be cut:
//!
//! ```compile_fail,E0502
//! # use coreplane_pmem::{Space, SpaceOptions};
//! # use std::sync::Arc;
//! # let options = SpaceOptions { page_size: 4096, reserve: 4096, own_epochs: false };
//! # let space = Arc::new(Space::dram(4096, &options).unwrap());
//! let mut recovery = space.recovery().unwrap();
//! assert!(recovery.adopt(0, 4096));
//! let guard = recovery.pin();
//! let bytes = space.bytes(&guard, 0, 8).unwrap();
//! recovery.cut(0, 0);
//! assert_eq!(bytes, [0; 8]);
//! ```
//!
//! Without a slice it can:
//!
//! ```
//! # use coreplane_pmem::{Pen, Space, SpaceOptions};
//! # use std::sync::Arc;
//! # let options = SpaceOptions { page_size: 4096, reserve: 4096, own_epochs: false };
//! # let space = Arc::new(Space::dram(4096, &options).unwrap());
//! let mut recovery = space.recovery().unwrap();
//! assert!(recovery.adopt(0, 4096));
//! let guard = recovery.pin();
//! assert_eq!(space.bytes(&guard, 0, 8).unwrap(), [0; 8]);
//! drop(guard);
//! assert!(recovery.cut(0, 0));
//! let mut writer = Pen::new(&space).take_up(0).unwrap();
//! assert_eq!(writer.append(&[b"8 bytes."]), Some(0));
//! ```

use super::{Space, SpaceGuard};
use crate::epoch::Guard;
use crate::mutant;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The phase of a space: before, during or after its recovery.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

const BEFORE: u8 = 0;
const RUNNING: u8 = 1;
const OVER: u8 = 2;

/// The right to cut log pages of a space that is not in service yet. A space returns it only once:
/// see the module.
#[derive(Debug)]
pub struct Recovery {
    space: Arc<Space>,
}

/// A guard with which the pages of a recovery, and all others, can be read.
#[derive(Debug)]
pub struct RecoveryGuard<'r> {
    guard: SpaceGuard<'r>,
    /// The recovery that pinned it cannot cut while the guard lives.
    _recovery: &'r Recovery,
}

impl Deref for RecoveryGuard<'_> {
    type Target = Guard;

    #[inline]
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Space {
    /// The right to recover the pages; none if it was returned before.
    pub fn recovery(self: &Arc<Self>) -> Option<Recovery> {
        let phase = &self.recovery.0;
        let is_first = phase.compare_exchange(BEFORE, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        is_first.is_ok().then(|| Recovery { space: Arc::clone(self) })
    }

    /// How much may be read with this guard of a page that a recovery has adopted, or of any page in a
    /// space with its own epochs.
    #[cold]
    pub(super) fn recovered_bytes(&self, page: u32, guard: &Guard) -> Option<u32> {
        if let Some(own) = &self.own {
            return self.own_bytes(own, page, guard);
        }
        if self.recovery.0.load(Ordering::Acquire) == OVER {
            // The role is loaded again after this check: the page may have been cut since the first load.
            return self.roles.put_into_service(page);
        }
        // No cut can happen here: the guard borrows the recovery.
        let may_read = guard.is_for(self.recovers()) || mutant!("pmem.recovery.guard");
        may_read.then(|| self.roles.published(page))?
    }
}

impl Recovery {
    /// Pins the current epoch, as [`Space::pin`] does.
    pub fn pin(&self) -> RecoveryGuard<'_> {
        RecoveryGuard { guard: self.space.pin_for(self.space.recovers()), _recovery: self }
    }

    /// Adopts a free page as a log page without a writer; its first `published` bytes can be read by this recovery,
    /// and by all readers once it is over. False if the page is not free or not that long.
    pub fn adopt(&self, page: u32, published: u32) -> bool {
        let space = &self.space;
        if page >= space.pages() || published > space.page_size() || !space.roles.claim(page) {
            return false;
        }
        if let Some(own) = &space.own {
            own.adopt(page, published);
        }
        space.roles.become_recovered(page, published);
        true
    }

    /// Limits the readable part of a page to its first `published` bytes from now on: the bytes
    /// behind belong to no record. False if this recovery has not adopted the page, if it has a
    /// writer, or if more was published since.
    pub fn cut(&mut self, page: u32, published: u32) -> bool {
        let roles = &self.space.roles;
        match &self.space.own {
            None => roles.lower(page, published),
            Some(own) => own.cut(roles, page, published),
        }
    }

    /// Frees a page at once, which is possible since nobody has a slice of it. False as for [`Recovery::cut`].
    pub fn free(&mut self, page: u32) -> bool {
        let is_free = self.cut(page, 0) && self.space.roles.free_cut(page);
        if is_free && let Some(own) = &self.space.own {
            own.forget(page);
        }
        is_free
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        if let Some(own) = &self.space.own {
            own.put_into_service();
        }
        // After all cuts: a thread that sees this sees them.
        self.space.recovery.0.store(OVER, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pen, Space, SpaceOptions};
    use std::sync::Arc;

    const PAGE: u32 = 4096;

    fn space(own_epochs: bool) -> Arc<Space> {
        let options = SpaceOptions { page_size: PAGE, reserve: 1 << 20, own_epochs };
        Arc::new(Space::dram(16 * u64::from(PAGE), &options).unwrap())
    }

    /// A usual space, and one with its own epochs.
    fn spaces() -> [Arc<Space>; 2] {
        [false, true].map(space)
    }

    #[test]
    fn a_page_under_recovery_is_read_by_its_guards_alone_and_then_by_all() {
        for (space, other) in spaces().into_iter().zip(spaces()) {
            let recovery = space.recovery().unwrap();
            assert!(space.recovery().is_none(), "it is running");
            assert!(recovery.adopt(3, 64) && !recovery.adopt(3, 64) && !recovery.adopt(16, 64));
            assert!(!recovery.adopt(4, PAGE + 1));
            let at = space.start_of(3);
            let (usual, others) = (space.pin(), other.recovery().unwrap());
            for foreign in [&*usual, &*others.pin()] {
                assert!(space.bytes(foreign, at, 64).is_none());
                assert!(space.page_bytes(foreign, 3).is_none());
            }
            let own = recovery.pin();
            assert!(space.bytes(&own, at, 64).is_some() && space.bytes(&own, at, 65).is_none());
            assert_eq!(space.page_bytes(&own, 3).unwrap().published(), 64);
            assert!(space.adopt_log(5, 8) && space.bytes(&own, space.start_of(5), 8).is_some());
            drop(own);
            drop(recovery);
            assert!(space.recovery().is_none(), "once");
            assert!(space.bytes(&usual, at, 64).is_some());
            assert_eq!(space.page_bytes(&usual, 3).unwrap().published(), 64);
        }
    }

    #[test]
    fn what_others_may_have_slices_of_is_not_cut() {
        for space in spaces() {
            let mut recovery = space.recovery().unwrap();
            assert!(space.adopt_log(1, 64) && !recovery.cut(1, 0), "of nobody's recovery");
            assert!(recovery.adopt(2, 64) && recovery.cut(2, 8) && recovery.cut(2, 32));
            assert_eq!(space.watermarks(2), Some((8, 8)), "it never rises by a cut");
            let mut writer = Pen::new(&space).take_up(2).unwrap();
            assert!(!recovery.cut(2, 0), "it has a writer");
            writer.append(&[&[1; 8]]).unwrap();
            drop(writer);
            assert!(recovery.cut(2, 0), "nothing was published");
            let mut writer = Pen::new(&space).take_up(2).unwrap();
            writer.append(&[&[2; 8]]).unwrap();
            writer.publish();
            let guard = space.pin();
            let bytes = space.bytes(&guard, space.start_of(2), 8).unwrap();
            drop(writer);
            assert!(!recovery.cut(2, 0), "it is read by all");
            assert_eq!(bytes, [2; 8]);
            space.mark_durable(2, 8);
            assert!(!recovery.cut(7, 0), "it is free");
        }
    }

    #[test]
    fn a_recovery_frees_what_nobody_has_slices_of() {
        for space in spaces() {
            let mut recovery = space.recovery().unwrap();
            let reader = space.pin();
            assert!(space.adopt_log(1, 64) && !recovery.free(1), "of nobody's recovery");
            assert!(recovery.adopt(2, 64) && recovery.adopt(3, 64));
            let mut writer = Pen::new(&space).take_up(2).unwrap();
            assert!(!recovery.free(2), "it has a writer");
            writer.append(&[&[1; 8]]);
            writer.publish();
            drop(writer);
            assert!(recovery.free(3) && !recovery.free(3), "it is free");
            assert!(space.adopt_log(3, 8) && !recovery.free(3), "of another use");
            drop(reader);
        }
    }

    #[test]
    fn a_recovered_page_is_marked_durable_retired_and_claimed_again_like_any() {
        for space in spaces() {
            let mut recovery = space.recovery().unwrap();
            assert!(recovery.adopt(2, 64));
            space.mark_durable(2, u32::MAX);
            assert_eq!(space.watermarks(2), Some((64, PAGE)));
            assert!(recovery.cut(2, 16));
            assert_eq!(space.watermarks(2), Some((16, 16)));
            assert!(
                space.bytes(&space.pin(), space.start_of(2), 8).is_none(),
                "it is still recovered"
            );
            assert!(space.retire(2) && !recovery.cut(2, 0));
            let mut backoff = crate::spin::Backoff::new();
            while space.reclaim().is_none() {
                backoff.wait();
            }
            Pen::new(&space).begin(2).unwrap().abandon();
            assert!(space.claim_log(2).is_some());
        }
    }
}
