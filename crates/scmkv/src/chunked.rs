//! A table that comes into being a chunk at a time, so that a small store in a large reserve
//! costs no memory and every open of it is quick.

use std::sync::OnceLock;

#[derive(Debug)]
pub(crate) struct Chunked<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
    initial: fn() -> T,
}

/// Entries in a chunk.
const CHUNK: usize = 512;

impl<T> Chunked<T> {
    pub(crate) fn new(len: usize, initial: fn() -> T) -> Self {
        let chunks = (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { chunks, initial }
    }

    /// The entry at `index`, made on first use. `index` must be below the length.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| (self.initial)()).collect());
        &chunk[index % CHUNK]
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> u64 {
        let used = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        (used * CHUNK * size_of::<T>() + size_of_val(&*self.chunks)) as u64
    }
}
