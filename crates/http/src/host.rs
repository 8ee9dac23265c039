//! The state that all connections share, and calls of the store outside their threads.
//!
//! A call of the store may wait for a sync, and a query may be long, so both run on blocking threads. There is one
//! such thread for each permit of the two kinds, so that queries never take the threads of writes.
//!
//! Waking such a thread, and being woken by it, takes as long as a short query. So a query that changes nothing is
//! first run in the thread in which it arrived, for [`SHORT`]; if it has not ended by then it is begun anew on a
//! thread of its own.

use crate::limits::{Budget, Options};
use crate::metrics::{Metrics, add};
use coreplane_tsdb::Store;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// The time for which a query is run in the thread of its connection, while other connections of that thread wait.
pub(crate) const SHORT: Duration = Duration::from_micros(500);

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) store: Arc<Store>,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) memory: Budget,
    pub(crate) begun: Instant,
    writes: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    request: AtomicU64,
    /// Distinguishes the requests of this server from those of other servers.
    salt: u64,
}

/// A call was not made, or did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotRun {
    /// Other calls took too long.
    Busy,
    /// The call has panicked.
    Failed,
}

impl Host {
    pub(crate) fn new(store: Arc<Store>, options: Options) -> Self {
        Self {
            store,
            memory: Budget::new(options.memory_max),
            metrics: Metrics::default(),
            begun: Instant::now(),
            writes: Arc::new(Semaphore::new(options.writes_max.max(1))),
            queries: Arc::new(Semaphore::new(options.queries_max.max(1))),
            request: AtomicU64::new(0),
            salt: u64::try_from(now()).unwrap_or_default() ^ u64::from(std::process::id()) << 40,
            options,
        }
    }

    /// An identifier for a request in InfluxDB's form: a UUID.
    pub(crate) fn request_id(&self) -> String {
        let number = self.request.fetch_add(1, Ordering::Relaxed);
        let salt = self.salt;
        let (low, middle, high) = (number & 0xffff_ffff, number >> 32 & 0xffff, salt & 0xfff);
        let node = salt >> 12 & 0xffff_ffff_ffff;
        format!("{low:08x}-{middle:04x}-1{high:03x}-8000-{node:012x}")
    }

    /// True if `bytes` of points are written in the thread of their connection: they are few, and no writer waits
    /// for room.
    pub(crate) fn writes_here(&self, bytes: usize) -> bool {
        bytes <= self.options.inline_max && !self.store.is_crowded()
    }

    /// Runs a call that writes.
    pub(crate) async fn run_write<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotRun> {
        let writes = Arc::clone(&self.writes);
        let permit = writes.acquire_owned().await.map_err(|_| NotRun::Busy)?;
        let run = move || {
            let _permit = permit;
            call()
        };
        tokio::task::spawn_blocking(run).await.map_err(|_| NotRun::Failed)
    }

    /// Runs a query here, which ends by itself after [`SHORT`]; none if other queries have all the places.
    pub(crate) fn run_short<T>(&self, call: impl FnOnce() -> T) -> Option<Result<T, NotRun>> {
        let _permit = self.queries.try_acquire().ok()?;
        let _running = Running::begin(&self.metrics);
        Some(catch_unwind(AssertUnwindSafe(call)).map_err(|_| NotRun::Failed))
    }

    /// Runs a query, which is notified once it is no longer wanted: this future is dropped with the client's
    /// connection. Until the query checks the flag it goes on, and keeps its place.
    pub(crate) async fn run_query<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&Self, &Unwanted) -> T + Send + 'static,
    ) -> Result<T, NotRun> {
        let queries = Arc::clone(&self.queries);
        let waited = tokio::time::timeout(self.options.query_wait, queries.acquire_owned()).await;
        let Ok(Ok(permit)) = waited else {
            add(&self.metrics.queries_refused, 1);
            return Err(NotRun::Busy);
        };
        let (host, unwanted) = (Arc::clone(self), Unwanted::default());
        let wanted = Wanted(unwanted.clone());
        let run = move || {
            let _permit = permit;
            let _running = Running::begin(&host.metrics);
            call(&host, &unwanted)
        };
        let ran = tokio::task::spawn_blocking(run).await.map_err(|_| NotRun::Failed);
        drop(wanted);
        ran
    }
}

