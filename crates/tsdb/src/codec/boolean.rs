//! Booleans.

use super::bits;
use super::bytes::{Bytes, number_length, push_number};

// media-format: begin pool
/// All booleans are false, or true.
const CONSTANT: [u8; 2] = [0, 1];
/// One bit for each boolean.
const BITS: u8 = 2;
/// Lengths of runs; the first run is false, or true.
const RUNS: [u8; 2] = [3, 4];

/// Appends booleans.
pub(super) fn encode(booleans: &[bool], out: &mut Vec<u8>) {
    let Some(first) = booleans.first() else { return };
    let [constant, runs] = [CONSTANT, RUNS].map(|[no, yes]| if *first { yes } else { no });
    if booleans.iter().all(|boolean| boolean == first) {
        out.push(constant);
        return;
    }
    let lengths = || booleans.chunk_by(|a, b| a == b).map(|run| run.len() as u64);
    let size: usize = lengths().map(number_length).sum();
    if size < bits::length(booleans.len(), 1) {
        out.push(runs);
        lengths().for_each(|length| push_number(out, length));
    } else {
        out.push(BITS);
        bits::push(out, booleans.iter().map(|boolean| u64::from(*boolean)), 1);
    }
}

/// The booleans that [`encode`] has written; none if the bytes are not exactly `count` booleans.
pub(super) fn decode(bytes: &[u8], count: usize) -> Option<Vec<bool>> {
    let mut bytes = Bytes(bytes);
    let form = bytes.byte()?;
    if form == BITS {
        return Some(bits::numbers(bytes.0, count, 1)?.map(|bit| bit == 1).collect());
    }
    let mut booleans = Vec::with_capacity(count);
    if let Some(value) = CONSTANT.iter().position(|it| *it == form) {
        booleans.resize(count, value == 1);
    } else {
        let mut value = RUNS.iter().position(|it| *it == form)? == 1;
        while booleans.len() < count {
            let length = usize::try_from(bytes.number()?).ok()?;
            let end = booleans.len().checked_add(length)?;
            if length == 0 || end > count {
                return None;
            }
            booleans.resize(end, value);
            value = !value;
        }
    }
    bytes.0.is_empty().then_some(booleans)
}
// media-format: end
