//! Bytes of a client: the parser finds the same commands in them however they are cut.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/server/src/resp/mod.rs"]
mod resp;

use libfuzzer_sys::fuzz_target;
use resp::frame::{Bounds, Parser, Step};

/// The commands in `data`, which arrives in pieces that end at multiples of `piece`; then the error that ended them,
/// if any.
fn commands(data: &[u8], piece: usize, authenticated: bool) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let bounds = Bounds { bulk_len_max: 1 << 16, authenticated };
    let mut parser = Parser::default();
    let mut found = Vec::new();
    let (mut start, mut end) = (0, 0);
    loop {
        match parser.step(&data[start..end], bounds) {
            Ok(Step::Command(len)) => {
                let words = parser.words(&data[start..end]);
                assert!(words.len() > 0 && len <= end - start);
                found.push((0..words.len()).map(|at| words.at(at).to_vec()).collect());
                start += len;
                parser.shrink();
            }
            Ok(Step::Nothing(len)) => {
                assert!(len > 0 && len <= end - start);
                start += len;
            }
            Ok(Step::Incomplete) if end == data.len() => return (found, None),
            Ok(Step::Incomplete) => end = (end / piece + 1).saturating_mul(piece).min(data.len()),
            Err(complaint) => return (found, Some(complaint.0.into_owned())),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    // A line of 64 KiB is too long only if its end has not arrived with it, as in Redis: below that the pieces must
    // not matter.
    let data = &data[..data.len().min(4096)];
    for authenticated in [false, true] {
        let whole = commands(data, data.len().max(1), authenticated);
        for piece in [1, 7] {
            assert_eq!(commands(data, piece, authenticated), whole, "pieces of {piece}");
        }
    }
});
