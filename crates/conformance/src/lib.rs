//! The conformance suite: the behaviour that every engine must have, on every medium.
//!
//! # The problem
//!
//! A trait's documentation is a promise that no compiler checks. This suite is that promise as
//! code: every sentence of [`Engine`](coreplane_engine::Engine) and of the traits beside it is at least one
//! [`Property`], and an engine conforms if all of them hold on every medium it runs on.
//!
//! # The picture
//!
//! ```text
//!  factory() -> Fixture { engine, clock?, restart?, scale }        one fresh store per property
//!      |
//!      +-- examples     points sizes expiry conditional sequences batches cursor changes ...
//!      +-- stories      text scripts with recorded answers (tests/scripts/*.txt)
//!      +-- random       seeded operations against an oracle; a failure is shrunk
//!      +-- threads      batches isolated, modify atomic, sequences growing, under contention
//!      +-- history      concurrent histories, checked for linearizability key by key
//! ```
//!
//! A property that does not hold panics with the values it saw. [`conformance_suite!`] makes a test of each;
//! [`violations`] runs them all and returns the messages. Properties that need a feature which an engine lacks (a
//! clock that can be set, a restart, ordered access, snapshots) are left out, and only those.
//!
//! # Invariants
//!
//! - A property needs no more live data than [`Scale::bytes`], so the suite runs on tiny pools.
//! - All randomness comes from [`Scale::seed`]; only the schedule of threads varies.
//! - No property depends on how long anything takes, nor on the values of sequences, only on
//!   their order.
//! - The suite can fail: `tests/faults/main.rs` breaks an engine in many ways and demands that each fault is caught.
//!
//! Beside the suite, [`lives`] leads the pools of an engine in the simulator's memory through many power cuts, and
//! [`interceptor`] puts faults around the calls of an engine.
//!
//! [`conformance_suite!`]: crate::conformance_suite

mod accounting;
mod alike;
mod batches;
mod changes;
mod conditional;
mod cursor;
mod durable;
mod expiry;
pub mod history;
pub mod interceptor;
pub mod lives;
pub mod model;
mod oracle;
mod ordered;
mod points;
mod probe;
mod random;
mod restart;
mod rng;
pub mod script;
mod sequences;
mod sizes;
pub mod steps;
mod threads;

use crate::model::ManualClock;
use coreplane_engine::StorageEngine;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The way in which a store goes down before it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// By [`Engine::close`](coreplane_engine::Engine::close).
    Clean,
    /// As if the process had been killed: no write may be lost.
    Kill,
    /// As if the power had failed: writes that were not durable may be lost.
    PowerCut,
}

/// Brings the store of an engine down and opens it again; none if it does not support this kind. The handle passed in
/// is the only one that the suite has had.
pub type Reopen = Box<dyn FnMut(Arc<dyn StorageEngine>, Restart) -> Option<Arc<dyn StorageEngine>>>;

/// The demands that the suite may make on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Bytes of keys and values that may live at once. The pool must also hold the engine's own data, and be able to
    /// take overwrites of them without end.
    pub bytes: usize,
    /// Operations in each of the longer properties.
    pub operations: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Scale {
    /// For pools of a few hundred KiB.
    pub const TINY: Self = Self { bytes: 48 << 10, operations: 600, seed: 1 };

    /// For pools of 64 MiB and more on media where every fence is a sync of a disk.
    pub const SYNCED: Self = Self { bytes: 12 << 20, operations: 160, seed: 1 };

    /// For pools of 64 MiB and more.
    pub const USUAL: Self = Self { bytes: 12 << 20, operations: 4000, seed: 1 };

    /// These demands in a sixth of the bytes.
    pub const fn small(self) -> Self {
        Self { bytes: self.bytes / 6, ..self }
    }

    /// How many keys of `bytes` bytes in all (with their values) fit, at most `wanted` and half
    /// the operations.
    fn keys_of(&self, bytes: usize, wanted: usize) -> usize {
        wanted.min(self.operations / 2).min(self.bytes / bytes.max(1)).max(1)
    }
}

/// An empty store to be judged, and the means to act on it from outside.
pub struct Fixture {
    /// The engine.
    pub engine: Arc<dyn StorageEngine>,
    /// The engine's clock, if it can be set.
    pub clock: Option<ManualClock>,
    /// Brings it down and up again, if that can be done.
    pub reopen: Option<Reopen>,
    /// If the store is small enough to be filled: bytes of records by which it certainly is full.
    pub fills: Option<usize>,
    /// The demands that the suite may make on it.
    pub scale: Scale,
    /// Values that must live as long as the engine (a temporary directory, for example); dropped after it.
    pub keep: Vec<Box<dyn Any>>,
}

impl Fixture {
    /// A store without a clock or restarts; at the usual scale.
    pub fn new(engine: Arc<dyn StorageEngine>) -> Self {
        Self {
            engine,
            clock: None,
            reopen: None,
            fills: None,
            scale: Scale::USUAL,
            keep: Vec::new(),
        }
    }

    /// Sets the engine's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the way to restart the store.
    #[must_use]
    pub fn with_reopen(mut self, reopen: Reopen) -> Self {
        self.reopen = Some(reopen);
        self
    }

    /// Sets the bytes of records that certainly fill the store.
    #[must_use]
    pub fn filled_by(mut self, bytes: usize) -> Self {
        self.fills = Some(bytes);
        self
    }

    /// Sets the demands.
    #[must_use]
    pub fn with_scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// Keeps `thing` as long as the engine.
    #[must_use]
    pub fn keeping(mut self, thing: Box<dyn Any>) -> Self {
        self.keep.push(thing);
        self
    }

