//! The conformance suite on a cluster of one node, on a memory medium and on a file.
//!
//! Left out, since a cluster does not support them: given sequences, changes since a sequence, tombstones
//! (`sequences`, `changes`, and the properties of other modules that depend on them), snapshots as such.

use coreplane_conformance::model::ManualClock;
use coreplane_conformance::{Fixture, Scale};
use coreplane_engine::{
    Batch, Deferred, DurableListener, Engine, Entry, Error, Expected, Found, Horizon, Limits,
    Mutation, Ordered, Outcome, Progress, Record, Repairable, Replicated, Result, Stats,
    StorageEngine, Ticket, UnixMillis, Value, VerifyReport, Visibility, WriteOptions, Written,
};
use coreplane_mvcc::{Geometry, LogMap, MapKind, Options};
use coreplane_pmem::MediaChoice;
use coreplane_replica::{Replica, ReplicaMap, Settings, WalBaseline, WalOptions, map_options};
use std::path::Path;
use std::sync::Arc;

/// A cluster of one node, as the suite expects it: its reads carry no ticket, since the suite compares what they
/// show, and each read of a cluster has another ticket.
struct Alone(Replica);

impl Alone {
    fn open(map: Box<dyn ReplicaMap>, clock: &ManualClock) -> Arc<dyn StorageEngine> {
        let settings = Settings { peers: vec![1], ..Settings::default() };
        let replica = Replica::open(map, settings, Some(clock.as_clock())).expect("open");
        while !replica.leads() {
            replica.tick().expect("tick");
            replica.persisted().expect("persisted");
        }
        Arc::new(Self(replica))
    }
}

/// Writes that are `relaxed` on other engines are strict here, since a cluster refuses relaxed ones.
fn strict(options: &WriteOptions) -> WriteOptions {
    WriteOptions { durability: None, ..*options }
}

impl Engine for Alone {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn get_with(
        &self,
        key: &[u8],
        _: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.0.get_with(key, Visibility::Durable, visit)
    }
    fn multi_get(
        &self,
        keys: &[&[u8]],
        _: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        self.0.multi_get(keys, Visibility::Durable, visit)
    }
    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.0.put(key, value, &strict(options))
    }
    fn insert(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.0.insert(key, value, &strict(options))
    }
    fn update(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.0.update(key, value, &strict(options))
    }
    fn delete(&self, key: &[u8], options: &WriteOptions) -> Result<Outcome> {
        self.0.delete(key, &strict(options))
    }
    fn compare_and_set(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<Outcome> {
        self.0.compare_and_set(key, expected, value, &strict(options))
    }
    fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.0.modify(key, &strict(options), decide)
    }
    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        self.0.apply(batch, &strict(options))
    }
    fn iterate(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        let mut shown = Vec::new();
        let next = self.0.iterate(cursor, count, &mut |entry| {
            shown.extend(
                entry
                    .record
                    .map(|it| (entry.key.to_vec(), it.value.to_vec(), it.sequence, it.expires_at)),
            );
        })?;
        self.0.wait_durable(&Horizon::from(self.0.visible_ticket()))?;
        for (key, value, sequence, expires_at) in &shown {
            let (value, ticket) = (Value::Whole(value), Ticket::DURABLE);
            let record = Record { value, sequence: *sequence, expires_at: *expires_at, ticket };
            visit(Entry { key, sequence: *sequence, record: Some(record) });
        }
        Ok(next)
    }
    fn len(&self) -> Result<u64> {
        self.0.len()
    }
    fn clear(&self) -> Result<()> {
        self.0.clear()
    }
    fn sweep_expired(&self) -> Result<u64> {
        self.0.sweep_expired()
    }
    fn now(&self) -> UnixMillis {
        Engine::now(&self.0)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn stats(&self) -> Stats {
        self.0.stats()
    }
    fn close(&self) -> Result<()> {
        self.0.close()
    }
    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }
}

/// A scan of a cluster ends behind so many records, expired ones included.
impl Ordered for Alone {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut left = limit;
        if left == 0 {
            return Ok(());
        }
        Ordered::scan(&self.0, start, end, reverse, usize::MAX, &mut |entry| {
            left -= usize::from(entry.record.is_some());
            entry.record.is_none() || visit(entry) && left > 0
        })
    }
}

impl Deferred for Alone {
    fn commit(&self, horizon: &Horizon) -> Result<bool> {
        self.0.commit(horizon)
    }
    fn visible_ticket(&self) -> Ticket {
        self.0.visible_ticket()
    }
    fn is_durable(&self, horizon: &Horizon) -> Result<bool> {
        // No other thread drives it.
        self.0.persisted()?;
        self.0.is_durable(horizon)
    }
    fn wait_durable(&self, horizon: &Horizon) -> Result<()> {
        self.0.wait_durable(horizon)
    }
    fn on_durable(&self, listener: DurableListener) {
        // Only the suite drives it.
        self.0.on_durable_here(Arc::clone(&listener));
        self.0.on_durable(listener);
    }
}

impl Replicated for Alone {
    fn advance_sequence(&self) -> Result<u64> {
        Ok(self.0.apply(Batch::new().delete(b"no such key"), &WriteOptions::default())?.sequence)
    }
    fn changes_since(&self, _: u64, _: &mut dyn FnMut(Entry<'_>)) -> Result<()> {
        Err(Error::Unsupported { engine: "a cluster", operation: "changes" })
    }
    fn hold_tombstones(&self, _: u64) -> Result<()> {
        Err(Error::Unsupported { engine: "a cluster", operation: "tombstones" })
    }
    fn tombstone_horizon(&self) -> u64 {
        0
    }
}

impl Repairable for Alone {
    fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.0.verify(progress)
    }
}

