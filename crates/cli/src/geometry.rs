//! The sizes of a pool that cannot be changed later.

use crate::arguments::NEW_POOL;
use crate::pool::with;
use crate::terms;
use clap::Args;
use coreplane::StoreConfig;

/// Sizes of a pool that is created.
#[derive(Debug, Args)]
pub(crate) struct Geometry {
    /// Bytes of a leaf of bptree in a pool that is created, for good: a power of two from 4KiB to 512KiB.
    /// 64 records and a fifth more should fit: 64KiB for records of 600 bytes [default: 16KiB]. Of a page of list
    /// and cow-tree, from 1KiB to 1MiB [default: 4KiB].
    #[arg(long, value_parser = terms::page_size, help_heading = NEW_POOL)]
    page_size: Option<u32>,
    /// Entries of a node of cow-tree at most in a pool that is created, for good: from 4 to 256. More of them make reads
    /// and scans of many keys faster, and writes larger [default: 7].
    #[arg(long, value_name = "ENTRIES", help_heading = NEW_POOL)]
    fan_out: Option<u32>,
}

impl Geometry {
    /// `geometry` of a map, with the sizes that were given.
    pub(crate) fn of_map(&self, geometry: coreplane_mvcc::Geometry) -> coreplane_mvcc::Geometry {
        coreplane_mvcc::Geometry {
            page_size: self.page_size.unwrap_or(geometry.page_size),
            fan_out: self.fan_out.unwrap_or(geometry.fan_out),
        }
    }

    /// `config` with the sizes that were given.
    pub(crate) fn of(&self, config: StoreConfig) -> StoreConfig {
        let config = with(config, self.page_size, StoreConfig::page_size);
        with(config, self.fan_out, StoreConfig::fan_out)
    }
}
