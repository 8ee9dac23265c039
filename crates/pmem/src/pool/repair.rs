//! Repair of a pool whose header is damaged, or whose file was truncated, before its contents are read.

use super::error::{IoContext, PoolError};
use super::types::OpenOptions;
use super::{Pool, allocate, choose, cut_short, header, lock, sync_failure};
use crate::mutant;
use crate::space::write_at;
use std::fs::File;
use std::path::Path;

impl Pool {
    /// Repairs a pool that [`Pool::open`] refuses: a damaged copy of the root beside a sound one; a truncated file,
    /// whose missing part then reads as zeroes, as if the medium had lost it. Returns descriptions of the repairs;
    /// none if nothing is wrong. From then on the pool is opened by [`Pool::open_repaired`], until the repair of its
    /// contents is done and [`Pool::end_repair`] is called.
    ///
    /// # Errors
    /// As [`Pool::open`], for damage of which there is no sound copy; [`PoolError::NoSpace`], after which the file is
    /// as it was.
    pub fn repair(path: &Path, options: &OpenOptions) -> Result<Vec<String>, PoolError> {
        Self::restore(path, options, true)
    }

    /// As [`Pool::repair`]; a page that was cut off in part reads as zeroes as a whole.
    ///
    /// # Errors
    /// As [`Pool::repair`].
    pub fn repair_in_pages(path: &Path, options: &OpenOptions) -> Result<Vec<String>, PoolError> {
        Self::restore(path, options, false)
    }

    /// True if the file at `path` was truncated, or its repair has not ended.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn is_cut_short(path: &Path) -> Result<bool, PoolError> {
        let file = lock::open(path)?;
        let (_, root) = header::read_file(&file, path)?;
        Ok(cut_short::len_left(path, allocate::file_len(&file, path)?)? < root.size)
    }

    fn restore(
        path: &Path,
        options: &OpenOptions,
        keeps_part: bool,
    ) -> Result<Vec<String>, PoolError> {
        let file = lock::open(path)?;
        sync_failure::settle(&file, path)?;
        choose::medium(&file, path, &options.media)?;
        let mut restored = header::repair_file(&file, path)?;
        let (header, root) = header::read_file(&file, path)?;
        let len = allocate::file_len(&file, path)?;
        let found = cut_short::len_left(path, len)?;
        if found < root.size {
            if !mutant!("pmem.repair.mark") {
                cut_short::lay(path, found)?;
            }
            if len < root.size {
                let extended = allocate::extend(&file, path, len, root.size);
                if extended.is_err() && found == len {
                    // Of an interrupted repair the mark stays: only the mark tells what is left.
                    lift_from_short(&file, path, root.size)?;
                }
                extended?;
                sync_failure::sync(&file, path)?;
            }
            let part = if keeps_part { 0 } else { found % u64::from(header.page_size) };
            if part > 0 {
                let zeroes = vec![0; part as usize];
                let zeroed = write_at(&file, &zeroes, found - part);
                zeroed.io(format!("write {}", path.display()))?;
                sync_failure::sync(&file, path)?;
                // Only once: from here on the engine may write to the page.
                if !mutant!("pmem.repair.part") {
                    cut_short::lay(path, found - part)?;
                }
            }
            restored.push(format!(
                "the file was cut short: {found} of {} bytes are left, and what was behind them is lost: a key that \
                 was written there is absent, or has the value that it had before",
                root.size
            ));
        }
        Ok(restored)
    }

    /// Opens a pool that is being repaired.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_repaired(path: &Path, options: &OpenOptions) -> Result<Self, PoolError> {
        Self::open_whole(path, options, cut_short::check_length)
    }

    /// Ends the repair: the contents are repaired durably, and the pool is opened as any other from now on.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn end_repair(path: &Path) -> Result<(), PoolError> {
        cut_short::lift(path)
    }
}

/// Lifts the mark of a repair that could not begin, if the file is as short as before, durably: then it shows the loss
/// by itself. A mark would outlive a copy that is put in place of the pool.
fn lift_from_short(file: &File, path: &Path, size: u64) -> Result<(), PoolError> {
    sync_failure::sync(file, path)?;
    if allocate::file_len(file, path)? < size {
        cut_short::lift(path)?;
    }
    Ok(())
}
