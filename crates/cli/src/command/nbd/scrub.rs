//! The scrub of a disk that is served: all sectors are read, one extent after the other, at a hundredth of a core at most.

use coreplane_engine::scrub_rest;
use coreplane_tio::Disk;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// A thread that reads a disk until this is dropped, and says which sectors are damaged.
#[derive(Debug)]
pub(super) struct Scrub {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scrub {
    pub(super) fn of(disk: &Arc<Disk>) -> io::Result<Self> {
        let (stop, is_over) = channel();
        let disk = Arc::clone(disk);
        let thread = std::thread::Builder::new().name("coreplane-scrub".to_owned());
        let thread = thread.spawn(move || scrub(&disk, &is_over))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been said already.
            drop(thread.join());
        }
    }
}

fn scrub(disk: &Disk, is_over: &Receiver<()>) {
    let (mut next, mut known) = (0, BTreeSet::new());
    loop {
        let begun = Instant::now();
        match disk.scrub_next(&mut next) {
            Ok(found) => {
                for sector in found.damaged.into_iter().filter(|sector| known.insert(*sector)) {
                    eprintln!(
                        "coreplane: sector {sector} is damaged: it reads as an error until it is written"
                    );
                }
            }
            // Nothing more can be read.
            Err(error) => return eprintln!("coreplane: the scrub has ended: {error}"),
        }
        if is_over.recv_timeout(scrub_rest(begun.elapsed())) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