/// True once no client waits for a query any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwanted(Arc<AtomicBool>);

impl Unwanted {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag, for the code in the store that checks it.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// Held by the future that waits for a query.
struct Wanted(Unwanted);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Counts a query while it runs, even if it panics.
struct Running<'m>(&'m Metrics);

impl<'m> Running<'m> {
    fn begin(metrics: &'m Metrics) -> Self {
        add(&metrics.queries_running, 1);
        Self(metrics)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.queries_running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until the server stops.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the server is gone.
    let _stopped = stop.wait_for(|stop| *stop).await.is_ok();
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn host(options: Options) -> Arc<Host> {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let of_store = coreplane_tsdb::Options {
            sets: 1,
            size: 16 << 20,
            ..coreplane_tsdb::Options::default()
        };
        // The pools stay open though their files are removed.
        let store = Store::open(&directory.path().join("ts"), &of_store).unwrap();
        Arc::new(Host::new(Arc::new(store), options))
    }

    fn running(host: &Host) -> u64 {
        host.metrics.queries_running.load(Ordering::Relaxed)
    }

    #[test]
    fn queries_wait_for_each_other_and_not_for_ever() {
        let query_wait = Duration::from_millis(50);
        let host =
            host(Options { queries_max: 1, writes_max: 1, query_wait, ..Options::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .max_blocking_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let (begun, has_begun) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let long = Arc::clone(&host);
        let long = runtime.spawn(async move {
            let call = move |_: &Host, _: &Unwanted| {
                begun.send(()).unwrap();
                ends.recv().unwrap();
                7
            };
            long.run_query(call).await
        });
        has_begun.recv().unwrap();
        assert_eq!(running(&host), 1);
        runtime.block_on(async {
            assert_eq!(host.run_query(|_, _| 8).await, Err(NotRun::Busy));
            // Writes have threads of their own.
            assert_eq!(host.run_write(|| 9).await, Ok(9));
            end.send(()).unwrap();
            assert_eq!(long.await.unwrap(), Ok(7));
            assert_eq!(host.run_query(|_, _| 10).await, Ok(10));
        });
        assert_eq!((running(&host), host.metrics.queries_refused.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn a_query_is_told_when_nobody_waits_for_it() {
        let host = host(Options { queries_max: 1, ..Options::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        let (begun, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let asked = Arc::clone(&host);
        let asked = runtime.spawn(async move {
            let call = move |_: &Host, unwanted: &Unwanted| {
                begun.send(unwanted.get()).unwrap();
                while !unwanted.get() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended.send(()).unwrap();
            };
            asked.run_query(call).await
        });
        assert!(!has_begun.recv().unwrap());
        asked.abort();
        has_ended.recv_timeout(Duration::from_secs(30)).unwrap();
        // Its place is free again.
        assert_eq!(runtime.block_on(host.run_query(|_, unwanted| unwanted.get())), Ok(false));
    }

    #[test]
    fn a_call_that_panics_is_an_error_and_gives_its_place_back() {
        let host = host(Options { queries_max: 1, ..Options::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let failed = host.run_query(|_, _| -> u8 { panic!("as it should") }).await;
            assert_eq!((failed, running(&host)), (Err(NotRun::Failed), 0));
            assert_eq!(host.run_query(|_, _| 1).await, Ok(1));
        });
    }

    #[test]
    fn a_short_query_has_a_place_or_is_not_run() {
        let host = host(Options { queries_max: 1, ..Options::default() });
        let within = || host.run_short(|| 2);
        assert_eq!(host.run_short(|| (running(&host), within())), Some(Ok((1, None))));
        assert_eq!(host.run_short(|| -> u8 { panic!("as it should") }), Some(Err(NotRun::Failed)));
        assert_eq!((within(), running(&host)), (Some(Ok(2)), 0));
    }

    #[test]
    fn names_of_requests_are_uuids_and_differ() {
        let host = host(Options::default());
        let (one, other) = (host.request_id(), host.request_id());
        let shape: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(shape, [8, 4, 4, 4, 12]);
        assert_ne!(one, other);
    }
}
