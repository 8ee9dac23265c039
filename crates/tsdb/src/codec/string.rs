//! Strings.
//!
//! A dictionary has each string once, and the column is a list of places in it. A dictionary is given up as soon as
//! more than half of the strings are new.

use super::bits;
use super::bytes::{Bytes, push_number};
use crate::value::STRING_MAX;
use hashbrown::HashMap;
use std::sync::Arc;

/// Compression is tried from this many bytes on.
const SNAP_FROM: usize = 64;

// media-format: begin pool
/// The strings, one after the other: their lengths, then their bytes.
const PLAIN: u8 = 0;
/// The number of strings in the dictionary, the strings as in [`PLAIN`], and a place for each string of the column.
const DICTIONARY: u8 = 1;
/// Added to either form: the bytes that follow are compressed by `snap`.
const COMPRESSED: u8 = 2;

/// The maximum expansion by `snap`, in bytes for each compressed byte: a copy of 64 bytes takes three.
const EXPANSION_MAX: usize = 22;

/// Appends strings.
pub(super) fn encode(strings: &[Arc<str>], out: &mut Vec<u8>) {
    let mut body = Vec::new();
    let form = if let Some((entries, places)) = dictionary(strings) {
        push_number(&mut body, entries.len() as u64);
        push(&mut body, entries.iter().copied());
        bits::push(&mut body, places.into_iter(), place_width(entries.len()));
        DICTIONARY
    } else {
        push(&mut body, strings.iter().map(|string| &**string));
        PLAIN
    };
    if body.len() >= SNAP_FROM
        && let Ok(compressed) = snap::raw::Encoder::new().compress_vec(&body)
        && compressed.len() < body.len() - body.len() / 8
    {
        out.push(form + COMPRESSED);
        out.extend_from_slice(&compressed);
    } else {
        out.push(form);
        out.extend_from_slice(&body);
    }
}

/// Each string once, in order of first occurrence, and the place of each string of the column; none if too many are
/// different.
fn dictionary(strings: &[Arc<str>]) -> Option<(Vec<&str>, Vec<u64>)> {
    let mut known = HashMap::new();
    let mut entries = Vec::new();
    let mut places = Vec::with_capacity(strings.len());
    for string in strings {
        let place = *known.entry(&**string).or_insert_with(|| {
            entries.push(&**string);
            entries.len() as u64 - 1
        });
        if entries.len() > strings.len().div_ceil(2) {
            return None;
        }
        places.push(place);
    }
    Some((entries, places))
}

fn push<'s>(out: &mut Vec<u8>, strings: impl Iterator<Item = &'s str> + Clone) {
    strings.clone().for_each(|string| push_number(out, string.len() as u64));
    strings.for_each(|string| out.extend_from_slice(string.as_bytes()));
}

/// The number of bits of a place in a dictionary.
fn place_width(entries: usize) -> u32 {
    bits::width((entries as u64).saturating_sub(1))
}

/// The strings that [`encode`] has written; none if the bytes are not exactly `count` strings.
pub(super) fn decode(bytes: &[u8], count: usize) -> Option<Vec<Arc<str>>> {
    let mut bytes = Bytes(bytes);
    let mut form = bytes.byte()?;
    let body;
    if form >= COMPRESSED {
        form -= COMPRESSED;
        if !is_length_credible(bytes.0) {
            return None;
        }
        body = snap::raw::Decoder::new().decompress_vec(bytes.0).ok()?;
        bytes = Bytes(&body);
    }
    match form {
        PLAIN => {
            let strings = take(&mut bytes, count)?;
            bytes.0.is_empty().then_some(strings)
        }
        DICTIONARY => {
            let entries = usize::try_from(bytes.number()?).ok().filter(|it| *it <= count)?;
            let entries = take(&mut bytes, entries)?;
            let places = bits::numbers(bytes.0, count, place_width(entries.len()))?;
            places.map(|place| entries.get(usize::try_from(place).ok()?).cloned()).collect()
        }
        _ => None,
    }
}

/// True if the length that compressed bytes claim is possible.
fn is_length_credible(compressed: &[u8]) -> bool {
    let length_max = compressed.len().saturating_mul(EXPANSION_MAX);
    snap::raw::decompress_len(compressed).is_ok_and(|length| length <= length_max)
}

/// The next `count` strings that [`push`] has written.
fn take(bytes: &mut Bytes<'_>, count: usize) -> Option<Vec<Arc<str>>> {
    let lengths: Option<Vec<usize>> = (0..count)
        .map(|_| usize::try_from(bytes.number()?).ok().filter(|length| *length <= STRING_MAX))
        .collect();
    let string = |length| Some(std::str::from_utf8(bytes.take(length)?).ok()?.into());
    lengths?.into_iter().map(string).collect()
}
// media-format: end

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_the_bytes_cannot_have_is_not_believed() {
        let longest = snap::raw::Encoder::new().compress_vec(&[7; 60_000]).unwrap();
        assert!(is_length_credible(&longest));
        // The bytes claim four gigabytes.
        let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        assert!(!is_length_credible(&claim));
        assert_eq!(decode(&[&[COMPRESSED][..], &claim].concat(), 10), None);
    }
}
