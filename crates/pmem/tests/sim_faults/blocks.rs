//! Blocks that are always either in the directory or on the stack of free blocks.
//!
//! Word 0 is the height of the stack, words 8… its entries; words 64… the directory (block + 1,
//! or 0), words 128… the blocks.

use super::*;
use coreplane_pmem::media::sim::{History, Run};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Right,
    /// Recovery does not look for blocks that are in neither.
    Leaks,
    /// A block is freed before it is durably out of the directory.
    FreesTwice,
    /// A block is used again before it is durably out of the directory.
    UsesTooSoon,
}

struct Blocks(Version);

const BLOCKS: u64 = 3;
const STACK: u64 = 8;
const DIRECTORY: u64 = 64;
const DATA: u64 = 128;

#[derive(Debug, Clone)]
enum Op {
    Add { slot: u64, value: u64 },
    Remove { slot: u64 },
}

impl Blocks {
    fn add(&self, space: &Space, slot: u64, value: u64) {
        let height = load(space, 0) - 1;
        let block = load(space, STACK + height);
        persist(space, 0, height);
        persist(space, DATA + 8 * block, value);
        persist(space, DIRECTORY + 8 * slot, block + 1);
    }

    fn remove(&self, space: &Space, slot: u64) {
        let entry = load(space, DIRECTORY + 8 * slot);
        match self.0 {
            Version::FreesTwice => {
                push(space, entry - 1);
                persist(space, DIRECTORY + 8 * slot, 0);
            }
            Version::UsesTooSoon => {
                store(space, DIRECTORY + 8 * slot, 0);
                push(space, entry - 1);
            }
            _ => {
                persist(space, DIRECTORY + 8 * slot, 0);
                push(space, entry - 1);
            }
        }
    }
}

fn push(space: &Space, block: u64) {
    let height = load(space, 0);
    persist(space, STACK + height, block);
    persist(space, 0, height + 1);
}

fn places(space: &Space, block: u64) -> usize {
    let stacked = (0..load(space, 0)).filter(|at| load(space, STACK + at) == block).count();
    let listed = |slot: &u64| load(space, DIRECTORY + 8 * slot) == block + 1;
    stacked + (0..BLOCKS).filter(listed).count()
}

impl Subject for Blocks {
    type Op = Op;
    type Store = Arc<Space>;
    type Contents = Vec<Option<u64>>;

    fn work(&self, run: &Run<'_, Op>) {
        let space = run.space();
        claim(space, Claim::WordsAsStored);
        (0..BLOCKS).for_each(|block| push(space, block));
        let add = |slot, value| {
            run.acknowledged(Op::Add { slot, value }, || self.add(space, slot, value));
        };
        let remove = |slot| run.acknowledged(Op::Remove { slot }, || self.remove(space, slot));
        add(0, 10);
        add(1, 11);
        remove(0);
        add(2, 12);
        remove(1);
        add(0, 13);
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim(space, Claim::WordsAsStored);
        if self.0 != Version::Leaks {
            (0..BLOCKS)
                .filter(|block| places(space, *block) == 0)
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|block| push(space, block));
        }
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<Vec<Option<u64>>, String> {
        for block in 0..BLOCKS {
            match places(space, block) {
                0 => return Err(format!("block {block} is lost")),
                1 => {}
                _ => return Err(format!("block {block} is in two places")),
            }
        }
        Ok((0..BLOCKS)
            .map(|slot| {
                let block = load(space, DIRECTORY + 8 * slot).checked_sub(1)?;
                Some(load(space, DATA + 8 * block))
            })
            .collect())
    }

    fn check(&self, contents: &Vec<Option<u64>>, history: &History<'_, Op>) -> Result<(), String> {
        let mut least = vec![None; BLOCKS as usize];
        let apply = |to: &mut Vec<Option<u64>>, op: &Op| match op {
            Op::Add { slot, value } => to[*slot as usize] = Some(*value),
            Op::Remove { slot } => to[*slot as usize] = None,
        };
        history.acknowledged().for_each(|op| apply(&mut least, op));
        let mut most = least.clone();
        history.in_flight().for_each(|op| apply(&mut most, op));
        if *contents == least || *contents == most {
            return Ok(());
        }
        Err(format!("{contents:?} is neither {least:?} nor {most:?}"))
    }
}

#[test]
fn the_right_one_keeps_every_block_in_one_place() {
    for seed in 0..4 {
        assert_right(&options(seed), &Blocks(Version::Right));
    }
}

#[test]
fn a_leak_is_caught() {
    assert_caught(&options(1), &Blocks(Version::Leaks), "is lost");
}

#[test]
fn a_double_free_is_caught() {
    assert_caught(&options(1), &Blocks(Version::FreesTwice), "in two places");
}

#[test]
fn use_after_a_free_that_is_not_durable_is_caught() {
    assert_caught(&options(1), &Blocks(Version::UsesTooSoon), "");
}
