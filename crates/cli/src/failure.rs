//! Failures, and the exit codes that tell what to do about them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | `verify` or `matrix scrub` found damage, or repaired it; `matrix replace` or `ts export` left out what is damaged; `bench --workload resync` lost something; `get`, `del` found no such key; `put` did not write, as it was told |
//! | 2 | the pool cannot be used: it is not there, is no pool, or cannot be opened |
//! | 3 | what was asked for cannot be: over a limit, not in this engine |
//! | 4 | no space: delete records, `grow` the pool (a matrix: `add-group`), or free the file system |
//! | 5 | the system or the medium failed, or nobody read what was to be told |
//! | 64 | wrong usage of the command |
//! | 70 | a page of the pool could not be read (SIGBUS) |

use crate::ask::Refusal;
use coreplane::admin::is_device_at;
use coreplane_engine::{Error, Remedy, Vacancy};

/// The answer was no: an [`Outcome`] that is a code, but no failure.
pub(crate) const NO: u8 = 1;
pub(crate) const UNUSABLE: u8 = 2;
pub(crate) const REFUSED: u8 = 3;
pub(crate) const NO_SPACE: u8 = 4;
pub(crate) const FAILED: u8 = 5;
pub(crate) const USAGE: u8 = 64;

/// A hint for a pool that a server has open.
const ASK_THE_SERVER: &str = "; a server that has it is asked by its clients, and by `--server`: of info, stats, \
                              verify, dump, scan, grow and matrix";

/// The exit code of a command, or its failure.
pub(crate) type Outcome = Result<u8, Failure>;

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) cause: Cause,
}

/// The cause of a failure, as far as the program reacts to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The reader of our output has closed it.
    BrokenPipe,
    /// A server has refused the command.
    Refused(Refusal),
    /// Something occupies the place of the device to be filled.
    Occupied(Vacancy),
    /// Anything else.
    Other,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), cause: Cause::Other }
    }

    /// The same failure, with a hint about the remedy.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        self.message += "; ";
        self.message += hint;
        self
    }

    /// The same failure, because of `cause`.
    pub(crate) fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// The same failure, at line `number` of the input; so many records were `done` (loaded, for one) before it.
    pub(crate) fn at_line(mut self, number: u64, records: u64, done: &str) -> Self {
        let what = self.message;
        self.message = format!("line {number}: {what} ({records} records were {done} before it)");
        self
    }

    /// A failure to open or create a pool: it cannot be used, or there is no space.
    pub(crate) fn of_pool(error: &Error, path: &std::path::Path) -> Self {
        let code = if error.remedy() == Remedy::FreeSpace { NO_SPACE } else { UNUSABLE };
        let mut message = error.to_string();
        match error {
            // Whether it is a device would have to be read out of the whole file.
            Error::Corrupt { .. } | Error::ChecksumMismatch { .. } if path.is_dir() => {
                message += "; ";
                message += way_out_of("mkvs");
            }
            Error::Corrupt { .. }
            | Error::ChecksumMismatch { .. }
            | Error::Truncated { .. }
            | Error::Unrepaired { .. } => {
                let engine = coreplane::admin::engine_at(path);
                message += "; ";
                message += match (&engine, error) {
                    (None, _) => RESTORE,
                    (Some(_), Error::Truncated { .. }) => OF_TRUNCATION,
                    (Some(_), Error::Unrepaired { .. }) => OF_UNREPAIRED,
                    (Some(engine), _) => way_out_of(engine.name()),
                };
                if engine.is_some() {
                    message += OF_DEVICE;
                }
            }
            Error::Locked(_) => message += ASK_THE_SERVER,
            _ => {}
        }
        Self::at(path, code, message)
    }

    /// A failure to repair a pool: no repair is advised.
    pub(crate) fn of_repair(error: &Error, path: &std::path::Path) -> Self {
        match error {
            Error::Corrupt { .. }
            | Error::ChecksumMismatch { .. }
            | Error::Truncated { .. }
            | Error::Unrepaired { .. } => Self::at(path, UNUSABLE, format!("{error}; {RESTORE}")),
            Error::Unusable(_) if is_device_at(path) => {
                let hint = "a device without peers is repaired with `--accept-loss`: peers would lose, too, what \
                            it gives up";
                Self::of_pool(error, path).with_hint(way_out_of("mkvs")).with_hint(hint)
            }
            _ => Self::of_pool(error, path),
        }
    }

    /// A failure with the path of the pool, unless the message has it already.
    fn at(path: &std::path::Path, code: u8, message: String) -> Self {
        let place = path.display().to_string();
        if message.contains(&place) {
            return Self::new(code, message);
        }
        Self::new(code, format!("{place}: {message}"))
    }
}

