//! Conversations compared byte by byte, with the bytes split in any way.

mod memory;
mod wire;

use coreplane_nbd::{Conversation, Export};
use memory::Memory;
use std::sync::Arc;
use wire::{Recorded, converse};

fn begin() -> Conversation {
    let (name, description) = (wire::NAME.to_owned(), "a disk".to_owned());
    let export = Export { name, description, read_only: false };
    Conversation::new(export, Arc::new(Memory::new(16)), 1)
}

#[test]
fn recorded_conversations_are_repeated() {
    for recorded in Recorded::all() {
        let mut conversation = begin();
        let mut said = Vec::new();
        conversation.send(&mut said).unwrap();
        for (index, (who, bytes)) in recorded.lines.iter().enumerate() {
            let place = format!("{}, line {index} without comments", recorded.name);
            match who {
                'C' => said.extend(converse(&mut conversation, bytes, &[bytes.len()])),
                _ => {
                    assert!(said.len() >= bytes.len(), "{place}: {said:02x?}");
                    let rest = said.split_off(bytes.len());
                    assert_eq!(format!("{said:02x?}"), format!("{bytes:02x?}"), "{place}");
                    said = rest;
                }
            }
        }
        assert!(said.is_empty(), "{}: {said:02x?}", recorded.name);
        assert!(conversation.is_over());
    }
}

/// The answers if each of the client's lines comes in these pieces.
fn answers(recorded: &Recorded, pieces: impl Fn(usize) -> Vec<usize>) -> Vec<u8> {
    let mut conversation = begin();
    let lines = recorded.lines.iter().filter(|line| line.0 == 'C');
    lines.flat_map(|(_, line)| converse(&mut conversation, line, &pieces(line.len()))).collect()
}

#[test]
fn the_pieces_do_not_matter() {
    for recorded in Recorded::all() {
        let whole = answers(&recorded, |len| vec![len]);
        for pieces in [&[1][..], &[7], &[28], &[3, 29, 1]] {
            assert!(answers(&recorded, |_| pieces.to_vec()) == whole, "{}", recorded.name);
        }
        for cut in 1..200 {
            let cut = answers(&recorded, |len| vec![cut, len]);
            assert!(cut == whole, "{}", recorded.name);
        }
    }
}
