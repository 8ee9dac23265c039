//! Mistakes in pools, pages and syncs.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-pmem";
/// Creation, root and growth, cut everywhere.
const POOL_CUTS: Suite = Suite::of(PACKAGE, "sim_pool", &["a_pool_survives_every_cut"]);
const ROOT_OF_KILLED: Suite = Suite::of(PACKAGE, "sim_pool", &["a_root_of_a_killed_process"]);
const POOL_FLIPS: Suite = Suite::of(PACKAGE, "pool", &["flip", "older_root", "damaged"]);
const COPIES: Suite = Suite::of(
    PACKAGE,
    "pool",
    &["a_copy_shows", "a_repair_that_is_not_ended", "a_page_of_which_a_part"],
);
const FOLIOS: Suite = Suite::of(PACKAGE, "folios", &["a_block_that"]);
const SYNC_FAILURE: Suite = Suite::of(PACKAGE, "folios", &["a_pool_whose_sync"]);
const WRITE_ERRORS: Suite = Suite::of(PACKAGE, "write_errors", &["heal"]);
const WRITERS: Suite = Suite::of(PACKAGE, "bounds", &[]);
const WRITERS_INSIDE: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::writer"]);
const MARKS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["pool::cut_short"]);
const RETIRED: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::retirement"]);
/// An engine above it, cut everywhere.
const RECORD_CUTS: Suite =
    Suite::of("coreplane-scmkv", "crashes", &["lost_with_the_index_in_the_pool"]);
const SYNCS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::sync", "space::rounds"]);
const SYNC_MODEL: Suite = Suite::of(PACKAGE, "sim_model", &["on_a_file", "sync"]);
const RECOVERY: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::recovery"]);
const GUARDS: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::guard"]);
const ROLES: Suite = Suite::of(PACKAGE, Suite::UNIT, &["space::roles"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("pmem.header.flush", "the static header is not flushed", POOL_CUTS),
    Mutant::new("pmem.header.fence", "no fence between static header and magic", POOL_CUTS).quick(),
    Mutant::new("pmem.header.magic_first", "the magic before what it stands for", POOL_CUTS),
    Mutant::new("pmem.header.magic_flush", "the magic is not flushed", POOL_CUTS),
    Mutant::new("pmem.header.magic_fence", "no fence behind the magic", POOL_CUTS),
    Mutant::new(
        "pmem.header.checksum",
        "the static header's checksum is not looked at",
        POOL_FLIPS,
    ),
    Mutant::new("pmem.root.flush", "a root slot is not flushed", POOL_CUTS).quick(),
    Mutant::new("pmem.root.fence", "no fence behind a root slot", POOL_CUTS),
    Mutant::new("pmem.root.state_flush", "the root's state is not flushed", POOL_CUTS),
    Mutant::new("pmem.root.state_fence", "no fence behind the root's state", POOL_CUTS),
    Mutant::new("pmem.root.unannounced", "slots are written over without saying so", POOL_CUTS),
    Mutant::new("pmem.root.state_first", "the new root is current before its slots", POOL_CUTS),
    Mutant::new("pmem.root.uncompleted", "a root that was cut short is left so", POOL_CUTS),
    Mutant::new(
        "pmem.root.inherited",
        "a root is completed before it is durable that it is being written",
        ROOT_OF_KILLED,
    ),
    Mutant::new("pmem.grow.root", "a growth is acknowledged that no root states", POOL_CUTS),
    Mutant::new("pmem.root.checksum", "checksums of the root are not looked at", POOL_FLIPS),
    Mutant::new("pmem.block.dirty", "a block that is written by a call is not synced", FOLIOS),
    Mutant::new("pmem.writer.flush", "what was appended is not flushed", RECORD_CUTS),
    Mutant::new(
        "pmem.writer.published_is_durable",
        "published early is taken for durable",
        WRITERS,
    ),
    Mutant::new("pmem.writer.order", "stores past the caches are published unordered", WRITERS),
    Mutant::new(
        "pmem.writer.order_of_others",
        "stores past the caches are published by another thread, unordered",
        WRITERS_INSIDE,
    ),
    Mutant::new(
        "pmem.writer.abandon",
        "a page is free before what was stored past the caches is there",
        WRITERS_INSIDE,
    ),
    Mutant::new("pmem.heal.round", "a heal gets the write error of others", WRITE_ERRORS),
    Mutant::new("pmem.sync_failure.mark", "a failed sync leaves no mark", SYNC_FAILURE),
    Mutant::new("pmem.mark.link", "a mark lies beside a link to the pool", MARKS),
    Mutant::new("pmem.writer.rewind", "a writer goes back behind what is published", WRITERS),
    Mutant::new("pmem.word.flush", "the flush of a word does nothing", POOL_CUTS),
    Mutant::new("pmem.page.reclaim", "a page is used again under its readers", RETIRED).quick(),
    Mutant::new("pmem.page.reclaim_all", "as before, of many pages", RETIRED),
    Mutant::new("pmem.page.stamp_early", "a lot's stamp before its pages have retired", RETIRED),
    Mutant::new("pmem.page.retire_under_writer", "a page retires while it has a writer", ROLES),
    Mutant::new("pmem.guard.any", "any guard reads a space with epochs of its own", GUARDS),
    Mutant::new("pmem.guard.reader", "a guard is not counted among the space's readers", GUARDS),
    Mutant::new("pmem.recovery.guard", "anybody reads what a recovery may cut", RECOVERY),
    Mutant::new("pmem.recovery.cut", "a page that is in service can be cut", RECOVERY).quick(),
    Mutant::new("pmem.copy.sync", "a look shows what a power cut may take back", COPIES),
    Mutant::new(
        "pmem.repair.part",
        "a repair that is begun anew empties a page that was written since",
        COPIES,
    ),
    Mutant::new("pmem.repair.mark", "a killed repair leaves a pool that says it is whole", COPIES),
    Mutant::new("pmem.sync.covers", "a flush is taken to be in the sync under way", SYNCS).hangs(),
    Mutant::new("pmem.sync.failure", "a sync that failed counts", SYNC_MODEL),
];
