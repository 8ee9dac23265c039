//! The arguments of matrices.

use super::{Behind, Pool};
use crate::terms;
use clap::{Args, Subcommand};
use coreplane::admin::Position;

#[derive(Debug, Subcommand)]
pub(crate) enum Matrix {
    /// Say what the matrix is, which devices are current, and which are absent or out of date.
    Status(Looked),
    /// Fill a device from its peers and make it a current member: one that was away is brought up
    /// to date, and where there is none a new one is made. Cut off, the same command goes on.
    /// Keys that are damaged on all of its peers are named and left out; it exits with 1 then.
    Replace(Replace),
    /// Take a current device out of the matrix, such as one that fails now and then: it is absent from then on,
    /// and `replace --fresh` makes another in its place. Not the last current one of its group.
    Retire(Retire),
    /// Add a group of new devices and move its share of the keys to it; goes on with a move that
    /// was cut off, if there is one, and adds none then.
    AddGroup(AddGroup),
    /// Hold every record of every device against its checksums, and write what is damaged anew from
    /// a peer. Exits with 1 if something was damaged, or had been lost.
    Scrub(Looked),
}

/// All of a matrix, or one device.
#[derive(Debug, Args)]
pub(crate) struct Looked {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Only the device at this place, for example g0d1. A scrub checks all devices of its group: what is damaged or
    /// missing on one is found on another.
    #[arg(long, value_name = "gGdD")]
    pub(crate) device: Option<Position>,
}

/// A store, at its place or behind a server.
#[derive(Debug, Args)]
#[command(mut_arg("server", |server| server.conflicts_with("pool")))]
pub(crate) struct Tended {
    #[command(flatten)]
    pub(crate) pool: Pool,
    #[command(flatten)]
    pub(crate) behind: Behind,
}

#[derive(Debug, Args)]
pub(crate) struct Replace {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// The place, for example g0d1.
    #[arg(long, value_name = "gGdD")]
    pub(crate) device: Position,
    /// Remove what is there, if anything, and fill a new device from nothing.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Copy at most so much in a second, for example 100MiB.
    #[arg(long, value_name = "SIZE", value_parser = terms::some)]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Retire {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// The place, for example g0d1.
    #[arg(long, value_name = "gGdD")]
    pub(crate) device: Position,
}

#[derive(Debug, Args)]
pub(crate) struct AddGroup {
    #[command(flatten)]
    pub(crate) tended: Tended,
    /// Copy at most so much in a second, for example 100MiB.
    #[arg(long, value_name = "SIZE", value_parser = terms::some)]
    pub(crate) limit: Option<u64>,
}
