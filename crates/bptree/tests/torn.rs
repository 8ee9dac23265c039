//! A power cut and a bit that flips: damage is reported, and a record that was never acknowledged and has not
//! arrived completely is discarded silently.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Batch, Completion, Deferred, Engine, Error, Horizon, Ticket, WriteOptions};
use coreplane_pmem::media::sim::{Eviction, Fault, Image, Model, Sim, SimOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PAGE: usize = 4 << 10;
const LEN: u64 = 256 << 10;
const KEYS: u64 = 50;
const OPERATIONS: u64 = 200;

/// The possible states of keys: the last acknowledged one, or any that was begun since.
type Allowed = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

fn is_full() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

fn settings() -> Options {
    Options { check_reads: true, ..Options::default() }
}

fn sim_options(model: Model, seed: u64, fault: Option<Fault>) -> SimOptions {
    SimOptions {
        len: LEN,
        max_len: LEN,
        page_size: PAGE as u32,
        model,
        seed,
        fault,
        non_temporal: seed.is_multiple_of(2),
        ..SimOptions::default()
    }
}

/// Writes, some of which at the end are not waited for.
struct Written {
    sim: Sim,
    allowed: Allowed,
    /// The number of the last fence.
    last_fence: u64,
}

fn write(store: &Bptree, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Ticket {
    let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    match changes {
        [(key, Some(value))] => store.put(key, value, &options).expect("put").ticket(),
        [(key, None)] => store.delete(key, &options).expect("delete").ticket(),
        several => {
            let mut batch = Batch::new();
            for (key, value) in several {
                match value {
                    Some(value) => batch.put(key, value),
                    None => batch.delete(key),
                };
            }
            store.apply(&batch, &options).expect("a batch").ticket
        }
    }
}

fn written(model: Model, seed: u64, fault: Option<Fault>) -> Written {
    let sim = Sim::new(&sim_options(model, seed, fault)).expect("memory");
    let store = Bptree::simulated_create(Arc::clone(sim.space()), &settings()).expect("create");
    let mut allowed: Allowed = (0..KEYS).map(|it| (key(it), vec![None])).collect();
    let mut horizon = Horizon::new();
    // In a file the last writes are not waited for; otherwise only the last one has no fence.
    let open = if model == Model::File { 12 } else { 1 };
    for serial in 0..OPERATIONS {
        let number = (serial * 37 + seed * 11) % KEYS;
        let count = if serial % 9 == 5 { 3 } else { 1 };
        let change = |at| {
            let value = vec![(serial * 5 + at) as u8; 20 + (serial * 13 + at) as usize % 180];
            let is_put = (serial + at) % 8 != 3;
            (key((number + at * 17) % KEYS), is_put.then_some(value))
        };
        let changes: Vec<_> = (0..count).map(change).collect();
        let is_open = serial + open >= OPERATIONS;
        horizon.include(write(&store, &changes));
        for (key, value) in changes {
            let states = allowed.entry(key).or_default();
            if !is_open {
                states.clear();
            }
            states.push(value);
        }
        if !is_open && (serial % 10 == 0 || serial + open + 1 == OPERATIONS) {
            store.wait_durable(&horizon).expect("wait");
            horizon.clear();
        }
    }
    let (_, fences) = sim.space().flushes_and_fences();
    Written { sim, allowed, last_fence: fences - 1 }
}

/// Returns whether any damage is reported. Keys without damage have a possible state.
fn check(image: &Image, allowed: &Allowed, what: &str) -> bool {
    let sim = image.reopen().expect("memory");
    let store = Bptree::simulated_open(Arc::clone(sim.space()), &settings());
    let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut is_told = false;
    for (key, states) in allowed {
        match store.get(key) {
            Ok(value) => {
                let len = value.as_ref().map(Vec::len);
                let key = key.escape_ascii();
                assert!(states.contains(&value), "{what}: \"{key}\" has {len:?} bytes");
            }
            Err(Error::Corrupt { .. } | Error::ChecksumMismatch { .. }) => is_told = true,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    is_told
}

/// Some bits behind the images of leaves.
fn places(image: &Image) -> Vec<(u64, u32)> {
    let step = if is_full() { 7 } else { 83 };
    let bytes = image.bytes();
    let mut places = Vec::new();
    for (page, bytes) in (0_u64..).zip(bytes.chunks(PAGE)).skip(1) {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        if bytes[..4] != [0; 4] && bytes[4] == 0x4c {
            let from = word(12) as usize + page as usize * 7 % step;
            let bits = (from..PAGE).step_by(step);
            places.extend(bits.map(|at| (page * PAGE as u64 + at as u64, at as u32 % 8)));
        }
    }
    places
}

#[test]
fn a_bit_that_flips_after_a_power_cut_is_told_and_what_is_torn_is_not() {
    let (mut images, mut told) = (0, 0);
    for seed in 1..=if is_full() { 40 } else { 6 } {
        let model = if seed % 3 == 0 { Model::X86 } else { Model::File };
        let mut written = written(model, seed, None);
        if model == Model::X86 {
            let fault = Some(Fault::DropFence(written.last_fence));
            written = self::written(model, seed, fault);
        }
        for mut image in written.sim.crashes(if is_full() { 40 } else { 6 }) {
            images += 1;
            let is_told = check(&image, &written.allowed, &format!("seed {seed}, image {images}"));
            assert!(!is_told, "seed {seed}, image {images}: nothing is damaged");
            for (at, bit) in places(&image) {
                image.flip_bit(at, bit);
                let what = format!("seed {seed}, image {images}, bit {bit} at {at:#x}");
                told += u32::from(check(&image, &written.allowed, &what));
                image.flip_bit(at, bit);
            }
        }
    }
    eprintln!("{images} images, {told} flips told");
    assert!(images > 12 && told > 200, "{images} images, {told} flips told");
}

/// A superseded mark that a recovery appends to a leaf that ends with damage may arrive in part.
#[test]
fn damage_is_told_though_the_power_goes_while_it_is_being_told() {
    let (mut images, mut told) = (0, 0);
    for seed in 1..=2 {
        let options = sim_options(Model::X86, seed, None);
        let sim = Sim::new(&options).expect("memory");
        let store = Bptree::simulated_create(Arc::clone(sim.space()), &settings()).expect("create");
        let mut allowed = Allowed::new();
        for number in 0..9 {
            let _outcome =
                store.put(&key(number), &[1; 50], &WriteOptions::default()).expect("put");
            allowed.insert(key(number), vec![Some(vec![1; 50])]);
        }
        // Shorter than a superseded mark.
        let _outcome = store.delete(&key(5), &WriteOptions::default()).expect("delete");
        allowed.insert(key(5), vec![None]);
        let mut image = sim.crash(Eviction::Nothing);
        let at = image.bytes().windows(7).rposition(|bytes| bytes == key(5)).expect("a record");
        let page = (at / PAGE * PAGE) as u64;
        for bit in (8 * (at - 20)..8 * (at + 7)).step_by(if is_full() { 1 } else { 5 }) {
            image.flip_bit(bit as u64 / 8, bit as u32 % 8);
            let damaged = image.reopen().expect("memory");
            drop(Bptree::simulated_open(Arc::clone(damaged.space()), &settings()).expect("open"));
            // Any words of the bytes appended to that leaf may arrive.
            let after = Sim::after(damaged.space(), &options).expect("memory");
            let left = after.crash(Eviction::Nothing);
            let appended: Vec<u64> = (page..page + PAGE as u64)
                .step_by(8)
                .filter(|at| image.word(*at) != left.word(*at))
                .collect();
            assert_eq!(appended.len(), 5, "a superseded mark");
            for come in 0..1_u32 << appended.len() {
                let mut left = after.crash(Eviction::Nothing);
                for (_, at) in (0..).zip(&appended).filter(|(number, _)| come >> number & 1 == 0) {
                    let change = image.word(*at) ^ left.word(*at);
                    let bits = (0..64).filter(|bit| change >> bit & 1 == 1);
                    bits.for_each(|bit| left.flip_bit(at + bit / 8, bit as u32 % 8));
                }
                images += 1;
                let what = format!("seed {seed}, bit {bit}, words {come:05b}");
                told += u32::from(check(&left, &allowed, &what));
            }
            image.flip_bit(bit as u64 / 8, bit as u32 % 8);
        }
    }
    assert!(images > 1000 && told == images, "{images} images, {told} of them told");
}

/// A page that the medium cannot read now may be readable at another time.
#[test]
fn a_page_that_cannot_be_read_is_an_error_and_is_not_written_over() {
    let Written { sim, allowed, .. } = written(Model::X86, 1, None);
    let before = sim.crash(Eviction::Nothing).bytes().to_vec();
    let mut refused = 0;
    for page in 1..LEN / PAGE as u64 {
        let lost = page * PAGE as u64 + 1024..(page + 1) * PAGE as u64;
        let unreadable = Some(lost.clone());
        let options = SimOptions { unreadable, ..sim_options(Model::X86, 1, None) };
        let machine = Sim::after(sim.space(), &options).expect("memory");
        let opened = Bptree::simulated_open(Arc::clone(machine.space()), &settings());
        let Err(Error::Corrupt { offset, .. }) = opened else { panic!("page {page}: {opened:?}") };
        assert_eq!(offset, lost.start);
        refused += 1;
        // The header states that it was opened; all else is unchanged.
        let whole = Sim::after(machine.space(), &sim_options(Model::X86, 1, None)).expect("memory");
        let after = whole.crash(Eviction::Nothing);
        assert!(after.bytes()[PAGE..] == before[PAGE..], "page {page}");
        assert!(!check(&after, &allowed, "readable again"));
    }
    assert!(refused > 20, "{refused} pages");
}

fn opened(sim: &Sim) -> Bptree {
    Bptree::simulated_open(Arc::clone(sim.space()), &settings()).expect("open")
}

/// A split in which the power went has left leaves that do not count. They never will, not even when the leaf is
/// split again, and one of its successors is damaged.
#[test]
fn leaves_that_never_counted_do_not_take_the_place_of_a_damaged_one() {
    let sim = Sim::new(&sim_options(Model::X86, 2, None)).expect("memory");
    let store = Bptree::simulated_create(Arc::clone(sim.space()), &settings()).expect("create");
    let put = |store: &Bptree, number: u64, byte: u8| {
        let _outcome =
            store.put(&key(number), &[byte; 150], &WriteOptions::default()).expect("put");
    };
    let (mut keys, mut split) = (0, 0..0);
    while store.stats().figure("leaves_split") == Some(0) {
        let begun = sim.events();
        put(&store, keys, 1);
        (keys, split) = (keys + 1, begun..sim.events());
    }
    drop(store);
    let allowed: Allowed = (0..keys).map(|it| (key(it), vec![Some(vec![2; 150])])).collect();
    let mut told = 0;
    for (cut, eviction) in
        split.flat_map(|at| [(at, Eviction::Nothing), (at, Eviction::Everything)])
    {
        let sim = sim.crash_at(cut, eviction).reopen().expect("memory");
        let store = opened(&sim);
        // In another thread: its fences do not cover flushes of the recovery.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..keys).for_each(|number| put(&store, number, 2)));
        });
        let mut image = sim.crash(Eviction::Nothing);
        drop(store);
        let what = format!("{eviction:?}, cut at {cut}");
        assert!(!check(&image, &allowed, &what), "{what}: nothing is damaged");
        for start in (PAGE as u64..LEN).step_by(PAGE) {
            if image.bytes()[start as usize + 4] == 0x4c {
                image.flip_bit(start + 20, 0);
                told += u32::from(check(&image, &allowed, &format!("{what}, page at {start:#x}")));
                image.flip_bit(start + 20, 0);
            }
        }
    }
    assert!(told > 50, "{told} are told");
}

/// The page at `start` before the last of these events that changed it, and the number of that event.
fn before_last_change(sim: &Sim, events: Range<usize>, start: usize) -> Option<(usize, Vec<u8>)> {
    let page = |at| sim.crash_at(at, Eviction::Everything).bytes()[start..start + PAGE].to_vec();
    let last = page(events.end);
    let before = |at: &usize| page(*at) != last;
    events.rev().find(before).map(|at| (at, page(at)))
}

/// Where a fence is a sync, the leaves of a second split may arrive while the superseded mark of the first split
/// does not: none of them counts, and some are successors of others. A recovery in which the power goes never
/// leaves one of them without its predecessor.
#[test]
fn leaves_that_never_counted_go_before_those_that_they_were_made_of() {
    let sim = Sim::new(&sim_options(Model::File, 1, None)).expect("memory");
    let store = Bptree::simulated_create(Arc::clone(sim.space()), &settings()).expect("create");
    let splits = || store.stats().figure("leaves_split").expect("a figure");
    let leaves = || {
        let image = sim.crash(Eviction::Everything);
        let is_leaf =
            |start: &usize| image.bytes()[start + 4] == 0x4c && image.word(*start as u64) != 0;
        (PAGE..LEN as usize).step_by(PAGE).filter(is_leaf).collect::<Vec<_>>()
    };
    let (first, mut allowed, mut kept, mut cut) = (leaves(), Allowed::new(), Vec::new(), 0);
    for number in 0..KEYS {
        let (begun, before, old) = (sim.events(), splits(), leaves());
        let value = Some(vec![7; 150]);
        let ticket = write(&store, &[(key(number), value.clone())]);
        let is_split = splits() > before;
        if before == 0 && !is_split {
            store.wait_durable(&Horizon::from(ticket)).expect("wait");
            allowed.insert(key(number), vec![value]);
            continue;
        }
        // From here on no write waits.
        allowed.insert(key(number), vec![None, value]);
        if is_split && before == 0 {
            kept = before_last_change(&sim, begun..sim.events(), first[0])
                .expect("a superseded mark")
                .1;
        } else if is_split {
            let successors = old.into_iter().filter(|start| *start != first[0]);
            let mark = |start| before_last_change(&sim, begun..sim.events(), start);
            cut = successors.filter_map(mark).map(|it| it.0).max().expect("a superseded mark");
            break;
        }
    }
    drop(store);
    let mut image = sim.crash_at(cut, Eviction::Everything);
    for (at, byte) in (first[0] as u64..).zip(kept) {
        let change = image.bytes()[at as usize] ^ byte;
        (0..8).filter(|bit| change >> bit & 1 == 1).for_each(|bit| image.flip_bit(at, bit));
    }
    assert!(!check(&image, &allowed, "once"), "nothing is damaged");
    let recovery = image.reopen().expect("memory");
    drop(opened(&recovery));
    // Leaves are struck out at the end.
    let cuts = (0..=recovery.events()).rev().take(if is_full() { usize::MAX } else { 80 });
    for (at, seed) in cuts.flat_map(|at| (0..8).map(move |seed| (at, seed))) {
        let what = format!("cut at {at}, seed {seed}");
        let image = recovery.crash_at(at, Eviction::Seeded(seed));
        assert!(!check(&image, &allowed, &what), "{what}: nothing is damaged");
    }
}
