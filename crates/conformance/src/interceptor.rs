//! An engine with code around every call: devices that stall, fail or fall behind, for tests and measurements.
//!
//! [`Intercepted`] passes every call on. Before each call it asks an [`Interceptor`], which may wait, refuse, or
//! hold a value until the call has returned. So a fault is written once, and covers every call.

use coreplane_engine::{
    Backing, Batch, Beside, Brief, DamagedKey, Deferred, DurableListener, Engine, Entry, Expected,
    Found, Horizon, KeyRange, Limits, Mutation, Ordered, Outcome, Progress, Record, Repairable,
    Replicated, Result, ScrubReport, Stats, StorageEngine, Ticket, UnixMillis, VerifyReport,
    Visibility, WriteOptions, Written,
};
use std::sync::Arc;

/// A call that is about to be made.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A read of one key.
    Get,
    /// A read of several keys, or of all.
    Look,
    /// A read of keys in their order.
    Scan,
    /// A write of one key whose value takes space.
    Put(&'a WriteOptions),
    /// Another write of one key, which may put a value there as well.
    Change(&'a WriteOptions),
    /// A delete of one key or of many: it takes no more space than tombstones need.
    Delete,
    /// A batch.
    Apply(&'a Batch, &'a WriteOptions),
    /// Durability, counts, checks and the close: everything that neither reads nor writes records.
    Care,
}

/// Code around the calls of an engine.
pub trait Interceptor: Send + Sync {
    /// A value that is kept until the call has returned.
    type Held<'a>
    where
        Self: 'a;

    /// A call is about to be made.
    ///
    /// # Errors
    /// The error that is returned instead.
    fn begin(&self, call: Call<'_>) -> Result<Self::Held<'_>>;

    /// Makes a call that was let in.
    ///
    /// # Errors
    /// As the call, or instead of its answer.
    fn make<T>(
        &self,
        engine: &dyn StorageEngine,
        make: impl FnOnce(&dyn StorageEngine) -> Result<T>,
    ) -> Result<T> {
        make(engine)
    }

    /// Makes a put that was let in. Its answer goes through registers.
    fn make_put(
        &self,
        engine: &dyn StorageEngine,
        put: impl FnOnce(&dyn StorageEngine) -> Brief,
    ) -> Brief {
        put(engine)
    }

    /// True if hints about coming calls may reach the engine. They are not announced by [`Self::begin`], since a
    /// hint has no answer and does not panic.
    fn lets_look_ahead(&self) -> bool {
        true
    }

    /// True if a batch is answered as made without being made.
    fn forgets(&self, _batch: &Batch) -> bool {
        false
    }
}

/// An engine, and the interceptor around it.
pub struct Intercepted<A> {
    /// The engine.
    pub engine: Arc<dyn StorageEngine>,
    /// The interceptor around it.
    pub around: Arc<A>,
}

impl<A: Interceptor> Intercepted<A> {
    /// Makes a call, if the interceptor lets it in.
    fn call<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&dyn StorageEngine) -> Result<T>,
    ) -> Result<T> {
        let _held = self.around.begin(call)?;
        self.around.make(&*self.engine, make)
    }
}

/// Calls, each with the kind that the interceptor is told of.
macro_rules! calls {
    ($($kind:expr => $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Result<$answer> {
            self.call($kind, |engine| engine.$name($($arg),*))
        })*
    };
}

/// Questions about the engine.
macro_rules! questions {
    ($($name:ident -> $answer:ty;)*) => {
        $(fn $name(&self) -> $answer {
            self.engine.$name()
        })*
    };
}

/// Hints about coming calls.
macro_rules! hints {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(fn $name(&self, $($arg: $type),*) {
            if self.around.lets_look_ahead() {
                self.engine.$name($($arg),*);
            }
        })*
    };
}

impl<A: Interceptor> Engine for Intercepted<A> {
    questions! {
        name -> &'static str;
        limits -> Limits;
        clears_at_once -> bool;
        now -> UnixMillis;
        stats -> Stats;
    }

    hints! { prefetch(key: &[u8]); }

