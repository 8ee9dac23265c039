//! Completions and manual pages, generated from the arguments.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use clap::CommandFactory;
use std::io::{self, Write};
use std::path::Path;

pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "coreplane", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(0)
}

pub(crate) fn man(directory: Option<&Path>) -> Outcome {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
        io::stdout().lock().write_all(&page)?;
        return Ok(0);
    };
    let at = |error: io::Error| {
        Failure::new(crate::failure::FAILED, format!("{}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(at)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(at)?;
    Ok(0)
}
