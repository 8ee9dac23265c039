//! The file that a command reads: a dump, a backup, an import.

use crate::failure::{Failure, at};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// The file at `path` and its bytes, or the standard input and 0.
pub(crate) fn input(path: Option<&Path>) -> Result<(Box<dyn BufRead>, u64), Failure> {
    let Some(path) = path else { return Ok((Box::new(io::stdin().lock()), 0)) };
    let file = File::open(path).map_err(at(path))?;
    let len = file.metadata().map_err(at(path))?.len();
    Ok((Box::new(BufReader::new(file)), len))
}
