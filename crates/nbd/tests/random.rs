//! Random requests, in random pieces, compared with an array of bytes.

mod memory;
mod wire;

use coreplane_nbd::{Conversation, Export};
use memory::Memory;
use std::collections::HashMap;
use std::sync::Arc;
use wire::{READ, converse, head};

const SECTORS: usize = 8;
const BYTES: usize = SECTORS * 4096;
const SEEDS: u64 = 1500;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// A range, which may begin or end at a sector's edge, or go beyond the end of the disk.
    fn range(&mut self) -> (usize, usize) {
        let edge = |numbers: &mut Self| match numbers.below(3) {
            0 => numbers.below(SECTORS + 1) * 4096,
            1 => (numbers.below(SECTORS + 1) * 4096 + numbers.below(5)).saturating_sub(2),
            _ => numbers.below(BYTES + 4096),
        };
        let (a, b) = (edge(self), edge(self));
        (a.min(b), a.max(b))
    }

    /// A number at or next to a limit.
    fn odd(&mut self) -> u64 {
        let edges = [0, 1, 511, 512, 4096, 65_535, 65_536, 1 << 25, 1 << 26, 1 << 32, u64::MAX];
        edges[self.below(edges.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1)
    }
}

/// The expected results by cookie: the error, and the bytes read.
type Expected = HashMap<u64, (u32, Vec<u8>)>;

/// Up to `most` requests, as bytes, with their expected results.
fn requests(numbers: &mut Numbers, most: usize, model: &mut [u8]) -> (Vec<u8>, Expected) {
    let (mut bytes, mut expected) = (Vec::new(), Expected::new());
    for cookie in 0..numbers.below(most) as u64 {
        let (begin, end) = numbers.range();
        let (mut offset, mut len) = (begin as u64, (end - begin) as u32);
        let command = [0, 0, 0, 1, 1, 1, 3, 4, 5, 6, 7, 9][numbers.below(12)];
        let flags = if command == READ { 0 } else { numbers.below(2) as u16 };
        let data = vec![numbers.below(256) as u8; end - begin];
        if command != wire::WRITE && numbers.below(4) == 0 {
            (offset, len) = (numbers.odd(), numbers.odd() as u32);
        }
        bytes.extend(head(command, flags, cookie, offset, len));
        if command == wire::WRITE {
            bytes.extend(&data);
        }
        let end = offset.saturating_add(len.into());
        let is_outside = end > model.len() as u64;
        let (begin, end) = (offset as usize, end as usize);
        let (mut error, mut found) = (0, Vec::new());
        match command {
            wire::FLUSH => {}
            // No context was negotiated.
            wire::BLOCK_STATUS | 9 => error = 22,
            wire::WRITE | wire::WRITE_ZEROES if is_outside => error = 28,
            _ if is_outside => error = 22,
            READ => found = model[begin..end].to_vec(),
            wire::WRITE => model[begin..end].copy_from_slice(&data),
            wire::WRITE_ZEROES => model[begin..end].fill(0),
            wire::TRIM => {
                let (first, last) = (begin.next_multiple_of(4096), end / 4096 * 4096);
                if first < last {
                    model[first..last].fill(0);
                }
            }
            _ => {}
        }
        expected.insert(cookie, (error, found));
    }
    (bytes, expected)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Parses the replies: each request has exactly one, which is as expected.
fn check(mut replies: &[u8], mut expected: Expected, place: &str) {
    while !replies.is_empty() {
        let is_simple = replies[..4] == [0x67, 0x44, 0x66, 0x98];
        let cookie = number(&replies[8..16]);
        let (error, data) = expected.remove(&cookie).expect("a request");
        let end = if is_simple {
            assert_eq!(number(&replies[4..8]), error.into(), "{place}, {cookie}");
            16
        } else {
            assert_eq!(number(&replies[..4]), 0x668e_33ef, "{place}");
            let (kind, len) = (number(&replies[6..8]), number(&replies[16..20]) as usize);
            match kind {
                0 => assert!(error == 0 && data.is_empty(), "{place}, {cookie}"),
                1 => assert_eq!((error, len), (0, 8 + data.len()), "{place}, {cookie}"),
                _ => assert_eq!(number(&replies[20..24]), error.into(), "{place}, {cookie}"),
            }
            // The length of a chunk with data, without the data.
            if kind == 1 { 28 } else { 20 + len }
        };
        assert!(replies[end..].starts_with(&data), "{place}, {cookie}");
        replies = &replies[end + data.len()..];
    }
    assert!(expected.is_empty(), "{place}: {:?}", expected.keys());
}

#[test]
fn random_requests_do_what_they_do_to_an_array() {
    for seed in 1..=SEEDS {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let is_structured = seed % 2 == 0;
        let (name, description) = (wire::NAME.to_owned(), String::new());
        let disk = Arc::new(Memory::new(SECTORS));
        let export = Export { name, description, read_only: false };
        let mut conversation = Conversation::new(export, disk.clone(), seed);
        let mut hello = vec![0, 0, 0, 3];
        if is_structured {
            hello.extend(wire::option(8, b""));
        }
        hello.extend(wire::option(7, &[0; 6]));
        converse(&mut conversation, &hello, &[hello.len()]);
        let mut model = vec![0; BYTES];
        for round in 0..3 {
            // Few requests in many pieces, and many requests in few pieces.
            let (count, longest) =
                [(4, 10), (10, 200), (30, 5000), (100, 1 << 20)][numbers.below(4)];
            let (bytes, expected) = requests(&mut numbers, count, &mut model);
            let pieces: Vec<usize> = (0..7).map(|_| numbers.below(longest) + 1).collect();
            let replies = converse(&mut conversation, &bytes, &pieces);
            check(&replies, expected, &format!("seed {seed}, round {round}"));
        }
        disk.with(|state| assert!(state.bytes == model, "seed {seed}"));
    }
}
