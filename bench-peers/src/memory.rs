//! DRAM of a peer, which few stores tell, and none in the same way.

/// What the process has come to use since this was made.
#[derive(Debug)]
pub(crate) struct Dram {
    before: u64,
}

impl Dram {
    pub(crate) fn measured_from_now() -> Self {
        Self { before: anonymous() }
    }

    /// Bytes more than then.
    pub(crate) fn grown(&self) -> u64 {
        anonymous().saturating_sub(self.before)
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
        let dram = Dram::measured_from_now();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let grown = dram.grown();
        assert!(grown >= 60 << 20, "{grown} after touching {}", block.len());
    }
}
