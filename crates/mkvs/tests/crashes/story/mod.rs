//! Stories of a matrix that a power cut ends: operations drawn from a seed, and a check of the records that
//! are left. All devices lose power at the same moment.
//!
//! ```text
//!   draw ─▶ op ─▶ perform ─▶ acknowledged     ✂     open ─▶ contents ─▶ check
//! ```
//!
//! Acknowledged operations are there, at every ack level. Operations that were called and not acknowledged
//! are there or not: a batch wholly or not at all, in any number of groups. Refused operations are not there,
//! nor anything older than an acknowledged operation; and the members of each group are equal.
#![allow(dead_code, reason = "each test takes what it needs")]

mod deed;
mod rack;
mod survivors;

pub(crate) use deed::{Draw, How, Op};
pub(crate) use rack::SimRack;
pub(crate) use survivors::{Contents, Left};

use crate::scale::scaled;
use crate::shelf::Kind;
use coreplane_engine::{Deferred, Durability, Engine, Horizon, UnixMillis, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options, Position, Shape, TimeSource};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{Call, History, Model, Run, Sim, SimOptions, Subject};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time when a story begins, and the time when its matrix is opened again: by then everything has expired
/// that can.
pub(crate) const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
const LATER: UnixMillis = UnixMillis(NOW.0 + 36_000_000);

/// The open after the power cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aftermath {
    /// The matrix is opened again.
    Opened,
    /// It is opened without these devices.
    Without(Vec<Position>),
    /// It is opened without this device, written to and crashes; then the device is back.
    Returned(Position),
}

/// A change of the matrix itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// The pulled device comes back, or a new one takes its place.
    Replaced {
        is_fresh: bool,
    },
    GroupAdded,
}

/// One thread, or several with keys of their own.
pub(crate) struct Story {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    pub(crate) model: Model,
    pub(crate) threads: u16,
    /// The number of keys of each thread.
    pub(crate) keys: u16,
    /// The number of operations of each thread.
    pub(crate) operations: u64,
    /// Bytes of a device.
    pub(crate) len: u64,
    /// One value in so many has pages of its own.
    pub(crate) large_in: u64,
    /// Devices are so small that one may lack even the space to be made equal to its peers: then it is left out.
    pub(crate) is_tight: bool,
    /// One device, or all of them, have no space now and then.
    pub(crate) fills: bool,
    /// Every second operation is a batch.
    pub(crate) batches: bool,
    pub(crate) aftermath: Aftermath,
    /// A device to pull out in the middle.
    pub(crate) pulls: Option<Position>,
    /// A fault: no intent is written.
    pub(crate) forgets_intents: bool,
    pub(crate) change: Change,
    pub(crate) closes: bool,
    /// Every second write returns before it is durable, and is acknowledged when its ticket is durable.
    pub(crate) is_relaxed: bool,
    /// The only thread removes everything now and then.
    pub(crate) clears: bool,
    /// A close keeps filters of any size.
    pub(crate) keeps_filters: bool,
    /// As in [`SimOptions`].
    pub(crate) cut_in: usize,
    /// Operations that were refused for lack of space.
    pub(crate) refused: AtomicU64,
}

impl Story {
    pub(crate) fn new(seed: u64, kind: Kind, shape: Shape) -> Self {
        Self {
            seed,
            kind,
            shape,
            threads: 1,
            keys: 24,
            operations: 50,
            len: if kind == Kind::Bptree { 160 << 10 } else { 224 << 10 },
            large_in: 12,
            is_tight: false,
            fills: false,
            batches: false,
            aftermath: Aftermath::Opened,
            pulls: None,
            forgets_intents: false,
            change: Change::Nothing,
            closes: seed.is_multiple_of(3),
            model: Model::X86,
            is_relaxed: false,
            clears: false,
            keeps_filters: false,
            cut_in: 1,
            refused: AtomicU64::new(0),
        }
    }

    /// The options of its machine.
    pub(crate) fn options(&self) -> SimOptions {
        let devices = usize::from(self.shape.devices);
        // Each try to create the added or replaced devices takes some.
        let spares = if self.change == Change::Nothing { 0 } else { 3 * devices };
        SimOptions {
            spaces: 1 + usize::from(self.shape.groups) * devices + spares,
            len: self.len,
            max_len: self.len,
            page_size: 4096,
            model: self.model,
            seed: self.seed,
            cut_in: self.cut_in,
            images_per_cut: scaled(2, 3),
            // An open that continues an interrupted change has many fences.
            recovery_cut_in: if self.goes_on() { 300 } else { 40 },
            images_per_recovery_cut: 1,
            checkers: 2,
            non_temporal: self.seed.is_multiple_of(2),
            early_reads: false,
            shrink: false,
            ..SimOptions::default()
        }
    }

