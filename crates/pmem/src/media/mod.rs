//! The media of mappings, and their guarantees.

pub(crate) mod dax;
pub(crate) mod emulated;
pub(crate) mod file;
pub mod sim;
mod trace;

pub use emulated::{Profile, Wait};
pub use trace::Trace;

use std::sync::Arc;

/// How the stores of a [`Space`](crate::Space) become durable.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Persistent memory mapped with `MAP_SYNC`: power-safe at the fence.
    Dax {
        /// The caches are in the persistence domain (eADR): no flushes are needed, fences are.
        caches_persist: bool,
    },
    /// DRAM or tmpfs in place of persistent memory: real flushes and fences; data survives the
    /// process but not a power cut. With a latency model if one was chosen.
    Emulated(Option<Arc<dyn LatencyModel>>),
    /// An ordinary file: a fence is a group-committed sync of the dirty ranges.
    File,
    /// The crash simulator.
    Traced(Arc<dyn Trace>),
    /// DRAM: nothing is durable.
    Dram,
}

impl Behaviour {
    pub(crate) fn flushes_lines(&self) -> bool {
        matches!(self, Self::Dax { caches_persist: false } | Self::Emulated(_))
    }

    pub(crate) fn maps_sync(&self) -> bool {
        matches!(self, Self::Dax { .. })
    }

    pub(crate) fn syncs_file(&self) -> bool {
        matches!(self, Self::File)
    }
}

/// Adds the time that a slower medium would take.
pub trait LatencyModel: Send + Sync + std::fmt::Debug {
    /// Lines of `offset .. offset + len` are written back (both line-aligned).
    fn flush(&self, offset: u64, len: u64);

    /// The thread waits for its flushes.
    fn fence(&self);

    /// Bytes are read that are probably not cached. `touch` fetches them from DRAM, so that this
    /// time is part of the modelled time and not added to it.
    fn read(&self, offset: u64, len: u64, touch: &dyn Fn());
}
