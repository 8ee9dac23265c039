//! The threads of a server, and their end.
//!
//! ```text
//!   listener ──► the thread with the fewest connections: a loop of its own ──► its connections, to their end
//! ```
//!
//! Each thread has its own runtime, and a connection stays in its thread: a request wakes another thread only for a
//! call of the store that may take long.
//!
//! A server that stops accepts no more connections, and lets every connection finish its current request, within a
//! bound; then it joins its threads. A call of the store that runs longer is left to its thread, which keeps the
//! store until then.

use crate::figures::Figures;
use crate::host::{Host, stopped};
use crate::limits::Options;
use crate::listener::{Listener, Loop};
use crate::service::Answerer;
use coreplane_tsdb::Store;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, watch};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot listen at this address.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, io::Error),
    /// There is nothing to listen on.
    #[error("there is no address to listen on")]
    Nowhere,
    /// The system refuses threads.
    #[error("no threads for HTTP: {0}")]
    Threads(io::Error),
    /// The database of OpenTSDB's points cannot be made.
    #[error("the database of OpenTSDB's points: {0}")]
    Database(#[from] coreplane_tsdb::Error),
}

/// Listens on this port of each address; port 0 is any free one.
///
/// # Errors
/// [`Error::Listen`], [`Error::Nowhere`].
pub fn listen(addresses: &[String], port: u16) -> Result<Vec<TcpListener>> {
    let bind = |address: &String| {
        let fail = |error| Error::Listen(format!("{address}:{port}"), error);
        let places: Vec<SocketAddr> =
            (address.as_str(), port).to_socket_addrs().map_err(fail)?.collect();
        TcpListener::bind(&places[..]).map_err(fail)
    };
    let listeners = addresses.iter().map(bind).collect::<Result<Vec<_>>>()?;
    if listeners.is_empty() { Err(Error::Nowhere) } else { Ok(listeners) }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    addresses: Vec<SocketAddr>,
    figures: Figures,
}

/// The condition for which the threads of a server wait.
#[derive(Clone)]
struct End {
    stop: watch::Receiver<bool>,
    /// One for each connection; all of them are back when the last connection has ended.
    places: Arc<Semaphore>,
    connections_max: u32,
    within: Duration,
}

impl End {
    /// Runs a thread's loop until the server has stopped and its connections have ended, or for at most `within`
    /// after the stop.
    fn serve(mut self, runtime: Runtime) {
        runtime.block_on(async {
            stopped(&mut self.stop).await;
            let all = self.places.acquire_many(self.connections_max);
            let _ended = tokio::time::timeout(self.within, all).await.is_ok();
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

fn runtime(options: &Options) -> Result<Runtime> {
    Builder::new_current_thread()
        .max_blocking_threads(options.writes_max.max(1) + options.queries_max.max(1))
        .thread_name("coreplane-call")
        .enable_io()
        .enable_time()
        .build()
        .map_err(Error::Threads)
}

/// A socket that the thread of this runtime serves.
fn socket_of(listener: TcpListener, handle: &Handle) -> Result<tokio::net::TcpListener> {
    let name = format!("{listener:?}");
    let _entered = handle.enter();
    let nonblocking = listener.set_nonblocking(true);
    let socket = nonblocking.and_then(|()| tokio::net::TcpListener::from_std(listener));
    socket.map_err(|error| Error::Listen(name, error))
}

impl Server {
    /// Serves a store on these sockets. The database of OpenTSDB's points is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Nowhere`], [`Error::Threads`], [`Error::Listen`], [`Error::Database`].
    pub fn start(listeners: Vec<TcpListener>, store: Arc<Store>, options: Options) -> Result<Self> {
        if !options.opentsdb_database.is_empty() {
            store.create_database(&options.opentsdb_database)?;
        }
        let first = runtime(&options)?;
        let more = (1..options.threads).map(|_| runtime(&options)).collect::<Result<Vec<_>>>()?;
        let acceptor = first.handle().clone();
        let runtimes: Vec<Runtime> = std::iter::once(first).chain(more).collect();
        let of_loop = |runtime: &Runtime| Loop {
            handle: runtime.handle().clone(),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        let loops: Arc<[Loop]> = runtimes.iter().map(of_loop).collect();
        let connections_max = u32::try_from(options.connections_max.max(1)).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(connections_max as usize));
        let (stop, stopped) = watch::channel(false);
        let within = options.stop_within;
        let end = End { stop: stopped, places, connections_max, within };
        let host = Arc::new(Host::new(store, options));
        let figures = Figures::of(&host);
        let answerer = Answerer::new(Arc::clone(&host));
        let mut addresses = Vec::new();
        for listener in listeners {
            let at = |error| Error::Listen(format!("{listener:?}"), error);
            addresses.push(listener.local_addr().map_err(at)?);
            let socket = socket_of(listener, &acceptor)?;
            let listener = Listener {
                host: Arc::clone(&host),
                answerer: answerer.clone(),
                loops: Arc::clone(&loops),
                places: Arc::clone(&end.places),
                stop: end.stop.clone(),
            };
            acceptor.spawn(listener.run(socket));
        }
        if addresses.is_empty() {
            return Err(Error::Nowhere);
        }
        let mut server = Self { threads: Vec::new(), stop, addresses, figures };
        for runtime in runtimes {
            let end = end.clone();
            let thread = thread::Builder::new().name("coreplane-http".to_owned());
            let thread = thread.spawn(move || end.serve(runtime)).map_err(Error::Threads)?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// The addresses on which it listens, in the order of the sockets.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Stops the server: running requests are finished, within the bound of the options, and the threads are
    /// joined.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic in a connection ends that connection alone.
            let _joined = thread.join().is_ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
