//! Creating and opening a matrix.
//!
//! Opening reads the labels of all devices that are there, whatever their order, decides who is
//! current ([`label`](crate::label)), makes the batches that were under way, brings the members of
//! each group level, fills the filters, and only then lets anybody in.
//!
//! Members differ after a crash: a write may have come to one and not yet to another. None of those
//! was acknowledged at `all`; at `first` some were. Either way the newest counts: whatever any
//! member has of what is newer than the label's *mark* is given to the others, deletes too.

use crate::batch::{Intents, drop_intent, open_intents};
use crate::bloom::{Filter, hash_of};
use crate::clock::{Clock, TimeSource};
use crate::counters::Counters;
use crate::device::{Device, make};
use crate::engine::Matrix;
use crate::group::{DEVICES_MAX, Demote, Group, Parts};
use crate::label::{Ack, Label, Member, Position, RESERVED, Standing};
use crate::matrix::{Shared, is_reserved};
use crate::pending::{Devices, Pending};
use crate::place::slot_of;
use coreplane_engine::{
    Batch, Change, Cursors, Engine, Error, Limits, Progress, Result, UnixMillis, WriteOptions,
};
use coreplane_pmem::isolation::Isolation;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

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
}

/// How an open matrix behaves.
#[derive(Clone)]
pub struct Options {
    /// Tells the time that expiries are held against.
    pub time: TimeSource,
    /// Open it although devices that are missing may be the only ones that have what was
    /// acknowledged: that is lost then.
    pub accept_loss: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { time: Arc::new(UnixMillis::now), accept_loss: false }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("accept_loss", &self.accept_loss).finish_non_exhaustive()
    }
}

/// The least number of keys that a filter has room for.
pub(crate) const FILTER_MIN: u64 = 4096;

/// A device that was found.
struct Found {
    engine: Arc<dyn Engine>,
    label: Label,
}

/// The matrix's own records in a device.
///
/// # Errors
/// As the engine.
pub(crate) fn own_records(engine: &dyn Engine) -> Result<u64> {
    let label = u64::from(engine.get(&[RESERVED, b"label"].concat())?.is_some());
    Ok(label + open_intents(engine)?.len() as u64)
}

