//! DRAM of a store as the process shows it: few stores tell, and none in the same way.

/// What the process has come to use since this was made.
#[derive(Debug)]
pub struct Dram {
    before: u64,
}

impl Dram {
    /// From what it uses now.
    pub fn measured_from_now() -> Self {
        Self { before: anonymous() }
    }

    /// Bytes of resident anonymous memory more than then.
    pub fn grown(&self) -> u64 {
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
