//! The options of a pool, and the descriptions that it returns.

use std::str::FromStr;

/// Bytes from the start that the pool itself uses: in page 0, or in several smaller pages.
pub const HEADER_LEN: u64 = 2048;

/// The first page that belongs to the engine as a whole, in a pool with pages of `page_size` bytes: 1, or 2 if they
/// have 1 KiB. In the page before it, the engine has the part behind [`HEADER_LEN`], as words.
pub const fn first_page(page_size: u32) -> u32 {
    HEADER_LEN.div_ceil(page_size as u64) as u32
}

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
    /// Emulated, by the name of a profile: none, optane, pcm, stt-ram, nv-cmm; parameters may
    /// follow, as in `optane,jitter=0.001,wait=yield` ([`crate::media::Profile`]).
    Emulated(String),
    /// Persistent memory; refused where `MAP_SYNC` does not work.
    Dax,
}

/// `auto`, `file`, `dax`, `emulated`, `emulated:PROFILE`.
impl FromStr for MediaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "file" => Ok(Self::File),
            "dax" => Ok(Self::Dax),
            "emulated" => Ok(Self::Emulated("none".to_owned())),
            _ => text.strip_prefix("emulated:").map_or_else(
                || Err(format!("`{text}` is none of auto, file, dax, emulated:PROFILE")),
                |profile| Ok(Self::Emulated(profile.to_owned())),
            ),
        }
    }
}

/// The file of an open pool, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Its bytes.
    pub len: u64,
    /// The bytes that the pool has.
    pub expected: u64,
    /// Its names in directories.
    pub links: u64,
}

/// How a pool is created.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Bytes; rounded down to whole pages.
    pub size: u64,
    /// The medium.
    pub media: MediaChoice,
    /// Bytes in a page; a power of two from 1 KiB to 1 GiB.
    pub page_size: u32,
    /// The kind of the pool, for example `scmkv`; at most 8 bytes.
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

/// The medium of a pool, in words for an operator.
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

/// The medium's own count of shutdowns at which it could not drain its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsafeShutdowns {
    /// When the pool was last open.
    pub before: u64,
    /// Now.
    pub now: u64,
}
