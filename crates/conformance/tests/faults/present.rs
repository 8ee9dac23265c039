//! A snapshot that does not stand still.

use coreplane_conformance::model::ModelEngine;
use coreplane_engine::{Engine, Entry, Ordered, Record, Replicated, Result, Snapshot, Visibility};
use std::sync::Arc;

/// A snapshot that shows the present.
pub(super) struct Present(Arc<ModelEngine>);

impl Present {
    pub(super) fn of(model: &Arc<ModelEngine>) -> Self {
        Self(Arc::clone(model))
    }
}

impl Snapshot for Present {
    fn get_with(&self, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        Ok(self.0.get_with(key, Visibility::Durable, visit)?.hit)
    }

    fn sequence(&self) -> u64 {
        self.0.advance_sequence().unwrap_or(0)
    }

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        self.0.scan(start, end, reverse, limit, visit)
    }
}
