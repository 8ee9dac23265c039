//! The parameters of a pool, which never change.

use coreplane_engine::{Error, Result};
use coreplane_pmem::Pool;
use std::ops::RangeInclusive;
use std::path::Path;

/// Entries that a node may be allowed to have.
const FAN_OUTS: RangeInclusive<u32> = 4..=256;

/// The sizes that are fixed when a pool is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page: a power of two from 1 KiB to 1 MiB.
    pub page_size: u32,
    /// The most entries of a node of a tree, from 4 to 256. A higher limit makes reads and scans of many keys faster,
    /// and each commit larger.
    pub fan_out: u32,
}

impl Default for Geometry {
    /// Pages of 4 KiB; 7 entries, the most that a node of NVM-Raft has (section 3.2).
    fn default() -> Self {
        Self { page_size: 4096, fan_out: 7 }
    }
}

impl Geometry {
    /// True if the pool of a map holds the log of a replica, as far as its parameters can be read.
    pub fn has_log_at(path: &Path) -> bool {
        Pool::parameters_at(path)
            .is_ok_and(|parameters| parameters.first() == Use::Log.parameters(0).first())
    }

    /// The most entries of a node of a pool with these parameters, if they state it.
    pub fn fan_out_of(parameters: [u64; 8]) -> Option<u32> {
        u32::try_from(parameters[1]).ok().filter(|it| FAN_OUTS.contains(it))
    }

    /// # Errors
    /// [`Error::Unusable`] if no node can have so many entries.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { fan_out, .. } = self;
        if FAN_OUTS.contains(fan_out) {
            return Ok(());
        }
        let (least, most) = FAN_OUTS.into_inner();
        Err(Error::Unusable(format!("a node has {least} to {most} entries at most, not {fan_out}")))
    }
}

/// The use of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// By an engine alone.
    Engine,
    /// By a log, whose entries are pending before they are applied.
    Log,
}

impl Use {
    // media-format: begin pool
    /// The parameters of a pool with nodes of at most so many entries.
    pub(crate) fn parameters(self, fan_out: u32) -> [u64; 8] {
        [u64::from(self == Self::Log), u64::from(fan_out), 0, 0, 0, 0, 0, 0]
    }
    // media-format: end

    /// The use of a pool, and the most entries of a node.
    ///
    /// # Errors
    /// [`Error::Unusable`] if its parameters are unknown.
    pub(crate) fn of(pool: &Pool) -> Result<(Self, u32)> {
        let parameters = pool.parameters();
        let unknown = || Error::Unusable(format!("a pool of a later version: {parameters:?}"));
        let [its_use, _, 0, 0, 0, 0, 0, 0] = parameters else { return Err(unknown()) };
        let its_use = match its_use {
            0 => Self::Engine,
            1 => Self::Log,
            _ => return Err(unknown()),
        };
        Ok((its_use, Geometry::fan_out_of(parameters).ok_or_else(unknown)?))
    }

    /// # Errors
    /// [`Error::Unusable`] if a pool has another use.
    pub(crate) fn expect(self, pool: &Pool) -> Result<()> {
        match (self, Self::of(pool)?.0) {
            (Self::Engine, Self::Log) => Err(Error::Unusable(
                "the pool has the log of a replica, and is opened as one".to_owned(),
            )),
            (Self::Log, Self::Engine) => Err(Error::Unusable(
                "the pool is a store of its own, and has no log of a replica".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}
