//! Pools of persistent memory behind one narrow, safe interface.
//!
//! Code above this crate uses no flush instruction, no system call and no pointer. A [`Pool`] is a
//! file mapped at any address; references inside are offsets. A pool is divided into pages, and a
//! page is at any time exactly one of
//!
//! - *words* ([`Space::claim_words`]): aligned 8-byte atomics, reached by [`Word`] handles;
//! - *log* ([`PageWriter`]): bytes appended by one owner. Bytes below the published watermark can
//!   be read as `&[u8]` by all threads and never change (except by a [`Recovery`], before any other
//!   thread has access);
//! - *free*, or *retired* and waiting until no reader can hold a slice of it ([`epoch`]).
//!
//! That makes the interface safe: no `&mut [u8]` and no `&AtomicU64` into a pool ever leaves the
//! crate, so that aliasing errors are impossible, and so that the crash simulator ([`media::sim`])
//! sees every store, flush and fence.
//!
//! # Order
//!
//! A store may reach the medium at any time after it was made; it has certainly reached it after a
//! [`Space::flush`] of its lines and a subsequent [`Space::fence`] of the same thread. Only aligned
//! 8-byte stores are atomic; a 64-byte line may tear between its words.

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

pub use dram::{background, chunked, huge, isolation, processors, spin, stripes, windows};
pub use order::{Instruction, LINE};
pub use pool::{CreateOptions, FileState, MediaChoice, Medium, OpenOptions, Pool, PoolError};
pub use space::{
    Claim, Durable, FenceMark, Grade, PageBytes, PageWriter, Pen, Preparation, Recovery,
    RecoveryGuard, ShortLived, Space, SpaceGuard, SpaceOptions, SyncError, Volatile, Word,
    WriteMode, fence_mark, thread_number,
};
