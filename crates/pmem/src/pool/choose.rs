//! Choice of the medium of a file.

use super::error::PoolError;
use super::types::{MediaChoice, Medium};
use crate::media::{Behaviour, Profile, dax, emulated, file};
use crate::order::{self, Instruction};
use std::fs::File;
use std::path::Path;

/// The chosen medium.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) behaviour: Behaviour,
    pub(super) medium: Medium,
    pub(super) unsafe_shutdowns: Option<u64>,
}

impl Chosen {
    pub(super) fn simulated() -> Self {
        Self {
            behaviour: Behaviour::Dram,
            medium: Medium {
                name: "sim".to_owned(),
                power_safe: true,
                power_cut_loses: "what the simulated cut says".to_owned(),
                persists_by: "simulated flushes".to_owned(),
            },
            unsafe_shutdowns: None,
        }
    }

    fn dax(file: &File) -> Self {
        let region = dax::Region::of(file);
        let caches_persist =
            region.as_ref().is_some_and(|region| region.domain == Some(dax::Domain::Caches));
        // It can be asked for, for a measurement.
        let is_flushed = caches_persist || order::chosen() != Instruction::None;
        let power_cut_loses = match is_flushed {
            true => "nothing",
            false => "what is in the caches: COREPLANE_FLUSH is none",
        };
        let persists_by = if caches_persist {
            "fence alone (the CPU caches persist)".to_owned()
        } else {
            format!("{} and fence", order::chosen().name())
        };
        Self {
            behaviour: Behaviour::Dax { caches_persist },
            medium: Medium {
                name: "dax".to_owned(),
                power_safe: is_flushed,
                power_cut_loses: power_cut_loses.to_owned(),
                persists_by,
            },
            unsafe_shutdowns: region.and_then(|region| region.unsafe_shutdowns),
        }
    }

    fn file(file: &File) -> Self {
        let (power_safe, power_cut_loses) = match file::memory_filesystem(file) {
            None => (true, "nothing".to_owned()),
            Some(name) => (false, format!("everything: {name} lives in DRAM")),
        };
        Self {
            behaviour: Behaviour::File,
            medium: Medium {
                name: "file".to_owned(),
                power_safe,
                power_cut_loses,
                persists_by: "sync of the dirty ranges".to_owned(),
            },
            unsafe_shutdowns: None,
        }
    }

    /// For comparisons with stores that flush nothing.
    #[cfg(feature = "noflush")]
    fn noflush() -> Self {
        Self {
            behaviour: Behaviour::Dram,
            medium: Medium {
                name: "emulated:noflush".to_owned(),
                power_safe: false,
                power_cut_loses: "everything: nothing is flushed".to_owned(),
                persists_by: "nothing".to_owned(),
            },
            unsafe_shutdowns: None,
        }
    }

    fn emulated(profile: &str) -> Result<Self, PoolError> {
        #[cfg(feature = "noflush")]
        if profile == "noflush" {
            return Ok(Self::noflush());
        }
        let profile: Profile = profile
            .parse()
            .map_err(|reason| PoolError::Profile { profile: profile.to_owned(), reason })?;
        Ok(Self {
            medium: Medium {
                name: format!("emulated:{profile}"),
                power_safe: false,
                power_cut_loses: "everything: the pool lives in DRAM".to_owned(),
                persists_by: format!("{} and fence", order::chosen().name()),
            },
            behaviour: Behaviour::Emulated(emulated::model(&profile)),
            unsafe_shutdowns: None,
        })
    }
}

/// The medium of `file`, whose blocks are allocated, according to `choice`.
pub(super) fn medium(file: &File, path: &Path, choice: &MediaChoice) -> Result<Chosen, PoolError> {
    match choice {
        MediaChoice::Auto => {
            if power_safe_mapping(file).is_ok() {
                Ok(Chosen::dax(file))
            } else if file::memory_filesystem(file).is_some() {
                Chosen::emulated("none")
            } else {
                Ok(Chosen::file(file))
            }
        }
        MediaChoice::File => Ok(Chosen::file(file)),
        MediaChoice::Dax => power_safe_mapping(file)
            .map(|()| Chosen::dax(file))
            .map_err(|reason| PoolError::NotPowerSafe { path: path.to_owned(), reason }),
        MediaChoice::Emulated(profile) => {
            if file::memory_filesystem(file).is_none() {
                return Err(PoolError::NotMemory {
                    path: path.to_owned(),
                    filesystem: file::filesystem_name(file),
                });
            }
            Chosen::emulated(profile)
        }
    }
}

/// Whether a flushed and fenced store to a mapping of `file` survives a power cut.
fn power_safe_mapping(file: &File) -> Result<(), String> {
    dax::try_map_sync(file).map_err(|error| format!("MAP_SYNC does not work here ({error})"))?;
    if order::can_flush() {
        return Ok(());
    }
    Err("this processor has no flush instruction".to_owned())
}