fn fixture(kind: MapKind, directory: &Path, size: u64, scale: Scale) -> Fixture {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let path = directory.path().join("pool");
    let options = map_options(&Options { check_reads: true, ..Options::default() });
    let map = LogMap::create(kind, &path, size, Geometry::default(), MediaChoice::Auto, &options);
    Fixture::new(Alone::open(Box::new(map.expect("create")), &clock))
        .with_clock(clock)
        .with_scale(scale)
        .keeping(Box::new(directory))
}

/// The properties that a cluster supports.
const NAMES: &[&str] = &[
    "put_then_get",
    "insert_only_if_absent",
    "update_only_if_present",
    "delete_only_what_is_there",
    "replaced_is_true_of_live_records",
    "multi_get_answers_each_key",
    "records_are_shown_whole",
    "long_keys_that_begin_alike",
    "empty_keys_and_values",
    "keys_of_every_length",
    "beyond_a_limit_nothing_changes",
    "gone_at_the_very_millisecond",
    "gone_for_every_operation",
    "a_write_sets_or_drops_expiry",
    "a_clock_set_back_revives_nothing",
    "compare_with_absent",
    "compare_with_value",
    "compare_with_sequence",
    "modify_does_as_told",
    "modify_expiry",
    "a_batch_is_made_whole",
    "the_last_change_of_a_key_wins",
    "an_empty_batch_changes_nothing",
    "a_refused_batch_changes_nothing",
    "iterates_over_everything",
    "any_number_is_a_cursor",
    "what_stays_is_shown_beside_changes",
    "what_stays_is_shown_beside_threads",
    "waiting_writes_are_durable",
    "early_writes_get_tickets",
    "answers_carry_what_they_rest_on",
    "durable_reads_rest_on_nothing",
    "listeners_hear_of_it",
    "len_counts_records",
    "clear_removes_all",
    "stats_only_grow",
    "verify_finds_it_sound",
    "closed_refuses_writes",
    "scans_in_order",
    "modify_loses_nothing",
    "batches_are_isolated",
    "only_one_insert_wins",
    "concurrent_histories_are_linearizable",
];

/// Those of them that the medium of a log beside a map may change.
const NAMES_OF_MEDIUM: &[&str] = &[
    "waiting_writes_are_durable",
    "early_writes_get_tickets",
    "answers_carry_what_they_rest_on",
    "durable_reads_rest_on_nothing",
    "listeners_hear_of_it",
    "closed_refuses_writes",
];

fn wal_fixture(directory: &Path, in_pool: bool, scale: Scale) -> Fixture {
    let directory = tempfile::tempdir_in(directory).expect("a directory");
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let (path, options) = (directory.path().join("wal"), WalOptions::default());
    let size = (64 << 20, WalBaseline::PAGE_SIZE);
    let map = match in_pool {
        false => WalBaseline::open(&path, &options),
        true => WalBaseline::create_pool(&path, size, MediaChoice::Auto, &options),
    };
    Fixture::new(Alone::open(Box::new(map.expect("create")), &clock))
        .with_clock(clock)
        .with_scale(scale)
        .keeping(Box::new(directory))
}

/// Checks these; a failure names its property.
fn check(names: &[&str], name_of_map: &str, fixture: &dyn Fn() -> Fixture) {
    for name in names {
        #[expect(clippy::print_stdout, reason = "a failure is to name its property")]
        {
            println!("{name} of {name_of_map}");
        }
        coreplane_conformance::check(name, &|| fixture());
    }
}

fn check_map(kind: MapKind, directory: &Path, scale: Scale) {
    check(NAMES, kind.name(), &|| fixture(kind, directory, 64 << 20, scale));
}

#[test]
fn a_list_in_memory() {
    check_map(MapKind::List, Path::new("/dev/shm"), Scale::USUAL);
}

#[test]
fn a_tree_in_memory() {
    check_map(MapKind::CowTree, Path::new("/dev/shm"), Scale::USUAL);
}

#[test]
fn a_list_on_a_file() {
    check_map(MapKind::List, &std::env::temp_dir(), Scale::SYNCED);
}

fn check_wal(names: &[&str], in_pool: bool, directory: &Path, scale: Scale) {
    let name_of_map = if in_pool { "wal-pool" } else { "wal" };
    check(names, name_of_map, &|| wal_fixture(directory, in_pool, scale));
}

/// The state is in DRAM whatever the medium is: on files all properties are checked at full scale only.
fn check_wal_on_file(in_pool: bool) {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let names = if is_full { NAMES } else { NAMES_OF_MEDIUM };
    check_wal(names, in_pool, &std::env::temp_dir(), Scale::SYNCED);
}

#[test]
fn a_log_beside_a_map() {
    check_wal(NAMES, false, Path::new("/dev/shm"), Scale::USUAL);
}

#[test]
fn a_log_beside_a_map_on_a_file() {
    check_wal_on_file(false);
}

#[test]
fn a_log_in_a_pool_beside_a_map() {
    check_wal(NAMES, true, Path::new("/dev/shm"), Scale::USUAL);
}

#[test]
fn a_log_in_a_pool_beside_a_map_on_a_file() {
    check_wal_on_file(true);
}
