//! The accesses that an operation made to the medium.

use super::log::Event;
use crate::order::LINE;

/// Accesses of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost {
    /// The offset of each line flushed, in order; a line flushed twice is listed twice.
    pub flushed_lines: Vec<u64>,
    /// Calls of a flush.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Calls of a store; a copy of many bytes is one.
    pub stores: u64,
    /// Bytes stored.
    pub stored_bytes: u64,
}

impl Cost {
    pub(super) fn of(events: &[Event], is_of: impl Fn(u32) -> bool) -> Self {
        let mut cost = Self::default();
        for event in events {
            match *event {
                Event::Store { thread, len, .. } if is_of(thread) => {
                    cost.stores += 1;
                    cost.stored_bytes += len as u64;
                }
                Event::Flush { thread, offset, len } if is_of(thread) => {
                    cost.flushes += 1;
                    cost.flushed_lines.extend((offset..offset + len).step_by(LINE));
                }
                Event::Fence { thread, .. } if is_of(thread) => cost.fences += 1,
                _ => {}
            }
        }
        cost
    }
}
