//! A table that is allocated a chunk at a time, so that the reserve of a small store costs no
//! memory and opening it is quick.

use super::pointers::Pointers;
use crate::huge;
use crate::spin;
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A table of so many entries or more has at least so many chunks.
const CHUNKS_MIN: usize = 16;

/// A table in DRAM whose entries are made as they are used.
#[derive(Debug)]
pub struct Chunked<T> {
    /// The number of a chunk is an index shifted by this.
    shift: u32,
    /// Null until the chunk is made; then a pointer to all entries of the chunk.
    chunks: Pointers<T>,
    /// How many chunks were made.
    made: AtomicUsize,
    /// The number behind the last chunk that was made: the pointers from here on are in no use, and those of the large
    /// reserve of a small store take no memory.
    end: AtomicUsize,
    /// Held while a chunk is made.
    making: Mutex<()>,
    initial: fn() -> T,
    /// Gives the table the auto traits of this type.
    owned: PhantomData<OnceLock<Box<[T]>>>,
}

impl<T> Chunked<T> {
    /// A table of `len` entries, of which `chunk` (rounded down to a power of two) are made at a time; fewer, but one at
    /// least, where they are more than a sixteenth of the table.
    pub fn new(len: usize, chunk: usize, initial: fn() -> T) -> Self {
        let chunk = 1_usize << chunk.min(len / CHUNKS_MIN).max(1).ilog2();
        Self {
            shift: chunk.trailing_zeros(),
            chunks: Pointers::new(len.div_ceil(chunk)),
            made: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            making: Mutex::new(()),
            initial,
            owned: PhantomData,
        }
    }

    /// Entries in a chunk.
    #[inline]
    fn chunk_len(&self) -> usize {
        1 << self.shift
    }

    /// The entry at `index`, made on first use. `index` must be below the length.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        let number = index >> self.shift;
        let mut chunk = self.chunks[number].load(Ordering::Acquire);
        if chunk.is_null() {
            chunk = self.make_chunk(number);
        }
        // SAFETY: see `entry`; the chunk was just made, if it was not before.
        unsafe { self.entry(chunk, index) }
    }

    /// The entry at `index`, if it was made. `index` must be below the length.
    #[inline]
    pub fn made(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks[index >> self.shift].load(Ordering::Acquire);
        // SAFETY: see `entry`.
        (!chunk.is_null()).then(|| unsafe { self.entry(chunk, index) })
    }

    /// The entry at `index` of its chunk.
    ///
    /// # Safety
    /// `chunk` was loaded, by acquiring, from `chunks`, and is not null.
    #[inline]
    unsafe fn entry(&self, chunk: *const T, index: usize) -> &T {
        // SAFETY: a pointer in `chunks` points to all the entries of a chunk, which `make_chunk`
        // has made and only `drop` destroys; the mask keeps the index below their number.
        unsafe { &*chunk.add(index & (self.chunk_len() - 1)) }
    }

    /// Makes a chunk, in huge pages where it is large enough.
    #[cold]
    fn make_chunk(&self, number: usize) -> *mut T {
        let _making = spin::lock(&self.making);
        let made = self.chunks[number].load(Ordering::Acquire);
        if !made.is_null() {
            return made;
        }
        let chunk = huge::table(self.chunk_len(), self.initial).unwrap_or_else(|| {
            // As every other collection does without memory. The layout is only for the message.
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>())
        });
        let chunk = chunk.as_ptr();
        self.made.fetch_add(1, Ordering::Relaxed);
        self.end.fetch_max(number + 1, Ordering::Relaxed);
        self.chunks[number].store(chunk, Ordering::Release);
        chunk
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        let made = self.made.load(Ordering::Relaxed) as u64;
        let pointers = self.end.load(Ordering::Relaxed) * size_of::<AtomicPtr<T>>();
        made * huge::bytes_of::<T>(self.chunk_len()) + pointers as u64
    }
}

impl<T> Drop for Chunked<T> {
    fn drop(&mut self) {
        let len = self.chunk_len();
        let end = *self.end.get_mut();
        for chunk in &mut self.chunks[..end] {
            if let Some(chunk) = NonNull::new(*chunk.get_mut()) {
                // SAFETY: `make_chunk` has made it with `len` entries, and no other code frees it.
                unsafe { huge::free(chunk, len) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Chunked;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    struct Entry(AtomicUsize);

    impl Entry {
        fn new() -> Self {
            MADE.fetch_add(1, Ordering::Relaxed);
            Self(AtomicUsize::new(7))
        }
    }

    impl Drop for Entry {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_entry_is_made_once_whoever_comes_and_dropped_with_the_table() {
        let table = Chunked::new(1000, 64, Entry::new);
        assert!(table.made(999).is_none());
        assert_eq!(table.bytes(), 0);
        assert_eq!(table.get(130).0.fetch_add(1, Ordering::Relaxed), 7);
        assert!(table.made(128).is_some() && table.made(127).is_none());
        assert_eq!(MADE.load(Ordering::Relaxed), 32);
        assert_eq!(table.bytes(), 32 * 8 + 5 * 8);
        let add = |at| table.get(at).0.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| (0..1000).map(add).sum::<usize>())));
        });
        let total: usize = (0..1000).map(|at| table.get(at).0.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 1000 * (7 + 4) + 1);
        assert_eq!(table.bytes(), 1024 * 8 + 32 * 8);
        drop(table);
        let made = MADE.load(Ordering::Relaxed);
        assert_eq!((made, DROPPED.load(Ordering::Relaxed)), (1024, 1024));
    }

    #[test]
    fn a_small_table_makes_few_entries_at_a_time() {
        let table = Chunked::new(1088, 4096, || AtomicUsize::new(1));
        assert_eq!(table.get(1087).load(Ordering::Relaxed), 1);
        assert!(table.made(1024).is_some() && table.made(1023).is_none());
        assert_eq!(table.bytes(), 64 * 8 + 17 * 8);
        for len in [1, 15, 16, 17, 33, 1087] {
            let table = Chunked::new(len, 4096, || AtomicUsize::new(1));
            let all = || (0..len).map(|at| table.get(at).load(Ordering::Relaxed)).sum::<usize>();
            assert_eq!(all(), len);
        }
    }
}
