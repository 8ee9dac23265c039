//! The arguments of disks.

use crate::terms;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use coreplane::MediaChoice;
use coreplane_tio::{Mode, Policy};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Nbd {
    /// Serve a disk; one that is not there is made first.
    Serve(NbdServe),
    /// Read the whole disk and hold it against its checksums: exit code 0 sound, 1 damaged, 2 unusable.
    Verify(NbdVerify),
    /// Make the disk larger. What was cut off goes on with the same command.
    Grow(NbdGrow),
}

/// A disk, which nobody has open.
#[derive(Debug, Args)]
pub(crate) struct NbdPool {
    /// The pool of the disk, or the directory of its partitions' pools (q0, q1 …).
    #[arg(long, value_name = "PATH")]
    pub(crate) pool: PathBuf,
    /// The medium: auto, file, dax, emulated:PROFILE[,KEY=VALUE...] (none, optane, pcm, stt-ram, nv-cmm).
    #[arg(long, default_value = "auto")]
    pub(crate) media: MediaChoice,
}

#[derive(Debug, Args)]
pub(crate) struct NbdVerify {
    #[command(flatten)]
    pub(crate) pool: NbdPool,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NbdGrow {
    #[command(flatten)]
    pub(crate) pool: NbdPool,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Bytes of the disk, for example 8GiB.
    #[arg(long, value_parser = terms::size)]
    pub(crate) size: u64,
}

#[derive(Debug, Args)]
pub(crate) struct NbdServe {
    #[command(flatten)]
    pub(crate) pool: NbdPool,
    /// The name of the export. A client may say NAME@device=7,interval=10ms: its requests are of that IoT device, which
    /// samples so often.
    #[arg(long, default_value = "disk")]
    pub(crate) export: String,
    /// Bytes of a disk that is made, for example 4GiB. All of it is allocated then, so that nothing can run out later.
    #[arg(long, default_value = "1GiB", value_parser = terms::size)]
    pub(crate) size: u64,
    /// Queue sets of a disk that is made, each with a pool of its own.
    #[arg(long, default_value_t = 4, value_name = "COUNT")]
    pub(crate) queues: u32,
    /// How the queue set of a new device is chosen: rate (the least sum of rates), paper (the highest mean interval), pid (the
    /// number of the connection), hash.
    #[arg(long, default_value = "rate")]
    pub(crate) balance: Policy,
    /// How requests reach the pools: multi (a queue set for each), single (one for all), sync (none: every connection by
    /// itself).
    #[arg(long, default_value = "multi")]
    pub(crate) driver: Mode,
    /// Addresses to listen on.
    #[arg(long, default_value = "127.0.0.1", value_delimiter = ',')]
    pub(crate) bind: Vec<String>,
    /// The TCP port; 0 for any free one [default: 10809, unless there is a Unix socket].
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// The path of a Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub(crate) unixsocket: Option<PathBuf>,
    /// The mode of the Unix socket's file, in octal.
    #[arg(long, value_name = "MODE", value_parser = terms::octal)]
    pub(crate) unixsocketperm: Option<u32>,
    /// Connections at a time.
    #[arg(long, default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) maxclients: usize,
    /// Refuse every write.
    #[arg(long)]
    pub(crate) read_only: bool,
}
