//! Administration of a store while it is served: the commands `MATRIX` and `STORE`.
//!
//! ```text
//!   words ──► grammar: a request ──► Administered: the store, and the work that runs in a thread
//!                                        │
//!                              report, matrix: the report, as JSON
//! ```
//!
//! An embedder of a server hands it the store ([`Config::store`](crate::Config::store)) and gets both commands with
//! all their words. Long work (a verification, growth, the refill of a device) runs in a thread of its own;
//! `STORE STATUS` and `MATRIX STATUS` report its progress, and the number that the answer to its command has: later
//! work has another one. Event loops do not wait for it, with one exception: `list` and `cow-tree` are locked while a
//! growth extends the file, and in a nearly full `scmkv` writers that need a page wait for it.
//!
//! The same functions report about a store that is served and about one that a command opens, so the reports are
//! equal.

mod grammar;
mod matrix;
mod report;
mod upkeep;

pub use grammar::{MatrixRequest, StoreRequest};
pub use matrix::{matrix_facts, matrix_status, outcome_of};
pub use report::{
    exit_code, put_bytes, remedy_name, store_facts, store_stats, vacancy_name, verdict,
};
pub use upkeep::Administered;

/// Why a request is refused, as the client receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The code, by which programs distinguish errors.
    pub code: &'static str,
    /// The rest, for persons.
    pub text: String,
}

impl Refused {
    /// The words of the request are wrong.
    pub(crate) fn words(text: impl Into<String>) -> Self {
        Self { code: "ERR", text: text.into() }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

impl From<coreplane::Error> for Refused {
    fn from(error: coreplane::Error) -> Self {
        let code = match error.remedy() {
            coreplane::Remedy::Repair => "UNUSABLE",
            coreplane::Remedy::FreeSpace => "OOM",
            _ => "ERR",
        };
        Self { code, text: error.to_string() }
    }
}
