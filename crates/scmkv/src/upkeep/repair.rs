//! Repair: drops damaged records, names lost keys if possible, takes the rest from the logs.
//!
//! A person runs `coreplane verify --repair` on a pool that is not open anywhere. Each step reports
//! its findings before it changes anything for them:
//!
//! ```text
//!   heal      bytes that cannot be read become zeroes
//!   table     lost words of the page information table are replaced
//!   survey    every log page: records ▓ and gaps ░     ▓▓▓▓░░▓▓▓▓▓▓░░░░▓▓▓
//!   batches   batches that lost their commit record get another
//!   mend      a `Lost` record over each gap
//!   open      as after any crash
//!   misfits   slots that fit no record: their keys are named and get a tombstone
//! ```
//!
//! **What becomes of a key.** None silently shows an older value, or comes back after a delete. For
//! each gap the report says that keys last written there are absent now, or have their former
//! value; the keys that its bytes show are named as *uncertain*. With the index in the pool, slots
//! that point into a gap show which keys were there ([`misfits`]): such a key is *lost* and gets a
//! tombstone above all others, so that no older record of it comes back. An index in DRAM is
//! rebuilt, and so is one whose segments do not fit together. A value is never restored from bytes
//! whose checksum is wrong. The lost end of a log that was open at a crash looks as if the crash
//! had cut it off there, unless slots point behind it, or nothing of the page is left.
//!
//! **Three faults at once.** If the commit record of a batch was in such a lost end, its loss goes unnoticed: slots
//! lead to the members. If another damage is repaired, and a third forces a rebuild of the index, the members are
//! lost. Sound records behind damage in an open page are lost, too, if none of them proves that the bytes before it
//! were durable. Several slots of garbage in one group may make the open fail.
//!
//! **Interrupted.** Only gaps are overwritten, and slots without a record once their key has its
//! tombstone or cannot be named. Steps that are not done yet leave the damage as before.

mod batches;
mod mend;
mod misfits;
mod survey;

use crate::recovery::checkpoint::Source;
use crate::recovery::open::{self, Options};
use crate::recovery::recover::LogPage;
use crate::store::Store;
use crate::table::Seeds;
use crate::table::checkpoints::Checkpoints;
use crate::table::index::Index;
use crate::table::page::{self, Element, Kind};
use crate::table::root::Root;
use coreplane_engine::{Error, Repair, Result, Tell, UnixMillis};
use coreplane_pmem::spin::Patience;
use coreplane_pmem::{Pool, Space};
use std::sync::Arc;
use std::time::Duration;
use survey::Surveyed;

/// How long to wait for readers of other stores in this process.
const PATIENCE: Duration = Duration::from_secs(10);

impl Store {
    /// Repairs the store in `pool`, and opens it; `restored` lists the repairs of the pool itself.
    pub(crate) fn repaired(
        pool: Pool,
        restored: Vec<String>,
        options: &Options,
        tell: Tell<'_>,
    ) -> Result<(Self, Repair)> {
        let mut repair = Repair::default();
        restored.into_iter().for_each(|what| repair.note(tell, 0, (0, 0), what));
        heal(pool.space(), &mut repair, tell)?;
        let pool = Self::mended(pool, options, &mut repair, tell)?;
        let store = Self::open(pool, options, &|_| {})?;
        store.settle_index(&mut repair, tell)?;
        Ok((store, repair))
    }
}

