//! What is damaged in a list, as an opening finds it, and what is known of the keys from then on.
//!
//! ```text
//!   stream   [a₁ b₂] [c₃ ✗ d₅] [e₆ …
//!                        └ one bit is flipped: it was b₄, and b is lost; a, c, d, e are as they were
//!                          else: a and c may be older than what was there, d and e are not; z may have been there
//! ```
//!
//! Bytes that are no sound record and were durable ([`stream`](crate::volume::stream)) are damaged. If a record comes of
//! them by flipping one bit back, it is told whose newest version is lost. Else nobody knows whose it was. But a record
//! behind is newer than all that was before it, of its own key too, for the cleaner moves nothing but what is newest. So
//! whatever stands before the end of the damage is *doubtful*, and so is that a key is not there.
//!
//! | of a key there is | a read says |
//! |---|---|
//! | a record behind the damage | the record |
//! | one whose bit was flipped | that it is lost |
//! | one before damage that nobody can tell | that it may not be the newest |
//! | none, and such damage | that it may be lost |
//!
//! A put or a delete ends that for its key, a clear for all; a write that asks what was there is refused. A scan ends where
//! it meets such a key, and where nobody can tell whose records were lost there is no scan at all; an iteration shows all
//! others, and says so at its end.
//!
//! An opening writes what it has found to the end of the stream, moves what is sound out of the damaged pages, and frees
//! them: a *lost* record in the place of each whose key is known, and one without a key that says up to where all is
//! doubtful. What is doubtful and is moved is marked so. So the next opening finds the same, and appends as this one does.
//!
//! That one bit explains damage of many bits is as likely as the record has bits, of 2³². A lost record is not told apart
//! when it is damaged itself: all before it is doubtful then. A large value of which a page is not the one that was written
//! is lost when it is found so, as if its record was; bytes of it that are wrong are found by who reads them. Of a log nothing is told apart: a
//! log with damage is not opened, and is filled anew from another replica.

use super::List;
use crate::key::Key;
use crate::map::Slice;
use crate::volume::Volume;
use crate::volume::page::Found;
use crate::volume::stream::{Position, end_mark};
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Header, Kind, View};
use std::sync::atomic::Ordering;

/// CRC-32C, the least power last.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A record one bit of which is flipped.
#[derive(Debug, Clone)]
pub(super) struct Hurt {
    pub(super) header: Header,
    pub(super) key: Key,
}

/// What a page is made of.
#[derive(Debug)]
pub(super) enum Piece {
    /// A sound record.
    Sound(u64),
    /// One whose bit is flipped.
    Hurt(u64, Hurt),
    /// No record, nor its end; up to there.
    Lost(u64, u64),
    /// The end mark, a bit of which is flipped.
    Mark(u64),
}

impl Piece {
    pub(super) fn offset(&self) -> u64 {
        match self {
            Self::Sound(at) | Self::Hurt(at, _) | Self::Lost(at, _) | Self::Mark(at) => *at,
        }
    }
}

/// What is known of the keys of a list.
#[derive(Debug, Default)]
pub(super) struct Damage {
    pub(super) doubt: Option<Doubt>,
}

/// Records were lost, and nobody knows of which keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubt {
    /// What stands before this is doubtful; nothing is if it is the beginning.
    pub(super) until: Position,
    /// What is damaged before this was durable when it was found.
    pub(super) proven: Position,
    /// The record that says so, and its bytes in the stream.
    pub(super) record: Option<(u64, u32)>,
}

// media-format: begin pool
impl Doubt {
    /// The value of a lost record without a key.
    pub(super) fn encode(&self) -> [u8; 32] {
        let mut value = [0; 32];
        let words = [self.until, self.proven].map(|it| [it.birth, u64::from(it.within)]);
        for (at, word) in value.chunks_exact_mut(8).zip(words.as_flattened()) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        value
    }

    /// None if the lost record is one of a key.
    pub(super) fn decode(view: &View<'_>) -> Option<Self> {
        let position = |word: usize| {
            let (birth, within) = (view.value_word(word)?, view.value_word(word + 1)? as u32);
            Some(Position { birth, within })
        };
        let record = Some((view.offset, view.len()));
        Some(Self { until: position(0)?, proven: position(2)?, record })
    }
}
// media-format: end

/// What a page is made of, from its beginning to its end.
pub(super) fn pieces(
    volume: &Volume,
    guard: &Guard,
    (page, birth): (u32, u64),
    found: &Found,
) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(found.records.len());
    let mut at = volume.space.start_of(page);
    for offset in found.records.iter().chain(&found.behind).copied() {
        break_down(volume, guard, (page, birth), (at, offset), &mut pieces);
        pieces.push(Piece::Sound(offset));
        at = volume.view(guard, offset).map_or(offset, |view| offset + u64::from(view.len()));
    }
    break_down(volume, guard, (page, birth), (at, found.end), &mut pieces);
    pieces
}

