//! A bell that one thread rings, and for which another waits together with its sockets.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// The bell. Several rings before it is cleared wake its waiter once.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub(crate) fn ring(&self) {
        // Fails only if it was rung 2^64 times without being cleared.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
    }

    /// Clears the bell.
    pub(crate) fn clear(&self) {
        // Fails if it was not rung.
        rustix::io::read(&self.0, &mut [0; 8]).ok();
    }

    /// Waits until the bell is rung, a socket is ready to be read from or accepted from, or `time` is
    /// over. Returns which sockets are ready.
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
