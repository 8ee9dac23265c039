//! Faults of a device in use: it is pulled out, stalls, falls behind, is full, or forgets writes.

use coreplane_conformance::interceptor::{Call, Interceptor};
use coreplane_engine::{
    Batch, Brief, Durability, Error, Outcome, Result, StorageEngine, Ticket, Written,
};
use coreplane_pmem::spin::{self, Backoff};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The power of all devices.
#[derive(Debug)]
pub(crate) struct Power {
    pub(crate) is_dead: AtomicBool,
    /// The power fails before the next write when so many have been made.
    pub(crate) writes_left: AtomicU64,
    /// Writes of all devices.
    pub(crate) writes: AtomicU64,
}

impl Default for Power {
    fn default() -> Self {
        let writes_left = AtomicU64::new(u64::MAX);
        Self { is_dead: AtomicBool::default(), writes_left, writes: AtomicU64::default() }
    }
}

impl Power {
    fn count(&self, call: Call<'_>) {
        if matches!(call, Call::Put(_) | Call::Change(_) | Call::Delete | Call::Apply(..)) {
            self.writes.fetch_add(1, Ordering::SeqCst);
            if self.writes_left.load(Ordering::SeqCst) != u64::MAX && !is_left(&self.writes_left) {
                self.is_dead.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// The faults of a device.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Every call fails.
    pub(crate) is_out: AtomicBool,
    /// Every call waits, before it begins or before it returns.
    pub(crate) is_stalled: AtomicBool,
    /// Threads that fill filters in the background wait.
    holds_filters: Arc<AtomicBool>,
    /// All devices fail at one moment: all gates share the power.
    power: Arc<Power>,
    /// The calls of the device's own processor wait.
    pub(crate) is_lagging: AtomicBool,
    /// Calls that take space are refused.
    pub(crate) is_full: AtomicBool,
    /// So are writes that may use the reserve, except the membership record.
    pub(crate) is_full_to_the_last: AtomicBool,
    /// Intents are not written, and reported as written.
    pub(crate) forgets_intents: AtomicBool,
    /// Gets wait; puts; deletes.
    pub(crate) holds_gets: AtomicBool,
    pub(crate) holds_puts: AtomicBool,
    /// Puts of the device's own processor take a moment.
    pub(crate) slows_puts: AtomicBool,
    pub(crate) holds_deletes: AtomicBool,
    /// So many writes of the membership record wait, before they begin; those that wait or are being made.
    pub(crate) holds_records: AtomicBool,
    pub(crate) records_to_hold: AtomicU64,
    pub(crate) held_records: AtomicU64,
    /// Membership records are refused for lack of space when so many have been written.
    pub(crate) refuses_records: AtomicBool,
    pub(crate) records_left: AtomicU64,
    /// Iterations wait; scans.
    pub(crate) holds_looks: AtomicBool,
    pub(crate) holds_scans: AtomicBool,
    /// An iteration or a call for many keys shows its records, and then the device is out.
    pub(crate) goes_in_a_look: AtomicBool,
    /// Every scan meets a damaged record.
    pub(crate) scans_damaged: AtomicBool,
    /// So many calls that neither read nor write records, such as a scrub, meet damage.
    pub(crate) damages_cares: AtomicU64,
    /// So many puts are made, and answered with an error that is no failure of the device; or early.
    pub(crate) spoils_puts: AtomicU64,
    pub(crate) puts_early: AtomicU64,
    /// So many calls of processors panic.
    pub(crate) panics: AtomicU64,
    /// So many writes of callers panic; so many reads of the test's threads.
    pub(crate) write_panics: AtomicU64,
    pub(crate) read_panics: AtomicU64,
    /// So many deletes fail, as if the device had failed for a moment.
    pub(crate) fails_deletes: AtomicU64,
    /// A call of its processor has failed, since the device is out.
    pub(crate) has_failed_processor: AtomicBool,
    /// Calls of the test's threads so far that were refused, since the device is out.
    pub(crate) refused: AtomicU64,
    /// The durability of the last put that takes the place of a write that was taken back.
    pub(crate) undone_at: Mutex<Option<Durability>>,
    /// The last of so many hints about coming calls is held, as long as `holds_a_hint` is true after that.
    pub(crate) hints_left: AtomicU64,
    pub(crate) holds_a_hint: AtomicBool,
    /// Held while a call checks whether the device is out.
    outage: RwLock<()>,
    /// Calls for many keys so far.
    pub(crate) looks: AtomicU64,
    /// Gets so far, and gets that are held now.
    pub(crate) gets: AtomicU64,
    pub(crate) held_gets: AtomicU64,
    /// One put or conditional write is made, and waits before it is answered.
    pub(crate) holds_answers: AtomicBool,
    pub(crate) holds_an_answer: AtomicBool,
    /// Puts that are held now.
    pub(crate) held_puts: AtomicU64,
    /// Calls for many keys that are held now.
    pub(crate) held_looks: AtomicU64,
    /// Deletes that are held now.
    pub(crate) held_deletes: AtomicU64,
    /// Scans that are held now.
    pub(crate) held_scans: AtomicU64,
    /// Batches so far, and the number of the first of them that waits; 0: none waits.
    pub(crate) applies: AtomicU64,
    pub(crate) first_held_apply: AtomicU64,
    /// Admits one call at a time: the simulator knows no other order of threads that it does not schedule.
    turn: Option<Mutex<()>>,
}

fn is(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

/// Takes one from a count; false if none is left.
fn is_left(count: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
}

thread_local! {
    /// The device fails before the thread's call for many keys is answered.
    static GOES: Cell<bool> = const { Cell::new(false) };
}

/// True for a write of the membership record.
fn is_record(call: Call<'_>) -> bool {
    matches!(call, Call::Put(options) | Call::Change(options)
        if options.use_reserve && options.sequence.is_none())
}

/// True in the threads of the matrix.
fn is_of_the_matrix() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("coreplane-"))
}

/// True in a device's processor.
fn is_processor() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("coreplane-d"))
}

