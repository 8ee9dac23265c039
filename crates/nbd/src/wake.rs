//! A bell: one thread waits for it beside its sockets, another rings.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// The bell. Rung once or often, it wakes once.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub(crate) fn ring(&self) {
        // Fails only if it was rung 2^64 times and nobody came.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
    }

    /// Takes back that it was rung.
    pub(crate) fn clear(&self) {
        // Fails if it was not.
        rustix::io::read(&self.0, &mut [0; 8]).ok();
    }

    /// Waits until it is rung, one of `sockets` can be read from or accepted from, or `time` is over.
    /// Which sockets.
    pub(crate) fn wait(
        &self,
        sockets: &[BorrowedFd<'_>],
        time: Option<Duration>,
    ) -> io::Result<Vec<bool>> {
        let mut polled: Vec<PollFd<'_>> = [self.0.as_fd()]
            .iter()
            .chain(sockets)
            .map(|socket| PollFd::from_borrowed_fd(*socket, PollFlags::IN))
            .collect();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut polled, time.as_ref()) {
            Ok(_) => Ok(polled[1..].iter().map(|it| !it.revents().is_empty()).collect()),
            Err(Errno::INTR) => Ok(vec![false; sockets.len()]),
            Err(error) => Err(error.into()),
        }
    }
}
