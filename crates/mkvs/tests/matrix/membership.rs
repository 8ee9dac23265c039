//! Every state in which a matrix can be found: closed, or interrupted at any write of a device while the
//! matrix is opened, closed, or continues without a primary; and then with devices that are missing, damaged,
//! or copies of themselves from the previous session or from earlier in the last one. At most two faults.
//!
//! Acknowledged writes are there, or the matrix is refused; and it is not refused if each group has its
//! primary, or enough members to have every acknowledged write.

use crate::scale::scaled;
use crate::shelf;
use crate::shelf::sample::at;
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Error, Repairable, WriteOptions};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const KEYS: u64 = 12;
const LEN: u64 = 256 << 10;

/// The operation under way when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Open,
    Close,
    /// The primary of the first group fails in a put.
    Failover,
    /// None: the matrix was killed.
    Killed,
}

/// The state of a device at the next open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Missing,
    Damaged,
    /// It is a copy of itself from the end of the session before.
    CopyOfEarlier,
    /// It is a copy from the middle of the last session.
    CopyOfThis,
}

const FAULTS: [Fault; 4] =
    [Fault::Missing, Fault::Damaged, Fault::CopyOfEarlier, Fault::CopyOfThis];

type Images = BTreeMap<Position, Vec<u8>>;

/// The state after a power cut.
struct Scene {
    shape: Shape,
    kind: Kind,
    act: Act,
    /// The act was interrupted.
    is_cut: bool,
    /// The matrix was closed, and the close returned.
    is_clean: bool,
    now: Images,
    earlier: Images,
    this: Images,
    /// The value of each key, and another one if that was being written.
    values: BTreeMap<u64, [Vec<u8>; 2]>,
}

