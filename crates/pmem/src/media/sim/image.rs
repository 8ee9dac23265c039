//! One simulated machine, and the images that a power cut leaves.

use super::choice::{self, Kept};
use super::cost::Cost;
use super::log::{Event, Log};
use super::machine::{EarlyRead, Machine, Model};
use super::options::SimOptions;
use super::recorder::{Port, Recorder, Rules};
use super::rng::Rng;
use crate::space::Space;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A simulated medium with a running program: for tests that cut the power at one chosen place.
/// [`explore`](super::explore) visits all places.
#[derive(Debug)]
pub struct Sim {
    spaces: Vec<Arc<Space>>,
    recorder: Arc<Recorder>,
    before: Vec<u8>,
    options: SimOptions,
}

/// The contents of the medium after a power cut.
#[derive(Debug, Clone)]
pub struct Image {
    bytes: Vec<u8>,
    options: SimOptions,
}

/// Which of the stores that are not certainly durable have reached the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// Some, by seed.
    Seeded(u64),
}

impl Sim {
    /// An empty medium (all zeroes).
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(options: &SimOptions) -> io::Result<Self> {
        let before = vec![0; options.len as usize * options.spaces];
        Self::over(before, options, Rules::of_run(options), true)
    }

    /// A medium with the contents `before`, of all spaces.
    pub(super) fn over(
        before: Vec<u8>,
        options: &SimOptions,
        rules: Rules,
        recording: bool,
    ) -> io::Result<Self> {
        if options.spaces == 0 {
            let what = "a machine has a space at least";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let recorder = Arc::new(Recorder::new(rules, recording));
        let of_space = options.of_space();
        // Only an image of one space can be truncated.
        let each = before.len() / options.spaces;
        let space = |number| {
            let start = number * each;
            let port = Arc::new(Port::new(Arc::clone(&recorder), number, start as u64));
            Space::traced_with(&before[start..start + each], &of_space, port).map(Arc::new)
        };
        let spaces = (0..options.spaces).map(space).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { spaces, recorder, before, options: options.clone() })
    }

    /// The machine after the program over `space` has ended: all its stores are there. A store that a thread of the
    /// program makes meanwhile may be there in part.
    ///
    /// # Errors
    /// If the memory cannot be allocated, or the kernel cannot copy it.
    pub fn after(space: &Space, options: &SimOptions) -> io::Result<Self> {
        let rules = Rules { fault: None, failing_sync: None, ..Rules::of_run(options) };
        Self::over(space.all_bytes()?, options, rules, false)
    }

    /// As [`Sim::after`], for a program over several spaces.
    ///
    /// # Errors
    /// As [`Sim::after`].
    pub fn after_all(spaces: &[Arc<Space>], options: &SimOptions) -> io::Result<Self> {
        let rules = Rules { fault: None, failing_sync: None, ..Rules::of_run(options) };
        let bytes: Vec<_> =
            spaces.iter().map(|space| space.all_bytes()).collect::<io::Result<_>>()?;
        Self::over(bytes.concat(), options, rules, false)
    }

