//! Makes and opens a partition, and finds its named and its free blocks.

use super::blocks::Blocks;
use super::journal::Journal;
use super::layout::{Geometry, Identity, KIND, Root, WORD};
use super::name::{DAMAGED, Name, directory_word, map_page_of};
use super::{Batch, Extent, Volume};
use crate::error::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::{
    Claim, CreateOptions, Durable, MediaChoice, OpenOptions, Pool, Space, mutant,
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// False if a load from the page would end the process.
fn can_load(space: &Space, page: u32) -> bool {
    page >= space.pages() || space.probe_loads(page).is_ok() || mutant!("tio.open.unprobed")
}

/// The data of an extent found at the open.
struct Found {
    map_page: u32,
    names: Vec<u64>,
}

fn options_of(identity: Identity, geometry: Geometry, media: MediaChoice) -> Result<CreateOptions> {
    Ok(CreateOptions {
        size: geometry.partition_bytes(identity.partitions)?,
        media,
        page_size: geometry.sector_len,
        kind: KIND.to_owned(),
        parameters: identity.to_parameters(),
    })
}

impl Volume {
    /// Makes a partition of a disk at `path`. It is not valid before [`Volume::finish_making`].
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub(crate) fn create(
        path: &Path,
        identity: Identity,
        geometry: Geometry,
        media: MediaChoice,
    ) -> Result<Pool> {
        Ok(Pool::create(path, &options_of(identity, geometry, media)?)?)
    }

    /// The same in the simulator's memory.
    ///
    /// # Errors
    /// As [`Pool::simulated_create`].
    pub(crate) fn simulated_create(
        space: Arc<Space>,
        identity: Identity,
        geometry: Geometry,
    ) -> Result<Pool> {
        let options = options_of(identity, geometry, MediaChoice::Auto)?;
        Ok(Pool::simulated_create(space, &options)?)
    }

    /// Writes an empty directory, and the root that refers to it; durable when it returns.
    ///
    /// # Errors
    /// [`Error::Pool`], [`Error::Sync`].
    pub(crate) fn finish_making(pool: &Pool, geometry: Geometry) -> Result<()> {
        let (space, directory) = (pool.space(), pool.first_page());
        let tables =
            geometry.directory_pages() + geometry.journal_pages(Identity::of(pool)?.partitions);
        for page in directory..directory + tables as u32 {
            if !space.claim_words(page, Claim::Words) {
                return Err(Error::Partitions(
                    "the pool is too small for its directory".to_owned(),
                ));
            }
            space.flush(space.start_of(page), u64::from(geometry.sector_len));
        }
        space.fence()?;
        let root = Root { sectors: geometry.sectors, directory };
        Ok(pool.set_root(root.to_words())?)
    }

    /// Opens the pool of the partition at `path`.
    ///
    /// # Errors
    /// As [`Pool::open`]; [`Error::Pool`] for a pool of another kind.
    pub(crate) fn open_pool(path: &Path, media: MediaChoice) -> Result<Pool> {
        Self::expected(Pool::open(path, &OpenOptions { media })?)
    }

    /// The pool, if it is one of a partition.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(crate) fn expected(pool: Pool) -> Result<Pool> {
        pool.expect_kind(KIND)?;
        Ok(pool)
    }

    /// Opens the partition in a pool.
    ///
    /// # Errors
    /// [`Error::Partitions`], [`Error::Pool`].
    pub(crate) fn of(pool: Pool) -> Result<Self> {
        let mut volume = Self::found(pool)?;
        volume.recover()?;
        Ok(volume)
    }

    /// The partition in a pool as it was stored, before [`Volume::recover`].
    ///
    /// # Errors
    /// [`Error::Partitions`], [`Error::Pool`].
    pub(crate) fn found(pool: Pool) -> Result<Self> {
        Self::of_either(pool, false)
    }

    /// The partition in a pool that was just made, whose directory is already claimed.
    ///
    /// # Errors
    /// As [`Volume::of`].
    pub(crate) fn of_fresh(pool: Pool) -> Result<Self> {
        let mut volume = Self::of_either(pool, true)?;
        volume.recover()?;
        Ok(volume)
    }

    /// Replays the journal; an open that comes later does not find what this one has found.
    ///
    /// # Errors
    /// [`Error::Sync`], [`Error::NoSpace`].
    pub(crate) fn recover(&mut self) -> Result<()> {
        let lost = std::mem::take(&mut self.lost);
        self.lost = self.replay(lost)?;
        Ok(())
    }

    fn of_either(pool: Pool, is_fresh: bool) -> Result<Self> {
        pool.expect_kind(KIND)?;
        let (identity, root) = (Identity::of(&pool)?, Root::of(&pool)?);
        let geometry = Geometry { sector_len: pool.space().page_size(), sectors: root.sectors };
        let space = pool.space();
        let too_small = || Error::Partitions("the pool is smaller than its directory".to_owned());
        let journal = u64::from(root.directory) + geometry.directory_pages();
        let behind = journal + geometry.journal_pages(identity.partitions);
        if behind > u64::from(space.pages()) || root.directory < pool.first_page() {
            return Err(too_small());
        }
        for page in (root.directory..behind as u32).filter(|_| !is_fresh) {
            if let Err(poisoned) = space.probe_loads(page) {
                let what = format!("{poisoned}: the directory or the journal of the partition");
                return Err(Error::Partitions(what));
            }
            if !space.claim_words(page, Claim::WordsAsStored) {
                return Err(too_small());
            }
        }
        let directory = space.start_of(root.directory);
        let capacity = geometry.journal_len(identity.partitions);
        let journal = Journal::new(space.start_of(journal as u32), capacity);
        let extents = (0..geometry.extents()).map(|_| OnceLock::new()).collect();
        let mut volume = Self {
            identity,
            geometry,
            directory,
            extents,
            blocks: Mutex::default(),
            has_bad: AtomicBool::default(),
            bad_maps: Vec::new(),
            pending: Mutex::default(),
            journal: Mutex::new(journal),
            fresh: Mutex::default(),
            naming: Mutex::default(),
            parts: RwLock::default(),
            spares: Mutex::default(),
            repaired: 0,
            unnamed: 0,
            lost: Vec::new(),
            pool,
        };
        volume.lost = volume.find_extents()?;
        volume.find_free();
        Ok(volume)
    }

    /// Reads the directory and all names. They are durable when it returns: a killed process may have left them in
    /// the caches, and all that follows builds on them.
    fn find_extents(&mut self) -> Result<Vec<u64>> {
        let (mut found, mut repaired, mut lost) = (Vec::new(), 0, Vec::new());
        let tables =
            self.geometry.directory_pages() + self.geometry.journal_pages(self.identity.partitions);
        let page_len = u64::from(self.geometry.sector_len);
        let is_kept = !mutant!("tio.open.kept");
        if is_kept {
            self.space().flush(self.directory, tables * page_len);
        }
        for extent in 0..self.geometry.extents() {
            let Some(word) = self.space().word::<Durable>(self.directory + extent * WORD) else {
                continue;
            };
            let Ok((page, was_flipped)) = map_page_of(extent, word.load()) else {
                lost.push(extent);
                continue;
            };
            if was_flipped {
                word.store(page.map_or(0, |page| directory_word(extent, page)));
                word.flush();
                repaired += 1;
            }
            let Some(page) = page else { continue };
            if !can_load(self.space(), page) {
                self.note_bad(page);
                self.bad_maps.push(page);
                lost.push(extent);
                continue;
            }
            if self.space().claim_words(page, Claim::WordsAsStored) {
                if is_kept {
                    self.space().flush(self.space().start_of(page), page_len);
                }
                found.push((extent, self.names_of(page)));
            } else {
                lost.push(extent);
            }
        }
        self.space().fence()?;
        self.repaired = repaired;
        self.adopt(found)?;
        Ok(lost)
    }

    /// Forgets an extent whose map page is unknown, since it is not in this partition; durable when it returns.
    pub(crate) fn forget_lost(&mut self, extent: u64) -> Result<()> {
        if let Some(word) = self.space().word::<Durable>(self.directory + extent * WORD) {
            word.store(0);
            word.flush();
        }
        self.space().fence()?;
        self.repaired += 1;
        Ok(())
    }

    /// Replaces extents whose map pages are unknown: their sectors are damaged until they are written again.
    pub(crate) fn replace_lost(&self, lost: &[u64]) -> Result<()> {
        for extent in lost {
            self.take_in(*extent)?;
            let first = extent * self.geometry.extent_sectors();
            let mut batch = Batch::default();
            batch
                .damage(first..(first + self.geometry.extent_sectors()).min(self.geometry.sectors));
            // Durable before the directory has the new map page: a map page without names is one of zeroes.
            if !mutant!("tio.lost.zeroes") {
                self.store_names(batch.names.iter().copied(), &[]);
            }
            self.name_at_once(&mut batch)?;
        }
        Ok(())
    }

    fn names_of(&self, map_page: u32) -> Found {
        let start = self.space().start_of(map_page);
        let offsets = (0..self.geometry.extent_sectors()).map(|at| start + at * WORD);
        let load = |offset| self.space().word::<Durable>(offset).map_or(0, |word| word.load());
        Found { map_page, names: offsets.map(load).collect() }
    }

    /// Marks the named blocks as used. A block that two sectors name belongs to the one whose bytes it holds.
    fn adopt(&self, mut found: Vec<(u64, Found)>) -> Result<()> {
        let len = self.geometry.sector_len;
        let mut twice = HashSet::new();
        for (_, Found { names, .. }) in &mut found {
            for word in names {
                match Name::of_word(*word) {
                    Ok(None) => {}
                    Ok(Some(name)) => {
                        if !self.space().adopt_log(name.block, len) {
                            twice.insert(name.block);
                        }
                    }
                    Err(_) => *word = DAMAGED,
                }
            }
        }
        let guard = self.space().pin();
        let (mut nobodys, mut has_stored) = (twice.clone(), false);
        for (extent, Found { map_page, mut names }) in found {
            let first = extent * self.geometry.extent_sectors();
            for (sector, word) in (first..).zip(&mut names).filter(|_| !twice.is_empty()) {
                let Ok(Some(name)) = Name::of_word(*word) else { continue };
                if twice.contains(&name.block) {
                    if self.is_held(&guard, sector, name) {
                        nobodys.remove(&name.block);
                        continue;
                    }
                    // In the pool, too: the next write of the sector must not take that block for its old one.
                    *word = DAMAGED;
                    let offset = self.space().start_of(map_page) + (sector - first) * WORD;
                    if let Some(place) = self.space().word::<Durable>(offset) {
                        place.store(DAMAGED);
                        place.flush();
                        has_stored = true;
                    }
                }
            }
            let cell = self.extents.get(extent as usize);
            let _is_first = cell.map(|cell| cell.set(Extent::new(map_page, names.into_iter())));
        }
        drop(guard);
        self.space().retire_all(&nobodys.into_iter().collect::<Vec<u32>>());
        if has_stored {
            self.space().fence()?;
        }
        Ok(())
    }

    /// True if the block can be read and has the bytes of this name.
    pub(super) fn is_held(&self, guard: &Guard, sector: u64, name: Name) -> bool {
        if !can_load(self.space(), name.block) {
            self.note_bad(name.block);
            return false;
        }
        let start = self.space().start_of(name.block);
        let bytes = self.space().bytes(guard, start, u64::from(self.geometry.sector_len));
        bytes.is_some_and(|bytes| name.is_of(sector, bytes))
    }

    /// All pages except those of the header and the tables.
    pub(super) fn block_pages(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        let journal = self.geometry.journal_pages(self.identity.partitions);
        let first = self.space().page_of(self.directory);
        let behind = first + (self.geometry.directory_pages() + journal) as u32;
        (self.pool.first_page()..first).chain(behind..self.space().pages())
    }

    /// All unused pages are free blocks.
    fn find_free(&mut self) {
        let space = self.pool.space();
        let mut used = vec![false; space.pages() as usize];
        let mut promised = 0;
        for extent in self.extents.iter().filter_map(OnceLock::get) {
            promised += self.geometry.extent_pages();
            let words = extent.names.iter().map(|name| name.load(Ordering::Relaxed));
            for page in words.filter_map(Name::block_of).chain([extent.map_page]) {
                if let Some(used) = used.get_mut(page as usize) {
                    *used = true;
                }
            }
        }
        // Low page numbers are taken first.
        let pages = self.block_pages();
        let bad = std::mem::take(&mut self.blocks.lock().bad);
        let is_free = |page: &u32| !used[*page as usize] && !bad.contains(page);
        let free: Vec<u32> = pages.rev().filter(is_free).collect();
        let all = self.block_pages().count() as u64;
        let unpromised = all.saturating_sub(promised);
        self.blocks = Mutex::new(Blocks { free, unpromised, bad });
    }
}
