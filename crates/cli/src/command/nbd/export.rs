//! The disk as the NBD server sees it.

use coreplane_nbd as nbd;
use coreplane_nbd::{Errno, Extent, FlushDone, Request};
use coreplane_tio::{Disk, Error, Source, Tio};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A disk, and a thread that waits for its syncs.
#[derive(Debug)]
pub(super) struct DiskExport {
    disk: Arc<Disk>,
    /// None at the end.
    flushes: Option<Sender<FlushDone>>,
    thread: Option<JoinHandle<()>>,
}

fn errno_of(error: &Error) -> Errno {
    match error {
        Error::NoSpace { .. } => Errno::NoSpace,
        Error::OutOfRange { .. } => Errno::Invalid,
        Error::Closed => Errno::Shutdown,
        _ => Errno::Io,
    }
}

/// Flushes once for all requests that have arrived by then.
fn flush_for(disk: &Disk, asked: &Receiver<FlushDone>) {
    while let Ok(first) = asked.recv() {
        let mut all = vec![first];
        all.extend(asked.try_iter());
        let flushed = disk.flush().map_err(|error| errno_of(&error));
        all.into_iter().for_each(|done| done(flushed));
    }
}

impl DiskExport {
    pub(super) fn new(disk: Arc<Disk>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let flushed = Arc::clone(&disk);
        let thread = std::thread::Builder::new().name("coreplane-flush".to_owned());
        let thread = thread.spawn(move || flush_for(&flushed, &receiver))?;
        Ok(Self { disk, flushes: Some(sender), thread: Some(thread) })
    }
}

fn source_of(source: &nbd::Source) -> Source {
    let nbd::Source { connection, device, interval } = *source;
    Source { connection, device, interval }
}

fn tio_of(request: &mut Request) -> Tio {
    let (place, len) = (request.offset, u64::from(request.len));
    let bytes = std::mem::take(&mut request.bytes);
    match request.op {
        nbd::Op::Read => Tio { bytes, ..Tio::read(place, len) },
        nbd::Op::Write { fua } => Tio { fua, ..Tio::write(place, bytes) },
        nbd::Op::Trim { fua } | nbd::Op::WriteZeroes { fua, .. } => {
            // A sector without a block has been promised one.
            Tio { fua, ..Tio::zero(place, len) }
        }
        nbd::Op::Cache => Tio::read(place, 0),
    }
}

impl nbd::Disk for DiskExport {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn run(&self, source: &nbd::Source, batch: &mut [Request]) {
        let mut tios: Vec<Tio> = batch.iter_mut().map(tio_of).collect();
        self.disk.run(&source_of(source), &mut tios);
        for (request, tio) in batch.iter_mut().zip(tios) {
            request.outcome = tio.outcome.as_ref().map_err(errno_of).copied();
            request.bytes = tio.bytes;
        }
    }

    fn flush(&self, done: FlushDone) {
        if self.disk.is_durable_at_once() {
            return done(self.disk.flush().map_err(|error| errno_of(&error)));
        }
        // If it cannot be sent, `done` is dropped, which reports an error.
        let _sent = self.flushes.as_ref().map(|sender| sender.send(done).is_ok());
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, Extent) -> bool,
    ) -> Result<(), Errno> {
        self.disk.status(offset, len, &mut |len, has_block| {
            visit(len, if has_block { Extent::Data } else { Extent::Hole })
        });
        Ok(())
    }

    fn join(&self, source: &nbd::Source) {
        self.disk.join(&source_of(source));
    }

    fn leave(&self, source: &nbd::Source) {
        self.disk.leave(&source_of(source));
    }
}

impl Drop for DiskExport {
    fn drop(&mut self) {
        drop(self.flushes.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join().is_ok();
        }
    }
}
