//! The arguments that name a store, or the server that has it open.

use super::{MATRIX, SERVED};
use crate::failure::Failure;
use crate::terms;
use clap::Args;
use coreplane::MediaChoice;
use std::ops::Deref;
use std::path::PathBuf;

/// The server that has a store open, if one is named.
#[derive(Debug, Clone, Args)]
pub(crate) struct Behind {
    /// Ask the server that has the store open, at this address or at the path of its Unix socket (which
    /// has a slash), in place of opening the store.
    #[arg(long, value_name = "HOST:PORT|PATH", help_heading = SERVED)]
    pub(crate) server: Option<String>,
    /// The file that holds the password of that server.
    #[arg(long, value_name = "PATH", requires = "server", help_heading = SERVED)]
    pub(crate) password_file: Option<PathBuf>,
}

impl Behind {
    /// The password, if there is one.
    pub(crate) fn password(&self) -> Result<Option<String>, Failure> {
        self.password_file.as_deref().map(terms::password_in).transpose()
    }
}

/// A store, of a command that can answer in JSON.
#[derive(Debug, Args)]
pub(crate) struct Pool {
    #[command(flatten)]
    pub(crate) place: PoolPlace,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Deref for Pool {
    type Target = PoolPlace;

    fn deref(&self) -> &PoolPlace {
        &self.place
    }
}

/// Where a store is, and how it is opened.
#[derive(Debug, Args)]
pub(crate) struct PoolPlace {
    /// The file of the pool, or the directory of a matrix [default: coreplane/default.pool in the
    /// user's data directory].
    #[arg(long, value_name = "PATH")]
    pub(crate) pool: Option<PathBuf>,
    /// The medium: auto, file, dax, emulated:PROFILE[,KEY=VALUE...] (none, optane, pcm, stt-ram, nv-cmm).
    #[arg(long, default_value = "auto")]
    pub(crate) media: MediaChoice,
    /// Open a matrix although devices are missing that may be the only ones to have what was
    /// acknowledged, or repair a device of it: that is lost then.
    #[arg(long, help_heading = MATRIX)]
    pub(crate) accept_loss: bool,
    /// Seconds that a device of a matrix may take for one call that is made in its own thread, before it
    /// is left out as if it had failed; 0: for ever.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", help_heading = MATRIX)]
    pub(crate) answers_within: u64,
}
