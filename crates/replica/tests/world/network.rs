//! A network of one thread: messages are bytes that arrive later, in any order, twice, or never.

use crate::draw::Draw;
use std::collections::{BTreeMap, BTreeSet};

/// Messages under way.
#[derive(Default)]
pub(crate) struct Network {
    under_way: BTreeMap<(u64, u64), (u64, u64, Vec<u8>)>,
    count: u64,
    pub(crate) loses: bool,
    /// Pairs (from, to) between which nothing arrives.
    pub(crate) cut: BTreeSet<(u64, u64)>,
}

impl Network {
    pub(crate) fn new(loses: bool) -> Self {
        Self { loses, ..Self::default() }
    }

    pub(crate) fn send(&mut self, now: u64, (from, to): (u64, u64), bytes: &[u8], draw: &mut Draw) {
        if self.loses && draw.below(12) == 0 {
            return;
        }
        let copies = if self.loses && draw.below(25) == 0 { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.loses && draw.below(15) == 0 { 60 } else { 4 };
            let at = now + 1 + draw.below(late);
            self.count += 1;
            self.under_way.insert((at, self.count), (from, to, bytes.to_vec()));
        }
    }

    /// The next message that has arrived by now at a node that can be reached.
    pub(crate) fn next(&mut self, now: u64) -> Option<(u64, Vec<u8>)> {
        while let Some(entry) = self.under_way.first_entry() {
            if entry.key().0 > now {
                return None;
            }
            let (from, to, bytes) = entry.remove();
            if !self.cut.contains(&(from, to)) {
                return Some((to, bytes));
            }
        }
        None
    }
}
