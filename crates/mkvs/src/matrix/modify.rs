//! Writes that the caller's code decides, given the record.

use super::Writes;
use crate::device::decision::{Decided, Write};
use crate::keyspace::Keyspace;
use coreplane_engine::{
    Mutation, Outcome, Record, Result, StorageEngine, UnixMillis, WriteOptions,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A write that is decided by a function of the record.
struct Modified<'a, 'd> {
    keyspace: &'a Keyspace,
    key: &'a [u8],
    decide: &'d mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    /// The resulting value; none: a delete.
    value: Option<(Vec<u8>, Option<UnixMillis>)>,
    /// The caller's value is too long, so that nothing changes.
    refused: Result<()>,
    /// The caller's code has panicked: the panic continues when the write is over, which then changes nothing.
    panic: Option<Box<dyn Any + Send>>,
}

impl Write for Modified<'_, '_> {
    fn decide(&mut self, engine: &dyn StorageEngine, options: &WriteOptions) -> Result<Outcome> {
        let (decide, value, panic) = (&mut self.decide, &mut self.value, &mut self.panic);
        let (keyspace, refused) = (self.keyspace, &mut self.refused);
        engine.modify(self.key, options, &mut |record| {
            let old = record.as_ref().map(|record| record.value);
            let decided = catch_unwind(AssertUnwindSafe(|| decide(record)));
            let mut mutation = decided.unwrap_or_else(|what| {
                *panic = Some(what);
                Mutation::Keep
            });
            // The last answer counts.
            *refused = match &mutation {
                Mutation::Put { value, .. } => keyspace.check_value(value),
                _ => Ok(()),
            };
            if refused.is_err() {
                mutation = Mutation::Keep;
            }
            *value = match &mutation {
                Mutation::Put { value, expires_at } => Some((value.clone(), *expires_at)),
                Mutation::Expire(expires_at) => old.map(|value| (value.to_vec(), *expires_at)),
                Mutation::Keep | Mutation::Delete => None,
            };
            mutation
        })
    }

    fn decided(&self) -> Decided<'_> {
        Decided::to(self.key, &self.value)
    }
}

impl Writes {
    pub(crate) fn modify(
        &self,
        key: &[u8],
        options: &WriteOptions,
        decide: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        let mut modified = Modified {
            keyspace: &self.keyspace,
            key,
            decide,
            value: None,
            refused: Ok(()),
            panic: None,
        };
        let written = self.write(key, options, &mut modified);
        if let Some(panic) = modified.panic {
            resume_unwind(panic);
        }
        written.and_then(|outcome| modified.refused.map(|()| outcome))
    }
}
