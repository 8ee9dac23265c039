//! What a device says, while its medium is there.
//!
//! A mapped device that goes does not say so: it reads as zeroes, and what is stored to it goes nowhere.
//! Its pool has a mark then ([`coreplane_pmem::poison`]), which is set before anybody can see a zero. So
//! every call on a device looks at the mark when the engine has answered, and before the answer is used,
//! acknowledged or published: whatever the engine made of the zeroes (no such key, another value, a
//! write that was made, damage, a panic) becomes [`Error::Io`](coreplane_engine::Error::Io), on which
//! the group goes on without the device. A call that comes later is not let in.
//!
//! What an engine *shows* during a call counts only when the call has ended well: whoever is shown
//! something keeps a copy until then, and begins anew with each try.

use coreplane_engine::around::{Around, Call, Surrounded};
use coreplane_engine::{Engine, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Looks at the mark around every call.
struct Believed(Arc<dyn Engine>);

impl Around for Believed {
    type Held<'a> = ();

    fn begin(&self, _call: Call<'_>) -> Result<()> {
        self.0.check_medium()
    }

    fn make<T>(
        &self,
        engine: &dyn Engine,
        make: impl FnOnce(&dyn Engine) -> Result<T>,
    ) -> Result<T> {
        // A panic over zeroes has left something half done, in the memory of an engine that is given up;
        // its locks are free again. Any other panic goes on.
        let answer = catch_unwind(AssertUnwindSafe(|| make(engine)));
        engine.check_medium()?;
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// A device's engine, whose answers are believed while its medium is there.
///
/// # Errors
/// If it has gone already, so that nobody knows what was opened.
pub(crate) fn believed(engine: Arc<dyn Engine>) -> Result<Arc<dyn Engine>> {
    engine.check_medium()?;
    let around = Arc::new(Believed(Arc::clone(&engine)));
    Ok(Arc::new(Surrounded { engine, around }))
}
