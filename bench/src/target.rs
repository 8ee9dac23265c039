//! What the work is done on.

use crate::{Error, Result};
use coreplane_engine::{Engine, Ordered, Value, Visibility, WriteOptions};
use std::borrow::Cow;

/// Counters of a target: of the whole of it, since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// Lines flushed.
    pub flushes: u64,
    /// Fences, or syncs.
    pub fences: u64,
    /// DRAM for index and tables now, in bytes.
    pub dram_bytes: u64,
}

/// A store, or whatever stands in for one.
pub trait Target: Sync {
    /// Its name in the reports.
    fn name(&self) -> String;

    /// What one thread works with; called by that thread.
    ///
    /// # Errors
    /// If the store refuses.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// The counters.
    fn costs(&self) -> Costs;

    /// True if [`Session::scan`] works.
    fn is_ordered(&self) -> bool {
        false
    }

    /// True if what a scan shows is to be held against the order of keys: always, but of a
    /// stand-in that has other neighbours.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// One thread's access to a [`Target`].
pub trait Session {
    /// Shows the value of `key`; false if there is none.
    ///
    /// # Errors
    /// If the store fails.
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Writes `value` for `key`.
    ///
    /// # Errors
    /// If the store fails.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes several records, together where the store has a way to.
    ///
    /// # Errors
    /// If the store fails.
    fn put_all(&mut self, records: &[(&[u8], &[u8])]) -> Result<()> {
        records.iter().try_for_each(|(key, value)| self.put(key, value))
    }

    /// Shows the values of `keys` that are there, each with its index.
    ///
    /// # Errors
    /// If the store fails.
    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (index, key) in keys.iter().enumerate() {
            self.get(key, &mut |value| visit(index, value))?;
        }
        Ok(())
    }

    /// Shows up to `limit` records from `start` on, in order of their keys.
    ///
    /// # Errors
    /// If the store fails, or has no order.
    fn scan(
        &mut self,
        _start: &[u8],
        _limit: usize,
        _visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        Err(Error::Plan("a scan of what has no order".to_owned()))
    }
}

/// An [`Engine`] as a target.
#[derive(Clone, Copy)]
pub struct EngineTarget<'a>(pub &'a dyn Engine);

impl std::fmt::Debug for EngineTarget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("EngineTarget").field(&self.0.name()).finish()
    }
}

impl Target for EngineTarget<'_> {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(*self))
    }

    fn costs(&self) -> Costs {
        let stats = self.0.stats();
        Costs { flushes: stats.flushes, fences: stats.fences, dram_bytes: stats.dram_bytes }
    }

    fn is_ordered(&self) -> bool {
        self.0.ordered().is_some()
    }
}

#[inline]
fn bytes<'a>(value: &Value<'a>) -> Cow<'a, [u8]> {
    value.to_cow()
}

impl Session for EngineTarget<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut show = |record: coreplane_engine::Record<'_>| match record.value {
            Value::Whole(value) => visit(value),
            Value::Pieces(pieces) => visit(&pieces.concat()),
        };
        Ok(self.0.get_with(key, Visibility::Durable, &mut show)?.hit)
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let _outcome = self.0.put(key, value, &WriteOptions::default())?;
        Ok(())
    }

    fn multi_get(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let mut show = |index: usize, record: Option<coreplane_engine::Record<'_>>| {
            if let Some(record) = record {
                visit(index, &bytes(&record.value));
            }
        };
        self.0.multi_get(keys, Visibility::Durable, &mut show)?;
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let ordered: &dyn Ordered = self
            .0
            .ordered()
            .ok_or_else(|| Error::Plan(format!("engine {} has no order", self.0.name())))?;
        ordered.scan(start, None, false, limit, &mut |entry| {
            if let Some(record) = entry.record {
                visit(entry.key, &bytes(&record.value));
            }
            true
        })?;
        Ok(())
    }
}
