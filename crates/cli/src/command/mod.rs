//! The subcommands.

pub(crate) mod administer;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod manual;
pub(crate) mod matrix;
pub(crate) mod nbd;
pub(crate) mod records;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod transfer;
pub(crate) mod ts;
pub(crate) mod verify;
