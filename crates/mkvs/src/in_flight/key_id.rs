//! What tells the keys of a stripe apart: a second hash, by a secret that is drawn when the matrix is opened.
//!
//! The first hash of a key is known to all, so a client can construct keys that share it. If these shared an entry, a
//! write of one that has come to all devices would end the entry of another, whose newest write some device lacks:
//! then readers would be sent to that device, and writes decided there. Of two keys in flight, whoever has chosen
//! them, one pair in 2^64 has one id.

use coreplane_pmem::mutant;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// A key, behind the hash by which its slot is found.
pub(crate) type Hashed<'a> = (u64, &'a [u8]);

/// The key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyId(pub(super) u64);

/// The secret, of as many bytes as XXH3 takes.
pub(super) struct Secret([u8; 192]);

impl Secret {
    pub(super) fn new() -> Self {
        Self(rand::random())
    }

    #[inline]
    pub(super) fn id_of(&self, (hash, key): Hashed<'_>) -> KeyId {
        let is_alike = mutant!("mkvs.entry.by_hash");
        KeyId(if is_alike { hash } else { xxh3_64_with_secret(key, &self.0) })
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

/// For tests: a key for each hash below 16, and for some others.
#[cfg(test)]
pub(super) fn keyed(hash: u64) -> Hashed<'static> {
    const ZEROES: &[u8] = &[0; 16];
    (hash, &ZEROES[..hash as usize % 16])
}

#[cfg(test)]
mod tests {
    use super::super::{InFlight, Torn};
    use super::*;

    /// Two keys with one hash.
    const ONE: Hashed<'_> = (7, b"one");
    const OTHER: Hashed<'_> = (7, b"other");

    #[test]
    fn a_finished_write_ends_no_entry_of_a_key_with_the_same_hash() {
        let in_flight = InFlight::new();
        in_flight.begin(ONE, 1, 1, false);
        in_flight.done(ONE, 1, 0b10, 0b11);
        in_flight.begin(OTHER, 2, 1, false);
        assert_eq!((in_flight.current(ONE, 0b11), in_flight.current(OTHER, 0b11)), (0b10, 0b10));
        in_flight.done(OTHER, 2, 0b11, 0b11);
        assert_eq!((in_flight.current(ONE, 0b11), in_flight.current(OTHER, 0b11)), (0b10, 0b11));
        // A device that has failed to make it is noted, however many other keys have that hash.
        in_flight.give_up(0, ONE, 1, 0);
        in_flight.begin(OTHER, 3, 1, false);
        in_flight.done(OTHER, 3, 0b11, 0b11);
        assert_eq!((in_flight.reached(ONE, 0b11), in_flight.reached(OTHER, 0b11)), (0b10, 0b11));
        assert_eq!(in_flight.sure_of(0, 0b11, |key| key == ONE.1), 0b10);
        in_flight.begin(OTHER, 4, 1, false);
        in_flight.fail(0, OTHER, Torn { made: 0b10, asked: 1, old: None, known: 0 });
        let doubts = in_flight.indeterminate().into_iter().map(|(_, doubt, _)| doubt.key);
        assert_eq!(doubts.collect::<Vec<_>>(), [ONE.1, OTHER.1]);
    }

    #[test]
    fn a_batch_that_is_refused_leaves_what_was_before_of_both() {
        let in_flight = InFlight::new();
        let both = [ONE, OTHER];
        both.into_iter().for_each(|key| in_flight.begin(key, 1, 1, false));
        both.into_iter().for_each(|key| in_flight.done(key, 1, 0b10, 0b11));
        both.into_iter().for_each(|key| in_flight.begin(key, 2, 1, false));
        both.into_iter().for_each(|key| in_flight.refuse(key, 0b11));
        assert_eq!(both.map(|key| in_flight.current(key, 0b11)), [0b10; 2]);
    }
}
