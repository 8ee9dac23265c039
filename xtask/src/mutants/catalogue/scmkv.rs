//! Mistakes in the log-structured hash engine.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-scmkv";
/// Stories of writes, cut everywhere: index in the pool, in DRAM, on a file.
const IN_POOL: Suite = Suite::of(PACKAGE, "crashes", &["lost_with_the_index_in_the_pool"]);
const IN_DRAM: Suite = Suite::of(PACKAGE, "crashes", &["lost_with_the_index_in_dram"]);
const ALL_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["nothing_ack", "no_slot_falls_back"]);
const CLEANED_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["no_slot_falls_back"]);
const THREAD_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["by_several_threads"]);
const READERS: Suite = Suite::of(PACKAGE, "crashes", &["several_threads_read"]);
const LOOPS: Suite = Suite::of(PACKAGE, "crashes", &["an_answer_that_was_sent"]);
const STAGED: Suite = Suite::of(PACKAGE, "store", &["staged::"]);
const GROWING: Suite = Suite::of(PACKAGE, "crashes", &["growth::"]);
const RESTARTS: Suite = Suite::of(PACKAGE, "store", &["restarts::"]);
const RELAXED: Suite = Suite::of(PACKAGE, "store", &["relaxed::"]);
const CHECKPOINTS: Suite = Suite::of(PACKAGE, "crashes", &["power_cut_around", "relaxed_writers"]);
const LOST_PAGES: Suite = Suite::of(PACKAGE, "repair", &["lost_pages::"]);
const FLIPS: Suite = Suite::of(PACKAGE, "repair", &["makes_a_read_lie", "hidden_by_the_cleaner"]);
const CHECKED: Suite = Suite::of(PACKAGE, "store", &["checked_reads::"]);
const UNDURABLE: Suite = Suite::of(PACKAGE, "repair", &["undurable::"]);
const GIVEN: Suite = Suite::of(PACKAGE, "store", &["given::"]);
const CONFORMANCE: Suite = Suite::of(PACKAGE, "conformance", &[]);
const ONE_CUT: Suite = Suite::of(PACKAGE, "store", &["one_cut::"]);
const BATCHES: Suite = Suite::of(PACKAGE, "store", &["batches::"]);
const CLEANER: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::cleaner"]);
const HOLES: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::holes"]);
const HEADERS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::headers"]);
const VICTIMS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::victims"]);
const ELEMENTS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tests::elements"]);
const NO_SPACE: Suite =
    Suite::of(PACKAGE, "no_space", &["idle_threads", "damage_of_one", "without_live"]);
