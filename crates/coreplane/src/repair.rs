//! The repair of a pool that is damaged, or was cut short.
//!
//! `scmkv` has a repair of its own, which makes its index anew. The other engines open a damaged pool, and report
//! which keys are damaged, and in which ranges of keys records were lost. The repair gives these up, so that the rest
//! is sound:
//!
//! ```text
//!   restore     the length of a file that was cut short, a damaged copy of the root
//!   verify      the damage, with its keys                       reported
//!   accept      each range of keys with lost records            its records count, its other keys are absent
//!   delete      each key whose record cannot be read            it is absent, no older record of it is shown
//!   scrub       the rest of the damage is left behind
//! ```
//!
//! A step may uncover more damage, so the steps are repeated until no damage is found. Damage that cannot be given up
//! so, such as the rest of a long key, makes the repair fail. A repair that is cut off is begun anew.
//!
//! For `list` and `cow-tree` only what is restored is repaired, and a file that was cut short. Any other damage of a
//! list may make all of its older records doubtful, and a tree that has lost nodes above its leaves takes no delete:
//! such a pool is left as it is.

use crate::config::{EngineChoice, StoreConfig};
use crate::geometry::pool_page_size;
use crate::matrix::is_device_at;
use crate::store::{Pooled, Store, engine_options};
use coreplane_bptree::Bptree;
use coreplane_engine::{
    Damage, Error, Fate, Finding, KeyRange, Repair, Repairable, Result, Tell, WriteOptions,
};
use coreplane_mvcc::MapEngine;
use coreplane_pmem::{OpenOptions, Pool, PoolError};
use coreplane_record::{Options, pool_error};
use coreplane_scmkv::Scmkv;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// The most rounds of steps.
const ROUNDS_MAX: usize = 8;

impl Store {
    pub(crate) fn repair(config: &StoreConfig, tell: Tell<'_>) -> Result<(Self, Repair)> {
        let path = &config.path;
        if path.is_dir() {
            let operation = "repairing a matrix: a device that is damaged is left out";
            return Err(Error::Unsupported { engine: coreplane_mkvs::NAME, operation });
        }
        // Before the file gets its length back.
        if !config.accept_loss && is_device_at(path) {
            let path = path.display();
            return Err(Error::Unusable(format!(
                "{path} is a device of a matrix: what its repair gives up would be deleted on its peers, too"
            )));
        }
        let media = config.media.clone();
        let options = Options { is_repair: true, check_reads: true, ..engine_options(config) };
        let (pooled, repair) = match Self::engine_at(config) {
            EngineChoice::Scmkv => {
                let (found, repair) = Scmkv::repair(path, media, engine_options(config), tell)?;
                (Pooled::Scmkv(Arc::new(found)), repair)
            }
            EngineChoice::Bptree => {
                let restored = restore(config, Pool::repair)?;
                let found = Bptree::open(path, media, &options, &|_| {})?;
                let repair = give_up_damage(&found, path, restored, tell)?;
                (Pooled::Bptree(Arc::new(found)), repair)
            }
            EngineChoice::Map(kind) => {
                let restored = restore(config, Pool::repair_in_pages)?;
                if !Pool::is_cut_short(path).map_err(pool_error)? {
                    let repair = noted(restored, tell);
                    return Ok((sound(config)?, repair));
                }
                let found = MapEngine::open(kind, path, media, &options, &|_| {})?;
                let repair = give_up_damage(&found, path, restored, tell)?;
                (Pooled::Map(Arc::new(found)), repair)
            }
            EngineChoice::Model => return Ok((Self::model(config)?, Repair::default())),
        };
        Ok((Self::pooled(config, pooled), repair))
    }
}

/// Opens a pool of an engine whose other damage is not repaired; fails if it is not sound.
fn sound(config: &StoreConfig) -> Result<Store> {
    let store = Store::open(config)?;
    if !store.engine().verify(&mut |_| {})?.is_sound() {
        let operation = "repairing a pool that was not cut short: what is damaged is only told";
        return Err(Error::Unsupported { engine: store.engine().name(), operation });
    }
    Ok(store)
}

