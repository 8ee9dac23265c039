//! Mistakes in the ordered engine.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-bptree";
/// Stories of writes, cut everywhere.
const CUTS: Suite = Suite::of(PACKAGE, "crashes", &["what_was_acknowledged"]);
const CLEAR_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["is_emptied_at_once"]);
const UPKEEP_CUTS: Suite = Suite::of(PACKAGE, "upkeep_crashes", &["outlives_a_power_cut"]);
const CLOSE_CUTS: Suite = Suite::of(PACKAGE, "checkpoint", &["a_power_cut_in_a_close"]);
/// One pool through many lives, each of which ends in a cut.
const LIVES: Suite = Suite::of(PACKAGE, "lives", &[]);
const TORN: Suite = Suite::of(PACKAGE, "torn", &["flips_after_a_power_cut"]);
const NEVER_COUNTED: Suite = Suite::of(PACKAGE, "torn", &["leaves_that_never_counted"]);
const KILLED: Suite = Suite::of(PACKAGE, "killed", &[]);
const DAMAGE: Suite = Suite::of(PACKAGE, "damage", &[]);
const DAMAGED_KEYS: Suite = Suite::of(PACKAGE, "damage", &["short::"]);
const ABSENCE: Suite = Suite::of(PACKAGE, "damage", &["absence::"]);
const COUNTS: Suite = Suite::of(PACKAGE, "damage", &["counts::"]);
const SCRUBS: Suite = Suite::of(PACKAGE, "damage", &["a_scrub_is_durable"]);
const LENGTHS: Suite = Suite::of(PACKAGE, "damage", &["lengths_with_two_wrong_bits"]);
const HELD: Suite = Suite::of(PACKAGE, "held", &[]);
const CONFORMANCE: Suite = Suite::of(PACKAGE, "conformance", &[]);
const RELAXED_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["where_most_writes_are_relaxed"]);
const PINS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::pins"]);
const BATCHES: Suite = Suite::of(PACKAGE, Suite::UNIT, &["each_change_of_a_batch"]);
const MERGES: Suite = Suite::of(PACKAGE, Suite::UNIT, &["merge_that_held_tombstones"]);
const BOUNDS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::bounds"]);
const COMMITS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["multi_leaf_commit::"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("bptree.put.flush", "a record is not flushed", CUTS).quick(),
    Mutant::new("bptree.put.fence", "a record is published without its fence", CUTS).quick(),
    Mutant::new(
        "bptree.put.follows",
        "a record says of torn ones that they were durable",
        RELAXED_CUTS,
    ),
    Mutant::new(
        "bptree.put.older_ahead",
        "an older given sequence goes ahead of the look",
        CONFORMANCE,
    ),
    Mutant::new("bptree.rewrite.fence", "the superseded mark before its successors", UPKEEP_CUTS),
    Mutant::new("bptree.rewrite.tombstones", "tombstones that are held go", HELD),
    Mutant::new("bptree.merge.fence", "both superseded marks before their successor", UPKEEP_CUTS),
    Mutant::new("bptree.merge.each_delete", "a merge in vain is tried at each delete", MERGES),
    Mutant::new("bptree.image.flush", "a leaf that is written anew is not flushed", CUTS),
    Mutant::new("bptree.image.fill", "a leaf's page is not filled ahead", TORN),
    Mutant::new("bptree.overflow.fence", "a record before its large value", CUTS),
    Mutant::new("bptree.commit.fence", "a batch is published without its fence", CUTS),
    Mutant::new("bptree.commit.flush", "a batch's parts are not flushed", CUTS),
    Mutant::new("bptree.commit.any_part", "any part of a batch counts", CUTS).quick(),
    Mutant::new("bptree.commit.void_leaf", "a part in a leaf that does not count counts", COMMITS),
    Mutant::new(
        "bptree.batch.successors_fence",
        "a batch's superseded marks before their successors",
        CUTS,
    ),
    Mutant::new("bptree.batch.serves", "all of a batch goes to one leaf", BATCHES),
    Mutant::new("bptree.batch.isolation", "readers see half of a batch", CONFORMANCE),
    Mutant::new("bptree.close.counts", "a count that damage has made wrong stays", COUNTS),
    Mutant::new("bptree.look.absence", "a damaged record is taken for a tombstone", ABSENCE),
    Mutant::new("bptree.recover.checksum", "a recovery looks at no checksum", TORN),
    Mutant::new("bptree.recover.half_batch", "a batch without its commit link counts", CUTS),
    Mutant::new("bptree.recover.proof", "records prove nothing of those before", LENGTHS),
    Mutant::new("bptree.recover.retired", "free pages wait for readers of other pools", PINS),
    Mutant::new("bptree.recover.uncut", "behind the records of a leaf all is readable", CUTS),
    Mutant::new("bptree.recover.parts_uncut", "what does not count is written behind", CUTS),
    Mutant::new("bptree.recover.strike_flush", "what is struck out is not flushed", NEVER_COUNTED),
    Mutant::new("bptree.recover.strike_fence", "no fence behind what is struck out", NEVER_COUNTED),
    Mutant::new("bptree.recover.void_stays", "leaves that do not count stay", NEVER_COUNTED),
    Mutant::new(
        "bptree.recover.void_order",
        "leaves that do not count go in any order",
        NEVER_COUNTED,
    ),
    Mutant::new("bptree.recover.remains", "what is behind the records stays", LIVES),
    Mutant::new("bptree.recover.flush", "what a kill has left in caches stays there", KILLED),
    Mutant::new(
        "bptree.rewrite.hurt",
        "a damaged key is absent from a leaf's successor",
        DAMAGED_KEYS,
    )
    .quick(),
    Mutant::new("bptree.batch.hurt", "a damaged key is absent behind a batch", DAMAGED_KEYS),
    Mutant::new("bptree.scrub.fence", "a scrub does not wait for its sync", SCRUBS),
    Mutant::new("bptree.get.checksum", "reads look at no checksum", DAMAGE),
    Mutant::new("bptree.head.checksum", "a leaf's head is believed", DAMAGE),
    Mutant::new("bptree.bound.checksum", "the rest of a bound is believed", BOUNDS),
    Mutant::new("bptree.clear.births", "a clear forgets what it has cleared", CLEAR_CUTS),
    Mutant::new("bptree.open.version_base", "versions begin again where they began", HELD),
    Mutant::new("bptree.open.births", "births begin again where they began", LIVES),
    Mutant::new("bptree.open.stays_clean", "an open store is called closed", CLOSE_CUTS),
];
