//! The static part of the header (`docs/media-format.md` lists every byte).
//!
//! Two things are the same in every version of the format, so that a program can tell what it
//! found: the magic at byte 0, and a CRC32C at byte 12 over bytes 0 to 511 with those four taken as
//! zero, which covers the version at byte 8. So a flipped bit in the version is a wrong checksum
//! and not a foreign version.

use super::error::{IoContext, PoolError};
use super::root::{self, Root};
use super::sync_failure;
use super::types::CreateOptions;
use crate::mutant;
use crate::space::{Durable, PAGE_SIZES, Space, Word, write_at};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[cfg(target_endian = "big")]
compile_error!("pools are little-endian");

// media-format: version pool
/// The version that this program writes and reads.
pub(super) const VERSION: u32 = 1;

// media-format: begin pool
/// The first word of a pool.
const MAGIC: u64 = u64::from_le_bytes(*b"COREPLNE");

/// Words of the static part, and of the header as a whole.
const STATIC_WORDS: usize = 64;
pub(super) const HEADER_WORDS: usize = super::HEADER_LEN as usize / 8;
// media-format: end

/// The uuid of every simulated pool.
pub(super) const SIMULATED_UUID: [u8; 16] = *b"simulated pool\0\0";

/// The header's words as they are stored.
pub(super) type Words = [u64; HEADER_WORDS];

/// The static part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Static {
    pub(super) uuid: [u8; 16],
    pub(super) kind: String,
    pub(super) page_size: u32,
    /// At creation.
    pub(super) size: u64,
    pub(super) parameters: [u64; 8],
}

/// The most bytes that a pool can have.
pub(super) fn size_max(page_size: u32) -> u64 {
    // Page numbers are 32 bits wide; the address space ends before that matters.
    (1 << 46).min(u64::from(page_size) * u64::from(u32::MAX - 1))
}

/// `size` rounded down to whole pages, if a pool can have it.
pub(super) fn whole_pages(size: u64, page_size: u32) -> Result<u64, PoolError> {
    if !page_size.is_power_of_two() || !PAGE_SIZES.contains(&page_size) {
        return Err(PoolError::Geometry(format!(
            "a page of {page_size} bytes; it must be a power of two from 1 KiB to 1 GiB"
        )));
    }
    let whole = size - size % u64::from(page_size);
    if whole < super::HEADER_LEN {
        return Err(PoolError::Geometry(format!(
            "{size} bytes do not hold the pages of the header, {} of {page_size} bytes",
            super::first_page(page_size)
        )));
    }
    if whole > size_max(page_size) {
        return Err(PoolError::Geometry(format!("{size} bytes are more than a pool can have")));
    }
    Ok(whole)
}

/// A uuid of version 4.
pub(super) fn random_uuid() -> Result<[u8; 16], PoolError> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")
        .and_then(|random| random.read_exact_at(&mut uuid, 0))
        .io("draw a uuid from /dev/urandom")?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

impl Static {
    pub(super) fn of(options: &CreateOptions, uuid: [u8; 16]) -> Result<Self, PoolError> {
        let size = whole_pages(options.size, options.page_size)?;
        let kind = &options.kind;
        if kind.is_empty() || kind.len() > 8 || !kind.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(PoolError::Geometry(format!("`{kind}` is not 1 to 8 ASCII letters")));
        }
        Ok(Self {
            uuid,
            kind: kind.clone(),
            page_size: options.page_size,
            size,
            parameters: options.parameters,
        })
    }

    // media-format: begin pool
    fn encode(&self) -> [u64; STATIC_WORDS] {
        let mut words = [0; STATIC_WORDS];
        words[0] = MAGIC;
        let uuid = u128::from_le_bytes(self.uuid);
        words[2] = uuid as u64;
        words[3] = (uuid >> 64) as u64;
        let mut kind = [0; 8];
        kind[..self.kind.len()].copy_from_slice(self.kind.as_bytes());
        words[4] = u64::from_le_bytes(kind);
        words[5] = u64::from(self.page_size);
        words[6] = self.size;
        words[8..16].copy_from_slice(&self.parameters);
        words[1] = u64::from(VERSION);
        words[1] |= u64::from(checksum(&words)) << 32;
        words
    }
    // media-format: end

    /// Writes the static part; the magic after everything else is durable.
    pub(super) fn write(&self, space: &Space) -> Result<(), PoolError> {
        let words = self.encode();
        for (at, value) in words.iter().enumerate().skip(1) {
            word(space, at)?.store(*value);
        }
        let magic = word(space, 0)?;
        if mutant!("pmem.header.magic_first") {
            magic.store(words[0]);
        }
        if !mutant!("pmem.header.flush") {
            space.flush(0, 8 * STATIC_WORDS as u64);
        }
        if !mutant!("pmem.header.fence") {
            space.fence()?;
        }
        magic.store(words[0]);
        if !mutant!("pmem.header.magic_flush") {
            magic.flush();
        }
        if !mutant!("pmem.header.magic_fence") {
            space.fence()?;
        }
        Ok(())
    }

    pub(super) fn read(space: &Space) -> Result<Self, PoolError> {
        Self::decode(&words_of(space)?)
    }

    pub(super) fn decode(words: &Words) -> Result<Self, PoolError> {
        let stored = (words[1] >> 32) as u32;
        let version = words[1] as u32;
        let mut covered = [0; STATIC_WORDS];
        covered.copy_from_slice(&words[..STATIC_WORDS]);
        covered[0] = MAGIC;
        let computed = checksum(&covered);
        if words[0] != MAGIC {
            return Err(no_pool(words[0], stored == computed));
        }
        if stored != computed && !mutant!("pmem.header.checksum") {
            let what = "the static header".to_owned();
            return Err(PoolError::ChecksumMismatch { what, offset: 0, stored, computed });
        }
        if version != VERSION {
            return Err(PoolError::WrongVersion { found: version, supported: VERSION });
        }
        let kind = words[4].to_le_bytes();
        let kind = kind.split(|byte| *byte == 0).next().unwrap_or_default();
        let page_size = u32::try_from(words[5]).unwrap_or(0);
        let size = words[6];
        if whole_pages(size, page_size)? != size {
            return Err(PoolError::Geometry(format!("{size} bytes are not whole pages")));
        }
        let mut parameters = [0; 8];
        parameters.copy_from_slice(&words[8..16]);
        Ok(Self {
            uuid: (u128::from(words[3]) << 64 | u128::from(words[2])).to_le_bytes(),
            kind: String::from_utf8_lossy(kind).into_owned(),
            page_size,
            size,
            parameters,
        })
    }
}

