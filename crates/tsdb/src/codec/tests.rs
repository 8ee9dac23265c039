//! Columns of every type and shape are decoded unchanged, any bytes end without a panic, and sizes are as expected.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;

const START: i64 = 1_451_606_400_000_000_000;

fn even(count: usize) -> Vec<i64> {
    (0..count as i64).map(|at| START + at * 10_000_000_000).collect()
}

fn encoded(times: &[i64], values: &Column) -> Vec<u8> {
    let mut out = Vec::new();
    encode(times, values, &mut out);
    out
}

/// The bits of floats, which must be equal for two equal columns.
fn bits(values: &Column) -> Vec<u64> {
    let Column::Float(floats) = values else { return Vec::new() };
    floats.iter().map(|float| float.to_bits()).collect()
}

/// The bytes of a column, which must decode to the same column.
fn there_and_back(times: &[i64], values: &Column) -> Vec<u8> {
    let bytes = encoded(times, values);
    let block = decode(&bytes, times.len(), values.field_type()).expect("what was encoded");
    assert_eq!(block.times, times);
    assert_eq!(bits(&block.values), bits(values));
    assert_eq!(block.values, *values);
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(decode(&longer, times.len(), values.field_type()), None);
    bytes
}

/// Bytes of values at even times, without those of the times.
fn size_of_values(values: &Column) -> usize {
    let bytes = there_and_back(&even(values.len()), values);
    parts(&bytes, values.len()).unwrap().1.len()
}

/// Pseudo-random numbers, from a seed.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A walk with steps of N(0,1), kept between 0 and 100.
    fn walk(&mut self, count: usize) -> impl Iterator<Item = f64> {
        let mut at = self.unit() * 100.0;
        (0..count).map(move |_| {
            at = (at + self.normal()).clamp(0.0, 100.0);
            at
        })
    }
}

fn walk_of_integers(seed: u64, count: usize) -> Column {
    Column::Integer(Random(seed).walk(count).map(|at| at.round() as i64).collect())
}

fn walk_of_floats(seed: u64, count: usize) -> Column {
    Column::Float(Random(seed).walk(count).map(|at| (at * 1e4).round() / 1e4).collect())
}

#[test]
fn walks_take_the_bytes_that_were_promised() {
    for seed in 1..=4 {
        for count in [1_000, 2_000] {
            let per_point =
                |values: &Column| there_and_back(&even(count), values).len() as f64 / count as f64;
            let integers = per_point(&walk_of_integers(seed, count));
            assert!(integers <= 0.5, "{integers} bytes a point of {count}, seed {seed}");
            let floats = per_point(&walk_of_floats(seed, count));
            assert!(floats <= 2.3, "{floats} bytes a point of {count}, seed {seed}");
        }
    }
}

#[test]
fn what_is_constant_takes_a_few_bytes() {
    let columns = [
        Column::Float(vec![1.5; 4_000]),
        Column::Integer(vec![-3; 4_000]),
        Column::Unsigned(vec![u64::MAX; 4_000]),
        Column::Boolean(vec![true; 4_000]),
        Column::String(vec!["a".into(); 4_000]),
    ];
    for values in &columns {
        let bytes = there_and_back(&even(4_000), values);
        assert!(bytes.len() <= 26, "{} bytes of {:?}", bytes.len(), values.field_type());
    }
}

#[test]
fn few_points_take_no_more_than_they_are() {
    for count in 1..40 {
        for seed in 1..4 {
            let mut random = Random(seed);
            let noise: Vec<u64> = (0..count).map(|_| random.bits()).collect();
            let floats = noise.iter().map(|bits| f64::from_bits(bits >> 2)).collect();
            assert!(size_of_values(&Column::Float(floats)) <= 3 + 8 * count);
            let whole = noise.iter().map(|bits| bits.cast_signed()).collect();
            assert!(size_of_values(&Column::Integer(whole)) <= 3 + 8 * count);
            assert!(size_of_values(&Column::Unsigned(noise)) <= 3 + 8 * count);
            let walk = size_of_values(&walk_of_integers(seed, count));
            assert!(walk <= 6 + count, "{walk} bytes for {count}");
            let climb = (0..count as i64).map(|at| 1_000_000 * at + at % 2).collect();
            let climb = size_of_values(&Column::Integer(climb));
            assert!(climb <= 12 + count / 4, "{climb} bytes for {count}");
        }
    }
}

#[test]
fn every_float_keeps_its_bits() {
    let odd = [0.0, -0.0, 5e-324, -5e-324, f64::MIN_POSITIVE / 2.0, f64::MAX, f64::MIN, 0.1, 1e22];
    for count in [1, 2, 9, 300] {
        let floats: Vec<f64> = odd.iter().copied().cycle().take(count).collect();
        there_and_back(&even(count), &Column::Float(floats));
    }
    // One negative zero among decimals.
    let mut floats = vec![0.5; 200];
    floats[77] = -0.0;
    floats[78] = 0.0;
    there_and_back(&even(200), &Column::Float(floats));
}

