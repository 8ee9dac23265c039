//! Large tables in DRAM, in huge pages where they are large enough. Otherwise random reads of a
//! table miss the processor's address translations (TLB) as often as its caches.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

/// Bytes in a huge page.
const HUGE: usize = 2 << 20;

/// The system does not give the memory for a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a table")]
pub struct NoMemory;

/// A table of fixed length. One of a huge page or more begins with a huge page, and huge pages are requested for all
/// entries, except a rest at the end that fills less than half of one.
pub struct Table<T> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns its entries as a box does: it may be sent if they may be.
unsafe impl<T: Send> Send for Table<T> {}

// SAFETY: it gives out shared references to its entries, and nothing else without `&mut`.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// `len` entries, each made by `initial`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(len: usize, initial: impl Fn() -> T) -> Result<Self, NoMemory> {
        let start = match layout::<T>(len).ok_or(NoMemory)?.size() {
            0 => {
                // Entries without size are made, and exist, all the same.
                (0..len).for_each(|_| std::mem::forget(initial()));
                NonNull::dangling()
            }
            _ => table(len, initial).ok_or(NoMemory)?,
        };
        Ok(Self { start, len, owns: PhantomData })
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        bytes_of::<T>(self.len)
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `start` has `len` entries, which `self` owns, or they have no size.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made the table with this length (or its entries have no size), and nothing uses it after
        // its owner.
        unsafe { free(self.start, self.len) }
    }
}

impl<T> std::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The layout of a table of `len` entries: if it is at least as long as a huge page it begins with one, and ends with
/// one if its end fills half of that.
fn layout<T>(len: usize) -> Option<Layout> {
    let layout = Layout::array::<T>(len).ok()?;
    match layout.size() {
        ..HUGE => Some(layout),
        size if size % HUGE < HUGE / 2 => layout.align_to(HUGE).ok(),
        _ => layout.align_to(HUGE).ok().map(|layout| layout.pad_to_align()),
    }
}

/// Bytes of a table of `len` entries.
pub(crate) fn bytes_of<T>(len: usize) -> u64 {
    layout::<T>(len).map_or(0, |layout| layout.size() as u64)
}

/// `len` entries, each made by `initial`, until [`free`]; none if the system does not give the memory. They are in
/// huge pages as those of a [`Table`].
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
/// `table` is from [`table`] with this `len`, or entries without size; was not freed, and is not used from now on.
pub(crate) unsafe fn free<T>(table: NonNull<T>, len: usize) {
    let Some(layout) = layout::<T>(len) else { return };
    // SAFETY: `len` entries were made in memory of this layout, and the caller guarantees that they are not used any
    // more.
    unsafe {
        NonNull::slice_from_raw_parts(table, len).drop_in_place();
        if layout.size() > 0 {
            dealloc(table.cast().as_ptr(), layout);
        }
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
    use super::{HUGE, NoMemory, Table, free, layout, table};
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
            let table = Table::new(len, || 7_u32).unwrap();
            assert!(table.len() == len && table.iter().all(|entry| *entry == 7));
        }
        assert_eq!(Table::new(usize::MAX / 2, || 7_u64).unwrap_err(), NoMemory);
    }

    #[test]
    fn a_table_owns_its_entries_whatever_their_size() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static LIVE: AtomicU32 = AtomicU32::new(0);
        struct Nothing;
        impl Drop for Nothing {
            fn drop(&mut self) {
                LIVE.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let live = || LIVE.load(Ordering::Relaxed);
        let nothing = || {
            LIVE.fetch_add(1, Ordering::Relaxed);
            Nothing
        };
        let entries = Table::new(5, nothing).unwrap();
        assert_eq!((entries.len(), live()), (5, 5));
        drop(entries);
        assert_eq!(live(), 0);
        let entry = Arc::new(7_u32);
        for len in [0, 3, HUGE / 8] {
            let entries = Table::new(len, || Arc::clone(&entry)).unwrap();
            assert_eq!((entries.len(), Arc::strong_count(&entry)), (len, len + 1));
            drop(entries);
            assert_eq!(Arc::strong_count(&entry), 1);
        }
    }

    /// A table of one page and a half has two, one of a page and less than half another has one and the rest.
    #[test]
    fn the_end_of_a_table_is_in_a_huge_page_if_it_fills_half_of_one() {
        let shape = |bytes: usize| layout::<u8>(bytes).map(|it| (it.align(), it.size()));
        assert_eq!(shape(HUGE - 1), Some((1, HUGE - 1)));
        assert_eq!(shape(HUGE), Some((HUGE, HUGE)));
        assert_eq!(shape(HUGE + HUGE / 2 - 1), Some((HUGE, HUGE + HUGE / 2 - 1)));
        assert_eq!(shape(HUGE + HUGE / 2), Some((HUGE, 2 * HUGE)));
        let long = Table::new(HUGE + HUGE / 2, || 0_u8).unwrap();
        assert_eq!((long.len(), long.bytes()), (HUGE + HUGE / 2, 2 * HUGE as u64));
        assert_eq!(long.as_ptr().addr() % HUGE, 0);
    }
}
