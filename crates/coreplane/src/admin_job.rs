//! Maintenance of a matrix: replacing a device, adding a group, the scrub. Reads and writes go on meanwhile.

use crate::config::{EngineChoice, StoreConfig};
use crate::geometry::{pool_fan_out, pool_page_size};
use crate::lost_ranges::LostRanges;
use crate::matrix::{Directory, MatrixShape, places};
use crate::store::pool_engine;
use coreplane_engine::{Backing, Engine, Error, Progress, Remedy, Result, Stats, Vacancy};
use coreplane_mkvs::{
    Ack, Copied, CopyOptions, DamageSummary, Departure, Loss, Matrix, MemberState, Position,
    Prototype, Scrubbed,
};
use coreplane_pmem::background;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Maintenance that can be done while a matrix is in use.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// Fill the device at a place from its peers, and make it a current member.
    Replace(Position, CopyOptions),
    /// Take a current device out of the membership, so that a fresh one can take its place.
    Retire(Position),
    /// Add a group of new devices, and move its share of the keys to it.
    AddGroup(CopyOptions),
    /// Continue a move of keys that was cut off.
    FinishMoves(CopyOptions),
    /// Check every record against its checksums, on all devices or on those of the group of one, and heal damage
    /// from a peer.
    Scrub(Option<Position>),
}

impl Work {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Replace(..) => "replace",
            Self::Retire(_) => "retire",
            Self::AddGroup(_) => "add-group",
            Self::FinishMoves(_) => "finish-moves",
            Self::Scrub(_) => "scrub",
        }
    }
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// Records were copied to a device or a group.
    Copied(Copied),
    /// Records were checked.
    Scrubbed(Scrubbed),
    /// A device is no longer a member.
    Retired(Position),
}

/// A job in the background, under way or finished.
#[derive(Debug, Clone)]
pub struct Doing {
    /// The number of the job: one more than that of the job before, since the matrix was opened.
    pub number: u64,
    /// The name of the job.
    pub work: &'static str,
    /// Its progress.
    pub progress: Option<Progress>,
    /// Its result; none while it is under way.
    pub done: Option<std::result::Result<Done, Failed>>,
}

/// The reason why a job could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// A description.
    pub message: String,
    /// What can be done about it.
    pub remedy: Remedy,
    /// The way to make room, if a device was to be filled in a place that is occupied.
    pub vacancy: Option<Vacancy>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let vacancy = match &error {
            Error::Occupied { vacancy, .. } => Some(*vacancy),
            _ => None,
        };
        Self { message: error.to_string(), remedy: error.remedy(), vacancy }
    }
}

/// The shape and the settings of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixFacts {
    /// Its groups, and the places in each.
    pub shape: MatrixShape,
    /// How many copies a write waits for.
    pub ack: Ack,
    /// How its reads are served.
    pub prototype: Prototype,
    /// The epoch of the membership: every change of the current members raises it.
    pub epoch: u64,
    /// The engine of each device that is present.
    pub engines: Vec<(Position, &'static str)>,
}

/// The status of a matrix.
#[derive(Debug, Clone)]
pub struct MatrixStatus {
    /// Each device, and its relation to its group.
    pub devices: Vec<(Position, MemberState)>,
    /// The number of slots that each group owns.
    pub slots: Vec<usize>,
    /// The number of slots that are still to move to a group that was added.
    pub slots_moving: usize,
    /// Devices that are left out because they are damaged or have failed, and why: they count as absent.
    pub damaged: Vec<(Position, String)>,
    /// Current devices whose files are no longer in their places: they go on as long as the matrix is open, and are
    /// missing after that.
    pub removed: Vec<Position>,
    /// Current devices whose files were cut short while open: the bytes that are left, and those that they need. An
    /// access to the missing bytes makes them fail.
    pub shortened: Vec<(Position, u64, u64)>,
    /// Devices that left while the matrix was open, and have not come back: when, and why.
    pub departures: Vec<Departure>,
    /// Possible losses at its open, which were accepted.
    pub losses: Vec<Loss>,
    /// The data in doubt; for devices, according to the last look or scrub.
    pub damage: DamageSummary,
    /// Devices have been looked at. Otherwise it is unknown whether they have lost records.
    pub is_looked_at: bool,
    /// Not all devices are current.
    pub is_degraded: bool,
    /// The last job that [`MatrixStore::begin`] has started.
    pub doing: Option<Doing>,
}

impl MatrixStore {
    /// Warnings for users of the matrix, one line each: accepted losses, and why it is degraded. Empty for a complete
    /// matrix. No device is asked.
    pub fn warnings(&self) -> Vec<String> {
        let (losses, devices) = (self.matrix.losses(), self.matrix.member_states());
        let damaged = self.matrix.damaged();
        let mut warnings: Vec<String> = losses.iter().map(Loss::to_string).collect();
        let lacking = devices.iter().filter(|(_, state)| *state != MemberState::Current);
        for (position, state) in lacking {
            let why = match damaged.iter().find(|(place, _)| place == position) {
                Some((_, how)) => format!("is damaged: {how}"),
                None if *state == MemberState::Joining => "is not yet filled".to_owned(),
                None => "is missing or out of date".to_owned(),
            };
            warnings.push(format!("degraded: {position} {why}"));
        }
        warnings
    }
}

