//! Pools of persistent memory behind one narrow, safe door.
//!
//! Nobody above this crate knows an instruction, a system call or a pointer. A [`Pool`] is a file
//! (or DAX device) mapped at any address; whatever is inside is named by its offset. A pool is
//! cut into pages, and a page is at any time exactly one of
//!
//! - *words* ([`Space::claim_words`]): aligned 8-byte atomics, reached by [`Word`] handles;
//! - *log* ([`PageWriter`]): bytes appended by one owner, which become `&[u8]` to everyone only
//!   below the published watermark and never change after (but for a [`Recovery`], before anybody
//!   else can look);
//! - *free*, or *retired* and waiting until no reader can hold a slice of it ([`epoch`]).
//!
//! That is what makes the face safe: no `&mut [u8]` and no `&AtomicU64` into a pool ever leaves
//! the crate, so that there is no aliasing to get wrong, and so that the crash simulator
//! ([`media::sim`]) sees every store, flush and fence.
//!
//! # Order
//!
//! A store reaches the medium at any time after it was made, and surely after a [`Space::flush`]
//! of its lines that is followed by a [`Space::fence`] of the same thread. Only aligned 8-byte
//! stores are atomic; a 64-byte line may tear between its words.

pub mod append_file;
pub mod arch;
pub mod checksum;
pub mod dram;
pub mod epoch;
pub mod media;
pub mod mutant;
pub mod order;
pub mod poison;
pub mod pool;
mod space;

pub use dram::{chunked, huge, isolation, spin, stripes, windows};
pub use order::{Instruction, LINE};
pub use pool::{CreateOptions, FileState, MediaChoice, Medium, OpenOptions, Pool, PoolError};
pub use space::{
    Claim, Durable, FenceMark, Grade, PageBytes, PageWriter, Pen, Preparation, Recovery,
    RecoveryGuard, ShortLived, Space, SpaceGuard, SpaceOptions, SyncError, Volatile, Word,
    WriteMode, fence_mark, thread_number,
};
