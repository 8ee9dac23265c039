//! Makes and opens disks.

use super::{Disk, NOWHERE, Options, PARTITIONS_MAX, Shared};
use crate::balance::Balance;
use crate::disk::Mode;
use crate::error::{Error, Result};
use crate::queue::QueueSet;
use crate::volume::Volume;
use crate::volume::layout::{Geometry, Identity};
use coreplane_pmem::{MediaChoice, Pool, Space, mutant};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The pool of a partition of a disk that is a directory.
pub(super) fn partition_path(path: &Path, partition: u32) -> PathBuf {
    path.join(format!("q{partition}"))
}

const SECTOR_LENS: RangeInclusive<u32> = 1 << 10..=1 << 16;

pub(super) fn geometry_of(options: &Options) -> Result<Geometry> {
    let sector_len = options.sector_len;
    let sectors = options.size.div_ceil(u64::from(sector_len.max(1)));
    if !SECTOR_LENS.contains(&sector_len) || !sector_len.is_power_of_two() {
        return Err(Error::Partitions(format!(
            "a sector of {sector_len} bytes: it has a power of two of them, {} to {}",
            SECTOR_LENS.start(),
            SECTOR_LENS.end()
        )));
    }
    if sectors == 0 {
        return Err(Error::Partitions("a disk of 0 bytes: it has at least one sector".to_owned()));
    }
    if !(1..=PARTITIONS_MAX).contains(&options.partitions) {
        let given = options.partitions;
        return Err(Error::Partitions(format!(
            "{given} partitions: there are 1 to {PARTITIONS_MAX}"
        )));
    }
    Ok(Geometry { sector_len, sectors })
}

impl Disk {
    /// Makes a disk whose sectors are all zeroes, durable when it returns: a disk with one partition in a pool at
    /// `path`, one with several in `path`/q0, q1 …; the directory is made if it does not exist. What a making left
    /// there that was cut off is removed.
    ///
    /// # Errors
    /// As [`Pool::create`]; [`Error::Partitions`] for invalid sizes. The files that were made are removed.
    pub fn create(path: &Path, options: &Options) -> Result<Self> {
        let geometry = geometry_of(options)?;
        let partitions = options.partitions;
        Self::remove_leftovers(path, &options.media)?;
        let disk = RandomState::new().hash_one(path).max(1);
        let (mut paths, mut is_made) = (vec![path.to_owned()], false);
        if partitions > 1 {
            if !path.exists() {
                std::fs::create_dir(path)?;
                is_made = true;
                coreplane_pmem::pool::sync_directory(path)?;
            }
            paths = (0..partitions).map(|partition| partition_path(path, partition)).collect();
        }
        let mut pools: Vec<Pool> = Vec::new();
        let mut make = || {
            for (partition, place) in (0..).zip(&paths) {
                let identity = Identity { disk, partition, partitions };
                pools.push(Volume::create(place, identity, geometry, options.media.clone())?);
            }
            // The first one last: an unfinished disk does not have it.
            pools.iter().rev().try_for_each(|pool| Volume::finish_making(pool, geometry))
        };
        if let Err(error) = make() {
            // The removed pools did not belong to a disk yet. The first one last, as of remains: a removal that is
            // cut off goes on with the next making.
            let made = pools.iter().rev().filter_map(|pool| pool.path());
            made.for_each(|path| drop(std::fs::remove_file(path)));
            if is_made {
                drop(std::fs::remove_dir(path));
            }
            return Err(error);
        }
        let volumes: Result<Vec<Volume>> = pools.into_iter().map(Volume::of_fresh).collect();
        Self::over(volumes?, options, paths)
    }

    /// Opens the disk at `path`: a pool, or a directory of pools.
    ///
    /// # Errors
    /// As [`Pool::open`]; [`Error::Partitions`] if the pools do not form one disk.
    pub fn open(path: &Path, options: &Options) -> Result<Self> {
        let mut paths = vec![path.to_owned()];
        if path.is_dir() {
            paths = vec![partition_path(path, 0)];
        }
        let open = |path: &Path| Volume::open_pool(path, options.media.clone());
        let mut pools = vec![open(&paths[0])?];
        let partitions = Identity::of(&pools[0])?.partitions;
        for partition in 1..partitions {
            let path = partition_path(path, partition);
            pools.push(open(&path)?);
            paths.push(path);
        }
        Self::over(volumes_of(pools)?, options, paths)
    }

