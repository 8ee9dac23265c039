//! Repair: what is damaged is named, what is lost is said, and the rest can be used again.
//!
//! One damaged record keeps a store with its index in DRAM from being opened, for nobody can tell
//! which key it was about; with the index in the pool it stays where it is, and `verify` names it
//! for ever. Neither makes anything good. What to give up is for a person to decide, who runs
//! `coreplane verify --repair`. It works on a pool that nobody has open:
//!
//! ```text
//!   heal      what cannot be read becomes zeroes
//!   table     what the page information table has lost of a page
//!   survey    every log page: records ▓ and gaps ░     ▓▓▓▓░░▓▓▓▓▓▓░░░░▓▓▓
//!   claims    slots that miss their record: which gap, which hash
//!   verdict   which keys are lost, which were lost already or are there elsewhere
//!   tell      all of this, before any record, slot or root is changed
//!   write     tombstones for the keys, then a `Lost` record over each gap, then the root:
//!             no checkpoint, index to be made anew
//!   open      as after any crash; large values that miss a fragment are deleted
//! ```
//!
//! # What becomes of a key
//!
//! The aim is that no key silently shows an older value, or one that it had before it was deleted.
//!
//! - A key that can be named and whose newest record is in a gap is *lost*: it gets a tombstone
//!   with a version above all others, so that no older record of it comes back. If what was lost
//!   was a tombstone, it has got another, and nothing is lost.
//! - If a later record of the key is sound, what was damaged was dead, and nothing is lost. Later
//!   is what has a greater version; a member of a batch without a commit record never counts.
//! - If the version of what was damaged is not certain, and the index may not have seen the newest
//!   record (it is in a page that a checkpoint lacks, or one of the last in a log that a crash left
//!   open, whose slot was not durable yet), that record is kept, and told as *uncertain*.
//! - If a single slot points behind the records of a page that was open at a crash, and would point
//!   at a sound record were one of its bytes another, nobody knows which of the two is damaged: the
//!   sound record is kept, and told as *uncertain*.
//! - What cannot be named is told as a range of bytes: keys that were last written there are absent
//!   now, or hold what they held before.
//!
//! **Naming.** With the index in the pool the slots say exactly which records in a gap were
//! current, and each holds so much of its key's hash that the key can be told: by the bytes of the
//! gap if they fit it, else by an older record of the key that does. If there is no older record
//! nothing can come back. A checkpoint says the same of the moment when it was taken. Without them
//! the gap's own bytes are all there is. They are believed if changing one byte makes the checksum
//! right ([`amend`]), or if the key that they show is one that the log has elsewhere; and then
//! versions decide. What the bytes show and nothing supports is told, marked as a guess.
//!
//! An index in the pool knows what is lost only as long as it is whole itself. Segments without a
//! header, slots that point at no record, and records that no slot finds
//! ([`unindexed`](crate::unindexed)) show that it is not. Then the gaps' bytes are asked as well,
//! and of a gap that does not tell its keys it is said that they cannot be named; so it is for what
//! was written after a checkpoint.
//!
//! **What nobody can know.** An index that comes from the logs has no slots for what was written
//! last. If the end of a log that was open at a crash is lost, with nothing sound behind it, that
//! looks as if the crash had cut it off there, unless nothing of the page is left at all (its
//! *proof* tells: [`page`](crate::page)).
//!
//! A value is never restored from bytes whose checksum is wrong, not even if one byte would do.
//!
//! # Batches and large values
//!
//! A batch whose commit record is in a gap gets another, for those of its members that are left
//! ([`batches`]): something sound was written behind them once, so they were committed. A member of
//! a batch that is lost does not take the others with it. A large value that has lost a fragment is
//! lost.
//!
//! # Interrupted
//!
//! Nothing is overwritten but gaps, and the index: what a gap tells is used up only when what it
//! told is durable elsewhere, in a page of the reserve that the cleaner otherwise has; where there
//! is none, the repair fails before it has overwritten a gap. A key that has its tombstone gets no
//! other, so that repairs that are cut again and again do not fill the pool. So whatever was done
//! when the power went is done, the rest is damage as before, and the repair can be run again.