    /// True if a follower without space for the others' writes is left out.
    pub(crate) fn leaves_full_out(&self) -> bool {
        self.fills && self.shape.ack == Ack::First
    }

    /// True if an interrupted change is continued after the open.
    fn goes_on(&self) -> bool {
        self.change != Change::Nothing && self.seed % 4 > 1
    }

    /// The simulator knows one thread only.
    fn matrix_options(&self, time: TimeSource) -> Options {
        // No device is left out because of time: the story would differ each time.
        let options = Options { time, threads: 1, answers_within: None, ..Options::default() };
        match self.keeps_filters {
            true => Options { keeps_filters_from: 0, ..options },
            false => options,
        }
    }

    fn rack(&self, spaces: &[Arc<Space>], missing: &[Position]) -> SimRack {
        SimRack::new(self.kind, self.shape, spaces, missing)
    }

    fn open(&self, spaces: &[Arc<Space>], missing: &[Position]) -> Result<Left, String> {
        let options = self.matrix_options(Arc::new(|| LATER));
        let rack = self.rack(spaces, missing);
        match Matrix::open(&rack, &options, &|_| {}) {
            Ok(matrix) => {
                if self.goes_on() {
                    let done = self.go_on(&matrix, &rack);
                    done.map_err(|error| format!("it cannot go on: {error}"))?;
                }
                Ok(Left::matrix(matrix))
            }
            // `check` decides whether this is allowed: there are few reasons for a refusal.
            Err(coreplane_engine::Error::Unusable(why)) => Ok(Left::Refused(why)),
            Err(error) => Err(format!("cannot be opened: {error}")),
        }
    }

    /// Changes the matrix itself, beside other threads.
    fn change(&self, run: &Run<'_, Op>, matrix: &Matrix, rack: &SimRack) {
        let is_fresh = self.change == Change::Replaced { is_fresh: true };
        let options = CopyOptions { is_fresh, ..CopyOptions::default() };
        match (self.change, self.pulls) {
            (Change::GroupAdded, _) => {
                rack.be_prompt();
                let add = || matrix.add_group(rack, &options, &|_| {}).expect("add a group");
                run.acknowledged(Op::Fill, add);
            }
            (Change::Replaced { .. }, Some(position)) => {
                rack.gate(position).is_out.store(false, Ordering::SeqCst);
                // Perhaps no call has met the missing device.
                if !matrix.member_states().contains(&(position, MemberState::Current)) {
                    let replace = || matrix.replace(rack, position, &options, &|_| {});
                    run.acknowledged(Op::Fill, || replace().expect("replace a device"));
                }
            }
            _ => {}
        }
    }

    /// Continues an interrupted change.
    fn go_on(&self, matrix: &Matrix, rack: &SimRack) -> coreplane_engine::Result<()> {
        let options = CopyOptions::default();
        for (position, standing) in matrix.member_states() {
            if standing != MemberState::Current {
                matrix.replace(rack, position, &options, &|_| {})?;
            }
        }
        matrix.finish_moves(&options, &|_| {}).map(|_| ())
    }

    fn write(&self, run: &Run<'_, Op>, (matrix, rack): (&Matrix, &SimRack), thread: u16) {
        let mut draw = Draw(self.seed << 8 | u64::from(thread));
        let mut known = deed::Known::default();
        let mut open = Open::default();
        let mine = thread * self.keys..(thread + 1) * self.keys;
        for serial in 0..self.operations {
            rack.clock.fetch_add(1000, Ordering::SeqCst);
            rack.lag(&mut draw);
            if self.fills {
                rack.fill(&mut draw);
            }
            if let Some(position) = self.pulls
                && thread == 0
                && serial == self.operations / 2
            {
                let pull = || rack.gate(position).is_out.store(true, Ordering::SeqCst);
                run.acknowledged(Op::Pull, pull);
                rack.be_prompt();
            }
            if thread == 0 && serial == self.operations * 3 / 4 {
                self.change(run, matrix, rack);
            }
            let op = if self.clears && draw.next(8) == 0 {
                Op::Write(How::Clear, mine.clone().map(|key| (key, None)).collect())
            } else if self.batches && draw.next(2) == 0 {
                draw.batch(How::Batch, &mine, serial, self.large_in)
            } else {
                draw.op(&mine, serial, self.large_in, &known)
            };
            let is_relaxed = self.is_relaxed && draw.next(2) == 0;
            let durability = is_relaxed.then_some(Durability::RELAXED);
            // A delete whose effect is not durable would leave nothing to delete.
            if self.is_relaxed && (draw.next(5) == 0 || !is_relaxed && op.deletes()) {
                open.wait(matrix, rack);
            }
            let call = run.began(op.clone());
            let options = WriteOptions { durability, ..WriteOptions::default() };
            let mut rests = Horizon::new();
            let mut perform = || op.perform(matrix, &mut known, (&options, &mut rests));
            let waits = matches!(op, Op::Sweep | Op::Write(How::Clear, _));
            match if waits { rack.while_prompt(perform) } else { perform() } {
                Ok(true) if !rests.is_empty() => {
                    open.horizon.merge(&rests);
                    open.calls.push(call);
                }
                Ok(true) => call.returned(),
                Ok(false) => call.refused(),
                Err(coreplane_engine::Error::NoSpace { .. }) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    call.refused();
                }
                Err(error) => panic!("{op:?}: {error}"),
            }
        }
        open.wait(matrix, rack);
        // No other thread may be left to do that.
        rack.let_go();
    }
}

