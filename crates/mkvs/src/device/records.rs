//! The records of a device, some at a time: all of them, or those that it shows for certain.

use super::fault_guard::Guarded;
use coreplane_engine::{Entry, KeyRange, Result};

/// Records that are shown at a time, and of which something is taken at a time.
const SHOWN: usize = 1024;
const TAKEN: usize = 256;

/// A walk over the records of a device, except those in ranges of which it is in doubt.
pub(crate) struct Walk<'e> {
    engine: &'e Guarded,
    /// The place in the engine's own order, for a device without a doubt.
    cursor: u64,
    /// Otherwise the records are shown in the order of keys, from this key on.
    is_ordered: bool,
    from: Vec<u8>,
    /// The ranges in doubt that lie ahead, in the order of keys.
    doubts: &'e [KeyRange],
}

impl<'e> Walk<'e> {
    pub(crate) fn new(engine: &'e Guarded, doubts: &'e [KeyRange]) -> Self {
        let is_ordered = !doubts.is_empty() && engine.tell(|it| it.ordered().is_some());
        Self { engine, cursor: 0, is_ordered, from: Vec::new(), doubts }
    }

    /// Shows about `count` records, or some fewer; false if they were the last.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn next(&mut self, count: usize, show: &mut dyn FnMut(Entry<'_>)) -> Result<bool> {
        if !self.is_ordered {
            self.cursor = self.engine.call(|it| it.iterate(self.cursor, count, show))?;
            return Ok(self.cursor != 0);
        }
        let end = self.doubts.first().map(|doubt| doubt.start.as_slice());
        let (mut shown, mut behind) = (0, Vec::new());
        if end.is_none_or(|end| self.from.as_slice() < end) {
            let mut show = |entry: Entry<'_>| {
                shown += 1;
                if shown == count {
                    behind = [entry.key, &[0]].concat();
                }
                show(entry);
                true
            };
            self.engine.call_ordered(|it| it.scan(&self.from, end, false, count, &mut show))?;
        }
        if shown == count {
            self.from = behind;
            return Ok(true);
        }
        let Some((doubt, ahead)) = self.doubts.split_first() else { return Ok(false) };
        self.doubts = ahead;
        let Some(end) = &doubt.end else { return Ok(false) };
        self.from.clone_from(end);
        Ok(true)
    }
}

/// Shows all records, except those in ranges of which the device is in doubt.
///
/// # Errors
/// As the engine. After damage it has shown those that it can show.
pub(crate) fn each_entry(
    engine: &Guarded,
    doubts: &[KeyRange],
    show: &mut dyn FnMut(Entry<'_>),
) -> Result<()> {
    let mut walk = Walk::new(engine, doubts);
    while walk.next(SHOWN, show)? {}
    Ok(())
}

/// Takes something of each such record, and passes on what was taken of some records at a time, while the engine is
/// in no call. The inner result is that of the engine; what it has shown before an error is passed on, too.
///
/// # Errors
/// As `pass_on`.
pub(crate) fn each_lot<T>(
    (engine, doubts): (&Guarded, &[KeyRange]),
    take: impl Fn(&Entry<'_>) -> Option<T>,
    mut pass_on: impl FnMut(Vec<T>) -> Result<()>,
) -> Result<Result<()>> {
    let mut walk = Walk::new(engine, doubts);
    loop {
        let mut lot = Vec::with_capacity(TAKEN);
        let is_more = walk.next(TAKEN, &mut |entry| lot.extend(take(&entry)));
        pass_on(lot)?;
        match is_more {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Engine, WriteOptions};
    use std::sync::Arc;

    /// The ranges have a gap between them, none, and the last one no end; the stretches between them end with a lot,
    /// within one, and behind several.
    #[test]
    fn each_record_outside_the_doubts_is_shown_once() {
        let key = |number: usize| format!("{number:03}").into_bytes();
        let engine = ModelEngine::new();
        for number in 0..100 {
            let _outcome =
                engine.put(&key(number), b"value", &WriteOptions::default()).expect("put");
        }
        let engine = Guarded::new(Arc::new(engine)).expect("a device");
        let doubt = |start, end: Option<usize>| KeyRange { start: key(start), end: end.map(key) };
        let doubts = [(8, Some(10)), (11, Some(20)), (20, Some(31)), (90, None)];
        let doubts = doubts.map(|(start, end)| doubt(start, end));
        let sure = |number: &usize| ![8..10, 11..31, 90..100].iter().any(|it| it.contains(number));
        for (doubts, wanted) in [
            (&doubts[..], (0..100).filter(sure).collect::<Vec<_>>()),
            (&doubts[..3], (0..100).filter(|it| sure(it) || *it >= 90).collect()),
            (&[], (0..100).collect()),
        ] {
            let mut walk = Walk::new(&engine, doubts);
            let (mut shown, mut is_more) = (Vec::new(), true);
            while is_more {
                let before = shown.len();
                is_more = walk.next(4, &mut |entry| shown.push(entry.key.to_vec())).expect("next");
                assert!(doubts.is_empty() || shown.len() - before <= 4);
            }
            if doubts.is_empty() {
                shown.sort_unstable();
            }
            assert_eq!(shown, wanted.into_iter().map(key).collect::<Vec<_>>());
        }
    }
}
