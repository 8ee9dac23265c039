//! Several changes that happen together or not at all.

use crate::UnixMillis;

/// One change of a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write a record.
    Put {
        /// Its key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Its expiry.
        expires_at: Option<UnixMillis>,
    },
    /// Delete a record, if it is there.
    Delete {
        /// Its key.
        key: Vec<u8>,
    },
}

impl Change {
    /// The key that it changes.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Changes in order; of several to the same key the last wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<Change>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a write.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.push(Change::Put { key: key.to_vec(), value: value.to_vec(), expires_at: None })
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.push(Change::Delete { key: key.to_vec() })
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// The changes, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
