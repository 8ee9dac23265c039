//! Who is current when a matrix is opened, and what is lost if that cannot be proven.
//!
//! What is missing may have what nobody else has. Whoever accepts that goes on with what is here: and
//! from then on the missing devices must not be believed any more, for they may have gone on without
//! those that are here, or been written to since. So where that may be, their places get new
//! identities and the matrix an epoch that no other line of it reaches: a device that comes back is
//! "replaced by another", whoever has the higher epoch, and only a fresh one can take its place.

use crate::intent::Intent;
use crate::label::{Ack, Holder, Label, Member, Position, Standing};
use crate::open::{Found, drawn};
use coreplane_engine::{Error, Result};
use std::collections::BTreeMap;

/// How much further an epoch is once a loss was accepted: more than there are changes of a membership.
const LEAP: u64 = 1 << 32;

/// What may be lost of a group, since the loss was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The group.
    pub group: u16,
    /// Its members that are not here, or were not level when they were left out.
    pub missing: Vec<Position>,
    /// Who stands for the group now.
    pub kept: Vec<Position>,
    /// The epoch of the membership that these have last heard of.
    pub epoch: u64,
    /// What has a sequence up to this is on them.
    pub mark: u64,
    /// What may be lost.
    pub what: &'static str,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, epoch, mark, what, .. } = self;
        write!(f, "group {group} goes on with {} (epoch {epoch}, mark {mark})", names(&self.kept))?;
        if !self.missing.is_empty() {
            write!(f, " without {}", names(&self.missing))?;
        }
        write!(f, ": {what} is lost")
    }
}

const STALE: &str = "what was written since it was left out, and is on the missing ones alone,";
const OUTDATED: &str = "what was written to it since";
const UNPROVEN: &str = "what was acknowledged without those that are here, if anything was,";
const SINGLE: &str = "what was acknowledged and had not come to those that are here";

fn names(positions: &[Position]) -> String {
    positions.iter().map(Position::to_string).collect::<Vec<_>>().join(", ")
}

/// Devices by where they belong, and where each lies.
pub(crate) type Placed = (BTreeMap<Position, Found>, BTreeMap<Position, Position>);

/// # Errors
/// If they are not all of one matrix, or two are the same.
pub(crate) fn by_position(devices: Vec<(Position, Found)>) -> Result<Placed> {
    check_one_matrix(&devices)?;
    let (mut found, mut occupied) = (BTreeMap::new(), BTreeMap::new());
    for (place, device) in devices {
        let position = device.label.position;
        if let Some((other, _)) = occupied.iter().find(|(_, known)| **known == position) {
            return Err(Error::Unusable(format!(
                "there are two devices {position}, at {other} and at {place}: take one out"
            )));
        }
        occupied.insert(place, position);
        found.insert(position, device);
    }
    Ok((found, occupied))
}

/// # Errors
/// If devices are of different matrices: who are the fewer is told to be foreign, wherever they lie.
fn check_one_matrix(devices: &[(Position, Found)]) -> Result<()> {
    let mut places: BTreeMap<&str, Vec<Position>> = BTreeMap::new();
    for (place, device) in devices {
        places.entry(&device.label.matrix).or_default().push(*place);
    }
    let most = places.iter().max_by_key(|(_, places)| places.len());
    let Some((matrix, ours)) = most else { return Ok(()) };
    let Some((other, foreign)) = places.iter().find(|(it, _)| it != &matrix) else { return Ok(()) };
    let (foreign, ours) = (names(foreign), names(ours));
    Err(Error::Unusable(format!(
        "the device at {foreign} belongs to another matrix ({other}) than {ours} ({matrix}): take it out"
    )))
}

