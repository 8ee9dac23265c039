//! The configuration of a server.

use crate::export::Export;
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The only export.
    pub export: Export,
    /// The addresses to listen on, if there is a port.
    pub bind: Vec<String>,
    /// The TCP port; zero: any free port; none: no TCP.
    pub port: Option<u16>,
    /// The path of a Unix socket.
    pub unix_socket: Option<PathBuf>,
    /// The permissions of the Unix socket; none: according to the umask.
    pub unix_socket_mode: Option<u32>,
    /// The most connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// A client that has not chosen the export by then is disconnected.
    pub handshake_timeout: Duration,
    /// At the end: how long clients may take to read their last replies.
    pub shutdown_timeout: Duration,
}

impl Config {
    /// A writable export `name` on any free port of this machine.
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
