//! A store that is served, and the long work that is done for it meanwhile.

use super::matrix::{self, told_of_work};
use super::report::{store_facts, store_stats, verdict};
use super::{MatrixRequest, Refused, StoreRequest};
use coreplane::admin::{Failed, MatrixStore, Progress, Work};
use coreplane::{Error, Store};
use coreplane_pmem::background;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// A store that a server administers.
#[derive(Debug)]
pub struct Administered {
    store: Arc<Store>,
    path: PathBuf,
    work: Mutex<Option<Upkeep>>,
}

/// Work that was begun.
#[derive(Debug)]
struct Upkeep {
    /// One more than that of the work before, since the store was opened.
    number: u64,
    name: &'static str,
    progress: Option<Progress>,
    /// Its result; none while it runs.
    done: Option<Result<Value, Failed>>,
}

impl Administered {
    /// The store that was opened at a path.
    pub fn new(store: Arc<Store>, path: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self { store, path: path.into(), work: Mutex::default() })
    }

    /// The matrix, if the store is one.
    pub fn matrix(&self) -> Option<&Arc<MatrixStore>> {
        self.store.matrix()
    }

    /// Executes a request to the matrix, or starts its work; the answer to the client.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn run_on_matrix(&self, request: MatrixRequest) -> Result<String, Refused> {
        let none = || Refused { code: "NOMATRIX", text: "the store is no matrix".to_owned() };
        let matrix = self.matrix().ok_or_else(none)?;
        let work = match request {
            MatrixRequest::Status => return Ok(matrix::matrix_status(matrix).to_string()),
            MatrixRequest::AddGroup(options) if matrix.is_moving() => Work::FinishMoves(options),
            MatrixRequest::AddGroup(options) => Work::AddGroup(options),
            MatrixRequest::Begin(work) => work,
        };
        Ok(told_of_begin(matrix.begin(work)?))
    }

    /// The state of the devices, for `INFO`; none if the store is no matrix.
    pub(crate) fn matrix_figures(&self) -> Option<Vec<(String, String)>> {
        self.matrix().map(|matrix| matrix::figures(matrix))
    }

    /// Executes a request to the store, or starts its work; the answer to the client. The command itself answers
    /// `RECORDS`. None if the records are not counted yet: the client waits.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn run_on_store(
        self: &Arc<Self>,
        request: StoreRequest,
    ) -> Result<Option<String>, Refused> {
        match request {
            StoreRequest::Info | StoreRequest::Stats => {
                let Some(records) = self.store.engine().try_len()? else { return Ok(None) };
                let stats = self.store.engine().stats();
                let told = match request {
                    StoreRequest::Info => store_facts(&self.path, &self.store, records, &stats),
                    _ => store_stats(records, stats),
                };
                Ok(Some(told.to_string()))
            }
            StoreRequest::Status => Ok(Some(self.status().to_string())),
            StoreRequest::Verify => self.begin("verify", |this| {
                let note = &mut |progress| this.note(|work| work.progress = Some(progress));
                this.store.engine().verify(note).map(|report| verdict(&report))
            }),
            StoreRequest::Grow(size) => self.begin("grow", move |this| {
                let bytes = || this.store.engine().stats().pool_bytes;
                let before = bytes();
                this.store.grow(size)?;
                let pool = this.path.display().to_string();
                Ok(json!({"pool": pool, "bytes_before": before, "pool_bytes": bytes()}))
            }),
            StoreRequest::Records { .. } => {
                Err(Refused::words("records are shown by the command STORE alone"))
            }
        }
    }

    fn status(&self) -> Value {
        let work = self.work.lock();
        let told = work.as_ref().map(|Upkeep { number, name, progress, done }| {
            let done = done.as_ref().map(Result::as_ref);
            told_of_work((*number, name), progress.as_ref(), done)
        });
        json!({
            "pool": self.path.display().to_string(),
            "engine": self.store.engine().name(),
            "work": told,
        })
    }

    fn note(&self, note: impl FnOnce(&mut Upkeep)) {
        if let Some(work) = &mut *self.work.lock() {
            note(work);
        }
    }

    /// Starts work in a thread of its own. It ends with the process at the latest.
    fn begin(
        self: &Arc<Self>,
        name: &'static str,
        run: impl FnOnce(&Self) -> Result<Value, Error> + Send + 'static,
    ) -> Result<Option<String>, Refused> {
        let mut work = self.work.lock();
        if let Some(Upkeep { name, done: None, .. }) = &*work {
            return Err(Refused {
                code: "BUSY",
                text: format!("another work of the store goes on: {name}"),
            });
        }
        let number = work.as_ref().map_or(1, |before| before.number + 1);
        let before = work.replace(Upkeep { number, name, progress: None, done: None });
        let this = Arc::clone(self);
        let spawned = background::spawn("coreplane-upkeep", move || {
            let run = std::panic::AssertUnwindSafe(|| run(&this));
            let done = std::panic::catch_unwind(run).unwrap_or_else(|_| {
                Err(Error::Unusable("the work has ended by a fault of the program".to_owned()))
            });
            let done = done.map_err(Failed::from);
            this.note(|work| work.done = Some(done));
        });
        if let Err(error) = spawned {
            *work = before;
            return Err(Refused::words(format!("starting a thread: {error}")));
        }
        Ok(Some(told_of_begin(number)))
    }
}

/// The answer to a command that has begun work: `STATUS` tells the number, too.
fn told_of_begin(number: u64) -> String {
    format!("begun {number}")
}
