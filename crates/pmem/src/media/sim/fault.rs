//! Faults that a test injects, to verify that they are caught.

use std::ops::Range;

/// A fault of a program, injected in the trace, so that the program itself need not be changed: the
/// live memory is correct, but the medium does not see the access. Numbers count from 0 over all
/// threads of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The call of a flush with this number is omitted.
    DropFlush(u64),
    /// Every flush that touches the range is omitted.
    DropFlushOf(Range<u64>),
    /// Every flush is omitted.
    DropEveryFlush,
    /// The fence with this number is omitted.
    DropFence(u64),
    /// Every fence is omitted.
    DropEveryFence,
    /// The store with this number is made only after its thread's next fence.
    DelayStore(u64),
    /// Every store in the range is made only after its thread's next fence.
    DelayStoresOf(Range<u64>),
    /// The store with this number is exchanged with the next one.
    SwapStores(u64),
    /// The store with this number, of one word, is made in two halves in any order.
    TearStore(u64),
    /// Every store of one word in the range is made in two halves in any order.
    TearStoresOf(Range<u64>),
    /// A sync that was not requested is reported as done ([`Model::File`](super::Model::File), as
    /// the two below).
    DoneWhenDrawn,
    /// A sync that was requested and has not ended is reported as done.
    DoneWhenRequested,
    /// A flush is reported as covered by the last sync that began, even if the flush came after that beginning.
    CoveredByOlder,
}

/// The effect of a fault on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Usual,
    Torn,
    AfterFence,
    AfterNextStore,
}

fn touch(range: &Range<u64>, offset: u64, len: u64) -> bool {
    offset < range.end && range.start < offset + len
}

impl Fault {
    pub(super) fn drops_flush(&self, number: u64, offset: u64, len: u64) -> bool {
        match self {
            Self::DropFlush(at) => *at == number,
            Self::DropFlushOf(range) => touch(range, offset, len),
            Self::DropEveryFlush => true,
            _ => false,
        }
    }

    pub(super) fn drops_fence(&self, number: u64) -> bool {
        match self {
            Self::DropFence(at) => *at == number,
            Self::DropEveryFence => true,
            _ => false,
        }
    }

    pub(super) fn fate(&self, number: u64, offset: u64, len: u64) -> Fate {
        match self {
            Self::DelayStore(at) if *at == number => Fate::AfterFence,
            Self::DelayStoresOf(range) if touch(range, offset, len) => Fate::AfterFence,
            Self::SwapStores(at) if *at == number => Fate::AfterNextStore,
            Self::TearStore(at) if *at == number && len == 8 => Fate::Torn,
            Self::TearStoresOf(range) if len == 8 && touch(range, offset, len) => Fate::Torn,
            _ => Fate::Usual,
        }
    }
}
