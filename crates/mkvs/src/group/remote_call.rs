//! A call that a caller has a device's processor make, and waits for: all that devices do not compete
//! for, where calls go through the rings.
//!
//! It is made once: by the processor, or, if that ends before it comes to it, by the caller. Who waits for
//! a device that is given up is told that it has failed.

use crate::device::Scratch;
use crate::device::decision::{Decided, Write, caught};
use crate::device::{Asked, Device};
use crate::group::Group;
use crate::shape::prototype::{ReadPath, WritePath};
use coreplane_engine::{Error, Outcome, Result, StorageEngine, WriteOptions};
use coreplane_pmem::spin;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks at a remote call before its caller sleeps.
const SPINS: u32 = 50;

/// How long a caller sleeps before it looks whether anybody is left to make it.
const LOOK: Duration = Duration::from_millis(50);

type Call<T> = Box<dyn FnOnce(&dyn StorageEngine) -> Result<T> + Send>;

/// A call, and what came of it.
struct RemoteCall<T> {
    call: Mutex<Option<Call<T>>>,
    answer: Mutex<Option<Result<T>>>,
    is_over: AtomicBool,
    caller: Thread,
}

impl<T: Send> Asked for RemoteCall<T> {
    fn run(&self, device: &Device, _: Instant, _: &mut Scratch) {
        let Some(call) = spin::lock(&self.call).take() else { return };
        let answer = caught(|| call(&*device.engine));
        device.count_call();
        *spin::lock(&self.answer) = Some(answer);
        self.is_over.store(true, Ordering::Release);
        self.caller.unpark();
    }
}

impl<T> RemoteCall<T> {
    /// Until it is made, or the device's processor has ended without, or was given up.
    fn wait(&self, device: &Device) {
        let is_over = || self.is_over.load(Ordering::Acquire);
        for _ in 0..SPINS {
            if is_over() {
                return;
            }
            std::hint::spin_loop();
        }
        while !is_over() {
            let is_left = device.is_closed() && spin::lock(&self.call).is_some();
            if is_left || device.is_given_up() {
                return;
            }
            std::thread::park_timeout(LOOK);
        }
    }
}

impl Group {
    /// Makes a call on a device that reads: in this thread, or, where reads go through the rings, in the
    /// device's processor. Not for processors.
    ///
    /// # Errors
    /// As the call, and if the engine panics.
    pub(crate) fn look_on<T: Send + 'static>(
        self: &Arc<Self>,
        device: &Arc<Device>,
        call: impl FnOnce(&dyn StorageEngine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.rules.paths.reads {
            ReadPath::Rings => self.send(device, call),
            ReadPath::Auto | ReadPath::Inline => call(&*device.engine),
        }
    }

    /// The same of one that writes.
    ///
    /// # Errors
    /// As the call, and if the engine panics.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        device: &Arc<Device>,
        call: impl FnOnce(&dyn StorageEngine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.writes_by_rings() {
            return self.send(device, call);
        }
        // Nobody may wait for what was begun and never ends.
        caught(|| call(&*device.engine))
    }

    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        device: &Arc<Device>,
        call: impl FnOnce(&dyn StorageEngine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let remote_call = Arc::new(RemoteCall {
            call: Mutex::new(Some(Box::new(call))),
            answer: Mutex::new(None),
            is_over: AtomicBool::new(false),
            caller: std::thread::current(),
        });
        if device.ask(self, Arc::clone(&remote_call) as Arc<dyn Asked>) {
            remote_call.wait(device);
        }
        loop {
            // Else the processor has begun with it.
            let untouched = spin::lock(&remote_call.call).take();
            if let Some(answer) = spin::lock(&remote_call.answer).take() {
                return answer;
            }
            if device.is_given_up() {
                // Nor does the caller go where the processor does not come back from.
                let (context, source) = ("a device".to_owned(), io::ErrorKind::TimedOut.into());
                return Err(Error::Io { context, source });
            }
            if let Some(call) = untouched {
                return call(&*device.engine);
            }
            remote_call.wait(device);
        }
    }

    /// Has a device decide a write: in its processor, if that can be.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn decide_on(
        self: &Arc<Self>,
        device: &Arc<Device>,
        write: &mut dyn Write,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let remote_call = if self.writes_by_rings() { write.remote_call() } else { None };
        let options = *options;
        match remote_call {
            Some(decide) => self.call(device, move |engine| decide(engine, &options)),
            None => caught(|| write.decide(&*device.engine, &options)),
        }
    }

    /// Makes on a device what another has decided.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn make_on(
        self: &Arc<Self>,
        device: &Arc<Device>,
        decided: &Decided<'_>,
        options: &WriteOptions,
    ) -> Result<()> {
        if !self.writes_by_rings() {
            return caught(|| decided.make(&*device.engine, options));
        }
        let (change, options) = (decided.as_change().to_change(), *options);
        self.call(device, move |engine| Decided::of(change.as_ref()).make(engine, &options))
    }

    #[inline]
    pub(crate) fn writes_by_rings(&self) -> bool {
        self.rules.paths.writes == WritePath::Rings
    }
}
