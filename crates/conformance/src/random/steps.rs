//! The steps of a run, and how they are drawn.

use crate::Restart;
use crate::rng::Rng;
use coreplane_engine::{Completion, Durability, Visibility, WriteOptions};

/// How a given sequence is chosen: beside that of the key, or newer than all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Given {
    None,
    Beside(i64),
    Newest,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Compare {
    Absent,
    Value,
    WrongValue,
    Sequence,
    WrongSequence,
}

#[derive(Debug, Clone)]
pub(super) enum Act {
    Put,
    Insert,
    Update,
    Delete,
    CompareAndSet(Compare),
    Modify(u8),
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Write { key: usize, act: Act, value: Vec<u8>, ttl: Ttl, given: Given, options: WriteOptions },
    Batch { changes: Vec<(usize, Option<Vec<u8>>, Ttl)>, options: WriteOptions },
    Get(usize, Visibility),
    Check,
    Changes,
    Advance(u64),
    Clear,
    Sync,
    Restart(Restart),
}

/// A time to live.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ttl {
    None,
    Past,
    Far,
    /// So many milliseconds by the fixture's clock.
    Soon(u64),
}

pub(super) const KEYS: usize = 12;

fn draw_options(rng: &mut Rng) -> WriteOptions {
    let durability = match rng.below(8) {
        0 => Some(Durability::Strict),
        1 => Some(Durability::GROUP),
        2 => Some(Durability::RELAXED),
        _ => None,
    };
    let completion = if rng.one_in(3) { Completion::Early } else { Completion::Wait };
    WriteOptions { durability, completion, ..WriteOptions::default() }
}

fn draw_ttl(rng: &mut Rng) -> Ttl {
    match rng.below(10) {
        0 => Ttl::Past,
        1 => Ttl::Far,
        2 | 3 => Ttl::Soon(rng.next() % 6),
        _ => Ttl::None,
    }
}

fn draw_value(rng: &mut Rng, largest: usize) -> Vec<u8> {
    let len = match rng.below(30) {
        0 => rng.below(largest),
        1..6 => rng.below(200),
        _ => rng.below(8),
    };
    rng.bytes(len)
}

pub(super) fn draw_step(rng: &mut Rng, largest: usize) -> Step {
    match rng.below(100) {
        0..10 => Step::Batch {
            changes: (0..rng.below(6))
                .map(|_| {
                    let put = !rng.one_in(3);
                    (rng.below(KEYS), put.then(|| draw_value(rng, 100)), draw_ttl(rng))
                })
                .collect(),
            options: draw_options(rng),
        },
        10..25 => {
            let visibility = if rng.one_in(2) { Visibility::Early } else { Visibility::Durable };
            Step::Get(rng.below(KEYS), visibility)
        }
        25..30 => Step::Check,
        30..33 => Step::Changes,
        33..39 => Step::Advance(rng.next() % 5),
        39 => Step::Sync,
        40 => match rng.below(6) {
            0 => Step::Clear,
            1 => Step::Restart(Restart::Clean),
            2 => Step::Restart(Restart::Kill),
            3 => Step::Restart(Restart::PowerCut),
            _ => Step::Check,
        },
        _ => Step::Write {
            key: rng.below(KEYS),
            act: match rng.below(12) {
                0..4 => Act::Put,
                4 => Act::Insert,
                5 => Act::Update,
                6..8 => Act::Delete,
                8..10 => Act::CompareAndSet(match rng.below(5) {
                    0 => Compare::Absent,
                    1 => Compare::Value,
                    2 => Compare::WrongValue,
                    3 => Compare::Sequence,
                    _ => Compare::WrongSequence,
                }),
                _ => Act::Modify(rng.below(4) as u8),
            },
            value: draw_value(rng, largest),
            ttl: draw_ttl(rng),
            given: match rng.below(8) {
                0 => Given::Beside(rng.below(5) as i64 - 2),
                1 => Given::Newest,
                _ => Given::None,
            },
            options: draw_options(rng),
        },
    }
}