const UNREADABLE: Suite = Suite::of(PACKAGE, "repair", &["unreadable::"]);
const CHANGES: Suite = Suite::of(PACKAGE, "store", &["changes::"]);
const COUNT: Suite = Suite::of(PACKAGE, "crashes", &["count::"]);
const APPRAISAL: Suite = Suite::of(PACKAGE, "appraisal", &[]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("scmkv.log.flush", "a record is not flushed before its fence", IN_POOL).quick(),
    Mutant::new("scmkv.log.fence", "no fence before a record is published", IN_POOL).quick(),
    Mutant::new("scmkv.log.slot_flush", "slots are not flushed with the next record", IN_POOL),
    Mutant::new("scmkv.log.settle_flush", "what is relaxed is not flushed at its end", RELAXED),
    Mutant::new("scmkv.log.follows", "a record says of torn ones that they were durable", ALL_CUTS),
    Mutant::new("scmkv.log.prove", "no page says that something in it is durable", LOST_PAGES),
    Mutant::new("scmkv.log.note", "the sync that covers an early write is not noted", LOOPS),
    Mutant::new("scmkv.put.publish_first", "a slot before the fence of its record", THREAD_CUTS),
    Mutant::new("scmkv.put.cover_version", "versions go above the durable base", RESTARTS),
    Mutant::new("scmkv.put.older_sequence", "an older given sequence replaces a newer", GIVEN),
    Mutant::new("scmkv.stage.publish_first", "staged slots before their fence", LOOPS),
    Mutant::new("scmkv.stage.unpublished", "staged writes are never seen", STAGED).hangs(),
    Mutant::new("scmkv.batch.gate", "readers see half of a batch", CONFORMANCE),
    Mutant::new("scmkv.batch.run_over_pages", "a run of a batch goes over its page's end", BATCHES),
    Mutant::new("scmkv.batch.last", "an earlier change of a key counts too", CONFORMANCE),
    Mutant::new("scmkv.batch.taken", "two members of a batch take one slot", BATCHES),
    Mutant::new("scmkv.batch.no_commit_record", "a batch without its commit record", IN_DRAM),
    Mutant::new("scmkv.page.open_flush", "that a page is a log is not flushed", IN_POOL),
    Mutant::new("scmkv.page.free_flush", "that a page is free is not flushed", ALL_CUTS),
    Mutant::new(
        "scmkv.page.free_last",
        "a page that is freed has no birth, and is a log",
        ELEMENTS,
    ),
    Mutant::new(
        "scmkv.page.free_fence",
        "a page is used again before it is durably free",
        ALL_CUTS,
    ),
    Mutant::new(
        "scmkv.page.same_life",
        "a page that is used again has its old generation",
        ALL_CUTS,
    ),
    Mutant::new(
        "scmkv.recover.killed",
        "what a killed process left is shown, not flushed",
        UNDURABLE,
    ),
    Mutant::new("scmkv.recover.slot_first", "a recovery's slot before its record", UNDURABLE),
    Mutant::new("scmkv.split.unchecked", "a split believes a damaged key", CHECKED),
    Mutant::new(
        "scmkv.recover.fence",
        "a page counts as sealed before its slots are durable",
        IN_POOL,
    ),
    Mutant::new(
        "scmkv.recover.thread_fence",
        "one thread alone fences what several have put into the index",
        READERS,
    ),
    Mutant::new("scmkv.appraise.unindexed", "a page is freed with what lost its slot", APPRAISAL),
    Mutant::new("scmkv.appraise.ownerless", "a page is freed with the value of one", APPRAISAL),
    Mutant::new("scmkv.census.again", "a group that was split is counted twice", COUNT),
    Mutant::new("scmkv.census.uncounted", "writers leave a group alone that was counted", COUNT),
    Mutant::new("scmkv.recover.half_batch", "a batched record counts by itself", IN_DRAM).quick(),
    Mutant::new("scmkv.recover.checksum", "a recovery looks at no checksum", IN_DRAM).quick(),
    Mutant::new("scmkv.recover.hole", "a hole that keys were probed past stays", HOLES),
    Mutant::new("scmkv.recover.older", "the last record that is read wins", IN_DRAM),
    Mutant::new("scmkv.recover.followed", "damage is taken for the end of the log", RESTARTS),
    Mutant::new("scmkv.open.headers", "headers that a kill left are not flushed", HEADERS),
    Mutant::new("scmkv.open.elements", "elements that a kill left are not flushed", ELEMENTS),
    Mutant::new("scmkv.open.unprobed", "an open loads what it cannot read", UNREADABLE),
    Mutant::new("scmkv.open.version_base", "versions begin again where they began", ONE_CUT),
    Mutant::new("scmkv.clean.overwrite_racing_slot", "the cleaner undoes a racing write", CLEANER),
    Mutant::new("scmkv.clean.age", "the age of a page outweighs all dead bytes", VICTIMS),
    Mutant::new("scmkv.clean.worthy", "a writer waits for pages that give little", VICTIMS),
    Mutant::new("scmkv.clean.whole", "the rest of a dead page counts as live", NO_SPACE),
    Mutant::new("scmkv.clean.idle", "dead bytes in open pages of idle logs do not count", NO_SPACE),
    Mutant::new("scmkv.clean.others_damage", "damage of one key fails a put of another", NO_SPACE),
    Mutant::new("scmkv.clean.slotless", "a removed slot that a kill left comes back", UNDURABLE),
    Mutant::new("scmkv.clean.forget_commit", "a commit record goes before its members", ONE_CUT),
    Mutant::new(
        "scmkv.clean.publish_first",
        "slots point at copies that are not durable",
        ALL_CUTS,
    ),
    Mutant::new(
        "scmkv.clean.fence",
        "a page is freed before slots and copies are durable",
        ONE_CUT,
    ),
    Mutant::new("scmkv.clean.slot_flush", "a slot that a writer won is not flushed", CLEANED_CUTS),
    Mutant::new("scmkv.clean.checksum", "damage is copied and sealed anew", FLIPS),
    Mutant::new("scmkv.clean.tombstone", "tombstones go before what they delete", ALL_CUTS),
    Mutant::new("scmkv.clean.held_tombstone", "tombstones that are held go", CHANGES),
    Mutant::new("scmkv.clean.unsettled", "a page goes before relaxed writes are durable", RELAXED),
    Mutant::new("scmkv.clock.flush", "the mark of the expiry clock is not flushed", ONE_CUT),
    Mutant::new("scmkv.clock.fence", "no fence behind the mark of the expiry clock", ONE_CUT),
    Mutant::new("scmkv.split.flush", "the halves of a segment are not flushed", GROWING),
    Mutant::new("scmkv.split.fence", "a segment's header before its slots", GROWING),
    Mutant::new("scmkv.split.header_flush", "a segment's header is not flushed", GROWING),
    Mutant::new(
        "scmkv.split.header_fence",
        "the old segment goes before the new are durable",
        GROWING,
    ),
    Mutant::new(
        "scmkv.overflow.fence",
        "a large value's record before its overflow records",
        ALL_CUTS,
    ),
    Mutant::new("scmkv.get.checksum", "reads look at no checksum", CHECKED),
    Mutant::new("scmkv.checkpoint.flush", "the pages of a checkpoint are not flushed", CHECKPOINTS),
    Mutant::new("scmkv.checkpoint.unsettled", "a checkpoint names relaxed writes", CHECKPOINTS),
];
