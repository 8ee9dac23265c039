//! Mistakes of `coreplane-replica`.

use super::{Mutant, Suite};

/// The requirements for an engine, in a cluster of one.
const ENGINE: Suite = Suite::of("coreplane-replica", "conformance", &["a_list_in_memory"]);
const ROOM: Suite = Suite::of("coreplane-replica", "room", &["what_is_said_to_fit"]);
const STORIES: Suite = Suite::of("coreplane-replica", "stories", &[]);
const REPLICAS: Suite = Suite::of("coreplane-replica", "replicas", &[]);
const STOP: Suite = Suite::of("coreplane-replica", "replicas", &["stop::"]);
const DRAFTS: Suite = Suite::of("coreplane-replica", "replicas", &["drafts::"]);
const WAL: Suite = Suite::of("coreplane-replica", "wal", &[]);
const WAL_CRASHES: Suite = Suite::of("coreplane-replica", "wal_crashes", &[]);
const WORLD: Suite = Suite::of("coreplane-replica", "world", &[]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("replica.ack.early", "a node says that it has what is not durable", WORLD).quick(),
    Mutant::new("replica.vote.forgotten", "a vote is said and not written", WORLD),
    Mutant::new(
        "replica.proposal.start",
        "a proposal of an earlier start settles this one's",
        STORIES,
    ),
    Mutant::new("replica.read.unconfirmed", "a read whose term nobody has confirmed", STORIES)
        .quick(),
    Mutant::new("replica.snapshot.older", "a snapshot over a log that has all of it", WORLD),
    Mutant::new("replica.install.counts", "a node that installs is counted for entries", WORLD),
    Mutant::new("replica.read.late", "a read that joins one for which a majority was asked", WORLD),
    Mutant::new("replica.cas.early", "an answer before what it saw is committed", WORLD),
    Mutant::new("replica.expiry.told", "a record is said to have expired, by a clock alone", WORLD),
    Mutant::new("replica.expiry.clock", "a leader whose clock is before what was told", REPLICAS),
    Mutant::new("replica.term.early", "a leader speaks in a term that is not durable", STORIES),
    Mutant::new(
        "replica.damage.dropped",
        "damaged entries are taken for ones that never were",
        STORIES,
    ),
    Mutant::new("replica.identity.rash", "a copy that was put back believes its leader", STORIES),
    Mutant::new("replica.identity.any", "the vote of a node that was wiped is counted", STORIES),
    Mutant::new(
        "replica.identity.deaf",
        "a pool that was put back goes on as if nothing were",
        STORIES,
    ),
    Mutant::new(
        "replica.identity.lag",
        "a node that lags makes another one give up its pool",
        STORIES,
    ),
    Mutant::new(
        "replica.identity.earlier",
        "a new pool waits for a peer that knows the earlier one",
        STORIES,
    ),
    Mutant::new("replica.identity.foreign", "a pool of another cluster is given up", STORIES),
    Mutant::new("replica.identity.stranger", "a member that is there is replaced", STORIES),
    Mutant::new("replica.start.early", "a node speaks before its start is durable", STORIES),
    Mutant::new("replica.life.early", "a node is heard before its start is noted", STORIES),
    Mutant::new("replica.blank.early", "a pool is given up, and the power brings it back", STORIES),
    Mutant::new("replica.apply.late", "what rests on members is durable before them", STORIES),
    Mutant::new(
        "replica.join.kept",
        "a pool that is not filled is taken for the one before",
        STORIES,
    ),
    Mutant::new("replica.damage.forgotten", "a node whose log is damaged votes for less", STORIES),
    Mutant::new("replica.install.forgotten", "a node that installs votes for less", STORIES),
    Mutant::new("replica.install.untold", "a node that installs hides what is committed", STORIES),
    Mutant::new(
        "replica.stand.unwritten",
        "a node leads before its own entries are durable",
        STORIES,
    ),
    Mutant::new(
        "replica.promise.dropped",
        "an older snapshot makes a node forget what it has acknowledged",
        STORIES,
    ),
    Mutant::new("replica.promise.vote", "a vote for one who has less than was promised", STORIES),
    Mutant::new("replica.promise.election", "a node leads without what it has promised", STORIES),
    Mutant::new(
        "replica.install.starts",
        "a snapshot makes a node forget the starts of its peers",
        STORIES,
    ),
    Mutant::new("replica.install.sender", "a filled node takes a copy for its leader", STORIES),
    Mutant::new("replica.snapshot.halted", "pages of an earlier transfer are waited for", STORIES),
    Mutant::new("replica.ring.unheld", "entries behind a snapshot are dropped", STORIES),
    Mutant::new("replica.ring.pending", "pending entries behind a snapshot are dropped", STORIES),
    Mutant::new("replica.part.unheard", "a long message is no sign of its leader", STORIES),
    Mutant::new("replica.part.stopped", "a node whose medium has failed sends keepalives", STORIES),
    Mutant::new("replica.part.unanswered", "a keepalive is no sign of its sender", STORIES),
    Mutant::new("replica.stall.leads", "a leader whose medium has stalled leads on", STORIES),
    Mutant::new("replica.identity.past", "a pool that is gone replaces a member", STORIES),
    Mutant::new("replica.snapshot.pinned", "all is given up beside a state that stays", STORIES),
    Mutant::new("replica.term.last", "a term is taken after which there is none", STORIES),
    Mutant::new("replica.install.vote", "a node that installs forgets its vote", WORLD),
    Mutant::new("replica.wal.restated", "a log file that is begun takes entries back", WAL),
    Mutant::new("replica.wal.begun", "a checkpoint makes void what is nowhere else", WAL),
    Mutant::new("replica.wal.unflushed", "frames in a pool are not flushed", WAL_CRASHES),
    Mutant::new("replica.wal.unfenced", "a commit in a pool has no fence", WAL_CRASHES),
    Mutant::new("replica.wal.life", "frames behind the end that a start has found", WAL_CRASHES),
    Mutant::new(
        "replica.wal.continued",
        "the first page of a start may be lost alone",
        WAL_CRASHES,
    ),
    Mutant::new("replica.wal.killed", "what a killed process has left is not flushed", WAL_CRASHES),
    Mutant::new("replica.members.lazy", "a change of members is applied and forgotten", STORIES),
    Mutant::new("replica.stop.told", "an open write of a stopped node is refused", STOP),
    Mutant::new("replica.identity.keys", "a node whose map takes other keys takes part", STORIES),
    Mutant::new("replica.identity.later", "a node that lags does not follow a new pool", STORIES),
    Mutant::new("replica.age.told", "a follower counts its age from the answer", REPLICAS),
    Mutant::new("replica.feed.early", "what a majority does not have is shown", REPLICAS),
    Mutant::new("replica.feed.gap", "changes that are gone are passed over", REPLICAS),
    Mutant::new("replica.entries.again", "a follower is sent the same again and again", REPLICAS),
    Mutant::new("replica.room.alone", "a proposal whose room others have been promised", REPLICAS),
    Mutant::new("replica.room.follower", "a follower takes what it has no room for", STORIES),
    Mutant::new("replica.snapshot.unfit", "all is given up for what does not fit", STORIES),
    Mutant::new("mvcc.log.unawaited", "a sync that is to come is taken for pages", ROOM),
    Mutant::new("replica.turn.late", "more is proposed than a turn has room for", REPLICAS),
    Mutant::new("replica.draft.twice", "two changes of a key in one entry", DRAFTS),
    Mutant::new("replica.draft.clear", "a clear leaves what was proposed just before", DRAFTS),
    Mutant::new("replica.effect.unseen", "a write that does not see the one before it", ENGINE),
];
