//! Members of a group have the same records, even if they get writes late and in another order; and `verify`
//! reports whether they do beside writers that never pause.

use crate::scale::scaled;
use crate::shelf::sample::{created, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{
    Batch, Completion, Durability, Engine, Repairable, VerifyReport, WriteOptions,
};
use coreplane_mkvs::{Ack, Matrix, Options, Position, Shape};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

fn options(rng: &mut Rng) -> WriteOptions {
    let durability = match rng.below(4) {
        0 => Some(Durability::RELAXED),
        1 => Some(Durability::GROUP),
        _ => None,
    };
    let completion = if rng.below(2) == 0 { Completion::Wait } else { Completion::Early };
    WriteOptions { durability, completion, ..WriteOptions::default() }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(matrix: &Matrix, rng: &mut Rng, model: &mut Model, count: u64) {
    let keys: u64 = 40;
    let value = |rng: &mut Rng| {
        let len = match rng.below(10) {
            0 => 16_000 + rng.below(20_000),
            1 => 2_000 + rng.below(3_000),
            _ => rng.below(60),
        };
        vec![rng.below(256) as u8; len as usize]
    };
    for _ in 0..count {
        let options = options(rng);
        let key = format!("key-{:05}", rng.below(keys)).into_bytes();
        match rng.below(8) {
            0..3 => {
                let _outcome = matrix.delete(&key, &options).expect("delete");
                model.remove(&key);
            }
            3 | 4 => {
                let mut batch = Batch::new();
                let bytes = value(rng);
                batch.put(&key, &bytes).put(b"of the batch", &bytes);
                let gone = format!("key-{:05}", rng.below(keys)).into_bytes();
                model.insert(key.clone(), bytes.clone());
                if gone != key {
                    batch.delete(&gone);
                    model.remove(&gone);
                }
                model.insert(b"of the batch".to_vec(), bytes);
                matrix.apply(&batch, &options).expect("apply");
            }
            _ => {
                let bytes = value(rng);
                let _outcome = matrix.put(&key, &bytes, &options).expect("put");
                model.insert(key, bytes);
            }
        }
    }
}

/// Lets processors stop and continue, until it is over.
fn lag(shelf: &Shelf, shape: Shape, rng: &mut Rng, is_over: &AtomicBool) {
    let all = (0..shape.groups)
        .flat_map(|group| (0..shape.devices).map(move |device| Position { group, device }));
    let gates: Vec<_> = all.map(|place| shelf.gate(place)).collect();
    while !is_over.load(Ordering::SeqCst) {
        for gate in &gates {
            gate.is_lagging.store(rng.below(2) == 0, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
    }
    gates.iter().for_each(|gate| gate.is_lagging.store(false, Ordering::SeqCst));
}

fn check(matrix: &Matrix, model: &Model, named: &str) {
    let report = matrix.verify(&mut |_| ()).expect("verify");
    assert!(report.is_sound(), "{named}: {:?}", report.damages);
    assert_eq!(matrix.len().expect("len"), model.len() as u64, "{named}");
    for (key, value) in model {
        assert!(matrix.get(key).expect("get").as_ref() == Some(value), "{named}: {key:?}");
    }
}

/// Writes of all kinds, some of which overtake others on their way to a device; then a close and another open.
fn story(seed: u64, kind: Kind, shape: Shape) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let shelf = Shelf::new(kind, 32 << 20);
    let mut matrix = Matrix::create(&shelf, shape, &Options::default()).expect("create");
    let mut model = Model::new();
    for round in 0..4 {
        let named = format!("seed {seed}, round {round}, {kind:?}, {shape:?}");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| lag(&shelf, shape, &mut Rng(seed + 77), &is_over));
            write(&matrix, &mut rng, &mut model, 300);
            is_over.store(true, Ordering::SeqCst);
        });
        if round % 2 == 0 {
            check(&matrix, &model, &named);
        }
        matrix.close().expect("close");
        drop(matrix);
        matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        check(&matrix, &model, &named);
        if rng.below(2) == 0 {
            for key in std::mem::take(&mut model).keys() {
                let _outcome = matrix.delete(key, &options(&mut rng)).expect("delete");
            }
        }
    }
}

/// `COREPLANE_STORY` is the first seed, `COREPLANE_STORIES` the number of seeds.
#[test]
fn what_follows_late_is_the_same_in_the_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let from = number("COREPLANE_STORY").unwrap_or(0);
    for seed in from..from + number("COREPLANE_STORIES").unwrap_or(scaled(4, 200)) {
        let kind = if seed % 3 == 2 { Kind::Scmkv } else { Kind::Bptree };
        let (ack, devices) = if seed % 4 == 3 { (Ack::Majority, 3) } else { (Ack::First, 2) };
        let groups = 1 + (seed % 5 % 3) as u16;
        story(seed, kind, Shape { groups, devices, ack, ..Shape::default() });
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

const KEYS: u64 = 2000;

/// The reports of `verify`, called so many times while all keys except the first are written all the time.
fn beside_writers(matrix: &Matrix, times: usize) -> Vec<VerifyReport> {
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let writes = |seed: u64| {
        let mut rng = Rng(seed);
        while !is_over.load(Ordering::SeqCst) {
            let key = key(1 + rng.below(KEYS - 1));
            match rng.below(4) {
                0 => drop(matrix.delete(&key, &WriteOptions::default()).expect("delete")),
                _ => put(matrix, &key, &rng.below(u64::MAX).to_le_bytes()),
            }
            written.fetch_add(1, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        let writes = &writes;
        let writers: Vec<_> = (1..3).map(|seed| scope.spawn(move || writes(seed))).collect();
        while written.load(Ordering::SeqCst) == 0 && writers.iter().all(|it| !it.is_finished()) {
            std::thread::yield_now();
        }
        let reports = (0..times).map(|_| matrix.verify(&mut |_| ())).collect::<Vec<_>>();
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        reports.into_iter().map(|report| report.expect("verify")).collect()
    })
}

/// At any speed of the writers `verify` reports no difference if there is none, and names the one that there is.
#[test]
fn beside_writers_that_never_pause_a_difference_is_told_and_none_is_invented() {
    for (kind, ack) in [(Kind::Bptree, Ack::First), (Kind::Scmkv, Ack::All)] {
        let shelf = Shelf::new(kind, 32 << 20);
        let matrix = created(&shelf, (1, 2), ack);
        (0..KEYS).for_each(|number| put(&matrix, &key(number), b"value"));
        for report in beside_writers(&matrix, 5) {
            assert!(report.is_sound(), "{kind:?}: {:?}", report.damages);
        }
        // One device forgets a key, without the matrix.
        let device = shelf.engine(Position { group: 0, device: 0 });
        let _outcome = device.delete(&key(0), &WriteOptions::default()).expect("delete");
        for report in beside_writers(&matrix, 3) {
            let [damage] = report.damages.as_slice() else { panic!("{kind:?}: {report:?}") };
            let is_named = damage.what.contains("differ in 1 keys, as in \"key-00000\"");
            assert!(is_named && damage.what.contains("g0d0 has it not"), "{}", damage.what);
        }
    }
}
