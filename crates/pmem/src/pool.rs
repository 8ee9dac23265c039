//! A pool: a file or device that says what it is.
//!
//! ```text
//!   page 0   0     static part: magic, version, uuid, geometry, kind, parameters, CRC
//!            512   root slot A      two alternating slots: generation, eight words, CRC
//!            1024  root slot B
//!            2048  body of page 0: words of the engine (HEADER_LEN)
//!   page 1…  as the engine claims them
//! ```
//!
//! The root is for state larger than 8 bytes that must change atomically: the slot with the
//! greater generation and a sound checksum counts; the other one is written next.

use crate::{Space, SyncError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of page 0 that the pool itself uses.
pub const HEADER_LEN: u64 = 2048;

/// Words of a root.
pub const ROOT_WORDS: usize = 8;

/// Which medium to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MediaChoice {
    /// Persistent memory where `MAP_SYNC` works, emulated on tmpfs, file elsewhere.
    #[default]
    Auto,
    /// An ordinary file; a fence is a sync.
    File,
    /// Emulated, by the name of a profile: none, optane, pcm, stt-ram, nv-cmm.
    Emulated(String),
    /// Persistent memory; refused where `MAP_SYNC` does not work.
    Dax,
}

/// How a pool is created.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Bytes; rounded down to whole pages.
    pub size: u64,
    /// The medium.
    pub media: MediaChoice,
    /// Bytes in a page.
    pub page_size: u32,
    /// What the pool holds, for example `scmkv`; at most 8 bytes.
    pub kind: String,
    /// Parameters of the engine that never change.
    pub parameters: [u64; 8],
}

/// How a pool is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The medium.
    pub media: MediaChoice,
}

/// What a pool rests on, in words for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Medium {
    /// For example `dax`, `emulated:none`, `file`.
    pub name: String,
    /// True if a durable fence survives a power cut.
    pub power_safe: bool,
    /// What a power cut loses at `strict`, for the start-up line.
    pub power_cut_loses: String,
    /// The flush instruction, or how it syncs.
    pub persists_by: String,
}
