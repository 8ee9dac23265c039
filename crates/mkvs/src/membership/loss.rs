//! What may be lost of a group when its loss is accepted.

use crate::shape::position::Position;

/// What may be lost of a group, since the loss was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The group.
    pub group: u16,
    /// Its members that are not here.
    pub missing: Vec<Position>,
    /// Who stands for the group now.
    pub kept: Vec<Position>,
    /// The epoch of the membership record that these have.
    pub epoch: u64,
    /// What has a sequence up to this is on them.
    pub watermark: u64,
    /// What may be lost.
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
