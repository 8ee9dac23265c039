//! The state that a command that is not finished needs to go on.
//!
//! A connection has at most one: its later commands wait behind it, so that answers keep their order. It is dropped
//! with the connection. It holds no guard of an engine and no lock, and names keys by their positions among the
//! command's words, which stay in the connection's input until the command is finished.
//!
//! | of | slices | between them |
//! |---|---|---|
//! | `KEYS`, `SCAN` | [`Listing`] | others write; a key that exists all the while is listed |
//! | `RANDOMKEY` | [`Walk`] | the same: none is the answer only if there was no such key |
//! | `RANGE` | [`RangePage`] | the same, in the order of keys |
//! | `MGET`, `EXISTS`, `TOUCH` of many keys | [`ManyKeys`] | others write; the answer is of one moment all the same |
//! | `DEL`, `UNLINK`, `FLUSHALL` in a cluster | [`Deletion`], [`Clear`] | others see the keys deleted so far |
//! | `SAVE`, and `WAITAOF` at `relaxed` | [`Continuation::Save`] | others write; the save is that of a thread |
//!
//! An answer in the making is in [`Pieces`], since its first bytes say how many elements it has. When it is complete
//! it goes to the connection's output piece by piece, and no faster than the client takes it.

mod keys;
mod many_keys;
mod pieces;
mod range_page;

pub(crate) use keys::{Listing, Wanted};
pub(crate) use many_keys::{Kind, ManyKeys};
pub(crate) use pieces::Pieces;
pub(crate) use range_page::{RangePage, Shown};

use crate::store::Walk;
use coreplane_engine::Clear;
use std::time::Instant;

/// The state that a command that is not finished needs to go on.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// Keys are listed.
    Listing(Box<Listing>),
    /// A record is looked for.
    Walk(Walk),
    /// Records of a range are listed.
    Range(Box<RangePage>),
    /// Many keys are read.
    ManyKeys(Box<ManyKeys>),
    /// Many keys are deleted.
    Deletion(Deletion),
    /// Every record is removed.
    Clear(Clear),
    /// The end of the save of this number is awaited, until then at most.
    Save(u64, Option<Instant>),
    /// The answer is complete, and is being moved to the output.
    Answer(Pieces),
}

impl Continuation {
    /// Bytes of the answer that are not in the connection's output yet.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Listing(listing) => listing.bytes(),
            Self::Range(page) => page.bytes(),
            Self::ManyKeys(many) => many.bytes(),
            Self::Answer(pieces) => pieces.len(),
            Self::Walk(_) | Self::Deletion(_) | Self::Clear(_) | Self::Save(..) => 0,
        }
    }

    /// The leadership in which it began, if its results so far are of no use in another one.
    pub(crate) fn leadership(&self) -> Option<u64> {
        match self {
            Self::Listing(listing) => Some(listing.leadership()),
            Self::Walk(walk) => Some(walk.leadership),
            Self::Range(page) => Some(page.leadership()),
            Self::Deletion(deletion) => Some(deletion.leadership),
            // These read again all keys that another leader may have written, or remove all records, or have none.
            Self::ManyKeys(_) | Self::Clear(_) | Self::Save(..) | Self::Answer(_) => None,
        }
    }

    /// True if a part of the answer may be in the output: the command can only go on here.
    pub(crate) fn has_begun_to_answer(&self) -> bool {
        match self {
            Self::Answer(_) => true,
            Self::ManyKeys(many) => many.is_complete(),
            Self::Listing(_) | Self::Walk(_) | Self::Range(_) => false,
            Self::Deletion(_) | Self::Clear(_) | Self::Save(..) => false,
        }
    }
}

/// The progress of a deletion of many keys.
#[derive(Debug)]
pub(crate) struct Deletion {
    /// The next word, and how many keys existed before it.
    pub next: usize,
    pub deleted: usize,
    /// The leadership in which it began.
    pub leadership: u64,
}
