//! The accesses of a run to the medium, in their order.
//!
//! A run is recorded once and examined afterwards: every power cut is a place in this log, so that
//! thousands of cuts need one run, and a cut can be visited again by its number.

/// One access.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A store of `len` bytes, which are in the log's bytes from `at` on.
    Store { thread: u32, offset: u64, at: usize, len: usize, kind: Kind, durable: bool },
    /// Lines are written back.
    Flush { thread: u32, offset: u64, len: u64 },
    /// A fence: an instruction if `at_once`, else a wait for a sync.
    Fence { thread: u32, at_once: bool },
    /// A fence of the thread in another space, which counts in this space, too.
    Covered { thread: u32 },
    /// The generation of a sync of the file `space` was drawn; the sync is not requested yet.
    Drawn { space: usize, generation: u64 },
    /// The syncs of the file up to `generation` are requested.
    Requested { space: usize, generation: u64 },
    /// A sync of the file begins: it covers all flushes of the file so far, by all threads.
    SyncBegan { space: usize, generation: u64 },
    /// The sync of the file ends.
    SyncEnded { space: usize, failed: bool },
    /// A load of bytes that are meant to survive a restart.
    Load { thread: u32, offset: u64, len: u64 },
    /// The space has `len` bytes from now on.
    Grow { len: u64 },
    /// The number of marks of the history so far; `cut` if the power is to be cut here.
    Mark { marks: usize, cut: bool },
    /// Recovery is over: the following accesses are those of the check.
    Recovered,
}

impl Event {
    /// True if flushes become durable by it.
    pub(super) fn is_fence(&self) -> bool {
        match self {
            Self::Fence { at_once, .. } => *at_once,
            Self::Covered { .. } | Self::SyncEnded { .. } => true,
            _ => false,
        }
    }
}

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    NonTemporal,
    /// An aligned word that the fault [`TearStore`](super::Fault::TearStore) has turned into a copy.
    Torn,
}

/// The events of a run and the bytes of its stores.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) events: Vec<Event>,
    bytes: Vec<u8>,
}

impl Log {
    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(super) fn push_store(
        &mut self,
        thread: u32,
        offset: u64,
        bytes: &[u8],
        kind: Kind,
        durable: bool,
    ) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let len = bytes.len();
        self.events.push(Event::Store { thread, offset, at, len, kind, durable });
    }

    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }
}
