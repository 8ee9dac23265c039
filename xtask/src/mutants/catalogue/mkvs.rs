//! Mistakes in the matrix: in its copies, and in the choice of devices to read.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-mkvs";
const DOUBTS: Suite = Suite::of(PACKAGE, "matrix", &["nothing_is_shown"]);
const CRASHES: Suite = Suite::of(PACKAGE, "crashes", &["a_batch_that_the_only_group_refuses"]);
const GIVEN: Suite = Suite::of(PACKAGE, "matrix", &["a_delete_is_kept"]);
const LEFT_OUT: Suite = Suite::of(PACKAGE, "matrix", &["what_is_written_is_known"]);
const CHECKPOINTS: Suite = Suite::of(PACKAGE, "matrix", &["checkpoints::"]);
const FULL: Suite = Suite::of(PACKAGE, "full", &[]);
const FILLED: Suite = Suite::of(PACKAGE, "matrix", &["a_device_that_is_filled"]);
const DELETED: Suite = Suite::of(PACKAGE, "matrix", &["who_is_filled"]);
const MOVES: Suite = Suite::of(PACKAGE, "crashes", &["moves::"]);
const RACES: Suite = Suite::of(PACKAGE, "matrix", &["races::"]);
const MEMBERSHIP: Suite = Suite::of(PACKAGE, "matrix", &["refused_after_a_close"]);
const COPIES: Suite = Suite::of(PACKAGE, "matrix", &["a_copy_of_a_running"]);
const COPIED_PRIMARY: Suite = Suite::of(PACKAGE, "matrix", &["an_older_copy_of_a_primary"]);
const SUCCESSION: Suite = Suite::of(PACKAGE, "full", &["before_a_successor"]);
const FOLLOWERS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["group::tests::followers"]);
const SUBMISSION: Suite = Suite::of(PACKAGE, Suite::UNIT, &["group::tests::submit::a_change"]);
const INTENTS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["session::intents::tests"]);
const UNDO: Suite = Suite::of(PACKAGE, "matrix", &["a_batch_is_taken_back_durably"]);
const QUORUM: Suite = Suite::of(PACKAGE, Suite::UNIT, &["quorum::tests"]);
const HURT: Suite = Suite::of(PACKAGE, "matrix", &["where_all_are_waited_for"]);
const LATE: Suite = Suite::of(PACKAGE, "hang", &["a_record_that_comes_late"]);
const RECONCILIATION: Suite = Suite::of(PACKAGE, "crashes", &["reconciliation::"]);
const CLEAR: Suite = Suite::of(PACKAGE, "matrix", &["clear::"]);
const EMPTY: Suite = Suite::of(PACKAGE, Suite::UNIT, &["session::clear::tests"]);
const KEPT: Suite = Suite::of(PACKAGE, "matrix", &["kept::"]);
const IN_FLIGHT: Suite = Suite::of(PACKAGE, Suite::UNIT, &["in_flight::"]);
const EQUAL_HASHES: Suite = Suite::of(PACKAGE, "matrix", &["equal_hashes::"]);
const READS: Suite = Suite::of(PACKAGE, "matrix", &["a_slow_read"]);
const SEVERAL_READS: Suite = Suite::of(PACKAGE, "matrix", &["multi_get::several_"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("mkvs.read.second_look", "no second look at the in-flight word", READS),
    Mutant::new(
        "mkvs.multi_get.second_look",
        "no second look where several keys are read",
        SEVERAL_READS,
    ),
    Mutant::new(
        "mkvs.multi_get.current",
        "several keys are read on any device, be it behind or not",
        SEVERAL_READS,
    ),
    Mutant::new(
        "mkvs.multi_get.failed",
        "what a failed call has shown of several keys counts",
        SEVERAL_READS,
    ),
    Mutant::new("mkvs.entry.not_over", "a put forgets a write that is on its way", IN_FLIGHT),
    Mutant::new("mkvs.entry.by_hash", "keys with one hash are taken for one", EQUAL_HASHES),
    Mutant::new("mkvs.kept.version", "a filter of another version is used", KEPT),
    Mutant::new("mkvs.filter.last_keys", "a rebuilt filter lacks the last keys", KEPT),
    Mutant::new("mkvs.read.settled", "a new primary is read before writes have ended", RACES),
    Mutant::new("mkvs.order.primary_first", "the primary gets a write before the others", RACES),
    Mutant::new("mkvs.scan.taken_back", "a scan shows what was taken back", DOUBTS),
    Mutant::new("mkvs.refuse.not_taken_back", "a refused write stays where it was made", FULL),
    Mutant::new("mkvs.fill.one_in_seven", "one key in seven is not copied", FILLED),
    Mutant::new("mkvs.fill.tombstones", "tombstones are not copied", DELETED),
    Mutant::new("mkvs.admit.undrained", "a device is admitted with a full queue", RACES).quick(),
    Mutant::new(
        "mkvs.move.not_copied",
        "slots move and what was deleted of them does not",
        DELETED,
    ),
    Mutant::new("mkvs.move.write_ahead", "a write to a moving slot reaches the old owner", MOVES),
    Mutant::new("mkvs.move.turns", "slots change hands under their writers", MOVES),
    Mutant::new("mkvs.move.sync", "slots move before their keys are durable", MOVES),
    Mutant::new("mkvs.checkpoint.tombstones", "all tombstones are let go", CHECKPOINTS),
    Mutant::new(
        "mkvs.checkpoint.undrained",
        "the watermark is above what is in rings",
        CHECKPOINTS,
    ),
    Mutant::new("mkvs.change.undrained", "a successor lacks what was on its way", SUCCESSION)
        .quick(),
    Mutant::new("mkvs.change.uncommitted", "a record is never committed", COPIES),
    Mutant::new("mkvs.change.not_undone", "a change may be undone nowhere", CLEAR),
    Mutant::new("mkvs.record.late", "a record takes the place of a later one", LATE),
    Mutant::new("mkvs.change.answered", "a put is answered while members leave", FOLLOWERS),
    Mutant::new(
        "mkvs.put.place_kept",
        "a put that waits for a change of the members keeps its place in a ring",
        SUBMISSION,
    ),
    Mutant::new("mkvs.quorum.any", "any one member is enough after a crash", QUORUM).quick(),
    Mutant::new("mkvs.resolve.older_copies", "older copies are members", COPIES).quick(),
    Mutant::new(
        "mkvs.reconcile.primary_ahead",
        "a primary that lacks a write is one",
        COPIED_PRIMARY,
    ),
    Mutant::new("mkvs.reconcile.greatest_watermark", "the greatest watermark counts", CHECKPOINTS),
    Mutant::new(
        "mkvs.reconcile.older_has",
        "who has an older write has the newest",
        RECONCILIATION,
    ),
    Mutant::new(
        "mkvs.reconcile.damaged_stays",
        "a damaged record that is newer than the others' stays",
        HURT,
    ),
    Mutant::new(
        "mkvs.reconcile.sync",
        "what was given at an opening is not durable",
        RECONCILIATION,
    ),
    Mutant::new("mkvs.undo.relaxed", "an intent goes before its batch is taken back durably", UNDO),
    Mutant::new(
        "mkvs.undo.others_first",
        "a batch is taken back where it was not made before it is where it was",
        CRASHES,
    ),
    Mutant::new("mkvs.given.not_held", "tombstones above a given sequence may be dropped", GIVEN),
    Mutant::new(
        "mkvs.forget.unwritten",
        "a lost key that was written again stays one in the record",
        LEFT_OUT,
    ),
    Mutant::new("mkvs.intents.relaxed", "an intent goes before its batch is durable", INTENTS),
    Mutant::new(
        "mkvs.clear.own_sequences",
        "tombstones of an emptied matrix look like writes that a member lacks",
        CLEAR,
    ),
    Mutant::new("mkvs.clear.newer_left", "a record above the watermark stays", EMPTY),
    Mutant::new("mkvs.open.clean", "a matrix in use says that it was closed", MEMBERSHIP),
];
