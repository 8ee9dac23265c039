//! What every device knows of the matrix: who belongs to it, and who is current.
//!
//! A label is a record in the device's own engine, under a key that no user can write. All devices
//! have the same, but for their own places. It has an *epoch*, which is raised with every change
//! of the membership, and before a write is acknowledged without a member the new label is durable
//! on every device that can be reached.
//!
//! **Opening** reads the labels of all devices that are there and believes the highest epoch. A
//! device that is not a current member by that one is out of date. But is there a higher one, which
//! none of those that are there has seen? It would have been made without any of them, so that every
//! group would have had a member that is not here now. If one group has all its members here, there
//! is none. If no group has, it cannot be told, and the matrix is refused.
//!
//! What was written at `first` or `majority` may be on fewer members than there are: then a missing
//! member may have been the only holder of what was acknowledged, unless the matrix was closed.

use crate::group::DEVICES_MAX;
use crate::groups::GROUPS_MAX;
use crate::uncertain::Uncertain;
use coreplane_engine::{Engine, Error, Result, WriteOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of this format.
const VERSION: u32 = 1;

/// No epoch and no mark is ever greater.
const NUMBER_MAX: u64 = 1 << 62;

/// Bytes of keys that a fill may have left out.
const UNCERTAIN_MAX: usize = 64 << 10;

/// What keys begin with that are the matrix's own.
pub(crate) const RESERVED: &[u8] = b"\0coreplane matrix\0";

/// How many copies a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// One: the others follow.
    First,
    /// More than half of the current members.
    Majority,
    /// All current members.
    #[default]
    All,
}

impl Ack {
    /// Copies that a write waits for, of so many current members.
    pub(crate) fn copies(self, members: u32) -> u32 {
        match self {
            Self::First => members.min(1),
            Self::Majority if members > 0 => members / 2 + 1,
            Self::Majority | Self::All => members,
        }
    }
}

impl std::str::FromStr for Ack {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "majority" => Ok(Self::Majority),
            "all" => Ok(Self::All),
            _ => Err(format!("`{text}` is none of first, majority, all")),
        }
    }
}

/// The place of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The group.
    pub group: u16,
    /// The device in it.
    pub device: u8,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("g{}d{}", self.group, self.device))
    }
}

/// As it is shown.
impl std::str::FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let place = || {
            let (group, device) = text.strip_prefix('g')?.split_once('d')?;
            Some(Self { group: group.parse().ok()?, device: device.parse().ok()? })
        };
        place().ok_or_else(|| format!("`{text}` is no place of a matrix; g0d1 is one"))
    }
}

/// What a member is to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It has all that was acknowledged.
    Current,
    /// It is out of date, or not there.
    Absent,
    /// It is being filled from the others.
    Joining,
}

/// A device as a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Who it is: drawn at random when it became one.
    pub(crate) identity: String,
    pub(crate) standing: Standing,
}

/// One that was left out and may alone have what was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) identity: String,
    /// It had a label of this epoch, or a later one.
    pub(crate) heard: u64,
}

