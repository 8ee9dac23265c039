//! Mistakes of `coreplane-tio`.

use super::{Mutant, Suite};

const CRASHES: Suite = Suite::of("coreplane-tio", "crashes", &[]);
const KILLED: Suite = Suite::of("coreplane-tio", "requests", &["a_killed_process"]);
const CUT_AFTER_KILL: Suite = Suite::of("coreplane-tio", "kill", &[]);
const GROWTH: Suite = Suite::of("coreplane-tio", "requests", &["cut_while"]);
const JOURNAL: Suite = Suite::of("coreplane-tio", "journal", &[]);
const UNREADABLE: Suite = Suite::of("coreplane-tio", "unreadable", &[]);
const SCRUB: Suite = Suite::of("coreplane-tio", "scrub", &[]);
const THREADS: Suite = Suite::of("coreplane-tio", "threads", &["not_made_again"]);
const DAMAGE: Suite = Suite::of("coreplane-tio", "damage", &[]);
const TRUNCATED: Suite = Suite::of("coreplane-tio", Suite::UNIT, &["cut_short"]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("tio.name.early", "a sector is named before its bytes are durable", CRASHES)
        .quick(),
    Mutant::new("tio.flush.one", "a flush covers one partition of several", CRASHES),
    Mutant::new("tio.read.overtakes", "a read overtakes a write that it overlaps", CRASHES),
    Mutant::new("tio.block.reused", "a block is free before its sector has another", CRASHES),
    Mutant::new("tio.name.fence", "a write is acknowledged before its name is durable", CRASHES),
    Mutant::new("tio.fua.late", "a write with FUA waits for a flush", CRASHES),
    Mutant::new("tio.map.flush", "a map page is named that holds what was there before", CRASHES),
    Mutant::new("tio.name.flush", "a name that is not written back", CRASHES),
    Mutant::new("tio.directory.flush", "an extent that the directory does not have", CRASHES),
    Mutant::new("tio.block.flush", "bytes that are not written back", CRASHES),
    Mutant::new("tio.journal.empty", "a killed process loses what waits for a commit", CRASHES),
    Mutant::new("tio.journal.flush", "a flush that does not cover the journal", CRASHES),
    Mutant::new("tio.superseded.reused", "what was flushed goes before what replaces it", CRASHES),
    Mutant::new("tio.commit.early", "the journal forgets what has no durable name", CRASHES),
    Mutant::new("tio.open.kept", "an open builds on what a killed process left", CUT_AFTER_KILL),
    Mutant::new("tio.lost.twice", "an extent of another partition is replaced", DAMAGE),
    Mutant::new("tio.lost.zeroes", "a lost extent comes back as zeroes", CUT_AFTER_KILL),
    Mutant::new("tio.journal.flushed", "damage of a flushed write is a power cut", JOURNAL),
    Mutant::new("tio.flushed.found", "what a power cut took was flushed", CRASHES),
    Mutant::new("tio.open.unprobed", "an open loads what it cannot read", UNREADABLE),
    Mutant::new("tio.read.bad", "a read of a block that is known to be bad", DAMAGE),
    Mutant::new("tio.heal.length", "a truncated file gets its length back", TRUNCATED),
    Mutant::new("tio.journal.full", "a batch runs over what a killed process needs", KILLED),
    Mutant::new("tio.journal.round", "an entry of an earlier round is repeated", JOURNAL),
    Mutant::new("tio.journal.stays", "entries outlive writes that none records", JOURNAL),
    Mutant::new("tio.mend.fence", "a mended name is not durable", SCRUB),
    Mutant::new("tio.mend.waiting", "the scrub stores a name before its bytes are durable", SCRUB),
    Mutant::new("tio.mend.failed", "the scrub stores a name that a failed commit has left", SCRUB),
    Mutant::new("tio.open.unchecked", "a refused open takes what the next one would tell", JOURNAL),
    Mutant::new("tio.write.unnamed", "a write beside one that fails is acknowledged only", THREADS),
    Mutant::new("tio.growth.flush", "the root names tables that are not durable", GROWTH),
    Mutant::new("tio.read.unchecked", "bytes that nobody holds against their checksum", DAMAGE),
];
