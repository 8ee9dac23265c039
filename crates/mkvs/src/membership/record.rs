//! The membership record: the devices of the matrix, and which of them are current.
//!
//! It is a record in each device's own engine, under a key that users cannot write. All current members have
//! the same record, apart from their own places. Each change of it raises its *epoch*. So do an open, a close
//! and a checkpoint, which do not change the membership.
//!
//! A change is written to all current members twice ([`change`](super::change)): with the new epoch, and then
//! once more with that epoch as the *committed* one. So a device with an epoch below a committed epoch, of
//! any device that is present, has missed something that all current members had: it is an older copy of
//! itself. Which record is in force and which members are needed when a matrix is opened is decided in
//! [`resolve`](super::resolve).
//!
//! A device never goes back to an earlier record: the write of one that was held up in a device, and that was not
//! waited for, changes nothing if it comes behind the write of a later one.

use super::lost_ranges::LostRange;
use super::quorum::Quorum;
use crate::device::{Guarded, is_damage};
use crate::shape::{Ack, DEVICES_MAX, Devices, GROUPS_MAX, Position, RESERVED};
use coreplane_engine::{Error, Mutation, Record, Remedy, Result, StorageEngine, WriteOptions};
use coreplane_pmem::mutant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of this format.
const VERSION: u32 = 2;

/// The greatest epoch and the greatest watermark.
const NUMBER_MAX: u64 = 1 << 62;

/// The most bytes of lost ranges in a record.
const LOST_RANGES_MAX: usize = 64 << 10;

/// The relation of a device to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It has every acknowledged write.
    Current,
    /// It is out of date, or missing.
    Absent,
    /// It is being filled from the others.
    Joining,
}

/// A device as a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Drawn at random when the device became a member.
    pub(crate) identity: String,
    pub(crate) state: MemberState,
}

/// The field that every version of a record has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The place of a record in the order in which records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Number {
    epoch: u64,
    committed: u64,
}

/// The membership record of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembershipRecord {
    version: u32,
    /// The identity of the matrix.
    pub(crate) matrix: String,
    /// The place of this device in it.
    pub(crate) position: Position,
    pub(crate) identity: String,
    pub(crate) epoch: u64,
    /// All current members have had the record of this epoch, durably: a device with an older record is an
    /// older copy of itself.
    pub(crate) committed: u64,
    pub(crate) ack: Ack,
    #[serde(default)]
    pub(crate) prototype: crate::shape::Prototype,
    /// By group and device.
    pub(crate) members: Vec<Vec<Member>>,
    /// The primary of each group: the member that has every acknowledged write.
    pub(crate) primaries: Vec<u8>,
    /// Devices of a group that is being created: it is no group yet, and its devices hold nothing.
    #[serde(default)]
    pub(crate) planned: Option<Vec<Member>>,
    /// The group that owns each slot.
    #[serde(with = "digits")]
    pub(crate) owners: Vec<u16>,
    /// Slots that move, and the groups that they move to.
    #[serde(default)]
    pub(crate) moving: BTreeMap<u16, u16>,
    /// Groups may have records of slots that they no longer own.
    #[serde(default)]
    pub(crate) has_guests: bool,
    /// The matrix is being emptied: earlier writes do not count.
    #[serde(default)]
    pub(crate) is_clearing: bool,
    /// The matrix was closed: each current member has every write.
    pub(crate) is_clean: bool,
    /// The stable watermark: every write up to this sequence is on all current members.
    pub(crate) watermark: u64,
    /// Since the open, writes may have become durable on another member before they were on the primary.
    #[serde(default)]
    pub(crate) is_relaxed: bool,
    /// Tombstones above this sequence are kept for the caller.
    pub(crate) held: u64,
    /// Resynced devices received no tombstones up to this sequence.
    #[serde(default)]
    pub(crate) horizon: u64,
    /// Keys of which acknowledged writes may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost_ranges: Vec<LostRange>,
}

/// True if the engine belongs to a device of a matrix, which must not be written to directly.
pub fn is_device(engine: &dyn StorageEngine) -> bool {
    matches!(MembershipRecord::read(engine), Ok(Some(_)))
}

/// The key of the record.
fn key() -> Vec<u8> {
    [RESERVED, b"membership"].concat()
}

impl MembershipRecord {
    /// The record of a device of a new matrix.
    pub(crate) fn new(matrix: String, ack: Ack, identities: &[Vec<String>]) -> Self {
        let member =
            |identity: &String| Member { identity: identity.clone(), state: MemberState::Current };
        let members: Vec<Vec<Member>> =
            identities.iter().map(|group| group.iter().map(member).collect()).collect();
        let groups = members.len() as u16;
        let primaries = members.iter().map(|group| group.len().saturating_sub(1) as u8).collect();
        Self {
            version: VERSION,
            matrix,
            epoch: 1,
            ack,
            members,
            primaries,
            owners: crate::shape::deal(groups),
            held: u64::MAX,
            ..Self::default()
        }
    }

