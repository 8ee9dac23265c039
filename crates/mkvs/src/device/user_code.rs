//! Code of users that runs within calls of a device's engine: what it panics over is no fault of the device.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs code of a user within calls of engines. A panic goes on when the calls have ended.
#[derive(Default)]
pub(crate) struct UserCode {
    panic: Option<Box<dyn Any + Send>>,
}

impl UserCode {
    /// Runs the code; none if it panics, or has panicked before.
    pub(crate) fn run<T>(&mut self, code: impl FnOnce() -> T) -> Option<T> {
        if self.panic.is_some() {
            return None;
        }
        catch_unwind(AssertUnwindSafe(code)).map_err(|panic| self.panic = Some(panic)).ok()
    }

    /// The calls have ended: panics if the code has.
    pub(crate) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}