/// What is there between two places, where nothing is sound.
fn break_down(
    volume: &Volume,
    guard: &Guard,
    (page, birth): (u32, u64),
    (mut from, to): (u64, u64),
    pieces: &mut Vec<Piece>,
) {
    let page_end = volume.space.start_of(page) + u64::from(volume.space.page_size());
    while from < to {
        let bytes = volume.space.bytes(guard, from, page_end - from).unwrap_or_default();
        let record = one_bit_off(bytes, volume.seed_at(birth, from), from);
        if let Some((hurt, len)) = record.filter(|(_, len)| from + len <= to) {
            pieces.push(Piece::Hurt(from, hurt));
            from += len;
            continue;
        }
        let word = bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        let is_mark = to == page_end && (word ^ end_mark(birth, from)).is_power_of_two();
        pieces.push(if is_mark { Piece::Mark(from) } else { Piece::Lost(from, to) });
        return;
    }
}

/// The record that comes of these bytes, or the first of them, by flipping one bit; and its bytes in the stream.
fn one_bit_off(bytes: &[u8], seed: u32, offset: u64) -> Option<(Hurt, u64)> {
    let mut copy = bytes.to_vec();
    let mut flipped = |bit: usize| {
        *copy.get_mut(bit / 8)? ^= 1 << (bit % 8);
        let view = View::of_bytes(&copy, offset).filter(|view| view.check(seed).is_ok());
        let hurt = view.map(|view| {
            let hurt = Hurt { header: view.header, key: Key::new(view.key()) };
            (hurt, u64::from(view.len()))
        });
        *copy.get_mut(bit / 8)? ^= 1 << (bit % 8);
        hurt
    };
    // Of the lengths: where the record ends is not known then.
    if let Some(hurt) = (32..96).find_map(&mut flipped) {
        return Some(hurt);
    }
    let view = View::of_bytes(bytes, offset)?;
    let (stored, computed) = view.checksums(seed);
    let bytes = view.header.len() + view.key().len() + view.value().len();
    flipped(bit_of(stored ^ computed, 8 * bytes)?)
}

/// Which of so many bits it is that makes such a difference to the checksum in the first 32.
fn bit_of(difference: u32, bits: usize) -> Option<usize> {
    if difference.is_power_of_two() {
        return Some(difference.trailing_zeros() as usize);
    }
    let mut made = POLYNOMIAL;
    for bit in (32..bits).rev() {
        if made == difference {
            return Some(bit);
        }
        made = made >> 1 ^ if made & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    None
}

impl List {
    /// Holds a record that is known to be there against its checksums, of a key or of the log alone.
    pub(super) fn verify_record(
        &self,
        guard: &Guard,
        offset: u64,
        key: Option<&Key>,
        slice: &mut Slice<'_>,
    ) {
        let volume = &self.stream.volume;
        let checked = volume.view(guard, offset).and_then(|view| {
            volume.check(&view)?;
            if view.header.kind == Kind::Lost {
                self.be_sure(guard, Some(offset))?;
            }
            if view.header.large {
                volume.chain(guard, view.value(), true)?;
            }
            Ok(view)
        });
        match checked {
            Ok(view) if key.is_some() => {
                slice.records += u64::from(view.header.kind == Kind::Put);
                slice.bytes += u64::from(view.len());
            }
            Ok(_) => {}
            Err(error) => (slice.damaged)(error, key.map(Key::bytes)),
        }
    }

    /// Fails if what is known of a key may not be the newest: where its newest record is, if there is any.
    pub(super) fn be_sure(&self, guard: &Guard, found: Option<u64>) -> Result<()> {
        if mutant!("mvcc.damage.stale") {
            return Ok(());
        }
        let Some(offset) = found else { return self.be_complete() };
        let view = self.stream.volume.view(guard, offset)?;
        if view.header.kind == Kind::Lost {
            let key = view.key().escape_ascii();
            let what = format!("the newest record of \"{key}\" was damaged, and is lost");
            return Err(Error::Corrupt { offset, what });
        }
        if self.is_doubtful(&view) {
            let what = "records of unknown keys were lost that were newer than this one".to_owned();
            return Err(Error::Corrupt { offset, what });
        }
        Ok(())
    }

    /// Fails if there may have been keys that are not known.
    pub(super) fn be_complete(&self) -> Result<()> {
        match self.damage.doubt {
            None => Ok(()),
            Some(doubt) => {
                let offset = doubt.record.map_or(0, |it| it.0);
                let what = "records of keys that nobody can tell were damaged, and are lost";
                Err(Error::Corrupt { offset, what: what.to_owned() })
            }
        }
    }

    /// True if a newer record of its key may have been lost.
    pub(super) fn is_doubtful(&self, view: &View<'_>) -> bool {
        self.damage.doubt.is_some_and(|doubt| {
            view.header.doubtful || self.stream.position(view.offset) < doubt.until
        })
    }

    /// All is gone, and with it what was lost of it. If a pin still sees some of that, it is the next opening that finds it
    /// gone, or the next clear.
    pub(super) fn end_damage(&mut self) {
        if !self.pins.is_empty() {
            return;
        }
        if let Some((offset, len)) = self.damage.doubt.and_then(|doubt| doubt.record) {
            self.stream.supersede(offset, len);
        }
        self.damage = Damage::default();
        self.stream.volume.damaged.store(false, Ordering::Relaxed);
    }
}
