//! Whole numbers. Unsigned numbers are passed as signed ones with the same bits.

use super::bytes::{Bytes, number_length, push_number, unzigzag, zigzag};
use super::{bits, pcodec};
use pco::ModeSpec;

/// `pco` is tried if another form has at least so many bytes: about the minimum of `pco`.
const PCO_FROM: usize = 40;

// media-format: begin pool
/// All numbers are this one.
const CONSTANT: u8 = 0;
/// Eight bytes each.
const PLAIN: u8 = 1;
/// The least number, the width, and the distance of each number above the least one.
const ABOVE: u8 = 2;
/// The first number, the least difference, the width, and the distance of each difference above the least one.
const DIFFERENCES: u8 = 3;
/// By `pco`.
const PCO: u8 = 4;

/// Appends numbers.
pub(super) fn encode(numbers: &[i64], out: &mut Vec<u8>) {
    let Some(first) = numbers.first().copied() else { return };
    let least = numbers.iter().copied().min().unwrap_or(first);
    let greatest = numbers.iter().copied().max().unwrap_or(first);
    if least == greatest {
        out.push(CONSTANT);
        push_number(out, zigzag(first));
        return;
    }
    let slope = differences(numbers).min().unwrap_or_default();
    let steepest = differences(numbers).max().unwrap_or_default();
    let above = bits::width(greatest.wrapping_sub(least).cast_unsigned());
    let rise = bits::width(steepest.wrapping_sub(slope).cast_unsigned());
    let sizes = [
        (PLAIN, numbers.len() * 8),
        (ABOVE, number_length(zigzag(least)) + 1 + bits::length(numbers.len(), above)),
        (
            DIFFERENCES,
            number_length(zigzag(first))
                + number_length(zigzag(slope))
                + 1
                + bits::length(numbers.len() - 1, rise),
        ),
    ];
    let (form, size) = sizes.into_iter().min_by_key(|(_, size)| *size).unwrap_or((PLAIN, 0));
    out.push(PCO);
    if size >= PCO_FROM && pcodec::push(out, numbers, &ModeSpec::Classic, &[0, 1], size) {
        return;
    }
    out.pop();
    out.push(form);
    match form {
        ABOVE => {
            push_number(out, zigzag(least));
            out.push(above as u8);
            let offsets = numbers.iter().map(|number| number.wrapping_sub(least).cast_unsigned());
            bits::push(out, offsets, above);
        }
        DIFFERENCES => {
            push_number(out, zigzag(first));
            push_number(out, zigzag(slope));
            out.push(rise as u8);
            let offsets = differences(numbers).map(|it| it.wrapping_sub(slope).cast_unsigned());
            bits::push(out, offsets, rise);
        }
        _ => numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes())),
    }
}

fn differences(numbers: &[i64]) -> impl Iterator<Item = i64> + '_ {
    numbers.iter().zip(numbers.iter().skip(1)).map(|(a, b)| b.wrapping_sub(*a))
}

/// The numbers that [`encode`] has written; none if the bytes are not exactly `count` numbers.
pub(super) fn decode(bytes: &[u8], count: usize) -> Option<Vec<i64>> {
    let mut bytes = Bytes(bytes);
    match bytes.byte()? {
        CONSTANT => {
            let number = unzigzag(bytes.number()?);
            bytes.0.is_empty().then(|| vec![number; count])
        }
        PLAIN => Some(bytes.words(count)?.map(u64::cast_signed).collect()),
        ABOVE => {
            let least = unzigzag(bytes.number()?);
            let width = bytes.byte()?;
            let offsets = bits::numbers(bytes.0, count, width.into())?;
            Some(offsets.map(|offset| least.wrapping_add(offset.cast_signed())).collect())
        }
        DIFFERENCES => {
            let mut number = unzigzag(bytes.number()?);
            let slope = unzigzag(bytes.number()?);
            let width = bytes.byte()?;
            let offsets = bits::numbers(bytes.0, count.checked_sub(1)?, width.into())?;
            let mut numbers = Vec::with_capacity(count);
            numbers.push(number);
            numbers.extend(offsets.map(|offset| {
                number = number.wrapping_add(slope).wrapping_add(offset.cast_signed());
                number
            }));
            Some(numbers)
        }
        PCO => pcodec::numbers(bytes.0, count),
        _ => None,
    }
}
// media-format: end
