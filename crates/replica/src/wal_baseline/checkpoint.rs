//! The state on a file, so that a start need not read the log from its beginning.

use super::frame::{Frame, Read, decode};
use super::log_file::log_path;
use super::state::{Pin, State};
use super::{corrupt, io_error};
use coreplane_engine::{ChangeRef, Error, Result, Snapshot};
use coreplane_mvcc::Control;
use coreplane_pmem::append_file::DraftFile;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that are written at once, with the state in hand.
const AT_ONCE: usize = 64 << 10;

/// The name of a checkpoint.
pub(super) fn checkpoint_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("checkpoint.{number:010}"))
}

/// Writes what is pinned: durable when it returns, and what is older is gone. The bytes that it has.
pub(super) fn write(directory: &Path, number: u64, control: &Control, pin: &Pin) -> Result<u64> {
    let path = checkpoint_path(directory, number);
    let mut file = DraftFile::create(&path).map_err(io_error("create", &path))?;
    let (mut bytes, mut written, mut count) = (Vec::new(), 0, 0);
    Frame::Control(control).encode(&mut bytes);
    let mut failed = None;
    let mut flush = |bytes: &mut Vec<u8>| {
        let done = file.append(bytes);
        written += bytes.len() as u64;
        bytes.clear();
        done
    };
    pin.scan(b"", None, false, usize::MAX, &mut |entry| {
        let Some(record) = entry.record else { return true };
        let (key, value) = (entry.key, record.value.to_cow());
        let (timestamp, expires_at) = (record.sequence, record.expires_at);
        Frame::Record { key, value: &value, timestamp, expires_at }.encode(&mut bytes);
        count += 1;
        if bytes.len() >= AT_ONCE {
            failed = flush(&mut bytes).err();
        }
        failed.is_none()
    })?;
    Frame::End { count }.encode(&mut bytes);
    let done = failed.map_or_else(|| flush(&mut bytes), Err);
    done.and_then(|()| file.publish()).map_err(io_error("write", &path))?;
    remove_older(directory, number)?;
    Ok(written)
}

/// Removes what a checkpoint has made void.
fn remove_older(directory: &Path, number: u64) -> Result<()> {
    let (checkpoints, logs) = files_of(directory)?;
    let paths = checkpoints.into_iter().map(|it| (it, checkpoint_path(directory, it)));
    let paths = paths.chain(logs.into_iter().map(|it| (it, log_path(directory, it))));
    for (_, path) in paths.filter(|(it, _)| *it < number) {
        fs::remove_file(&path).map_err(io_error("remove", &path))?;
    }
    Ok(())
}

/// The numbers of the checkpoints, and of the log files, in order.
pub(super) fn files_of(directory: &Path) -> Result<(Vec<u64>, Vec<u64>)> {
    let (mut checkpoints, mut logs) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory).map_err(io_error("read", directory))? {
        let name = entry.map_err(io_error("read", directory))?.file_name();
        match name.to_str().and_then(|name| name.split_once('.')) {
            Some(("checkpoint", number)) => checkpoints.extend(number.parse::<u64>().ok()),
            Some(("log", number)) => logs.extend(number.parse::<u64>().ok()),
            _ => {}
        }
    }
    checkpoints.sort_unstable();
    logs.sort_unstable();
    Ok((checkpoints, logs))
}

/// Reads a checkpoint: it is whole, or damaged.
pub(super) fn read(directory: &Path, number: u64) -> Result<(Control, State)> {
    let path = checkpoint_path(directory, number);
    let bytes = fs::read(&path).map_err(io_error("read", &path))?;
    let (mut control, mut state, mut rest) = (None, State::default(), bytes.as_slice());
    let damaged = |rest: &[u8]| -> Error {
        corrupt(&path, (bytes.len() - rest.len()) as u64, "no frame of a checkpoint")
    };
    loop {
        let (frame, next) = decode(rest).ok_or_else(|| damaged(rest))?;
        match (frame, &control) {
            (Read::Control(read), None) => control = Some(read),
            (Read::Record { key, value, timestamp, expires_at }, Some(_)) => {
                state.make(timestamp, ChangeRef::Put { key, value, expires_at });
            }
            (Read::End { count }, Some(_)) if count == state.len() && next.is_empty() => break,
            _ => return Err(damaged(rest)),
        }
        rest = next;
    }
    Ok((control.ok_or_else(|| damaged(rest))?, state))
}
