//! Names, durable: the catalogue, and the log of its changes.
//!
//! The log is in the pool of the first queue set, and is the only place that says which databases, shards and
//! series there are. Dropping one of them takes one record and one fence for all queue sets at once: data of it
//! that is still in them no longer counts, at no opening, since no number is ever given twice.
//!
//! *Fence, then publish*: the catalogue changes when the log is durable. Threads that make names wait for each
//! other. Other threads wait for them while they change the catalogue, and while they themselves wait for a reader to
//! leave it: so no thread reads it for longer than a short step (`catalogue/filter.rs`).
//!
//! A logged change that is impossible (a fault of this program, since a drawn change can be applied) changes
//! nothing, neither when it is made nor in a replay, and does not hold up later changes. Its caller gets an error,
//! and each opening reports it as damage. (A damaged log is refused as a whole: the data of names in its lost
//! records would count as dropped.)

mod devices;
mod draft;

pub(crate) use devices::interval_of_text;
pub(crate) use draft::Draft;

use crate::catalogue::{Catalogue, Change, Limits};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::pages::{FOR_MANIFEST, FOR_SEALING, Pages, Role};
use coreplane_pmem::{mutant, spin};
use coreplane_tio::Policy;
use devices::Devices;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::cell::RefCell;

/// Names of a store.
#[derive(Debug)]
pub(crate) struct Names {
    log: Mutex<Log>,
    catalogue: RwLock<Catalogue>,
    devices: Mutex<Devices>,
    /// Logged changes that are impossible, as found at the opening.
    refused: Vec<String>,
}

/// Bytes of history from which the log is written anew.
const HISTORY: u64 = 256 << 10;

impl Names {
    /// The names of a new store.
    pub(crate) fn new(limits: Limits, policy: Policy, sets: usize) -> Self {
        Self {
            log: Mutex::new(Log::new(Role::Catalogue)),
            catalogue: RwLock::new(Catalogue::new(limits)),
            devices: Mutex::new(Devices::new(policy, sets)),
            refused: Vec::new(),
        }
    }

    /// Finds the names again; `recover` shows the records of their log.
    ///
    /// # Errors
    /// The error of `recover`; [`Error::Damage`] if the bytes of a record are no changes.
    pub(crate) fn recover(
        &mut self,
        recover: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Log>,
    ) -> Result<()> {
        let (catalogue, refused) = (self.catalogue.get_mut(), &mut self.refused);
        let mut visit = |bytes: &[u8]| {
            let damage = || Error::Damage("a record of the catalogue".to_owned());
            let mut rest = bytes;
            let changes = std::iter::from_fn(|| {
                let (change, behind) = next_change(rest)?;
                rest = behind;
                Some(change)
            });
            catalogue.apply_all(changes, &mut |error| refused.push(error.to_string()));
            if rest.is_empty() { Ok(()) } else { Err(damage()) }
        };
        *self.log.get_mut() = recover(&mut visit)?;
        let devices = self.devices.get_mut();
        catalogue.all_series().for_each(|series| devices.note(series));
        Ok(())
    }

    /// The impossible changes of the log, as found at the opening.
    pub(crate) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// The paper's table of queue sets.
    pub(crate) fn loads(&self) -> Vec<coreplane_tio::Load> {
        spin::lock(&self.devices).loads()
    }

    /// Ends the log, if possible, so that later damage can be told from records that were never written.
    pub(crate) fn end(&self, pages: &Pages) {
        spin::lock(&self.log).end(pages);
    }

    /// The pages of its log.
    pub(crate) fn pages(&self) -> Vec<u32> {
        spin::lock(&self.log).page_list().collect()
    }