/// What every version of a label has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// What a device knows of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    version: u32,
    /// Which matrix.
    pub(crate) matrix: String,
    /// Where in it this device is.
    pub(crate) position: Position,
    pub(crate) identity: String,
    pub(crate) epoch: u64,
    /// Every current member has had a label of this epoch, or a later one: who has not is an older copy of
    /// itself.
    #[serde(default)]
    pub(crate) heard: u64,
    pub(crate) ack: Ack,
    #[serde(default)]
    pub(crate) prototype: crate::Prototype,
    /// By group and device.
    pub(crate) members: Vec<Vec<Member>>,
    /// Devices of a group that is being made: it is none yet, and its devices hold nothing.
    #[serde(default)]
    pub(crate) planned: Option<Vec<Member>>,
    /// The group that owns each slot.
    #[serde(with = "digits")]
    pub(crate) owners: Vec<u16>,
    /// Slots that move, and where to.
    #[serde(default)]
    pub(crate) moving: BTreeMap<u16, u16>,
    /// Groups may have records of slots that are not theirs any more.
    #[serde(default)]
    pub(crate) has_guests: bool,
    /// It is being emptied: nothing counts that was written before.
    #[serde(default)]
    pub(crate) is_clearing: bool,
    /// The matrix was closed: each current member has all.
    pub(crate) is_clean: bool,
    /// Every write up to this sequence is on all current members.
    pub(crate) mark: u64,
    /// False from when a group's anchor was dropped, where writes wait for some members only, until those
    /// that are left have all that was acknowledged.
    pub(crate) is_level: bool,
    /// Those anchors: what was acknowledged and has not come to others they have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) holders: Vec<Holder>,
    /// Tombstones above this are held for the caller's sake.
    pub(crate) held: u64,
    /// Devices that were filled have got no tombstones up to this.
    #[serde(default)]
    pub(crate) horizon: u64,
    /// Keys of which acknowledged writes may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uncertain: Vec<Uncertain>,
}

/// True if the engine is that of a device of a matrix, which is not to be written to by itself.
pub fn is_device(engine: &dyn Engine) -> bool {
    matches!(Label::read(engine), Ok(Some(_)))
}

/// The key of the label.
fn key() -> Vec<u8> {
    [RESERVED, b"label"].concat()
}

impl Label {
    /// Of a device of a new matrix.
    pub(crate) fn new(matrix: String, ack: Ack, identities: &[Vec<String>]) -> Self {
        let member =
            |identity: &String| Member { identity: identity.clone(), standing: Standing::Current };
        let members: Vec<Vec<Member>> =
            identities.iter().map(|group| group.iter().map(member).collect()).collect();
        let groups = members.len() as u16;
        Self {
            version: VERSION,
            matrix,
            position: Position { group: 0, device: 0 },
            identity: String::new(),
            epoch: 1,
            heard: 0,
            ack,
            prototype: crate::Prototype::default(),
            members,
            planned: None,
            owners: crate::place::deal(groups),
            moving: BTreeMap::new(),
            has_guests: false,
            is_clearing: false,
            is_clean: false,
            mark: 0,
            is_level: true,
            holders: Vec::new(),
            held: u64::MAX,
            horizon: 0,
            uncertain: Vec::new(),
        }
    }

    /// As the device at `position` has it.
    pub(crate) fn at(&self, position: Position) -> Self {
        let member = self.member(position);
        let identity = member.map_or_else(String::new, |member| member.identity.clone());
        Self { position, identity, ..self.clone() }
    }

