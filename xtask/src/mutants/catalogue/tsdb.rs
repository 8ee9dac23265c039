//! Mistakes of `coreplane-tsdb`.

use super::{Mutant, Suite};

const CRASHES: Suite = Suite::of("coreplane-tsdb", "crashes", &[]);
const DROPS: Suite = Suite::of("coreplane-tsdb", "crashes", &["dropped", "over"]);
const SYNCS: Suite = Suite::of("coreplane-tsdb", "crashes", &["failed_sync"]);
const STORIES: Suite = Suite::of("coreplane-tsdb", "stories", &[]);
const DAMAGE: Suite = Suite::of("coreplane-tsdb", "damage", &[]);
const LAST: Suite = Suite::of("coreplane-tsdb", "last", &["full_read"]);
const NAMES: Suite = Suite::of("coreplane-tsdb", Suite::UNIT, &["names::"]);
const WRITES: Suite = Suite::of("coreplane-tsdb", Suite::UNIT, &["store::write::"]);
const EMPTIED: Suite = Suite::of("coreplane-tsdb", "drops", &[]);
const SEALS: Suite = Suite::of("coreplane-tsdb", Suite::UNIT, &["set::seal::"]);
const PAGES: Suite = Suite::of("coreplane-tsdb", Suite::UNIT, &["pages::"]);
const LOGS: Suite = Suite::of("coreplane-tsdb", Suite::UNIT, &["log::"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("tsdb.publish.early", "points are seen before they are durable", CRASHES),
    Mutant::new("tsdb.seal.fence", "a chunk is published before its points are durable", CRASHES),
    Mutant::new("tsdb.seal.early", "the head goes before its chunks are durable", CRASHES),
    Mutant::new("tsdb.seal.abandon", "pages that a written record names are given back", SYNCS),
    Mutant::new("tsdb.series.reused", "the number of a series is given twice", DROPS),
    Mutant::new("tsdb.drop.forgotten", "a shard that was dropped is back after a cut", DROPS),
    Mutant::new("tsdb.page.word", "a page whose use nobody wrote down", CRASHES),
    Mutant::new("tsdb.page.number", "the number of a page of a log is given twice", CRASHES),
    Mutant::new("tsdb.log.flush", "a record that is not written back", CRASHES),
    Mutant::new("tsdb.log.fence", "a record is acknowledged before it is durable", CRASHES),
    Mutant::new(
        "tsdb.log.end",
        "what was never acknowledged comes back behind a newer point",
        CRASHES,
    ),
    Mutant::new("tsdb.log.cut", "a log ends at an end that another thread has not fenced", CRASHES),
    Mutant::new("tsdb.log.left", "a log is ended while pages behind that end count", CRASHES),
    Mutant::new("tsdb.log.trimmed", "a damaged checkpoint is taken for one that never was", LOGS),
    Mutant::new("tsdb.log.few_pages", "a checkpoint begins with too few pages", LOGS),
    Mutant::new("tsdb.log.abandon", "pages of a checkpoint that may count are given back", LOGS),
    Mutant::new("tsdb.sync.wait", "a write does not wait for its sync", CRASHES),
    Mutant::new("tsdb.chunk.flush", "a chunk that is not written back", CRASHES),
    Mutant::new("tsdb.names.early", "names are seen before they are durable", CRASHES),
    Mutant::new("tsdb.names.failed", "names are made behind a sync that has failed", CRASHES),
    Mutant::new(
        "tsdb.merge.fence",
        "segments go before the one that replaces them is durable",
        CRASHES,
    ),
    Mutant::new("tsdb.merge.age", "a merged segment wins over a newer one", STORIES),
    Mutant::new(
        "tsdb.seal.waiting",
        "points that wait for a sync are not sealed, and lost",
        CRASHES,
    ),
    Mutant::new("tsdb.read.order", "an older chunk wins over a newer one", STORIES),
    Mutant::new("tsdb.chunk.unchecked", "a chunk that nobody holds against its checksum", DAMAGE),
    Mutant::new("tsdb.log.mark", "a flipped bit takes the last commit before a kill, unsaid", LOGS),
    Mutant::new(
        "tsdb.close.open",
        "the last record of a closed store can be lost without a word",
        DAMAGE,
    ),
    Mutant::new("tsdb.names.stop", "a change that cannot be holds up those behind it", NAMES),
    Mutant::new("tsdb.series.kept", "a series is dropped though a write uses it", WRITES),
    Mutant::new(
        "tsdb.series.unsettled",
        "a series is dropped while a write that found it goes on",
        WRITES,
    ),
    Mutant::new("tsdb.last.stale", "a last value that knows nothing of a later sealing", LAST),
    Mutant::new("tsdb.last.equal", "of two points of a time the older is the last one", LAST),
    Mutant::new("tsdb.last.bound", "a last value that is later than what was asked for", LAST),
    Mutant::new("tsdb.names.reserve", "a full store that refuses what would empty it", EMPTIED),
    Mutant::new("tsdb.names.history", "the log of names keeps what is history", EMPTIED),
    Mutant::new("tsdb.names.greedy", "drops leave no page to give anything back with", EMPTIED),
    Mutant::new("tsdb.garbage.unseen", "what was dropped during a sealing is kept for ever", SEALS),
    Mutant::new("tsdb.garbage.start", "what was dropped before a start is kept for ever", EMPTIED),
    Mutant::new(
        "tsdb.page.impossible",
        "a list of segments is taken for one that cannot be",
        PAGES,
    ),
    Mutant::new("tsdb.page.mend", "a corrected word stays damaged in the pool", DAMAGE),
    Mutant::new("tsdb.page.vital", "a list of segments without a page is a whole one", DAMAGE),
    Mutant::new(
        "tsdb.open.mark",
        "pools without the first one go as the rest of a making",
        STORIES,
    ),
    Mutant::new("tsdb.segment.number", "the number of a segment is given twice", SEALS),
];
