//! The thread of a matrix that fills filters and makes them anew. It is started at the first request.

use coreplane_pmem::{background, spin};
use parking_lot::{Mutex, MutexGuard};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};

/// The thread, and the right to make a filter anew.
#[derive(Debug, Default)]
pub(crate) struct ResizeThread {
    is_asked: AtomicBool,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Held by a thread that makes a filter anew.
    resize: Mutex<()>,
}

impl ResizeThread {
    /// Requests a check of all filters, by a thread that runs `run`, unless the matrix is closed by then.
    pub(crate) fn ask(&self, is_closed: impl Fn() -> bool, run: impl FnOnce() + Send + 'static) {
        self.is_asked.store(true, Ordering::Release);
        match self.thread.get() {
            Some(thread) => thread.unpark(),
            None => self.start(is_closed, run),
        }
    }

    #[cold]
    fn start(&self, is_closed: impl Fn() -> bool, run: impl FnOnce() + Send + 'static) {
        let mut handle = spin::lock(&self.handle);
        if self.thread.get().is_some() || is_closed() {
            return;
        }
        // If the system gives no thread, filters get fuller, and the next writer tries again.
        if let Ok(started) = background::spawn("coreplane-filters", run) {
            self.thread.get_or_init(|| started.thread().clone());
            *handle = Some(started);
        }
    }

    /// True if a check was requested since this was called last.
    pub(crate) fn take_request(&self) -> bool {
        self.is_asked.swap(false, Ordering::AcqRel)
    }

    /// The right to make a filter anew: one at a time.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.resize.lock()
    }

    /// Ends the thread. The matrix is closed by now.
    pub(crate) fn stop(&self) {
        let handle = spin::lock(&self.handle).take();
        if let Some(handle) = handle {
            handle.thread().unpark();
            // A panic there has been reported by its thread.
            let _ended = handle.join().is_ok();
        }
    }
}
