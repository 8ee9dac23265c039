//! Creating and opening a matrix.
//!
//! Opening reads the labels of all devices that are there, whatever their order, decides who is
//! current ([`label`](crate::label)), makes the batches that were under way, brings the members of
//! each group level, fills the filters, and only then lets anybody in.
//!
//! Members differ after a crash: a write may have come to one and not yet to another. None of those
//! was acknowledged at `all`; at `first` some were. Either way the newest counts: whatever any
//! member has of what is newer than the label's *mark* is given to the others, deletes too.

use crate::believed::believed;
use crate::bloom::Filter;
use crate::clock::{Clock, TimeSource};
use crate::counters::Counters;
use crate::decided::{is_damage, is_dead};
use crate::device::Device;
use crate::engine::Matrix;
use crate::group::{DEVICES_MAX, Demote, Group, Parts, Rules};
use crate::groups::{GROUPS_MAX, Groups};
use crate::growing::Grower;
use crate::intent::{Intent, Intents};
use crate::label::{Ack, Label, Member, Position, RESERVED, Standing};
use crate::level;
use crate::matrix::Shared;
use crate::owners::Owners;
use crate::pending::Pending;
use crate::prototype::{Prototype, ReadPath};
use coreplane_engine::{Cursors, Engine, Error, Limits, Progress, Result, UnixMillis};
use coreplane_pmem::isolation::Isolation;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

/// Where devices are put: makes and opens the engine of each.
pub trait Rack: Send + Sync {
    /// The places where there is a device, in any order. Where a device belongs it knows itself.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn present(&self) -> Result<Vec<Position>>;

    /// Makes the engine of a new device at `place`, which asks this clock.
    ///
    /// # Errors
    /// As the engine's creation.
    fn create(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>>;

    /// Opens the engine of the device at `place`.
    ///
    /// # Errors
    /// As the engine's opening.
    fn open(&self, place: Position, time: &TimeSource) -> Result<Arc<dyn Engine>>;

    /// Removes what is at `place`, if anything: what was to become a device there and did not.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove(&self, place: Position) -> Result<()>;
}

/// How a matrix is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Groups.
    pub groups: u16,
    /// Devices in each.
    pub devices: u8,
    /// Copies that a write waits for.
    pub ack: Ack,
    /// How reads are served. [`Prototype::Ekv`] is one device, whatever is said above.
    pub prototype: Prototype,
}

impl Default for Shape {
    /// Two groups of two devices, as the paper's.
    fn default() -> Self {
        Self { groups: 2, devices: 2, ack: Ack::default(), prototype: Prototype::default() }
    }
}

/// How an open matrix behaves.
#[derive(Clone)]
pub struct Options {
    /// Tells the time that expiries are held against.
    pub time: TimeSource,
    /// Open it although devices that are missing may be the only ones that have what was
    /// acknowledged: that is lost then.
    pub accept_loss: bool,
    /// Which way reads take to a device.
    pub read_path: ReadPath,
}

impl Default for Options {
    fn default() -> Self {
        Self { time: Arc::new(UnixMillis::now), accept_loss: false, read_path: ReadPath::default() }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("accept_loss", &self.accept_loss).finish_non_exhaustive()
    }
}

/// The least number of keys that a filter has room for.
pub(crate) const FILTER_MIN: u64 = 4096;

/// Sequences that a device may have given which nobody has seen who is left: as many as can be under
/// way at a time, and some.
const UNSEEN: u64 = 1 << 24;

/// A device that was found.
pub(crate) struct Found {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) label: Label,
}

/// The matrix's own records in a device.
///
/// # Errors
/// As the engine.
pub(crate) fn own_records(engine: &dyn Engine) -> Result<u64> {
    let label = u64::from(engine.get(&[RESERVED, b"label"].concat())?.is_some());
    Ok(label + Intent::records_on(engine)?)
}