    /// The catalogue as it is now.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Catalogue> {
        spin::read(&self.catalogue)
    }

    /// Makes the changes that `draw` finds necessary. No other thread changes the catalogue meanwhile. The changes
    /// are durable, and then visible, when it returns.
    ///
    /// # Errors
    /// The error of `draw`; [`Error::Full`] and [`Error::Sync`], after which a part of the changes may be made.
    pub(crate) fn change<T>(
        &self,
        pages: &Pages,
        draw: impl FnOnce(&mut Draft<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut log = spin::lock(&self.log);
        // After a failed sync the log may have changes that the catalogue lacks, with numbers that would be drawn
        // again.
        if !mutant!("tsdb.names.failed") {
            pages.space().check_sync()?;
        }
        let (changes, drawn) = {
            let (catalogue, mut devices) = (self.read(), spin::lock(&self.devices));
            let mut draft = Draft::new(&catalogue, &mut devices);
            let drawn = draw(&mut draft);
            // Changes that were drawn before an error are sound by themselves.
            (draft.finish(), drawn)
        };
        if changes.is_empty() {
            return drawn;
        }
        let drops_series = changes.iter().any(Change::drops_series);
        let is_drop = changes.iter().all(Change::is_drop) && !mutant!("tsdb.names.reserve");
        let reserve = match is_drop {
            true if mutant!("tsdb.names.greedy") => 0,
            true => FOR_MANIFEST,
            false => FOR_SEALING,
        };
        let mut appended = 0;
        let record_max = Log::record_max(pages);
        let is_kept = |change: &&Change| {
            !matches!(change, Change::ShardDropped { .. }) || !mutant!("tsdb.drop.forgotten")
        };
        let logged = changes.iter().filter(is_kept).cloned();
        let outcome: Result<()> = records(logged, record_max).try_for_each(|it| {
            let (record, count) = it;
            log.append(pages, &record, reserve)?;
            appended += count + usize::from(mutant!("tsdb.drop.forgotten"));
            Ok(())
        });
        let applied = if mutant!("tsdb.names.early") {
            let applied = self.apply(changes, appended);
            log.fence(pages)?;
            applied
        } else {
            log.fence(pages)?;
            self.apply(changes, appended)
        };
        log.mark(pages);
        if drops_series {
            let (catalogue, mut devices) = (self.read(), spin::lock(&self.devices));
            let series = catalogue.all_series().map(|it| (&*it.key, it.set));
            devices.note_drop(catalogue.series_count(), series);
        }
        let outcome = outcome.and(applied);
        // A drop that finds no page may find one once the log is shorter.
        if outcome.is_ok() || (is_drop && matches!(outcome, Err(Error::Full(_)))) {
            // It gives back more pages than it takes: for a drop it may take the last ones.
            self.shorten(&mut log, pages, if is_drop { 0 } else { FOR_MANIFEST })?;
        }
        outcome.and(drawn)
    }

    fn apply(&self, changes: Vec<Change>, count: usize) -> Result<()> {
        let mut catalogue = spin::write(&self.catalogue);
        let failed = RefCell::new(Ok(()));
        let is_stopped = || mutant!("tsdb.names.stop") && failed.borrow().is_err();
        let changes = changes.into_iter().take(count).take_while(|_| !is_stopped());
        catalogue.apply_all(changes, &mut |error| {
            let mut failed = failed.borrow_mut();
            if failed.is_ok() {
                *failed = Err(error);
            }
        });
        failed.into_inner()
    }

    /// Writes the log anew if most of it is history.
    fn shorten(&self, log: &mut Log, pages: &Pages, reserve: usize) -> Result<()> {
        let is_long = log.bytes > HISTORY && !mutant!("tsdb.names.history");
        let garbage = self.read().garbage_bytes();
        if (is_long && garbage > log.bytes / 2) || log.is_sparse(pages) {
            // As long as there is no room at all, the names are not looked through at each change.
            let live = log.bytes.saturating_sub(garbage) / u64::from(pages.page_len());
            if live < pages.free_count() as u64 {
                self.write_anew(log, pages, reserve)?;
            }
        }
        Ok(())
    }

    fn write_anew(&self, log: &mut Log, pages: &Pages, reserve: usize) -> Result<()> {
        let is_written = {
            let catalogue = self.read();
            let records = || records(catalogue.changes(), Log::record_max(pages)).map(|it| it.0);
            log.checkpoint(pages, records, reserve)?
        };
        // Without room for it a later change tries again.
        if is_written {
            spin::write(&self.catalogue).note_new_log();
        }
        Ok(())
    }
}

