//! What a run did to the medium, in the order in which it happened.
//!
//! A run is recorded once and looked at afterwards: every power cut is a place in this log, so
//! that thousands of them cost one run, and a cut can be visited again by its number.

/// One access.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A store of `len` bytes, which are in the log's bytes from `at` on.
    Store { thread: u32, offset: u64, at: usize, len: usize, kind: Kind, durable: bool },
    /// Lines are written back.
    Flush { thread: u32, offset: u64, len: u64 },
    /// A fence: an instruction if `at_once`, else a wait for a sync.
    Fence { thread: u32, at_once: bool },
    /// A fence that the thread has made in another space, as far as this one is concerned.
    Covered { thread: u32 },
    /// The generation of a sync of the file `space` was drawn, which nobody has asked for yet.
    Drawn { space: usize, generation: u64 },
    /// Its syncs up to `generation` are asked for.
    Requested { space: usize, generation: u64 },
    /// A sync of it begins: of all that anybody has flushed of it by now.
    SyncBegan { space: usize, generation: u64 },
    /// It ends.
    SyncEnded { space: usize, failed: bool },
    /// A load of what is meant to outlive a restart.
    Load { thread: u32, offset: u64, len: u64 },
    /// The space has `len` bytes from now on.
    Grow { len: u64 },
    /// So many marks of the history have been made; `cut` if the power is to be cut here.
    Mark { marks: usize, cut: bool },
    /// Recovery is over: what follows is the check's own.
    Recovered,
}

impl Event {
    /// True if what was flushed becomes durable by it.
    pub(super) fn is_fence(&self) -> bool {
        match self {
            Self::Fence { at_once, .. } => *at_once,
            Self::Covered { .. } | Self::SyncEnded { .. } => true,
            _ => false,
        }
    }
}

/// How a store goes to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    NonTemporal,
    /// An aligned word that the fault [`TearStore`](super::Fault::TearStore) has made a copy.
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
