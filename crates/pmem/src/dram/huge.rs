//! Large tables in DRAM, in huge pages where they are large enough. Otherwise random reads of a
//! table miss the processor's address translations (TLB) as often as its caches.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::TryReserveError;
use std::ptr::NonNull;

/// Bytes in a huge page.
const HUGE: usize = 2 << 20;

/// `len` entries, each made by `initial`.
///
/// # Errors
/// If the system does not give the memory.
pub fn boxed<T>(len: usize, initial: impl Fn() -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut table = Vec::new();
    table.try_reserve_exact(len)?;
    advise_range(table.as_ptr() as usize, table.capacity().saturating_mul(size_of::<T>()));
    table.extend((0..len).map(|_| initial()));
    Ok(table.into_boxed_slice())
}

/// The layout of a table of `len` entries: it begins at a huge page if it is at least as long as one.
fn layout<T>(len: usize) -> Option<Layout> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.size() < HUGE { Some(layout) } else { layout.align_to(HUGE).ok() }
}

/// `len` entries, each made by `initial`, until [`free`]; none if the system does not give the memory. All
/// entries are in huge pages, except a rest at the end that fills less than one.
pub(crate) fn table<T>(len: usize, initial: impl Fn() -> T) -> Option<NonNull<T>> {
    let layout = layout::<T>(len)?;
    if layout.size() == 0 {
        return None;
    }
    // SAFETY: the layout is not empty.
    let table = NonNull::new(unsafe { alloc(layout) })?.cast::<T>();
    advise_range(table.addr().get(), layout.size());
    for at in 0..len {
        // SAFETY: the allocated memory has room for `len` entries, from a multiple of their alignment on.
        unsafe { table.add(at).write(initial()) };
    }
    Some(table)
}

/// Destroys the entries of a table, and gives its memory back.
///
/// # Safety
/// `table` is from [`table`] with this `len`, was not freed, and is not used from now on.
pub(crate) unsafe fn free<T>(table: NonNull<T>, len: usize) {
    let Some(layout) = layout::<T>(len) else { return };
    // SAFETY: `len` entries were made in memory of this layout, and the caller guarantees that they are not used any
    // more.
    unsafe {
        NonNull::slice_from_raw_parts(table, len).drop_in_place();
        dealloc(table.cast().as_ptr(), layout);
    }
}

/// Requests huge pages for entries, as far as they fill some.
pub(crate) fn advise<T>(entries: &[T]) {
    advise_range(entries.as_ptr() as usize, size_of_val(entries));
}

/// Requests huge pages in an allocated range: for all of it if it was not touched yet.
fn advise_range(start: usize, bytes: usize) {
    let end = start.saturating_add(bytes) / HUGE * HUGE;
    let start = start.next_multiple_of(HUGE);
    if start < end {
        // SAFETY: the range is within what was allocated, and the advice changes no byte of it.
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
    use super::{HUGE, boxed, free, table};
    use std::sync::Arc;

    #[test]
    fn a_table_of_huge_pages_begins_with_one_and_drops_its_entries() {
        for len in [1, 1000, HUGE / 8, HUGE] {
            let entry = Arc::new(7_u32);
            let entries = table(len, || Arc::clone(&entry)).unwrap();
            let is_long = len * size_of::<Arc<u32>>() >= HUGE;
            assert!(!is_long || entries.addr().get().is_multiple_of(HUGE), "{len}");
            assert_eq!(Arc::strong_count(&entry), len + 1);
            // SAFETY: it has this length, and is not used any more.
            unsafe { free(entries, len) };
            assert_eq!(Arc::strong_count(&entry), 1);
        }
        assert!(table(usize::MAX / 2, || 7_u64).is_none());
    }

    #[test]
    fn a_table_is_whole_and_one_that_no_machine_has_room_for_is_refused() {
        for len in [0, 1, 3 << 20] {
            let table = boxed(len, || 7_u32).unwrap();
            assert!(table.len() == len && table.iter().all(|entry| *entry == 7));
        }
        assert!(boxed(usize::MAX / 2, || 7_u64).is_err());
    }
}
