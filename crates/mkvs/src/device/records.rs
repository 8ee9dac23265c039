//! All records of a device, in no order.

use coreplane_engine::{Entry, Result, StorageEngine};

/// Records that are shown at a time, and of which something is taken at a time.
const SHOWN: usize = 1024;
const TAKEN: usize = 256;

/// Shows all records.
///
/// # Errors
/// As the engine. After damage it has shown those that it can show.
pub(crate) fn each_entry(
    engine: &dyn StorageEngine,
    show: &mut dyn FnMut(Entry<'_>),
) -> Result<()> {
    let mut cursor = 0;
    loop {
        cursor = engine.iterate(cursor, SHOWN, show)?;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// Takes something of each record, and passes on what was taken of some records at a time, while the engine is in no
/// call. The inner result is that of the engine; what it has shown before an error is passed on, too.
///
/// # Errors
/// As `pass_on`.
pub(crate) fn each_lot<T>(
    engine: &dyn StorageEngine,
    take: impl Fn(&Entry<'_>) -> Option<T>,
    mut pass_on: impl FnMut(Vec<T>) -> Result<()>,
) -> Result<Result<()>> {
    let mut cursor = 0;
    loop {
        let mut lot = Vec::with_capacity(TAKEN);
        let listed = engine.iterate(cursor, TAKEN, &mut |entry| lot.extend(take(&entry)));
        pass_on(lot)?;
        match listed {
            Ok(0) => return Ok(Ok(())),
            Ok(next) => cursor = next,
            Err(error) => return Ok(Err(error)),
        }
    }
}
