//! Mistakes in the persistent multi-version maps.

use super::{Mutant, Suite};

const PACKAGE: &str = "coreplane-mvcc";
/// Stories of writes, cut everywhere.
const CUTS: Suite = Suite::of(PACKAGE, "crashes", &["what_was_acknowledged"]);
const BATCH_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["batches_are_whole"]);
const CHAIN_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["large_values"]);
const RELAXED_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["relaxed"]);
const CLEAR_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["is_emptied_at_once"]);
const EXPIRY_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["what_has_expired"]);
/// The same, while the cleaner works all the time.
const ROUND_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["where_pages_come_round"]);
const DELETE_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["most_writes_are_deletes"]);
const PIN_CUTS: Suite = Suite::of(PACKAGE, "crashes", &["snapshots_are_pinned"]);
/// One pool through many lives, each of which ends in a cut.
const LIVES: Suite = Suite::of(PACKAGE, "lives", &[]);
/// The view of snapshots.
const PINS: Suite = Suite::of(PACKAGE, "pins", &[]);
/// Versions of which one is damaged.
const DAMAGED_PINS: Suite = Suite::of(PACKAGE, "pins", &["no_damaged_version"]);
/// Holds and clears, and restarts.
const HISTORY: Suite = Suite::of(PACKAGE, "conformance", &["history_gone_is_said_after"]);
const CHANGES: Suite = Suite::of(PACKAGE, "changes", &[]);
const READS: Suite = Suite::of("coreplane-mvcc", "reads", &[]);
const WALKS: Suite = Suite::of(PACKAGE, "walks", &[]);
const KILLED: Suite = Suite::of(PACKAGE, "killed", &[]);
const DAMAGE: Suite = Suite::of(PACKAGE, "damage", &[]);
const CLEARS: Suite = Suite::of(PACKAGE, "damage", &["can_be_emptied"]);
/// The cost of damage of a list.
const LIST_DAMAGE: Suite = Suite::of(PACKAGE, "list_damage", &[]);
/// The tree alone, with kills between a seal and its fence.
const TREE: Suite = Suite::of(PACKAGE, Suite::UNIT, &["tree::tests"]);
/// Tombstones that are held.
const HELD: Suite = Suite::of(PACKAGE, Suite::UNIT, &["engine::tests::a_held_tombstone"]);
/// What snapshots have kept.
const RELEASE: Suite = Suite::of(PACKAGE, Suite::UNIT, &["engine::tests::what_a_snapshot_has"]);
const EARLY: Suite = Suite::of(PACKAGE, "early", &[]);
/// Logs, cut everywhere.
const LOG_CUTS: Suite = Suite::of(PACKAGE, "log", &["entries_are_there"]);
const LOG_PAGE_CUTS: Suite = Suite::of(PACKAGE, "log", &["entries_are_there", "many_pages_share"]);
const LOG_INSTALL_CUTS: Suite = Suite::of(PACKAGE, "log", &["snapshots_come_and_go"]);
/// One log through many lives, while pages are reused.
const LOG_LIVES: Suite = Suite::of(PACKAGE, "log", &["where_pages_are_few"]);
const LOG_MOMENTS: Suite = Suite::of(PACKAGE, "log", &["moments"]);
const LOG_PIN_LIVES: Suite = Suite::of(PACKAGE, "log", &["snapshots_are_pinned"]);
const LOG_FLIPS: Suite = Suite::of(PACKAGE, "log", &["flips"]);
const LOG_ROOM: Suite = Suite::of(PACKAGE, "log", &["room::"]);
const LOG_READS: Suite = Suite::of(PACKAGE, "log_cost", &["may_be_lost"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("mvcc.stream.flush", "what is committed is not flushed", CUTS).quick(),
    Mutant::new("mvcc.stream.fence", "a commit without its fence", CUTS).quick(),
    Mutant::new("mvcc.stream.follows", "a record says of torn ones that they were durable", CUTS),
    Mutant::new("mvcc.stream.mark", "nobody waits for the sync of what he reads", EARLY),
    Mutant::new("mvcc.stream.carry", "nobody waits for it where it was moved to", EARLY),
    Mutant::new("mvcc.stream.unsound", "the length of a damaged record is believed", DAMAGE),
    Mutant::new("mvcc.stream.end_mark", "a full page has no end mark", CUTS),
    Mutant::new("mvcc.stream.group", "a group goes on in pages that may have no life", BATCH_CUTS),
    Mutant::new(
        "mvcc.stream.free_early",
        "a page goes before what has superseded it is durable",
        ROUND_CUTS,
    )
    .quick(),
    Mutant::new(
        "mvcc.stream.reuse_early",
        "a page is written to before its 0 is durable",
        ROUND_CUTS,
    ),
    Mutant::new("mvcc.table.chain_flush", "the lives of a large value are not flushed", CHAIN_CUTS),
    Mutant::new("mvcc.chain.fence", "a record before its large value", CHAIN_CUTS).quick(),
    Mutant::new("mvcc.write.durable", "a search for pages calls early writes durable", ROUND_CUTS),
    Mutant::new("mvcc.write.refused", "a refused write rests on nothing", RELAXED_CUTS),
    Mutant::new("mvcc.read.exposed", "a snapshot stops at what is not durable yet", PIN_CUTS),
    Mutant::new("mvcc.read.starved", "a read that writers keep from its end", READS),
    Mutant::new("mvcc.read.gone", "a damaged record is taken for a tombstone", DAMAGE),
    Mutant::new("mvcc.pin.above", "a snapshot passes over a damaged version", DAMAGED_PINS),
    Mutant::new("mvcc.held.horizon", "a restart forgets that tombstones were dropped", CHANGES),
    Mutant::new("mvcc.clear.history", "a restart forgets that a clear left none", HISTORY),
    Mutant::new("mvcc.tree.clear_damaged", "a damaged node keeps a clear from its end", CLEARS),
    Mutant::new("mvcc.list.trim", "some of what pins alone have seen stays", RELEASE),
    Mutant::new("mvcc.log.hope", "a leader takes any sync for all pages it needs", LOG_ROOM),
    Mutant::new("mvcc.iterate.passed", "an iteration says nothing of what it passed over", DAMAGE),
    Mutant::new("mvcc.walk.again", "a walk is sure of pages that it has not looked at", WALKS),
    Mutant::new("mvcc.clear.early", "a clear that nobody waits for", CLEAR_CUTS),
    Mutant::new("mvcc.clean.cover", "what was moved is not covered", ROUND_CUTS),
    Mutant::new("mvcc.clean.older", "an older version is moved, too", DELETE_CUTS),
    Mutant::new(
        "mvcc.clean.marker",
        "the record of a clear goes before what it has cleared",
        LIVES,
    ),
    Mutant::new("mvcc.cold.fence", "a commit leads to moved records before they are durable", TREE),
    Mutant::new(
        "mvcc.cold.since",
        "a page of moves counts as begun behind pages that are ahead",
        LOG_MOMENTS,
    ),
    Mutant::new("mvcc.list.pin", "what a pin sees is superseded", PIN_CUTS).quick(),
    Mutant::new("mvcc.tree.pin", "a page that a pinned root leads to is free", PIN_CUTS).quick(),
    Mutant::new("mvcc.tree.no_room", "a page for which there is no room is set aside", TREE),
    Mutant::new("mvcc.tree.graves", "a full tree lets no tombstone go", LOG_ROOM),
    Mutant::new("mvcc.tree.held", "tombstones that are held go", LIVES),
    Mutant::new("mvcc.tree.absence", "who finds nothing is told so before it is durable", EARLY),
    Mutant::new("mvcc.tree.half_groups", "a commit that is torn counts", CUTS).quick(),
    Mutant::new("mvcc.tree.unproven", "a page is free that the newest commit rests on", TREE),
    Mutant::new("mvcc.tree.heir", "what a killed process has left is not flushed", TREE),
    Mutant::new("mvcc.list.held", "tombstones that are held go", LIVES),
    Mutant::new("mvcc.list.held_replaced", "a tombstone is held that was replaced", HELD),
    Mutant::new("mvcc.list.tombstone", "a tombstone goes before its key has", DELETE_CUTS),
    Mutant::new("mvcc.list.half_groups", "half of a group counts", BATCH_CUTS).quick(),
    Mutant::new("mvcc.list.void_stays", "what does not count stays", LIVES),
    Mutant::new(
        "mvcc.recover.void_order",
        "the first page that does not count goes first",
        LIST_DAMAGE,
    ),
    Mutant::new(
        "mvcc.recover.follows",
        "what a recovery moves says of what is void that it was durable",
        CUTS,
    ),
    Mutant::new("mvcc.recover.flush", "what a kill has left in caches stays there", KILLED),
    Mutant::new("mvcc.root.expiry", "an expiry that was told is not durable", EXPIRY_CUTS),
    Mutant::new("mvcc.open.versions", "versions begin again where they began", LIVES),
    Mutant::new("mvcc.open.births", "births begin again where they began", LIVES),
    Mutant::new("mvcc.tree.chain", "the pages of a value that a pin sees go with a copy", PINS),
    Mutant::new(
        "mvcc.open.closed",
        "what a close has ended is taken for torn when an opening was cut",
        LIST_DAMAGE,
    )
    .quick(),
    Mutant::new("mvcc.damage.torn", "a damaged record is taken for a torn one", LIST_DAMAGE)
        .quick(),
    Mutant::new("mvcc.damage.stale", "an older version is shown for a lost one", LIST_DAMAGE),
    Mutant::new("mvcc.damage.moved", "what is doubtful is sure where it was moved to", LIST_DAMAGE),
    Mutant::new("mvcc.damage.grave", "it is forgotten that a key is surely gone", LIST_DAMAGE),
    Mutant::new("mvcc.damage.proof", "a damaged page is taken for torn later", LIST_DAMAGE),
    Mutant::new(
        "mvcc.damage.order",
        "what is known of damage is void when the damaged page has gone",
        LIST_DAMAGE,
    ),
    Mutant::new("mvcc.stream.order", "a log goes on in pages that may have no life", LOG_MOMENTS),
    Mutant::new(
        "mvcc.stream.own_page",
        "what a recovery of a log moves ends a group that a cut has torn",
        LOG_PAGE_CUTS,
    ),
    Mutant::new("mvcc.log.loose", "changes count before the record that closes them", LOG_CUTS),
    Mutant::new("mvcc.log.early", "what is applied may be lost, and is shown", LOG_READS).quick(),
    Mutant::new(
        "mvcc.log.purge",
        "what an apply has superseded goes before it is said to be applied",
        LOG_CUTS,
    )
    .quick(),
    Mutant::new("mvcc.log.rolled_back", "an entry that was rolled back comes back", LOG_CUTS),
    Mutant::new(
        "mvcc.log.void",
        "an entry that was rolled back comes back when the record that says so was cleaned",
        LOG_LIVES,
    ),
    Mutant::new(
        "mvcc.log.origin",
        "a record of a roll-back that was moved takes back what came behind it",
        LOG_MOMENTS,
    ),
    Mutant::new("mvcc.log.control", "the cleaner loses vote, term and what is applied", LOG_LIVES)
        .quick(),
    Mutant::new(
        "mvcc.log.grave",
        "a tombstone goes before a version that was moved while it was pending",
        LOG_MOMENTS,
    ),
    Mutant::new(
        "mvcc.log.install",
        "what was there before a snapshot is not void",
        LOG_INSTALL_CUTS,
    ),
    Mutant::new(
        "mvcc.log.forgotten",
        "a tombstone is moved behind the snapshot that has replaced everything",
        LOG_MOMENTS,
    ),
    Mutant::new(
        "mvcc.log.unveil",
        "an installed snapshot is read before it is durable",
        LOG_MOMENTS,
    ),
    Mutant::new("mvcc.pending.early", "a tree leads to entries that may be lost", LOG_READS)
        .quick(),
    Mutant::new("mvcc.pending.applied", "applied is said before the nodes are there", LOG_CUTS),
    Mutant::new("mvcc.pending.rolled_back", "an entry that was rolled back comes back", LOG_CUTS),
    Mutant::new("mvcc.pending.page", "a page with a pending entry is used again", LOG_LIVES)
        .quick(),
    Mutant::new("mvcc.pending.clean", "a page with a pending entry is cleaned", LOG_MOMENTS),
    Mutant::new("mvcc.pending.forgotten", "an opening forgets what is pending", LOG_CUTS),
    Mutant::new("mvcc.pending.torn", "a damaged entry is taken for a torn one", LOG_FLIPS),
    Mutant::new("mvcc.pending.room", "what is pending finds no pages to be applied", LOG_ROOM),
    Mutant::new("mvcc.pending.snapshot", "a snapshot is of what was sealed before", LOG_PIN_LIVES),
];
