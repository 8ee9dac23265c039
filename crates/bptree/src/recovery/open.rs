//! Creating and opening a store: its layers, over a pool.

use crate::read::Reader;
use crate::recovery::Recovery;
use crate::tree::Tree;
use crate::volume::root::{Root, STEP};
use crate::volume::{KIND, Volume};
use crate::write::Writer;
use coreplane_engine::{Error, Progress, Result};
use coreplane_pmem::{CreateOptions, MediaChoice, Pool, mutant};
pub use coreplane_record::Options;
pub(crate) use coreplane_record::pool_error;
use std::sync::atomic::Ordering;

/// The usual size of a page, and so of a leaf, in bytes.
pub const PAGE_SIZE: u32 = 16 << 10;

/// The possible sizes of a page, and so of a leaf, in bytes.
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 4 << 10..=512 << 10;

/// # Errors
/// If a leaf cannot have this size.
pub(crate) fn check_page_size(page_size: u32) -> Result<()> {
    if PAGE_SIZES.contains(&page_size) {
        return Ok(());
    }
    Err(Error::Unusable(format!("a leaf has 4 KiB to 512 KiB, not {page_size} bytes")))
}

/// The options for the pool of a store.
pub(crate) fn create_options(size: u64, page_size: u32, media: MediaChoice) -> CreateOptions {
    CreateOptions { size, media, page_size, kind: KIND.to_owned(), parameters: [0; 8] }
}

/// Makes a store of a fresh pool: one leaf for all keys.
pub(crate) fn format(pool: Pool, options: &Options) -> Result<Writer> {
    check_page_size(pool.space().page_size())?;
    let root = Root { version_base: STEP, births_end: STEP, ..Root::default() };
    let tree = Tree::new(Volume::new(pool, &root, options), &root);
    tree.pages.allow_births(1, STEP);
    tree.pages.offer(1..tree.space.pages());
    tree.make_first_leaf()?;
    // With this root the store exists.
    tree.set_root(root)?;
    Ok(Writer::new(Reader::new(tree, options)))
}

/// Opens the store that a pool holds, recovering it if it was not closed.
pub(crate) fn open(
    pool: Pool,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Writer> {
    pool.expect_kind(KIND).map_err(pool_error)?;
    check_page_size(pool.space().page_size())?;
    let old = Root::from_words(pool.root());
    if old.version_base == 0 {
        return Err(Error::Unusable("the store was never wholly created".to_owned()));
    }
    let is_clean = old.flags & Root::CLEAN != 0;
    let root = Root {
        flags: if mutant!("bptree.open.stays_clean") {
            old.flags
        } else {
            old.flags & !Root::CLEAN
        },
        sealed_births: if is_clean { old.sealed_births } else { old.births_end },
        version_base: old.version_base + if mutant!("bptree.open.version_base") { 0 } else { STEP },
        births_end: old.births_end + STEP,
        checkpoint: None,
        ..old
    };
    let mut tree = Tree::new(Volume::new(pool, &root, options), &root);
    let first_birth = if mutant!("bptree.open.births") { 1 } else { old.births_end };
    tree.pages.allow_births(first_birth, root.births_end);
    tree.opened.births_end = old.births_end;
    tree.opened.was_closed = is_clean;
    // From here on a crash finds the store unclean and no checkpoint, and versions and births continue above the
    // old ones.
    tree.set_root(root)?;
    // It is unknown which tombstones were forgotten before, unless tombstones were held.
    let forgotten = if root.held > 0 { root.held - 1 } else { root.version_base };
    tree.forgotten_tombstones.store(forgotten, Ordering::Release);
    let in_use = || Error::Unusable("the pool was opened before".to_owned());
    let recovery = tree.space.recovery().ok_or_else(in_use)?;
    if let Some(checkpoint) = old.checkpoint.filter(|_| is_clean && !options.is_repair) {
        let loaded = Recovery { tree: &tree }.load_checkpoint(&recovery, checkpoint)?;
        tree.opened.with_checkpoint = loaded.is_some();
        tree.opened.has_large = loaded.unwrap_or(false);
        tree.opened.checkpoint_is_damaged = !tree.opened.with_checkpoint;
    }
    if !tree.opened.with_checkpoint {
        Recovery { tree: &tree }.recover(recovery, progress)?;
    }
    Ok(Writer::new(Reader::new(tree, options)))
}

#[cfg(test)]
mod tests {
    use super::{Options, create_options, format, open};
    use coreplane_engine::Error;
    use coreplane_pmem::media::sim::{Sim, SimOptions};
    use coreplane_pmem::{MediaChoice, Pool};
    use std::sync::Arc;

    /// A pool may have a page size that leaves cannot have.
    #[test]
    fn leaves_of_less_than_4_kib_and_of_more_than_512_are_refused() {
        let options = Options { background: false, ..Options::default() };
        for shift in 10..=20 {
            let (len, page_size) = (4 << 20, 1 << shift);
            let simulated = SimOptions { len, max_len: len, page_size, ..SimOptions::default() };
            let sim = Sim::new(&simulated).expect("memory");
            let create = create_options(len, page_size, MediaChoice::Auto);
            let made = Pool::simulated_create(Arc::clone(sim.space()), &create).expect("a pool");
            let made = format(made, &options).map(drop);
            if (12..=19).contains(&shift) {
                assert!(made.is_ok(), "{made:?}");
                continue;
            }
            let is_told =
                |error: &Error| error.to_string().contains(&format!("not {page_size} bytes"));
            assert!(made.as_ref().is_err_and(is_told), "{made:?}");
            // Nor is such a pool opened.
            let sim = Sim::after(sim.space(), &simulated).expect("memory");
            let pool = Pool::simulated_open(Arc::clone(sim.space())).expect("the pool");
            let opened = open(pool, &options, &|_| {}).map(drop);
            assert!(opened.as_ref().is_err_and(is_told), "{opened:?}");
        }
    }
}