    /// The record as the device at `position` has it.
    pub(crate) fn at(&self, position: Position) -> Self {
        let member = self.member(position);
        let identity = member.map_or_else(String::new, |member| member.identity.clone());
        Self { position, identity, ..self.clone() }
    }

    pub(crate) fn member(&self, position: Position) -> Option<&Member> {
        let group = usize::from(position.group);
        let planned = self.planned.as_ref().filter(|_| group == self.members.len());
        self.members.get(group).or(planned)?.get(usize::from(position.device))
    }

    /// True if a device at `position` may have no record yet, because it is about to receive one.
    pub(crate) fn awaits(&self, position: Position) -> bool {
        self.member(position).is_some_and(|member| member.state == MemberState::Joining)
    }

    pub(crate) fn is_current(&self, position: Position) -> bool {
        self.member(position).is_some_and(|member| member.state == MemberState::Current)
    }

    /// Adds lost ranges, whose keys cannot be read from now on.
    ///
    /// # Errors
    /// If these are too many for a record. It is written with every change.
    pub(crate) fn take_lost_ranges(&mut self, more: &[LostRange]) -> Result<()> {
        let len: usize = self.lost_ranges.iter().chain(more).map(LostRange::len).sum();
        if !more.is_empty() && len > LOST_RANGES_MAX {
            let what = "too many keys are damaged on every device that has them: delete them or write \
                        them again first";
            return Err(Error::Unusable(what.to_owned()));
        }
        self.lost_ranges.extend_from_slice(more);
        Ok(())
    }

    /// True if a device is not a current member.
    pub(crate) fn is_degraded(&self) -> bool {
        self.members.iter().flatten().any(|member| member.state != MemberState::Current)
    }

    /// The current members of a group.
    pub(crate) fn current_of(&self, group: u16) -> Devices {
        let members = self.members.get(usize::from(group)).into_iter().flatten();
        let current = members.enumerate().filter(|(_, it)| it.state == MemberState::Current);
        current.fold(0, |set, (device, _)| set | 1 << device)
    }

    /// The primary of a group, which has every acknowledged write.
    pub(crate) fn primary_of(&self, group: u16) -> u8 {
        self.primaries.get(usize::from(group)).copied().unwrap_or_default()
    }

    /// Names another primary.
    pub(crate) fn name_primary(&mut self, group: u16, device: u8) {
        if let Some(primary) = self.primaries.get_mut(usize::from(group)) {
            *primary = device;
        }
    }

    /// Which of a group's members together have every acknowledged write.
    pub(crate) fn quorum_of(&self, group: u16) -> Quorum {
        Quorum::new(self.ack, self.current_of(group), self.primary_of(group))
    }

    /// A device is no longer a member.
    pub(crate) fn leave(&mut self, position: Position) {
        self.stand(position, MemberState::Absent);
    }

    /// Gives a device another state.
    pub(crate) fn stand(&mut self, position: Position, state: MemberState) {
        let group = self.members.get_mut(usize::from(position.group));
        if let Some(member) = group.and_then(|it| it.get_mut(usize::from(position.device))) {
            member.state = state;
        }
    }

