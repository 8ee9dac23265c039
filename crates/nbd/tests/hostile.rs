//! Bytes that no client should send: nothing panics, and memory stays within the limits.

mod memory;
mod wire;

use coreplane_nbd::{Conversation, Export};
use memory::Memory;
use std::sync::Arc;
use wire::{Recorded, WRITE, handshake, head, option};

/// Two requests of 32 MiB (one arriving, one being executed), the kept buffers of a batch, and replies.
const MEMORY_MAX: usize = 80 << 20;

fn begin(sectors: usize) -> Conversation {
    let (name, description) = (wire::NAME.to_owned(), "a disk".to_owned());
    let export = Export { name, description, read_only: false };
    Conversation::new(export, Arc::new(Memory::new(sectors)), 1)
}

/// Feeds `input`, for a small disk, as far as it is taken, and checks the memory in use.
fn provoke(input: &[u8]) -> Conversation {
    provoke_with(16, input)
}

/// The same for a disk of `sectors` sectors.
fn provoke_with(sectors: usize, input: &[u8]) -> Conversation {
    let mut conversation = begin(sectors);
    let mut out = Vec::new();
    let mut begin = 0;
    loop {
        let taken = conversation.receive(&input[begin..]).expect("no error");
        begin += taken;
        assert!(conversation.memory() <= MEMORY_MAX, "{}", conversation.memory());
        conversation.send(&mut out).expect("a Vec takes all");
        out.clear();
        if taken == 0 {
            return conversation;
        }
    }
}

#[test]
fn conversations_may_end_anywhere() {
    for recorded in Recorded::all() {
        let client = recorded.client();
        (0..client.len()).for_each(|end| drop(provoke(&client[..end])));
    }
}

#[test]
fn any_byte_may_be_another() {
    for recorded in Recorded::all() {
        let client = recorded.client();
        for at in 0..client.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut client = client.clone();
                client[at] ^= change;
                provoke(&client);
            }
        }
    }
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// A number at or next to a limit.
    fn odd(&mut self) -> u64 {
        let edges = [0, 1, 511, 512, 4096, 65_535, 65_536, 1 << 25, 1 << 26, 1 << 32, u64::MAX];
        edges[self.below(edges.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1)
    }
}

#[test]
fn mutations_harm_nobody() {
    const SEEDS: u64 = 3000;
    let recorded: Vec<Vec<u8>> = Recorded::all().iter().map(Recorded::client).collect();
    for seed in 1..=SEEDS {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes = recorded[numbers.below(recorded.len())].clone();
        for _ in 0..=numbers.below(6) {
            let at = numbers.below(bytes.len() + 1);
            match numbers.below(5) {
                0 => bytes.insert(at, numbers.below(256) as u8),
                1 => bytes.truncate(at),
                2 if at < bytes.len() => bytes[at] = numbers.below(256) as u8,
                3 => {
                    let other = &recorded[numbers.below(recorded.len())];
                    let piece = &other[numbers.below(other.len())..];
                    let piece = &piece[..numbers.below(piece.len().min(200) + 1)];
                    bytes.splice(at..at, piece.iter().copied());
                }
                _ => {
                    let word = numbers.odd().to_be_bytes();
                    let word = &word[word.len() - [1, 2, 4, 8][numbers.below(4)]..];
                    let end = (at + word.len()).min(bytes.len());
                    bytes.splice(at..end, word.iter().copied());
                }
            }
        }
        provoke(&bytes);
    }
}

#[test]
fn lengths_that_are_only_said_take_no_memory() {
    let hello = handshake("", false);
    let promise = [hello, head(WRITE, 0, 1, 0, 32 << 20), vec![7; 100]].concat();
    assert!(provoke_with(8192, &promise).memory() < 1 << 20);
    // An option of 4 GiB is skipped as it arrives.
    let mut endless = [&[0, 0, 0, 1][..], &option(7, b"")].concat();
    let at = endless.len() - 4;
    endless[at..].copy_from_slice(&[0xff; 4]);
    endless.extend(vec![0; 1 << 20]);
    let conversation = provoke(&endless);
    assert!(conversation.memory() < 1 << 10 && !conversation.is_over());
}

#[test]
fn buffers_do_not_add_up() {
    const LARGE: u32 = (4 << 20) - (64 << 10);
    let mut input = handshake("", false);
    // In each turn the large request has another position.
    for before in 0..60 {
        (0..before).for_each(|_| input.extend(head(wire::READ, 0, 1, 0, 512)));
        (0..64 - before).for_each(|_| input.extend(head(wire::CACHE, 0, 1, 0, 512)));
        (0..before).for_each(|_| input.extend(head(wire::READ, 0, 1, 0, 512)));
        input.extend(head(wire::READ, 0, 1, 0, LARGE));
        (0..63 - before).for_each(|_| input.extend(head(wire::CACHE, 0, 1, 0, 512)));
    }
    let kept = provoke_with(1024, &input).memory();
    assert!(kept <= 9 << 20, "{kept}");
}

#[test]
fn a_write_that_is_too_long_is_passed_over_or_ends_it() {
    const LONG: u32 = (32 << 20) + 1;
    let mut input = handshake("", false);
    input.extend(head(WRITE, 0, 1, 0, LONG));
    input.extend(vec![0; LONG as usize]);
    input.extend(head(wire::FLUSH, 0, 2, 0, 0));
    let conversation = provoke(&input);
    assert!(!conversation.is_over() && conversation.memory() < 1 << 20);
    let longer = [handshake("", false), head(WRITE, 0, 1, 0, (64 << 20) + 1)].concat();
    assert!(provoke(&longer).is_over());
}
