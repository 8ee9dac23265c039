//! The suite can fail: engines broken on purpose, each of which must be caught by the property
//! that is named beside its fault.

mod broken;
mod present;

use broken::Broken;
use coreplane_conformance::model::{ManualClock, ModelEngine};
use coreplane_conformance::{Fixture, Reopen, Restart, Scale, check, run_all, violations};
use coreplane_engine::{Engine, Limits, StorageEngine, UnixMillis, WriteOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Defines the faults, and the property that catches each.
macro_rules! faults {
    ($($fault:ident => $property:ident;)+) => {
        /// The faults.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Fault {
            Nothing,
            $($fault,)+
        }

        /// Every fault, and the property that must catch it.
        const FAULTS: &[(Fault, &str)] = &[$((Fault::$fault, stringify!($property)),)+];
    };
}

faults! {
    StaleGet => put_then_get;
    LostPut => random_operations_match_the_oracle;
    LostDelete => delete_only_what_is_there;
    ShortValue => values_of_every_length;
    NeverReplaced => replaced_is_true_of_live_records;
    ReplacedOnceWritten => gone_for_every_operation;
    InsertOverwrites => insert_only_if_absent;
    UpdateCreates => update_only_if_present;
    CasIgnoresExpected => compare_with_value;
    CasComparesLength => compare_with_value;
    CasIgnoresSequence => compare_with_sequence;
    CasNotAtomic => concurrent_histories_are_linearizable;
    InsertNotAtomic => only_one_insert_wins;
    MissBesideWrite => what_returned_is_found_beside_growth;
    ModifyNotAtomic => modify_loses_nothing;
    ModifyKeepsExpiry => modify_expiry;
    BatchNotAtomic => batches_are_isolated;
    BatchFirstWins => the_last_change_of_a_key_wins;
    BatchPartOnError => a_refused_batch_changes_nothing;
    MultiGetSwaps => multi_get_answers_each_key;
    CursorSkips => iterates_over_everything;
    CursorIsIndex => what_stays_is_shown_beside_changes;
    CursorEndless => any_number_is_a_cursor;
    SequenceRepeats => own_sequences_grow;
    SequenceRestarts => own_sequences_grow;
    SequenceOfThread => sequences_grow_across_threads;
    GivenIgnored => a_given_sequence_decides;
    EqualGivenAccepted => a_given_sequence_decides;
    NoTombstoneOfNothing => a_tombstone_decides;
    LineTooLow => advance_sequence_divides;
    TombstonesHidden => tombstones_are_held;
    HoldIgnored => tombstones_are_held;
    HistoryNeverGone => history_gone_is_said;
    ClockStandsStill => gone_at_the_very_millisecond;
    ExpiresLate => gone_at_the_very_millisecond;
    ExpiryIgnored => records_are_shown_whole;
    ExpiredRevives => a_clock_set_back_revives_nothing;
    LimitUnchecked => beyond_a_limit_nothing_changes;
    FullDropsOne => a_full_store_keeps_what_it_has;
    LenCountsWrites => len_counts_records;
    ClearLeavesOne => clear_removes_all;
    CloseDoesNothing => closed_refuses_writes;
    StatsFall => stats_only_grow;
    VerifyMiscounts => verify_finds_it_sound;
    EarlyTicketLost => a_power_cut_keeps_what_is_durable;
    AlwaysDurable => a_power_cut_keeps_what_is_durable;
    WaitDoesNotWait => a_power_cut_keeps_what_is_durable;
    WaitReturnsTicket => waiting_writes_are_durable;
    ReadTicketLost => answers_carry_what_they_rest_on;
    RefusalTicketLost => answers_carry_what_they_rest_on;
    DurableReadTooEarly => durable_reads_rest_on_nothing;
    ListenersUnheard => listeners_hear_of_it;
    CloseLoses => a_clean_restart_keeps_all;
    CloseTakesEarly => a_clean_restart_keeps_all;
    KillLoses => a_kill_loses_nothing;
    KillTakesEarly => a_kill_loses_nothing;
    PowerCutTearsBatch => a_power_cut_keeps_what_is_durable;
    RestartForgetsSequences => a_clean_restart_keeps_all;
    ScanIncludesEnd => scans_in_order;
    SnapshotMoves => snapshots_stand_still;
    StoryToldWrong => stories_read_as_recorded;
}

/// A scale that keeps the whole table to some seconds.
const SCALE: Scale = Scale { bytes: 256 << 10, operations: 800, seed: 1 };

/// The limits that the broken engines claim; low, so that beyond them is cheap.
const CLAIMED: Limits = Limits {
    key_len_max: 64 << 10,
    value_len_max: 128 << 10,
    batch_len_max: 4096,
    batch_bytes_max: usize::MAX,
};