    /// Every place of the matrix.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        self.members.iter().enumerate().flat_map(|(group, members)| {
            let group = group as u16;
            (0..members.len() as u8).map(move |device| Position { group, device })
        })
    }

    /// Writes the record to its device, unless a later one is there; durable when it returns.
    ///
    /// # Errors
    /// As the engine, and if a later one is there.
    pub(crate) fn write(&self, engine: &Guarded) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|error| Error::Unusable(error.to_string()))?;
        let options = WriteOptions {
            durability: Some(coreplane_engine::Durability::Strict),
            // A full device must not have to leave the group.
            use_reserve: true,
            ..WriteOptions::default()
        };
        let own = Number { epoch: self.epoch, committed: self.committed };
        let mut is_late = false;
        let mut decide = |there: Option<Record<'_>>| {
            let there = there.and_then(|it| serde_json::from_slice(&it.value.to_vec()).ok());
            // What makes no sense is no later record.
            let is_later =
                |it: Number| it > own && it.committed <= it.epoch && it.epoch <= NUMBER_MAX;
            is_late = there.is_some_and(is_later) && !mutant!("mkvs.record.late");
            if is_late {
                return Mutation::Keep;
            }
            Mutation::Put { value: text.clone(), expires_at: None }
        };
        let written = engine.call(|it| it.modify(&key(), &options, &mut decide));
        match written {
            _ if is_late => {
                let Number { epoch, .. } = own;
                Err(Error::Unusable(format!(
                    "a device has a later record than that of epoch {epoch}"
                )))
            }
            // A put needs neither the record that is there nor space beside it.
            Err(error) if is_damage(&error) || error.remedy() == Remedy::FreeSpace => {
                engine.call(|it| it.put(&key(), &text, &options)).map(|_| ())
            }
            written => written.map(|_| ()),
        }
    }

    /// The membership record of a device; none if it has none.
    ///
    /// # Errors
    /// As the engine, [`Error::Corrupt`] if the bytes are no record that was ever written, and
    /// [`Error::Unusable`] if the record has another version.
    pub(crate) fn read(engine: &dyn StorageEngine) -> Result<Option<Self>> {
        if !engine.check(&key())? {
            return Ok(None);
        }
        let Some(text) = engine.get(&key())? else { return Ok(None) };
        // The version first: later ones may have other fields.
        let garbled = |what: String| Error::Corrupt { offset: 0, what };
        let Versioned { version } = serde_json::from_slice(&text)
            .map_err(|error| garbled(format!("the membership record of a device: {error}")))?;
        if version != VERSION {
            return Err(Error::Unusable(format!(
                "the membership record of a device has version {version}, and {VERSION} is understood"
            )));
        }
        let record: Self = serde_json::from_slice(&text)
            .map_err(|error| garbled(format!("the membership record of a device: {error}")))?;
        record
            .check_shape()
            .map_err(|what| garbled(format!("the membership record of a device {what}")))?;
        let groups = record.members.len();
        let mut owners = record.owners.iter().chain(record.moving.values());
        let slots = record.moving.keys().all(|slot| usize::from(*slot) < crate::shape::SLOTS);
        if !slots || owners.any(|owner| usize::from(*owner) >= groups) {
            return Err(garbled(
                "the membership record of a device names a group or a slot that is not".to_owned(),
            ));
        }
        Ok(Some(record))
    }

    /// # Errors
    /// A statement that no written record ever makes.
    fn check_shape(&self) -> std::result::Result<(), String> {
        let planned = self.planned.iter();
        let most = self.members.iter().chain(planned).map(Vec::len).max().unwrap_or(0);
        let Position { group, device } = self.position;
        if self.members.is_empty() || self.members.len() > usize::from(GROUPS_MAX) {
            return Err(format!("names {} groups", self.members.len()));
        }
        if most > DEVICES_MAX || usize::from(device) >= DEVICES_MAX || group >= GROUPS_MAX {
            return Err(format!("is of {} and names {most} devices of a group", self.position));
        }
        if self.epoch.max(self.watermark) > NUMBER_MAX || self.committed > self.epoch {
            let Self { epoch, committed, watermark, .. } = self;
            return Err(format!(
                "has epoch {epoch}, committed {committed}, and watermark {watermark}"
            ));
        }
        let groups = self.members.iter().zip(&self.primaries);
        let is_member = |(group, primary): (&Vec<Member>, &u8)| usize::from(*primary) < group.len();
        if self.primaries.len() != self.members.len() || !groups.into_iter().all(is_member) {
            return Err("names a primary that is no device of its group".to_owned());
        }
        Ok(())
    }

    /// True if no record later than this one, the latest of the devices `present`, can exist.
    pub(crate) fn is_latest(&self, present: impl Fn(Position) -> bool) -> bool {
        let mut groups = self.members.iter().enumerate();
        groups.any(|(group, members)| {
            let group = group as u16;
            (0..).zip(members).all(|(device, member)| {
                member.state != MemberState::Current || present(Position { group, device })
            })
        })
    }
}

/// Owners as one text, a hexadecimal digit for each or, with more than 16 groups, two, to keep a record short.
mod digits {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(owners: &[u16], to: S) -> Result<S::Ok, S::Error> {
        let width = if owners.iter().all(|owner| *owner < 16) { 1 } else { 2 };
        let digits: String = owners.iter().map(|owner| format!("{owner:0width$x}")).collect();
        to.serialize_str(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u16>, D::Error> {
        let digits = String::deserialize(from)?;
        let width = digits.len() / crate::shape::SLOTS;
        let is_sound =
            digits.is_ascii() && digits.len() == width * crate::shape::SLOTS && width > 0;
        let owner = |at: usize| {
            let digits = digits.get(at * width..(at + 1) * width).filter(|_| is_sound);
            digits.and_then(|digits| u16::from_str_radix(digits, 16).ok())
        };
        let owners: Option<Vec<u16>> = (0..crate::shape::SLOTS).map(owner).collect();
        owners.ok_or_else(|| de::Error::custom("owners are no digits of 1024 slots"))
    }
}

#[cfg(test)]
mod tests;
