//! What a server is told.

use crate::export::Export;
use std::path::PathBuf;
use std::time::Duration;

/// What a server is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is exported. There is one.
    pub export: Export,
    /// The addresses to listen on, if there is a port.
    pub bind: Vec<String>,
    /// The TCP port; zero: any that is free; none: no TCP.
    pub port: Option<u16>,
    /// The path of a Unix socket.
    pub unix_socket: Option<PathBuf>,
    /// The permissions of the Unix socket; none: what the umask leaves.
    pub unix_socket_mode: Option<u32>,
    /// Connections at a time; more are closed at once.
    pub connections_max: usize,
    /// Who has not chosen the export by then is dropped.
    pub handshake_timeout: Duration,
    /// At the end: how long clients may take to read their last replies.
    pub shutdown_timeout: Duration,
}

impl Config {
    /// The export `name`, which can be written, on any free port of this machine.
    pub fn new(name: &str) -> Self {
        let export = Export { name: name.to_owned(), description: String::new(), read_only: false };
        Self {
            export,
            bind: vec!["127.0.0.1".to_owned()],
            port: Some(0),
            unix_socket: None,
            unix_socket_mode: None,
            connections_max: 64,
            handshake_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}