/// The remedy where nothing can be repaired.
const RESTORE: &str = "it cannot be repaired: restore it from a copy, and remove POOL.cut-short if that is beside \
                       POOL, or load a dump into a new pool";

/// The remedy for damage at `path`, whose bytes are read to tell a device of a matrix.
pub(crate) fn way_out(path: &std::path::Path) -> &'static str {
    if path.is_dir() || is_device_at(path) {
        return way_out_of("mkvs");
    }
    coreplane::admin::engine_at(path).map_or(RESTORE, |engine| way_out_of(engine.name()))
}

/// The remedy for a pool that was cut short: no part of it can be opened as it is.
const OF_TRUNCATION: &str = "`coreplane verify --repair` gives up what was cut off, says what is lost, and gives back the rest";

/// The remedy for a pool whose repair has not ended.
const OF_UNREPAIRED: &str =
    "of the pool that was being repaired, `coreplane verify --repair` ends the repair";

/// The remedy if the pool is a device of a matrix.
const OF_DEVICE: &str = "; of a device of a matrix: `coreplane matrix scrub`, or `coreplane matrix retire` and `replace --fresh`";

/// The remedy for damage of a store with this engine.
pub(crate) fn way_out_of(engine: &str) -> &'static str {
    match engine {
        "mkvs" => {
            "`coreplane matrix scrub` writes what is damaged anew from a peer; `coreplane matrix retire` takes a \
             device out, and `coreplane matrix replace --fresh` makes another in its place"
        }
        "list" | "cow-tree" => {
            "a pool of a map is repaired only where its file was cut short, or one copy of its root is damaged; what \
             is sound in it can be read"
        }
        _ => "`coreplane verify --repair` gives up what is damaged, and says what is lost",
    }
}

/// The exit code that tells what to do.
pub(crate) fn code_of(remedy: Remedy) -> u8 {
    coreplane_server::administration::exit_code(remedy)
}

/// A failure of the file at `path`.
pub(crate) fn at(path: &std::path::Path) -> impl Fn(std::io::Error) -> Failure + use<'_> {
    move |error| Failure::new(FAILED, format!("{}: {error}", path.display()))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::new(code_of(error.remedy()), error.to_string());
        match error {
            Error::Occupied { vacancy, .. } => failure.because(Cause::Occupied(vacancy)),
            _ => failure,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let failure = Self::new(FAILED, error.to_string());
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => failure.because(Cause::BrokenPipe),
            _ => failure,
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        std::io::Error::from(error).into()
    }
}

impl From<coreplane_server::Error> for Failure {
    fn from(error: coreplane_server::Error) -> Self {
        let code = match error {
            coreplane_server::Error::NowhereToListen => REFUSED,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<coreplane_bench::Error> for Failure {
    fn from(error: coreplane_bench::Error) -> Self {
        match error {
            coreplane_bench::Error::Engine(error) => error.into(),
            coreplane_bench::Error::Plan(what) => Self::new(REFUSED, what),
            coreplane_bench::Error::Pool(coreplane_pmem::PoolError::NoSpace { .. }) => {
                Self::new(NO_SPACE, error.to_string())
            }
            coreplane_bench::Error::Pool(_) => Self::new(UNUSABLE, error.to_string()),
            _ => Self::new(FAILED, error.to_string()),
        }
    }
}
