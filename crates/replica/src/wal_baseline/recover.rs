//! A start: the newest checkpoint, and the log behind it.

use super::checkpoint::{self, files_of};
use super::frame::{Read, decode, frames_len};
use super::log_file::{LogFile, log_path};
use super::state::State;
use super::{Pending, corrupt, io_error};
use coreplane_engine::Result;
use coreplane_mvcc::Control;
use coreplane_pmem::mutant;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// What a start has found.
pub(super) struct Recovered {
    pub(super) control: Control,
    pub(super) pending: VecDeque<Pending>,
    pub(super) state: State,
    pub(super) log: LogFile,
}

/// What has been read so far.
struct Replay {
    control: Control,
    pending: VecDeque<Pending>,
    state: State,
}

impl Replay {
    /// Does again what a frame says; none if it says what cannot be.
    fn take(&mut self, frame: Read<'_>) -> Option<()> {
        match frame {
            Read::Entry { timestamp, header, changes } => {
                // The first frames of a log file say again what is pending. They take nothing back: they may be cut off,
                // and what is pending behind them was acknowledged. What is taken back has a frame of its own.
                if timestamp <= self.control.newest && !mutant!("replica.wal.restated") {
                    let at = usize::try_from(timestamp.checked_sub(self.control.applied + 1)?);
                    let known = self.pending.get(at.ok()?)?;
                    return (known.header == header).then_some(());
                }
                self.roll_back(timestamp.checked_sub(1)?)?;
                if timestamp != self.control.newest + 1 {
                    return None;
                }
                self.pending.push_back(Pending { header: header.to_vec(), changes });
                self.control.newest = timestamp;
            }
            Read::RollBack { to } => self.roll_back(to)?,
            Read::Control(read) => {
                for timestamp in self.control.applied + 1..=read.applied {
                    let Pending { header, changes } = self.pending.pop_front()?;
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

/// Reads what is there, or begins a log where there is none.
///
/// # Errors
/// [`Error::Corrupt`](coreplane_engine::Error::Corrupt); if a file cannot be read.
pub(super) fn recover(directory: &Path) -> Result<Recovered> {
    let (checkpoints, logs) = files_of(directory)?;
    let from = checkpoints.last().copied();
    let (control, state) = match from {
        Some(number) => checkpoint::read(directory, number)?,
        None => (Control::default(), State::default()),
    };
    let mut replay = Replay { control, pending: VecDeque::new(), state };
    let first = from.unwrap_or(1);
    let logs: Vec<u64> = logs.into_iter().filter(|number| *number >= first).collect();
    let last = logs.last().copied().unwrap_or(first);
    let has_all = (first..=last).eq(logs.iter().copied());
    let is_new = logs.is_empty() && from.is_none();
    if !(has_all || is_new) {
        return Err(corrupt(&log_path(directory, first), 0, "a log file is missing"));
    }
    let mut len = 0;
    for number in logs {
        let path = log_path(directory, number);
        let bytes = read_log(&path, READ_BYTES)?;
        let mut rest = bytes.as_slice();
        while let Some((frame, next)) = decode(rest) {
            let offset = (bytes.len() - rest.len()) as u64;
            replay.take(frame).ok_or_else(|| corrupt(&path, offset, "a frame out of place"))?;
            rest = next;
        }
        len = (bytes.len() - rest.len()) as u64;
        if number != last && !rest.is_empty() {
            return Err(corrupt(&path, len, "no frame of a log"));
        }
    }
    let log = LogFile::open(directory, last, len)?;
    let Replay { control, pending, state } = replay;
    Ok(Recovered { control, pending, state, log })
}

/// The bytes of a log file up to where nothing is allocated, or was written yet.
fn read_log(path: &Path, step: usize) -> Result<Vec<u8>> {
    let failed = || io_error("read", path);
    let mut file = File::open(path).map_err(failed())?;
    let (mut bytes, mut whole) = (Vec::new(), 0);
    loop {
        let before = bytes.len();
        file.by_ref().take(step as u64).read_to_end(&mut bytes).map_err(failed())?;
        whole += frames_len(bytes.get(whole..).unwrap_or_default());
        let is_end = bytes.get(whole..).is_some_and(|rest| rest.starts_with(&[0; 4]));
        if bytes.len() == before || is_end {
            return Ok(bytes);
        }
    }
}

/// Holds all files against their checksums: the bytes that were read.
///
/// # Errors
/// [`Error::Corrupt`](coreplane_engine::Error::Corrupt); if a file cannot be read.
pub(super) fn check(directory: &Path) -> Result<u64> {
    let (checkpoints, logs) = files_of(directory)?;
    let mut read = 0;
    for number in checkpoints {
        checkpoint::read(directory, number)?;
    }
    for number in logs {
        let path = log_path(directory, number);
        let bytes = read_log(&path, READ_BYTES)?;
        let (mut rest, mut len) = (bytes.as_slice(), 0);
        while let Some((_, next)) = decode(rest) {
            rest = next;
            len = bytes.len() - rest.len();
        }
        if !(rest.is_empty() || rest.starts_with(&[0; 4])) {
            return Err(corrupt(&path, len as u64, "no frame of a log"));
        }
        read += len as u64;
    }
    Ok(read)
}
