//! Address space into which an open pool can grow: since growing moves no page, the pool cannot grow beyond it.
//!
//! The reserve costs only address space, and so does the word in DRAM for each of its pages
//! (`space::roles`), until the page exists. The words reserved are limited to what the machine
//! could ever use: a sixteenth of its memory.

use super::error::{IoContext, PoolError};
use super::header::Static;
use super::sync_failure;
use crate::media::Behaviour;
use crate::space::{Space, SpaceOptions};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// The reserve where pages are large enough, unless 16 times the size of the pool is more.
const USUAL: u64 = 1 << 40;

/// Pages for which any machine has the words, 8 MiB.
const PAGES_LEAST: u64 = 1 << 20;

/// The most pages of a reserve on a machine with `memory` bytes.
fn pages_max(memory: u64) -> u64 {
    // Page numbers have 32 bits.
    (memory / 16 / size_of::<u64>() as u64).clamp(PAGES_LEAST, u32::MAX.into())
}

/// Bytes of memory that the machine has; 0 if it does not say.
fn memory() -> u64 {
    // SAFETY: the call takes no memory of ours.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

/// Bytes to reserve for a pool of `size` bytes.
fn reserve_of(size: u64, page_size: u32, memory: u64) -> u64 {
    let most = u64::from(page_size).saturating_mul(pages_max(memory)).max(size);
    USUAL.max(size.saturating_mul(16)).min(most)
}

/// Maps the first `size` bytes of a pool, with as much in reserve as there is room for.
pub(super) fn map(
    file: Arc<File>,
    path: &Path,
    header: &Static,
    size: u64,
    behaviour: Behaviour,
) -> Result<Arc<Space>, PoolError> {
    let mut reserve = reserve_of(size, header.page_size, memory());
    loop {
        let options = SpaceOptions { page_size: header.page_size, reserve, own_epochs: false };
        match Space::file(Arc::clone(&file), size, &options, behaviour.clone()) {
            Ok(space) => {
                space.set_name(path);
                let its_path = path.to_owned();
                space.on_sync_failure(Box::new(move || sync_failure::lay(&its_path)));
                return Ok(Arc::new(space));
            }
            // A limit on address space: try a smaller reserve.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && reserve / 2 >= size => {
                reserve /= 2;
            }
            Err(error) => return Err(error).io(format!("map {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{memory, reserve_of};

    #[test]
    fn a_reserve_is_bounded_by_the_words_of_its_pages_and_never_below_the_pool() {
        const GIB: u64 = 1 << 30;
        // Large pages: bounded by the pool's own rule. Small pages: by 1/16 of the memory, 8 bytes a page.
        assert_eq!(reserve_of(GIB, 2 << 20, 8 * GIB), 1 << 40);
        assert_eq!(reserve_of(1 << 38, 2 << 20, 8 * GIB), 1 << 42);
        assert_eq!(reserve_of(GIB, 1 << 10, 8 * GIB), 64 * GIB);
        assert_eq!(reserve_of(GIB, 4 << 10, 8 * GIB), 256 * GIB);
        // With any amount of memory, known or not.
        assert_eq!(reserve_of(GIB, 4 << 10, 0), 4 * GIB);
        assert_eq!(reserve_of(256 * GIB, 1 << 10, 8 * GIB), 256 * GIB);
        assert_eq!(reserve_of(GIB, 1 << 30, u64::MAX), 1 << 40);
        assert!(memory() > 1 << 24, "{} bytes", memory());
    }
}
