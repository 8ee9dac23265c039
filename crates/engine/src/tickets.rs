//! Durability that is waited for later: tickets.

use crate::{DurableListener, Engine, Horizon, Result, Ticket};

/// An engine some of whose writes become durable after their call has returned: those completed
/// [`Early`](crate::Completion::Early), each with its [`Ticket`].
///
/// # Errors
/// As [`Engine`].
pub trait Deferred: Engine {
    /// Starts to make all of `horizon` durable and says whether it already is. On media whose
    /// fence is an instruction it makes the one fence of all early writes of the horizon's logs
    /// here and returns true; on `file` it asks for a sync.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it never will be.
    fn commit(&self, horizon: &Horizon) -> Result<bool>;

    /// The ticket of everything that is visible now: once it is durable, so is all that any
    /// earlier read may have rested on. For answers that rest on more than the records shown: an
    /// iteration's (absences too), a count. [`Ticket::DURABLE`] where nothing is visible before
    /// it is durable.
    fn visible_ticket(&self) -> Ticket {
        Ticket::DURABLE
    }

    /// True if all of `horizon` is durable. Never blocks.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it never will be.
    fn is_durable(&self, horizon: &Horizon) -> Result<bool>;

    /// Blocks until all of `horizon` is durable.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it never will be.
    fn wait_durable(&self, horizon: &Horizon) -> Result<()>;

    /// True if tickets become durable without anybody's wait: there is no sync that a caller could lend its thread to.
    fn settles_by_itself(&self) -> bool {
        false
    }

    /// As [`Engine::clear`], completed early.
    ///
    /// # Errors
    /// As [`Engine::clear`]; [`Error::Busy`](crate::Error::Busy) if it has begun, and is to be asked for again.
    fn clear_early(&self) -> Result<Ticket> {
        self.clear().map(|()| Ticket::DURABLE)
    }

    /// Grows whenever somebody else may have written without this engine's knowledge: in a cluster, with each leadership.
    fn leaderships(&self) -> u64 {
        0
    }

    /// Registers one more listener, called (from any thread) whenever more became durable in the background.
    fn on_durable(&self, listener: DurableListener);
}
