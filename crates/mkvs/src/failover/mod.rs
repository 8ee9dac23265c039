//! Changes of the membership while the matrix is open, and how far the stable watermark is raised.

pub(crate) mod change;
pub(crate) mod checkpoint;