    /// True if it says the same as another of its epoch, but for what is raised without a new one.
    pub(crate) fn says_as(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.ack, it.prototype, it.has_guests, it.is_clearing);
        of(self) == of(other)
            && self.members == other.members
            && self.planned == other.planned
            && self.owners == other.owners
            && self.moving == other.moving
    }

    pub(crate) fn member(&self, position: Position) -> Option<&Member> {
        let group = usize::from(position.group);
        let planned = self.planned.as_ref().filter(|_| group == self.members.len());
        self.members.get(group).or(planned)?.get(usize::from(position.device))
    }

    /// True if a device at `position` may have no label yet: it is about to get one.
    pub(crate) fn awaits(&self, position: Position) -> bool {
        self.member(position).is_some_and(|member| member.standing == Standing::Joining)
    }

    pub(crate) fn is_current(&self, position: Position) -> bool {
        self.member(position).is_some_and(|member| member.standing == Standing::Current)
    }

    /// Reads of more keys fail from now on.
    ///
    /// # Errors
    /// If these are more than a label is to have. It is written with every change.
    pub(crate) fn take_uncertain(&mut self, more: &[Uncertain]) -> Result<()> {
        let len: usize = self.uncertain.iter().chain(more).map(Uncertain::len).sum();
        if !more.is_empty() && len > UNCERTAIN_MAX {
            let what = "too many keys are damaged on every device that has them: delete them or write \
                        them again first";
            return Err(Error::Unusable(what.to_owned()));
        }
        self.uncertain.extend_from_slice(more);
        Ok(())
    }

    /// True if a device is not a current member.
    pub(crate) fn is_degraded(&self) -> bool {
        self.members.iter().flatten().any(|member| member.standing != Standing::Current)
    }

    /// An anchor is about to leave, which may have what was acknowledged and has not come to others.
    pub(crate) fn lose_holder(&mut self, position: Position) {
        self.is_level = false;
        let Some(identity) = self.member(position).map(|member| member.identity.clone()) else {
            return;
        };
        self.holders.retain(|holder| holder.identity != identity);
        self.holders.push(Holder { identity, heard: self.heard });
    }

    /// A device is a member no more.
    pub(crate) fn leave(&mut self, position: Position) {
        self.stand(position, Standing::Absent);
    }

    /// A device has another standing from now on.
    pub(crate) fn stand(&mut self, position: Position, standing: Standing) {
        let group = self.members.get_mut(usize::from(position.group));
        if let Some(member) = group.and_then(|it| it.get_mut(usize::from(position.device))) {
            member.standing = standing;
        }
    }

    /// Every place of the matrix.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        self.members.iter().enumerate().flat_map(|(group, members)| {
            let group = group as u16;
            (0..members.len() as u8).map(move |device| Position { group, device })
        })
    }

    /// Writes it to its device; durable when it returns.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn write(&self, engine: &dyn Engine) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|error| Error::Unusable(error.to_string()))?;
        let options = WriteOptions {
            durability: Some(coreplane_engine::Durability::Strict),
            // A device must not be left out because it is full.
            is_vital: true,
            ..WriteOptions::default()
        };
        engine.put(&key(), &text, &options).map(|_| ())
    }

    /// The label of a device; none if it has none.
    ///
    /// # Errors
    /// As the engine, [`Error::Corrupt`] if it is not one that was ever written, and
    /// [`Error::Unusable`] if it is of another version.
    pub(crate) fn read(engine: &dyn Engine) -> Result<Option<Self>> {
        if !engine.check(&key())? {
            return Ok(None);
        }
        let Some(text) = engine.get(&key())? else { return Ok(None) };
        // The version first: those to come may have other fields.
        let garbled = |what: String| Error::Corrupt { offset: 0, what };
        let Versioned { version } = serde_json::from_slice(&text)
            .map_err(|error| garbled(format!("the label of a device: {error}")))?;
        if version != VERSION {
            return Err(Error::Unusable(format!(
                "the label of a device has version {version}, and {VERSION} is understood"
            )));
        }
        let label: Self = serde_json::from_slice(&text)
            .map_err(|error| garbled(format!("the label of a device: {error}")))?;
        label.check_shape().map_err(|what| garbled(format!("the label of a device {what}")))?;
        let groups = label.members.len();
        let mut owners = label.owners.iter().chain(label.moving.values());
        let slots = label.moving.keys().all(|slot| usize::from(*slot) < crate::SLOTS);
        if !slots || owners.any(|owner| usize::from(*owner) >= groups) {
            return Err(garbled(
                "the label of a device names a group or a slot that is not".to_owned(),
            ));
        }
        Ok(Some(label))
    }

    /// # Errors
    /// What no label says that was ever written.
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
        if self.epoch.max(self.mark) > NUMBER_MAX {
            return Err(format!("has epoch {} and mark {}", self.epoch, self.mark));
        }
        Ok(())
    }

    /// True if no later label can exist than this one, the highest of the devices `present`.
    pub(crate) fn is_latest(&self, present: impl Fn(Position) -> bool) -> bool {
        let mut groups = self.members.iter().enumerate();
        groups.any(|(group, members)| {
            let group = group as u16;
            (0..).zip(members).all(|(device, member)| {
                member.standing != Standing::Current || present(Position { group, device })
            })
        })
    }
}

