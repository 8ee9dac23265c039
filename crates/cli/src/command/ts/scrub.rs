//! The scrub of time series that are served: all sealed points are read, a piece at a time.

use crate::message;
use crate::scrub::Scrub;
use coreplane_tsdb::Store;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Scrubs a store until the result is dropped, using at most so many hundredths of a core, and reports damage; none
/// for 0.
pub(super) fn begin(store: &Arc<Store>, path: &Path, percent: u8) -> io::Result<Option<Scrub>> {
    if percent == 0 {
        return Ok(None);
    }
    let (store, path) = (Arc::clone(store), path.display().to_string());
    let mut place = coreplane_tsdb::Scrub::default();
    let look = move || {
        for what in store.scrub_next(&mut place) {
            message::tell(format_args!("{path}: {what}; queries that need it are errors"));
        }
        ControlFlow::Continue(())
    };
    Scrub::begin(percent, look).map(Some)
}