pub(crate) fn drawn() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl Matrix {
    /// Which devices are current members, and which are not.
    pub fn standings(&self) -> Vec<(Position, Standing)> {
        self.shared.standings()
    }

    /// Makes a matrix of new devices and opens it.
    ///
    /// # Errors
    /// [`Error::Unusable`] for a shape that cannot be, and as the devices' creation.
    pub fn create(rack: &dyn Rack, shape: Shape, options: &Options) -> Result<Self> {
        let Shape { mut groups, mut devices, ack, prototype } = shape;
        if groups == 0 || devices == 0 || usize::from(devices) > DEVICES_MAX || groups > GROUPS_MAX
        {
            return Err(Error::Unusable(format!(
                "a matrix has 1 to {GROUPS_MAX} groups of 1 to {DEVICES_MAX} devices, not {groups} of {devices}"
            )));
        }
        if prototype == Prototype::Ekv {
            (groups, devices) = (1, 1);
        }
        let clock = Arc::new(Clock::new(Arc::clone(&options.time)));
        let identities: Vec<Vec<String>> =
            (0..groups).map(|_| (0..devices).map(|_| drawn()).collect()).collect();
        let mut label = Label::new(drawn(), ack, &identities);
        label.prototype = prototype;
        let mut found = BTreeMap::new();
        for position in label.positions() {
            let engine = believed(rack.create(position, &clock.source())?)?;
            engine.hold_tombstones(0)?;
            found.insert(position, Found { engine, label: label.at(position) });
        }
        // The label last: a matrix is one when all devices have it.
        found.values().try_for_each(|device| device.label.write(&*device.engine))?;
        Self::assemble(found, label, (clock, options.read_path))
    }

    /// Opens the matrix whose devices are in `rack`.
    ///
    /// # Errors
    /// [`Error::Unusable`] if there is none, a device is of another matrix or out of date, a group
    /// has no current device, or it cannot be told whether it has; and as the devices' opening.
    pub fn open(
        rack: &dyn Rack,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let clock = Arc::new(Clock::new(Arc::clone(&options.time)));
        let (mut damaged, mut occupied) = (Vec::new(), BTreeMap::new());
        // Places where there is none yet, and why.
        let (mut found, mut blank) = (BTreeMap::new(), Vec::new());
        for place in rack.present()? {
            let device = match look(rack, place, &clock)? {
                Seen::Device(device) => device,
                Seen::Blank(error) => {
                    blank.push((place, error));
                    continue;
                }
                Seen::Damaged(how) => {
                    damaged.push((place, how));
                    continue;
                }
            };
            let position = device.label.position;
            occupied.insert(place, position);
            if found.insert(position, device).is_some() {
                return Err(Error::Unusable(format!("there are two devices {position}")));
            }
        }
        if found.is_empty()
            && let Some((_, error)) = blank.pop()
        {
            return Err(error);
        }
        let label = newest(&found).map_err(|error| damaged_first(&damaged, error))?;
        // One that was about to be made when the matrix went down is made anew.
        if let Some((_, error)) = blank.into_iter().find(|(place, _)| !label.awaits(*place)) {
            return Err(error);
        }
        let admitted = admit(&mut found, label, options.accept_loss);
        let mut label = admitted.map_err(|error| damaged_first(&damaged, error))?;
        if !label.is_clean {
            level::finish_intents(&mut found, &mut label)?;
            for group in 0..label.members.len() as u16 {
                level::level(&mut found, &mut label, group, progress)?;
            }
        }
        let matrix = Self::assemble(found, label, (clock, options.read_path))?;
        *matrix.shared.damaged.lock() = damaged;
        *matrix.shared.occupied.lock() = occupied;
        Ok(matrix)
    }

    /// The places whose devices are left out, and why: they could not be opened, since they are damaged,
    /// or have failed since. They count as absent.
    pub fn damaged(&self) -> Vec<(Position, String)> {
        self.shared.damaged.lock().clone()
    }

    fn assemble(
        found: BTreeMap<Position, Found>,
        label: Label,
        (clock, read_path): (Arc<Clock>, ReadPath),
    ) -> Result<Self> {
        let (newest, label) = begun(&found, label)?;
        let (pending, sequence) = (Arc::new(Pending::new()), Arc::new(AtomicU64::new(newest)));
        let owners = Owners::new(&label.owners);
        let has_guests = label.has_guests || !label.moving.is_empty();
        let mut by_group: BTreeMap<u16, Vec<Arc<Device>>> = BTreeMap::new();
        for (position, device) in found {
            // By their numbers, since the map is sorted; a place without a device has none.
            let devices = by_group.entry(position.group).or_default();
            devices.push(Arc::new(Device::new(position.device, device.engine)));
        }
        let (mark, horizon) = (label.mark, label.horizon);
        let rules = Rules { ack: label.ack, prototype: label.prototype, read_path };
        let label = Arc::new(Mutex::new(label));
        let shared = Arc::new_cyclic(|weak: &std::sync::Weak<Shared>| {
            let groups = by_group.into_iter().map(|(number, devices)| {
                let (pending, sequence) = (Arc::clone(&pending), Arc::clone(&sequence));
                assemble_group(weak, number, devices, (pending, sequence, rules))
            });
            let groups: Result<Vec<Arc<Group>>> = groups.collect();
            let (groups, failure) = match groups {
                Ok(groups) => (groups, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            Shared {
                weak: weak.clone(),
                limits: limits(&groups),
                groups: Groups::new(groups),
                owners,
                moves: RwLock::new(()),
                has_guests: AtomicBool::new(has_guests),
                filling: Mutex::new(()),
                pending: Arc::clone(&pending),
                sequence: Arc::clone(&sequence),
                isolation: Isolation::default(),
                cursors: Mutex::new(Cursors::default()),
                intents: Intents::new(),
                label,
                mark: AtomicU64::new(mark),
                marking: Mutex::new(()),
                is_level: AtomicBool::new(true),
                clock,
                closed: AtomicBool::new(false),
                is_clean: AtomicBool::new(false),
                interrupted: AtomicBool::new(false),
                occupied: Mutex::default(),
                horizon: AtomicU64::new(horizon),
                counters: Counters::default(),
                grower: Grower::default(),
                failure: Mutex::new(failure),
                damaged: Mutex::default(),
            }
        });
        if let Some(error) = shared.failure.lock().take() {
            return Err(error);
        }
        for group in shared.groups.iter() {
            shared.fill_filter(group)?;
        }
        Ok(Self { shared })
    }
}

/// What is at a place.
enum Seen {
    Device(Found),
    /// No device of a matrix, and why.
    Blank(Error),
    /// It cannot be read: as if it were not there. Its peers have what it had, or the matrix is
    /// refused.
    Damaged(String),
}

/// Opens what is at `place`.
///
/// # Errors
/// If it may be sound and cannot be used now.
fn look(rack: &dyn Rack, place: Position, clock: &Arc<Clock>) -> Result<Seen> {
    let opened = rack.open(place, &clock.source()).and_then(believed);
    let labelled = opened.and_then(|engine| {
        let label = Label::read(&*engine)?;
        // What the matrix has written there may be damaged, so that nobody knows what it is.
        Intent::all_on(&*engine)?;
        Ok((engine, label))
    });
    match labelled {
        Ok((engine, Some(label))) => {
            clock.raise(engine.now());
            Ok(Seen::Device(Found { engine, label }))
        }
        Ok((_, None)) => {
            let what = format!("the device at {place} belongs to no matrix");
            Ok(Seen::Blank(Error::Unusable(what)))
        }
        Err(error) if is_damage(&error) || is_dead(&error) => Ok(Seen::Damaged(error.to_string())),
        Err(error @ Error::Unusable(_)) => Ok(Seen::Blank(error)),
        Err(error) => Err(error),
    }
}

/// Why the matrix cannot be opened: with the devices that are damaged, which may be the reason.
fn damaged_first(damaged: &[(Position, String)], error: Error) -> Error {
    match damaged.first() {
        Some((place, how)) => {
            Error::Unusable(format!("the device at {place} is damaged ({how}), and {error}"))
        }
        None => error,
    }
}

/// Puts a group together, none of whose keys its filter knows yet.
pub(crate) fn assemble_group(
    shared: &Weak<Shared>,
    number: u16,
    devices: Vec<Arc<Device>>,
    (pending, sequence, rules): (Arc<Pending>, Arc<AtomicU64>, Rules),
) -> Result<Arc<Group>> {
    let members = devices.iter().fold(0, |set, device| set | 1 << device.number);
    let shared = shared.clone();
    let demote: Demote = Box::new(move |position, device| match shared.upgrade() {
        Some(shared) => shared.demote(position, device),
        None => Err(Error::Closed),
    });
    let filter = Filter::with_capacity(FILTER_MIN);
    let filter = filter.map_err(|error| Error::Unusable(error.to_string()))?;
    let parts = Parts { number, devices, members, filter, pending, sequence, rules, demote };
    Ok(Arc::new(Group::new(parts)))
}

/// The label of a matrix that is open, which all devices have now, and a sequence above all that
/// they have given out.
fn begun(found: &BTreeMap<Position, Found>, label: Label) -> Result<(u64, Label)> {
    let mut newest = 0;
    for device in found.values() {
        newest = newest.max(device.engine.advance_sequence()?);
    }
    let mut label = label;
    if !label.is_clean && label.is_degraded() {
        // Who is not here may have sequences that nobody here has seen. What is written from
        // now on is newer.
        newest += UNSEEN;
    }
    label.is_clean = false;
    // By now they are, or the loss was accepted.
    label.is_level = true;
    label.epoch += 1;
    for (position, device) in found {
        label.at(*position).write(&*device.engine)?;
    }
    Ok((newest, label))
}

/// What holds on all devices.
fn limits(groups: &[Arc<Group>]) -> Limits {
    let devices = groups.iter().flat_map(|group| group.devices());
    let each = devices.map(|device| device.engine.limits());
    let least = each.reduce(|a, b| Limits {
        key_len_max: a.key_len_max.min(b.key_len_max),
        value_len_max: a.value_len_max.min(b.value_len_max),
        batch_len_max: a.batch_len_max.min(b.batch_len_max),
    });
    least.unwrap_or(Limits { key_len_max: 0, value_len_max: 0, batch_len_max: 0 })
}

/// The label of the highest epoch, if all are of one matrix.
fn newest(found: &BTreeMap<Position, Found>) -> Result<Label> {
    let labels = || found.values().map(|device| &device.label);
    let newest = labels().max_by_key(|label| (label.epoch, label.mark));
    let newest = newest.ok_or_else(|| Error::Unusable("there is no device".to_owned()))?;
    if let Some(foreign) = labels().find(|label| label.matrix != newest.matrix) {
        return Err(Error::Unusable(format!(
            "device {} belongs to another matrix: {}, not {}",
            foreign.position, foreign.matrix, newest.matrix
        )));
    }
    Ok(newest.clone())
}

/// Decides who is current: the label to go on with, and the devices that are its current members.
fn admit(
    found: &mut BTreeMap<Position, Found>,
    mut label: Label,
    accept_loss: bool,
) -> Result<Label> {
    for (position, device) in found.iter() {
        let member = label.member(*position);
        // Where another is about to be made, what was there is not looked at any more.
        if label.awaits(*position) {
            continue;
        }
        if member.is_none_or(|member| member.identity != device.label.identity) {
            return Err(Error::Unusable(format!(
                "the device at {position} was replaced by another: take it out"
            )));
        }
    }
    let is_current = |member: &Member| member.standing == Standing::Current;
    found.retain(|position, _| label.member(*position).is_some_and(is_current));
    let current: Vec<Position> = label
        .positions()
        .filter(|position| label.member(*position).is_some_and(is_current))
        .collect();
    let missing: Vec<Position> =
        current.into_iter().filter(|position| !found.contains_key(position)).collect();
    for group in 0..label.members.len() as u16 {
        if !found.keys().any(|position| position.group == group) {
            return Err(Error::Unusable(format!("group {group} has no current device here")));
        }
    }
    if !missing.is_empty() && !accept_loss {
        let names: Vec<String> = missing.iter().map(Position::to_string).collect();
        if !label.is_latest(|position| found.contains_key(&position)) {
            return Err(Error::Unusable(format!(
                "{} are missing, and no group is whole: those that are here may be out of date, and \
                 what was acknowledged without them would be lost (accept loss to open it)",
                names.join(", ")
            )));
        }
        if label.ack != Ack::All && !label.is_clean {
            return Err(Error::Unusable(format!(
                "{} are missing, the matrix was not closed, and a write waited for some members \
                 only: what none but they have would be lost (accept loss to open it)",
                names.join(", ")
            )));
        }
    }
    if !label.is_level && !label.is_clean && !accept_loss {
        let what = "the matrix was not closed after a device had failed, and a write waited for some \
                    members only: what none but that one had would be lost (accept loss to open it)";
        return Err(Error::Unusable(what.to_owned()));
    }
    for Position { group, device } in missing {
        label.members[usize::from(group)][usize::from(device)].standing = Standing::Absent;
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_engine::model::ModelEngine;

    #[test]
    fn a_matrix_whose_survivors_were_not_level_is_refused() {
        let identities = vec![vec!["one".to_owned(), "other".to_owned()]];
        let mut label = Label::new("matrix".to_owned(), Ack::First, &identities);
        label.members[0][1].standing = Standing::Absent;
        let admitted = |label: &Label, accept_loss| {
            let position = Position { group: 0, device: 0 };
            let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new());
            let found = Found { engine, label: label.at(position) };
            admit(&mut BTreeMap::from([(position, found)]), label.clone(), accept_loss).is_ok()
        };
        assert!(admitted(&label, false), "they were level");
        label.is_level = false;
        assert!(!admitted(&label, false) && admitted(&label, true));
        label.is_clean = true;
        assert!(admitted(&label, false), "it was closed, for which they were made level");
    }
}
