//! Writes that share a fence: every thread sees them once they have returned, and they block no
//! thread.

use crate::home::{Home, New, early, options, write};
use coreplane_engine::{
    Batch, Deferred, Durability, Engine, Horizon, Record, Repairable, Ticket, Visibility,
    WriteOptions,
};
use coreplane_scmkv::{Placement, Scmkv};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The work of another thread, and its name.
type Deed = (&'static str, fn(&Scmkv));

const PLACEMENTS: [Placement; 2] = [Placement::Pool, Placement::Dram];

fn put_early(store: &Scmkv, key: &[u8], value: &[u8]) -> Ticket {
    store.put(key, value, &early()).expect("put").ticket()
}

fn put(store: &Scmkv, number: u32) {
    let _outcome = store.put(&key(number), b"x", &write()).expect("put");
}

fn is_durable(store: &Scmkv, ticket: Ticket) -> bool {
    store.is_durable(&Horizon::from(ticket)).expect("is_durable")
}

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// A store in which another thread has written 20 keys early, and gone away.
fn abandoned(home: &Home, placement: Placement) -> (Scmkv, Ticket) {
    let store = home.create(New::tiny(40).placed(placement));
    let ticket = std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..20).map(|number| put_early(&store, &key(number), b"new")));
        writer.join().expect("writer").last().expect("20 writes")
    });
    assert!(!is_durable(&store, ticket), "nobody has committed yet");
    (store, ticket)
}

