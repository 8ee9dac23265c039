//! Numbers by `pco`, which takes differences, finds bins of numbers, and stores the bin and the offset in it for
//! each number.
//!
//! Two features of `pco` are not used, since their allocations follow lengths that the bytes claim: dictionaries,
//! and windows of earlier numbers to look back at. Bytes with either of them are refused.

use pco::data_types::Number;
use pco::errors::PcoResult;
use pco::metadata::DeltaEncoding;
use pco::wrapped::{FileCompressor, FileDecompressor};
use pco::{ChunkConfig, DeltaSpec, ModeSpec};

/// The effort with which `pco` looks for bins, of 12. On walks of integers and of decimals, level 8 saves less than
/// 2 % of the bytes of level 4, and takes up to 1.7 times as long.
const LEVEL: usize = 4;

// media-format: begin pool
/// The only version of `pco`'s format that is read.
const VERSION: u8 = 4;

/// `pco`'s modes below this one have no dictionary.
const MODE_DICTIONARY: u8 = 4;

/// Appends the numbers in the smallest of the forms that these orders of differences give. False, with nothing
/// appended, if that is not smaller than `limit` bytes.
pub(super) fn push<T: Number>(
    out: &mut Vec<u8>,
    numbers: &[T],
    mode: &ModeSpec,
    orders: &[usize],
    limit: usize,
) -> bool {
    let start = out.len();
    let mut best = limit;
    for order in orders {
        let delta = match order {
            0 => DeltaSpec::NoOp,
            order => DeltaSpec::TryConsecutive(*order),
        };
        let config = ChunkConfig::default()
            .with_compression_level(LEVEL)
            .with_mode_spec(mode.clone())
            .with_delta_spec(delta);
        let end = out.len();
        let is_better = compress(out, numbers, &config).is_ok() && out.len() - end < best;
        if is_better {
            best = out.len() - end;
            out.drain(start..end);
        } else {
            out.truncate(end);
        }
    }
    best < limit
}

fn compress<T: Number>(out: &mut Vec<u8>, numbers: &[T], config: &ChunkConfig) -> PcoResult<()> {
    let file = FileCompressor::default();
    file.write_header(&mut *out)?;
    let mut chunk = file.chunk_compressor(numbers, config)?;
    chunk.write_meta(&mut *out)?;
    chunk.write_page(0, &mut *out)?;
    Ok(())
}

/// The numbers that [`push`] has written; none if the bytes are not exactly `count` numbers.
pub(super) fn numbers<T: Number>(bytes: &[u8], count: usize) -> Option<Vec<T>> {
    let (file, rest) = FileDecompressor::new(bytes).ok()?;
    if file.format_version().major != VERSION || rest.first()? & 0xf >= MODE_DICTIONARY {
        return None;
    }
    let (mut chunk, rest) = file.chunk_decompressor::<T, _>(rest).ok()?;
    match chunk.meta().delta_encoding {
        DeltaEncoding::NoOp | DeltaEncoding::Consecutive { .. } => {}
        _ => return None,
    }
    let mut page = chunk.page_decompressor(rest, count).ok()?;
    let mut numbers = vec![T::default(); count];
    let progress = page.read(&mut numbers).ok()?;
    let is_whole = progress.finished && progress.n_processed == count && page.into_src().is_empty();
    is_whole.then_some(numbers)
}
// media-format: end

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mode: ModeSpec, delta: DeltaSpec) -> (Vec<u8>, Vec<i64>) {
        let wide = |at: i64| (at * at % 7).wrapping_mul(0x1234_5678_9abc_def1);
        let numbers: Vec<i64> = (0..2_000).map(wide).collect();
        let config = ChunkConfig::default().with_mode_spec(mode).with_delta_spec(delta);
        let mut out = Vec::new();
        compress(&mut out, &numbers, &config).unwrap();
        (out, numbers)
    }

    #[test]
    fn what_allocates_by_what_it_claims_is_refused() {
        let (bytes, expected) = with(ModeSpec::Classic, DeltaSpec::TryConsecutive(1));
        assert_eq!(numbers(&bytes, expected.len()), Some(expected));
        let (bytes, _) = with(ModeSpec::TryDict, DeltaSpec::NoOp);
        assert_eq!(bytes[2] & 0xf, MODE_DICTIONARY);
        assert_eq!(numbers::<i64>(&bytes, 2_000), None);
        let (bytes, _) = with(ModeSpec::Classic, DeltaSpec::TryLookback);
        assert_eq!(bytes[2] >> 4, 2, "a window");
        assert_eq!(numbers::<i64>(&bytes, 2_000), None);
    }

    #[test]
    fn nothing_is_pushed_that_is_not_smaller() {
        let numbers: Vec<i64> = (0..500).map(|at| at * at % 17).collect();
        let mut out = b"x".to_vec();
        assert!(!push(&mut out, &numbers, &ModeSpec::Classic, &[0, 1], 10));
        assert_eq!(out, b"x");
        assert!(push(&mut out, &numbers, &ModeSpec::Classic, &[0, 1], 4_000));
        let both = out.len();
        let alone = |order| {
            let mut out = b"x".to_vec();
            push(&mut out, &numbers, &ModeSpec::Classic, &[order], 4_000);
            out.len()
        };
        assert_eq!(both, alone(0).min(alone(1)));
        assert_eq!(super::numbers(&out[1..], 500), Some(numbers));
    }
}
