//! A start: the newest checkpoint, and the log behind it.

use super::frame::{Read, decode};
use super::log::Log;
use super::state::State;
use super::storage::{Part, Storage, Stored};
use super::{Pending, checkpoint, corrupt};
use coreplane_engine::Result;
use coreplane_mvcc::Control;
use coreplane_pmem::mutant;
use std::collections::VecDeque;

/// The result of a start.
pub(super) struct Recovered {
    pub(super) control: Control,
    pub(super) pending: VecDeque<Pending>,
    pub(super) state: State,
    pub(super) log: Log,
}

/// The state that was read so far.
struct Replay {
    control: Control,
    pending: VecDeque<Pending>,
    state: State,
}

impl Replay {
    /// Applies a frame; none if the frame contradicts the state.
    fn take(&mut self, frame: Read<'_>) -> Option<()> {
        match frame {
            Read::Entry { timestamp, header, changes } => {
                // The first frames of a log file restate the pending entries. They take nothing back: they may be cut
                // off, and pending entries behind them were acknowledged. A rollback has a frame of its own.
                if timestamp <= self.control.newest && !mutant!("replica.wal.restated") {
                    let at = usize::try_from(timestamp.checked_sub(self.control.applied + 1)?);
                    let known = self.pending.get(at.ok()?)?;
                    return (known.header == header).then_some(());
                }
                self.roll_back(timestamp.checked_sub(1)?)?;
                if timestamp != self.control.newest + 1 {
                    return None;
                }
                self.pending.push_back(Pending::new(header, changes));
                self.control.newest = timestamp;
            }
            Read::RollBack { to } => self.roll_back(to)?,
            Read::Control(read) => {
                for timestamp in self.control.applied + 1..=read.applied {
                    let Pending { header, changes, .. } = self.pending.pop_front()?;
                    changes.changes().for_each(|change| self.state.make(timestamp, change));
                    (self.control.applied, self.control.applied_header) = (timestamp, header);
                }
                if self.control.applied != read.applied {
                    return None;
                }
                let Control { term, vote, members, .. } = read;
                (self.control.term, self.control.vote) = (term, vote);
                self.control.members = members;
            }
            Read::Record { .. } | Read::End { .. } => return None,
        }
        Some(())
    }

    fn roll_back(&mut self, to: u64) -> Option<()> {
        let left = to.checked_sub(self.control.applied)?;
        self.pending.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        self.control.newest = self.control.newest.min(to);
        Some(())
    }
}

/// The numbers of the checkpoints, and of the logs, in order.
fn numbers(storage: &dyn Storage) -> Result<(Vec<u64>, Vec<u64>)> {
    let (mut checkpoints, mut logs) = (Vec::new(), Vec::new());
    for part in storage.parts()? {
        match part {
            Part::Checkpoint(number) => checkpoints.push(number),
            Part::Log(number) => logs.push(number),
        }
    }
    Ok((checkpoints, logs))
}

/// The frames of a log, up to its end or to the first incomplete frame.
struct Frames<'s> {
    stored: &'s Stored,
    at: usize,
    /// Its end frame was read: another log was to be begun.
    is_ended: bool,
}

impl<'s> Frames<'s> {
    fn new(stored: &'s Stored) -> Self {
        Self { stored, at: 0, is_ended: false }
    }

    fn rest(&self) -> &'s [u8] {
        self.stored.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next frame.
    fn next(&mut self) -> Option<Read<'s>> {
        let rest = self.rest();
        let (frame, next) =
            decode(rest, self.stored.seed_at(self.at)).filter(|_| !self.is_ended)?;
        self.at += rest.len() - next.len();
        if let Read::End { .. } = frame {
            self.is_ended = true;
            return None;
        }
        Some(frame)
    }

    /// True if nothing is missing, so that another log may follow.
    fn is_complete(&self) -> bool {
        self.is_ended || self.rest().is_empty()
    }
}

/// Reads the storage, or begins a log in an empty one.
///
/// # Errors
/// [`Error::Corrupt`](coreplane_engine::Error::Corrupt); if a part cannot be read.
pub(super) fn recover(storage: &dyn Storage) -> Result<Recovered> {
    let (checkpoints, logs) = numbers(storage)?;
    let from = checkpoints.last().copied();
    let (control, state) = match from {
        Some(number) => {
            let (control, state, _) = checkpoint::read(storage, number)?;
            (control, state)
        }
        None => (Control::default(), State::default()),
    };
    let mut replay = Replay { control, pending: VecDeque::new(), state };
    let first = from.unwrap_or(1);
    let logs: Vec<u64> = logs.into_iter().filter(|number| *number >= first).collect();
    let last = logs.last().copied().unwrap_or(first);
    let has_all = (first..=last).eq(logs.iter().copied());
    let is_new = logs.is_empty() && from.is_none();
    if !(has_all || is_new) {
        return Err(corrupt(&storage.name_of(Part::Log(first)), 0, "a log is missing"));
    }
    let (mut number, mut len) = (last, 0);
    for log in logs {
        let name = storage.name_of(Part::Log(log));
        let stored = storage.read(Part::Log(log))?;
        let mut frames = Frames::new(&stored);
        let mut before = 0;
        while let Some(frame) = frames.next() {
            let out_of_place = || corrupt(&name, before, "a frame out of place");
            replay.take(frame).ok_or_else(out_of_place)?;
            before = frames.at as u64;
        }
        if log != last && !frames.is_complete() {
            return Err(corrupt(&name, frames.at as u64, "no frame of a log"));
        }
        len = frames.at as u64;
        if log == last && frames.is_ended {
            (number, len) = (last + 1, 0);
        }
    }
    let log = Log::open(storage, number, len)?;
    let Replay { control, pending, state } = replay;
    Ok(Recovered { control, pending, state, log })
}

/// Checks all parts against their checksums: the bytes of logs that were read. The log of this number has so many
/// bytes.
///
/// # Errors
/// [`Error::Corrupt`](coreplane_engine::Error::Corrupt); if a part cannot be read.
pub(super) fn check(storage: &dyn Storage, (current, len): (u64, u64)) -> Result<u64> {
    let (checkpoints, logs) = numbers(storage)?;
    let mut read = 0;
    for number in checkpoints {
        checkpoint::read(storage, number)?;
    }
    for number in logs {
        let stored = storage.read(Part::Log(number))?;
        let mut frames = Frames::new(&stored);
        while frames.next().is_some() {}
        let is_whole = match number == current {
            true => frames.at as u64 == len,
            false => frames.is_complete(),
        };
        if !is_whole {
            let name = storage.name_of(Part::Log(number));
            return Err(corrupt(&name, frames.at as u64, "no frame of a log"));
        }
        read += frames.at as u64;
    }
    Ok(read)
}
