//! The requests of a client to a disk: recorded, kept in a file, and read from there.

use coreplane_nbd as nbd;
use coreplane_nbd::{Errno, Extent, FlushDone, Request};
use std::sync::{Mutex, MutexGuard};

/// A request, in the order of execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Write {
        place: u64,
        bytes: Vec<u8>,
        fua: bool,
    },
    Zero {
        place: u64,
        len: u64,
        fua: bool,
    },
    Flush,
    /// The file system has been made.
    Made,
    /// A file is complete, and was acknowledged.
    Synced(u64),
}

/// A disk in memory that records its requests.
pub(crate) struct Recorder {
    state: Mutex<(Vec<u8>, Vec<Entry>)>,
}

impl Recorder {
    /// A disk of so many bytes, all zero.
    pub(crate) fn new(len: usize) -> Self {
        Self { state: Mutex::new((vec![0; len], Vec::new())) }
    }

    /// The recorded requests.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        std::mem::take(&mut self.state().1)
    }

    fn state(&self) -> MutexGuard<'_, (Vec<u8>, Vec<Entry>)> {
        self.state.lock().expect("no panic")
    }

    pub(crate) fn note(&self, entry: Entry) {
        self.state().1.push(entry);
    }
}

/// A trace as bytes: of each entry its kind, place, length and FUA, then the written bytes.
pub(crate) fn to_bytes(entries: &[Entry]) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in entries {
        let (kind, place, len, fua, bytes) = match entry {
            Entry::Write { place, bytes, fua } => (0, *place, bytes.len() as u64, *fua, &bytes[..]),
            Entry::Zero { place, len, fua } => (1, *place, *len, *fua, &[][..]),
            Entry::Flush => (2, 0, 0, false, &[][..]),
            Entry::Made => (3, 0, 0, false, &[][..]),
            Entry::Synced(number) => (4, *number, 0, false, &[][..]),
        };
        for word in [kind, place, len, u64::from(fua)] {
            all.extend_from_slice(&word.to_le_bytes());
        }
        all.extend_from_slice(bytes);
    }
    all
}

/// The inverse of [`to_bytes`]; none if the bytes are cut off, or no trace.
pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<32>() {
        let word = |at: usize| {
            head[at..at + 8].iter().rev().fold(0, |word, it| word << 8 | u64::from(*it))
        };
        let (place, len, fua) = (word(8), word(16), word(24) != 0);
        bytes = rest;
        entries.push(match word(0) {
            0 => {
                let (written, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                bytes = rest;
                Entry::Write { place, bytes: written.to_vec(), fua }
            }
            1 => Entry::Zero { place, len, fua },
            2 => Entry::Flush,
            3 => Entry::Made,
            4 => Entry::Synced(place),
            _ => return None,
        });
    }
    bytes.is_empty().then_some(entries)
}

impl nbd::Disk for Recorder {
    fn len(&self) -> u64 {
        self.state().0.len() as u64
    }

    fn run(&self, _source: &nbd::Source, batch: &mut [Request]) {
        let mut state = self.state();
        let (disk, entries) = &mut *state;
        for request in batch {
            let (place, len) = (request.offset, u64::from(request.len));
            let range = place as usize..place as usize + len as usize;
            match request.op {
                nbd::Op::Read => request.bytes.copy_from_slice(&disk[range]),
                nbd::Op::Write { fua } => {
                    disk[range].copy_from_slice(&request.bytes);
                    entries.push(Entry::Write { place, bytes: request.bytes.clone(), fua });
                }
                nbd::Op::Trim { fua } | nbd::Op::WriteZeroes { fua, .. } => {
                    disk[range].fill(0);
                    entries.push(Entry::Zero { place, len, fua });
                }
                nbd::Op::Cache => {}
            }
            request.outcome = Ok(());
        }
    }

    fn flush(&self, done: FlushDone) {
        self.note(Entry::Flush);
        done(Ok(()));
    }

    fn status(
        &self,
        _offset: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<(), Errno> {
        visit(len, Extent::Data);
        Ok(())
    }

    fn join(&self, _source: &nbd::Source) {}

    fn leave(&self, _source: &nbd::Source) {}
}
