//! The three prototypes of the paper, and the paths of reads.

use crate::shape::parse;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which of the paper's prototypes a matrix is. In all of them writes are made in the same way, and the same
/// devices may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Prototype {
    /// Groups whose devices compete: a read for which one device is late goes to another too.
    #[default]
    #[serde(rename = "mkvs")]
    Mkvs,
    /// Groups without competition: one device of a group serves all of its reads, which is the primary as long as
    /// it is there.
    #[serde(rename = "mkvs-gekv")]
    Gekv,
    /// One device; no filter is asked whether it has a key.
    #[serde(rename = "mkvs-ekv")]
    Ekv,
}

impl Prototype {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::Mkvs, "mkvs"), (Self::Gekv, "mkvs-gekv"), (Self::Ekv, "mkvs-ekv")];

    /// Its name, as in `--prototype`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Prototype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Prototype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &Self::NAMES)
    }
}

/// The path of lookups to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadPath {
    /// As `Inline` while the device is steady; as `Rings` while its reads meet stalls, where
    /// devices compete.
    #[default]
    Auto,
    /// The caller's thread runs the engine. This is fastest, but a caller that meets a stall cannot ask another
    /// device.
    Inline,
    /// Through the device's ring to its processor.
    Rings,
}

impl FromStr for ReadPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &[(Self::Auto, "auto"), (Self::Inline, "inline"), (Self::Rings, "rings")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which() {
        for (prototype, name) in Prototype::NAMES {
            assert_eq!(name.parse(), Ok(prototype));
            assert_eq!(prototype.to_string(), name);
            let text = serde_json::to_string(&prototype).unwrap();
            assert_eq!(text, format!("\"{name}\""), "the record has it by its name");
        }
        assert!("mkvs-".parse::<Prototype>().is_err());
    }

    #[test]
    fn ways_are_named() {
        let reads = ["auto", "inline", "rings"].map(str::parse);
        assert_eq!(reads, [ReadPath::Auto, ReadPath::Inline, ReadPath::Rings].map(Ok));
        assert!("ring".parse::<ReadPath>().is_err());
    }
}