mod amend;
mod batches;
mod claims;
mod mend;
mod survey;
mod table;
mod verdict;

use crate::Scmkv;
use crate::checkpoint::Checkpoints;
use crate::geometry::Geometry;
use crate::open::{self, Options};
use crate::page::Pages;
use crate::recover::LogPage;
use crate::store::{Root, Seeds, Store};
use coreplane_engine::{Error, Result, UnixMillis};
use coreplane_pmem::spin::Backoff;
use coreplane_pmem::{MediaChoice, OpenOptions, Pool, Space};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What became of a key that was in something damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Its value is lost; the key is absent now.
    Lost,
    /// What the damaged bytes show, which may be wrong; there is no other record of such a key.
    Guessed,
    /// It was deleted, and stays so: nothing is lost.
    Deleted,
    /// A later write of it is sound: nothing is lost.
    Replaced,
    /// The record itself is sound, and was saved: nothing is lost.
    Saved,
    /// Its newest record that can be read is kept, and may be out of date.
    Uncertain,
}

impl Fate {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Lost => "lost; it is absent now",
            Self::Guessed => "lost, if the damaged bytes are right about the key",
            Self::Deleted => "deleted before, and still so; nothing is lost",
            Self::Replaced => "written again later; nothing is lost",
            Self::Saved => "saved; nothing is lost",
            Self::Uncertain => "kept as far as it can be read; it may be out of date",
        }
    }
}

/// Something damaged, and what was lost by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Of the page.
    pub page: u32,
    /// Where the damage begins in the pool.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// What it is.
    pub what: String,
    /// The keys that it is about, as far as they can be named.
    pub keys: Vec<(Vec<u8>, Fate)>,
}

/// What a repair has found. Empty: the store was sound, and nothing was changed.
#[derive(Debug, Default)]
pub struct Repair {
    /// All that was damaged.
    pub findings: Vec<Finding>,
}

/// Where findings go, one by one, before anything is changed because of them.
pub type Tell<'t> = &'t mut dyn FnMut(&Finding);

impl Repair {
    fn add(&mut self, tell: Tell<'_>, finding: Finding) {
        tell(&finding);
        self.findings.push(finding);
    }
}

/// How long readers of other stores in this process are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Scmkv {
    /// Repairs the pool at `path`, which nobody has open, as far as it is damaged, and opens it.
    /// `tell` is told of each thing that is damaged, and of what is lost by it, before anything
    /// is changed for it (the module `repair` says what is done). Nothing is changed in a sound
    /// pool.
    ///
    /// # Errors
    /// As [`Scmkv::open`], for damage of what cannot be done without: the pool's header, both
    /// copies of its root, more than a word of what the table says of a page. [`Error::NoSpace`] if
    /// there is no page for what must be written.
    pub fn repair(
        path: &Path,
        media: MediaChoice,
        options: Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let restored = Pool::repair(path).map_err(open::pool_error)?;
        let pool = Pool::open(path, &OpenOptions { media }).map_err(open::pool_error)?;
        Self::repaired(pool, restored, options, tell)
    }

    /// As [`Scmkv::repair`], in the simulator's memory.
    ///
    /// # Errors
    /// As [`Scmkv::repair`].
    pub fn simulated_repair(
        space: Arc<Space>,
        options: Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let pool = Pool::simulated_open(space).map_err(open::pool_error)?;
        Self::repaired(pool, Vec::new(), options, tell)
    }

    fn repaired(
        pool: Pool,
        restored: Vec<String>,
        options: Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let (pool, mut repair) = Store::repair(pool, restored, &options, tell)?;
        let store = Store::open(pool, &options, &|_| {})?;
        store.drop_broken(&mut repair, tell)?;
        Ok((Self::start(store, &options)?, repair))
    }
}

