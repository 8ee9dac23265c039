//! Long keys whose rests are damaged, and damaged short keys.
//!
//! Of a short key a leaf has the tag. If a record is at a place with this tag, and its key has another tag, the key
//! is not the one that was written: a read that looks for a key with the tag and does not find it reports the
//! damage, and not absence; a write that does not depend on the old record takes its place, if the record is sound
//! with the key of the write in place of its own (otherwise the record may be that of any key with the tag, and the
//! write takes a place of its own); an iteration shows all others, and reports the damage last; a scan reports it
//! when it comes to the key, when its search for the beginning meets the key, and when it sorts the leaf. One damaged key in 256 still has the same tag. Therefore a key that is not found among
//! records of its tag, one of which fails its checksum, is answered with that damage where reads are
//! [checked](coreplane_record::Options::check_reads). Otherwise reads do not notice it; the scrub and `verify`,
//! which check every record against its checksum, report it.
//!
//! A rewritten leaf has no record of a damaged short key: its tag would be computed from the damaged bytes, and be
//! that of another key. The successors are in [doubt](crate::tree::doubt) of all keys that they lack, until a peer
//! has settled that; in a store by itself such reads fail from then on.
//!
//! Of a long key a leaf still has the prefix, the length and the checksum. That is enough to recognize it when a
//! caller asks for it, and so are the prefix, the length and the rest if the checksum is damaged: a read reports
//! that it is damaged, and a write that does not depend on the old record takes its place, with a new rest. For that
//! the leaf is rewritten without the old field, as for a batch: two fields of one key would be two keys.
//!
//! The place of a damaged key among the keys with the same prefix is unknown. It is sorted before all of them; a
//! leaf is never cut between them, since the key could then be looked for in another leaf than it is in; and a scan
//! that would show any of them reports damage. An order from before the damage is no longer valid: a scan sorts
//! such keys by their bytes as it reads them. An iteration shows all others, and reports the damage last. A matrix,
//! whose other devices have the same records, asks for these keys
//! ([`Reader::damaged_keys_since`](crate::read::Reader::damaged_keys_since)).

use crate::volume::Volume;
use crate::volume::keys::{Parts, crc_of, long_len, prefix_len};
use coreplane_engine::{Error, Result};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;

/// The result of comparing a field with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    No,
    Yes,
    /// It does, and its rest is damaged.
    Damaged,
}

pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
}

impl Volume {
    /// The error of an operation that needs a damaged key.
    #[cold]
    pub(crate) fn damaged_key(&self, guard: &Guard, offset: u64, field: &[u8]) -> Error {
        let why = self.is_long(field).then(|| self.parts(guard, field, true).err()).flatten();
        let what = why.map_or_else(
            || "a damaged key or record".to_owned(),
            |why| format!("a long key whose rest is damaged: {why}"),
        );
        Error::Corrupt { offset, what }
    }

    /// Compares a field with a long key.
    ///
    /// # Errors
    /// As [`Volume::parts`], but for damage.
    #[cold]
    pub(crate) fn match_long(&self, guard: &Guard, field: &[u8], key: &[u8]) -> Result<Match> {
        let field_max = self.field_max();
        let prefix_len = prefix_len(field_max);
        if field.len() != field_max {
            return Ok(Match::No);
        }
        // A damaged rest may read as another key: the checksum of this one decides.
        let has_crc = crc_of(field) == crc32c_append(0, key);
        if field[..prefix_len] != key[..prefix_len] || long_len(field, field_max) != key.len() {
            return Ok(if has_crc { Match::Damaged } else { Match::No });
        }
        match self.parts(guard, field, false) {
            Ok(parts) if parts.cmp_key(key).is_eq() => {
                return Ok(if has_crc { Match::Yes } else { Match::Damaged });
            }
            Ok(_) if !has_crc => return Ok(Match::No),
            Err(error) if !has_crc && is_damage(&error) => return Ok(Match::No),
            // It should be the same key, unless the checksums of the rest show that it is another.
            Ok(_) => {}
            Err(error) if is_damage(&error) => return Ok(Match::Damaged),
            Err(error) => return Err(error),
        }
        match self.parts(guard, field, true) {
            Ok(_) => Ok(Match::No),
            Err(error) if is_damage(&error) => Ok(Match::Damaged),
            Err(error) => Err(error),
        }
    }

    /// The key that a field stands for, or its prefix alone if its rest is damaged; and whether it is.
    ///
    /// # Errors
    /// As [`Volume::parts`], but for damage.
    pub(crate) fn parts_or_prefix<'g>(
        &'g self,
        guard: &'g Guard,
        field: &'g [u8],
        checked: bool,
    ) -> Result<(Parts<'g>, bool)> {
        match self.parts(guard, field, checked) {
            Err(error) if is_damage(&error) => Ok((Parts::of(self.prefix_of(field)), true)),
            parts => Ok((parts?, false)),
        }
    }

    /// The prefix of a key, or of its field: as much as a field has of a long key.
    pub(crate) fn prefix_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        &key[..key.len().min(prefix_len(self.field_max()))]
    }
}