fn wait_while(is_held: impl Fn() -> bool) {
    let mut backoff = Backoff::new();
    while is_held() {
        backoff.wait();
    }
}

impl Gate {
    /// A gate that lets one call through at a time.
    pub(crate) fn by_turns() -> Self {
        Self { turn: Some(Mutex::new(())), ..Self::default() }
    }

    /// A gate whose device fails when the power is cut.
    pub(crate) fn powered_by(power: Arc<Power>, holds_filters: Arc<AtomicBool>) -> Self {
        Self { power, holds_filters, ..Self::default() }
    }

    fn holds_up(&self) -> bool {
        is(&self.is_stalled) || is(&self.is_lagging) && is_processor()
    }

    /// True if a call must panic.
    fn panics(&self, call: Call<'_>) -> bool {
        let is_write =
            matches!(call, Call::Put(_) | Call::Change(_) | Call::Delete | Call::Apply(..));
        let is_read = matches!(call, Call::Get | Call::Look | Call::Scan) && !is_of_the_matrix();
        let (counter, is_meant) = match is_processor() {
            true => (&self.panics, true),
            false if is_read => (&self.read_panics, true),
            false => (&self.write_panics, is_write),
        };
        counter.load(Ordering::SeqCst) > 0 && is_meant && is_left(counter)
    }

    fn hold(&self, call: Call<'_>) {
        if matches!(call, Call::Apply(..)) {
            let number = 1 + self.applies.fetch_add(1, Ordering::SeqCst);
            let first_held = || self.first_held_apply.load(Ordering::SeqCst);
            wait_while(|| (1..=number).contains(&first_held()));
        }
        let (holds, held) = match call {
            Call::Get => (&self.holds_gets, &self.held_gets),
            Call::Put(_) => (&self.holds_puts, &self.held_puts),
            _ if is_record(call) => (&self.holds_puts, &self.held_puts),
            Call::Look => (&self.holds_looks, &self.held_looks),
            Call::Delete => (&self.holds_deletes, &self.held_deletes),
            Call::Scan => (&self.holds_scans, &self.held_scans),
            _ => return,
        };
        held.fetch_add(1, Ordering::SeqCst);
        wait_while(|| is(holds));
        held.fetch_sub(1, Ordering::SeqCst);
    }

    /// True if no call is answered.
    fn is_refused(&self) -> bool {
        let _outage = self.outage.read();
        let is_refused = is(&self.is_out) || is(&self.power.is_dead);
        if is_refused && is_processor() {
            self.has_failed_processor.store(true, Ordering::SeqCst);
        }
        if is_refused && !is_of_the_matrix() {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        is_refused
    }

    /// The device answers again, when all calls that it refuses have noted that.
    pub(crate) fn put_back(&self) {
        let _outage = self.outage.write();
        self.is_out.store(false, Ordering::SeqCst);
    }

    /// True if there is no space for a call.
    fn refuses(&self, call: Call<'_>) -> bool {
        let takes_space = match call {
            Call::Put(options) | Call::Change(options) => !options.use_reserve,
            Call::Apply(batch, options) => {
                !options.use_reserve && batch.changes().any(|change| change.value().is_some())
            }
            _ => false,
        };
        let takes_the_last = match call {
            // All copies by the matrix have a given sequence.
            Call::Put(options) | Call::Change(options) => options.sequence.is_some(),
            _ => takes_space,
        };
        let refuses_records = is_record(call) && is(&self.refuses_records);
        refuses_records && !is_left(&self.records_left)
            || takes_space && is(&self.is_full)
            || takes_the_last && is(&self.is_full_to_the_last)
    }
}

/// A call that was admitted: it does not return while the device stalls.
pub(crate) struct Let<'a> {
    gate: &'a Gate,
    is_write: bool,
    is_held_record: bool,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for Let<'_> {
    fn drop(&mut self) {
        let Gate { holds_answers, holds_an_answer, .. } = self.gate;
        if self.is_write && is(holds_answers) && !holds_an_answer.swap(true, Ordering::SeqCst) {
            wait_while(|| is(holds_answers));
            holds_an_answer.store(false, Ordering::SeqCst);
        }
        wait_while(|| is(&self.gate.is_stalled));
        self.gate.held_records.fetch_sub(u64::from(self.is_held_record), Ordering::SeqCst);
    }
}

