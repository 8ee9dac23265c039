//! Many pointers, most of which stay null.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::LINE;

/// Fewer bytes come from the allocator: a mapping costs more than to zero them.
const MAPPED_MIN: usize = 32 << 10;

/// Pointers, null at first. Many are in a mapping of their own: the system gives memory for those alone that are
/// written or read, and their neighbours. An allocator would write all of them if it had the memory from an earlier use.
#[derive(Debug)]
pub(super) struct Pointers<T> {
    start: NonNull<AtomicPtr<T>>,
    len: usize,
    owns: PhantomData<AtomicPtr<T>>,
}

// SAFETY: it owns its pointers as a box does, and an `AtomicPtr` of any type may be sent.
unsafe impl<T> Send for Pointers<T> {}

// SAFETY: it gives out shared references to its pointers, and nothing else without `&mut`.
unsafe impl<T> Sync for Pointers<T> {}

impl<T> Pointers<T> {
    /// `len` null pointers. Without memory the process ends, as by any other collection.
    pub(super) fn new(len: usize) -> Self {
        let Some(layout) = layout::<T>(len) else {
            handle_alloc_error(Layout::new::<AtomicPtr<T>>())
        };
        let start = match layout.size() {
            0 => Some(NonNull::dangling()),
            // SAFETY: the layout is not empty.
            1..MAPPED_MIN => NonNull::new(unsafe { alloc_zeroed(layout) }.cast()),
            bytes => map(bytes).map(NonNull::cast),
        };
        let Some(start) = start else { handle_alloc_error(layout) };
        let pointers = Self { start, len, owns: PhantomData };
        // Small stores use the first system page alone. If it were loaded from first, the system would map a page of
        // zeroes, exchange it at the first store, and interrupt the other processors of the process for it.
        if let Some(first) = pointers.first() {
            first.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        pointers
    }
}

/// The layout of `len` pointers: every access to a table loads one of them, so that none shares a line with what others
/// write.
fn layout<T>(len: usize) -> Option<Layout> {
    let layout = Layout::array::<AtomicPtr<T>>(len).ok()?;
    layout.align_to(LINE).map(|layout| layout.pad_to_align()).ok()
}

/// `bytes` zeroes, in small pages: in a huge one a single pointer would take 2 MiB.
fn map(bytes: usize) -> Option<NonNull<c_void>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping wherever the system likes, which touches nothing that exists.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags | MapFlags::NORESERVE)
    };
    let start = NonNull::new(mapped.ok()?)?;
    // SAFETY: the range is the mapping, and the advice changes no byte of it.
    let _best_effort =
        unsafe { rustix::mm::madvise(start.as_ptr(), bytes, Advice::LinuxNoHugepage) };
    Some(start)
}

impl<T> Deref for Pointers<T> {
    type Target = [AtomicPtr<T>];

    #[inline]
    fn deref(&self) -> &[AtomicPtr<T>] {
        // SAFETY: the memory, which `self` owns, has `len` of them, and zeroes are a null pointer; without any the
        // pointer is aligned and not null.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl<T> DerefMut for Pointers<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [AtomicPtr<T>] {
        // SAFETY: as above, and no other reference to them exists beside `&mut self`.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_mut() }
    }
}

impl<T> Drop for Pointers<T> {
    fn drop(&mut self) {
        let Some(layout) = layout::<T>(self.len) else { return };
        match layout.size() {
            0 => {}
            // SAFETY: `new` allocated them with this layout, and every reference to them borrowed `self`.
            1..MAPPED_MIN => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            // SAFETY: `new` mapped so many bytes there, and every reference to them borrowed `self`.
            bytes => drop(unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE, Pointers};
    use std::sync::atomic::Ordering;

    #[test]
    fn they_are_null_until_they_are_written() {
        let mut value = 7_u32;
        for len in [0, 1, 3000, 1 << 20] {
            let mut pointers = Pointers::<u32>::new(len);
            assert_eq!(pointers.len(), len);
            let Some(last) = pointers.last_mut() else { continue };
            assert!(last.get_mut().is_null());
            *last.get_mut() = &raw mut value;
            assert_eq!(pointers[len - 1].load(Ordering::Relaxed), &raw mut value);
            assert!(len == 1 || pointers[0].load(Ordering::Relaxed).is_null());
        }
    }

    /// Those that come from the allocator may lie where others were before.
    #[test]
    fn they_are_null_where_others_were_before() {
        let mut value = 7_u32;
        for len in [1, 3000, 4095, 4096].repeat(4) {
            let pointers = Pointers::<u32>::new(len);
            assert!(pointers.as_ptr().addr().is_multiple_of(LINE));
            for pointer in &*pointers {
                assert!(pointer.swap(&raw mut value, Ordering::Relaxed).is_null());
            }
        }
    }
}
