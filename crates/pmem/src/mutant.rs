//! Deliberate mistakes that test the tests.
//!
//! A test suite is only as good as the mistakes it finds. So the sources contain the classic
//! mistakes of persistent memory (a missing flush, a publish before its fence, a checksum that is
//! not checked), each as one line that normally does nothing:
//!
//! ```
//! # use coreplane_pmem::mutant;
//! # let (flush, fence) = (|| (), || ());
//! if !mutant!("example.flush") {
//!     flush();
//! }
//! fence();
//! ```
//!
//! In a build with the feature `mutants` the variable `COREPLANE_MUTANT` names the mistake that is
//! made in this process. `cargo xtask mutants` makes all of them, one after the other, and fails if
//! the tests that should have found a mistake have passed. Without the feature [`is_on`] is the
//! constant `false`, and the program is the same as without these lines. `cargo xtask tidy` ensures
//! that only a command line can turn the feature on, and that the names in the sources and in the
//! catalogue (`xtask/src/mutants`) are the same.

/// The variable that names the mistake.
pub const VARIABLE: &str = "COREPLANE_MUTANT";

/// True if this mistake is to be made.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_name: &str) -> bool {
    false
}

/// True if this mistake is to be made.
#[cfg(feature = "mutants")]
pub fn is_on(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(name)
}

/// True if the mistake of this name is to be made: see [`mutant`](mod@crate::mutant).
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_on($name)
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_mistake_is_made_unasked() {
        assert!(!mutant!("nobody asks for this"));
    }
}
