//! The expected states of a log, one for each operation.

use coreplane_engine::{ChangeRef, Error};
use coreplane_mvcc::{Control, LogMap};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type Bytes = Arc<Vec<u8>>;
pub(crate) type Contents = BTreeMap<Vec<u8>, (Bytes, u64)>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub(crate) header: Vec<u8>,
    pub(crate) changes: BTreeMap<Vec<u8>, Option<Bytes>>,
}

#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    pub(crate) members: Vec<u8>,
    pub(crate) applied: u64,
    pub(crate) applied_header: Vec<u8>,
    pub(crate) is_installing: bool,
    /// The applied values, and the timestamps that wrote them.
    pub(crate) map: Contents,
    /// Pending entries, from the timestamp behind the applied one on.
    pub(crate) pending: Vec<Entry>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { term, vote, applied, is_installing, .. } = self;
        let map: Vec<_> = self.map.iter().map(|(key, value)| (text(key), value.1)).collect();
        let pending: Vec<_> =
            self.pending.iter().map(|it| (it.header.len(), it.changes.len())).collect();
        write!(
            f,
            "term {term} vote {vote} applied {applied} installing {is_installing}, {pending:?}, {map:?}"
        )
    }
}

pub(crate) fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

impl State {
    pub(crate) fn newest(&self) -> u64 {
        self.applied + self.pending.len() as u64
    }

    pub(crate) fn apply(&mut self, to: u64) {
        while self.applied < to {
            let entry = self.pending.remove(0);
            self.applied += 1;
            self.applied_header = entry.header;
            for (key, value) in entry.changes {
                match value {
                    Some(value) => _ = self.map.insert(key, (value, self.applied)),
                    None => _ = self.map.remove(&key),
                }
            }
        }
    }

    pub(crate) fn roll_back(&mut self, to: u64) {
        self.pending.truncate((to - self.applied) as usize);
    }

    /// The state of a log.
    pub(crate) fn of(log: &LogMap) -> Self {
        Self::read(log).expect("it can be read")
    }

    /// The same, if all of it can be read.
    pub(crate) fn read(log: &LogMap) -> Result<Self, Error> {
        let Control { term, vote, members, newest, applied, applied_header, is_installing, .. } =
            log.control();
        let mut state =
            Self { term, vote, members, applied, applied_header, is_installing, ..Self::default() };
        if is_installing {
            let refused = log.scan(b"", None, false, 1, &mut |_| true);
            assert!(matches!(refused, Err(Error::Installing)));
            return Ok(state);
        }
        let mut shown = Ok(());
        state.map = contents(|take| shown = log.scan(b"", None, false, usize::MAX, take));
        shown?;
        let mut expected = applied;
        let mut take = |entry: coreplane_mvcc::LogEntry<'_>| {
            expected += 1;
            assert_eq!(entry.timestamp, expected);
            let changes = entry.changes.iter().map(|change| {
                let value = match change {
                    ChangeRef::Put { value, .. } => Some(Arc::new(value.to_vec())),
                    ChangeRef::Delete { .. } => None,
                };
                (change.key().to_vec(), value)
            });
            let changes = changes.collect();
            state.pending.push(Entry { header: entry.header.to_vec(), changes });
            true
        };
        if newest > applied {
            log.entries(applied + 1..=newest, &mut take)?;
        }
        assert_eq!(expected, newest);
        Ok(state)
    }
}

pub(crate) fn contents(
    show: impl FnOnce(&mut dyn FnMut(coreplane_engine::Entry<'_>) -> bool),
) -> Contents {
    let mut map = Contents::new();
    show(&mut |entry| {
        let value = entry.record.expect("a record").value.to_vec();
        map.insert(entry.key.to_vec(), (Arc::new(value), entry.sequence));
        true
    });
    map
}
