//! The records that a power cut has left, and the records that it may leave.

use super::deed::{Op, key};
use super::{Aftermath, Story};
use coreplane_engine::{Engine, Repairable, Result, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Position};
use coreplane_pmem::media::sim::{History, Standing};
use std::collections::{BTreeMap, BTreeSet};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A possible value of a key, and the operation that wrote it.
type State<'v> = (usize, Option<&'v Vec<u8>>);

/// The state after a power cut.
pub(crate) enum Left {
    /// The matrix was not opened.
    Refused(String),
    Matrix {
        matrix: Box<Matrix>,
        has_extras: bool,
    },
}

impl Left {
    pub(crate) fn matrix(matrix: Matrix) -> Self {
        Self::Matrix { matrix: Box::new(matrix), has_extras: false }
    }
}

/// The state as a caller sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Refused(String),
    Records(Map),
}

/// Keys that no story has, some in each group.
const EXTRAS: u16 = 12;

fn extra(number: u16) -> Vec<u8> {
    format!("extra-{number}").into_bytes()
}

pub(crate) fn write_extras(matrix: &Matrix) -> Result<()> {
    for number in 0..EXTRAS {
        let _outcome = matrix.put(&extra(number), b"extra", &WriteOptions::default())?;
    }
    Ok(())
}

/// All records, after a check that all ways to read them agree.
pub(crate) fn contents(left: &Left) -> std::result::Result<Contents, String> {
    let (matrix, has_extras) = match left {
        Left::Refused(why) => return Ok(Contents::Refused(why.clone())),
        Left::Matrix { matrix, has_extras } => (matrix, *has_extras),
    };
    let mut map = listed(matrix).map_err(|error| error.to_string())?;
    for (key, value) in &map {
        let found = matrix.get(key).map_err(|error| error.to_string())?;
        if found.as_ref() != Some(value) {
            return Err(format!("{} is listed and not found", String::from_utf8_lossy(key)));
        }
    }
    if matrix.ordered().is_some() {
        check_order(matrix, &map)?;
    }
    matrix.sweep_expired().map_err(|error| error.to_string())?;
    let report = matrix.verify(&mut |_| {}).map_err(|error| error.to_string())?;
    let len = matrix.len().map_err(|error| error.to_string())?;
    if !report.is_sound() || len != map.len() as u64 {
        return Err(format!("{} records, counted {len}, verified {report:?}", map.len()));
    }
    let extras = (0..EXTRAS).filter(|number| map.remove(&extra(*number)).is_some()).count();
    if extras != if has_extras { usize::from(EXTRAS) } else { 0 } {
        return Err(format!("{extras} of what was written after the cut are there"));
    }
    Ok(Contents::Records(map))
}

fn listed(matrix: &Matrix) -> Result<Map> {
    let (mut map, mut cursor) = (Map::new(), 0);
    loop {
        cursor = matrix.iterate(cursor, 100, &mut |entry| {
            let value = entry.record.map(|record| record.value.to_vec());
            map.insert(entry.key.to_vec(), value.unwrap_or_default());
        })?;
        if cursor == 0 {
            return Ok(map);
        }
    }
}

fn check_order(matrix: &Matrix, map: &Map) -> std::result::Result<(), String> {
    for reverse in [false, true] {
        let mut keys = Vec::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| {
            keys.push(entry.key.to_vec());
            true
        };
        let ordered = matrix.ordered().expect("it is ordered");
        let scanned = ordered.scan(b"", None, reverse, usize::MAX, &mut take);
        scanned.map_err(|error| error.to_string())?;
        if reverse {
            keys.reverse();
        }
        if !keys.iter().eq(map.keys()) {
            return Err(format!("a scan (reverse: {reverse}) finds other keys"));
        }
    }
    Ok(())
}

/// True if the matrix may refuse to be opened.
fn may_refuse(story: &Story, history: &History<'_, Op>) -> bool {
    let standing = |wanted: &Op| {
        let operations = history.operations();
        operations.iter().rev().find(|(op, _)| *op == wanted).map(|(_, standing)| *standing)
    };
    let is_closed = standing(&Op::Close) == Some(Standing::Acknowledged);
    let waits_for_some = story.shape.ack != Ack::All;
    // All acknowledged writes are on the last device of a group.
    let is_waited_for = |position: Position| position.device + 1 == story.shape.devices;
    match &story.aftermath {
        _ if standing(&Op::Create) != Some(Standing::Acknowledged) => true,
        // A write that only the pulled device had might be lost.
        _ if standing(&Op::Pull).is_some()
            && story.pulls.is_some_and(is_waited_for)
            && waits_for_some
            && !is_closed =>
        {
            true
        }
        Aftermath::Opened => false,
        Aftermath::Returned(_) => waits_for_some && !is_closed,
        Aftermath::Without(missing) => {
            let groups: BTreeSet<u16> = missing.iter().map(|position| position.group).collect();
            groups.len() == usize::from(story.shape.groups) || waits_for_some && !is_closed
        }
    }
}

/// Compares the records with the operations that were acknowledged, refused or in flight.
pub(crate) fn check(
    story: &Story,
    contents: &Contents,
    history: &History<'_, Op>,
) -> std::result::Result<(), String> {
    let map = match contents {
        Contents::Records(map) => map,
        Contents::Refused(_) if may_refuse(story, history) => return Ok(()),
        Contents::Refused(why) => return Err(format!("it is refused: {why}")),
    };
    // The possible values of each key, and the operations that wrote them.
    let mut allowed: BTreeMap<u16, Vec<State<'_>>> = BTreeMap::new();
    let mut open = Vec::new();
    for (at, (op, standing)) in (1..).zip(history.operations()) {
        let Op::Write(_, changes) = op else { continue };
        if standing == Standing::Refused {
            continue;
        }
        for (number, value) in changes {
            let states = allowed.entry(*number).or_insert_with(|| vec![(0, None)]);
            if standing == Standing::Acknowledged {
                states.clear();
            }
            states.push((at, value.as_ref()));
        }
        if standing == Standing::InFlight {
            open.push((at, changes));
        }
    }
    // The operations that can have left a key in its state.
    let makers = |number: &u16| {
        let found = map.get(&key(*number));
        let states = allowed.get(number).into_iter().flatten();
        states.filter(move |(_, state)| *state == found).map(|(at, _)| *at)
    };
    for (number, states) in &allowed {
        if makers(number).next().is_none() {
            let found = map.get(&key(*number)).map(Vec::len);
            let states: Vec<_> = states.iter().map(|(at, it)| (at, it.map(Vec::len))).collect();
            return Err(format!("key {number} has {found:?} bytes, not one of {states:?}"));
        }
    }
    for (at, changes) in open {
        // All of the operation or nothing.
        let is_made = |(number, _): &(u16, _)| makers(number).all(|maker| maker == at);
        let may_be_made = |(number, _): &(u16, _)| makers(number).any(|maker| maker >= at);
        if changes.iter().any(is_made) && !changes.iter().all(may_be_made) {
            let made: Vec<Vec<usize>> = changes.iter().map(|it| makers(&it.0).collect()).collect();
            return Err(format!("operation {at} was made in part, by {made:?}"));
        }
    }
    let names: BTreeSet<Vec<u8>> = allowed.keys().map(|number| key(*number)).collect();
    match map.keys().find(|key| !names.contains(*key)) {
        Some(key) => Err(format!("{} was never written", String::from_utf8_lossy(key))),
        None => Ok(()),
    }
}
