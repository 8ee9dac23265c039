//! Tickets: callers wait for durability later.

use crate::{Batch, DurableListener, Engine, Horizon, Result, Ticket, WriteOptions, Written};

/// The progress of a clear in steps. Each caller has its own, from the first step to the last: records written before
/// its first step are gone after the last, whatever other callers clear meanwhile.
#[derive(Debug, Default)]
pub struct Clear {
    /// The first key that is not yet cleared.
    pub next: Vec<u8>,
    /// The leadership in which the clear began, and the newest sequence at that time: newer records stay.
    pub until: Option<(u64, u64)>,
}

/// An engine some of whose writes become durable after their call has returned: those completed
/// [`Early`](crate::Completion::Early), each with its [`Ticket`].
///
/// # Errors
/// As [`Engine`].
pub trait Deferred: Engine {
    /// Starts to make all of `horizon` durable and returns whether it already is. On media whose
    /// fence is an instruction, this call makes one fence for all early writes of the horizon's
    /// logs and returns true; on `file` it requests a sync.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it can never become durable.
    fn commit(&self, horizon: &Horizon) -> Result<bool>;

    /// The ticket of everything that is visible now: once it is durable, so is every write that an
    /// earlier read may have depended on. For answers that depend on more than the records shown:
    /// of an iteration (absences too), or a count. [`Ticket::DURABLE`] where nothing is visible
    /// before it is durable.
    fn visible_ticket(&self) -> Ticket {
        Ticket::DURABLE
    }

    /// True if all of `horizon` is durable. Never blocks.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it can never become durable.
    fn is_durable(&self, horizon: &Horizon) -> Result<bool>;

    /// Blocks until all of `horizon` is durable.
    ///
    /// # Errors
    /// [`Error::SyncFailed`](crate::Error::SyncFailed) if it can never become durable.
    fn wait_durable(&self, horizon: &Horizon) -> Result<()>;

    /// True if tickets become durable even if no caller waits: there is no sync for which a caller could lend its
    /// thread.
    fn settles_by_itself(&self) -> bool {
        false
    }

    /// A step of [`Engine::clear`], completed early. Returns the ticket of the whole clear after the last step, and
    /// none before. Where [`Deferred::settles_by_itself`] is false the first step is the last. Other callers see the
    /// records disappear step by step.
    ///
    /// # Errors
    /// As [`Engine::clear`]; [`Error::Busy`](crate::Error::Busy) if too many operations are under way: the step can
    /// be made later.
    fn clear_step(&self, _clear: &mut Clear) -> Result<Option<Ticket>> {
        self.clear().map(|()| Some(Ticket::DURABLE))
    }

    /// Grows whenever another writer may have written without this engine's knowledge: in a cluster, with each
    /// leadership.
    fn leaderships(&self) -> u64 {
        0
    }

    /// As [`Engine::apply`], unless another writer may have written since `leadership` was the number of
    /// [leaderships](Deferred::leaderships), at which the caller read the records that the changes depend on.
    ///
    /// # Errors
    /// As [`Engine::apply`]; [`Error::Busy`](crate::Error::Busy) if another writer may have written; nothing was
    /// done.
    fn apply_within(
        &self,
        leadership: u64,
        batch: &Batch,
        options: &WriteOptions,
    ) -> Result<Written> {
        // There is never another writer.
        let _none = leadership;
        self.apply(batch, options)
    }

    /// Registers one more listener, called (from any thread) whenever more became durable in the background. It must
    /// not call the engine, nor wait for a thread that does: its caller may hold locks that the engine needs.
    fn on_durable(&self, listener: DurableListener);
}
