//! What is done.

use std::str::FromStr;

/// A workload: YCSB's six, loading, and what the floors are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Puts every record once, in order of their numbers (scattered keys).
    Load,
    /// Half gets, half overwrites.
    A,
    /// 95 % gets, 5 % overwrites.
    B,
    /// Gets.
    C,
    /// 95 % gets of the latest records, 5 % inserts.
    D,
    /// 95 % scans of up to 100 records, 5 % inserts.
    E,
    /// Half gets, half reads of a record followed by its overwrite.
    F,
    /// Gets in batches of [`Workload::BATCH`].
    Mget,
    /// Overwrites.
    Overwrite,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Overwrite,
    Insert,
    ReadModifyWrite,
    Scan,
}

impl Workload {
    /// Records of one `mget`.
    pub const BATCH: usize = 16;

    /// The longest scan of `e`, in records.
    pub const SCAN_MAX: u64 = 100;

    /// Its name, as in `--workload` and in the reports' `phase`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
            Self::Mget => "mget",
            Self::Overwrite => "overwrite",
        }
    }

    /// True if it inserts records beyond those that were loaded.
    pub fn inserts(self) -> bool {
        matches!(self, Self::D | Self::E)
    }

    /// The operation for a draw from 0 to 99.
    #[inline]
    pub(crate) fn operation(self, draw: u64) -> Operation {
        match self {
            Self::A if draw < 50 => Operation::Overwrite,
            Self::B if draw < 5 => Operation::Overwrite,
            Self::D | Self::E if draw < 5 => Operation::Insert,
            Self::E => Operation::Scan,
            Self::F if draw < 50 => Operation::ReadModifyWrite,
            Self::Load => Operation::Insert,
            Self::Overwrite => Operation::Overwrite,
            _ => Operation::Get,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [
            Self::Load,
            Self::A,
            Self::B,
            Self::C,
            Self::D,
            Self::E,
            Self::F,
            Self::Mget,
            Self::Overwrite,
        ];
        all.into_iter()
            .find(|workload| workload.name() == text)
            .ok_or_else(|| format!("`{text}` is none of load, a, b, c, d, e, f, mget, overwrite"))
    }
}