/// Calls that have returned and are not durable yet.
#[derive(Default)]
struct Open<'r> {
    calls: Vec<Call<'r, Op>>,
    horizon: Horizon,
}

impl Open<'_> {
    fn wait(&mut self, matrix: &Matrix, rack: &SimRack) {
        if !self.calls.is_empty() {
            rack.while_prompt(|| matrix.wait_durable(&self.horizon)).expect("durable");
            assert!(matrix.is_durable(&self.horizon).expect("a ticket"));
        }
        self.horizon.clear();
        self.calls.drain(..).for_each(Call::returned);
    }
}

impl Subject for Story {
    type Op = Op;
    type Store = Left;
    type Contents = Contents;

    fn work(&self, run: &Run<'_, Op>) {
        let rack = self.rack(run.spaces(), &[]);
        let clock = Arc::clone(&rack.clock);
        let time = Arc::new(move || UnixMillis(clock.load(Ordering::SeqCst)));
        let options = self.matrix_options(time);
        let matrix = run.acknowledged(Op::Create, || {
            Matrix::create(&rack, self.shape, &options).expect("create")
        });
        if self.fills {
            // When a device is left out, the others must be equal first, which waits for devices that lag.
            rack.be_prompt();
        }
        rack.each_gate(|gate| gate.forgets_intents.store(self.forgets_intents, Ordering::SeqCst));
        if self.threads == 1 {
            self.write(run, (&matrix, &rack), 0);
        } else {
            run.threads(|threads| {
                for thread in 0..self.threads {
                    let (matrix, rack) = (&matrix, &rack);
                    threads.spawn(move || self.write(run, (matrix, rack), thread));
                }
            });
        }
        rack.let_go();
        if self.closes {
            let closed = run.began(Op::Close);
            match matrix.close() {
                Ok(()) => closed.returned(),
                // A device that was pulled out cannot be closed; nor can one that is completely full.
                Err(error) => {
                    let is_full = matches!(error, coreplane_engine::Error::NoSpace { .. });
                    assert!(self.pulls.is_some() || self.is_tight && is_full, "close: {error}");
                }
            }
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Left, String> {
        self.recover_all(std::slice::from_ref(space))
    }

    fn recover_all(&self, spaces: &[Arc<Space>]) -> Result<Left, String> {
        match &self.aftermath {
            Aftermath::Opened => self.open(spaces, &[]),
            Aftermath::Without(missing) => self.open(spaces, missing),
            Aftermath::Returned(position) => {
                let Left::Matrix { matrix, .. } = self.open(spaces, &[*position])? else {
                    return Ok(Left::Refused("without it".to_owned()));
                };
                survivors::write_extras(&matrix).map_err(|error| error.to_string())?;
                drop(matrix);
                let sim = Sim::after_all(spaces, &self.options()).map_err(|it| it.to_string())?;
                match self.open(sim.spaces(), &[])? {
                    Left::Matrix { matrix, .. } => Ok(Left::Matrix { matrix, has_extras: true }),
                    Left::Refused(why) => Err(format!("refused when the device was back: {why}")),
                }
            }
        }
    }

    fn contents(&self, left: &Left) -> Result<Contents, String> {
        let contents = survivors::contents(left)?;
        if let (Left::Matrix { matrix, .. }, Aftermath::Opened) = (left, &self.aftermath)
            && (self.pulls.is_none() || self.goes_on())
            && !(self.leaves_full_out() || self.is_tight)
        {
            let standings = matrix.member_states();
            if standings.iter().any(|(_, standing)| *standing != MemberState::Current) {
                return Err(format!("not all are current: {standings:?}"));
            }
            if self.goes_on() && matrix.is_moving() {
                return Err(format!("slots have not moved: {:?}", matrix.slots()));
            }
        }
        Ok(contents)
    }

    fn check(&self, contents: &Contents, history: &History<'_, Op>) -> Result<(), String> {
        survivors::check(self, contents, history)
    }
}
