//! Creates and opens a matrix.
//!
//! An open reads the membership records of all present devices, in any order, and decides which devices are
//! current ([`resolve`](crate::session::resolve)). It finishes the batches that were under way, makes the
//! members of each group equal ([`reconcile`](crate::session::reconcile)), fills small filters (large ones
//! are filled in the background) and the devices that are older copies of themselves, and only then admits
//! users.

use super::doubt::Doubt;
use super::options::Options;
use super::reconcile::Reconciled;
use super::{doubt, intents, reconcile};
use crate::device::{Device, Guarded, is_damage, is_dead};
use crate::failover::Failover;
use crate::group::{Group, Groups, Rules, limits};
use crate::in_flight::InFlight;
use crate::keyspace::Keyspace;
use crate::keyspace::intent::{Intent, kept_records};
use crate::keyspace::relaxed::{Relaxed, is_unordered};
use crate::matrix::Matrix;
use crate::membership::{Found, Loss, LostRanges, MemberState, MembershipRecord, Rack, drawn};
use crate::rebuild::{Filters, Rebuild, side_by_side};
use crate::session::clear;
use crate::session::resolve::{Resolved, by_position, newest, resolve};
use crate::shape::{Ack, DEVICES_MAX, GROUPS_MAX, Owners, Position, Prototype};
use crate::stats::{Clock, Counters};
use coreplane_engine::{Cursors, Error, Progress, Result};
use coreplane_pmem::isolation::Isolation;
use coreplane_pmem::mutant;
use coreplane_pmem::pool::FaultInHold;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The shape of a new matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of groups.
    pub groups: u16,
    /// The number of devices in each group.
    pub devices: u8,
    /// The copies that a write waits for.
    pub ack: Ack,
    /// How reads are served. [`Prototype::Ekv`] has one device, regardless of the fields above.
    pub prototype: Prototype,
}

impl Default for Shape {
    /// Two groups of two devices, as the paper's.
    fn default() -> Self {
        Self { groups: 2, devices: 2, ack: Ack::default(), prototype: Prototype::default() }
    }
}

/// The most sequences that a missing device may have given without a present device having seen them: more
/// than can be under way at a time.
const UNSEEN: u64 = 1 << 24;

/// Tombstones that a device may have kept when it crashed.
const TOMBSTONES: u64 = 1 << 20;

impl Matrix {
    /// The state of each device of the matrix.
    pub fn member_states(&self) -> Vec<(Position, MemberState)> {
        self.failover.member_states()
    }

