//! The server as a whole: bound, run, ended.

use crate::config::Config;
use crate::connection::Connection;
use crate::conversation::Conversation;
use crate::disk::Disk;
use crate::export::has_good_length;
use crate::listener::Listeners;
use crate::stream::Stream;
use crate::wake::Wake;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long the server waits before it accepts again when it could not, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The result of a server's call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address or path cannot be listened on.
    #[error("cannot listen on {place}: {source}")]
    Listen {
        /// The address or path.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// Neither a port nor a path was given.
    #[error("neither a TCP port nor a Unix socket to listen on")]
    NowhereToListen,
    /// An export cannot have this name.
    #[error("no name of an export: {0:?}; it has 1 to 2048 bytes, and no `@`")]
    Name(String),
    /// A disk of this length cannot be exported.
    #[error("a disk of {0} bytes cannot be exported: it has whole sectors of 4096 bytes")]
    Length(u64),
    /// An error of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// A server that listens; [`Server::run`] serves.
pub struct Server {
    host: Arc<Host>,
    listeners: Listeners,
}

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct Handle {
    host: Arc<Host>,
}

/// What the threads share.
struct Host {
    config: Config,
    disk: Arc<dyn Disk>,
    is_ending: AtomicBool,
    /// Connections whose threads do not sleep.
    awake: AtomicUsize,
    wake: Wake,
    connections: Mutex<HashMap<u64, Arc<Stream>>>,
    /// A connection has gone.
    gone: Condvar,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Host").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

/// Sockets that listen, before there is a disk to serve. Clients that connect meanwhile wait in the backlog of the
/// system.
#[derive(Debug)]
pub struct Sockets(Listeners);

impl Sockets {
    /// Listens where `config` says.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Listen`], [`Error::NowhereToListen`].
    pub fn bind(config: &Config) -> Result<Self> {
        if !config.export.has_good_name() {
            return Err(Error::Name(config.export.name.clone()));
        }
        Listeners::bind(config).map(Self)
    }
}

impl Handle {
    /// Ends the server: no new connections, the requests that it has begun are finished and
    /// answered, then [`Server::run`] returns. It does not wait for that.
    pub fn shutdown(&self) {
        self.host.is_ending.store(true, Ordering::SeqCst);
        self.host.wake.ring();
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.host.connections.lock().len()
    }
}

impl Server {
    /// Listens where `config` says, to export `disk`. Clients can connect from now on; they are
    /// answered from [`Server::run`] on.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Length`], [`Error::Listen`], [`Error::NowhereToListen`], [`Error::Io`].
    pub fn bind(config: Config, disk: Arc<dyn Disk>) -> Result<Self> {
        let sockets = Sockets::bind(&config)?;
        Self::on(sockets, config, disk)
    }

    /// As [`Server::bind`], on sockets that were bound before; where they listen `config` is not asked again.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Length`], [`Error::Io`].
    pub fn on(sockets: Sockets, config: Config, disk: Arc<dyn Disk>) -> Result<Self> {
        if !config.export.has_good_name() {
            return Err(Error::Name(config.export.name));
        }
        if !has_good_length(&*disk) {
            return Err(Error::Length(disk.len()));
        }
        let Sockets(listeners) = sockets;
        let wake =
            Wake::new().map_err(|source| Error::Io { context: "preparing a server", source })?;
        let host = Host {
            config,
            disk,
            is_ending: AtomicBool::new(false),
            awake: AtomicUsize::new(0),
            wake,
            connections: Mutex::default(),
            gone: Condvar::new(),
        };
        Ok(Self { host: Arc::new(host), listeners })
    }

    /// The first TCP address; none if the server listens on a Unix socket alone.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listeners.address()
    }

    /// Ends the server from another thread.
    pub fn handle(&self) -> Handle {
        Handle { host: self.host.clone() }
    }

    /// Serves until [`Handle::shutdown`].
    ///
    /// # Errors
    /// [`Error::Io`] if the server cannot wait for connections.
    pub fn run(self) -> Result<()> {
        let Self { host, listeners } = self;
        let outcome = host.accept(&listeners);
        host.is_ending.store(true, Ordering::SeqCst);
        drop(listeners);
        host.close();
        outcome.map_err(|source| Error::Io { context: "waiting for connections", source })
    }
}

impl Host {
    fn accept(self: &Arc<Self>, listeners: &Listeners) -> io::Result<()> {
        let sockets = listeners.sockets();
        let mut next = 1;
        while !self.is_ending.load(Ordering::SeqCst) {
            let ready = self.wake.wait(&sockets, None)?;
            for index in (0..ready.len()).filter(|index| ready[*index]) {
                match listeners.accept(index) {
                    Ok(Some(stream)) => {
                        self.begin(next, Arc::new(stream));
                        next += 1;
                    }
                    Ok(None) => {}
                    Err(_) => drop(self.wake.wait(&[], Some(ACCEPT_PAUSE))?),
                }
            }
        }
        Ok(())
    }

    /// Gives a connection its thread, if there is room for one more.
    fn begin(self: &Arc<Self>, number: u64, stream: Arc<Stream>) {
        let mut connections = self.connections.lock();
        if connections.len() >= self.config.connections_max {
            return;
        }
        connections.insert(number, stream.clone());
        drop(connections);
        let entry = Entry { host: self.clone(), number };
        let serve = move || {
            let host = &entry.host;
            let conversation =
                Conversation::new(host.config.export.clone(), host.disk.clone(), number);
            let (is_ending, awake) = (&host.is_ending, &host.awake);
            let stream = &*stream;
            let connection =
                Connection { stream, conversation, is_ending, awake, comes_soon: false };
            // A connection that fails has failed for its client, who sees that.
            drop(connection.run(host.config.handshake_timeout));
        };
        let thread = std::thread::Builder::new().name(format!("coreplane-nbd-{number}"));
        // Without a thread the entry falls, and the connection with it.
        drop(thread.spawn(serve));
    }

    /// Lets the connections finish what they have begun; those whose clients do not read it are
    /// closed after a while.
    fn close(&self) {
        let deadline = Instant::now() + self.config.shutdown_timeout;
        let mut connections = self.connections.lock();
        connections.values().for_each(|stream| stream.shutdown(Shutdown::Read));
        while !connections.is_empty() {
            if self.gone.wait_until(&mut connections, deadline).timed_out() {
                break;
            }
        }
        connections.values().for_each(|stream| stream.shutdown(Shutdown::Both));
        while !connections.is_empty() {
            self.gone.wait(&mut connections);
        }
    }
}

/// A connection's place in the table, which it leaves even if the disk panics.
struct Entry {
    host: Arc<Host>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.host.connections.lock().remove(&self.number);
        self.host.gone.notify_all();
    }
}
