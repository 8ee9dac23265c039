//! Durability that is waited for later: tickets.

use crate::{Batch, DurableListener, Engine, Horizon, Result, Ticket, WriteOptions, Written};

/// How far a clear in steps has come. Each caller has one of its own, from the first step to the last: what was written
/// before its first step is gone after the last, whatever others clear meanwhile.
#[derive(Debug, Default)]
pub struct Clear {
    /// The first key that is left.
    pub next: Vec<u8>,
    /// The leadership in which it began, and the newest sequence of that time: newer records stay.
    pub until: Option<(u64, u64)>,
}

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

    /// A step of [`Engine::clear`], completed early; the ticket of the whole after the last one, and none before it. Where
    /// [`Deferred::settles_by_itself`] is false the first step is the last. Others see what is cleared step by step.
    ///
    /// # Errors
    /// As [`Engine::clear`]; [`Error::Busy`](crate::Error::Busy) if too much is under way: the step can be made later.
    fn clear_step(&self, _clear: &mut Clear) -> Result<Option<Ticket>> {
        self.clear().map(|()| Some(Ticket::DURABLE))
    }

    /// Grows whenever somebody else may have written without this engine's knowledge: in a cluster, with each leadership.
    fn leaderships(&self) -> u64 {
        0
    }

    /// As [`Engine::apply`], unless somebody else may have written since this was the number of
    /// [leaderships](Deferred::leaderships): what the changes rest on was read then.
    ///
    /// # Errors
    /// As [`Engine::apply`]; [`Error::Busy`](crate::Error::Busy) if so, and nothing was done.
    fn apply_within(
        &self,
        leadership: u64,
        batch: &Batch,
        options: &WriteOptions,
    ) -> Result<Written> {
        // Nobody else ever writes.
        let _none = leadership;
        self.apply(batch, options)
    }

    /// Registers one more listener, called (from any thread) whenever more became durable in the background. It must not
    /// call the engine, nor wait for anybody who does: who calls it may hold what they need.
    fn on_durable(&self, listener: DurableListener);
}
