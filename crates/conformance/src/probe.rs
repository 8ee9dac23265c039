//! Short forms of the calls that the properties make.

use coreplane_engine::{
    Completion, Horizon, Outcome, StorageEngine, Ticket, UnixMillis, Visibility, WriteOptions,
    Written,
};
use std::collections::BTreeMap;

/// A waiting write at the store's durability.
pub(super) const WAIT: WriteOptions = WriteOptions {
    use_reserve: false,
    expires_at: None,
    durability: None,
    completion: Completion::Wait,
    sequence: None,
};

/// The same, completed early.
pub(super) const EARLY: WriteOptions = WriteOptions { completion: Completion::Early, ..WAIT };

/// A waiting write with a given sequence.
pub(super) const fn given(sequence: u64) -> WriteOptions {
    WriteOptions { sequence: Some(sequence), ..WAIT }
}

/// A waiting write that expires.
pub(super) const fn until(at: UnixMillis) -> WriteOptions {
    WriteOptions { expires_at: Some(at), ..WAIT }
}

/// A time after the end of every test (the year 2250).
pub(super) const FAR: UnixMillis = UnixMillis(8_850_000_000_000);

/// A time long past (1970).
pub(super) const PAST: UnixMillis = UnixMillis(1);

/// The `number`-th key of the usual kind.
pub(super) fn key(number: usize) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

/// Puts, and expects it to be written.
pub(super) fn put(engine: &dyn StorageEngine, key: &[u8], value: &[u8]) -> Written {
    written(engine.put(key, value, &WAIT).unwrap())
}

/// Expects the outcome to be a write.
pub(super) fn written(outcome: Outcome) -> Written {
    outcome.written().unwrap_or_else(|| panic!("{outcome:?} where a write was due"))
}

/// The value of `key`, by `get`.
pub(super) fn value(engine: &dyn StorageEngine, key: &[u8]) -> Option<Vec<u8>> {
    engine.get(key).unwrap()
}

/// A record, copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) value: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) expires_at: Option<UnixMillis>,
    pub(super) ticket: Ticket,
}

impl Seen {
    pub(super) fn of(record: coreplane_engine::Record<'_>) -> Self {
        let value = record.value.to_vec();
        assert_eq!(record.value.len(), value.len(), "a value's length and its bytes differ");
        assert!(record.value.equals(&value), "a value does not equal its own bytes");
        let (sequence, expires_at) = (record.sequence, record.expires_at);
        Self { value, sequence, expires_at, ticket: record.ticket }
    }
}

/// The record of `key`, and the ticket of the answer. Checks that `hit` and `visit` agree.
pub(super) fn look(
    engine: &dyn StorageEngine,
    key: &[u8],
    visibility: Visibility,
) -> (Option<Seen>, Ticket) {
    let mut seen = Vec::new();
    let found =
        engine.get_with(key, visibility, &mut |record| seen.push(Seen::of(record))).unwrap();
    assert_eq!(usize::from(found.hit), seen.len(), "hit, and how often the record was shown");
    if visibility == Visibility::Durable {
        assert!(found.ticket.is_durable(), "a durable read rests on {:?}", found.ticket);
        assert!(seen.iter().all(|seen| seen.ticket.is_durable()), "{seen:?} in a durable read");
    }
    (seen.pop(), found.ticket)
}

/// The record of `key`, durable.
pub(super) fn record(engine: &dyn StorageEngine, key: &[u8]) -> Option<Seen> {
    look(engine, key, Visibility::Durable).0
}

/// The records of `keys`, in their order. Checks that each index is shown once.
pub(super) fn records(
    engine: &dyn StorageEngine,
    keys: &[Vec<u8>],
    visibility: Visibility,
) -> (Vec<Option<Seen>>, Horizon) {
    let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut seen = vec![None; keys.len()];
    let horizon = engine
        .multi_get(&borrowed, visibility, &mut |index, record| {
            assert!(index < borrowed.len(), "multi_get showed index {index} of {}", borrowed.len());
            assert!(seen[index].is_none(), "multi_get showed index {index} twice");
            seen[index] = Some(record.map(Seen::of));
        })
        .unwrap();
    let seen = seen.into_iter().enumerate().map(|(index, seen)| {
        seen.unwrap_or_else(|| panic!("multi_get did not show index {index}"))
    });
    (seen.collect(), horizon)
}

/// All records, by `iterate` in steps of `count`.
pub(super) fn all(engine: &dyn StorageEngine, count: usize) -> BTreeMap<Vec<u8>, Seen> {
    let mut records = BTreeMap::new();
    let (mut cursor, mut fewest) = (0, usize::MAX);
    loop {
        let mut shown = 0;
        cursor = engine
            .iterate(cursor, count, &mut |entry| {
                shown += 1;
                let record = entry.record.expect("iterate showed a tombstone");
                assert_eq!(record.sequence, entry.sequence, "an entry's two sequences");
                records.insert(entry.key.to_vec(), Seen::of(record));
            })
            .unwrap();
        let most = 4 * count.max(1) + 64;
        assert!(shown <= most, "iterate showed {shown} records where {count} were asked for");
        if cursor == 0 {
            break;
        }
        fewest = fewest.min(shown);
    }
    // Expired records may count as if they were shown, and so may the empty places of an engine without an order.
    let is_counted = engine.len().unwrap() > records.len() as u64;
    let is_any_expired = is_counted || engine.stats().expired > 0;
    assert!(
        fewest >= count || is_any_expired || engine.ordered().is_none(),
        "iterate showed {fewest} of {count} though there are more"
    );
    records
}

/// Changes by key: the sequence, and the value unless it is a tombstone.
pub(super) type Changes = BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>;

/// All changes since `sequence`: the sequence of each, and its value if it is no tombstone.
pub(super) fn changes(
    engine: &dyn StorageEngine,
    sequence: u64,
) -> coreplane_engine::Result<Changes> {
    let mut changes = Changes::new();
    engine.changes_since(sequence, &mut |entry| {
        let value = entry.record.map(|record| {
            assert_eq!(record.sequence, entry.sequence, "an entry's two sequences");
            record.value.to_vec()
        });
        let newer = changes
            .get(entry.key)
            .is_none_or(|(sequence, _): &(u64, Option<Vec<u8>>)| *sequence <= entry.sequence);
        if newer {
            changes.insert(entry.key.to_vec(), (entry.sequence, value));
        }
    })?;
    Ok(changes)
}

/// Waits until `ticket` is durable.
pub(super) fn settle(engine: &dyn StorageEngine, ticket: Ticket) {
    let horizon = Horizon::from(ticket);
    engine.commit(&horizon).unwrap();
    engine.wait_durable(&horizon).unwrap();
    assert!(engine.is_durable(&horizon).unwrap(), "waited for, but not durable");
    assert!(engine.commit(&horizon).unwrap(), "durable, but commit says no");
}