#[test]
fn what_was_left_behind_is_seen_by_each_kind_of_reader() {
    let readers: [Deed; 6] = [
        ("stats", |store| assert_eq!((store.stats().records, store.stats().puts), (20, 20))),
        ("get", |store| {
            assert_eq!(store.get(&key(7)).expect("get").as_deref(), Some(&b"new"[..]));
        }),
        ("multi_get", |store| {
            let keys: Vec<_> = (0..20).map(key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(<[u8; 4]>::as_slice).collect();
            let mut hits = 0;
            let mut visit = |_, record: Option<Record<'_>>| hits += u32::from(record.is_some());
            store.multi_get(&keys, Visibility::Durable, &mut visit).expect("multi_get");
            assert_eq!(hits, 20);
        }),
        ("len", |store| assert_eq!(store.len().expect("len"), 20)),
        ("iterate", |store| {
            let mut shown = 0;
            store.iterate(0, 1000, &mut |_| shown += 1).expect("iterate");
            assert_eq!(shown, 20);
        }),
        ("verify", |store| {
            assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
            assert_eq!(store.stats().records, 20);
        }),
    ];
    for placement in PLACEMENTS {
        for (name, read) in readers {
            let home = Home::in_memory();
            let (store, _) = abandoned(&home, placement);
            eprintln!("{name}, {placement:?}");
            read(&store);
        }
    }
}

#[test]
fn nobody_waits_for_a_writer_who_has_gone_away() {
    let others: [Deed; 6] = [
        ("put", |store| (0..20).for_each(|number| put(store, number))),
        ("delete", |store| {
            let _outcome = store.delete(&key(3), &write()).expect("delete");
        }),
        ("batch", |store| {
            let mut batch = Batch::new();
            for number in 0..20 {
                batch.put(&key(number), b"x");
            }
            store.apply(&batch, &write()).expect("apply");
        }),
        ("growth of the index", |store| (0..1500).for_each(|number| put(store, number))),
        ("clear", |store| store.clear().expect("clear")),
        ("close", |store| store.close().expect("close")),
    ];
    for placement in PLACEMENTS {
        for (name, act) in others {
            let home = Home::in_memory();
            let (store, ticket) = abandoned(&home, placement);
            let (done, ended) = mpsc::channel();
            std::thread::scope(|scope| {
                let store = &store;
                scope.spawn(move || {
                    act(store);
                    done.send(()).expect("send");
                });
                let ended = ended.recv_timeout(Duration::from_secs(60));
                // Not a failed assertion: the scope would wait for the thread that hangs.
                if ended.is_err() {
                    eprintln!("{name} waits for ever, {placement:?}");
                    std::process::abort();
                }
            });
            if name != "delete" {
                assert!(is_durable(&store, ticket), "{name}, {placement:?}");
            }
        }
    }
}

#[test]
fn a_group_that_is_full_is_fenced_without_a_commit() {
    let home = Home::in_memory();
    let store = home.create(New::tiny(40));
    let max_delay = Duration::from_secs(1);
    let durability = Some(Durability::Group { max_ops: 4, max_delay });
    let options = WriteOptions { durability, ..early() };
    let tickets: Vec<Ticket> = (0..4)
        .map(|number| store.put(&key(number), b"v", &options).expect("put").ticket())
        .collect();
    assert!(tickets.into_iter().all(|ticket| is_durable(&store, ticket)));
}

/// Its caller may have gone away; the first of a round finds the thread that flushes it asleep.
#[test]
fn an_early_write_at_group_is_durable_though_nobody_asks() {
    let max_delay = Duration::from_millis(1);
    let durability = Some(Durability::Group { max_ops: 64, max_delay });
    let options = WriteOptions { durability, ..early() };
    let homes = [
        (Home::in_memory(), Placement::Pool),
        (Home::in_memory(), Placement::Dram),
        (Home::on_disk(), Placement::Dram),
    ];
    for (home, placement) in homes {
        let store = home.create(New::tiny(40).placed(placement).with(self::options(true)));
        for round in 0..30_u32 {
            let tickets: Vec<Ticket> = (0..round % 5 + 1)
                .map(|number| store.put(&key(number), b"v", &options).expect("put").ticket())
                .collect();
            let mut batch = Batch::new();
            batch.put(&key(round), b"v");
            let batched = store.apply(&batch, &options).expect("apply").ticket;
            let deadline = Instant::now() + Duration::from_secs(60);
            for ticket in tickets.into_iter().chain([batched]) {
                while !is_durable(&store, ticket) {
                    assert!(Instant::now() < deadline, "round {round}, {placement:?}: never");
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn a_key_that_is_written_again_stands_as_it_was_written_last() {
    for placement in PLACEMENTS {
        let home = Home::in_memory();
        let store = home.create(New::tiny(40).placed(placement));
        let mut tickets = Horizon::new();
        for round in 0..50_u32 {
            tickets.include(put_early(&store, b"one", &round.to_le_bytes()));
            let seen = store.get(b"one").expect("get");
            assert_eq!(seen.as_deref(), Some(&round.to_le_bytes()[..]));
            if round % 7 == 3 {
                let gone = store.delete(b"one", &early()).expect("delete");
                assert!(gone.written().expect("it was there").replaced);
                tickets.include(gone.ticket());
                assert_eq!(store.len().expect("len"), 0);
            }
        }
        assert!(store.commit(&tickets).expect("commit"));
        assert_eq!(store.get(b"one").expect("get").as_deref(), Some(&49_u32.to_le_bytes()[..]));
    }
}

/// A thread with keys of its own, which share their groups with those of others: whatever the
/// thread does, it reads its own writes.
fn play(store: &Scmkv, thread: u32, rounds: u32) -> BTreeMap<[u8; 4], u32> {
    let mut known = BTreeMap::new();
    let mut state = thread + 1;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut horizon = Horizon::new();
    for round in 0..rounds {
        let key = key(draw(40) * 8 + thread);
        match draw(12) {
            0..=5 => {
                horizon.include(put_early(store, &key, &round.to_le_bytes()));
                known.insert(key, round);
            }
            6 => {
                horizon.include(store.delete(&key, &early()).expect("delete").ticket());
                known.remove(&key);
            }
            7 => {
                let _outcome = store.put(&key, &round.to_le_bytes(), &write()).expect("put");
                known.insert(key, round);
            }
            8 => {
                let mut batch = Batch::new();
                batch.put(&key, &round.to_le_bytes());
                horizon.include(store.apply(&batch, &early()).expect("apply").ticket);
                known.insert(key, round);
            }
            9 => {
                assert!(store.commit(&horizon).expect("commit"));
                horizon.clear();
            }
            10 => {
                store.clean().expect("clean");
            }
            _ => {}
        }
        let seen = store.get(&key).expect("get");
        let due = known.get(&key).map(|round| round.to_le_bytes().to_vec());
        assert_eq!(seen, due, "thread {thread}, round {round}");
    }
    known
}

#[test]
fn each_thread_reads_what_it_has_written_whoever_commits() {
    for placement in PLACEMENTS {
        let home = Home::in_memory();
        // Two logs for five threads.
        let store = home.create(New::tiny(40).placed(placement).with(options(true)));
        let known: BTreeMap<[u8; 4], u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..5)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || play(store, thread, 4000))
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("thread")).collect()
        });
        assert_eq!(store.len().expect("len"), known.len() as u64);
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
        store.close().expect("close");
        drop(store);
        let store = home.open(options(false));
        for (key, round) in known {
            assert_eq!(store.get(&key).expect("get"), Some(round.to_le_bytes().to_vec()));
        }
    }
}

/// A thread that helps to commit unlocks one group after the other: a reader of the first must not
/// get a durable answer before the ticket is durable.
#[test]
fn what_a_durable_read_shows_has_a_durable_ticket() {
    const KEYS: u32 = 40;
    for placement in PLACEMENTS {
        let home = Home::in_memory();
        let store = home.create(New::tiny(300).placed(placement));
        let (go, done) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Acquire) {
                    let now = go.load(Ordering::Acquire);
                    if now != seen {
                        store.len().expect("len");
                    }
                    seen = now;
                }
            });
            for round in 1..3000_u32 {
                let ticket = (0..KEYS)
                    .map(|number| put_early(&store, &key(number), &round.to_le_bytes()))
                    .last()
                    .expect("keys");
                go.store(round, Ordering::Release);
                let shown = store.get(&key(KEYS - 1)).expect("get").expect("it is there");
                assert_eq!(shown, round.to_le_bytes());
                assert!(is_durable(&store, ticket), "round {round}: shown, and not durable");
            }
            done.store(true, Ordering::Release);
        });
    }
}