/// Grows each device that can be used, by itself.
pub(crate) fn grow_devices(config: &StoreConfig, size: u64) -> Result<()> {
    let store = config.open()?;
    let damaged = store.matrix().map(|matrix| matrix.status().damaged).unwrap_or_default();
    store.close()?;
    // This closes its pools.
    drop(store);
    let there = places(config.path()).map_err(|source| Error::Io {
        context: format!("read the directory {}", config.path().display()),
        source,
    })?;
    for place in there.into_iter().filter(|place| damaged.iter().all(|(it, _)| it != place)) {
        let path = config.path().join(place.to_string());
        let device = StoreConfig::at(path).media(config.media.clone()).background(false).open()?;
        let grown = device.grow(size);
        device.close()?;
        grown?;
    }
    Ok(())
}

/// The matrix of an open store.
#[derive(Debug)]
pub struct MatrixStore {
    matrix: Arc<Matrix>,
    config: StoreConfig,
    doing: Mutex<Option<Doing>>,
    lost_ranges: LostRanges,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl MatrixStore {
    pub(crate) fn new(matrix: Arc<Matrix>, config: StoreConfig) -> Self {
        let (doing, lost_ranges) = (Mutex::default(), LostRanges::default());
        Self { matrix, config, doing, lost_ranges, thread: Mutex::default() }
    }

    pub(crate) fn matrix(&self) -> &Arc<Matrix> {
        &self.matrix
    }

    /// The status of the matrix.
    pub fn status(&self) -> MatrixStatus {
        let devices = self.matrix.member_states();
        let (slots, slots_moving) = self.matrix.slots();
        let (is_degraded, doing) = (self.is_degraded(), self.doing());
        let looked = self.lost_ranges.look(&self.matrix);
        let is_looked_at = looked.is_some();
        let devices_with_lost_ranges = looked.unwrap_or_default();
        let damage =
            DamageSummary { devices: devices_with_lost_ranges, ..self.matrix.indeterminate_keys() };
        let damaged = self.matrix.damaged();
        let (departures, losses) = (self.matrix.departures(), self.matrix.losses());
        let backings = self.matrix.backings();
        let removed = self.removed(&devices, &backings);
        let shortened = backings.iter().filter_map(|(place, backing)| match backing {
            Backing::Shortened { len, expected } => Some((*place, *len, *expected)),
            Backing::Whole | Backing::Removed => None,
        });
        let shortened = shortened.collect();
        MatrixStatus {
            devices,
            slots,
            slots_moving,
            damaged,
            removed,
            shortened,
            departures,
            losses,
            damage,
            is_looked_at,
            is_degraded,
            doing,
        }
    }

    fn removed(
        &self,
        devices: &[(Position, MemberState)],
        backings: &[(Position, Backing)],
    ) -> Vec<Position> {
        let current = || devices.iter().filter(|it| it.1 == MemberState::Current).map(|it| it.0);
        let there = places(self.config.path()).unwrap_or_default();
        // Devices may lie in each other's places, so a missing name counts only if there are fewer files than
        // devices.
        let is_one_away = there.len() < current().count();
        let is_removed = |place: &Position| backings.contains(&(*place, Backing::Removed));
        let is_away = |place: &Position| is_one_away && !there.contains(place);
        current().filter(|place| is_removed(place) || is_away(place)).collect()
    }

    /// True if not all devices are current. No device is asked.
    pub fn is_degraded(&self) -> bool {
        self.matrix.member_states().iter().any(|(_, state)| *state != MemberState::Current)
    }

    /// The job in the background, under way or finished.
    pub fn doing(&self) -> Option<Doing> {
        self.doing.lock().clone()
    }

    /// Which devices are current, and which are not. No device is asked.
    pub fn member_states(&self) -> Vec<(Position, MemberState)> {
        self.matrix.member_states()
    }

    /// How many slots each group owns, and how many are still to move.
    pub fn slots(&self) -> (Vec<usize>, usize) {
        self.matrix.slots()
    }

    /// The epoch of the membership: every change of the current members raises it.
    pub fn epoch(&self) -> u64 {
        self.matrix.epoch()
    }

    /// The shape and the settings of the matrix.
    pub fn facts(&self) -> MatrixFacts {
        let places = self.matrix.member_states();
        let devices = places.iter().map(|(place, _)| place.device + 1).max().unwrap_or(0);
        let groups = places.iter().map(|(place, _)| place.group + 1).max().unwrap_or(0);
        MatrixFacts {
            shape: MatrixShape { groups, devices },
            ack: self.matrix.ack(),
            prototype: self.matrix.prototype(),
            epoch: self.matrix.epoch(),
            engines: self.matrix.engines(),
        }
    }

    /// The counters of the matrix and of its devices.
    pub fn stats(&self) -> Stats {
        self.matrix.stats()
    }

    /// True if keys are still to move to a group that was added: [`Work::FinishMoves`] continues that.
    pub fn is_moving(&self) -> bool {
        self.matrix.is_moving()
    }

    /// Does a job, and returns when it is done; durable then.
    ///
    /// # Errors
    /// [`Error::Unusable`] if it cannot be done, or another job is under way; the devices' errors.
    pub fn run(&self, work: Work, progress: &dyn Fn(Progress)) -> Result<Done> {
        let config = self.config_of_peers()?;
        let rack = Directory::new(&config);
        let (matrix, rack) = (&self.matrix, &rack);
        let done = match work {
            Work::Replace(place, options) => {
                matrix.replace(rack, place, &options, progress).map(Done::Copied)
            }
            Work::Retire(place) => matrix.retire(place).map(|()| Done::Retired(place)),
            Work::AddGroup(options) => matrix.add_group(rack, &options, progress).map(Done::Copied),
            Work::FinishMoves(options) => matrix.finish_moves(&options, progress).map(Done::Copied),
            Work::Scrub(device) => matrix.scrub_of(device, progress).map(Done::Scrubbed),
        };
        self.lost_ranges.forget();
        done
    }

    /// Begins a job in the background; [`MatrixStore::status`] shows its progress. Returns its number, by which its
    /// outcome is told from that of a later job.
    ///
    /// # Errors
    /// [`Error::Unusable`] if another job is under way in the background; if no thread can be started.
    pub fn begin(self: &Arc<Self>, work: Work) -> Result<u64> {
        let mut thread = self.thread.lock();
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            let what = "another work of the matrix is going on".to_owned();
            return Err(Error::Unusable(what));
        }
        let number = self.doing().map_or(1, |before| before.number + 1);
        let begun = Doing { number, work: work.name(), progress: None, done: None };
        let before = self.doing.lock().replace(begun);
        let this = Arc::clone(self);
        let run = move || {
            let note = |progress| this.note(|it| it.progress = Some(progress));
            let done = result_of(|| this.run(work, &note));
            this.note(|it| it.done = Some(done));
        };
        match background::spawn("coreplane-matrix", run) {
            Ok(spawned) => *thread = Some(spawned),
            Err(source) => {
                *self.doing.lock() = before;
                return Err(Error::Io { context: "start a thread".to_owned(), source });
            }
        }
        Ok(number)
    }

