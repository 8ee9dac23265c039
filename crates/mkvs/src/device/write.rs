//! A write of one key, as its caller has asked for it: decided on one device.

use super::decision::Decided;
use coreplane_engine::{
    Expected, Mutation, Outcome, Record, Result, StorageEngine, UnixMillis, WriteOptions,
};
use std::borrow::Cow;

/// The caller's own code, which decides, given the record.
pub(crate) type Decide<'a> = dyn FnMut(Option<Record<'_>>) -> Mutation + 'a;

/// The condition on which a write is made.
#[derive(Debug)]
pub(crate) enum If<'a> {
    Any,
    Missing,
    There,
    Is(Expected<'a>),
}

impl If<'_> {
    /// Makes a write that the caller has given as a whole: a value, or, with none, a delete.
    fn make(
        &self,
        engine: &dyn StorageEngine,
        (key, value): (&[u8], Option<&[u8]>),
        options: &WriteOptions,
    ) -> Result<Outcome> {
        match (value, self) {
            (None, Self::Any) => engine.delete(key, options),
            // Only if there is a record: a device receives a sequence, and would leave a tombstone for an absent key.
            (None, _) => engine.modify(key, options, &mut |record| {
                record.map_or(Mutation::Keep, |_| Mutation::Delete)
            }),
            (Some(value), Self::Any) => engine.put(key, value, options),
            (Some(value), Self::Missing) => engine.insert(key, value, options),
            (Some(value), Self::There) => engine.update(key, value, options),
            (Some(value), Self::Is(expected)) => {
                engine.compare_and_set(key, *expected, value, options)
            }
        }
    }
}

/// A write of one key: decided on one device, made on the others.
pub(crate) struct Write<'a> {
    key: &'a [u8],
    /// The value and its expiry; none: a delete.
    put: Option<(Cow<'a, [u8]>, Option<UnixMillis>)>,
    condition: If<'a>,
    /// Decides instead of the condition, and gives the value.
    decide: Option<&'a mut Decide<'a>>,
}

impl<'a> Write<'a> {
    pub(crate) fn put(
        (key, value): (&'a [u8], &'a [u8]),
        condition: If<'a>,
        options: &WriteOptions,
    ) -> Self {
        let put = Some((Cow::Borrowed(value), options.expires_at));
        Self { key, put, condition, decide: None }
    }

    pub(crate) fn delete(key: &'a [u8], condition: If<'a>) -> Self {
        Self { key, put: None, condition, decide: None }
    }

    pub(crate) fn decided_by(key: &'a [u8], decide: &'a mut Decide<'a>) -> Self {
        Self { key, put: None, condition: If::There, decide: Some(decide) }
    }

    /// Makes it on the device that decides, with these options.
    pub(crate) fn decide(
        &mut self,
        engine: &dyn StorageEngine,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let Self { key, put, condition, decide } = self;
        let Some(decide) = decide else {
            let value = put.as_ref().map(|(value, _)| &**value);
            return condition.make(engine, (key, value), options);
        };
        engine.modify(key, options, &mut |record| {
            let old = record.as_ref().map(|record| record.value);
            let mutation = decide(record);
            *put = match &mutation {
                Mutation::Put { value, expires_at } => Some((value.clone().into(), *expires_at)),
                Mutation::Expire(at) => old.map(|value| (value.to_vec().into(), *at)),
                Mutation::Keep | Mutation::Delete => None,
            };
            mutation
        })
    }

    /// The key that it changes.
    pub(crate) fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The outcome of the decision, once the write was made.
    pub(crate) fn decided(&self) -> Decided<'_> {
        Decided { key: self.key, put: self.put.as_ref().map(|(value, at)| (&**value, *at)) }
    }

    /// True if it may result in a delete, whatever an earlier try resulted in.
    pub(crate) fn may_erase(&self) -> bool {
        self.put.is_none() || self.decide.is_some()
    }

    /// True if the outcome depends on the current record of the key.
    pub(crate) fn rests_on_old(&self) -> bool {
        !matches!(self.condition, If::Any)
    }
}
