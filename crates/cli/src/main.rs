//! The `coreplane` command.
//!
//! ```text
//!   arguments ──► command/… ──► coreplane (a store) or coreplane_server or coreplane_bench
//!       │              │
//!     terms         failure: failures, and the exit codes that tell what to do about them
//! ```
//!
//! Results go to the standard output, as JSON if requested; all messages for persons go to the standard error, by
//! [`message::tell`].

#![deny(clippy::print_stderr)]

mod arguments;
mod ask;
mod command;
mod failure;
mod geometry;
mod input;
mod json;
mod message;
mod node_pool;
mod notation;
mod output;
mod pool;
mod progress;
mod remote;
mod scrub;
mod terms;

use arguments::{Arguments, Cluster, Command, Matrix, Ts};
use clap::Parser;
use failure::{Cause, Failure, Outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // The user asked for help or version; all else is wrong usage.
            let code = if error.use_stderr() { failure::USAGE } else { 0 };
            let _shown = error.print().is_ok();
            return ExitCode::from(code);
        }
    };
    let is_listing = is_listing(&arguments.command);
    let code = match run(arguments.command) {
        Ok(code) => code,
        Err(Failure { cause: Cause::BrokenPipe, .. }) if is_listing => 0,
        Err(failure) => {
            message::tell(failure.message);
            failure.code
        }
    };
    message::finish();
    ExitCode::from(code)
}

/// True for a command that only shows something: its reader may leave when it has seen enough. The others have a
/// verdict, a backup or a change to tell of.
fn is_listing(command: &Command) -> bool {
    match command {
        Command::Info(_) | Command::Stats(_) | Command::Get(_) | Command::Scan(_) => true,
        Command::Completions { .. } | Command::Man { .. } => true,
        Command::Matrix(matrix) => matches!(matrix, Matrix::Status(_)),
        Command::Cluster(cluster) => matches!(cluster, Cluster::Status(_)),
        Command::Ts(ts) => matches!(ts, Ts::Query(_) | Ts::Stats(_)),
        _ => false,
    }
}

fn run(command: Command) -> Outcome {
    coreplane_pmem::poison::install_handler()?;
    match command {
        Command::Serve(serve) => command::serve::run(serve),
        Command::Create(create) => command::administer::create(create),
        Command::Info(pool) => command::administer::info(&pool),
        Command::Stats(pool) => command::administer::stats(&pool),
        Command::Grow(grow) => command::administer::grow(&grow),
        Command::Verify(verify) => command::verify::run(&verify),
        Command::Get(get) => command::records::get(&get),
        Command::Put(put) => command::records::put(put),
        Command::Del(del) => command::records::del(&del),
        Command::Scan(scan) => command::scan::run(&scan),
        Command::Load(load) => command::transfer::load(&load),
        Command::Dump(dump) => command::transfer::dump(&dump),
        Command::Matrix(matrix) => command::matrix::run(&matrix),
        Command::Cluster(cluster) => command::cluster::run(&cluster),
        Command::Nbd(nbd) => command::nbd::run(&nbd),
        Command::Ts(ts) => command::ts::run(&ts),
        Command::Bench(bench) => command::bench::run(bench),
        Command::Completions { shell } => command::manual::completions(shell),
        Command::Man { directory } => command::manual::man(directory.as_deref()),
    }
}
