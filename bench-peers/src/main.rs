//! `coreplane-bench-peers`: a peer, or a floor, does what `coreplane bench` does, and prints the
//! same lines, one JSON object a phase.
#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use clap::Parser;
use coreplane_bench::{Error, Plan, Result, Step, Workload, run};
use coreplane_bench_peers::{Peer, Safety, open, server};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the workloads of `coreplane bench` on another store.
#[derive(Debug, Parser)]
struct Arguments {
    /// rocksdb, leveldb, lmdb, lmdb-nomap, redb, fjall, floor-pmem, floor-dram,
    /// floor-pmem-seen, floor-dram-seen; resp or memcached: a server that runs already.
    #[arg(long)]
    peer: String,
    /// A directory that does not exist yet; it is made, and removed at the end.
    #[arg(long, required_unless_present = "address", conflicts_with = "address")]
    directory: Option<PathBuf>,
    /// Where the server listens, as 127.0.0.1:6379.
    #[arg(long)]
    address: Option<SocketAddr>,
    /// What a write that returned survives: kill (of the process) or power.
    #[arg(long, default_value = "kill")]
    safety: Safety,
    /// Workloads, `load` the first, or `fill` before it: load, a, b, c, d, e, f, mget, overwrite;
    /// `c@uniform:2t:1000` chooses so, on two threads, in so many operations.
    #[arg(long, default_value = "load,a", value_delimiter = ',')]
    workload: Vec<Step>,
    #[command(flatten)]
    plan: Plan,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coreplane-bench-peers: {}: {error}", arguments.peer);
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    // What a server holds, its caller knows.
    let begins = |step: &Step| matches!(step.workload, Workload::Fill | Workload::Load);
    if arguments.address.is_none() && !arguments.workload.first().is_some_and(begins) {
        return Err(Error::Plan("the first workload must be load: the store is new".to_owned()));
    }
    let Arguments { peer, directory, address, safety, workload, plan } = arguments;
    match (directory, address) {
        (_, Some(address)) => phases(arguments, &*server(peer, *address)?),
        (None, None) => Err(Error::Plan("neither a directory nor an address".to_owned())),
        (Some(at), None) => {
            let refuse = |error| Error::Plan(format!("{}: {error}", at.display()));
            std::fs::create_dir(at).map_err(refuse)?;
            let measured = open(peer, at, *safety, plan, workload)
                .and_then(|store| phases(arguments, &*store));
            std::fs::remove_dir_all(at).map_err(refuse)?;
            measured
        }
    }
}

fn phases(arguments: &Arguments, store: &dyn Peer) -> Result<()> {
    let Arguments { peer, address, safety, workload, plan, .. } = arguments;
    let durability = match address {
        Some(_) => "the server's",
        None if peer.starts_with("floor-") => "strict",
        None => safety.name(),
    };
    for (step, plan) in Step::plans(workload, plan) {
        let report = run(store, &plan, step.workload)?;
        let mut line = serde_json::to_value(&report).map_err(|e| Error::Target(e.to_string()))?;
        line["durability"] = json!(durability);
        line["settings"] = store.settings();
        println!("{line}");
    }
    Ok(())
}
