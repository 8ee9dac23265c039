//! The operations of a run and their outcomes, as known to their callers at a power cut.

/// A step of the history.
#[derive(Debug, Clone)]
pub enum Mark<Op> {
    /// The operation with this number was called.
    Began(usize, Op),
    /// The operation with this number was acknowledged: its effect must be there.
    Returned(usize),
    /// The operation with this number was refused: it must have no effect.
    Refused(usize),
}

/// The outcome of an operation at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may have happened as a whole, or not at all.
    InFlight,
    /// It has happened.
    Acknowledged,
    /// It has not.
    Refused,
}

/// The history up to a cut.
#[derive(Debug)]
pub struct History<'a, Op> {
    marks: &'a [Mark<Op>],
}

impl<'a, Op> History<'a, Op> {
    pub(super) fn new(marks: &'a [Mark<Op>]) -> Self {
        Self { marks }
    }

    /// All steps, in order.
    pub fn marks(&self) -> &'a [Mark<Op>] {
        self.marks
    }

    /// All operations in the order in which they were called, with their outcomes.
    pub fn operations(&self) -> Vec<(&'a Op, Standing)> {
        let mut operations: Vec<(usize, &Op, Standing)> = Vec::new();
        for mark in self.marks {
            let (number, standing) = match mark {
                Mark::Began(number, op) => {
                    operations.push((*number, op, Standing::InFlight));
                    continue;
                }
                Mark::Returned(number) => (*number, Standing::Acknowledged),
                Mark::Refused(number) => (*number, Standing::Refused),
            };
            if let Some(entry) = operations.iter_mut().rev().find(|entry| entry.0 == number) {
                entry.2 = standing;
            }
        }
        operations.into_iter().map(|(_, op, standing)| (op, standing)).collect()
    }

    /// The acknowledged operations, in the order of the calls.
    pub fn acknowledged(&self) -> impl Iterator<Item = &'a Op> {
        self.operations()
            .into_iter()
            .filter(|(_, standing)| *standing == Standing::Acknowledged)
            .map(|(op, _)| op)
    }

    /// The operations that were called and neither acknowledged nor refused.
    pub fn in_flight(&self) -> impl Iterator<Item = &'a Op> {
        self.operations()
            .into_iter()
            .filter(|(_, standing)| *standing == Standing::InFlight)
            .map(|(op, _)| op)
    }
}
