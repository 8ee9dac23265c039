//! Bytes of an NBD client: nothing panics, memory stays within the limits, and the disk has the same content however
//! the bytes are cut.
#![no_main]

#[path = "../../crates/nbd/tests/memory/mod.rs"]
mod memory;

use coreplane_nbd::{Conversation, Export};
use libfuzzer_sys::fuzz_target;
use memory::Memory;
use std::sync::Arc;

const MEMORY_MAX: usize = 80 << 20;

/// The content of the disk after `data`, which arrives in pieces that end at multiples of `piece`.
fn outcome(data: &[u8], piece: usize) -> Vec<u8> {
    let disk = Arc::new(Memory::new(16));
    let (name, description) = ("disk".to_owned(), String::new());
    let export = Export { name, description, read_only: false };
    let mut conversation = Conversation::new(export, disk.clone(), 1);
    let mut out = Vec::new();
    let (mut begin, mut end) = (0, 0);
    loop {
        let taken = conversation.receive(&data[begin..end]).expect("a bell");
        begin += taken;
        assert!(
            conversation.memory() <= MEMORY_MAX && end - begin <= Conversation::INPUT_MAX + piece
        );
        conversation.send(&mut out).expect("a Vec takes all");
        out.clear();
        match taken {
            0 if conversation.is_over() || end == data.len() => break,
            0 => end = (end / piece + 1).saturating_mul(piece).min(data.len()),
            _ => {}
        }
    }
    conversation.wait(&mut out).expect("a Vec takes all");
    drop(conversation);
    disk.with(|state| std::mem::take(&mut state.bytes))
}

fuzz_target!(|data: &[u8]| {
    let whole = outcome(data, data.len().max(1));
    for piece in [1, 29] {
        assert!(outcome(data, piece) == whole, "pieces of {piece}");
    }
});
