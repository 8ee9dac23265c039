//! DRAM of a peer, which few stores tell, and none in the same way.

use coreplane_bench::Costs;
use std::sync::atomic::{AtomicU64, Ordering};

/// Measures what the process has come to use since this was made, and counts syncs.
#[derive(Debug)]
pub(crate) struct Meter {
    before: u64,
    syncs: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { before: anonymous(), syncs: AtomicU64::new(0) }
    }

    /// A session asked for so many syncs.
    pub(crate) fn add_syncs(&self, count: u64) {
        self.syncs.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn costs(&self) -> Costs {
        Costs {
            flushes: 0,
            fences: self.syncs.load(Ordering::Relaxed),
            dram_bytes: anonymous().saturating_sub(self.before),
        }
    }
}

/// Resident anonymous memory of this process, in bytes; 0 where the kernel does not tell.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_seen() {
        let meter = Meter::new();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let grown = meter.costs().dram_bytes;
        assert!(grown >= 60 << 20, "{grown} after touching {}", block.len());
    }
}