/// The error for a first word that is not the magic.
fn no_pool(found: u64, rest_is_a_pool: bool) -> PoolError {
    PoolError::NotAPool(match (rest_is_a_pool, found) {
        (true, 0) => "its creation did not finish; remove the file and create it again".to_owned(),
        (true, _) => {
            let what = format!(
                "the magic is {found:#018x}, not {MAGIC:#018x}, although the rest of the header is \
                 that of a pool,"
            );
            return PoolError::Damaged { what, offset: 0 };
        }
        (false, 0) => {
            "it starts with zeroes (a creation that did not finish leaves such a file)".to_owned()
        }
        (false, _) => format!("it starts with {found:#018x}, not with {MAGIC:#018x}"),
    })
}

// media-format: begin pool
/// CRC32C of the static part, the checksum itself taken as zero.
fn checksum(words: &[u64; STATIC_WORDS]) -> u32 {
    words.iter().enumerate().fold(0, |crc, (at, word)| {
        let word = if at == 1 { word & u64::from(u32::MAX) } else { *word };
        crc32c::crc32c_append(crc, &word.to_le_bytes())
    })
}
// media-format: end

/// Word `at` of the header.
pub(super) fn word(space: &Space, at: usize) -> Result<Word<'_, Durable>, PoolError> {
    space
        .word(8 * at as u64)
        .ok_or_else(|| PoolError::Geometry("the header is not in pages of words".to_owned()))
}

/// All words of the header.
pub(super) fn words_of(space: &Space) -> Result<Words, PoolError> {
    let mut words = [0; HEADER_WORDS];
    for (at, value) in words.iter_mut().enumerate() {
        *value = word(space, at)?.load();
    }
    Ok(words)
}

fn read_words(file: &File, path: &Path) -> Result<Words, PoolError> {
    let mut bytes = [0; 8 * HEADER_WORDS];
    let mut filled = 0;
    while filled < bytes.len() {
        let read = file
            .read_at(&mut bytes[filled..], filled as u64)
            .io(format!("read the header of {}", path.display()))?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    let mut words = [0; HEADER_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    if filled < bytes.len() {
        if filled >= 8 && words[0] == MAGIC {
            let expected = super::HEADER_LEN;
            return Err(PoolError::Truncated { expected, found: filled as u64 });
        }
        return Err(PoolError::NotAPool(format!("{} has only {filled} bytes", path.display())));
    }
    Ok(words)
}

/// Static part and root of a file, read before anything is mapped.
pub(super) fn read_file(file: &File, path: &Path) -> Result<(Static, Root), PoolError> {
    let words = read_words(file, path)?;
    let header = Static::decode(&words)?;
    let root = root::decode(&words, header.uuid)?.current()?;
    Ok((header, root))
}

/// The static part alone; another process may be changing the root meanwhile.
pub(super) fn static_of_file(file: &File, path: &Path) -> Result<Static, PoolError> {
    Static::decode(&read_words(file, path)?)
}

/// Writes all possible repairs; returns their descriptions.
pub(super) fn repair_file(file: &File, path: &Path) -> Result<Vec<String>, PoolError> {
    let words = read_words(file, path)?;
    let header = Static::decode(&words)?;
    let repairs = root::decode(&words, header.uuid)?.repairs()?;
    for repair in &repairs {
        let bytes: Vec<u8> = repair.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let written = write_at(file, &bytes, 8 * repair.at as u64);
        written.io(format!("repair {}", path.display()))?;
        sync_failure::sync(file, path)?;
    }
    Ok(repairs.into_iter().map(|repair| repair.what).collect())
}
