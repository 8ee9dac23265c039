//! A call that a device's processor executes while its caller waits: if calls go through the rings, all calls that
//! devices do not compete for.
//!
//! It is made once: by the processor, or, if the processor ends before that, by the caller. A caller that waits for
//! a device that is given up gets the error that the device has failed.

use crate::device::decision::Decided;
use crate::device::write::Write;
use crate::device::{Asked, Device, Scratch};
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

/// How long a caller sleeps before it checks whether the processor can still make the call.
const LOOK: Duration = Duration::from_millis(50);

type Call<T> = Box<dyn FnOnce(&dyn StorageEngine) -> Result<T> + Send>;

/// A call, and its answer.
struct RemoteCall<T> {
    call: Mutex<Option<Call<T>>>,
    answer: Mutex<Option<Result<T>>>,
    is_over: AtomicBool,
    caller: Thread,
}

impl<T: Send> Asked for RemoteCall<T> {
    fn run(&self, device: &Device, _: Instant, _: &mut Scratch) {
        let Some(call) = spin::lock(&self.call).take() else { return };
        let answer = call(&*device.engine);
        device.count_call();
        *spin::lock(&self.answer) = Some(answer);
        self.is_over.store(true, Ordering::Release);
        self.caller.unpark();
    }
}

impl<T> RemoteCall<T> {
    /// Waits until it is made, or the device's processor has ended without making it, or the device was given up.
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
    /// Makes a reading call on a device: in this thread, or, if reads go through the rings, in the device's
    /// processor. Not for processors.
    ///
    /// # Errors
    /// As the call.
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

    /// The same for a writing call.
    ///
    /// # Errors
    /// As the call.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        device: &Arc<Device>,
        call: impl FnOnce(&dyn StorageEngine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.writes_by_rings() {
            return self.send(device, call);
        }
        call(&*device.engine)
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
            // If the call is gone, the processor has begun with it.
            let untouched = spin::lock(&remote_call.call).take();
            if let Some(answer) = spin::lock(&remote_call.answer).take() {
                return answer;
            }
            if device.is_given_up() {
                // The caller does not enter a device whose processor does not return.
                let (context, source) = ("a device".to_owned(), io::ErrorKind::TimedOut.into());
                return Err(Error::Io { context, source });
            }
            if let Some(call) = untouched {
                return call(&*device.engine);
            }
            remote_call.wait(device);
        }
    }

    /// Has a device decide a write: in its processor, if possible.
    pub(crate) fn decide_on(
        self: &Arc<Self>,
        device: &Arc<Device>,
        write: &mut Write<'_>,
        options: &WriteOptions,
    ) -> Result<Outcome> {
        let remote_call = if self.writes_by_rings() { write.remote_call() } else { None };
        let options = *options;
        match remote_call {
            Some(decide) => self.call(device, move |engine| decide(engine, &options)),
            None => write.decide(&*device.engine, &options),
        }
    }

    /// Makes a write on a device as another device has decided it.
    pub(crate) fn make_on(
        self: &Arc<Self>,
        device: &Arc<Device>,
        decided: &Decided<'_>,
        options: &WriteOptions,
    ) -> Result<()> {
        if !self.writes_by_rings() {
            return decided.make(&*device.engine, options);
        }
        let (change, options) = (decided.as_change().to_change(), *options);
        self.call(device, move |engine| Decided::of(change.as_ref()).make(engine, &options))
    }

    #[inline]
    pub(crate) fn writes_by_rings(&self) -> bool {
        self.rules.paths.writes == WritePath::Rings
    }
}
