//! Mistakes in records and sealed words.

use super::{Mutant, Suite};

const UNIT: Suite = Suite::of("coreplane-record", Suite::UNIT, &[]);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant::new("record.checksum", "a record's checksum is not looked at", UNIT).quick(),
    Mutant::new("record.seed_life", "a record counts in every life of its page", UNIT),
    Mutant::new("record.seed_place", "a record counts wherever it lies", UNIT),
    Mutant::new("record.seal", "a sealed word's check is not looked at", UNIT).quick(),
    Mutant::new("record.seal_place", "a sealed word counts wherever it lies", UNIT),
];
