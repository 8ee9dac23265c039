//! The server as a whole: binding, running, ending.

use crate::command::NUMBERS;
use crate::config::Config;
use crate::counters::LoopCounters;
use crate::event_loop::{EventLoop, WAKE};
use crate::host::{Host, Port};
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::service::PolledService;
use crate::sockets::Sockets;
use coreplane_engine::{Deferred, DurableListener};
use mio::{Poll, Waker};
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of a call of the server.
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
    /// An error of the operating system.
    #[error("{context}: {source}")]
    Io {
        /// The operation that failed.
        context: &'static str,
        /// The error.
        source: io::Error,
    },
    /// An event loop ended because of a fault in the server.
    #[error("an event loop panicked")]
    Panicked,
}

/// A server that listens; [`Server::run`] serves.
#[derive(Debug)]
pub struct Server {
    host: Arc<Host>,
    loops: Vec<EventLoop>,
    metrics: Option<Metrics>,
}

/// Ends a server from another thread.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) host: Arc<Host>,
}

impl Handle {
    /// Ends the server: no new connections, answers that wait for durability are sent, then
    /// [`Server::run`] returns. The engine stays open.
    pub fn shutdown(&self) {
        self.host.end();
    }
}

impl Server {
    /// Listens where `config` says, to serve `engine`. Clients can connect from now on; they are
    /// answered from [`Server::run`] on.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::NowhereToListen`], [`Error::Io`].
    pub fn bind(config: Config, engine: Arc<dyn Deferred>) -> Result<Self> {
        Self::bind_with(config, engine, None)
    }

    /// As [`Server::bind`], with a service in the first event loop.
    ///
    /// # Errors
    /// As [`Server::bind`]; if the service cannot begin.
    pub fn bind_with(
        config: Config,
        engine: Arc<dyn Deferred>,
        service: Option<Box<dyn PolledService>>,
    ) -> Result<Self> {
        Self::on(Sockets::bind(&config)?, config, engine, service)
    }

    /// As [`Server::bind_with`], on sockets that were bound before; the addresses in `config` are not used.
    ///
    /// # Errors
    /// [`Error::Io`]; if the service cannot begin.
    pub fn on(
        sockets: Sockets,
        config: Config,
        engine: Arc<dyn Deferred>,
        service: Option<Box<dyn PolledService>>,
    ) -> Result<Self> {
        let threads = match config.threads {
            // One core is left for the kernel's side of the sockets, for cleaning and syncs: with as many loops as
            // cores all of them wait for each other.
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().max(2) - 1),
            threads => threads,
        };
        let Sockets { mut listeners, metrics } = sockets;
        let mut polls = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..threads {
            let (poll, port) = port()
                .map_err(|source| Error::Io { context: "preparing an event loop", source })?;
            polls.push(poll);
            ports.push(port);
        }
        if let Some(first) = polls.first() {
            listeners
                .register(first.registry())
                .map_err(|source| Error::Io { context: "watching for connections", source })?;
        }
        let host = Host::new(config, engine, ports, listeners.addresses());
        let room = host.room_for(host.config.max_clients);
        host.settings.max_clients.store(room.into(), Ordering::Relaxed);
        host.engine.on_durable(waking(&host, |port| port.awaits_durable.load(Ordering::SeqCst)));
        if let Some(cluster) = &host.config.cluster {
            cluster.on_applied(waking(&host, |port| port.has_feeds.load(Ordering::SeqCst)));
        }
        let mut listeners = Some(listeners);
        let mut loops: Vec<EventLoop> = polls
            .into_iter()
            .enumerate()
            .map(|(member, poll)| EventLoop::new(host.clone(), member, poll, listeners.take()))
            .collect();
        if let (Some(service), Some(first)) = (service, loops.first_mut()) {
            let context = "beginning a service";
            first.add_service(service).map_err(|source| Error::Io { context, source })?;
        }
        Ok(Self { host, loops, metrics })
    }

    /// The first TCP address; none if the server listens on a Unix socket alone.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.host.addresses.first().copied()
    }

    /// Connections at a time: as configured, or fewer if the limit of open files has no room for them.
    pub fn max_clients(&self) -> u32 {
        let number = self.host.settings.max_clients.load(Ordering::Relaxed);
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The address of the Prometheus endpoint, if there is one.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|metrics| metrics.address)
    }

    /// Ends the server from another thread.
    pub fn handle(&self) -> Handle {
        Handle { host: self.host.clone() }
    }

    /// Serves until `SHUTDOWN` or [`Handle::shutdown`].
    ///
    /// # Errors
    /// [`Error::Io`] if an event loop failed, [`Error::Panicked`].
    pub fn run(self) -> Result<()> {
        let context = "serving";
        let serve = |metrics: Metrics| metrics.serve(self.host.clone());
        let scraped = self.metrics.map(serve).transpose();
        let scraped = scraped.map_err(|source| Error::Io { context, source })?;
        let mut threads = Vec::new();
        for event_loop in self.loops {
            let thread = std::thread::Builder::new()
                .name(format!("coreplane-loop-{}", event_loop.member))
                .spawn(move || Relay::new(event_loop).run());
            match thread {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    self.host.end();
                    return Err(Error::Io { context, source });
                }
            }
        }
        let mut result = Ok(());
        for thread in threads {
            let ended = match thread.join() {
                Ok(ended) => ended.map_err(|source| Error::Io { context, source }),
                Err(_) => Err(Error::Panicked),
            };
            result = result.and(ended);
        }
        if let Some(scraped) = scraped {
            scraped.end();
        }
        result
    }
}

/// Wakes the loops for which `is_waiting` is true.
fn waking(host: &Arc<Host>, is_waiting: fn(&Port) -> bool) -> DurableListener {
    let host = Arc::downgrade(host);
    Arc::new(move || {
        if let Some(host) = host.upgrade() {
            host.ports.iter().filter(|port| is_waiting(port)).for_each(Port::wake);
        }
    })
}

/// A poll, and the means to reach the loop that polls it.
pub(crate) fn port() -> io::Result<(Poll, Port)> {
    let poll = Poll::new()?;
    let port = Port {
        inbox: Mutex::default(),
        waker: Waker::new(poll.registry(), WAKE)?,
        awaits_durable: AtomicBool::new(false),
        has_feeds: AtomicBool::new(false),
        counters: LoopCounters::new(NUMBERS),
    };
    Ok((poll, port))
}
