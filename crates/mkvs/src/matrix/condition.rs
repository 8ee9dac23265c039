//! Writes that a caller has given as a whole. The caller's own code decides nothing, so that any thread can
//! make them.

use crate::device::decision::{Decided, RemoteCall, Write};
use coreplane_engine::{
    Expected, Mutation, Outcome, Record, Result, StorageEngine, UnixMillis, WriteOptions,
};
use std::borrow::Cow;

/// The condition on which a value is written.
#[derive(Debug, Clone)]
pub(crate) enum If<'a> {
    Any,
    Missing,
    There,
    /// As [`Expected`].
    Absent,
    Value(Cow<'a, [u8]>),
    Sequence(u64),
}

impl<'a> From<Expected<'a>> for If<'a> {
    fn from(expected: Expected<'a>) -> Self {
        match expected {
            Expected::Absent => Self::Absent,
            Expected::Value(value) => Self::Value(Cow::Borrowed(value)),
            Expected::Sequence(sequence) => Self::Sequence(sequence),
        }
    }
}

impl If<'_> {
    fn copy(&self) -> If<'static> {
        match self {
            Self::Any => If::Any,
            Self::Missing => If::Missing,
            Self::There => If::There,
            Self::Absent => If::Absent,
            Self::Value(value) => If::Value(Cow::Owned(value.to_vec())),
            Self::Sequence(sequence) => If::Sequence(*sequence),
        }
    }
}

/// A write with a value.
pub(crate) struct Given<'a> {
    key: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
    expires_at: Option<UnixMillis>,
    condition: If<'a>,
}

impl<'a> Given<'a> {
    pub(crate) fn new(
        (key, value): (&'a [u8], &'a [u8]),
        condition: If<'a>,
        options: &WriteOptions,
    ) -> Self {
        let (key, value) = (Cow::Borrowed(key), Cow::Borrowed(value));
        Self { key, value, expires_at: options.expires_at, condition }
    }
}

impl Write for Given<'_> {
    fn decide(&mut self, engine: &dyn StorageEngine, options: &WriteOptions) -> Result<Outcome> {
        let (key, value) = (&*self.key, &*self.value);
        let expected = match &self.condition {
            If::Any => return engine.put(key, value, options),
            If::Missing => return engine.insert(key, value, options),
            If::There => return engine.update(key, value, options),
            If::Absent => Expected::Absent,
            If::Value(value) => Expected::Value(value),
            If::Sequence(sequence) => Expected::Sequence(*sequence),
        };
        engine.compare_and_set(key, expected, value, options)
    }

    fn remote_call(&self) -> Option<RemoteCall> {
        let mut copy = Given {
            key: Cow::Owned(self.key.to_vec()),
            value: Cow::Owned(self.value.to_vec()),
            expires_at: self.expires_at,
            condition: self.condition.copy(),
        };
        Some(Box::new(move |engine, options| copy.decide(engine, options)))
    }

    fn decided(&self) -> Decided<'_> {
        Decided { key: &self.key, put: Some((&self.value, self.expires_at)) }
    }

    fn may_erase(&self) -> bool {
        false
    }

    fn rests_on_old(&self) -> bool {
        !matches!(self.condition, If::Any)
    }
}

/// A delete.
pub(crate) struct Erased<'a> {
    key: Cow<'a, [u8]>,
    /// Deletes unconditionally; otherwise only if there is a record: a device receives a sequence, and would
    /// leave a tombstone for an absent key.
    is_sure: bool,
}

impl<'a> Erased<'a> {
    pub(crate) fn new(key: &'a [u8], is_sure: bool) -> Self {
        Self { key: Cow::Borrowed(key), is_sure }
    }
}

impl Write for Erased<'_> {
    fn decide(&mut self, engine: &dyn StorageEngine, options: &WriteOptions) -> Result<Outcome> {
        if self.is_sure {
            return engine.delete(&self.key, options);
        }
        engine.modify(&self.key, options, &mut |record: Option<Record<'_>>| match record {
            Some(_) => Mutation::Delete,
            None => Mutation::Keep,
        })
    }

    fn remote_call(&self) -> Option<RemoteCall> {
        let mut copy = Erased { key: Cow::Owned(self.key.to_vec()), is_sure: self.is_sure };
        Some(Box::new(move |engine, options| copy.decide(engine, options)))
    }

    fn decided(&self) -> Decided<'_> {
        Decided { key: &self.key, put: None }
    }

    fn rests_on_old(&self) -> bool {
        !self.is_sure
    }
}
