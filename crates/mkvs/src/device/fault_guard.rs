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
//! No code but this has a device's engine: [`Guarded::call`] is the way to it. What is done in it must not wait for
//! other devices: one that leaves waits for the calls that are in any engine ([`release`](super::release)).
//!
//! A device that was replaced or retired *goes*: its engine is taken away from under its callers, by the protocol
//! of [`Published`]. Every call is pinned while it is in the engine; the engine, and with it the mapping and the
//! file, is dropped when the last call that had found it has returned. A later caller is told that the device has
//! gone.

use coreplane_engine::{Beside, Brief, Error, Ordered, Result, StorageEngine, WriteOptions};
use coreplane_pmem::epoch::{Calls, Published, pin_in};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device's engine, whose answers are accepted while its medium is there.
pub(crate) struct Guarded {
    /// None once the device has gone.
    engine: Published<Option<Arc<dyn StorageEngine>>, Calls>,
    is_given_up: AtomicBool,
}

impl Guarded {
    /// Puts the guard around the engine of a device.
    ///
    /// # Errors
    /// If the medium has gone already, so that the data that was opened is unknown.
    pub(crate) fn new(engine: Arc<dyn StorageEngine>) -> Result<Arc<Self>> {
        engine.check_medium()?;
        let (engine, is_given_up) = (Published::new(Some(engine)), AtomicBool::new(false));
        Ok(Arc::new(Self { engine, is_given_up }))
    }

    /// Calls the engine.
    ///
    /// # Errors
    /// As the engine; and if it panics, if it or its medium is not there at the end, and if it was given up.
    #[inline]
    pub(crate) fn call<T>(&self, call: impl FnOnce(&dyn StorageEngine) -> Result<T>) -> Result<T> {
        self.make(call, Err)
    }

    /// As [`Self::call`], in the order of keys; none if the engine has no order.
    pub(crate) fn call_ordered<T>(
        &self,
        call: impl FnOnce(&dyn Ordered) -> Result<T>,
    ) -> Result<Option<T>> {
        self.call(|engine| engine.ordered().map(call).transpose())
    }

    /// As [`Self::call`], for a put: the answer goes through registers.
    #[inline]
    pub(crate) fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        let put = |engine: &dyn StorageEngine| engine.put_briefly(key, value, options, beside);
        self.make(put, |error| Brief::of(Err(error)))
    }

    /// Makes a call; its answer counts if the medium is there afterwards.
    #[inline]
    fn make<A>(
        &self,
        call: impl FnOnce(&dyn StorageEngine) -> A,
        refused: impl Fn(Error) -> A,
    ) -> A {
        let guard = pin_in();
        let Some(engine) = self.engine.get(&guard).as_deref() else {
            return refused(not_there("a device that was taken out"));
        };
        if !self.is_there(engine) {
            return refused(self.why_not(engine));
        }
        // `catch_unwind` does not return the answer, which would then go through memory.
        let mut answer = None;
        // A panic leaves half-done changes in the memory of an engine that is left out; its locks are free again.
        let _is_made = catch_unwind(AssertUnwindSafe(|| answer = Some(call(engine)))).is_ok();
        match answer {
            _ if !self.is_there(engine) => refused(self.why_not(engine)),
            Some(answer) => answer,
            None => refused(panicked()),
        }
    }

    /// Tells the engine of a coming call, which reports the errors.
    #[inline]
    pub(crate) fn hint(&self, hint: impl FnOnce(&dyn StorageEngine)) {
        if !self.is_given_up() {
            self.tell(hint);
        }
    }

    /// What the engine tells about itself, without a read of its records; the default if it has been taken away.
    #[inline]
    pub(crate) fn tell<T: Default>(&self, tell: impl FnOnce(&dyn StorageEngine) -> T) -> T {
        self.engine.get(&pin_in()).as_deref().map(tell).unwrap_or_default()
    }

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

    /// True if an answer counts. Only the tag of the medium's result is read: behind the fence of a put, a load of an
    /// error's bytes, which were stored in other pieces, waits until the medium has all stores.
    #[inline]
    fn is_there(&self, engine: &dyn StorageEngine) -> bool {
        !self.is_given_up() && engine.check_medium().is_ok()
    }

    #[cold]
    fn why_not(&self, engine: &dyn StorageEngine) -> Error {
        let of_medium = engine.check_medium().err();
        of_medium.unwrap_or_else(|| not_there("a device that does not answer"))
    }
}

#[cold]
fn not_there(what: &str) -> Error {
    Error::Io { context: what.to_owned(), source: ErrorKind::Other.into() }
}

/// The error of a call that has panicked.
#[cold]
pub(crate) fn panicked() -> Error {
    Error::Unusable("a device's engine has panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::interceptor::{Call, Intercepted, Interceptor};
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Batch, Visibility};

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
        let engine = Guarded::new(engine).expect("the medium is there");
        let options = WriteOptions::default();
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        let written = [
            engine.call(|it| it.put(b"key", b"value", &options)),
            engine.call(|it| it.delete(b"key", &options)),
        ];
        assert!(written.iter().all(Result::is_err));
        let brief = engine.put_briefly(b"key", b"value", &options, None);
        assert!(matches!(brief, Brief::Else(outcome) if outcome.is_err()));
        assert!(engine.call(|it| it.apply(&batch, &options)).is_err());
        let early = Visibility::Early;
        assert!(engine.call(|it| it.get_with(b"key", early, &mut |_| {})).is_err());
        assert!(engine.call(|it| it.multi_get(&[b"key"], early, &mut |_, _| {})).is_err());
        assert!(engine.call(|it| it.iterate(0, 1, &mut |_| {})).is_err());
        assert!(engine.call(|it| it.sync()).is_err());
        assert!(engine.call(|it| it.check(b"key")).is_err());
    }
}
