//! Mistakes of `coreplane-replica`.

use super::{Mutant, Suite};

const WORLD: Suite = Suite::of("coreplane-replica", "world", &[]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("replica.ack.early", "a node says that it has what is not durable", WORLD).quick(),
    Mutant::new("replica.vote.forgotten", "a vote is said and not written", WORLD),
    Mutant::new(
        "replica.proposal.start",
        "a proposal of an earlier start settles this one's",
        WORLD,
    ),
    Mutant::new("replica.read.unconfirmed", "a read whose term nobody has confirmed", WORLD)
        .quick(),
    Mutant::new("replica.snapshot.older", "a snapshot over a log that has all of it", WORLD),
    Mutant::new("replica.install.counts", "a node that installs is counted for entries", WORLD),
];