impl Store {
    /// Repairs the store that a pool holds, so that [`Store::open`] can open it.
    ///
    /// # Errors
    /// If what is damaged is not held twice and cannot be done without: the header of the pool, its
    /// root, more than a word of what the table says of a page. If there is no space for the
    /// tombstones.
    pub(crate) fn repair(
        pool: Pool,
        restored: Vec<String>,
        options: &Options,
        tell: Tell<'_>,
    ) -> Result<(Pool, Repair)> {
        let mut repair = Repair::default();
        for what in restored {
            repair.add(tell, Finding { page: 0, offset: 0, len: 0, what, keys: Vec::new() });
        }
        let before = repair.findings.len();
        heal(pool.space(), &mut repair, tell)?;
        let (store, logs, indexes) = Self::to_be_repaired(pool, options, &mut repair, tell)?;
        let plan = store.plan(&logs, &indexes)?;
        for finding in plan.findings(&store) {
            repair.add(tell, finding);
        }
        if repair.findings.len() > before {
            store.carry_out(plan)?;
        }
        Ok((store.released()?, repair))
    }

    /// A store without an index, its log pages readable to their ends; the log pages, and the
    /// pages of the index in the pool.
    fn to_be_repaired(
        pool: Pool,
        options: &Options,
        repair: &mut Repair,
        tell: Tell<'_>,
    ) -> Result<(Self, Vec<LogPage>, Vec<u32>)> {
        pool.expect_kind(crate::KIND).map_err(open::pool_error)?;
        let geometry = Geometry::from_parameters(&pool.parameters())?;
        let space = Arc::clone(pool.space());
        open::check_len(space.len())?;
        let root = Root::from_words(pool.root());
        if root.version_base == 0 {
            return Err(Error::Unusable("the store was never wholly created".to_owned()));
        }
        let pages = Pages::new(Arc::clone(&space), open::pages_max(&space));
        let formatted = u32::try_from(root.formatted).unwrap_or(u32::MAX).min(pages.len());
        let seeds = Seeds::of(pool.uuid());
        let now = options.time.as_ref().map_or_else(UnixMillis::now, |time| time());
        table::restore(&space, geometry, (&pages, formatted), (seeds, now), repair, tell)?;
        let elements = pages.load(formatted, false)?;
        let (index, arena) = open::new_index(&space, false, geometry, false, &pages)?;
        let (checkpoints, counted) = (Checkpoints::default(), false);
        let parts = open::Parts { pool, geometry, pages, index, arena, checkpoints, root, counted };
        let store = Self::assemble(parts, options)?;
        let of_kind = |kind| elements.iter().filter(move |(_, element)| element.kind == kind);
        let logs: Vec<LogPage> = of_kind(crate::page::Kind::Log)
            .map(|(page, element)| LogPage { page: *page, element: *element })
            .collect();
        let indexes: Vec<u32> = of_kind(crate::page::Kind::Index).map(|(page, _)| *page).collect();
        let readable = logs.iter().map(|log| log.page).chain(indexes.iter().copied());
        for page in readable {
            if !store.space.adopt_log(page, geometry.page_size) {
                return Err(Error::Unusable(format!("page {page} cannot be read")));
            }
        }
        Ok((store, logs, indexes))
    }

    /// The pool, its pages claimed by nobody.
    fn released(self) -> Result<Pool> {
        let Self { pool, space, .. } = self;
        for page in 0..space.pages() {
            space.retire(page);
        }
        reclaim_all(&space)?;
        Ok(pool)
    }
}

/// Lets every page be read.
fn heal(space: &Arc<Space>, repair: &mut Repair, tell: Tell<'_>) -> Result<()> {
    for page in 0..space.pages() {
        if space.probe(page).is_ok() {
            continue;
        }
        let healed = space.heal(page).map_err(|source| Error::Io {
            context: format!("make page {page} readable (copy the pool to another device)"),
            source,
        })?;
        for offset in healed {
            let what = "could not be read, and is zeroes now".to_owned();
            repair.add(tell, Finding { page, offset, len: 4096, what, keys: Vec::new() });
        }
    }
    Ok(())
}

/// Lets every page that was retired be claimed again.
fn reclaim_all(space: &Space) -> Result<()> {
    let (since, mut backoff) = (Instant::now(), Backoff::new());
    while space.retired_len() > 0 {
        if space.reclaim().is_none() {
            if since.elapsed() > PATIENCE {
                return Err(Error::Unusable("a reader of another store does not end".to_owned()));
            }
            backoff.wait();
        }
    }
    Ok(())
}
