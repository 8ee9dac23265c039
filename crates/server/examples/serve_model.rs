//! Serves the reference engine, which lives in DRAM: for measuring the server alone.
//!
//! `cargo run --release -p coreplane-server --example serve_model -- [PORT [THREADS]]`

use coreplane_conformance::model::ModelEngine;
use coreplane_server::{Config, Server};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().map_or(Ok(6379), |port| port.parse())?;
    let threads = arguments.next().map_or(Ok(0), |threads| threads.parse())?;
    let config = Config {
        port: Some(port),
        threads,
        unix_socket: arguments.next().map(Into::into),
        medium: "DRAM (the reference engine)".to_owned(),
        power_cut_loses: "everything".to_owned(),
        ..Config::default()
    };
    let server = Server::bind(config, Arc::new(ModelEngine::new()))?;
    if let Some(address) = server.local_addr() {
        eprintln!("ready on {address}");
    }
    server.run()?;
    Ok(())
}
