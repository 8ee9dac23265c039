//! The sockets that accept connections.

use crate::config::Config;
use crate::connection::Stream;
use crate::event_loop::listener_token;
use crate::{Error, Result};
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The sockets that the server listens on. One event loop owns them and distributes the connections in turn, so that
/// every loop has its share even of a few.
#[derive(Debug)]
pub(crate) struct Listeners {
    sockets: Vec<Socket>,
    next: usize,
    unix_path: Option<PathBuf>,
}

impl Listeners {
    /// Listens where `config` says.
    pub(crate) fn bind(config: &Config) -> Result<Self> {
        let mut listeners = Self { sockets: Vec::new(), next: 0, unix_path: None };
        if let Some(port) = config.port {
            for host in &config.bind {
                let socket = bind_tcp(host, port)?;
                listeners.sockets.push(Socket::Tcp(socket));
            }
        }
        if let Some(path) = &config.unix_socket {
            let socket = bind_unix(path, config.unix_socket_mode)?;
            listeners.sockets.push(Socket::Unix(socket));
            listeners.unix_path = Some(path.clone());
        }
        if listeners.sockets.is_empty() {
            return Err(Error::NowhereToListen);
        }
        Ok(listeners)
    }

    /// The TCP addresses.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets
            .iter()
            .filter_map(|socket| match socket {
                Socket::Tcp(socket) => socket.local_addr().ok(),
                Socket::Unix(_) => None,
            })
            .collect()
    }

    /// Asks for events of new connections.
    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (index, socket) in self.sockets.iter_mut().enumerate() {
            let token = listener_token(index);
            match socket {
                Socket::Tcp(socket) => registry.register(socket, token, Interest::READABLE)?,
                Socket::Unix(socket) => registry.register(socket, token, Interest::READABLE)?,
            }
        }
        Ok(())
    }

    /// The number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// The connections that have arrived at socket `index`, each with the number of the loop, of `members`, that is
    /// to serve it. An error (no descriptor left, a client that has gone already) ends the list; the rest is found at
    /// the next call.
    pub(crate) fn accept_all(&mut self, index: usize, members: usize) -> Vec<(usize, Stream)> {
        let mut streams = Vec::new();
        let Some(socket) = self.sockets.get(index) else {
            return streams;
        };
        loop {
            let accepted = match socket {
                Socket::Tcp(socket) => socket.accept().map(|(stream, _)| Stream::Tcp(stream)),
                Socket::Unix(socket) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
            };
            match accepted {
                Ok(stream) => {
                    streams.push((self.next % members, stream));
                    self.next = self.next.wrapping_add(1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return streams,
            }
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(path) = &self.unix_path {
            // A socket file that stays does no harm.
            drop(std::fs::remove_file(path));
        }
    }
}

fn bind_tcp(host: &str, port: u16) -> Result<TcpListener> {
    let context = |source| Error::Listen { place: format!("{host}:{port}"), source };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for address in (bare, port).to_socket_addrs().map_err(context)? {
        match TcpListener::bind(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(context(last))
}

fn bind_unix(path: &Path, mode: Option<u32>) -> Result<UnixListener> {
    let context = |source| Error::Listen { place: path.display().to_string(), source };
    // A socket that an earlier server left behind: nobody listens. Nothing else is removed.
    if let Ok(metadata) = std::fs::symlink_metadata(path)
        && metadata.file_type().is_socket()
        && let Err(error) = std::os::unix::net::UnixStream::connect(path)
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path).map_err(context)?;
    }
    let socket = UnixListener::bind(path).map_err(context)?;
    if let Some(mode) = mode {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(context)?;
    }
    Ok(socket)
}