    /// Grows the disk to `size` bytes, rounded up to whole sectors; does nothing if it is already that large. It must
    /// be opened again, at the same place. An interrupted growth goes on with the next call: the disk keeps its old
    /// length until all partitions are larger. `media` is that with which the disk was opened.
    ///
    /// # Errors
    /// As [`Disk::open`]; [`Error::Pool`] if there is no space, after which the disk is as before.
    pub fn grow(self, media: &MediaChoice, size: u64) -> Result<()> {
        let paths = self.paths.clone();
        self.close()?;
        for path in paths {
            let volume = Volume::of(Volume::open_pool(&path, media.clone())?)?;
            let sectors = size.div_ceil(u64::from(volume.geometry().sector_len));
            volume.grow(sectors)?;
        }
        Ok(())
    }

    /// Makes a disk in spaces of the simulator, one for each partition, without threads: for one caller at a time.
    ///
    /// # Errors
    /// As [`Disk::create`].
    pub fn simulated_create(spaces: &[Arc<Space>], options: &Options) -> Result<Self> {
        let geometry = geometry_of(options)?;
        let partitions = spaces.len() as u32;
        let pools: Result<Vec<Pool>> = (0..)
            .zip(spaces)
            .map(|(partition, space)| {
                let identity = Identity { disk: 1, partition, partitions };
                Volume::simulated_create(Arc::clone(space), identity, geometry)
            })
            .collect();
        let pools = pools?;
        for pool in pools.iter().rev() {
            Volume::finish_making(pool, geometry)?;
        }
        let volumes: Result<Vec<Volume>> = pools.into_iter().map(Volume::of_fresh).collect();
        Ok(Self::without_threads(volumes?, options)?.0)
    }

