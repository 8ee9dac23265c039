//! Flushes under way, which block neither their connection nor the disk. The connection goes on with
//! later requests; the disk's thread stores the outcome here and rings. The connection's thread
//! writes the replies. If the disk's thread wrote them, a client that does not read would delay the
//! flushes of all clients.

use crate::disk::Errno;
use crate::wake::Wake;
use parking_lot::Mutex;
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::Arc;

/// Flushes under way from which on a connection is not read from any more.
const UNDER_WAY_MAX: usize = 1024;

/// The flushes of a connection.
#[derive(Debug)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct State {
    /// The number of requests, not of calls of the disk.
    under_way: usize,
    done: Vec<(u64, Result<(), Errno>)>,
    /// The connection's thread waits for the bell.
    is_awaited: bool,
}

/// The requests that one flush of the disk answers. If it is dropped without an outcome, they have failed.
#[derive(Debug)]
pub(crate) struct Pending {
    flushes: Arc<Flushes>,
    cookies: Vec<u64>,
}

impl Flushes {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { state: Mutex::default(), wake: Wake::new()? }))
    }

    /// Begins a flush that answers these requests.
    pub(crate) fn begin(self: &Arc<Self>, cookies: Vec<u64>) -> Pending {
        self.state.lock().under_way += cookies.len();
        Pending { flushes: self.clone(), cookies }
    }

    /// Takes the finished flushes.
    pub(crate) fn take(&self, mut visit: impl FnMut(u64, Result<(), Errno>)) {
        let mut state = self.state.lock();
        state.is_awaited = false;
        state.done.drain(..).for_each(|(cookie, outcome)| visit(cookie, outcome));
    }

    /// True if there are flushes under way, or finished and not taken.
    pub(crate) fn are_some(&self) -> bool {
        let state = self.state.lock();
        state.under_way > 0 || !state.done.is_empty()
    }

    /// True if no further flush should begin before some are done.
    pub(crate) fn are_many(&self) -> bool {
        self.state.lock().under_way >= UNDER_WAY_MAX
    }

    /// Waits until a flush is done, or one of `sockets` can be read from. True if one can.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wait(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<bool> {
        if !self.await_bell() {
            return Ok(false);
        }
        let ready = self.wake.wait(sockets, None)?;
        self.wake.clear();
        Ok(ready.contains(&true))
    }

    /// Asks for the bell when a flush is done. False if one is done already.
    fn await_bell(&self) -> bool {
        let mut state = self.state.lock();
        state.is_awaited = state.done.is_empty();
        state.is_awaited
    }

    fn finish(&self, cookies: &mut Vec<u64>, outcome: Result<(), Errno>) {
        let mut state = self.state.lock();
        state.under_way -= cookies.len();
        state.done.extend(cookies.drain(..).map(|cookie| (cookie, outcome)));
        if std::mem::take(&mut state.is_awaited) {
            self.wake.ring();
        }
    }
}

impl Pending {
    pub(crate) fn finish(mut self, outcome: Result<(), Errno>) {
        self.flushes.finish(&mut self.cookies, outcome);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.cookies.is_empty() {
            self.flushes.finish(&mut self.cookies, Err(Errno::Io));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(flushes: &Flushes) -> Vec<(u64, Result<(), Errno>)> {
        let mut all = Vec::new();
        flushes.take(|cookie, outcome| all.push((cookie, outcome)));
        all
    }

    #[test]
    fn a_flush_that_is_dropped_has_failed() {
        let flushes = Flushes::new().unwrap();
        drop(flushes.begin(vec![1, 2]));
        assert_eq!(taken(&flushes), [(1, Err(Errno::Io)), (2, Err(Errno::Io))]);
        assert!(!flushes.are_some());
    }

    #[test]
    fn the_bell_is_rung_for_who_waits() {
        let flushes = Flushes::new().unwrap();
        let pending = flushes.begin(vec![7]);
        assert!(flushes.are_some());
        std::thread::scope(|scope| {
            scope.spawn(|| pending.finish(Ok(())));
            assert!(!flushes.wait(&[]).unwrap());
        });
        assert!(!flushes.await_bell(), "one is done");
        assert_eq!(taken(&flushes), [(7, Ok(()))]);
    }
}
