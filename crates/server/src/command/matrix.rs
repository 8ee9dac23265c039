//! `MATRIX`, which Redis does not have: administration of the devices behind the engine.

use super::{Answer, Call};
use crate::administration::MatrixRequest;

/// `MATRIX STATUS`, `MATRIX REPLACE device [FRESH] [LIMIT bytes]`, `MATRIX RETIRE device`,
/// `MATRIX ADDGROUP [LIMIT bytes]`, `MATRIX SCRUB [DEVICE device]`: the state of the matrix, or that the work has
/// begun, and its number.
pub(super) fn matrix(call: &mut Call<'_, '_>) -> Answer {
    let store = call.host.config.store.as_ref().filter(|store| store.matrix().is_some());
    let Some(store) = store else {
        return Err("NOMATRIX the store is no matrix".into());
    };
    let run = MatrixRequest::parse(&call.texts()?).and_then(|request| store.run_on_matrix(request));
    let text = run.map_err(|refused| refused.to_string())?;
    call.reply.bulk(text.as_bytes());
    Ok(())
}