    calls! {
        Call::Get => get_with(
            key: &[u8], visibility: Visibility, visit: &mut dyn FnMut(Record<'_>)
        ) -> Found;
        Call::Look => multi_get(
            keys: &[&[u8]], visibility: Visibility, visit: &mut dyn FnMut(usize, Option<Record<'_>>)
        ) -> Horizon;
        Call::Put(options) =>
            put(key: &[u8], value: &[u8], options: &WriteOptions) -> Outcome;
        Call::Change(options) =>
            insert(key: &[u8], value: &[u8], options: &WriteOptions) -> Outcome;
        Call::Change(options) =>
            update(key: &[u8], value: &[u8], options: &WriteOptions) -> Outcome;
        Call::Delete => delete(key: &[u8], options: &WriteOptions) -> Outcome;
        Call::Change(options) => compare_and_set(
            key: &[u8], expected: Expected<'_>, value: &[u8], options: &WriteOptions
        ) -> Outcome;
        Call::Change(options) => modify(
            key: &[u8], options: &WriteOptions,
            decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation
        ) -> Outcome;
        Call::Look => iterate(cursor: u64, count: usize, visit: &mut dyn FnMut(Entry<'_>)) -> u64;
        Call::Care => len() -> u64;
        Call::Care => try_len() -> Option<u64>;
        Call::Care => count() -> ();
        Call::Delete => clear() -> ();
        Call::Delete => sweep_expired() -> u64;
        Call::Care => sync() -> ();
        Call::Care => close() -> ();
    }

    fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        if self.around.forgets(batch) {
            return Ok(Written { sequence: 1, ticket: Ticket::DURABLE, replaced: false });
        }
        self.call(Call::Apply(batch, options), |engine| engine.apply(batch, options))
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.engine.ordered().map(|_| self as &dyn Ordered)
    }
}

impl<A: Interceptor> Deferred for Intercepted<A> {
    questions! { visible_ticket -> Ticket; }

    calls! {
        Call::Care => commit(horizon: &Horizon) -> bool;
        Call::Care => is_durable(horizon: &Horizon) -> bool;
        Call::Care => wait_durable(horizon: &Horizon) -> ();
    }

    fn on_durable(&self, listener: DurableListener) {
        self.engine.on_durable(listener);
    }
}

impl<A: Interceptor> Replicated for Intercepted<A> {
    questions! { tombstone_horizon -> u64; }

    hints! {
        prefetch_to_write(key: &[u8], len: usize);
        prefetch_replaced(key: &[u8]);
    }

    calls! {
        Call::Care => advance_sequence() -> u64;
        Call::Look => changes_since(sequence: u64, visit: &mut dyn FnMut(Entry<'_>)) -> ();
        Call::Care => hold_tombstones(sequence: u64) -> ();
    }

    fn put_briefly(
        &self,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
        beside: Option<Beside<'_>>,
    ) -> Brief {
        match self.around.begin(Call::Put(options)) {
            Ok(_held) => {
                let put = |it: &dyn StorageEngine| it.put_briefly(key, value, options, beside);
                self.around.make_put(&*self.engine, put)
            }
            Err(error) => Brief::of(Err(error)),
        }
    }
}

impl<A: Interceptor> Repairable for Intercepted<A> {
    questions! {
        proves_absence -> bool;
        backing -> Backing;
    }

    calls! {
        Call::Care => verify(progress: &mut dyn FnMut(Progress)) -> VerifyReport;
        Call::Care => scrub(progress: &mut dyn FnMut(Progress)) -> ScrubReport;
        Call::Care => check(key: &[u8]) -> bool;
        Call::Care => lost_ranges() -> Vec<KeyRange>;
        Call::Care => damaged_keys_since(sequence: u64) -> Vec<DamagedKey>;
        Call::Care => settle(doubt: &KeyRange) -> ();
        Call::Care => grow(size: u64) -> ();
    }

    fn check_medium(&self) -> Result<()> {
        self.engine.check_medium()
    }
}

impl<A: Interceptor> Ordered for Intercepted<A> {
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.call(Call::Scan, |engine| match engine.ordered() {
            Some(ordered) => ordered.scan(start, end, reverse, limit, visit),
            None => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelEngine;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[derive(Default)]
    struct Door {
        is_shut: AtomicBool,
        calls: AtomicU64,
    }

    impl Interceptor for Door {
        type Held<'a> = ();

        fn begin(&self, _call: Call<'_>) -> Result<()> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            if self.is_shut.load(Ordering::SeqCst) {
                return Err(coreplane_engine::Error::Closed);
            }
            Ok(())
        }
    }

    #[test]
    fn a_shut_door_lets_no_call_in() {
        let around = Arc::new(Door::default());
        let engine: Arc<dyn StorageEngine> = Arc::new(ModelEngine::new());
        let surrounded = Intercepted { engine: Arc::clone(&engine), around: Arc::clone(&around) };
        let options = WriteOptions::default();
        let _outcome = surrounded.put(b"key", b"value", &options).expect("it is open");
        assert_eq!(surrounded.get(b"key").expect("get").as_deref(), Some(&b"value"[..]));
        around.is_shut.store(true, Ordering::SeqCst);
        assert!(surrounded.delete(b"key", &options).is_err() && surrounded.len().is_err());
        assert!(surrounded.apply(&Batch::new(), &options).is_err() && surrounded.clear().is_err());
        let scanned = surrounded.ordered().map(|it| it.scan(b"", None, false, 1, &mut |_| true));
        assert!(scanned.is_none_or(|scanned| scanned.is_err()));
        assert_eq!(engine.len().expect("len"), 1, "nothing was changed");
        assert!(around.calls.load(Ordering::SeqCst) >= 6);
    }
}