    /// Creates a matrix of new devices and opens it.
    ///
    /// # Errors
    /// [`Error::Unusable`] for an impossible shape, and as the devices' creation.
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
        let mut record = MembershipRecord::new(drawn(), ack, &identities);
        record.prototype = prototype;
        let mut found = BTreeMap::new();
        for position in record.positions() {
            let engine = Guarded::new(rack.create(position, &clock.source())?)?;
            engine.call(|it| it.hold_tombstones(0))?;
            found.insert(position, Found { engine, record: record.at(position) });
        }
        // The record last: the matrix exists when all devices have it.
        found.values().try_for_each(|device| device.record.write(&device.engine))?;
        Self::assemble((found, Vec::new()), record, (clock, options, None))
    }

    /// Opens the matrix whose devices are in `rack`.
    ///
    /// # Errors
    /// [`Error::Unusable`] if there is none, a device belongs to another matrix or is out of date, a group
    /// has no current device, or that cannot be determined; and as the devices' opening.
    pub fn open(
        rack: &dyn Rack,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        // Held until all devices are open, have been compared, and have their filters.
        let hold = FaultInHold::begin();
        let clock = Arc::new(Clock::new(Arc::clone(&options.time)));
        // Places without a usable device, and why.
        let (mut damaged, mut blank) = (Vec::new(), Vec::new());
        let mut places = rack.present()?;
        places.sort_unstable();
        let looked = side_by_side(&places, options.threads(), |place| look(rack, *place, &clock));
        let mut devices = Vec::new();
        for (place, looked) in places.into_iter().zip(looked) {
            match looked? {
                Seen::Device(device) => devices.push((place, *device)),
                Seen::Blank(error, engine) => blank.push((place, error, engine)),
                Seen::Damaged(how) => damaged.push((place, how)),
            }
        }
        let (mut found, mut occupied) = by_position(devices)?;
        if found.is_empty() && !blank.is_empty() {
            return Err(nothing_made(blank));
        }
        let record = newest(&found).map_err(|error| damaged_first(&damaged, error))?;
        for (place, error, engine) in blank {
            if let Some(engine) = engine
                && let Some(position) = clear::owner_of(place, &engine, &found, &record)?
            {
                found.insert(position, Found { engine, record: record.at(position) });
                occupied.insert(place, position);
                continue;
            }
            match record.member(place).map(|member| member.state) {
                // A device that was being created when the matrix stopped is created again.
                Some(MemberState::Joining) => {}
                // The remains of a device that is no member.
                Some(MemberState::Absent) => damaged.push((place, error.to_string())),
                // As if there were no device.
                _ if matches!(error, Error::NotAPool(_)) => {
                    damaged.push((place, error.to_string()))
                }
                _ => return Err(error),
            }
        }
        // A kept filter matches the devices, unless something is lost.
        let kept_at = (record.is_clean && !record.is_clearing).then_some(record.epoch);
        let resolved = resolve(found, record, options.accept_loss);
        let mut resolved = resolved.map_err(|error| damaged_first(&damaged, error))?;
        let is_one_behind = resolved.is_one_behind();
        if is_one_behind {
            // The device that is behind gets the writes that it has missed. It keeps no records of slots that have
            // moved meanwhile: an older copy loses what its peers do not have, and any other has made these deletes.
            resolved.record.is_clean = false;
        }
        // An accepted loss changes the records, too.
        let is_as_kept = resolved.losses.is_empty() && !options.accept_loss && !is_one_behind;
        let kept_at = kept_at.filter(|_| is_as_kept);
        clear::finish(&mut resolved.members, &mut resolved.record)?;
        let Reconciled { unreadable, doubts, .. } = bring_level(&mut resolved, options, progress)?;
        damaged.extend(unreadable);
        let Resolved { record, members, outdated, losses, .. } = resolved;
        let matrix = Self::assemble((members, doubts), record, (clock, options, kept_at))?;
        *matrix.failover.damaged.lock() = damaged;
        *matrix.failover.losses.lock() = losses;
        *matrix.rebuild.occupied.lock() = occupied;
        drop(hold);
        if !options.looks_only {
            for (position, device) in outdated {
                matrix.rebuild.fill_outdated(position, device, progress);
            }
        }
        Ok(matrix)
    }

    /// The places whose devices are left out, and why: they could not be opened because they are damaged, or
    /// have failed since. They count as absent.
    pub fn damaged(&self) -> Vec<(Position, String)> {
        self.failover.damaged.lock().clone()
    }

    /// The possible losses that were accepted when the matrix was opened; none if everything was proven to be
    /// present.
    pub fn losses(&self) -> Vec<Loss> {
        self.failover.losses.lock().clone()
    }

    /// Begins the record's next epoch; ends doubts that it has as lost, or as accepted.
    fn assemble(
        (found, doubts): (BTreeMap<Position, Found>, Vec<Doubt>),
        record: MembershipRecord,
        (clock, options, kept_at): (Arc<Clock>, &Options, Option<u64>),
    ) -> Result<Self> {
        let is_clean = record.is_clean;
        let (newest, record) = begun(&found, record, is_unordered(options.durability))?;
        doubt::settle(&found, &doubts)?;
        let (in_flight, sequence) =
            (Arc::new(InFlight::new()), Arc::new(CachePadded::new(AtomicU64::new(newest))));
        // The number of tombstones on devices that crashed is unknown.
        in_flight.keep_tombstones(if is_clean { 0 } else { TOMBSTONES });
        let rules = rules_of(&record, options);
        let mut failure = None;
        let failover = Arc::new_cyclic(|weak: &Weak<Failover>| {
            let groups = by_group(found).into_iter().map(|(number, devices)| {
                let parts = (Arc::clone(&in_flight), Arc::clone(&sequence), rules);
                let primary = record.primaries[usize::from(number)];
                Group::new(weak.clone(), number, (devices, primary), parts)
            });
            let groups = groups.collect::<Result<_>>().unwrap_or_else(|error| {
                failure = Some(error);
                Vec::new()
            });
            let keyspace = keyspace_of(groups, &record, (in_flight, sequence), (clock, options));
            Failover::new(Arc::new(keyspace), record)
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let keyspace = Arc::clone(&failover.keyspace);
        let filters = Filters::new(&keyspace, options.keeps_filters_from);
        if !options.looks_only {
            let made = filters.make_filters(kept_at, (options.threads(), options.lists_at_open));
            if let Err(error) = made {
                // No other caller would end the filters' thread, which holds the devices.
                keyspace.closed.store(true, Ordering::SeqCst);
                filters.stop();
                return Err(error);
            }
        } else {
            for group in keyspace.groups.iter() {
                let kept = group.primary().and_then(|device| kept_records(&device.engine));
                group.kept_records.store(kept.unwrap_or(0), Ordering::Relaxed);
            }
        }
        Ok(Self {
            rebuild: Rebuild::new(&failover, &filters),
            keyspace,
            failover,
            filters,
            is_clean: AtomicBool::new(options.looks_only),
        })
    }
}

/// The keyspace over these groups, as a record describes it.
fn keyspace_of(
    groups: Vec<Arc<Group>>,
    record: &MembershipRecord,
    (in_flight, sequence): (Arc<InFlight>, Arc<CachePadded<AtomicU64>>),
    (clock, options): (Arc<Clock>, &Options),
) -> Keyspace {
    Keyspace {
        limits: limits(&groups),
        groups: Groups::new(groups),
        owners: Arc::new(Owners::new(&record.owners)),
        moves: RwLock::new(()),
        has_guests: AtomicBool::new(record.has_guests || !record.moving.is_empty()),
        in_flight,
        sequence,
        is_empty: AtomicBool::new(false),
        relaxed: Relaxed::new(options.durability),
        isolation: Isolation::default(),
        cursors: Mutex::new(Cursors::default()),
        clock,
        closed: AtomicBool::new(options.looks_only),
        horizon: AtomicU64::new(record.horizon),
        lost_ranges: LostRanges::new(record.lost_ranges.clone()),
        counters: Counters::default(),
    }
}

/// The rules by which the groups of a matrix are written and read.
fn rules_of(record: &MembershipRecord, options: &Options) -> Rules {
    Rules {
        ack: record.ack,
        prototype: record.prototype,
        reads: options.read_path,
        answers_within: options.answers_within,
        queue_bytes_max: options.queue_bytes_max,
        asks_filters: !options.looks_only && record.prototype != Prototype::Ekv,
    }
}

/// Makes the members of all groups equal, unless the matrix was closed; returns those that could not be read and are
/// left out, and why, and the doubts that can be settled.
fn bring_level(
    resolved: &mut Resolved,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Reconciled> {
    let (accept_loss, threads) = (options.accept_loss, options.threads());
    let Resolved { record, before, members, .. } = resolved;
    let mut reconciled = Reconciled::default();
    if !record.is_clean {
        if !accept_loss {
            reconcile::check_primaries(members, before, threads)?;
        }
        intents::finish_intents(members, record)?;
        let quorum_of = |group| {
            let quorum = before.quorum_of(group);
            (group, if accept_loss || before.is_clean { quorum.any() } else { quorum })
        };
        let groups: Vec<_> = (0..record.members.len() as u16).map(quorum_of).collect();
        reconciled = reconcile::reconcile(members, record, (&groups, threads), progress)?;
    }
    if accept_loss {
        reconcile::accept(members, record, reconciled.greatest_lost)?;
        if record.is_clean {
            reconciled.doubts = doubt::of_all(members);
        }
    }
    reconciled.doubts = doubt::give_anew(members, record, (reconciled.doubts, accept_loss))?;
    if (record.is_clean && !accept_loss) || mutant!("mkvs.reconcile.sync") {
        return Ok(reconciled);
    }
    // At every durability level: the writes are durable before a record states that all members have them.
    members.values().try_for_each(|device| device.engine.call(|it| it.sync()))?;
    Ok(reconciled)
}

/// The devices of each group.
fn by_group(found: BTreeMap<Position, Found>) -> BTreeMap<u16, Vec<Arc<Device>>> {
    let mut by_group: BTreeMap<u16, Vec<Arc<Device>>> = BTreeMap::new();
    for (position, device) in found {
        // In the order of their numbers, since the map is sorted; a place without a device has no entry.
        let devices = by_group.entry(position.group).or_default();
        devices.push(Arc::new(Device::new(position, device.engine)));
    }
    by_group
}

/// The content of a place.
enum Seen {
    Device(Box<Found>),
    /// No device of a matrix, and why; with the engine, if it can be used.
    Blank(Error, Option<Arc<Guarded>>),
    /// It cannot be read, and counts as missing. Its peers have its records, or the matrix is refused.
    Damaged(String),
}

/// Opens the device at `place`.
///
/// # Errors
/// If the device may be intact and cannot be used now.
fn look(rack: &dyn Rack, place: Position, clock: &Arc<Clock>) -> Result<Seen> {
    let opened = rack.open(place, &clock.source()).and_then(Guarded::new);
    let with_record = opened.and_then(|engine| {
        let record = engine.call(MembershipRecord::read)?;
        // The matrix's own records may be damaged, so that the device's role is unknown.
        Intent::all_on(&engine)?;
        Ok((engine, record))
    });
    match with_record {
        Ok((engine, Some(record))) => {
            clock.raise(engine.call(|it| Ok(it.now()))?);
            Ok(Seen::Device(Box::new(Found { engine, record })))
        }
        Ok((engine, None)) => {
            let what = format!("the device at {place} belongs to no matrix: take it out");
            Ok(Seen::Blank(Error::Unusable(what), Some(engine)))
        }
        Err(error) if is_damage(&error) || is_dead(&error) => Ok(Seen::Damaged(error.to_string())),
        Err(Error::Unusable(what)) => {
            Ok(Seen::Blank(Error::Unusable(format!("the device at {place}: {what}")), None))
        }
        Err(error @ Error::NotAPool(_)) => Ok(Seen::Blank(error, None)),
        Err(error) => Err(error),
    }
}

/// The error for a directory without any device of a matrix.
fn nothing_made(blank: Vec<(Position, Error, Option<Arc<Guarded>>)>) -> Error {
    let mut first = None;
    for (place, error, engine) in blank {
        if engine.is_none() && !matches!(error, Error::NotAPool(_)) {
            return error;
        }
        first = first.or(Some(format!("{place}: {error}")));
    }
    Error::Unusable(format!(
        "no device here belongs to a matrix ({}): if its creation was cut off, remove what is here and \
         create it again",
        first.unwrap_or_default()
    ))
}

/// The error of an open, with a damaged device, which may be the reason.
fn damaged_first(damaged: &[(Position, String)], error: Error) -> Error {
    match damaged.first() {
        Some((place, how)) => {
            Error::Unusable(format!("the device at {place} is damaged ({how}), and {error}"))
        }
        None => error,
    }
}

/// Begins the next epoch: returns the record of the open matrix, which all devices have now, and a sequence
/// above all that they have given out. The record is written twice: first with the new epoch, still as clean
/// as it was, and then as committed and not clean. So a member that has only the first belongs to a matrix
/// without writes since.
fn begun(
    found: &BTreeMap<Position, Found>,
    record: MembershipRecord,
    is_unordered: bool,
) -> Result<(u64, MembershipRecord)> {
    // An emptied device has forgotten the sequences that it had given out.
    let mut newest = record.watermark;
    for device in found.values() {
        newest = newest.max(device.engine.call(|it| it.advance_sequence())?);
    }
    let mut record = record;
    if !record.is_clean && record.is_degraded() {
        // A missing device may have given sequences that no present device has seen. Later writes must be newer.
        newest += UNSEEN;
    }
    record.lost_ranges.iter_mut().for_each(|it| it.end(newest));
    record.is_relaxed = is_unordered;
    record.epoch += 1;
    let write_all = |record: &MembershipRecord| {
        found.iter().try_for_each(|(at, device)| record.at(*at).write(&device.engine))
    };
    write_all(&record)?;
    (record.is_clean, record.committed) = (mutant!("mkvs.open.clean"), record.epoch);
    write_all(&record)?;
    Ok((newest, record))
}
