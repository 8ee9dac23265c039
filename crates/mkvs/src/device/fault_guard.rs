//! Accepts the answers of a device only while its medium is there.
//!
//! A mapped device that disappears reports no error: it reads as zeroes, and stores to it are lost. Its pool is
//! marked then ([`coreplane_pmem::poison`]), before any thread can see a zero. So every call on a device checks the
//! mark after the engine has answered, and before the answer is used, acknowledged or published: whatever result
//! the engine derived from the zeroes (no such key, another value, a write that was made, damage, a panic) becomes
//! [`Error::Io`], on which the group goes on without the device. Later calls are refused, as are calls on a device
//! that was given up, since it hangs.
//!
//! An engine that panics, over whatever bytes, has failed: every call answers with an error then, and no caller
//! unwinds past what other threads wait for. So code of users does not run within a call, unless its own panics are
//! caught there ([`UserCode`](super::user_code::UserCode)).
//!
//! Records that an engine *shows* during a call count only when the call has ended well: the caller keeps a copy
//! until then, and begins anew with each try.
//!
//! A device that was replaced or retired *goes*: its engine is taken away from under its callers, by the protocol
//! of [`Published`]. Every call is pinned while it is in the engine; the engine, and with it the mapping and the
//! file, is dropped when the last call that had found it has returned. A later caller is told that the device has
//! gone.

use crate::device::decision::panicked;
use crate::device::interceptor::{Call, Intercepted, Interceptor, Seat};
use coreplane_engine::{Brief, Error, Result, StorageEngine};
use coreplane_pmem::epoch::{Calls, Published, pin_in};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device's engine, whose answers are accepted while its medium is there.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) engine: Arc<dyn StorageEngine>,
    /// The guard around the engine.
    pub(crate) fault_guard: Arc<FaultGuard>,
}

/// Checks the mark around every call.
pub(crate) struct FaultGuard {
    /// None once the device has gone.
    engine: Published<Option<Arc<dyn StorageEngine>>, Calls>,
    is_given_up: AtomicBool,
}

impl FaultGuard {
    /// Refuses all calls from now on, and discards the answers of calls that return.
    #[cold]
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    /// True if calls are refused.
    #[inline]
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Takes the engine away; it is dropped when no call is in it any more.
    pub(crate) fn take_away(&self) {
        if !self.has_gone() {
            self.engine.replace(None);
        }
    }

    /// True if the engine has been taken away.
    pub(crate) fn has_gone(&self) -> bool {
        self.engine.get(&pin_in()).is_none()
    }

    /// Drops the engine that was taken away, unless a call is still in it; true when it is dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.engine.reclaim() == 0
    }

    #[inline]
    fn check(&self, engine: &dyn StorageEngine) -> Result<()> {
        if self.is_given_up() {
            return Err(not_there("a device that does not answer"));
        }
        engine.check_medium()
    }

    /// True if [`Self::check`] succeeds. Only the tag of its answer is read: behind the fence of a put, a load of an
    /// error's bytes, which were stored in other pieces, waits until the medium has all stores.
    #[inline]
    fn is_there(&self, engine: &dyn StorageEngine) -> bool {
        self.check(engine).is_ok()
    }

    #[cold]
    fn refuse_put(&self, engine: &dyn StorageEngine) -> Brief {
        let error = self.check(engine).err();
        Brief::of(Err(error.unwrap_or_else(|| not_there("a device that does not answer"))))
    }
}

#[cold]
fn not_there(what: &str) -> Error {
    Error::Io { context: what.to_owned(), source: ErrorKind::Other.into() }
}

impl Interceptor for FaultGuard {
    type Held<'a> = ();

    fn begin(&self, _call: Call<'_>) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn lets_look_ahead(&self) -> bool {
        !self.is_given_up()
    }

    fn make<T>(
        &self,
        engine: &dyn StorageEngine,
        make: impl FnOnce(&dyn StorageEngine) -> Result<T>,
    ) -> Result<T> {
        self.check(engine)?;
        // A panic leaves half-done changes in the memory of an engine that is left out; its locks are free again.
        let answer = catch_unwind(AssertUnwindSafe(|| make(engine)));
        self.check(engine)?;
        answer.unwrap_or_else(|_| Err(panicked()))
    }

    #[inline]
    fn make_put(
        &self,
        engine: &dyn StorageEngine,
        put: impl FnOnce(&dyn StorageEngine) -> Brief,
    ) -> Brief {
        if !self.is_there(engine) {
            return self.refuse_put(engine);
        }
        let mut brief = Brief::New;
        // As above. `catch_unwind` does not return the answer, which would then go through memory.
        let caught = catch_unwind(AssertUnwindSafe(|| brief = put(engine)));
        match caught {
            _ if !self.is_there(engine) => self.refuse_put(engine),
            Err(_) => Brief::of(Err(panicked())),
            Ok(()) => brief,
        }
    }
}

/// The place of a device's engine until the device goes.
struct Berth(Arc<FaultGuard>);

impl Seat for Berth {
    #[inline]
    fn with<T>(&self, call: impl FnOnce(&dyn StorageEngine) -> T) -> Result<T> {
        let guard = pin_in();
        match self.0.engine.get(&guard) {
            Some(engine) => Ok(call(&**engine)),
            None => Err(not_there("a device that was taken out")),
        }
    }
}

/// Puts a guard around the engine of a device.
///
/// # Errors
/// If the medium has gone already, so that the data that was opened is unknown.
pub(crate) fn guarded(engine: Arc<dyn StorageEngine>) -> Result<Guarded> {
    engine.check_medium()?;
    let (engine, is_given_up) = (Published::new(Some(engine)), AtomicBool::new(false));
    let fault_guard = Arc::new(FaultGuard { engine, is_given_up });
    let engine = Arc::new(Intercepted {
        engine: Berth(Arc::clone(&fault_guard)),
        around: Arc::clone(&fault_guard),
    });
    Ok(Guarded { engine, fault_guard })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Batch, Outcome, Visibility, WriteOptions};

    struct Panics;

    impl Interceptor for Panics {
        type Held<'a> = ();

        fn begin(&self, _call: Call<'_>) -> Result<()> {
            panic!("a bug in the engine")
        }
    }

    #[test]
    fn whatever_panics_is_answered_with_an_error() {
        let engine: Arc<dyn StorageEngine> = Arc::new(ModelEngine::new());
        let engine = Arc::new(Intercepted { engine, around: Arc::new(Panics) });
        let Guarded { engine, .. } = guarded(engine).expect("the medium is there");
        let options = WriteOptions::default();
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        let written: [Result<Outcome>; 2] =
            [engine.put(b"key", b"value", &options), engine.delete(b"key", &options)];
        assert!(written.iter().all(Result::is_err));
        let brief = engine.put_briefly(b"key", b"value", &options, None);
        assert!(matches!(brief, Brief::Else(outcome) if outcome.is_err()));
        assert!(engine.apply(&batch, &options).is_err());
        assert!(engine.get_with(b"key", Visibility::Durable, &mut |_| {}).is_err());
        assert!(engine.multi_get(&[b"key"], Visibility::Durable, &mut |_, _| {}).is_err());
        assert!(engine.iterate(0, 1, &mut |_| {}).is_err());
        assert!(engine.sync().is_err() && engine.check(b"key").is_err());
    }
}
