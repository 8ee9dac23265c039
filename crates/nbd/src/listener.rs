//! The listening sockets.

use crate::config::Config;
use crate::stream::Stream;
use crate::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The sockets that the server listens on.
#[derive(Debug)]
pub(crate) struct Listeners {
    sockets: Vec<Socket>,
    /// The socket file to remove at the end.
    path: Option<PathBuf>,
}

impl Listeners {
    /// Listens on the addresses in `config`.
    pub(crate) fn bind(config: &Config) -> Result<Self> {
        let mut listeners = Self { sockets: Vec::new(), path: None };
        if let Some(port) = config.port {
            for host in &config.bind {
                listeners.sockets.push(Socket::Tcp(bind_tcp(host, port)?));
            }
        }
        if let Some(path) = &config.unix_socket {
            let socket = bind_unix(path)?;
            listeners.sockets.push(Socket::Unix(socket));
            listeners.path = Some(path.clone());
            if let Some(mode) = config.unix_socket_mode {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(
                    |source| Error::Listen { place: path.display().to_string(), source },
                )?;
            }
        }
        if listeners.sockets.is_empty() {
            return Err(Error::NowhereToListen);
        }
        Ok(listeners)
    }

    /// The first TCP address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.sockets.iter().find_map(|socket| match socket {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(_) => None,
        })
    }

    /// The sockets, to wait for.
    pub(crate) fn sockets<'a>(&'a self) -> Vec<BorrowedFd<'a>> {
        let of = |socket: &'a Socket| match socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        };
        self.sockets.iter().map(of).collect()
    }

    /// Accepts a connection on socket `index`; none if there is none.
    ///
    /// # Errors
    /// Of the operating system, for instance if no descriptor is free.
    pub(crate) fn accept(&self, index: usize) -> io::Result<Option<Stream>> {
        let accepted = match self.sockets.get(index) {
            Some(Socket::Tcp(socket)) => socket.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Some(Socket::Unix(socket)) => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
            None => return Ok(None),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                // The client may have gone again.
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
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
        let bound = TcpListener::bind(address);
        match bound.and_then(|socket| socket.set_nonblocking(true).map(|()| socket)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(context(last))
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    let context = |source| Error::Listen { place: path.display().to_string(), source };
    // Removes a socket that an earlier server left behind: nobody listens. Nothing else is removed.
    if let Ok(metadata) = std::fs::symlink_metadata(path)
        && metadata.file_type().is_socket()
        && let Err(error) = UnixStream::connect(path)
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path).map_err(context)?;
    }
    let socket = UnixListener::bind(path).map_err(context)?;
    socket.set_nonblocking(true).map_err(context)?;
    Ok(socket)
}
