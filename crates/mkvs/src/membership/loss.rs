//! The possible loss of a group, after an operator has accepted it.

use crate::shape::Position;

/// The possible loss of a group, which was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The group.
    pub group: u16,
    /// Its missing members.
    pub missing: Vec<Position>,
    /// The devices that stand for the group now.
    pub kept: Vec<Position>,
    /// The epoch of their membership record.
    pub epoch: u64,
    /// They have every write with a sequence up to this.
    pub watermark: u64,
    /// A description of the writes that may be lost.
    pub what: &'static str,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, epoch, watermark, what, .. } = self;
        write!(
            f,
            "group {group} goes on with {} (epoch {epoch}, watermark {watermark})",
            names(&self.kept)
        )?;
        if !self.missing.is_empty() {
            write!(f, " without {}", names(&self.missing))?;
        }
        write!(f, ": {what} is lost")
    }
}

pub(crate) fn names(positions: &[Position]) -> String {
    positions.iter().map(Position::to_string).collect::<Vec<_>>().join(", ")
}
