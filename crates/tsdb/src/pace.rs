//! Whether a reader has to end, checked every few thousand points.
//!
//! A reader of many points states their number before it reads them ([`Pace::spend`]). A series with fewer than
//! some thousands causes no check. Work that cannot be interrupted, such as reading a head with a million points of
//! one series, is not begun if there is no time for it.

use crate::error::Result;

/// Points between two checks.
const POINTS: usize = 4096;

/// Decides whether a reader has to end.
pub(crate) trait Ends: std::fmt::Debug + Sync {
    /// Checks whether the reader has to end now, or before `points` more are read, which are held together.
    ///
    /// # Errors
    /// [`Error::Ended`](crate::Error::Ended), [`Error::Limit`](crate::Error::Limit).
    fn look(&self, points: usize) -> Result<()>;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace<'e> {
    ends: Option<&'e dyn Ends>,
    left: usize,
}

impl<'e> Pace<'e> {
    /// Without `ends` the reader goes on to the end.
    pub(crate) fn new(ends: Option<&'e dyn Ends>) -> Self {
        Self { ends, left: POINTS }
    }

    /// Counts points that are read now, and checks if there were many.
    ///
    /// # Errors
    /// [`Error::Ended`](crate::Error::Ended).
    #[inline]
    pub(crate) fn spend(&mut self, points: usize) -> Result<()> {
        match self.left.checked_sub(points) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = POINTS;
                self.ends.map_or(Ok(()), |ends| ends.look(points))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Ends at the third check, or before more than a million points.
    #[derive(Debug, Default)]
    struct Looks(AtomicUsize);

    impl Ends for Looks {
        fn look(&self, points: usize) -> Result<()> {
            let is_over = self.0.fetch_add(1, Ordering::Relaxed) == 2 || points > 1_000_000;
            if is_over { Err(Error::Ended("enough")) } else { Ok(()) }
        }
    }

    #[test]
    fn it_is_looked_at_every_few_thousand_points_and_before_many() {
        let looks = Looks::default();
        let mut pace = Pace::new(Some(&looks));
        let count = (0..).take_while(|_| pace.spend(16).is_ok()).count();
        assert_eq!(looks.0.load(Ordering::Relaxed), 3);
        assert!(count * 16 > 2 * POINTS && count * 16 <= 3 * (POINTS + 16), "{count}");
        let looks = Looks::default();
        assert!(Pace::new(Some(&looks)).spend(2_000_000).is_err());
        assert!(Pace::new(None).spend(2_000_000).is_ok());
    }
}
