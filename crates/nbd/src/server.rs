//! The server: bind, run, shut down.

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

/// How long the server waits before it accepts again after a failure, for instance without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The result of a server's call.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason for which the server cannot start or go on.
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
        /// The operation that failed.
        context: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// A listening server; [`Server::run`] serves.
pub struct Server {
    host: Arc<Host>,
    disk: Arc<dyn Disk>,
    listeners: Listeners,
}

/// Shuts down a server from another thread.
#[derive(Debug, Clone)]
pub struct Handle {
    host: Arc<Host>,
}

/// The state that the threads share.
struct Host {
    config: Config,
    is_ending: AtomicBool,
    /// The number of connections whose threads are awake.
    awake: AtomicUsize,
    wake: Wake,
    connections: Mutex<HashMap<u64, Arc<Stream>>>,
    /// Signals that a connection has ended.
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

/// Listening sockets, before there is a disk to serve. Clients that connect meanwhile wait in the backlog of the
/// system.
#[derive(Debug)]
pub struct Sockets(Listeners);

impl Sockets {
    /// Listens on the addresses in `config`.
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
    /// Shuts down the server: it accepts no new connections, the requests that it has begun are
    /// finished and answered, then [`Server::run`] returns. This call does not wait for that.
    pub fn shutdown(&self) {
        self.host.is_ending.store(true, Ordering::SeqCst);
        self.host.wake.ring();
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.host.connections.lock().len()
    }
}

impl Server {
    /// Listens on the addresses in `config`, to export `disk`. Clients can connect from now on;
    /// they are answered from [`Server::run`] on.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Length`], [`Error::Listen`], [`Error::NowhereToListen`], [`Error::Io`].
    pub fn bind(config: Config, disk: Arc<dyn Disk>) -> Result<Self> {
        let sockets = Sockets::bind(&config)?;
        Self::on(sockets, config, disk)
    }

    /// As [`Server::bind`], on sockets that are already bound; the addresses in `config` are not used.
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
            is_ending: AtomicBool::new(false),
            awake: AtomicUsize::new(0),
            wake,
            connections: Mutex::default(),
            gone: Condvar::new(),
        };
        Ok(Self { host: Arc::new(host), disk, listeners })
    }

    /// The first TCP address; none if the server listens only on a Unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listeners.address()
    }

    /// A handle that shuts down the server from another thread.
    pub fn handle(&self) -> Handle {
        Handle { host: self.host.clone() }
    }

    /// Serves until [`Handle::shutdown`]. When it returns, the server does not use the disk any more, not even if there
    /// are handles.
    ///
    /// # Errors
    /// [`Error::Io`] if the server cannot wait for connections.
    pub fn run(self) -> Result<()> {
        let Self { host, disk, listeners } = self;
        let outcome = host.accept(&listeners, &disk);
        host.is_ending.store(true, Ordering::SeqCst);
        drop(listeners);
        host.close();
        outcome.map_err(|source| Error::Io { context: "waiting for connections", source })
    }
}

impl Host {
    fn accept(self: &Arc<Self>, listeners: &Listeners, disk: &Arc<dyn Disk>) -> io::Result<()> {
        let sockets = listeners.sockets();
        let mut next = 1;
        while !self.is_ending.load(Ordering::SeqCst) {
            let ready = self.wake.wait(&sockets, None)?;
            for index in (0..ready.len()).filter(|index| ready[*index]) {
                match listeners.accept(index) {
                    Ok(Some(stream)) => {
                        self.begin(next, Arc::new(stream), Arc::clone(disk));
                        next += 1;
                    }
                    Ok(None) => {}
                    Err(_) => drop(self.wake.wait(&[], Some(ACCEPT_PAUSE))?),
                }
            }
        }
        Ok(())
    }

    /// Starts the thread of a connection, if there is room for one more.
    fn begin(self: &Arc<Self>, number: u64, stream: Arc<Stream>, disk: Arc<dyn Disk>) {
        let mut connections = self.connections.lock();
        if connections.len() >= self.config.connections_max {
            return;
        }
        connections.insert(number, stream.clone());
        drop(connections);
        let entry = Entry { host: self.clone(), number };
        let serve = move || {
            let host = &entry.host;
            // It takes the disk, and is dropped before the entry: nobody waits for a thread without one.
            let conversation = Conversation::new(host.config.export.clone(), disk, number);
            let (is_ending, awake) = (&host.is_ending, &host.awake);
            let stream = &*stream;
            let connection =
                Connection { stream, conversation, is_ending, awake, comes_soon: false };
            // A failure of a connection affects only its client, which notices it.
            drop(connection.run(host.config.handshake_timeout));
        };
        let thread = std::thread::Builder::new().name(format!("coreplane-nbd-{number}"));
        // Without a thread the entry is dropped, and the connection with it.
        drop(thread.spawn(serve));
    }

    /// Lets the connections finish the requests they have begun; those whose clients do not read
    /// the replies are closed after a while.
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

/// A connection's entry in the table, which is removed even if the disk panics.
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
