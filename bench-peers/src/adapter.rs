//! A peer as a target: what is the same for all of them.
//!
//! An [`Adapter`] says how one store is read and written; [`Adapted`] makes a [`Target`] of it:
//! names it, counts the syncs that its writes ask for, tells its DRAM. All of them keep their keys
//! in order; a scan reads key and value of every record that it passes.

use crate::{Peer, Safety};
use coreplane_bench::{Costs, Dram, Result, Session, Target};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A store of somebody else.
pub(crate) trait Adapter: Sync + Sized {
    /// What one thread works with.
    type Access<'a>: Session
    where
        Self: 'a;

    /// Whether it writes several records at the price of one sync.
    const BATCHES: bool = false;

    fn name(&self) -> &'static str;

    /// What it was given: versions, sizes, switches.
    fn settings(&self) -> Value;

    fn access(&self) -> Result<Self::Access<'_>>;
}

/// One key, read as a batch of one.
pub(crate) fn get_by_batch(
    access: &mut impl Session,
    key: &[u8],
    visit: &mut dyn FnMut(&[u8]),
) -> Result<bool> {
    let mut found = false;
    let mut show = |_: usize, value: &[u8]| {
        found = true;
        visit(value);
    };
    access.multi_get(&[key], &mut show)?;
    Ok(found)
}

/// A store as a peer.
pub(crate) struct Adapted<A> {
    store: A,
    /// Syncs that a write asks for.
    syncs_a_put: u64,
    syncs: AtomicU64,
    dram: Dram,
}

impl<A: Adapter> Adapted<A> {
    /// The store that `open` opens in `directory`; what it takes of DRAM counts from here on.
    pub(crate) fn open(
        directory: &Path,
        safety: Safety,
        open: impl FnOnce(&Path) -> Result<A>,
    ) -> Result<Self> {
        let dram = Dram::measured_from_now();
        let syncs_a_put = u64::from(safety == Safety::Power);
        Ok(Self { store: open(directory)?, syncs_a_put, syncs: AtomicU64::new(0), dram })
    }
}

impl<A: Adapter> Peer for Adapted<A> {
    fn settings(&self) -> Value {
        self.store.settings()
    }
}

impl<A: Adapter> Target for Adapted<A> {
    fn name(&self) -> String {
        self.store.name().to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(AdaptedSession { peer: self, access: self.store.access()?, puts: 0 }))
    }

    fn costs(&self) -> Costs {
        let fences = self.syncs.load(Ordering::Relaxed);
        Costs { flushes: 0, fences, dram_bytes: self.dram.grown() }
    }

    fn is_ordered(&self) -> bool {
        true
    }
}

struct AdaptedSession<'a, A: Adapter> {
    peer: &'a Adapted<A>,
    access: A::Access<'a>,
    puts: u64,
}

impl<A: Adapter> Session for AdaptedSession<'_, A> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.access.get(key, visit)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.puts += 1;
        self.access.put(key, value)
    }

    fn put_all(&mut self, records: &[(&[u8], &[u8])]) -> Result<()> {
        self.puts += if A::BATCHES { 1 } else { records.len() as u64 };
        self.access.put_all(records)
    }

    #[inline]
    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.access.multi_get(keys, visit)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.access.scan(start, limit, visit)
    }
}

impl<A: Adapter> Drop for AdaptedSession<'_, A> {
    fn drop(&mut self) {
        let syncs = self.puts * self.peer.syncs_a_put;
        self.peer.syncs.fetch_add(syncs, Ordering::Relaxed);
    }
}
