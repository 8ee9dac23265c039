//! The state that a power cut has left, and the states that it may leave.

use super::operation::{Change, Op, key};
use coreplane_engine::{Engine, Error, Repairable};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Standing};
use coreplane_scmkv::{Options, Scmkv};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// When a write must be there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// When the write is acknowledged.
    AtReturn,
    /// When the next sync is.
    AtSync,
}

/// The store that is left; none if it was never created.
pub(crate) fn recover(space: &Arc<Space>, options: Options) -> Result<Option<Scmkv>, String> {
    match Scmkv::simulated_open(space.clone(), options) {
        Ok(store) => Ok(Some(store)),
        // `check` distinguishes the cases: only before the creation is acknowledged may there be
        // none.
        Err(Error::Unusable(_) | Error::NotAPool(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// All records of a store, which must agree in every way of reading. `expires`: some that it counts
/// may have expired.
pub(crate) fn contents(store: &Option<Scmkv>, expires: bool) -> Result<Option<Map>, String> {
    let Some(store) = store else { return Ok(None) };
    let told = |error: Error| error.to_string();
    let mut map = Map::new();
    let mut cursor = 0;
    loop {
        cursor = store
            .iterate(cursor, 100, &mut |entry| {
                let value = entry.record.map(|record| record.value.to_vec());
                map.insert(entry.key.to_vec(), value.unwrap_or_default());
            })
            .map_err(told)?;
        if cursor == 0 {
            break;
        }
    }
    for (key, value) in &map {
        if store.get(key).map_err(told)?.as_ref() != Some(value) {
            return Err(format!("get and iterate differ at {key:?}"));
        }
    }
    let len = store.len().map_err(told)?;
    if len < map.len() as u64 || len > map.len() as u64 && !expires {
        return Err(format!("len {len}, {} records", map.len()));
    }
    let report = store.verify(&mut |_| {}).map_err(told)?;
    if !report.is_sound() {
        return Err(format!("damages {:?}", report.damages));
    }
    Ok(Some(map))
}

/// Changes that survive together or not at all.
#[derive(Debug)]
struct Step<'a> {
    changes: Vec<(u8, Option<&'a Vec<u8>>)>,
    /// They must have survived.
    is_sure: bool,
}

fn borrowed(change: &Change) -> (u8, Option<&Vec<u8>>) {
    (change.0, change.1.as_ref())
}

/// The steps of a history, in the order of the calls, which for each key is the order of the
/// writes.
fn steps<'a>(history: &History<'a, Op>, durable: Durable) -> Vec<Step<'a>> {
    let operations = history.operations();
    let last_sync = operations.iter().rposition(|(op, standing)| {
        matches!(op, Op::Sync | Op::Close) && *standing == Standing::Acknowledged
    });
    let mut steps: Vec<Step<'a>> = Vec::new();
    for (at, (op, standing)) in operations.into_iter().enumerate() {
        let is_synced = durable == Durable::AtReturn || last_sync.is_some_and(|sync| at < sync);
        let is_sure = standing == Standing::Acknowledged && is_synced;
        let mut step = |changes| steps.push(Step { changes, is_sure });
        match op {
            Op::Write(changes) => step(changes.iter().map(borrowed).collect()),
            Op::Group(changes) => changes.iter().for_each(|it| step(vec![borrowed(it)])),
            Op::PutExpiring(number, value) => step(vec![(*number, Some(value))]),
            Op::PutExpired(number, _) => step(vec![(*number, None)]),
            Op::Seen(change) if is_sure => {
                let seen = borrowed(change);
                let made_so = steps.iter_mut().rev().find(|it| it.changes.contains(&seen));
                made_so.into_iter().for_each(|step| step.is_sure = true);
            }
            _ => {}
        }
    }
    steps
}

/// The differences of `map` if those batches in flight survived that the bits of `some` name.
fn differences(map: &Map, steps: &[Step<'_>], some: u32) -> Vec<String> {
    let mut allowed: BTreeMap<u8, Vec<Option<&Vec<u8>>>> = BTreeMap::new();
    let mut batches = 0;
    for step in steps {
        let is_batch = step.changes.len() > 1 && !step.is_sure;
        let has_survived = step.is_sure || is_batch && some >> batches & 1 == 1;
        batches += u32::from(is_batch);
        if is_batch && !has_survived {
            continue;
        }
        for (number, value) in &step.changes {
            let states = allowed.entry(*number).or_insert_with(|| vec![None]);
            if has_survived {
                states.clear();
            }
            states.push(*value);
        }
    }
    let names: Vec<Vec<u8>> = allowed.keys().map(|number| key(*number)).collect();
    let wrong =
        allowed.values().zip(&names).filter(|(states, key)| !states.contains(&map.get(*key)));
    let told = |key: &Vec<u8>| {
        let what = if map.contains_key(key) { "is as it may not be" } else { "is lost" };
        format!("{} {what}", String::from_utf8_lossy(key))
    };
    let unknown = map.keys().filter(|key| names.binary_search(key).is_err());
    wrong.map(|(_, key)| told(key)).chain(unknown.map(told)).collect()
}

/// Compares the state that is left with the acknowledged writes and those in flight.
pub(crate) fn check(
    contents: &Option<Map>,
    history: &History<'_, Op>,
    durable: Durable,
) -> Result<(), String> {
    let Some(map) = contents else {
        let is_created = history.acknowledged().next().is_some();
        return if is_created { Err("the store is lost".to_owned()) } else { Ok(()) };
    };
    let steps = steps(history, durable);
    let batches = steps.iter().filter(|it| it.changes.len() > 1 && !it.is_sure).count();
    let mut least = Vec::new();
    for some in 0..1_u32 << batches {
        let differences = differences(map, &steps, some);
        if differences.is_empty() {
            return Ok(());
        }
        if some == 0 {
            least = differences;
        }
    }
    Err(format!("not as acknowledged, nor with any of {batches} batches in flight: {least:?}"))
}
