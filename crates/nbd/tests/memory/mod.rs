//! A disk in memory; its flushes can be held back.

#![allow(dead_code)]

use coreplane_nbd::{Disk, Errno, Extent, FlushDone, Op, Request, SECTOR, Source};
use std::sync::Mutex;

const SECTOR_BYTES: usize = SECTOR as usize;

/// The disk.
#[derive(Default)]
pub(crate) struct Memory {
    state: Mutex<State>,
}

/// The contents of the disk, and the calls it received.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) bytes: Vec<u8>,
    /// Which sectors take space.
    pub(crate) present: Vec<bool>,
    /// Lengths of the batches.
    pub(crate) batches: Vec<usize>,
    /// The number of changes with `fua`.
    pub(crate) fua: usize,
    pub(crate) flushes: usize,
    /// Connections that have joined, and connections that have left.
    pub(crate) sources: Vec<Source>,
    pub(crate) left: Vec<Source>,
    /// True if flushes are held back, in `held`.
    pub(crate) holds: bool,
    pub(crate) held: Vec<FlushDone>,
    /// The next batch panics.
    pub(crate) panics: bool,
}

impl Memory {
    /// A disk of `sectors` sectors, all of them holes.
    pub(crate) fn new(sectors: usize) -> Self {
        let (bytes, present) = (vec![0; sectors * SECTOR_BYTES], vec![false; sectors]);
        Self { state: Mutex::new(State { bytes, present, ..State::default() }) }
    }

    /// Reads or changes the state.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl State {
    fn touched(&mut self, begin: usize, end: usize, present: bool) {
        let (first, last) = match present {
            true => (begin / SECTOR_BYTES, end.div_ceil(SECTOR_BYTES)),
            false => (begin.div_ceil(SECTOR_BYTES), end / SECTOR_BYTES),
        };
        if first < last {
            self.present[first..last].fill(present);
        }
    }

    fn run(&mut self, request: &mut Request) {
        let begin = request.offset as usize;
        let end = begin + request.len as usize;
        match request.op {
            Op::Read => request.bytes.copy_from_slice(&self.bytes[begin..end]),
            Op::Write { .. } => {
                self.bytes[begin..end].copy_from_slice(&request.bytes);
                self.touched(begin, end, true);
            }
            Op::Trim { .. } => {
                let first = begin.next_multiple_of(SECTOR_BYTES);
                let last = end / SECTOR_BYTES * SECTOR_BYTES;
                if first < last {
                    self.bytes[first..last].fill(0);
                    self.touched(begin, end, false);
                }
            }
            Op::WriteZeroes { no_hole, .. } => {
                self.bytes[begin..end].fill(0);
                self.touched(begin, end, no_hole);
            }
            Op::Cache => {}
        }
        self.fua += match request.op {
            Op::Write { fua } | Op::Trim { fua } | Op::WriteZeroes { fua, .. } => usize::from(fua),
            Op::Read | Op::Cache => 0,
        };
        request.outcome = Ok(());
    }
}

impl Disk for Memory {
    fn len(&self) -> u64 {
        self.with(|state| state.bytes.len() as u64)
    }

    fn run(&self, source: &Source, batch: &mut [Request]) {
        self.with(|state| {
            assert!(!std::mem::take(&mut state.panics), "the panic that was asked for");
            assert!(state.sources.contains(source), "it has joined");
            state.batches.push(batch.len());
            batch.iter_mut().for_each(|request| state.run(request));
        });
    }

    fn flush(&self, done: FlushDone) {
        let done = self.with(|state| {
            state.flushes += 1;
            if state.holds {
                state.held.push(done);
                return None;
            }
            Some(done)
        });
        if let Some(done) = done {
            done(Ok(()));
        }
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<(), Errno> {
        let sector = u64::from(SECTOR);
        let present = self.with(|state| state.present.clone());
        let mut at = offset;
        while at < offset + len {
            let end = ((at / sector + 1) * sector).min(offset + len);
            let extent = match present[(at / sector) as usize] {
                true => Extent::Data,
                false => Extent::Hole,
            };
            if !visit(end - at, extent) {
                break;
            }
            at = end;
        }
        Ok(())
    }

    fn join(&self, source: &Source) {
        self.with(|state| state.sources.push(*source));
    }

    fn leave(&self, source: &Source) {
        self.with(|state| state.left.push(*source));
    }
}
