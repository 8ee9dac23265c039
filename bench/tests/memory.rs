//! Memory of the process; alone in its own, for what others free would count too.

use coreplane_bench::Dram;

#[test]
fn what_is_touched_is_seen() {
    let dram = Dram::measured_from_now();
    let block = std::hint::black_box(vec![1_u8; 64 << 20]);
    let grown = dram.grown();
    assert!(grown >= 60 << 20, "{grown} after touching {}", block.len());
}
