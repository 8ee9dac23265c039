//! Pinned states for backups.

use coreplane_replica::{MapSnapshot, StatePage};
use coreplane_server::SnapshotPage;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A state is dropped when no page of it was requested for this long: the versions that it pins take room.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most pinned states.
const PINS_MAX: usize = 4;
/// Approximate bytes of a page; its last record may exceed them.
const PAGE_BYTES: usize = 1 << 20;
/// Keys that are looked at for a page.
const PAGE_KEYS: usize = 10_000;

struct Pin {
    snapshot: Box<dyn MapSnapshot>,
    asked: Instant,
}

/// The pinned states, by their numbers.
#[derive(Default)]
pub(crate) struct Pins {
    pins: BTreeMap<u64, Pin>,
    last: u64,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins").field("count", &self.pins.len()).finish_non_exhaustive()
    }
}

impl Pins {
    /// Pins a state: its number.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn add(&mut self, snapshot: Box<dyn MapSnapshot>) -> Result<u64, String> {
        if self.pins.len() >= PINS_MAX {
            return Err(format!("TRYAGAIN {PINS_MAX} backups are under way"));
        }
        self.last += 1;
        self.pins.insert(self.last, Pin { snapshot, asked: Instant::now() });
        Ok(self.last)
    }

    /// Records from `start` on.
    ///
    /// # Errors
    /// If the state is not pinned any more, or it cannot be read.
    pub(crate) fn page(&mut self, pin: u64, start: &[u8]) -> Result<SnapshotPage, String> {
        let gone = || format!("ERR no state is pinned as {pin}: nobody has asked for it in time");
        let pin = self.pins.get_mut(&pin).ok_or_else(gone)?;
        pin.asked = Instant::now();
        let page = pin.snapshot.page(start, None, PAGE_BYTES, Some(PAGE_KEYS));
        let StatePage { records, next } = page.map_err(|error| format!("ERR {error}"))?;
        let records = records.into_iter().map(|it| (it.key, it.value, it.expires_at)).collect();
        Ok(SnapshotPage { records, next })
    }

    pub(crate) fn remove(&mut self, pin: u64) {
        self.pins.remove(&pin);
    }

    /// Drops states of which no page was requested for a while.
    pub(crate) fn tend(&mut self) {
        self.pins.retain(|_, pin| pin.asked.elapsed() < PATIENCE);
    }
}
