//! What a device says, while its medium is there.
//!
//! A mapped device that goes does not say so: it reads as zeroes, and what is stored to it goes nowhere.
//! Its pool has a mark then ([`coreplane_pmem::poison`]), which is set before anybody can see a zero. So
//! every call on a device looks at the mark when the engine has answered, and before the answer is used,
//! acknowledged or published: whatever the engine made of the zeroes (no such key, another value, a
//! write that was made, damage, a panic) becomes [`Error::Io`], on which the group goes on without the
//! device. A call that comes later is not let in; nor is one that comes to a device that was given up,
//! since it hangs.
//!
//! What an engine *shows* during a call counts only when the call has ended well: whoever is shown
//! something keeps a copy until then, and begins anew with each try.

use coreplane_engine::around::{Around, Call, Surrounded};
use coreplane_engine::{Brief, Engine, Error, Result};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device's engine, whose answers are believed while its medium is there.
#[derive(Clone)]
pub(crate) struct Checked {
    pub(crate) engine: Arc<dyn Engine>,
    /// What is around it.
    pub(crate) belief: Arc<Believed>,
}

/// Looks at the mark around every call.
pub(crate) struct Believed {
    engine: Arc<dyn Engine>,
    is_given_up: AtomicBool,
}

impl Believed {
    /// Lets no call in from now on, and believes none that comes back.
    #[cold]
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    /// True if no call is let in.
    #[inline]
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.is_given_up() {
            return Err(given_up());
        }
        self.engine.check_medium()
    }
}

#[cold]
fn given_up() -> Error {
    let (context, source) = ("a device that does not answer".to_owned(), ErrorKind::Other.into());
    Error::Io { context, source }
}

impl Around for Believed {
    type Held<'a> = ();

    fn begin(&self, _call: Call<'_>) -> Result<()> {
        self.check()
    }

    fn lets_look_ahead(&self) -> bool {
        self.check().is_ok()
    }

    fn make<T>(
        &self,
        engine: &dyn Engine,
        make: impl FnOnce(&dyn Engine) -> Result<T>,
    ) -> Result<T> {
        // A panic over zeroes has left something half done, in the memory of an engine that is given up;
        // its locks are free again. Any other panic goes on.
        let answer = catch_unwind(AssertUnwindSafe(|| make(engine)));
        self.check()?;
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }

    #[inline]
    fn make_put(&self, engine: &dyn Engine, put: impl FnOnce(&dyn Engine) -> Brief) -> Brief {
        let mut brief = Brief::New;
        // As above. What is caught is no answer, which would come through memory.
        let caught = catch_unwind(AssertUnwindSafe(|| brief = put(engine)));
        match (self.check(), caught) {
            (Err(error), _) => Brief::of(Err(error)),
            (Ok(()), Err(panic)) => resume_unwind(panic),
            (Ok(()), Ok(())) => brief,
        }
    }
}

/// An engine of a device.
///
/// # Errors
/// If it has gone already, so that nobody knows what was opened.
pub(crate) fn believed(engine: Arc<dyn Engine>) -> Result<Checked> {
    engine.check_medium()?;
    let is_given_up = AtomicBool::new(false);
    let belief = Arc::new(Believed { engine: Arc::clone(&engine), is_given_up });
    let engine = Arc::new(Surrounded { engine, around: Arc::clone(&belief) });
    Ok(Checked { engine, belief })
}
