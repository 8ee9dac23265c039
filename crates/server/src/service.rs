//! A service that runs beside the connections in the first event loop.

use crate::event_loop::{EventLoop, FIRST_LISTENER, FIRST_SERVICE};
use mio::event::Event;
use mio::{Registry, Token};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wakes a loop, from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A service with sockets and deadlines of its own, which the first event loop polls with its connections. So its
/// messages and the requests of clients are handled in the same turns, without a hand-over between threads.
///
/// A turn: [`PolledService::ready`] for each of its ready sockets, [`PolledService::begin_turn`], the clients'
/// commands and the commit of all writes that they depend on, [`PolledService::end_turn`].
pub trait PolledService: Send + Debug {
    /// Starts the service. Its sockets are registered with tokens of this range; `wake` makes a turn begin.
    ///
    /// # Errors
    /// If it cannot start: then the server does not start either.
    fn start(&mut self, registry: &Registry, tokens: Range<usize>, wake: Wake) -> io::Result<()>;

    /// One of its sockets is ready.
    fn ready(&mut self, registry: &Registry, event: &Event);

    /// The latest time at which a turn must begin.
    fn deadline(&self) -> Option<Instant>;

    /// A turn begins.
    fn begin_turn(&mut self, registry: &Registry, now: Instant);

    /// A turn ends: the messages of this turn are sent.
    fn end_turn(&mut self, registry: &Registry);
}

impl EventLoop {
    /// Polls the service with its connections.
    pub(crate) fn add_service(&mut self, mut service: Box<dyn PolledService>) -> io::Result<()> {
        let (host, member) = (Arc::clone(&self.host), self.member);
        let wake = Arc::new(move || host.ports[member].wake());
        service.start(self.poll.registry(), FIRST_SERVICE..FIRST_LISTENER, wake)?;
        self.service = Some(service);
        Ok(())
    }

    /// The longest time that the loop may sleep.
    pub(crate) fn sleep_max(&self) -> Duration {
        let deadline = self.service.as_ref().and_then(|service| service.deadline());
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        left.map_or(self.tick_length(), |left| left.min(self.tick_length()))
    }
}

/// True for a token of the service.
pub(crate) fn is_of_service(token: Token) -> bool {
    (FIRST_SERVICE..FIRST_LISTENER).contains(&token.0)
}
