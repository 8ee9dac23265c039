//! The state on the medium, so that a start need not read the log from its beginning.

use super::corrupt;
use super::frame::{Frame, Read, decode};
use super::state::{Pin, State};
use super::storage::{Part, Storage};
use coreplane_engine::{ChangeRef, Error, Result, Snapshot};
use coreplane_mvcc::Control;

/// Bytes that are written together.
const AT_ONCE: usize = 64 << 10;

/// Writes the pinned state: durable when it returns, and older parts are gone. The bytes written.
pub(super) fn write(
    storage: &dyn Storage,
    number: u64,
    control: &Control,
    pin: &Pin,
) -> Result<u64> {
    let mut draft = storage.begin_checkpoint(number)?;
    let (seed, mut bytes, mut written, mut count) = (draft.seed(), Vec::new(), 0, 0);
    Frame::Control(control).encode(&mut bytes, seed);
    let mut failed = None;
    let mut flush = |bytes: &mut Vec<u8>| {
        let done = draft.append(bytes);
        written += bytes.len() as u64;
        bytes.clear();
        done
    };
    pin.scan(b"", None, false, usize::MAX, &mut |entry| {
        let Some(record) = entry.record else { return true };
        let (key, value) = (entry.key, record.value.to_cow());
        let (timestamp, expires_at) = (record.sequence, record.expires_at);
        Frame::Record { key, value: &value, timestamp, expires_at }.encode(&mut bytes, seed);
        count += 1;
        if bytes.len() >= AT_ONCE {
            failed = flush(&mut bytes).err();
        }
        failed.is_none()
    })?;
    Frame::End { count }.encode(&mut bytes, seed);
    failed.map_or_else(|| flush(&mut bytes), Err)?;
    draft.publish()?;
    storage.remove_before(number)?;
    Ok(written)
}

/// Reads a checkpoint: it is whole, or damaged. Its bytes.
pub(super) fn read(storage: &dyn Storage, number: u64) -> Result<(Control, State, u64)> {
    let part = Part::Checkpoint(number);
    let stored = storage.read(part)?;
    let (bytes, mut rest) = (stored.bytes.as_slice(), stored.bytes.as_slice());
    let (mut control, mut state) = (None, State::default());
    let damaged = |rest: &[u8]| -> Error {
        let offset = (bytes.len() - rest.len()) as u64;
        corrupt(&storage.name_of(part), offset, "no frame of a checkpoint")
    };
    loop {
        let seed = stored.seed_at(bytes.len() - rest.len());
        let (frame, next) = decode(rest, seed).ok_or_else(|| damaged(rest))?;
        let is_end = next.is_empty() || !stored.is_clean;
        match (frame, &control) {
            (Read::Control(read), None) => control = Some(read),
            (Read::Record { key, value, timestamp, expires_at }, Some(_)) => {
                state.make(timestamp, ChangeRef::Put { key, value, expires_at });
            }
            (Read::End { count }, Some(_)) if count == state.len() && is_end => {
                let control = control.ok_or_else(|| damaged(rest))?;
                return Ok((control, state, (bytes.len() - next.len()) as u64));
            }
            _ => return Err(damaged(rest)),
        }
        rest = next;
    }
}
