//! Long keys whose rests are damaged, and short keys that are.
//!
//! Of a short key a leaf has its tag. Where a record has this tag, and its key another, that is not the
//! key that was written: whoever looks for a key with the tag and does not find it is told of the damage,
//! and not that it is not there; a write that does not ask what was there takes its place; an iteration
//! shows all others, and says so last. One in 256 has the same tag with the damage: a key that is not found
//! among records of its tag, one of which is not what its checksum says, is answered with that damage where
//! reads are [checked](coreplane_record::Options::check_reads). Else it is not known to them; the scrub and
//! `verify`, which hold every record against its checksum, tell of it.
//!
//! A leaf that is written anew has no record of a damaged short key: its tag would be made of the damaged bytes, and
//! be that of another key. The leaves in its place are in [doubt](crate::tree::doubt) of all keys that they have not, until
//! a peer has settled that; in a store by itself such reads fail from then on.
//!
//! Of a long key a leaf still has the prefix, the length and the checksum. That is enough to know it
//! again when somebody asks for it: a read is told that it is damaged, and a write that does not ask what
//! was there takes its place, with a rest of its own. For that the leaf is written anew without the old
//! field, as for a batch: two fields of one key would be two keys.
//!
//! Where it is among the keys that begin like it nobody knows. It is sorted before all of them; a leaf is
//! never cut between them, lest the key be looked for in another leaf than it is in; and a scan that
//! would show any of them says that there is damage. An order from before the damage is none any more: a
//! scan sorts such keys by what it sees of them itself. An iteration shows all others, and says so last.
//! A matrix asks which they are ([`Reader::damaged_keys_since`](crate::read::Reader::damaged_keys_since)), and whose peers have the same.

use crate::volume::Volume;
use crate::volume::keys::{Parts, crc_of, long_len, prefix_len};
use coreplane_engine::{Error, Result};
use coreplane_pmem::checksum::crc32c_append;
use coreplane_pmem::epoch::Guard;

/// Whether a field stands for a key.
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
    /// The error of whoever needs a key that is damaged.
    #[cold]
    pub(crate) fn damaged_key(&self, guard: &Guard, offset: u64, field: &[u8]) -> Error {
        if !self.is_long(field) {
            return Error::Corrupt { offset, what: "a damaged key".to_owned() };
        }
        let why =
            self.parts(guard, field, true).err().map_or(String::new(), |it| format!(": {it}"));
        let what = format!("a long key whose rest is damaged{why}");
        Error::Corrupt { offset, what }
    }

    /// Whether a field stands for a long key.
    ///
    /// # Errors
    /// As [`Volume::parts`], but for damage.
    #[cold]
    pub(crate) fn match_long(&self, guard: &Guard, field: &[u8], key: &[u8]) -> Result<Match> {
        let field_max = self.field_max();
        let prefix_len = prefix_len(field_max);
        // What a damaged rest says may be another key: this one's checksum tells.
        if field.len() != field_max || crc_of(field) != crc32c_append(0, key) {
            return Ok(Match::No);
        }
        if field[..prefix_len] != key[..prefix_len] || long_len(field, field_max) != key.len() {
            return Ok(Match::Damaged);
        }
        match self.parts(guard, field, false) {
            Ok(parts) if parts.cmp_key(key).is_eq() => return Ok(Match::Yes),
            // It should be the same, unless its checksums say that it is another.
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

    /// The key that a field stands for, its prefix alone if its rest is damaged; and whether it is.
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

    /// What a key, or its field, begins with: as much as a field has of a long one.
    pub(crate) fn prefix_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        &key[..key.len().min(prefix_len(self.field_max()))]
    }
}