impl Interceptor for Gate {
    type Held<'a> = Let<'a>;

    fn begin(&self, call: Call<'_>) -> Result<Let<'_>> {
        if matches!(call, Call::Get) {
            self.gets.fetch_add(1, Ordering::SeqCst);
        }
        if matches!(call, Call::Look) && std::thread::current().name() == Some("coreplane-filters")
        {
            wait_while(|| is(&self.holds_filters));
        }
        if matches!(call, Call::Look) {
            self.looks.fetch_add(1, Ordering::SeqCst);
            GOES.set(!is_of_the_matrix() && self.goes_in_a_look.swap(false, Ordering::SeqCst));
        }
        if let Call::Put(options) = call
            && options.use_reserve
            && options.sequence.is_some()
        {
            *self.undone_at.lock() = options.durability;
        }
        self.hold(call);
        let is_held_record =
            is_record(call) && is(&self.holds_records) && is_left(&self.records_to_hold);
        if is_held_record {
            self.held_records.fetch_add(1, Ordering::SeqCst);
            wait_while(|| is(&self.holds_records));
        }
        wait_while(|| self.holds_up());
        if matches!(call, Call::Put(_)) && is(&self.slows_puts) && is_processor() {
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(!self.panics(call), "a bug in the engine");
        let turn = self.turn.as_ref().map(spin::lock);
        self.power.count(call);
        if self.is_refused() {
            let source = std::io::Error::other("the device was pulled out");
            return Err(Error::Io { context: "a device".to_owned(), source });
        }
        if matches!(call, Call::Delete) && is_left(&self.fails_deletes) {
            let source = std::io::Error::other("the device does not answer");
            return Err(Error::Io { context: "a device".to_owned(), source });
        }
        if matches!(call, Call::Scan) && is(&self.scans_damaged) {
            return Err(Error::ChecksumMismatch { offset: 0, stored: 1, computed: 2 });
        }
        if matches!(call, Call::Care) && is_left(&self.damages_cares) {
            return Err(Error::Corrupt { offset: 0, what: "a page that is damaged".to_owned() });
        }
        if self.refuses(call) {
            return Err(Error::NoSpace { needed: 1, reclaimable: 0 });
        }
        let is_write = matches!(call, Call::Put(_) | Call::Change(_));
        Ok(Let { gate: self, is_write, is_held_record, _turn: turn })
    }

    fn make<T>(
        &self,
        engine: &dyn StorageEngine,
        make: impl FnOnce(&dyn StorageEngine) -> Result<T>,
    ) -> Result<T> {
        let made = make(engine);
        if !GOES.take() {
            return made;
        }
        self.is_out.store(true, Ordering::SeqCst);
        let source = std::io::Error::other("the device went meanwhile");
        Err(Error::Io { context: "a device".to_owned(), source })
    }

    fn make_put(
        &self,
        engine: &dyn StorageEngine,
        put: impl FnOnce(&dyn StorageEngine) -> Brief,
    ) -> Brief {
        let brief = put(engine);
        if matches!(brief, Brief::Declined) {
            // Nothing was made.
            return brief;
        }
        let replaced = matches!(brief, Brief::Replaced);
        if is_left(&self.spoils_puts) {
            Brief::of(Err(Error::ChecksumMismatch { offset: 0, stored: 1, computed: 2 }))
        } else if is_left(&self.puts_early) {
            let written = Written { sequence: 0, ticket: Ticket::new(0, 1), replaced };
            Brief::of(Ok(Outcome::Written(written)))
        } else {
            brief
        }
    }

    fn lets_look_ahead(&self) -> bool {
        if is_left(&self.hints_left) && self.hints_left.load(Ordering::SeqCst) == 0 {
            self.holds_a_hint.store(true, Ordering::SeqCst);
            wait_while(|| is(&self.holds_a_hint));
        }
        true
    }

    fn forgets(&self, batch: &Batch) -> bool {
        let is_intent = |key: &[u8]| key.starts_with(b"\0coreplane matrix\0intent");
        is(&self.forgets_intents) && batch.changes().any(|change| is_intent(change.key()))
    }
}
