//! Floats.
//!
//! Most floats are rounded decimals, that is, whole numbers divided by a power of ten. The encoder does not guess
//! this but tries it: the division must give each float of the column back, bit by bit. A column with a negative
//! zero fails this test and is left to `pco`.

use super::bytes::Bytes;
use super::{pcodec, whole};
use pco::ModeSpec;

// media-format: begin pool
/// All floats are this one.
const CONSTANT: u8 = 0;
/// Eight bytes each.
const PLAIN: u8 = 1;
/// The exponent of a power of ten, and whole numbers to divide by that power.
const DECIMAL: u8 = 2;
/// By `pco`.
const PCO: u8 = 3;

/// Powers of ten, by their exponents.
const POWERS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Whole numbers up to this one are exact as floats.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Appends floats.
pub(super) fn encode(floats: &[f64], out: &mut Vec<u8>) {
    let Some(first) = floats.first() else { return };
    if floats.iter().all(|float| float.to_bits() == first.to_bits()) {
        out.push(CONSTANT);
        out.extend_from_slice(&first.to_le_bytes());
        return;
    }
    if let Some((exponent, numbers)) = decimals(floats) {
        out.push(DECIMAL);
        out.push(exponent as u8);
        whole::encode(&numbers, out);
        return;
    }
    out.push(PCO);
    if pcodec::push(out, floats, &ModeSpec::Auto, &[0, 1], floats.len() * 8) {
        return;
    }
    out.pop();
    out.push(PLAIN);
    floats.iter().for_each(|float| out.extend_from_slice(&float.to_le_bytes()));
}

/// The least exponent of ten whose power divides whole numbers to give these floats, and those numbers; none if
/// there is none.
fn decimals(floats: &[f64]) -> Option<(usize, Vec<i64>)> {
    let mut numbers = Vec::with_capacity(floats.len());
    let mut exponent = 0;
    for float in floats {
        // A float that needs more digits causes all floats before it to be scaled anew.
        let (found, number) = decimal(*float, exponent)?;
        if found > exponent {
            exponent = found;
            let done = floats.iter().take(numbers.len());
            for (number, float) in numbers.iter_mut().zip(done) {
                *number = scaled(*float, exponent)?;
            }
        }
        numbers.push(number);
    }
    Some((exponent, numbers))
}

/// The least exponent, `least` or greater, with which this float is a decimal, and its whole number.
fn decimal(float: f64, least: usize) -> Option<(usize, i64)> {
    (least..POWERS.len()).find_map(|exponent| Some((exponent, scaled(float, exponent)?)))
}

/// The whole number that gives the float when divided by the power of ten, if there is one.
fn scaled(float: f64, exponent: usize) -> Option<i64> {
    let power = POWERS.get(exponent)?;
    let number = (float * power).round();
    if number.abs() > EXACT_MAX {
        return None;
    }
    let number = number as i64;
    (divided(number, power).to_bits() == float.to_bits()).then_some(number)
}

fn divided(number: i64, power: &f64) -> f64 {
    number as f64 / power
}

/// The floats that [`encode`] has written; none if the bytes are not exactly `count` floats.
pub(super) fn decode(bytes: &[u8], count: usize) -> Option<Vec<f64>> {
    let mut bytes = Bytes(bytes);
    match bytes.byte()? {
        CONSTANT => {
            let float = f64::from_bits(bytes.word()?);
            bytes.0.is_empty().then(|| vec![float; count])
        }
        PLAIN => Some(bytes.words(count)?.map(f64::from_bits).collect()),
        DECIMAL => {
            let power = POWERS.get(usize::from(bytes.byte()?))?;
            let numbers = whole::decode(bytes.0, count)?;
            Some(numbers.into_iter().map(|number| divided(number, power)).collect())
        }
        PCO => pcodec::numbers(bytes.0, count),
        _ => None,
    }
}
// media-format: end