/// The label of the highest epoch.
///
/// # Errors
/// If there is none.
pub(crate) fn newest(found: &BTreeMap<Position, Found>) -> Result<Label> {
    let labels = || found.values().map(|device| &device.label);
    let epoch = labels().map(|label| label.epoch).max();
    let epoch = epoch.ok_or_else(|| Error::Unusable("there is no device".to_owned()))?;
    let latest: Vec<&Label> = labels().filter(|label| label.epoch == epoch).collect();
    in_force(&latest).cloned()
}

/// Of labels of one epoch the one that is in force, with the greatest mark, of which most have heard. They are
/// the same, unless one was cut off when it had come to some devices, and the matrix was opened without
/// those: then it gave its next label the same epoch. Who is current by the one that was cut off has not got
/// it; by the other all have.
///
/// # Errors
/// If that cannot be told: devices were opened apart from each other.
fn in_force<'l>(latest: &[&'l Label]) -> Result<&'l Label> {
    let is_on_all =
        |one: &Label| latest.iter().all(|it| !one.is_current(it.position) || one.says_as(it));
    let candidates = || latest.iter().copied().filter(|label| is_on_all(label));
    let newest = candidates().max_by_key(|label| (label.mark, label.heard));
    let (Some(one), Some(other)) = (latest.first(), latest.last()) else {
        return Err(Error::Unusable("there is no device".to_owned()));
    };
    match newest {
        Some(newest) if candidates().all(|label| label.says_as(newest)) => Ok(newest),
        _ => {
            let other = latest.iter().find(|it| !it.says_as(one)).unwrap_or(other);
            Err(Error::Unusable(format!(
                "{} and {} say different things of the matrix, both in epoch {}: devices of it were opened \
                 apart from each other. Take out those that are not to count",
                one.position, other.position, one.epoch
            )))
        }
    }
}

/// True if a current member has heard of less than the newest label says: the power went while that was
/// written, or the device is an older copy of itself, out of a backup.
pub(crate) fn is_behind(label: &Label, newest: &Label) -> bool {
    let has_heard = label.epoch >= newest.epoch && label.mark >= newest.mark;
    !has_heard || newest.is_clean && !label.is_clean
}

/// Decides who is current: the label to go on with, the devices that are its current members, and
/// what is lost with the others.
///
/// # Errors
/// If a device is not the one that belongs to its place; and if something may be lost that nobody has
/// accepted.
pub(crate) fn admit(
    found: &mut BTreeMap<Position, Found>,
    mut label: Label,
    accept_loss: bool,
) -> Result<(Label, Vec<Loss>)> {
    check_identities(found, &label)?;
    let mut losses = Vec::new();
    for group in 0..label.members.len() as u16 {
        let is_here = |at: &Position| at.group == group && label.is_current(*at);
        let mut here = found.iter().filter(|(at, _)| is_here(at)).map(|(_, device)| device);
        if !found.keys().any(is_here) {
            losses.push(promote(found, &mut label, group, accept_loss)?);
        } else if here.all(|device| device.label.epoch < label.heard) {
            losses.push(put_back(found, &mut label, group, accept_loss)?);
        }
    }
    found.retain(|position, _| label.is_current(*position));
    let missing: Vec<Position> = label
        .positions()
        .filter(|position| label.is_current(*position) && !found.contains_key(position))
        .collect();
    let what = check_missing(found, &label, &missing, accept_loss)?;
    if let Some(what) = what {
        losses.extend(losses_of(found, &label, &missing, what));
    }
    for position in &missing {
        label.leave(*position);
        if what == Some(UNPROVEN) {
            banish(&mut label, *position);
        }
    }
    if losses.iter().any(|loss| loss.what != SINGLE) {
        label.epoch += LEAP;
    }
    Ok((label, losses))
}

