//! The scrub of a disk or of time series while they are served: a thread that reads piece after piece, and rests in
//! between so long that it takes a hundredth of a core, or as much as requested.

use coreplane_engine::scrub_rest;
use coreplane_pmem::background;
use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// A hundredth of a core.
pub(crate) const PERCENT: u8 = 1;

/// A thread that reads the stored data until this is dropped, and reports damage.
#[derive(Debug)]
pub(crate) struct Scrub {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scrub {
    /// Calls `look` again and again, for so many hundredths of a core at most; 0 counts as one. `look` returns
    /// whether there is more.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(crate) fn begin(
        percent: u8,
        look: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, is_over) = channel();
        let thread = background::spawn("coreplane-scrub", move || scrub(percent, look, &is_over))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            drop(thread.join());
        }
    }
}

fn scrub(percent: u8, mut look: impl FnMut() -> ControlFlow<()>, is_over: &Receiver<()>) {
    loop {
        let begun = Instant::now();
        if look().is_break() {
            return;
        }
        let rest = scrub_rest(begun.elapsed()) / u32::from(percent.max(PERCENT));
        if is_over.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
