//! Keys on the command line and in the output: as text, or in hexadecimal.

use crate::arguments::Notation;
use crate::failure::{Failure, USAGE};
use crate::json;
use coreplane::Entry;
use serde_json::Value;

impl Notation {
    /// The bytes of a key that is given in this notation.
    pub(crate) fn key(self, given: &str) -> Result<Vec<u8>, Failure> {
        if !self.key_hex {
            return Ok(given.as_bytes().to_vec());
        }
        let refused = || format!("`{given}` is not hexadecimal: pairs of digits, such as 00ff");
        json::unhex(given).ok_or_else(|| Failure::new(USAGE, refused()))
    }

    /// The bytes of a bound, if one is given.
    pub(crate) fn bound(self, given: Option<&str>) -> Result<Option<Vec<u8>>, Failure> {
        given.map(|given| self.key(given)).transpose()
    }

    /// A key for a person.
    pub(crate) fn shown(self, key: &[u8]) -> String {
        if self.key_hex { json::hex(key) } else { key.escape_ascii().to_string() }
    }

    /// An entry as JSON.
    pub(crate) fn entry(self, entry: &Entry<'_>, keys_only: bool) -> Value {
        if self.key_hex {
            json::entry_in_hex(entry, keys_only)
        } else {
            json::entry(entry, keys_only)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_shown() {
        let (hex, text) = (Notation { key_hex: true }, Notation { key_hex: false });
        assert_eq!(hex.key("00fF").ok(), Some(vec![0, 255]));
        assert_eq!((hex.shown(&[0, 255]), text.shown(b"00ff")), ("00ff".into(), "00ff".into()));
        assert_eq!(text.key("00ff").ok(), Some(b"00ff".to_vec()));
        for wrong in ["0", "zz", "0x00", "+1"] {
            assert_eq!(hex.key(wrong).err().map(|it| it.code), Some(USAGE), "{wrong}");
        }
    }
}
