//! The thread behind an open store: it counts after a crash, cleans ahead of the writers, and
//! ends the windows of `relaxed` writes.

use crate::store::Store;
use coreplane_engine::{Durability, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks without being woken.
const TICK: Duration = Duration::from_millis(100);

pub(crate) fn start(store: &Arc<Store>) -> std::io::Result<JoinHandle<()>> {
    let store = Arc::clone(store);
    std::thread::Builder::new().name("coreplane-clean".to_owned()).spawn(move || run(&store))
}

fn run(store: &Store) {
    // An error stops the background work alone: writers meet it themselves, and say so.
    let mut sound = store.take_census().is_ok();
    let tick = match store.durability {
        Durability::Relaxed { window, .. } => window.clamp(Duration::from_millis(1), TICK),
        _ => TICK,
    };
    while !store.closed.load(Ordering::Acquire) {
        {
            let mut woken = store.wake.0.lock();
            if !*woken {
                store.wake.1.wait_for(&mut woken, tick);
            }
            *woken = false;
        }
        if sound {
            sound = store.clean_ahead().is_ok();
        }
        if store.lax.load(Ordering::Acquire) {
            sound &= store.end_windows().is_ok();
        }
    }
}

impl Store {
    /// Keeps some pages free as long as that is cheap.
    fn clean_ahead(&self) -> Result<()> {
        let low = (self.pages.len() / 16).max(self.reserve() + 2);
        let quarter = u64::from(self.geometry.page_size) / 4;
        while self.pages.refresh_free() < low && !self.closed.load(Ordering::Acquire) {
            let mut cleaner = self.cleaner.lock();
            if !self.clean_one(&mut cleaner, quarter)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes durable what `relaxed` writers have left.
    pub(crate) fn end_windows(&self) -> Result<()> {
        for log in &self.logs {
            let mut log = log.lock();
            if log.is_unsettled() {
                log.settle(self)?;
            }
        }
        Ok(())
    }
}
