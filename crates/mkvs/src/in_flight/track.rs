//! How far a device's processor is with its ring, so that other threads see whether it has made a write that they
//! put there.

use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of a processor. Places are lines of its ring, counted from the first ever written.
#[derive(Debug)]
pub(crate) struct Track {
    /// It has dealt with all writes that end at this place or before it.
    past: CachePadded<AtomicU64>,
    /// The first write that it has not made ends here; it reports each later write.
    stopped_at: CachePadded<AtomicU64>,
    /// Its progress at the last look: `past` changes all the time, and each look takes the cache line from it.
    seen: CachePadded<AtomicU64>,
}

impl Track {
    pub(crate) fn new() -> Self {
        let place = |at| CachePadded::new(AtomicU64::new(at));
        Self { past: place(0), stopped_at: place(u64::MAX), seen: place(0) }
    }

    /// The place up to which it has dealt with all writes.
    #[inline]
    pub(crate) fn past(&self) -> u64 {
        self.past.load(Ordering::Acquire)
    }

    /// Stores that place; for the processor alone.
    #[inline]
    pub(crate) fn come_to(&self, place: u64) {
        self.past.store(place, Ordering::Release);
    }

    /// The write that ends here was not made; to be called before [`Self::come_to`].
    #[cold]
    pub(crate) fn stop(&self, place: u64) {
        self.stopped_at.fetch_min(place, Ordering::AcqRel);
    }

    /// True if the processor has failed to make a write: from then on it reports each write that it has made.
    #[inline]
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped_at.load(Ordering::Acquire) != u64::MAX
    }

    #[inline]
    fn has_made(&self, place: u64) -> bool {
        self.is_past(place) && place < self.stopped_at.load(Ordering::Acquire)
    }

    #[inline]
    fn is_past(&self, place: u64) -> bool {
        if self.seen.load(Ordering::Acquire) >= place {
            return true;
        }
        let past = self.past();
        // Of two threads that look at once the later may store less; the next look corrects that.
        self.seen.store(past, Ordering::Release);
        past >= place
    }
}

/// The place that a write is going to have in a device's ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) track: &'a Arc<Track>,
    /// Where it ends.
    pub(crate) place: u64,
    /// The number of the device.
    pub(crate) number: u8,
}

/// A write in a device's ring.
#[derive(Debug)]
pub(crate) struct OnTheWay {
    track: Arc<Track>,
    place: u64,
    number: u8,
}

impl OnTheWay {
    /// A write on this way, in the place of one that has come: counting a reference to a track takes a locked
    /// instruction, and dropping one takes another.
    #[inline]
    pub(crate) fn instead_of(come: Option<Self>, way: Way<'_>) -> Self {
        match come.filter(|come| come.is_on(&way)) {
            Some(mut come) => {
                come.turn_to(&way);
                come
            }
            None => Self::from(way),
        }
    }

    /// True if it leads to the same device's ring.
    #[inline]
    pub(crate) fn is_on(&self, way: &Way<'_>) -> bool {
        Arc::ptr_eq(&self.track, way.track)
    }

    /// Becomes another write on the way to the same device.
    #[inline]
    pub(crate) fn turn_to(&mut self, way: &Way<'_>) {
        (self.place, self.number) = (way.place, way.number);
    }

    /// The number of the device.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// True if the device has made it.
    #[inline]
    pub(crate) fn has_come(&self) -> bool {
        self.track.has_made(self.place)
    }
}

impl From<Way<'_>> for OnTheWay {
    fn from(Way { track, place, number }: Way<'_>) -> Self {
        Self { track: Arc::clone(track), place, number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_takes_the_place_of_one_of_the_same_track() {
        let [track, another] = [0, 1].map(|_| Arc::new(Track::new()));
        let counts = || [&track, &another].map(Arc::strong_count);
        let way = |track, place, number| Way { track, place, number };
        let first = OnTheWay::from(way(&track, 2, 1));
        let second = OnTheWay::instead_of(Some(first), way(&track, 4, 1));
        assert_eq!(counts(), [2, 1]);
        track.come_to(2);
        assert!(!second.has_come());
        track.come_to(4);
        assert!(second.has_come());
        let third = OnTheWay::instead_of(Some(second), way(&another, 6, 2));
        assert_eq!((third.number(), third.has_come(), counts()), (2, false, [1, 2]));
        another.come_to(6);
        assert!(third.has_come());
    }

    #[test]
    fn what_was_not_made_has_not_come() {
        let track = Arc::new(Track::new());
        let ways = [2, 4, 6].map(|place| OnTheWay::from(Way { track: &track, place, number: 1 }));
        let come = || ways.each_ref().map(OnTheWay::has_come);
        assert_eq!(come(), [false; 3]);
        track.come_to(2);
        assert_eq!(come(), [true, false, false]);
        track.stop(4);
        track.come_to(6);
        assert_eq!((come(), track.has_stopped()), ([true, false, false], true));
    }
}