#[test]
fn times_of_every_shape_come_back() {
    let mut random = Random(7);
    let mut jitter = |scale: i64| {
        let mut time = START;
        let times = (0..1_000).map(|_| {
            time += 10_000_000_000 + scale * (random.bits() % 1_000) as i64;
            time
        });
        times.collect::<Vec<i64>>()
    };
    let size = |times: &[i64]| {
        let values = Column::Boolean(vec![true; times.len()]);
        there_and_back(times, &values).len() as f64 / times.len() as f64
    };
    assert!(size(&jitter(1)) < 1.5);
    // Milliseconds cost no more, since their unit is taken out.
    assert!(size(&jitter(1_000_000)) < 1.5);
    let gaps: Vec<i64> = even(1_000).into_iter().filter(|time| time % 77 != 0).collect();
    assert!(size(&gaps) < 0.3);
    size(&[i64::MIN, i64::MAX]);
    size(&[i64::MIN, -1, 0, i64::MAX]);
    size(&[START]);
    size(&[START, START + 1, START + 3]);
}

#[test]
fn strings_take_what_is_new_in_them() {
    let column =
        |strings: Vec<String>| Column::String(strings.into_iter().map(Arc::from).collect());
    let few = column((0..1_000).map(|at| format!("state {}", at % 5 * 7 % 5)).collect());
    assert!(size_of_values(&few) < 450);
    let alike = column((0..1_000).map(|at| format!("request {at} was answered")).collect());
    assert!(size_of_values(&alike) < 12_000);
    let long = column(vec!["é".repeat(32 * 1024), "x".repeat(64 * 1024), String::new()]);
    size_of_values(&long);
    size_of_values(&column(vec![String::new(); 3]));
}

#[test]
fn booleans_take_a_bit_or_less() {
    let mut random = Random(3);
    let noise = (0..4_000).map(|_| random.bits().is_multiple_of(2)).collect();
    assert_eq!(size_of_values(&Column::Boolean(noise)), 501);
    let runs = (0..4_000).map(|at| at / 500 % 2 == 1).collect();
    assert_eq!(size_of_values(&Column::Boolean(runs)), 17);
}

#[test]
fn what_is_not_well_formed_is_none() {
    let bytes = encoded(&even(3), &Column::Boolean(vec![true, false, true]));
    assert!(decode(&bytes, 3, FieldType::Boolean).is_some());
    assert!(decode(&bytes, 0, FieldType::Boolean).is_none());
    assert!(decode(&bytes, COUNT_MAX + 1, FieldType::Boolean).is_none());
    assert!(decode(&[], 1, FieldType::Boolean).is_none());
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode(&longer, 3, FieldType::Boolean).is_none());
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end], 3, FieldType::Boolean).is_none());
    }
    for times in [[2, 1, 3], [1, 1, 1], [1, 2, 2]] {
        let bytes = encoded(&times, &Column::Boolean(vec![true, false, true]));
        assert!(decode(&bytes, 3, FieldType::Boolean).is_none(), "{times:?} do not ascend");
    }
    // A run of length zero, a place behind the dictionary, and a dictionary with more strings than the column.
    assert!(boolean::decode(&[3, 0, 3], 3).is_none() && boolean::decode(&[3, 3], 3).is_some());
    assert!(string::decode(&[1, 3, 0, 0, 0, 0xff], 4).is_none());
    assert!(string::decode(&[1, 3, 0, 0, 0, 0], 4).is_some());
    assert!(string::decode(&[1, 3, 0, 0, 0, 0], 2).is_none());
}

#[test]
fn every_flipped_bit_ends_in_peace() {
    let count = 300;
    let floats = |scale: fn(f64) -> f64| Column::Float(Random(9).walk(count).map(scale).collect());
    let columns = [
        walk_of_integers(9, count),
        walk_of_floats(9, count),
        floats(|at| at),
        // Floats that `pco` takes for multiples, and floats of half the width.
        floats(|at| at.round() / 3.0),
        floats(|at| f64::from(at as f32)),
    ];
    let times: Vec<i64> = even(count).into_iter().filter(|time| time % 7 != 0).collect();
    let times = [even(count - times.len()).iter().map(|it| it - START).collect(), times].concat();
    for values in &columns {
        let bytes = encoded(&times, values);
        for at in 0..bytes.len() {
            for change in (0..8).map(|bit| 1 << bit).chain([bytes[at], !bytes[at]]) {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                check(&damaged, count);
            }
        }
    }
}