    fn note(&self, note: impl FnOnce(&mut Doing)) {
        if let Some(doing) = &mut *self.doing.lock() {
            note(doing);
        }
    }

    /// Ends the job in the background, which can continue when the matrix is opened again.
    pub(crate) fn interrupt(&self) {
        self.matrix.interrupt();
        let thread = self.thread.lock().take();
        // A panic there has been reported by its thread.
        let _ended = thread.map(|it| it.join().is_ok());
        self.lost_ranges.end();
    }

    /// The store's configuration, with the engine, the pages and the size of the devices that are present.
    fn config_of_peers(&self) -> Result<StoreConfig> {
        let path = self.config.path();
        let io = |source| Error::Io { context: format!("read {}", path.display()), source };
        let (mut size, mut engine, mut page_size, mut fan_out) = (0, None, None, None);
        for place in places(path).map_err(io)? {
            let path = path.join(place.to_string());
            // A file that is not a pool has no size that was asked for.
            let Some(its) = pool_engine(&path) else { continue };
            size = size.max(std::fs::metadata(&path).map_err(io)?.len());
            engine = engine.or(Some(its));
            fan_out = fan_out.or_else(|| pool_fan_out(&path));
            if its != EngineChoice::Scmkv {
                page_size = page_size.or_else(|| pool_page_size(&path));
            }
        }
        let engine = engine.unwrap_or(EngineChoice::Bptree);
        let page_size = page_size.filter(|_| engine != EngineChoice::Scmkv);
        Ok(StoreConfig { page_size, fan_out, ..self.config.clone() }.size(size).engine(engine))
    }
}

/// The result of a job; one that panics has failed, so that it does not seem to go on.
fn result_of(work: impl FnOnce() -> Result<Done>) -> std::result::Result<Done, Failed> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Error::Unusable("the work has ended by a fault of the program".to_owned()))
    });
    done.map_err(Failed::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_panics_has_failed() {
        let failed = result_of(|| panic!("on purpose")).expect_err("it has failed");
        assert!(failed.message.contains("fault of the program"), "{failed:?}");
        let place = Position { group: 0, device: 1 };
        assert_eq!(result_of(|| Ok(Done::Retired(place))), Ok(Done::Retired(place)));
    }
}