/// Takes from those that were found the anchors that had left when their peers had not all of what was
/// acknowledged, as the label says, if all of them are here: then nothing is lost, for their peers are given
/// what they have. Not where slots have moved meanwhile.
pub(crate) fn holders_of(
    found: &mut BTreeMap<Position, Found>,
    label: &mut Label,
) -> BTreeMap<Position, Found> {
    let is_moved = label.has_guests || !label.moving.is_empty() || label.is_clearing;
    if label.is_level || label.is_clean || is_moved {
        return BTreeMap::new();
    }
    let is_holder = |(at, device): &(&Position, &Found)| {
        let member = label.member(**at).filter(|it| it.standing == Standing::Absent);
        let Label { identity, epoch, owners, .. } = &device.label;
        // Not an older copy of it.
        let is_it = |it: &Holder| it.identity == *identity && *epoch >= it.heard;
        member.is_some_and(|it| it.identity == *identity)
            && label.holders.iter().any(is_it)
            && *owners == label.owners
    };
    let places: Vec<Position> = found.iter().filter(is_holder).map(|(at, _)| *at).collect();
    if places.is_empty() || places.len() < label.holders.len() {
        return BTreeMap::new();
    }
    label.is_level = true;
    let taken = places.into_iter().filter_map(|at| {
        let mut device = found.remove(&at)?;
        device.label = label.at(at);
        Some((at, device))
    });
    taken.collect()
}

fn check_identities(found: &BTreeMap<Position, Found>, label: &Label) -> Result<()> {
    for (position, device) in found {
        let is_its = |member: &Member| member.identity == device.label.identity;
        // Where another is about to be made, what was there is not looked at any more.
        if !label.awaits(*position) && !label.member(*position).is_some_and(is_its) {
            return Err(Error::Unusable(format!(
                "the device at {position} was replaced by another: take it out"
            )));
        }
    }
    Ok(())
}

/// Whoever comes back there is not believed.
fn banish(label: &mut Label, position: Position) {
    let group = label.members.get_mut(usize::from(position.group));
    if let Some(member) = group.and_then(|it| it.get_mut(usize::from(position.device))) {
        *member = Member { identity: drawn(), standing: Standing::Absent };
    }
}

/// A group none of whose current devices is here goes on with the newest that is.
fn promote(
    found: &BTreeMap<Position, Found>,
    label: &mut Label,
    group: u16,
    accept_loss: bool,
) -> Result<Loss> {
    // One that was being filled has a part of everything, of which nobody knows which.
    let is_whole =
        |at: &Position| label.member(*at).is_some_and(|member| member.standing == Standing::Absent);
    let stale = found.iter().filter(|(at, _)| at.group == group && is_whole(at));
    let newest = stale.max_by_key(|(_, device)| (device.label.epoch, device.label.mark));
    let none = format!("group {group} has no current device here");
    let current = label.positions().filter(|at| at.group == group && label.is_current(*at));
    let current: Vec<Position> = current.collect();
    let Some((position, device)) = newest else {
        return Err(Error::Unusable(format!("{none}: one of {} is needed", names(&current))));
    };
    let (position, Label { epoch, mark, .. }) = (*position, &device.label);
    if !accept_loss {
        return Err(Error::Unusable(format!(
            "{none}; {position} is, which was left out (epoch {epoch}, mark {mark}): what was \
             written to the group since would be lost (accept loss to open it)"
        )));
    }
    // What it was about to do then its peers have done since, or taken back.
    Intent::drop_all(&*device.engine)?;
    let missing: Vec<Position> =
        label.positions().filter(|at| at.group == group && label.is_current(*at)).collect();
    missing.iter().for_each(|at| banish(label, *at));
    label.stand(position, Standing::Current);
    // It may have keys that have moved away since, and sequences are to be above those of the others.
    (label.has_guests, label.is_clean) = (true, false);
    let (kept, what) = (vec![position], STALE);
    Ok(Loss { group, missing, kept, epoch: *epoch, mark: *mark, what })
}