/// Restores the parts that an open would refuse; a description of each change.
fn restore(
    config: &StoreConfig,
    restore: fn(&Path, &OpenOptions) -> std::result::Result<Vec<String>, PoolError>,
) -> Result<Vec<String>> {
    let media = OpenOptions { media: config.media.clone() };
    restore(&config.path, &media).map_err(pool_error)
}

/// A repair that has restored these parts.
fn noted(restored: Vec<String>, tell: Tell<'_>) -> Repair {
    let mut repair = Repair::default();
    restored.into_iter().for_each(|what| repair.note(tell, 0, (0, 0), what));
    repair
}

/// Gives up the damage of a store that was opened for a repair, until it is sound. Durable when it returns.
fn give_up_damage(
    engine: &dyn Repairable,
    path: &Path,
    restored: Vec<String>,
    tell: Tell<'_>,
) -> Result<Repair> {
    let mut repair = noted(restored, tell);
    let page_size = u64::from(pool_page_size(path).unwrap_or(u32::MAX));
    let mut told = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let report = engine.verify(&mut |_| {})?;
        let ranges = engine.lost_ranges()?;
        if report.is_sound() && ranges.is_empty() {
            engine.sync()?;
            Pool::end_repair(path).map_err(pool_error)?;
            return Ok(repair);
        }
        let (mut lost, mut findings) = (Vec::new(), Vec::new());
        for damage in report.damages {
            findings.push(finding_of(engine, page_size, damage, &ranges)?);
        }
        for finding in findings {
            let keys = finding.keys.iter().filter(|(_, fate)| *fate == Fate::Lost);
            lost.extend(keys.map(|(key, _)| key.clone()));
            if told.insert((finding.offset, finding.what.clone())) {
                repair.add(tell, finding);
            }
        }
        for range in &ranges {
            let what = of_range(range);
            if told.insert((0, what.clone())) {
                repair.note(tell, 0, (0, 0), what);
            }
            engine.accept(range)?;
        }
        for key in lost {
            // The result does not matter: there is no record now.
            let _outcome = engine.delete(&key, &WriteOptions::default())?;
        }
        engine.scrub(&mut |_| {})?;
    }
    let what = "damage is left that cannot be given up".to_owned();
    Err(Error::Corrupt { offset: repair.findings.last().map_or(0, |it| it.offset), what })
}

/// The fate of the keys of a damage: keys in one of the lost ranges are accepted as they are.
fn finding_of(
    engine: &dyn Repairable,
    page_size: u64,
    damage: Damage,
    ranges: &[KeyRange],
) -> Result<Finding> {
    let is_within = |key: &[u8]| {
        ranges
            .iter()
            .any(|range| *range.start <= *key && range.end.as_deref().is_none_or(|end| *key < *end))
    };
    let fate = |key: Vec<u8>| match engine.check(&key) {
        Ok(true) => Ok((key, Fate::Uncertain)),
        Ok(false) => Ok((key, Fate::Deleted)),
        Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => {
            let fate = if is_within(&key) { Fate::Uncertain } else { Fate::Lost };
            Ok((key, fate))
        }
        Err(error) => Err(error),
    };
    let Damage { offset, what, keys } = damage;
    let keys = keys.into_iter().map(fate).collect::<Result<Vec<_>>>()?;
    let page = u32::try_from(offset / page_size).unwrap_or(u32::MAX);
    Ok(Finding { page, offset, len: 0, what, keys })
}

/// A description of the loss in a range.
fn of_range(range: &KeyRange) -> String {
    let start = range.start.escape_ascii();
    let end = range.end.as_ref().map_or_else(
        || "on, to the last".to_owned(),
        |end| format!("to \"{}\"", end.escape_ascii()),
    );
    format!(
        "keys from \"{start}\" {end}: records were lost that cannot be named, and a key that has no record is absent now"
    )
}