    /// Restarts the store; none if it does not support that.
    fn restart(self, how: Restart) -> Option<Self> {
        let Self { engine, clock, reopen, fills, scale, keep } = self;
        let mut reopen = reopen?;
        let engine = reopen(engine, how)?;
        Some(Self { engine, clock, reopen: Some(reopen), fills, scale, keep })
    }
}

/// Makes a fresh store.
pub type Factory<'a> = &'a dyn Fn() -> Fixture;

/// A property that must hold for every engine.
#[derive(Debug, Clone, Copy)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Panics if it does not hold.
    pub check: fn(Factory<'_>),
}

/// Calls `$callback!` with the name and module of every property.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_properties {
    ($callback:ident $(, $argument:expr)?) => {
        $crate::$callback! {
            ($($argument)?)
            points: put_then_get, insert_only_if_absent, update_only_if_present,
                delete_only_what_is_there, replaced_is_true_of_live_records,
                multi_get_answers_each_key, records_are_shown_whole;
            alike: long_keys_that_begin_alike;
            sizes: empty_keys_and_values, keys_of_every_length, values_of_every_length,
                beyond_a_limit_nothing_changes, a_full_store_can_be_overwritten, a_full_store_keeps_what_it_has;
            expiry: gone_at_the_very_millisecond, gone_for_every_operation,
                a_write_sets_or_drops_expiry, expiry_on_the_system_clock,
                a_clock_set_back_revives_nothing, a_sweep_removes_what_has_expired,
                what_expires_is_counted_all_along;
            conditional: compare_with_absent, compare_with_value, compare_with_sequence,
                modify_does_as_told, modify_expiry;
            sequences: own_sequences_grow, a_given_sequence_decides, a_tombstone_decides,
                own_sequences_follow_given_ones, conditions_and_given_sequences,
                advance_sequence_divides;
            batches: a_batch_is_made_whole, the_last_change_of_a_key_wins,
                an_empty_batch_changes_nothing, a_refused_batch_changes_nothing,
                a_batch_with_a_given_sequence;
            cursor: iterates_over_everything, any_number_is_a_cursor,
                what_stays_is_shown_beside_changes, what_stays_is_shown_beside_threads;
            changes: changes_are_complete, tombstones_are_held,
                tombstones_are_held_across_a_restart, history_gone_is_said,
                clear_is_a_change, history_gone_is_said_after_a_restart;
            durable: waiting_writes_are_durable, early_writes_get_tickets,
                answers_carry_what_they_rest_on, every_level_and_completion,
                durable_reads_rest_on_nothing, listeners_hear_of_it;
            accounting: len_counts_records, clear_removes_all, stats_only_grow,
                verify_finds_it_sound, closed_refuses_writes;
            restart: a_clean_restart_keeps_all, a_kill_loses_nothing,
                a_power_cut_keeps_what_is_durable;
            ordered: scans_in_order, snapshots_stand_still, snapshots_are_scanned_beside_writes;
            threads: modify_loses_nothing, batches_are_isolated, sequences_grow_across_threads,
                only_one_insert_wins, what_returned_is_found_beside_growth, clear_comes_before_or_after;
            random: random_operations_match_the_oracle;
            history: concurrent_histories_are_linearizable;
            script: stories_read_as_recorded;
        }
    };
}

/// Makes the table of properties.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    (() $($module:ident: $($name:ident),+;)+) => {
        /// All properties.
        pub const PROPERTIES: &[Property] = &[
            $($(Property { name: stringify!($name), check: $module::$name },)+)+
        ];
    };
}

/// Makes a test of each property.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($factory:expr) $($module:ident: $($name:ident),+;)+) => {
        $($(
            #[test]
            fn $name() {
                $crate::check(stringify!($name), &$factory);
            }
        )+)+
    };
}

/// Makes a `#[test]` of every property of the suite, in the module where it stands. The argument
/// is a function (or closure) without parameters that returns a fresh [`Fixture`].
///
/// ```
/// mod model {
///     use coreplane_conformance::Fixture;
///     use coreplane_conformance::model::ModelEngine;
///     use std::sync::Arc;
///
///     fn fresh() -> Fixture {
///         Fixture::new(Arc::new(ModelEngine::new()))
///     }
///     coreplane_conformance::conformance_suite!(fresh);
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_suite {
    ($factory:expr) => {
        $crate::__conformance_properties!(__conformance_tests, $factory);
    };
}

__conformance_properties!(__conformance_table);

/// Checks the property of this name.
///
/// # Panics
/// If it does not hold, or there is none of this name.
pub fn check(name: &str, factory: Factory<'_>) {
    let property = PROPERTIES.iter().find(|property| property.name == name);
    match property {
        Some(property) => (property.check)(factory),
        None => panic!("there is no property {name}"),
    }
}

/// Checks all properties and returns the name of each that does not hold, with its message.
pub fn violations(factory: Factory<'_>) -> Vec<(&'static str, String)> {
    let mut violations = Vec::new();
    for property in PROPERTIES {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (property.check)(factory))) {
            violations.push((property.name, message(panic.as_ref())));
        }
    }
    violations
}

/// Checks all properties.
///
/// # Panics
/// With the messages of all that do not hold.
pub fn run_all(factory: Factory<'_>) {
    let violations = violations(factory);
    let list: Vec<String> =
        violations.iter().map(|(name, what)| format!("{name}: {what}")).collect();
    assert!(list.is_empty(), "{} properties do not hold:\n{}", list.len(), list.join("\n"));
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}
