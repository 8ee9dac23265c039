//! What the making of a disk leaves if it is cut off.
//!
//! The pool of the first partition is made first, and its root is written last: as long as it is without a root, no
//! byte of any partition is a user's.

use super::open::partition_path;
use super::{Disk, PARTITIONS_MAX};
use crate::error::{Error, Result};
use crate::volume::layout::KIND;
use coreplane_pmem::pool::HEADER_LEN;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool, PoolError};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of the part of a header that is written before the magic, with the magic. The root comes behind it.
const STATIC_LEN: u64 = 512;
/// The place of the kind in it.
const KIND_AT: std::ops::Range<usize> = 32..40;

/// The pool of the first partition.
fn first_of(path: &Path) -> PathBuf {
    if path.is_dir() { partition_path(path, 0) } else { path.to_owned() }
}

/// True if the pool is not made whole: its first bytes are written at the end, then its root. No other bytes are
/// there yet.
fn is_unfinished(path: &Path, media: &MediaChoice) -> Result<bool> {
    // A link leads to a place that somebody has chosen.
    if !path.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    match Pool::open(path, &OpenOptions { media: media.clone() }) {
        Ok(pool) => Ok(pool.expect_kind(KIND).is_ok() && pool.root()[0] == 0),
        Err(PoolError::NotAPool(_)) => {
            let head = head_of(path)?;
            // An empty file may be anybody's, unless its name is that of a partition.
            let is_named = !head.is_empty() || path.ends_with("q0");
            let has_no_magic = is_zero(&head[..head.len().min(8)]);
            Ok(is_named && has_no_magic && is_ours(&head) && is_blank(path)?)
        }
        // An open reports why.
        Err(_) => Ok(false),
    }
}

fn head_of(path: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(STATIC_LEN).read_to_end(&mut head)?;
    Ok(head)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// True for the head of a partition, made in full or in part.
fn is_ours(head: &[u8]) -> bool {
    let mut kind = [0; 8];
    kind.iter_mut().zip(KIND.bytes()).for_each(|(to, byte)| *to = byte);
    is_zero(head) || head.get(KIND_AT) == Some(&kind)
}

/// True if no partition was ever written to: all is zeroes behind the header.
fn is_blank(path: &Path) -> Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(HEADER_LEN))?;
    let mut bytes = vec![0; 1 << 20];
    loop {
        let filled = file.read(&mut bytes)?;
        if filled == 0 {
            return Ok(true);
        }
        if !is_zero(&bytes[..filled]) {
            return Ok(false);
        }
    }
}

impl Disk {
    /// True if something is at `path` that is to be opened: a disk, or what must not be replaced by one. The remains
    /// of a making that was cut off do not count: [`Disk::create`] removes them.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub fn is_there(path: &Path, media: &MediaChoice) -> Result<bool> {
        let first = first_of(path);
        Ok(first.exists() && !is_unfinished(&first, media)?)
    }

    /// Removes the remains of a making that was cut off.
    ///
    /// # Errors
    /// [`Error::Partitions`] if a partition has data: then the first one is damaged, and nothing is removed; or if
    /// something else has the name of a partition.
    pub(super) fn remove_leftovers(path: &Path, media: &MediaChoice) -> Result<()> {
        let first = first_of(path);
        if !first.exists() || Self::is_there(path, media)? {
            return Ok(());
        }
        let others = (1..PARTITIONS_MAX).map(|partition| partition_path(path, partition));
        // A link that leads nowhere is there, too.
        let is_there = |other: &PathBuf| other.symlink_metadata().is_ok();
        let others: Vec<PathBuf> = others.filter(is_there).collect();
        for other in &others {
            if !other.symlink_metadata()?.is_file() || !is_ours(&head_of(other)?) {
                let (first, other) = (first.display(), other.display());
                return Err(Error::Partitions(format!(
                    "{first} is blank, and {other} is no partition of a disk: move it away"
                )));
            }
            if !is_blank(other)? {
                let (first, other) = (first.display(), other.display());
                return Err(Error::Partitions(format!("{first} is blank, and {other} has data")));
            }
        }
        // The first one last: a removal that is cut off goes on with the next making.
        let removed = others.iter().chain([&first]).try_for_each(std::fs::remove_file);
        Ok(removed?)
    }
}