impl Store {
    fn mended(pool: Pool, options: &Options, repair: &mut Repair, tell: Tell<'_>) -> Result<Pool> {
        let (geometry, space, root) = open::known(&pool)?;
        let (pages, formatted) = open::pages_of(&space, root);
        let seeds = Seeds::of(pool.uuid());
        let now = options.time.as_ref().map_or_else(UnixMillis::now, |time| time());
        let words = page::restored(&space, geometry, (&pages, formatted), (seeds, now))?;
        reclaim_all(&space)?;
        for (page, offset, word, what) in words {
            let what = format!("the page information of page {page}: {what}");
            repair.note(tell, page, (offset, 8), what);
            pages.word(offset)?.store(word);
            pages.word(offset)?.flush();
        }
        space.fence().map_err(page::sync_failed)?;
        let (elements, progress) = (pages.load(formatted, false)?, &|_| {});
        let source = Source { space: &space, geometry, seeds, elements: &elements, progress };
        if source.load(root)?.is_damaged {
            let what = "the checkpoint of the index is damaged; the logs have all of it";
            repair.note(tell, 0, (0, 0), what.to_owned());
        }
        let (index, arena) = open::new_index(&space, false, geometry, false, &pages)?;
        let (checkpoints, counted) = (Checkpoints::default(), false);
        let parts = open::Parts { pool, geometry, pages, index, arena, checkpoints, root, counted };
        let store = Self::assemble(parts, options)?;
        store.mend_logs(&elements, repair, tell)?;
        let pool = store.writer.cleaner.reader.table.pool;
        for page in 0..space.pages() {
            space.retire(page);
        }
        reclaim_all(&space)?;
        Ok(pool)
    }

    fn mend_logs(
        &self,
        elements: &[(u32, Element)],
        repair: &mut Repair,
        tell: Tell<'_>,
    ) -> Result<()> {
        let of_kind = |kind| elements.iter().filter(move |(_, element)| element.kind == kind);
        for (page, _) in of_kind(Kind::Log).chain(of_kind(Kind::Index)) {
            if !self.space.adopt_log(*page, self.geometry.page_size) {
                return Err(Error::Unusable(format!("page {page} cannot be read")));
            }
        }
        let root = self.root();
        let starts: Vec<u64> = of_kind(Kind::Index).map(|it| self.space.start_of(it.0)).collect();
        let in_pool = root.has(Root::IN_POOL) && self.space.fences_at_once();
        let is_old = in_pool && (root.has(Root::CLEAN) || !root.has(Root::NON_STRICT));
        let is_broken =
            is_old.then(|| Index::check(&self.space, &self.geometry, &starts).err()).flatten();
        if let Some(error) = &is_broken {
            repair.note(tell, 0, (0, 0), format!("{error}; the index is made anew from the logs"));
        }
        let logs = of_kind(Kind::Log).map(|it| LogPage { page: it.0, element: it.1 });
        let surveyed: Vec<Surveyed> = logs.map(|log| self.survey(log)).collect();
        for page in &surveyed {
            page.gaps.iter().for_each(|gap| repair.add(tell, self.finding(page, gap)));
        }
        if repair.findings.is_empty() {
            return Ok(());
        }
        self.write_commits(&self.lost_commits(&surveyed))?;
        let anew = if is_broken.is_some() { Root::NON_STRICT } else { 0 };
        let flags = root.flags & !Root::CLEAN | anew;
        self.set_root(Root { flags, checkpoint: 0, replay_birth: 0, ..root })?;
        surveyed.iter().filter(|page| !page.gaps.is_empty()).try_for_each(|page| self.mend(page))
    }
}

/// Makes every page readable.
fn heal(space: &Arc<Space>, repair: &mut Repair, tell: Tell<'_>) -> Result<()> {
    for page in (0..space.pages()).filter(|page| space.probe(*page).is_err()) {
        let healed = space.heal(page).map_err(|source| Error::Io {
            context: format!("make page {page} readable (copy the pool to another device)"),
            source,
        })?;
        for offset in healed {
            let what = "could not be read, and is zeroes now".to_owned();
            repair.note(tell, page, (offset, 4096), what);
        }
    }
    Ok(())
}

/// Makes every page that was retired claimable again.
fn reclaim_all(space: &Space) -> Result<()> {
    let mut patience = Patience::new(PATIENCE);
    while space.retired_len() > 0 && (space.reclaim().is_some() || patience.wait()) {}
    let in_use = || Error::Unusable("a reader of another store does not end".to_owned());
    if space.retired_len() == 0 { Ok(()) } else { Err(in_use()) }
}