fn options() -> Options {
    // In one thread, so that each run makes the same writes in the same order.
    Options { answers_within: None, threads: 1, ..Options::default() }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn positions(shape: Shape) -> impl Iterator<Item = Position> + Clone {
    (0..shape.groups).flat_map(move |group| (0..shape.devices).map(move |device| at(group, device)))
}

fn images(shelf: &Shelf, shape: Shape) -> Images {
    positions(shape).map(|it| (it, std::fs::read(shelf.path(it)).expect("read"))).collect()
}

/// The state if the power fails after so many writes of an act; none if the act needs fewer.
fn scene(kind: Kind, shape: Shape, act: Act, writes: u64) -> Option<Scene> {
    let shelf = Shelf::new(kind, LEN);
    let matrix = Matrix::create(&shelf, shape, &options()).expect("create");
    let put = |matrix: &Matrix, number: u64, value: &str| {
        matrix.put(&key(number), value.as_bytes(), &WriteOptions::default()).map(|_| ())
    };
    (0..KEYS).for_each(|number| put(&matrix, number, "old").expect("put"));
    matrix.close().expect("close");
    drop(matrix);
    let earlier = images(&shelf, shape);
    let matrix = Matrix::open(&shelf, &options(), &|_| {}).expect("open");
    (0..KEYS).for_each(|number| put(&matrix, number, "newer").expect("put"));
    matrix.sync().expect("sync");
    let this = images(&shelf, shape);
    let mut values = BTreeMap::new();
    for number in 0..KEYS {
        put(&matrix, number, "newest").expect("put");
        values.insert(number, [const { Vec::new() }; 2].map(|_: Vec<u8>| b"newest".to_vec()));
    }
    // The rings are empty, so that each run is the same; other tests cover writes in rings.
    matrix.sync().expect("sync");
    let mut matrix = Some(matrix);
    if act == Act::Open {
        matrix.as_ref().expect("it is open").close().expect("close");
        matrix = None;
    }
    let power = shelf.power();
    power.writes_left.store(writes, Ordering::SeqCst);
    let is_done = match (act, &matrix) {
        (Act::Open, _) => Matrix::open(&shelf, &options(), &|_| {}).is_ok(),
        (Act::Close, Some(matrix)) => matrix.close().is_ok(),
        (Act::Failover, Some(matrix)) => {
            shelf.pull(at(0, shape.devices - 1));
            let results: Vec<bool> =
                (0..KEYS).map(|number| put(matrix, number, "last").is_ok()).collect();
            for (number, is_made) in (0..).zip(&results) {
                let before = if *is_made { "last" } else { "newest" };
                values.insert(number, [before, "last"].map(|value| value.as_bytes().to_vec()));
            }
            results.into_iter().all(|is_made| is_made)
        }
        _ => true,
    };
    let enough = power.writes_left.swap(u64::MAX, Ordering::SeqCst);
    let is_cut = power.is_dead.load(Ordering::SeqCst);
    assert!(is_cut || is_done, "{shape:?}, {act:?}: it fails by itself");
    if let (true, Act::Failover, Some(matrix)) = (!is_cut, act, &matrix) {
        matrix.sync().expect("sync");
    }
    // An act that was not interrupted ends with a kill.
    power.is_dead.store(true, Ordering::SeqCst);
    drop(matrix);
    let now = images(&shelf, shape);
    let is_clean = act == Act::Close && !is_cut;
    let is_over = !is_cut && enough != u64::MAX;
    (!is_over).then_some(Scene { shape, kind, act, is_cut, is_clean, now, earlier, this, values })
}

impl Scene {
    /// The devices that are left after these faults.
    fn left(&self, faults: &[(Position, Fault)]) -> Shelf {
        let shelf = Shelf::new(self.kind, LEN);
        for it in positions(self.shape) {
            let fault = faults.iter().find(|(at, _)| *at == it).map(|(_, fault)| *fault);
            let bytes = match fault {
                None => self.now[&it].clone(),
                Some(Fault::Missing) => continue,
                Some(Fault::Damaged) => {
                    let mut bytes = self.now[&it].clone();
                    bytes[..8192].fill(0xa5);
                    bytes
                }
                Some(Fault::CopyOfEarlier) => self.earlier[&it].clone(),
                Some(Fault::CopyOfThis) => self.this[&it].clone(),
            };
            std::fs::write(shelf.path(it), bytes).expect("write");
        }
        shelf
    }

    /// True if the matrix must open with these faults. The model: which devices have every acknowledged
    /// write, by the records that may be in force.
    fn must_open(&self, faults: &[(Position, Fault)]) -> bool {
        let Shape { groups, devices, ack, .. } = self.shape;
        let fault = |it: Position| faults.iter().find(|(at, _)| *at == it).map(|(_, fault)| *fault);
        let is_here = |it: Position| !matches!(fault(it), Some(Fault::Missing | Fault::Damaged));
        let is_genuine = |it: Position| fault(it).is_none();
        // Before and after the primary has left the first group: either may be in force after an interruption.
        let is_first = |group: u16| group == 0 && self.act == Act::Failover;
        let memberships = |group: u16| match is_first(group) {
            true if self.is_cut => vec![devices, devices - 1],
            true => vec![devices - 1],
            false => vec![devices],
        };
        let suffices = |group: u16| {
            memberships(group).into_iter().all(|members| {
                let copies = match ack {
                    Ack::First => 1,
                    Ack::Majority => members / 2 + 1,
                    Ack::All => members,
                };
                let genuine = (0..members).filter(|it| is_genuine(at(group, *it))).count() as u8;
                is_genuine(at(group, members - 1))
                    || genuine > members - copies
                    // After an interrupted close or open the record may be clean or not: that is not required.
                    || self.is_clean && genuine > 0
            })
        };
        let is_whole = |group: u16| {
            let members = memberships(group).into_iter().max().unwrap_or(devices);
            (0..members).all(|it| is_here(at(group, it)))
                && (0..members).any(|it| is_genuine(at(group, it)))
        };
        (0..groups).all(suffices) && (0..groups).any(is_whole)
    }

    /// True if a loss cannot be detected: no present device has the last record, or the present devices of
    /// some group are copies from earlier in the same epoch.
    fn cannot_tell(&self, faults: &[(Position, Fault)]) -> bool {
        let fault = |it: Position| faults.iter().find(|(at, _)| *at == it).map(|(_, fault)| *fault);
        let has_failed =
            |it: Position| self.act == Act::Failover && it == at(0, self.shape.devices - 1);
        let knows = |it: Position| fault(it).is_none() && !has_failed(it);
        let of_group = |group: u16| positions(self.shape).filter(move |it| it.group == group);
        let is_of_this = |group: u16| {
            of_group(group).any(|it| fault(it) == Some(Fault::CopyOfThis))
                && !of_group(group).any(knows)
        };
        // The other group has the record without the failed primary, which an earlier copy does not have.
        let is_told = |group| {
            self.act == Act::Failover && !self.is_cut && group == 0 && self.shape.groups > 1
        };
        let mut groups = 0..self.shape.groups;
        !positions(self.shape).any(knows)
            || !self.is_clean && groups.any(|group| is_of_this(group) && !is_told(group))
    }

    fn check(&self, faults: &[(Position, Fault)]) {
        let Self { shape, kind, act, is_cut, .. } = self;
        let what = format!("{kind:?}, {shape:?}, {act:?} (cut: {is_cut}), {faults:?}");
        let shelf = self.left(faults);
        let matrix = match Matrix::open(&shelf, &options(), &|_| {}) {
            Ok(matrix) => matrix,
            Err(error @ Error::Unusable(_)) => {
                assert!(!self.must_open(faults), "{what}: refused: {error}");
                return;
            }
            Err(error) => panic!("{what}: {error}"),
        };
        for _ in 0..2 {
            for (number, values) in &self.values {
                let found = matrix.get(&key(*number)).unwrap_or_else(|it| panic!("{what}: {it}"));
                let is_right = found.as_ref().is_some_and(|it| values.contains(it));
                let found = found.map(|it| String::from_utf8_lossy(&it).into_owned());
                assert!(is_right || self.cannot_tell(faults), "{what}: {number} is {found:?}");
            }
        }
        let report = matrix.verify(&mut |_| {}).expect("verify");
        assert!(report.is_sound(), "{what}: {report:?}");
        // A device that is neither faulty nor the failed primary is current.
        for (it, _) in matrix.member_states() {
            let is_current = shelf::sample::standing(&matrix, it);
            assert!(
                is_current == coreplane_mkvs::MemberState::Current
                    || faults.iter().any(|(at, _)| *at == it)
                    || *act == Act::Failover && it.group == 0,
                "{what}: {it} is {is_current:?}"
            );
        }
        matrix.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// All sets of at most `most` faults, of different devices.
fn fault_sets(shape: Shape, most: usize) -> Vec<Vec<(Position, Fault)>> {
    let mut sets = vec![Vec::new()];
    let each: Vec<_> = positions(shape).flat_map(|it| FAULTS.map(|fault| (it, fault))).collect();
    for (number, first) in each.iter().enumerate() {
        sets.push(vec![*first]);
        if most > 1 {
            let others = each[number..].iter().filter(|(at, _)| *at != first.0);
            sets.extend(others.map(|second| vec![*first, *second]));
        }
    }
    // A whole group from an earlier session.
    let group = (0..shape.devices).map(|device| (at(0, device), Fault::CopyOfEarlier)).collect();
    sets.push(group);
    sets
}

fn matrices() -> impl Iterator<Item = (Kind, Shape)> {
    let shapes = [(1, 2), (2, 2), (1, 3), (2, 3)];
    let acks = [Ack::First, Ack::Majority, Ack::All];
    let all = shapes.into_iter().flat_map(move |shape| acks.map(|ack| (shape, ack)));
    all.enumerate().map(|(number, ((groups, devices), ack))| {
        let kind = if number % 2 == 0 { Kind::Bptree } else { Kind::Scmkv };
        (kind, Shape { groups, devices, ack, ..Shape::default() })
    })
}

#[test]
fn what_was_acknowledged_is_there_or_refused_after_a_close_and_after_a_kill() {
    for (kind, shape) in matrices() {
        for act in [Act::Close, Act::Killed, Act::Failover] {
            let scene = scene(kind, shape, act, u64::MAX).expect("it is whole");
            // The failure of the primary is one fault. Of the larger sets only some.
            let sets = fault_sets(shape, if act == Act::Failover { 1 } else { 2 });
            let step = scaled(sets.len().div_ceil(120), 1);
            sets.iter().step_by(step).for_each(|faults| scene.check(faults));
        }
    }
}

#[test]
fn what_was_acknowledged_is_there_or_refused_wherever_it_is_cut_off() {
    for (kind, shape) in matrices() {
        for act in [Act::Open, Act::Close, Act::Failover] {
            let sets = fault_sets(shape, 1);
            let mut cuts = 0;
            while let Some(scene) = scene(kind, shape, act, cuts) {
                // By turns, so that each set of faults meets some of the cuts.
                let step = scaled(1 + sets.len() / 6, 1);
                let begin = cuts as usize % step;
                sets.iter().skip(begin).step_by(step).for_each(|faults| scene.check(faults));
                cuts += 1;
            }
            assert!(cuts > 2, "{shape:?}, {act:?}: {cuts} writes");
        }
    }
}