    /// The machine after its program was killed without a power cut: the next program finds all stores,
    /// and a later power cut may still lose stores that were never flushed. Where a fence is a sync, those that no
    /// sync has covered are lost, too, unless the next program flushes something before it syncs.
    ///
    /// # Errors
    /// As [`Sim::after`].
    pub fn killed(self) -> io::Result<Self> {
        self.recorder.killed();
        let of_space = self.options.of_space();
        let mut start = 0;
        let space = |(number, old): (usize, &Arc<Space>)| {
            let port = Port::new(Arc::clone(&self.recorder), number, start);
            start += old.len();
            Space::traced_with(&old.all_bytes()?, &of_space, Arc::new(port)).map(Arc::new)
        };
        let spaces = self.spaces.iter().enumerate().map(space).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { spaces, ..self })
    }

    /// The space on which the program runs; the first of several.
    pub fn space(&self) -> &Arc<Space> {
        &self.spaces[0]
    }

    /// All spaces on which the program runs.
    pub fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }

    /// Runs `operation` and counts the accesses of this thread.
    pub fn cost_of<R>(&self, operation: impl FnOnce() -> R) -> (R, Cost) {
        self.recorder.cost_of(operation)
    }

    /// Makes every sync fail from now on ([`Model::File`]).
    pub fn fail_syncs(&self) {
        self.recorder.fail_syncs();
    }

    /// From now on a sync ends only when a thread waits for it ([`Model::File`]).
    pub fn stall_syncs(&self) {
        self.recorder.stall_syncs();
    }

    /// The loads so far of bytes that another thread had not made durable.
    pub fn early_reads(&self) -> Vec<EarlyRead> {
        let (_, early) = self.machine();
        early
    }

    /// The image that a power cut at this moment leaves.
    pub fn crash(&self, eviction: Eviction) -> Image {
        self.crash_at(usize::MAX, eviction)
    }

    /// The number of events of the medium so far: stores, flushes, fences.
    pub fn events(&self) -> usize {
        self.recorder.with_log(|log| log.events.len())
    }

    /// The image that a power cut after the first `events` events leaves: for a test that runs operations,
    /// and then draws in which of them the power is cut.
    pub fn crash_at(&self, events: usize, eviction: Eviction) -> Image {
        let (machine, _) = self.machine_at(events);
        let pending = choice::pending(&machine);
        let kept: Vec<Kept> = match eviction {
            Eviction::Nothing => vec![Kept::default(); pending.len()],
            Eviction::Everything => pending.iter().map(choice::Pending::everything).collect(),
            Eviction::Seeded(seed) => choice::seeded(&pending, &mut Rng::new(seed)),
        };
        Image { bytes: choice::bytes(&machine, &pending, &kept), options: self.options.clone() }
    }

    /// The number of fences after the first `events` events ([`Sim::events`]), in all spaces and by all
    /// threads; where a fence is a sync, the syncs that have ended.
    pub fn fences_since(&self, events: usize) -> usize {
        let is_fence = |event: &&Event| event.is_fence();
        self.recorder.with_log(|log| log.events.iter().skip(events).filter(is_fence).count())
    }

    /// The image that a power cut within the last steps leaves. Of the fences after the first `events` events, the
    /// first `fences` have been made, and the next one has not, although all events before it have happened. If there
    /// are no more fences, the cut is at the end. So there is one more such cut than [`Sim::fences_since`] counts,
    /// and they include the images of cuts at all other moments, since every image only decides which stores since
    /// the last fence are lost. The same run with the same seed leaves the same image.
    ///
    /// External effects of the program (an answer, a message) at a time when [`Sim::fences_since`]
    /// returned `n` happened before this cut if `n <= fences`.
    pub fn crash_at_fence(&self, events: usize, fences: usize, eviction: Eviction) -> Image {
        let next = self.recorder.with_log(|log| {
            let numbered = log.events.iter().enumerate().skip(events);
            numbered.filter(|(_, event)| event.is_fence()).map(|(number, _)| number).nth(fences)
        });
        self.crash_at(next.unwrap_or(usize::MAX), eviction)
    }

    /// All images that a power cut at this moment can leave, if there are at most `limit`; else
    /// `limit` of them, chosen by seed. No two are the same.
    pub fn crashes(&self, limit: usize) -> Vec<Image> {
        let (machine, _) = self.machine();
        let pending = choice::pending(&machine);
        let mut seen = std::collections::HashSet::new();
        let mut images = Vec::new();
        let mut rng = Rng::new(self.options.seed);
        let _all = choice::visit(&pending, &mut rng, limit, |kept| {
            if seen.insert(choice::hash(&machine, &pending, kept)) {
                let bytes = choice::bytes(&machine, &pending, kept);
                images.push(Image { bytes, options: self.options.clone() });
            }
            ControlFlow::Continue(())
        });
        images
    }

    fn machine(&self) -> (Machine, Vec<EarlyRead>) {
        self.machine_at(usize::MAX)
    }

    fn machine_at(&self, events: usize) -> (Machine, Vec<EarlyRead>) {
        let mut machine = Machine::new(self.options.model, self.before.clone(), self.spaces.len());
        let mut early = Vec::new();
        self.recorder.with_log(|log| {
            let events = log.events.iter().take(events);
            events.for_each(|event| machine.step(log, event, &mut early));
        });
        (machine, early)
    }

    pub(super) fn mark(&self, event: Event) {
        self.recorder.mark(event);
    }

    pub(super) fn log(&self) -> Log {
        self.recorder.with_log(Log::clone)
    }

    /// The medium before the program ran.
    pub(super) fn before(&self) -> &[u8] {
        &self.before
    }

    pub(super) fn model(&self) -> Model {
        self.options.model
    }
}

impl Image {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The aligned word at `offset`; 0 beyond the end.
    pub fn word(&self, offset: u64) -> u64 {
        super::machine::word_at(&self.bytes, offset)
    }

    /// Flips bit 0-7 of the byte at `offset`. Has no effect beyond the end.
    pub fn flip_bit(&mut self, offset: u64, bit: u32) {
        if let Some(byte) = self.bytes.get_mut(offset as usize) {
            *byte ^= 1 << (bit & 7);
        }
    }

    /// Overwrites the line that contains `offset` with `byte`: a poisoned line after it was cleared
    /// (0), or a line of an interrupted write. Has no effect beyond the end.
    pub fn fill_line(&mut self, offset: u64, byte: u8) {
        let start = offset as usize / 64 * 64;
        if let Some(line) = self.bytes.get_mut(start..start + 64) {
            line.fill(byte);
        }
    }

    /// Truncates the image to `len` bytes, rounded down to pages.
    pub fn truncate(&mut self, len: u64) {
        let page = u64::from(self.options.page_size);
        self.bytes.truncate((len / page * page) as usize);
    }

    /// The machine restarted with this image on its medium. Faults are not injected again.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn reopen(&self) -> io::Result<Sim> {
        let rules = Rules { fault: None, failing_sync: None, ..Rules::of_run(&self.options) };
        Sim::over(self.bytes.clone(), &self.options, rules, true)
    }
}
