//! Times: the first one, and the distance to each next one.

use super::bytes::{Bytes, number_length, push_number, unzigzag, zigzag};
use super::pcodec;
use pco::ModeSpec;

/// `pco` is tried if another form has at least so many bytes: about the minimum of `pco`.
const PCO_FROM: usize = 40;

// media-format: begin pool
/// The first time, and the interval.
const CONSTANT: u8 = 0;
/// The first time, the unit, the first distance, and the change from each distance to the next.
const DELTAS: u8 = 1;
/// The first time, the unit, and the distances by `pco`.
const PCO: u8 = 2;

/// Appends ascending times, none twice.
pub(super) fn encode(times: &[i64], out: &mut Vec<u8>) {
    let Some(first) = times.first() else { return };
    let distances = times.iter().zip(times.iter().skip(1));
    let mut distances: Vec<u64> =
        distances.map(|(a, b)| b.wrapping_sub(*a).cast_unsigned()).collect();
    let start = out.len();
    out.push(CONSTANT);
    out.extend_from_slice(&first.to_le_bytes());
    let interval = distances.first().copied().unwrap_or_default();
    if distances.iter().all(|distance| *distance == interval) {
        push_number(out, interval);
        return;
    }
    let unit = distances.iter().copied().fold(0, divisor).max(1);
    if unit > 1 {
        for distance in &mut distances {
            *distance /= unit;
        }
    }
    push_number(out, unit);
    let length: usize = changes(&distances).map(number_length).sum();
    let is_pco =
        length >= PCO_FROM && pcodec::push(out, &distances, &ModeSpec::Classic, &[0, 1], length);
    if !is_pco {
        changes(&distances).for_each(|change| push_number(out, change));
    }
    if let Some(form) = out.get_mut(start) {
        *form = if is_pco { PCO } else { DELTAS };
    }
}

/// The first distance, and the change from each distance to the next.
fn changes(distances: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let first = distances.first().copied();
    let others = distances.iter().zip(distances.iter().skip(1));
    first.into_iter().chain(others.map(|(a, b)| zigzag(b.wrapping_sub(*a).cast_signed())))
}

/// The greatest number that divides both.
fn divisor(mut a: u64, mut b: u64) -> u64 {
    while a > 1 && b != 0 {
        (a, b) = (b, a % b);
    }
    if a == 0 { b } else { a }
}

/// The times that [`encode`] has written; none if the bytes are not exactly `count` ascending times.
pub(super) fn decode(bytes: &[u8], count: usize) -> Option<Vec<i64>> {
    let mut bytes = Bytes(bytes);
    let form = bytes.byte()?;
    let mut time = bytes.word()?.cast_signed();
    let unit = bytes.number()?;
    let mut times = Vec::with_capacity(count);
    times.push(time);
    let others = count.checked_sub(1)?;
    let mut push = |distance: u64| {
        let distance = distance.checked_mul(unit).filter(|distance| *distance > 0)?;
        time = time.checked_add_unsigned(distance)?;
        times.push(time);
        Some(())
    };
    match form {
        CONSTANT => (0..others).try_for_each(|_| push(1))?,
        DELTAS => {
            let mut distance = bytes.number()?;
            push(distance)?;
            for _ in 1..others {
                distance = distance.wrapping_add(unzigzag(bytes.number()?).cast_unsigned());
                push(distance)?;
            }
        }
        PCO => {
            let distances = pcodec::numbers::<u64>(bytes.0, others)?;
            distances.into_iter().try_for_each(push)?;
            bytes = Bytes(&[]);
        }
        _ => return None,
    }
    (bytes.0.is_empty() && times.len() == count).then_some(times)
}
// media-format: end
