//! Guards of one space, and the domain of epochs that a space may own.
//!
//! A usual space is read with any guard of the process-wide domain ([`epoch::pin`]), without a check. A
//! space with its own epochs ([`SpaceOptions::own_epochs`](super::SpaceOptions)) must not be read with
//! such a guard: its pages do not wait for it. So all its log pages have the same mark as those of a
//! recovery (`roles`), with which a read takes the slower path that checks the guard.
//!
//! Such a space returns guards of both domains: a guard of its own domain alone could also be used to
//! read a usual space, which does not check guards.

use super::Space;
use super::roles::Roles;
use crate::epoch::{self, Guard, Reader, Readers};
use crate::mutant;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;

/// A guard with which the log pages of a space can be read, and those of every space without its own epochs.
#[derive(Debug)]
pub struct SpaceGuard<'s> {
    guard: Guard,
    /// The pin in the domain of the space, if it has one.
    _reader: Option<Reader<'s>>,
}

impl Deref for SpaceGuard<'_> {
    type Target = Guard;

    #[inline]
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// The epochs of a space with its own domain.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) readers: Readers,
    /// The pages that a recovery has adopted, and up to where only its guards can read them. In a usual
    /// space the mark shows this, but here all log pages have the mark.
    adopted: Mutex<BTreeMap<u32, u32>>,
}

impl Own {
    /// Notes that a recovery adopts a page that it has claimed.
    pub(super) fn adopt(&self, page: u32, published: u32) {
        self.adopted.lock().insert(page, published);
    }

    /// Removes a page that is about to become another log page.
    pub(super) fn forget(&self, page: u32) {
        self.adopted.lock().remove(&page);
    }

    /// Ends the recovery.
    pub(super) fn put_into_service(&self) {
        self.adopted.lock().clear();
    }

    /// Cuts a page for the recovery that has adopted it and of which no guard lives. False if it has not adopted
    /// the page, if more was published since (which others may be reading), or if the page has a writer.
    pub(super) fn cut(&self, roles: &Roles, page: u32, published: u32) -> bool {
        let mut adopted = self.adopted.lock();
        let Some(until) = adopted.get_mut(&page) else {
            return false;
        };
        let is_read = roles.published(page).is_none_or(|now| now > *until);
        if is_read || !roles.lower(page, published) {
            return false;
        }
        *until = published.min(*until);
        true
    }
}

impl Space {
    /// Pins the current epoch for this thread: in the space's own domain, if it has one, and as [`epoch::pin`]
    /// does.
    pub fn pin(&self) -> SpaceGuard<'_> {
        self.pin_for(if self.own.is_some() { self.reads() } else { 0 })
    }

    /// Pins the current epoch for a purpose.
    pub(super) fn pin_for(&self, purpose: usize) -> SpaceGuard<'_> {
        let reader = self.own.as_ref().filter(|_| !mutant!("pmem.guard.reader"));
        let _reader = reader.map(|own| own.readers.pin());
        SpaceGuard { guard: epoch::pin_for(purpose), _reader }
    }

    /// The purpose of guards of a recovery. It distinguishes the space from all others while the space lives,
    /// and so as long as a guard lives: the space does not move meanwhile.
    pub(super) fn recovers(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The purpose of guards that read in the space's own domain. No space has this address.
    fn reads(&self) -> usize {
        self.recovers() + 1
    }

    /// How much may be read with this guard of a page of a space with its own epochs.
    pub(super) fn own_bytes(&self, own: &Own, page: u32, guard: &Guard) -> Option<u32> {
        let recovers = guard.is_for(self.recovers());
        let reads = guard.is_for(self.reads()) || mutant!("pmem.guard.any");
        if !recovers && !reads {
            return None;
        }
        // Under the lock: no cut can happen here, and a later cut is refused if more is published than the recovery
        // adopted.
        let adopted = own.adopted.lock();
        let published = self.roles.published(page)?;
        let is_in_service = adopted.get(&page).is_none_or(|until| published > *until);
        (recovers || is_in_service).then_some(published)
    }
}

#[cfg(test)]
mod tests {
    use crate::epoch::{self, Guard};
    use crate::spin::Backoff;
    use crate::{Space, SpaceOptions};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const PAGE: u32 = 1024;

    fn space(own_epochs: bool) -> Arc<Space> {
        let options = SpaceOptions { page_size: PAGE, reserve: 1 << 20, own_epochs };
        Arc::new(Space::dram(16 * u64::from(PAGE), &options).unwrap())
    }

    fn fill(space: &Arc<Space>, page: u32, byte: u8) {
        let mut writer = space.claim_log(page).unwrap();
        writer.append(&[&[byte; 64]]).unwrap();
        writer.publish();
    }

    fn reclaimed(space: &Space) -> Vec<u32> {
        let mut all = Vec::new();
        space.reclaim_all(|page| all.push(page));
        all
    }