/// Times that ascend: even ones, those with jitter, and wild ones.
fn times(count: usize) -> impl Strategy<Value = Vec<i64>> {
    let steps = prop_oneof![
        (1..1_000_000_000_i64).prop_map(|step| step..step + 1),
        (1..1_000_000_i64).prop_map(|step| step..step * 2),
        Just(1..i64::MAX / 100_000),
    ];
    (steps, any::<u32>(), Just(count)).prop_perturb(|(steps, first, count), mut random| {
        let mut time = i64::from(first) * 1_000_000;
        let step = |random: &mut proptest::test_runner::TestRng| {
            steps.start + (random.next_u64() >> 1) as i64 % (steps.end - steps.start)
        };
        (0..count)
            .map(|_| {
                time += step(&mut random);
                time
            })
            .collect()
    })
}

fn whole(count: usize) -> impl Strategy<Value = Vec<i64>> {
    prop_oneof![
        prop::collection::vec(any::<i64>(), count),
        prop::collection::vec(-3..1_000_i64, count),
        prop::collection::vec(prop_oneof![Just(200_i64), Just(404), Just(-1)], count),
        (any::<i64>(), any::<u32>()).prop_map(move |(first, step)| {
            let step = i64::from(step);
            (0..count as i64).map(|at| first.wrapping_add(at * step + at % 3)).collect()
        }),
    ]
}

fn column(count: usize) -> impl Strategy<Value = Column> {
    let float = prop_oneof![any::<f64>(), Just(-0.0), Just(5e-324), Just(1.25)]
        .prop_filter("floats are finite", |float| float.is_finite());
    prop_oneof![
        prop::collection::vec(float, count).prop_map(Column::Float),
        whole(count).prop_map(|it| Column::Float(it.iter().map(|it| *it as f64 / 1e3).collect())),
        whole(count).prop_map(Column::Integer),
        whole(count)
            .prop_map(|it| Column::Unsigned(it.iter().map(|it| it.cast_unsigned()).collect())),
        prop::collection::vec(any::<bool>(), count).prop_map(Column::Boolean),
        prop::collection::vec(prop_oneof!["[a-cé]{0,3}", ".{0,30}"], count)
            .prop_map(|it| Column::String(it.into_iter().map(Arc::from).collect())),
    ]
}

fn block() -> impl Strategy<Value = (Vec<i64>, Column)> {
    prop_oneof![1..6_usize, 1..60_usize, 200..700_usize]
        .prop_flat_map(|count| (times(count), column(count)))
}

const TYPES: [FieldType; 5] = [
    FieldType::Float,
    FieldType::Integer,
    FieldType::Unsigned,
    FieldType::Boolean,
    FieldType::String,
];

fn check(bytes: &[u8], count: usize) {
    for of in TYPES {
        if let Some(block) = decode(bytes, count, of) {
            assert_eq!((block.times.len(), block.values.len()), (count, count));
            assert!(block.times.is_sorted_by(|a, b| a < b));
            assert_eq!(block.values.field_type(), of);
        }
    }
}

proptest! {
    #[test]
    fn every_block_comes_back((times, values) in block()) {
        there_and_back(&times, &values);
    }

    #[test]
    fn arbitrary_bytes_end_in_peace(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        count in 0..400_usize,
    ) {
        check(&bytes, count);
    }

    #[test]
    fn damaged_bytes_end_in_peace(
        (times, values) in block(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        count in prop_oneof![4 => Just(None), 1 => (1..800_usize).prop_map(Some)],
    ) {
        let mut bytes = encoded(&times, &values);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check(&bytes, count.unwrap_or(times.len()));
    }

    #[test]
    fn damaged_heads_end_in_peace(
        (times, values) in block(),
        at in 0..48_usize,
        byte in any::<u8>(),
        end in any::<prop::sample::Index>(),
    ) {
        // The values begin with forms, widths and tables of bins: each of these bytes is replaced.
        let mut bytes = encoded(&times, &values);
        let values = bytes.len() - parts(&bytes, times.len()).unwrap().1.len();
        if let Some(it) = bytes.get_mut(values + at) {
            *it = byte;
        }
        check(&bytes, times.len());
        bytes.truncate(end.index(bytes.len()));
        check(&bytes, times.len());
    }
}

#[test]
fn times_that_are_not_those_decoded_last_are_decoded() {
    // Even times have the same bytes, however many they are.
    let all: [&[i64]; 6] = [&[1, 2, 4], &[1, 2, 4], &[1, 2, 5], &[1, 2], &[1, 2, 3], &[1, 2, 4]];
    let chunks = all.map(|times| {
        let values = Column::Integer(times.iter().map(|it| it * 3).collect());
        let mut bytes = Vec::new();
        encode(times, &values, &mut bytes);
        (times, values, bytes)
    });
    let mut last = Times::default();
    for (times, values, bytes) in &chunks {
        let found = last.decode(bytes, times.len(), FieldType::Integer);
        assert_eq!(found, Some((*times, values.clone())));
    }
}
