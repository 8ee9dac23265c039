//! The state on the medium, so that a start need not read the log from its beginning.

use super::corrupt;
use super::frame::{Frame, Read, decode};
use super::state::{Pin, State};
use super::storage::{Part, Storage};
use coreplane_engine::{ChangeRef, Error, Result};
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
    let mut next = Some(Vec::new());
    while let Some(start) = next.take() {
        pin.walk((&start, None), &mut |entry| {
            let Some(record) = entry.record else { return true };
            let (key, value) = (entry.key, record.value.to_cow());
            let (timestamp, expires_at) = (record.sequence, record.expires_at);
            Frame::Record { key, value: &value, timestamp, expires_at }.encode(&mut bytes, seed);
            count += 1;
            next = (bytes.len() >= AT_ONCE).then(|| [key, &[0]].concat());
            next.is_none()
        });
        if next.is_none() {
            Frame::End { count }.encode(&mut bytes, seed);
        }
        // Not within the scan, during which no entry is applied: the medium may be slow.
        draft.append(&bytes)?;
        written += bytes.len() as u64;
        bytes.clear();
    }
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

#[cfg(test)]
mod tests {
    use super::super::storage::{Draft, Room, Stored, Tail};
    use super::*;
    use coreplane_pmem::Medium;
    use parking_lot::{Mutex, RwLock};
    use std::sync::Arc;

    /// A storage of one checkpoint, in DRAM. While it is appended to, the state may be changed.
    #[derive(Clone)]
    struct Watch {
        state: Arc<RwLock<State>>,
        bytes: Arc<Mutex<Vec<u8>>>,
    }

    impl Draft for Watch {
        fn append(&mut self, bytes: &[u8]) -> Result<()> {
            assert!(self.state.try_write().is_some(), "the state is locked");
            self.bytes.lock().extend_from_slice(bytes);
            Ok(())
        }

        fn seed(&self) -> u32 {
            7
        }

        fn publish(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    impl Storage for Watch {
        fn name(&self) -> &'static str {
            "watch"
        }

        fn medium(&self) -> Medium {
            unreachable!("nobody asks")
        }

        fn parts(&self) -> Result<Vec<Part>> {
            Ok(vec![Part::Checkpoint(1)])
        }

        fn name_of(&self, part: Part) -> String {
            format!("{part:?}")
        }

        fn read(&self, _: Part) -> Result<Stored> {
            Ok(Stored { bytes: self.bytes.lock().clone(), seeds: vec![(0, 7)], is_clean: true })
        }

        fn open_log(&self, _: u64, _: u64) -> Result<Box<dyn Tail>> {
            unreachable!("there is no log")
        }

        fn begin_checkpoint(&self, _: u64) -> Result<Box<dyn Draft>> {
            Ok(Box::new(self.clone()))
        }

        fn remove_before(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn room(&self) -> Option<Room> {
            None
        }
    }

    #[test]
    fn the_state_is_not_locked_while_a_checkpoint_is_written() {
        let state: Arc<RwLock<State>> = Arc::default();
        let value = |number: u64| vec![number as u8; 1 << (number % 18)];
        for number in 1..=600_u64 {
            let (key, value) = (number.to_be_bytes(), value(number));
            let change = ChangeRef::Put { key: &key, value: &value, expires_at: None };
            state.write().make(number, change);
        }
        let watch = Watch { state: Arc::clone(&state), bytes: Arc::default() };
        let pin = State::pin(&state, 600);
        let control = Control { newest: 600, applied: 600, ..Control::default() };
        let written = write(&watch, 1, &control, &pin).expect("a checkpoint");
        assert_eq!(written, watch.bytes.lock().len() as u64);
        let (_, found, _) = read(&watch, 1).expect("a whole checkpoint");
        assert_eq!(found.len(), 600);
        for number in 1..=600_u64 {
            let mut shown = None;
            let key = number.to_be_bytes();
            found.get(&key, u64::MAX, &mut |it| shown = Some((it.sequence, it.value.to_vec())));
            assert_eq!(shown, Some((number, value(number))));
        }
    }
}
