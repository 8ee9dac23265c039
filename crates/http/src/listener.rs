//! Connections: accepted, bounded in number, assigned to the thread that has the fewest, and distinguished by their
//! first byte.
//!
//! HTTP methods are capital letters. A line of OpenTSDB begins with a small letter (`put`, `version`, `stats`);
//! OpenTSDB itself tells them apart in this way on its one port.

use crate::auth;
use crate::host::{Host, stopped};
use crate::metrics::add;
use crate::opentsdb;
use crate::pace::{Answer, Pace, Paced};
use crate::service::Answerer;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// The answer to a connection beyond the maximum.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 21\r\n\r\ntoo many connections\n";

/// A thread that serves connections.
pub(crate) struct Loop {
    pub(crate) handle: Handle,
    /// The number of its connections.
    pub(crate) connections: Arc<AtomicUsize>,
}

/// Counts a connection of a thread, from before the thread knows of it to its end.
struct Served(Arc<AtomicUsize>);

impl Served {
    fn by(served: &Loop) -> Self {
        served.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&served.connections))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections.
pub(crate) struct Listener {
    pub(crate) host: Arc<Host>,
    pub(crate) answerer: Answerer,
    pub(crate) loops: Arc<[Loop]>,
    pub(crate) places: Arc<Semaphore>,
    /// True once the server stops.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Listener {
    /// Accepts connections until the server stops.
    pub(crate) async fn run(mut self, socket: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = stopped(&mut self.stop) => return,
            };
            let Ok((stream, peer)) = accepted else {
                // For example, no file descriptors: it goes on when there are some.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                add(&self.host.metrics.connections_refused, 1);
                // A client that does not take the answer at once does not get it.
                let _told = stream.try_write(TOO_MANY).is_ok();
                continue;
            };
            let connection = Connection {
                host: Arc::clone(&self.host),
                answerer: self.answerer.clone(),
                stop: self.stop.clone(),
                is_refused: auth::is_protected_from(&self.host.options, peer.ip()),
                _place: place,
            };
            // The connection moves from the reactor of this thread to that of another.
            let Ok(stream) = stream.into_std() else { continue };
            let least = self.loops.iter().min_by_key(|it| it.connections.load(Ordering::Relaxed));
            let Some(least) = least else { return };
            let served = Served::by(least);
            least.handle.spawn(async move {
                let _served = served;
                if let Ok(stream) = TcpStream::from_std(stream) {
                    connection.serve(stream).await;
                }
            });
        }
    }
}

/// A connection, and the place that it takes.
struct Connection {
    host: Arc<Host>,
    answerer: Answerer,
    stop: watch::Receiver<bool>,
    /// True if the client is on another machine, and no password is set.
    is_refused: bool,
    _place: OwnedSemaphorePermit,
}

/// Counts a connection while it is open.
struct Open<'h>(&'h Host);

impl<'h> Open<'h> {
    fn begin(host: &'h Host) -> Self {
        add(&host.metrics.connections, 1);
        Self(host)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        let host = Arc::clone(&self.host);
        let _open = Open::begin(&host);
        // Answers are small, and a client waits for them.
        let _set = stream.set_nodelay(true).is_ok();
        let mut first = [0];
        let peeked = tokio::select! {
            peeked = timeout(host.options.idle_timeout, stream.peek(&mut first)) => peeked,
            () = stopped(&mut self.stop) => return,
        };
        match (peeked, first) {
            (Ok(Ok(1..)), [b'a'..=b'z']) => {
                let is_refused = self.is_refused || host.options.password.is_some();
                opentsdb::telnet(&host, stream, self.stop, is_refused).await;
            }
            (Ok(Ok(1..)), _) => self.serve_http(stream).await,
            _ => {}
        }
    }

    async fn serve_http(mut self, stream: TcpStream) {
        let pace = Pace::new();
        let paced = Paced::new(stream, pace.clone(), &self.host.options);
        let (answerer, is_refused) = (self.answerer.clone(), self.is_refused);
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (answerer, pace) = (answerer.clone(), pace.clone());
            pace.begin();
            async move {
                let request = request.map(axum::body::Body::new);
                let answer = answerer.answer(request, is_refused).await;
                Ok::<_, Infallible>(answer.map(|body| Answer::new(body, pace)))
            }
        });
        let mut builder = http1::Builder::new();
        builder.max_buf_size(self.host.options.head_max.max(8192));
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(paced), service));
        tokio::select! {
            // Errors of a connection concern its client alone.
            ended = connection.as_mut() => drop(ended),
            () = stopped(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await.is_ok();
            }
        }
    }
}