/// A group all of whose devices that are here are older copies of themselves, out of a backup, goes on with
/// what these have.
fn put_back(
    found: &BTreeMap<Position, Found>,
    label: &mut Label,
    group: u16,
    accept_loss: bool,
) -> Result<Loss> {
    let is_here = |at: &Position| found.contains_key(at);
    let current = label.positions().filter(|at| at.group == group && label.is_current(*at));
    let (kept, missing): (Vec<Position>, Vec<Position>) = current.partition(is_here);
    let labels = || kept.iter().filter_map(|at| found.get(at)).map(|device| &device.label);
    let newest = labels().map(|it| (it.epoch, it.mark)).max();
    let (epoch, mark) = newest.unwrap_or((0, 0));
    if !accept_loss {
        let (names, heard) = (names(&kept), label.heard);
        return Err(Error::Unusable(format!(
            "group {group} has no current device here: {names} are older copies of themselves, as out of a \
             backup (epoch {epoch}, mark {mark}; its members have gone on to epoch {heard}): what was written \
             to the group since would be lost (accept loss to open it)"
        )));
    }
    for at in &kept {
        // As of one that was left out.
        found.get(at).map_or(Ok(()), |device| Intent::drop_all(&*device.engine))?;
    }
    missing.iter().for_each(|at| banish(label, *at));
    (label.has_guests, label.is_clean) = (true, false);
    Ok(Loss { group, missing, kept, epoch, mark, what: OUTDATED })
}

/// What is lost with members that are missing; nothing if all is sure to be here.
///
/// # Errors
/// If something is, and that is not accepted.
fn check_missing(
    found: &BTreeMap<Position, Found>,
    label: &Label,
    missing: &[Position],
    accept_loss: bool,
) -> Result<Option<&'static str>> {
    let names = names(missing);
    let (what, why) = if !missing.is_empty()
        && !label.is_latest(|position| found.contains_key(&position))
    {
        let why = format!(
            "{names} are missing, and no group is whole: those that are here may be out of date, and \
             what was acknowledged without them would be lost (accept loss to open it)"
        );
        (UNPROVEN, why)
    } else if !missing.is_empty() && label.ack != Ack::All && !label.is_clean {
        let why = format!(
            "{names} are missing, the matrix was not closed, and a write waited for some members \
             only: what none but they have would be lost (accept loss to open it)"
        );
        (SINGLE, why)
    } else if !label.is_level && !label.is_clean {
        let why = "the matrix was not closed after a device had failed, and a write waited for some \
                   members only: what none but that one had would be lost (put it back, or accept loss \
                   to open it)";
        (SINGLE, why.to_owned())
    } else {
        return Ok(None);
    };
    if accept_loss { Ok(Some(what)) } else { Err(Error::Unusable(why)) }
}