    #[test]
    fn guards_elsewhere_keep_no_page_of_a_space_with_epochs_of_its_own() {
        let (own, other, usual) = (space(true), space(true), space(false));
        [&own, &other, &usual].into_iter().for_each(|space| fill(space, 2, 7));
        fill(&own, 3, 7);
        let recovery = other.recovery().unwrap();
        let guards = (epoch::pin(), other.pin(), usual.pin(), recovery.pin());
        // At once, and each time: there is no reader to wait for.
        assert!(own.retire(2) && own.retire(3));
        assert_eq!((own.reclaim(), reclaimed(&own)), (Some(2), vec![3]));
        assert!(other.retire(2) && usual.retire(2));
        assert_eq!((other.reclaim(), usual.reclaim()), (None, None));
        drop(guards);
        assert_eq!(other.reclaim(), Some(2));
    }

    #[test]
    fn a_space_with_epochs_of_its_own_is_read_by_its_own_guards_alone() {
        let (space, other, usual) = (space(true), space(true), space(false));
        let (recoveries, guards) = (
            [&other, &usual].map(|space| space.recovery().unwrap()),
            (epoch::pin(), other.pin(), usual.pin(), space.pin()),
        );
        let [of_recovery, of_usual_recovery] = recoveries.each_ref().map(|it| it.pin());
        let foreign: [&Guard; 5] =
            [&guards.0, &guards.1, &guards.2, &of_recovery, &of_usual_recovery];
        let own = &guards.3;
        let reads = |guard: &Guard, page| {
            let at = space.start_of(page);
            let found = [
                space.bytes(guard, at, 8).is_some(),
                space.page_bytes(guard, page).is_some(),
                space.page_at(guard, at + 8).is_some(),
            ];
            assert_eq!(found, [found[0]; 3]);
            found[0]
        };
        let check = |page, what| {
            assert!(!foreign.iter().any(|guard| reads(guard, page)), "{what}");
            assert!(reads(own, page), "{what}");
        };
        // After every kind of change of the page.
        let mut writer = space.claim_log(1).unwrap();
        let append = |writer: &mut crate::PageWriter| {
            assert!(writer.append(&[&[7; 64]]).is_some());
        };
        append(&mut writer);
        writer.publish();
        check(1, "published");
        append(&mut writer);
        writer.publish_early();
        check(1, "published early");
        space.mark_durable(1, 128);
        check(1, "marked durable");
        append(&mut writer);
        let pen = writer.finish_early();
        check(1, "finished early");
        let mut writer = pen.take_up(1).unwrap();
        check(1, "taken up");
        append(&mut writer);
        let pen = writer.finish();
        check(1, "finished");
        let mut writer = pen.begin(2).unwrap();
        append(&mut writer);
        writer.publish();
        drop(writer.lay_down());
        check(2, "laid down");
        assert!(space.adopt_log(3, 64));
        check(3, "adopted");
    }

    #[test]
    fn a_page_that_a_recovery_has_adopted_is_nothing_of_its_when_it_is_used_again() {
        let space = space(true);
        let mut recovery = space.recovery().unwrap();
        assert!(recovery.adopt(2, 64) && space.retire(2));
        assert_eq!(space.reclaim(), Some(2));
        fill(&space, 2, 7);
        let guard = space.pin();
        assert!(space.bytes(&guard, space.start_of(2), 64).is_some());
        assert!(!recovery.cut(2, 0), "others read it");
    }

    #[test]
    fn a_guard_of_its_own_keeps_pages_of_usual_spaces_too() {
        let (own, usual) = (space(true), space(false));
        fill(&usual, 2, 7);
        let guard = own.pin();
        let bytes = usual.bytes(&guard, usual.start_of(2), 64).unwrap();
        assert!(usual.retire(2));
        assert_eq!(usual.reclaim(), None);
        assert_eq!(bytes, [7; 64]);
        drop(guard);
        let mut backoff = Backoff::new();
        // Readers of other tests may have been suspended in the middle.
        while usual.reclaim().is_none() {
            backoff.wait();
        }
    }

    #[test]
    fn readers_beside_one_who_uses_pages_again_meet_whole_records() {
        let space = space(true);
        let is_over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (space, is_over) = (Arc::clone(&space), Arc::clone(&is_over));
                std::thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        for page in 0..4 {
                            let guard = space.pin();
                            let bytes = space.bytes(&guard, space.start_of(page), 64);
                            let Some(bytes) = bytes else { continue };
                            let first = bytes.to_vec();
                            std::thread::yield_now();
                            assert_eq!(first, [first[0]; 64]);
                            assert_eq!(std::hint::black_box(bytes), first);
                        }
                    }
                })
            })
            .collect();
        let mut free: Vec<u32> = (0..4).collect();
        for round in 0..4_000 {
            if let Some(page) = free.pop() {
                fill(&space, page, round as u8);
                std::thread::yield_now();
                assert!(space.retire(page));
            }
            space.reclaim_all(|page| free.push(page));
        }
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        space.reclaim_all(|page| free.push(page));
        assert_eq!(free.len(), 4, "a page waits for ever");
    }
}
