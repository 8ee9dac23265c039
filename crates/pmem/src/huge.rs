//! Large tables in DRAM: in huge pages, where they are large enough for some. A table that is
//! read at random misses the processor's translations as often as its caches otherwise.

use std::collections::TryReserveError;

/// Bytes in a huge page.
const HUGE: usize = 2 << 20;

/// `len` entries, each made by `initial`.
///
/// # Errors
/// If the system does not give the memory.
pub fn boxed<T>(len: usize, initial: impl Fn() -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut table = Vec::new();
    table.try_reserve_exact(len)?;
    advise(&table);
    table.extend((0..len).map(|_| initial()));
    Ok(table.into_boxed_slice())
}

/// Asks for huge pages below what a vector has allocated and not yet touched.
fn advise<T>(table: &Vec<T>) {
    let bytes = table.capacity().saturating_mul(size_of::<T>());
    let start = (table.as_ptr() as usize).next_multiple_of(HUGE);
    let end = (table.as_ptr() as usize).saturating_add(bytes) / HUGE * HUGE;
    if table.is_empty() && start < end {
        // SAFETY: the range is within what the vector has allocated, which nobody has touched,
        // and the advice changes no byte of it.
        let _best_effort = unsafe {
            rustix::mm::madvise(
                start as *mut std::ffi::c_void,
                end - start,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::boxed;

    #[test]
    fn a_table_is_whole_and_one_that_no_machine_has_room_for_is_refused() {
        for len in [0, 1, 3 << 20] {
            let table = boxed(len, || 7_u32).unwrap();
            assert!(table.len() == len && table.iter().all(|entry| *entry == 7));
        }
        assert!(boxed(usize::MAX / 2, || 7_u64).is_err());
    }
}
