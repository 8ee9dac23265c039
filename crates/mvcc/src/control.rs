//! The state of a log on the medium: the control record, and the record that closes an entry.
//!
//! ```text
//!   [a₅ b₅ E₅] [c₆ E₆] [C applied 5] [a₇ E₇] [C newest 6 ✂6] [d₇ E₇] [C applied 7]
//!    entry 5    entry 6                └── void: above 6, before ✂ ──┘  └ entry 7 is this one
//! ```
//!
//! # The problem
//!
//! A replica has entries that are not confirmed yet and may be taken back, and a state that includes all entries up
//! to the applied timestamp. Both are records of one stream, written once. The information that tells them apart must
//! be as durable as they are, and must not cost a fence of its own.
//!
//! # The records
//!
//! The changes of an entry are records whose version is its timestamp. An [`Entry`](coreplane_record::Kind::Entry)
//! record behind them closes it: one group, which counts as a whole. Each later *control record* states which
//! timestamp is applied. So the thesis's rollback record, with the list of the keys of an unconfirmed timestamp, is
//! the closing record together with the records before it that have its version; applying an entry moves nothing.
//!
//! The newest control record has the greatest number, wherever the cleaner has moved it. It is never lost.
//!
//! # Void records
//!
//! A timestamp that was rolled back is used again, for another entry. So a control record that rolls back makes a
//! range of records void ([`Void`]): all that stand before the place where it was written *first* and have a version
//! above its bound. It has this effect wherever it is moved, for as long as there is a page that may have such
//! records. A snapshot that replaces everything begins with a control record whose bound is 0.
//!
//! # In a tree
//!
//! In a tree the commit has the contents of a control record ([`Control::said`]), and leads to the pending entries.
//! No rule is needed to make other records void ([`tree`](crate::tree)).

use crate::volume::stream::Position;
use coreplane_engine::{Error, Result};
use coreplane_record::{Header, Kind, View};

/// The longest header of an entry.
pub const ENTRY_HEADER_MAX: usize = 256;
/// The longest list of members.
pub const MEMBERS_MAX: usize = 512;

// media-format: begin pool
/// Bytes of a control record's value before the header of the applied entry and the members.
const CONTROL_HEAD: usize = 56;
/// A bit above the bytes of the header: a snapshot is being installed.
const INSTALLS: u32 = 1 << 16;
/// From this bit on: the number of bytes of the members.
const MEMBERS: u32 = 17;
/// Bytes of a closing record's value before the header of its entry.
const ENTRY_HEAD: usize = 4;
/// Bytes of the log's part of a tree's commit, before the header of the applied entry and the members.
const SAID_HEAD: usize = 44;
// media-format: end

/// The state of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// The newest term that was seen.
    pub term: u64,
    /// The candidate voted for in that term; 0: none.
    pub vote: u64,
    /// The members, as the replicator encodes them.
    pub members: Vec<u8>,
    /// The newest timestamp that was appended.
    pub newest: u64,
    /// The newest timestamp that readers see.
    pub applied: u64,
    /// The header of the applied entry.
    pub applied_header: Vec<u8>,
    /// The oldest timestamp that can be read: the oldest one that is pinned, or the applied one. It is not on the
    /// medium, since pins are not.
    pub purged: u64,
    /// The installation of a snapshot was begun: the log is empty until one is installed as a whole. `applied` is the
    /// timestamp that was applied before.
    pub is_installing: bool,
}

/// The records that a control record takes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Void {
    /// The place where it was written first: records before it …
    pub(crate) origin: Position,
    /// … with a version above this do not count.
    pub(crate) above: u64,
}

impl Void {
    /// A bound that is above all versions.
    pub(crate) const NOTHING: u64 = u64::MAX;

    /// True if any record can be void by it.
    pub(crate) fn is_any(&self) -> bool {
        self.above != Self::NOTHING
    }

    /// True if a record with this version, at this place, is void.
    pub(crate) fn includes(&self, place: Position, version: u64) -> bool {
        version > self.above && place < self.origin
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}

impl Control {
    /// Bytes of the control record.
    pub(crate) fn record_len(&self) -> usize {
        Self::len_with(self.members.len(), self.applied_header.len())
    }

    /// Bytes of a record with these members and any header.
    pub(crate) fn record_len_max(&self) -> usize {
        Self::len_with(self.members.len(), ENTRY_HEADER_MAX)
    }

    fn len_with(members: usize, header: usize) -> usize {
        Header::put(0).record_len(&[], CONTROL_HEAD + members + header)
    }