    /// Opens the disk in spaces of the simulator, after a power cut or not.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn simulated_open(spaces: &[Arc<Space>], options: &Options) -> Result<Self> {
        let open = |space: &Arc<Space>| Volume::expected(Pool::simulated_open(Arc::clone(space))?);
        let pools: Result<Vec<Pool>> = spaces.iter().map(open).collect();
        Ok(Self::without_threads(volumes_of(pools?)?, options)?.0)
    }

    /// As [`Disk::grow`], in spaces of the simulator.
    ///
    /// # Errors
    /// As [`Disk::grow`].
    pub fn simulated_grow(spaces: &[Arc<Space>], size: u64) -> Result<()> {
        spaces.iter().try_for_each(|space| {
            let volume = Volume::of(Pool::simulated_open(Arc::clone(space))?)?;
            let sectors = size.div_ceil(u64::from(volume.geometry().sector_len));
            volume.grow(sectors)
        })
    }

    fn without_threads(mut volumes: Vec<Volume>, options: &Options) -> Result<(Self, usize)> {
        settle_lost(&mut volumes)?;
        volumes.iter_mut().for_each(Volume::heal_maps);
        let geometry = common_geometry(&volumes)?;
        let owners = owners(&volumes, geometry)?.into_iter().map(AtomicU8::new).collect();
        let sets = if options.mode == Mode::MultiQueue { volumes.len() } else { 1 };
        let write_max = match volumes.iter().all(Volume::is_durable_at_once) {
            true => u64::MAX,
            false => {
                let entries = geometry.journal_len(volumes.len() as u32);
                entries / 2 * u64::from(geometry.sector_len)
            }
        };
        let shared = Shared {
            owners,
            sets: (0..sets).map(|_| QueueSet::default()).collect(),
            balance: Mutex::new(Balance::new(options.policy, volumes.len())),
            placing: Mutex::default(),
            mode: options.mode,
            len: geometry.sectors * u64::from(geometry.sector_len),
            write_max,
            volumes,
        };
        Ok((Self { shared: Arc::new(shared), threads: Vec::new(), paths: Vec::new() }, sets))
    }

    fn over(volumes: Vec<Volume>, options: &Options, paths: Vec<PathBuf>) -> Result<Self> {
        let (mut disk, sets) = Self::without_threads(volumes, options)?;
        disk.paths = paths;
        for set in (0..sets).filter(|_| options.mode != Mode::Sync) {
            let shared = Arc::clone(&disk.shared);
            let work = move || shared.serve(set);
            let name = format!("coreplane-set-{set}");
            disk.threads.push(std::thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(disk)
    }
}

/// The geometry of the disk: after an interrupted growth the smallest size counts.
fn common_geometry(volumes: &[Volume]) -> Result<Geometry> {
    let geometries = volumes.iter().map(Volume::geometry);
    let smallest = geometries.min_by_key(|geometry| geometry.sectors);
    smallest.ok_or_else(|| Error::Partitions("a disk without pools".to_owned()))
}

/// The partition that has each extent.
fn owners(volumes: &[Volume], geometry: Geometry) -> Result<Vec<u8>> {
    let owner_of = |extent| {
        let mut owners = (0..).zip(volumes).filter(|(_, volume)| volume.has(extent));
        let owner = owners.next().map_or(NOWHERE, |it| it.0);
        owners.next().map_or(Ok(owner), |_| {
            let what = format!("extent {extent} is in two partitions: one is another disk's");
            Err(Error::Partitions(what))
        })
    };
    (0..geometry.extents()).map(owner_of).collect()
}

/// Gives each extent whose word is damaged in a directory to one partition: to the one that has it, or to the first.
fn settle_lost(volumes: &mut [Volume]) -> Result<()> {
    // An extent of its own left room in the partition when it was lost.
    let had_room: Vec<bool> = volumes.iter().map(Volume::has_room_for_one).collect();
    for (at, had_room) in had_room.into_iter().enumerate() {
        let lost = volumes.get_mut(at).map(|volume| std::mem::take(&mut volume.lost));
        for extent in lost.unwrap_or_default() {
            let is_others = volumes.iter().any(|volume| volume.has(extent));
            if had_room && (!is_others || mutant!("tio.lost.twice")) {
                let owner = owner_of_lost(volumes, at);
                if let Some(volume) = volumes.get(owner) {
                    volume.replace_lost(&[extent])?;
                }
                if owner == at {
                    continue;
                }
            }
            if let Some(volume) = volumes.get_mut(at) {
                volume.forget_lost(extent)?;
            }
        }
    }
    Ok(())
}

/// The partition that takes an extent whose word in the directory of partition `at` is damaged. The room there may
/// have gone to an extent that nobody had; then another partition has room, since none has this extent.
fn owner_of_lost(volumes: &[Volume], at: usize) -> usize {
    let room_of = |at: &usize| volumes.get(*at).map_or(0, Volume::room);
    let by_room = (0..volumes.len()).max_by_key(room_of);
    by_room.filter(|_| room_of(&at) == 0).unwrap_or(at)
}

/// Makes partitions of the pools of a disk. This replays their journals, after which no open finds a second time what
/// could not be replayed: pools that are not those of one disk are refused before.
fn volumes_of(pools: Vec<Pool>) -> Result<Vec<Volume>> {
    if !mutant!("tio.open.unchecked") {
        check(&pools)?;
    }
    let found: Result<Vec<Volume>> = pools.into_iter().map(Volume::found).collect();
    let mut volumes = found?;
    let _owners = owners(&volumes, common_geometry(&volumes)?)?;
    volumes.iter_mut().try_for_each(Volume::recover)?;
    Ok(volumes)
}

/// Fails unless these are the partitions of one disk, in their order.
fn check(pools: &[Pool]) -> Result<()> {
    let Some(first) = pools.first() else { return Ok(()) };
    let (identity, sector_len) = (Identity::of(first)?, first.space().page_size());
    for (partition, pool) in (0..).zip(pools) {
        let expected = Identity { partition, ..identity };
        if Identity::of(pool)? != expected || pool.space().page_size() != sector_len {
            return Err(Error::Partitions(format!(
                "the pool in the place of partition {partition} is that of another one, or of another disk"
            )));
        }
    }
    match identity.partitions as usize == pools.len() {
        true => Ok(()),
        false => {
            let (has, found) = (identity.partitions, pools.len());
            Err(Error::Partitions(format!("the disk has {has} partitions, and {found} are here")))
        }
    }
}
