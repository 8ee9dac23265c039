//! Positions of devices, how many of them a write waits for, and keys that are the matrix's own.

use crate::shape::parse;
use serde::{Deserialize, Serialize};

/// Devices of a group at most.
pub const DEVICES_MAX: usize = 8;

/// Groups of a matrix at most.
pub const GROUPS_MAX: u16 = 256;

/// A set of devices of a group, one bit each.
pub(crate) type Devices = u32;

/// The prefix of the matrix's own keys.
pub const RESERVED: &[u8] = b"\0coreplane matrix\0";

/// True for a key that is the matrix's own.
#[inline]
pub fn is_reserved(key: &[u8]) -> bool {
    key.first() == Some(&0) && key.starts_with(RESERVED)
}

/// How many copies a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// One: the others follow.
    First,
    /// More than half of the current members.
    Majority,
    /// All current members.
    #[default]
    All,
}

impl Ack {
    /// Copies that a write waits for, of so many current members.
    pub(crate) fn copies(self, members: u32) -> u32 {
        match self {
            Self::First => members.min(1),
            Self::Majority if members > 0 => members / 2 + 1,
            Self::Majority | Self::All => members,
        }
    }
}

impl std::str::FromStr for Ack {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        parse(text, &[(Self::First, "first"), (Self::Majority, "majority"), (Self::All, "all")])
    }
}

/// The place of a device.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Position {
    /// The group.
    pub group: u16,
    /// The device in it.
    pub device: u8,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("g{}d{}", self.group, self.device))
    }
}

/// The inverse of `Display`.
impl std::str::FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let place = || {
            let (group, device) = text.strip_prefix('g')?.split_once('d')?;
            Some(Self { group: group.parse().ok()?, device: device.parse().ok()? })
        };
        place().ok_or_else(|| format!("`{text}` is no place of a matrix; g0d1 is one"))
    }
}