    /// The value of the control record.
    // media-format: begin pool
    pub(crate) fn encode(&self, void: Void) -> Vec<u8> {
        let mut value = Vec::with_capacity(CONTROL_HEAD + self.members.len() + ENTRY_HEADER_MAX);
        value.extend_from_slice(&void.origin.birth.to_le_bytes());
        value.extend_from_slice(&void.origin.within.to_le_bytes());
        value.extend_from_slice(&self.form().to_le_bytes());
        for number in [void.above, self.term, self.vote, self.newest, self.applied] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(&self.applied_header);
        value.extend_from_slice(&self.members);
        value
    }

    fn form(&self) -> u32 {
        let installs = if self.is_installing { INSTALLS } else { 0 };
        self.applied_header.len() as u32 | installs | (self.members.len() as u32) << MEMBERS
    }

    /// The log's part of a tree's commit. `last` is the offset of the record that closes the newest pending entry (0:
    /// no entry is pending).
    pub(crate) fn said(&self, last: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.said_len_max());
        for number in [last, self.term, self.vote, self.newest, self.applied] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(&self.form().to_le_bytes());
        value.extend_from_slice(&self.applied_header);
        value.extend_from_slice(&self.members);
        value
    }
    // media-format: end

    /// The most bytes of [`Control::said`] with these members and any header.
    pub(crate) fn said_len_max(&self) -> usize {
        SAID_HEAD + self.members.len() + ENTRY_HEADER_MAX
    }

    /// Decodes the result of [`Control::said`]; none if the bytes are not of that kind.
    pub(crate) fn of_said(value: &[u8]) -> Option<(Self, u64)> {
        let rest = value.get(SAID_HEAD..)?;
        let form = u32::from_le_bytes(*value.get(40..)?.first_chunk()?);
        let (applied_header, members) = parts_of(form, rest)?;
        let control = Self {
            term: word(value, 8),
            vote: word(value, 16),
            members: members.to_vec(),
            newest: word(value, 24),
            applied: word(value, 32),
            applied_header: applied_header.to_vec(),
            purged: word(value, 32),
            is_installing: form & INSTALLS != 0,
        };
        Some((control, word(value, 0)))
    }

    /// Decodes a control record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none.
    pub(crate) fn decode(view: &View<'_>) -> Result<(Self, Void)> {
        let value = view.value();
        let form = (word(value, 8) >> 32) as u32;
        let parts = value.get(CONTROL_HEAD..).and_then(|rest| parts_of(form, rest));
        let (Some((header, members)), Kind::Commit) = (parts, view.header.kind) else {
            let what = "no control record of a log".to_owned();
            return Err(Error::Corrupt { offset: view.offset, what });
        };
        let origin = Position { birth: word(value, 0), within: word(value, 8) as u32 };
        let control = Self {
            term: word(value, 24),
            vote: word(value, 32),
            members: members.to_vec(),
            newest: word(value, 40),
            applied: word(value, 48),
            applied_header: header.to_vec(),
            purged: word(value, 48),
            is_installing: form & INSTALLS != 0,
        };
        Ok((control, Void { origin, above: word(value, 16) }))
    }
}

/// The header of the applied entry, and the members. None if the lengths differ: longer values are of a later
/// version.
fn parts_of(form: u32, rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, members) = rest.split_at_checked((form & (INSTALLS - 1)) as usize)?;
    (members.len() == (form >> MEMBERS) as usize).then_some((header, members))
}

/// # Errors
/// [`Error::ValueTooLong`] if a control record has no room for so many bytes of members.
pub(crate) fn check_members(members: &[u8]) -> Result<()> {
    if members.len() > MEMBERS_MAX {
        return Err(Error::ValueTooLong { len: members.len(), max: MEMBERS_MAX });
    }
    Ok(())
}

/// Bytes of the record that closes an entry whose header has so many bytes.
pub(crate) fn closing_len(header: usize) -> usize {
    Header::put(0).record_len(&[], ENTRY_HEAD + header)
}

/// The value of a record that closes an entry of so many changes, up to its header.
// media-format: begin pool
pub(crate) fn closing_head(changes: usize) -> [u8; ENTRY_HEAD] {
    (changes as u32).to_le_bytes()
}
// media-format: end

/// Decodes a closing record: the number of changes of its entry, and its header.
///
/// # Errors
/// [`Error::Corrupt`] if it is none.
pub(crate) fn closing<'g>(view: &View<'g>) -> Result<(usize, &'g [u8])> {
    match view.value().split_first_chunk::<ENTRY_HEAD>() {
        Some((count, header)) if view.header.kind == Kind::Entry => {
            Ok((u32::from_le_bytes(*count) as usize, header))
        }
        _ => {
            let what = "no record that closes an entry".to_owned();
            Err(Error::Corrupt { offset: view.offset, what })
        }
    }
}