fn drawn() -> String {
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
        let Shape { groups, devices, ack } = shape;
        if groups == 0 || devices == 0 || usize::from(devices) > DEVICES_MAX || groups > 256 {
            return Err(Error::Unusable(format!(
                "a matrix has 1 to 256 groups of 1 to {DEVICES_MAX} devices, not {groups} of {devices}"
            )));
        }
        let clock = Arc::new(Clock::new(Arc::clone(&options.time)));
        let identities: Vec<Vec<String>> =
            (0..groups).map(|_| (0..devices).map(|_| drawn()).collect()).collect();
        let label = Label::new(drawn(), ack, &identities);
        let mut found = BTreeMap::new();
        for position in label.positions() {
            let engine = rack.create(position, &clock.source())?;
            engine.hold_tombstones(0)?;
            found.insert(position, Found { engine, label: label.at(position) });
        }
        // The label last: a matrix is one when all devices have it.
        found.values().try_for_each(|device| device.label.write(&*device.engine))?;
        Self::assemble(found, label, clock)
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
        let mut found = BTreeMap::new();
        for place in rack.present()? {
            let engine = rack.open(place, &clock.source())?;
            let label = Label::read(&*engine)?.ok_or_else(|| {
                Error::Unusable(format!("the device at {place} belongs to no matrix"))
            })?;
            clock.raise(engine.now());
            let position = label.position;
            if found.insert(position, Found { engine, label }).is_some() {
                return Err(Error::Unusable(format!("there are two devices {position}")));
            }
        }
        let label = newest(&found)?;
        let label = admit(&mut found, label, options.accept_loss)?;
        if !label.is_clean {
            make_intents(&found, &label)?;
            for group in 0..label.members.len() as u16 {
                level(&found, &label, group, progress)?;
            }
        }
        Self::assemble(found, label, clock)
    }

    fn assemble(found: BTreeMap<Position, Found>, label: Label, clock: Arc<Clock>) -> Result<Self> {
        let mut newest = 0;
        for device in found.values() {
            newest = newest.max(device.engine.advance_sequence()?);
        }
        let mut label = label;
        label.is_clean = false;
        // By now they are, or the loss was accepted.
        label.is_level = true;
        label.epoch += 1;
        for (position, device) in &found {
            label.at(*position).write(&*device.engine)?;
        }
        let (pending, sequence) = (Arc::new(Pending::new()), Arc::new(AtomicU64::new(newest)));
        let owners: Box<[u16]> = label.owners.clone().into();
        let ack = label.ack;
        let mut by_group: BTreeMap<u16, Vec<Arc<Device>>> = BTreeMap::new();
        for (position, device) in found {
            // By their numbers, since the map is sorted; a place without a device has none.
            let devices = by_group.entry(position.group).or_default();
            devices.push(Arc::new(Device::new(position.device, device.engine)));
        }
        let label = Arc::new(Mutex::new(label));
        let shared = Arc::new_cyclic(|weak: &std::sync::Weak<Shared>| {
            let groups = by_group.into_iter().map(|(number, devices)| {
                let members = devices.iter().fold(0, |set, device| set | 1 << device.number);
                let weak = weak.clone();
                let demote: Demote = Box::new(move |position| match weak.upgrade() {
                    Some(shared) => shared.demote(position),
                    None => Err(Error::Closed),
                });
                let filter = Filter::with_capacity(FILTER_MIN);
                filter.map_err(|error| Error::Unusable(error.to_string())).map(|filter| {
                    let (pending, sequence) = (Arc::clone(&pending), Arc::clone(&sequence));
                    let parts =
                        Parts { number, devices, members, filter, pending, sequence, ack, demote };
                    Arc::new(Group::new(parts))
                })
            });
            let groups: Result<Vec<Arc<Group>>> = groups.collect();
            let (groups, failure) = match groups {
                Ok(groups) => (groups, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            Shared {
                limits: limits(&groups),
                groups,
                owners,
                pending: Arc::clone(&pending),
                sequence: Arc::clone(&sequence),
                isolation: Isolation::default(),
                cursors: Mutex::new(Cursors::default()),
                intents: Intents::new(),
                label,
                is_level: AtomicBool::new(true),
                clock,
                closed: AtomicBool::new(false),
                counters: Counters::default(),
                failure: Mutex::new(failure),
            }
        });
        if let Some(error) = shared.failure.lock().take() {
            return Err(error);
        }
        for group in &shared.groups {
            shared.fill_filter(group)?;
        }
        Ok(Self { shared })
    }
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

/// Makes the batches that were under way in several groups.
fn make_intents(found: &BTreeMap<Position, Found>, label: &Label) -> Result<()> {
    for device in found.values() {
        for (number, sequence, changes) in open_intents(&*device.engine)? {
            let mut by_group: HashMap<u16, Batch> = HashMap::new();
            for change in changes {
                let group = label.owners[slot_of(hash_of(change.key()))];
                by_group.entry(group).or_default().push(change);
            }
            let options = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
            for (position, member) in found {
                if let Some(batch) = by_group.get(&position.group) {
                    make(&*member.engine, batch, &options)?;
                }
            }
            drop_intent(&*device.engine, number)?;
        }
    }
    Ok(())
}

/// Brings the members of a group level: gives each what another has that is newer.
fn level(
    found: &BTreeMap<Position, Found>,
    label: &Label,
    group: u16,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<()> {
    let members: Vec<(&Position, &Found)> =
        found.iter().filter(|(position, _)| position.group == group).collect();
    if members.len() < 2 {
        return Ok(());
    }
    // Of each key the newest sequence, who has it, and one of them.
    let mut newest: HashMap<Vec<u8>, (u64, Devices, usize)> = HashMap::new();
    for (at, (position, device)) in members.iter().enumerate() {
        let bit = 1 << position.device;
        device.engine.changes_since(label.mark, &mut |entry| {
            if is_reserved(entry.key) {
                return;
            }
            let known = newest.entry(entry.key.to_vec()).or_insert((entry.sequence, 0, at));
            if entry.sequence > known.0 {
                *known = (entry.sequence, bit, at);
            } else if entry.sequence == known.0 {
                known.1 |= bit;
            }
        })?;
    }
    let all = members.iter().fold(0, |set, (position, _)| set | 1 << position.device);
    let total = newest.len() as u64;
    for (done, (key, (sequence, has, at))) in (0..).zip(newest) {
        progress(Progress { stage: "bringing members level", done, total });
        if has == all {
            continue;
        }
        let mut change = Change::Delete { key: key.clone() };
        let source = &members[at].1.engine;
        source.get_with(&key, coreplane_engine::Visibility::Durable, &mut |record| {
            let (value, expires_at) = (record.value.to_vec(), record.expires_at);
            change = Change::Put { key: key.clone(), value, expires_at };
        })?;
        let mut batch = Batch::new();
        batch.push(change);
        let options = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
        for (position, device) in &members {
            if has & 1 << position.device == 0 {
                make(&*device.engine, &batch, &options)?;
            }
        }
    }
    Ok(())
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