/// What is lost of each group that lacks a device.
fn losses_of<'a>(
    found: &'a BTreeMap<Position, Found>,
    label: &'a Label,
    missing: &'a [Position],
    what: &'static str,
) -> impl Iterator<Item = Loss> + 'a {
    let (epoch, mark) = (label.epoch, label.mark);
    (0..label.members.len() as u16).filter_map(move |group| {
        let of_group = |at: &Position| at.group == group;
        let kept: Vec<Position> = found.keys().copied().filter(of_group).collect();
        let lacks = |at: &Position| {
            of_group(at) && (missing.contains(at) || missing.is_empty() && !kept.contains(at))
        };
        let missing: Vec<Position> = label.positions().filter(lacks).collect();
        (!missing.is_empty()).then_some(Loss { group, missing, kept, epoch, mark, what })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::believed::{Checked, believed};
    use coreplane_engine::Engine;
    use coreplane_engine::model::ModelEngine;
    use std::sync::Arc;

    const HERE: Position = Position { group: 0, device: 0 };

    fn found(label: &Label) -> BTreeMap<Position, Found> {
        let engine: Arc<dyn Engine> = Arc::new(ModelEngine::new());
        let Checked { engine, belief } = believed(engine).expect("it has no medium");
        BTreeMap::from([(HERE, Found { engine, belief, label: label.at(HERE) })])
    }

    fn one_by_two(ack: Ack) -> Label {
        let identities = vec![vec!["one".to_owned(), "other".to_owned()]];
        Label::new("matrix".to_owned(), ack, &identities)
    }

    #[test]
    fn a_matrix_whose_survivors_were_not_level_is_refused() {
        let mut label = one_by_two(Ack::First);
        label.members[0][1].standing = Standing::Absent;
        let admitted =
            |label: &Label, accept_loss| admit(&mut found(label), label.clone(), accept_loss);
        let (_, losses) = admitted(&label, false).expect("they were level");
        assert!(losses.is_empty());
        label.is_level = false;
        assert!(admitted(&label, false).is_err());
        let (after, losses) = admitted(&label, true).expect("accepted");
        assert_eq!(losses[0].missing, [Position { group: 0, device: 1 }]);
        assert_eq!(after.epoch, label.epoch, "the other one may come back and be filled");
        label.is_clean = true;
        assert!(admitted(&label, false).is_ok(), "it was closed, for which they were made level");
    }

    #[test]
    fn of_two_labels_of_one_epoch_the_one_in_force_counts() {
        let at = |device| Position { group: 0, device };
        let identities = vec![["a", "b", "c"].map(str::to_owned).to_vec()];
        let all = Label::new("matrix".to_owned(), Ack::All, &identities);
        let mut without_a = all.clone();
        without_a.leave(at(0));
        let mut moved = all.clone();
        moved.has_guests = true;
        let force = |labels: &[&Label]| {
            let mut labels: Vec<Label> =
                (0..).zip(labels).map(|(device, label)| label.at(at(device))).collect();
            let mut answers = Vec::new();
            // Whatever their order, and the marks.
            for turn in 0..6 {
                labels.rotate_left(1);
                labels[turn % 3].mark += 10;
                let one = in_force(&labels.iter().collect::<Vec<_>>()).cloned();
                answers.push(one.ok());
            }
            assert!(answers.iter().all(|it| it.is_some() == answers[0].is_some()));
            answers[0].clone()
        };
        assert!(force(&[&all, &all, &all]).is_some_and(|it| it.says_as(&all)));
        // It was cut off when it had come to the first, which the others have left out since.
        assert!(force(&[&moved, &without_a, &without_a]).is_some_and(|it| it.says_as(&without_a)));
        // Of two that both say that all are current neither is in force.
        assert!(force(&[&moved, &all, &all]).is_none());
        // Each went on without the others.
        let mut alone = all.clone();
        (1..3).for_each(|device| alone.leave(at(device)));
        assert!(force(&[&alone, &without_a, &without_a]).is_none());
    }

    #[test]
    fn one_that_was_left_out_stands_for_its_group_if_that_is_accepted() {
        let mut stale = one_by_two(Ack::All);
        (stale.epoch, stale.mark) = (3, 70);
        let mut label = stale.clone();
        (label.epoch, label.mark) = (9, 400);
        label.leave(HERE);
        let devices = || found(&stale);
        let refused = admit(&mut devices(), label.clone(), false).map(|_| ()).expect_err("stale");
        assert!(refused.to_string().contains("epoch 3, mark 70"), "{refused}");
        let (after, losses) = admit(&mut devices(), label.clone(), true).expect("accepted");
        let other = Position { group: 0, device: 1 };
        let told = (losses[0].missing.as_slice(), losses[0].epoch, losses[0].mark);
        assert_eq!((losses.len(), told), (1, (&[other][..], 3, 70)));
        assert!(after.is_current(HERE) && !after.is_current(other));
        // Whoever comes back from the other line, however long that went on.
        assert!(after.epoch > label.epoch + LEAP / 2);
        assert_ne!(after.members[0][1].identity, label.members[0][1].identity);
        // One that was being filled is not whole.
        label.stand(HERE, Standing::Joining);
        assert!(admit(&mut devices(), label, true).is_err());
    }
}
