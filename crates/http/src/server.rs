//! The threads of a server, and their end.
//!
//! A server that stops accepts nothing more and lets every connection finish the request that it is at, within a bound; then
//! it joins its threads. A call of the store that runs longer is left to its thread, which has the store until then.

use crate::figures::Figures;
use crate::host::Host;
use crate::limits::Options;
use crate::listener::Listener;
use crate::service::Answerer;
use coreplane_tsdb::Store;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot listen there.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, io::Error),
    /// There is nothing to listen on.
    #[error("there is no address to listen on")]
    Nowhere,
    /// The system has no threads.
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

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    places: Arc<Semaphore>,
    connections_max: u32,
    stop_within: Duration,
    addresses: Vec<SocketAddr>,
    figures: Figures,
}

impl Server {
    /// Serves a store on these sockets. The database of OpenTSDB's points is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Nowhere`], [`Error::Threads`], [`Error::Listen`], [`Error::Database`].
    pub fn start(listeners: Vec<TcpListener>, store: Arc<Store>, options: Options) -> Result<Self> {
        if !options.opentsdb_database.is_empty() {
            store.create_database(&options.opentsdb_database)?;
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .max_blocking_threads(options.writes_max.max(1) + options.queries_max.max(1))
            .thread_name("coreplane-http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::Threads)?;
        let connections_max = u32::try_from(options.connections_max.max(1)).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(connections_max as usize));
        let (stop, stopped) = watch::channel(false);
        let stop_within = options.stop_within;
        let host = Arc::new(Host::new(store, options));
        let figures = Figures::of(&host);
        let answerer = Answerer::new(Arc::clone(&host));
        let mut addresses = Vec::new();
        let entered = runtime.enter();
        for listener in listeners {
            let at = |error| Error::Listen(format!("{listener:?}"), error);
            addresses.push(listener.local_addr().map_err(at)?);
            listener.set_nonblocking(true).map_err(at)?;
            let name = format!("{listener:?}");
            let socket = tokio::net::TcpListener::from_std(listener);
            let socket = socket.map_err(|error| Error::Listen(name, error))?;
            let listener = Listener {
                host: Arc::clone(&host),
                answerer: answerer.clone(),
                places: Arc::clone(&places),
                stop: stopped.clone(),
            };
            runtime.spawn(listener.run(socket));
        }
        drop(entered);
        if addresses.is_empty() {
            return Err(Error::Nowhere);
        }
        let runtime = Some(runtime);
        Ok(Self { runtime, stop, places, connections_max, stop_within, addresses, figures })
    }

    /// Where it listens, in the order of the sockets.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Stops: what runs is finished, within the bound of its options, and its threads are joined.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        // Every connection has a place; they are all there again when the last one has ended.
        let all = self.places.acquire_many(self.connections_max);
        let _ended =
            runtime.block_on(async { tokio::time::timeout(self.stop_within, all).await.is_ok() });
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
