//! A table that comes into being a chunk at a time, so that a small store in a large reserve
//! costs no memory and every open of it is quick.

use crate::huge;
use std::sync::OnceLock;

/// A table in DRAM whose entries are made as they are used.
#[derive(Debug)]
pub struct Chunked<T> {
    /// Entries in a chunk.
    chunk: usize,
    chunks: Box<[OnceLock<Box<[T]>>]>,
    initial: fn() -> T,
}

impl<T> Chunked<T> {
    /// A table of `len` entries, `chunk` of which (a power of two) come into being at a time.
    pub fn new(len: usize, chunk: usize, initial: fn() -> T) -> Self {
        let chunk = chunk.min(len).next_power_of_two();
        let chunks = (0..len.div_ceil(chunk)).map(|_| OnceLock::new()).collect();
        Self { chunk, chunks, initial }
    }

    /// The entry at `index`, made on first use. `index` must be below the length.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        let chunk =
            self.chunks[index >> self.chunk.trailing_zeros()].get_or_init(|| self.make_chunk());
        &chunk[index & (self.chunk - 1)]
    }

    /// The entry at `index`, if it was made. `index` must be below the length.
    #[inline]
    pub fn made(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks[index >> self.chunk.trailing_zeros()].get()?;
        Some(&chunk[index & (self.chunk - 1)])
    }

    /// A chunk, in huge pages where it is large enough for some.
    #[cold]
    fn make_chunk(&self) -> Box<[T]> {
        huge::boxed(self.chunk, self.initial).unwrap_or_else(|_| {
            // What every other collection does without memory. The layout is only for the message.
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>())
        })
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        let used = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        (used * self.chunk * size_of::<T>() + size_of_val(&*self.chunks)) as u64
    }
}