// media-format: begin pool
/// Encodes changes as records, with as many in each as fit, each change behind its length. Also returns the number
/// of changes of each record. The changes of a record are made together or not at all.
fn records(
    changes: impl Iterator<Item = Change>,
    record_max: usize,
) -> impl Iterator<Item = (Vec<u8>, usize)> {
    let mut changes = changes;
    let mut left: Option<Vec<u8>> = None;
    std::iter::from_fn(move || {
        let (mut record, mut count) = (Vec::new(), 0);
        loop {
            let bytes = match left.take() {
                Some(left) => left,
                None => {
                    let Some(change) = changes.next() else { break };
                    let mut bytes = Vec::new();
                    change.encode(&mut bytes);
                    bytes
                }
            };
            if count > 0 && record.len() + 4 + bytes.len() > record_max {
                left = Some(bytes);
                break;
            }
            record.extend((bytes.len() as u32).to_le_bytes());
            record.extend(bytes);
            count += 1;
        }
        (count > 0).then_some((record, count))
    })
}

/// The first change of a record, and the bytes behind it.
fn next_change(record: &[u8]) -> Option<(Change, &[u8])> {
    let (len, rest) = record.split_first_chunk::<4>()?;
    let (bytes, behind) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((Change::decode(bytes)?, behind))
}
// media-format: end

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::SeriesKey;
    use crate::value::FieldType;
    use coreplane_pmem::{MediaChoice, OpenOptions, Pool};

    #[test]
    fn devices_of_dropped_series_are_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto);
        let pool = Pool::create(&directory.path().join("pool"), &options).expect("a pool");
        let pages = Pages::open(pool, true).expect("pages").0;
        let names = Names::new(Limits::default(), Policy::Rate, 4);
        let made = names.change(&pages, |draft| {
            draft.push(draft.catalogue.database_changes("db")?);
            Ok(())
        });
        made.expect("a database");
        let db = names.read().database("db").expect("the database");
        let make = |first: u32| {
            let made = names.change(&pages, |draft| {
                for at in first..first + 2000 {
                    let (host, fields) = (at.to_string(), [("f", FieldType::Float)]);
                    let key = SeriesKey::new("m", [("host", &*host)])?;
                    draft.point(db, &key, fields.into_iter(), None)?;
                }
                Ok(())
            });
            made.expect("series");
        };
        let devices = || names.devices.lock().count();
        for round in 0..3 {
            make(2000 * round);
            assert_eq!(devices(), 2000);
            let id = names.read().measurement(db, "m").expect("the measurement");
            let dropped = names.change(&pages, |draft| {
                draft.push([Change::MeasurementDropped { id }]);
                Ok(())
            });
            dropped.expect("a drop");
            assert_eq!((devices(), names.read().series_count()), (0, 0));
        }
    }

    #[test]
    fn what_is_logged_and_impossible_changes_nothing_and_holds_up_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto);
        let path = directory.path().join("pool");
        let pool = Pool::create(&path, &options).expect("a pool");
        let pages = Pages::open(pool, true).expect("pages").0;
        let names = Names::new(Limits::default(), Policy::Rate, 1);
        let database = |id, name: &str| Change::Database { id, name: name.into() };
        // The second change has a number that is given already.
        let drawn = names.change(&pages, |draft| {
            draft.push([database(0, "a"), database(0, "twice"), database(1, "b")]);
            Ok(())
        });
        assert!(matches!(drawn, Err(Error::Damage(_))), "{drawn:?}");
        let made = names.change(&pages, |draft| {
            draft.push(draft.catalogue.database_changes("c")?);
            Ok(())
        });
        made.expect("a database");
        let found = |names: &Names| ["a", "twice", "b", "c"].map(|it| names.read().database(it));
        let before = found(&names);
        assert!(matches!(before, [Some(0), None, Some(1), Some(2)]), "{before:?}");
        drop((names, pages));
        let options = OpenOptions { media: MediaChoice::Auto };
        let pool = Pool::open(&path, &options).expect("the pool");
        let (pages, used) = Pages::open(pool, false).expect("pages");
        let mut recovery = pages.space().recovery().expect("the first");
        let list = used.iter().filter(|(_, it)| it.role == Role::Catalogue);
        let list = list.map(|(page, it)| (it.number, *page)).collect();
        let mut again = Names::new(Limits::default(), Policy::Rate, 1);
        let place = (&pages, &mut recovery);
        again
            .recover(|visit| Ok(Log::recover(place, Role::Catalogue, list, 0, visit)?.log))
            .expect("names");
        assert_eq!((found(&again), again.refused().len()), (before, 1));
        assert!(again.refused()[0].contains("database 0 is made"), "{:?}", again.refused());
    }
}