/// Owners as one text, a hexadecimal digit for each or, with more than 16 groups, two: a label is to
/// be short.
mod digits {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(owners: &[u16], to: S) -> Result<S::Ok, S::Error> {
        let width = if owners.iter().all(|owner| *owner < 16) { 1 } else { 2 };
        let digits: String = owners.iter().map(|owner| format!("{owner:0width$x}")).collect();
        to.serialize_str(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u16>, D::Error> {
        let digits = String::deserialize(from)?;
        let width = digits.len() / crate::SLOTS;
        let is_sound = digits.is_ascii() && digits.len() == width * crate::SLOTS && width > 0;
        let owner = |at: usize| {
            let digits = digits.get(at * width..(at + 1) * width).filter(|_| is_sound);
            digits.and_then(|digits| u16::from_str_radix(digits, 16).ok())
        };
        let owners: Option<Vec<u16>> = (0..crate::SLOTS).map(owner).collect();
        owners.ok_or_else(|| de::Error::custom("owners are no digits of 1024 slots"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(groups: usize, devices: usize) -> Label {
        let identities: Vec<Vec<String>> = (0..groups)
            .map(|group| (0..devices).map(|device| format!("{group}-{device}")).collect())
            .collect();
        Label::new("matrix".to_owned(), Ack::All, &identities)
    }

    #[test]
    fn a_label_is_short_and_reads_as_it_was_written() {
        for groups in [1, 2, 16, 17, 256] {
            let label = label(groups, 2);
            let text = serde_json::to_string(&label).expect("text");
            assert!(groups > 2 || text.len() < 1600, "{} bytes", text.len());
            assert_eq!(serde_json::from_str::<Label>(&text).expect("a label"), label);
        }
        let text = serde_json::to_string(&label(2, 2)).expect("text");
        let cut = text.replace("\"owners\":\"", "\"owners\":\"0");
        assert!(serde_json::from_str::<Label>(&cut).is_err());
    }

    #[test]
    fn a_label_that_nobody_wrote_is_damage() {
        let engine = coreplane_engine::model::ModelEngine::new();
        let of = |change: &dyn Fn(&mut Label)| {
            let mut label = label(2, 2);
            change(&mut label);
            label.write(&engine).expect("write");
            Label::read(&engine)
        };
        assert!(matches!(of(&|_| {}), Ok(Some(_))));
        let member = Member { identity: "more".to_owned(), standing: Standing::Current };
        let nine = || vec![member.clone(); 9];
        let changes: [&dyn Fn(&mut Label); 6] = [
            &|label| label.members[1] = nine(),
            &|label| label.planned = Some(nine()),
            &|label| label.position.device = 8,
            &|label| label.position.group = u16::MAX,
            &|label| label.epoch = u64::MAX,
            &|label| label.mark = u64::MAX,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let read = of(change);
            assert!(matches!(read, Err(Error::Corrupt { .. })), "{number}: {read:?}");
        }
    }

    fn latest(label: &Label, missing: &[(u16, u8)]) -> bool {
        label.is_latest(|Position { group, device }| !missing.contains(&(group, device)))
    }

    #[test]
    fn a_group_that_is_all_there_proves_the_label() {
        let two_by_two = label(2, 2);
        assert!(latest(&two_by_two, &[]));
        assert!(latest(&two_by_two, &[(0, 1)]), "one is missing, the other group is whole");
        assert!(!latest(&two_by_two, &[(0, 1), (1, 0)]), "neither group is whole");
        assert!(!latest(&label(1, 2), &[(0, 0)]));
        let mut degraded = label(1, 2);
        degraded.members[0][0].standing = Standing::Absent;
        assert!(latest(&degraded, &[(0, 0)]), "who is missing is no member any more");
    }

    #[test]
    fn copies_are_counted_of_those_that_are_there() {
        for (members, first, majority, all) in
            [(1, 1, 1, 1), (2, 1, 2, 2), (3, 1, 2, 3), (0, 0, 0, 0)]
        {
            assert_eq!(Ack::First.copies(members), first);
            assert_eq!(Ack::Majority.copies(members), majority);
            assert_eq!(Ack::All.copies(members), all);
        }
    }
}
