//! Damage in a list, as an open finds it, and what is known of the keys from then on.
//!
//! ```text
//!   stream   [a₁ b₂] [c₃ ✗ d₅] [e₆ …
//!                        └ one bit is flipped: the record was b₄, and b is lost; a, c, d, e are current
//!                          else: a and c may not be the newest, d and e are; z may have existed
//! ```
//!
//! Bytes that are no sound record and were durable ([`stream`](crate::volume::stream)) are damaged. If flipping one
//! bit makes a sound record of them, the key whose newest version is lost is known. Otherwise the key is unknown. But
//! a record behind the damage is newer than all records before it, those of its own key included, since the cleaner
//! moves only newest versions. So every record before the end of the damage is *doubtful*, and so is the absence of a
//! key.
//!
//! | of a key there is | a read says |
//! |---|---|
//! | a record behind the damage | the record |
//! | a record with a flipped bit | that it is lost |
//! | a record before damage of unknown keys | that it may not be the newest |
//! | none, and such damage | that it may be lost |
//!
//! A put or a delete ends that for its key, a clear for all keys; a write that depends on the current record is
//! refused. A scan ends where it meets such a key, and where records of unknown keys were lost there is no scan at
//! all; an iteration shows all other keys, and reports the damage at its end.
//!
//! An open appends its findings to the stream, moves the sound records out of the damaged pages, and frees these. The
//! findings are a *lost* record for each damaged record whose key is known, and one without a key that states up to
//! where records are doubtful. A doubtful record is marked as such when it is moved. So the next open finds the same,
//! and appends in the same way.
//!
//! The probability that one bit explains damage of many bits is the number of bits of the record divided by 2³². A
//! lost record that is damaged itself is not reconstructed: all records before it are doubtful then. If a page of a
//! large value is not the page that was written, an open treats its record as lost; wrong bytes of the value are
//! found when it is read. In a log, damage is not analysed: a log with damage is not opened, and is filled anew from
//! another replica.

use super::List;
use crate::key::Key;
use crate::map::Slice;
use crate::volume::Volume;
use crate::volume::flip::{Hurt, one_bit_off};
use crate::volume::page::Found;
use crate::volume::stream::{Position, end_mark};
use coreplane_engine::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_record::{Kind, View};
use std::sync::atomic::Ordering;

/// A part of a page.
#[derive(Debug)]
pub(super) enum Piece<'g> {
    /// A sound record.
    Sound(View<'g>),
    /// A record with one flipped bit.
    Hurt(u64, Hurt),
    /// Bytes that are neither a record nor the end mark; from the first offset to the second.
    Lost(u64, u64),
    /// The end mark, with one flipped bit.
    Mark(u64),
}

impl Piece<'_> {
    pub(super) fn offset(&self) -> u64 {
        match self {
            Self::Sound(view) => view.offset,
            Self::Hurt(at, _) | Self::Lost(at, _) | Self::Mark(at) => *at,
        }
    }
}

/// The damage of a list.
#[derive(Debug, Default)]
pub(super) struct Damage {
    pub(super) doubt: Option<Doubt>,
}

/// Records of unknown keys were lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubt {
    /// Records before this are doubtful; none is if it is the beginning.
    pub(super) until: Position,
    /// Damage before this was known to be durable when it was found.
    pub(super) proven: Position,
    /// The record that states this, and its bytes in the stream.
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

/// The pieces of a page, from its beginning to its end.
pub(super) fn pieces<'g>(
    volume: &Volume,
    guard: &Guard,
    (page, birth): (u32, u64),
    found: Found<'g>,
) -> Vec<Piece<'g>> {
    let mut pieces = Vec::with_capacity(found.records.len() + found.behind.len());
    let mut at = volume.space.start_of(page);
    for view in found.records.into_iter().chain(found.behind) {
        break_down(volume, guard, (page, birth), (at, view.offset), &mut pieces);
        at = view.offset + u64::from(view.len());
        pieces.push(Piece::Sound(view));
    }
    break_down(volume, guard, (page, birth), (at, found.end), &mut pieces);
    pieces
}

/// The pieces between two offsets where nothing is sound.
fn break_down(
    volume: &Volume,
    guard: &Guard,
    (page, birth): (u32, u64),
    (mut from, to): (u64, u64),
    pieces: &mut Vec<Piece<'_>>,
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

impl List {
    /// Verifies the checksums of a record that is known to exist, of a key or of the log alone.
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

    /// Fails if the newest record that is known of a key, at `found` if there is one, may not be the newest.
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

    /// Fails if there may have been keys that are no longer known.
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

    /// A clear ends the damage too. If a pin still sees some of it, the next open or the next clear ends it.
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