/// A model with a fault around it. Early writes become durable some milliseconds later.
fn fixture(fault: Fault) -> Fixture {
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let limits = match fault {
        Fault::LimitUnchecked => Limits { key_len_max: CLAIMED.key_len_max + 1, ..CLAIMED },
        _ => CLAIMED,
    };
    let shown = clock.clone();
    let model = ModelEngine::with_clock(match fault {
        Fault::ClockStandsStill => Arc::new(|| UnixMillis(1_800_000_000_000)),
        Fault::ExpiresLate => Arc::new(move || UnixMillis(shown.now().0 - 1)),
        _ => clock.as_clock(),
    });
    let model =
        Arc::new(model.bounded_by(limits).with_capacity(SCALE.bytes as u64).manual_commit());
    let engine = Broken::around(fault, Arc::clone(&model), clock.clone());
    commit_in_background(fault, &model);
    Fixture::new(Arc::new(engine))
        .with_reopen(reopen(fault, model, clock.clone()))
        .with_clock(clock)
        .with_scale(SCALE)
        .filled_by(SCALE.bytes)
}

fn commit_in_background(fault: Fault, model: &Arc<ModelEngine>) {
    if matches!(fault, Fault::CloseTakesEarly | Fault::KillTakesEarly) {
        // Early writes would be durable by then.
        return;
    }
    let model = Arc::downgrade(model);
    std::thread::spawn(move || {
        while let Some(model) = model.upgrade() {
            model.make_durable();
            drop(model);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

fn reopen(fault: Fault, model: Arc<ModelEngine>, clock: ManualClock) -> Reopen {
    let model = Mutex::new(model);
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        let mut model = model.lock().unwrap();
        if how == Restart::Clean && fault != Fault::CloseTakesEarly {
            engine.close().unwrap();
        }
        drop(engine);
        let next = match (how, fault) {
            (Restart::PowerCut, Fault::PowerCutTearsBatch) => model.after_kill(),
            (Restart::PowerCut, _)
            | (Restart::Kill, Fault::KillTakesEarly)
            | (Restart::Clean, Fault::CloseTakesEarly) => model.after_power_cut(),
            _ => model.after_kill(),
        };
        let next = Arc::new(damage(fault, how, next, &clock));
        *model = Arc::clone(&next);
        commit_in_background(fault, &next);
        Some(Arc::new(Broken::around(fault, next, clock.clone())) as Arc<dyn StorageEngine>)
    })
}

/// Changes a store as a faulty restart would.
fn damage(fault: Fault, how: Restart, model: ModelEngine, clock: &ManualClock) -> ModelEngine {
    let wait = WriteOptions::default();
    match (fault, how) {
        (Fault::CloseLoses, Restart::Clean) => {
            let _outcome = model.delete(b"large", &wait).unwrap();
            model
        }
        (Fault::PowerCutTearsBatch, Restart::PowerCut) => {
            let _outcome = model.delete(b"key-00502", &wait).unwrap();
            model
        }
        // One record, whether or not it was made durable in time.
        (Fault::KillLoses, Restart::Kill) => {
            let mut first = None;
            model.iterate(0, 1, &mut |entry| first = Some(entry.key.to_vec())).unwrap();
            if let Some(key) = first {
                let _outcome = model.delete(&key, &wait).unwrap();
            }
            model
        }
        (Fault::RestartForgetsSequences, _) => {
            let fresh = ModelEngine::with_clock(clock.as_clock()).manual_commit();
            model
                .iterate(0, usize::MAX, &mut |entry| {
                    if let Some(record) = entry.record {
                        let options = WriteOptions { expires_at: record.expires_at, ..wait };
                        let _outcome =
                            fresh.put(entry.key, &record.value.to_cow(), &options).unwrap();
                    }
                })
                .unwrap();
            fresh
        }
        _ => model,
    }
}

fn holds(property: &str, fault: Fault) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(property, &|| fixture(fault)))).is_ok()
}

#[test]
fn every_fault_is_caught() {
    let missed: Vec<_> =
        FAULTS.iter().filter(|(fault, property)| holds(property, *fault)).collect();
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

#[test]
fn what_catches_a_fault_lets_the_unbroken_pass() {
    let mut properties: Vec<_> = FAULTS.iter().map(|(_, property)| *property).collect();
    properties.sort_unstable();
    properties.dedup();
    let failed: Vec<_> =
        properties.into_iter().filter(|property| !holds(property, Fault::Nothing)).collect();
    assert!(failed.is_empty(), "caught without a fault: {failed:?}");
}

#[test]
fn all_that_does_not_hold_is_named() {
    let found = violations(&|| fixture(Fault::LostDelete));
    let named = |name: &str| found.iter().any(|(property, _)| *property == name);
    assert!(named("delete_only_what_is_there") && named("a_tombstone_decides"), "{found:?}");
    assert!(!named("put_then_get"), "{found:?}");
    run_all(&|| Fixture::new(Arc::new(ModelEngine::new())).with_scale(Scale::TINY));
}
