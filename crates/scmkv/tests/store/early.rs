//! On a file a write is visible before it is durable: no ticket may say otherwise.

use crate::home::{Home, New, early};
use coreplane_engine::{
    Batch, Deferred, Durability, Engine, Horizon, Replicated, Ticket, Visibility, WriteOptions,
};
use coreplane_scmkv::{Placement, Scmkv};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Disk {
    store: Scmkv,
    /// How often a write was checked and was not durable yet: otherwise nothing is tested here.
    not_yet: AtomicU64,
    _home: Home,
}

impl Disk {
    fn with(new: New) -> Self {
        let home = Home::on_disk();
        let store = home.create(new.placed(Placement::Dram));
        Self { store, not_yet: AtomicU64::new(0), _home: home }
    }

    fn new() -> Self {
        Self::with(New::of_size(64 << 20))
    }

    fn put(&self, key: &[u8], value: &[u8], options: &WriteOptions) -> Ticket {
        self.store.put(key, value, options).expect("put").ticket()
    }

    fn is_durable(&self, ticket: Ticket) -> bool {
        let is_durable = self.store.is_durable(&Horizon::from(ticket)).expect("is_durable");
        self.not_yet.fetch_add(u64::from(!is_durable), Ordering::Relaxed);
        is_durable
    }

    /// At the end of a test of early writes: there were some.
    fn was_early(&self) {
        let not_yet = self.not_yet.load(Ordering::Relaxed);
        assert!(not_yet > 20, "only {not_yet} writes were looked at before they were durable");
    }

    fn wait(&self, ticket: Ticket) {
        self.store.wait_durable(&Horizon::from(ticket)).expect("wait_durable");
    }

    /// The number in `key`, and the ticket that a reader gets for it.
    fn read(&self, key: &[u8]) -> (u64, Ticket) {
        let mut number = 0;
        let mut see = |record: coreplane_engine::Record<'_>| {
            let mut word = [0; 8];
            word.copy_from_slice(&record.value.to_vec()[..8]);
            number = u64::from_le_bytes(word);
        };
        let found = self.store.get_with(key, Visibility::Early, &mut see).expect("get");
        (number, found.ticket)
    }
}

#[test]
fn a_reader_beside_the_writer_is_told_what_is_not_synced() {
    const WRITES: u64 = 6000;
    const UNKNOWN: u64 = u64::MAX;
    let disk = Disk::new();
    disk.put(b"k", &0_u64.to_le_bytes(), &WriteOptions::default());
    let positions: Vec<AtomicU64> = (0..=WRITES).map(|_| AtomicU64::new(UNKNOWN)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=WRITES {
                let ticket = disk.put(b"k", &number.to_le_bytes(), &early());
                positions[number as usize].store(ticket.position(), Ordering::Release);
                if number % 8 == 0 {
                    disk.wait(ticket);
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let (number, told) = disk.read(b"k");
            if !told.is_durable() || number == 0 {
                continue;
            }
            let position = loop {
                match positions[number as usize].load(Ordering::Acquire) {
                    UNKNOWN => std::hint::spin_loop(),
                    position => break position,
                }
            };
            assert!(
                position == 0 || disk.is_durable(Ticket::new(0, position)),
                "write {number} was called durable before its sync"
            );
        }
    });
}

#[test]
fn an_iteration_says_what_it_rests_on() {
    let disk = Disk::new();
    for number in 0..50_u64 {
        let written = disk.put(b"k", &number.to_le_bytes(), &early());
        let mut told = Vec::new();
        let mut see = |entry: coreplane_engine::Entry<'_>| {
            told.extend(entry.record.map(|record| record.ticket));
        };
        disk.store.iterate(0, usize::MAX, &mut see).expect("iterate");
        disk.store.changes_since(0, &mut see).expect("changes");
        let is_durable = disk.is_durable(written);
        assert_eq!(told.len(), 2);
        assert!(is_durable || !told.iter().any(|ticket| ticket.is_durable()));
        disk.wait(written);
    }
    disk.was_early();
}

#[test]
fn an_absence_rests_on_the_delete_that_made_it() {
    let disk = Disk::new();
    for round in 0..50_u64 {
        disk.wait(disk.put(b"k", &round.to_le_bytes(), &early()));
        let deleted = disk.store.delete(b"k", &early()).expect("delete").ticket();
        let seen = disk.store.visible_ticket();
        let keys: [&[u8]; 1] = [b"k"];
        let missed =
            disk.store.multi_get(&keys, Visibility::Early, &mut |_, _| {}).expect("multi_get");
        let mut nothing = Batch::new();
        nothing.delete(b"k");
        let idle = disk.store.apply(&nothing, &early()).expect("apply").ticket;
        let is_durable = disk.is_durable(deleted);
        assert!(is_durable || !seen.is_durable(), "round {round}");
        assert!(is_durable || !missed.is_empty(), "round {round}");
        assert!(is_durable || !idle.is_durable(), "round {round}");
    }
    disk.was_early();
}

#[test]
fn a_relaxed_write_does_not_make_the_strict_one_before_it_look_durable() {
    let disk = Disk::new();
    let relaxed = WriteOptions { durability: Some(Durability::RELAXED), ..early() };
    for number in 0..50_u64 {
        let written = disk.put(b"strict", &number.to_le_bytes(), &early());
        disk.put(b"relaxed", &number.to_le_bytes(), &relaxed);
        let (_, told) = disk.read(b"strict");
        let is_durable = disk.is_durable(written);
        assert!(is_durable || !told.is_durable(), "round {number}");
        disk.wait(written);
    }
    disk.was_early();
}

#[test]
fn what_a_page_held_before_says_nothing_of_what_it_holds_now() {
    // Few pages, so that they are used again and again; and no ticket is asked for.
    let disk = Disk::with(New::tiny(24));
    let first = disk.put(b"first", &[0; 200], &early());
    disk.wait(first);
    for round in 0..8 {
        for number in 0..600_u64 {
            disk.put(&(number % 4).to_le_bytes(), &[7; 200], &early());
        }
        for number in 0..30_u64 {
            let written = disk.put(b"k", &[number as u8; 100], &early());
            // Every sync that has ended so far is noted.
            assert!(disk.is_durable(first));
            let (_, told) = disk.read(b"k");
            let is_durable = disk.is_durable(written);
            assert!(is_durable || !told.is_durable(), "round {round}, write {number}");
        }
    }
    disk.was_early();
}

#[test]
fn emptying_a_store_waits_once() {
    let disk = Disk::new();
    let mut last = Ticket::DURABLE;
    for number in 0..300_u32 {
        last = disk.put(&number.to_le_bytes(), b"v", &early());
    }
    disk.wait(last);
    let before = disk.store.stats().fences;
    disk.store.clear().expect("clear");
    let fences = disk.store.stats().fences - before;
    assert!(disk.store.is_empty().expect("is_empty"));
    assert!(disk.store.visible_ticket().is_durable(), "cleared, and not durable");
    // Each early write requests its generation once; a wait would be a fence more.
    assert!(fences < 450, "{fences} fences for 300 keys");
}

/// Bytes that this thread has made dirty in files, as the kernel counts them.
fn dirtied_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").expect("/proc");
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).expect("write_bytes");
    line.parse().expect("a number")
}

#[test]
fn the_pages_that_are_filled_next_are_ready_for_syncs_and_no_others() {
    let disk = Disk::with(New::of_size(128 << 20));
    let written = std::cell::Cell::new(0);
    let prepare = || {
        let before = dirtied_bytes();
        let prepared = disk.store.prepare_pages().expect("prepare");
        written.set(written.get() + dirtied_bytes() - before);
        prepared
    };
    assert_eq!((prepare(), prepare()), (8, 0));
    let value = vec![7; 60_000];
    let put_all = |round: u64| {
        for number in 0..300_u64 {
            let key = (round % 2 * 1000 + number).to_le_bytes();
            let _outcome = disk.store.put(&key, &value, &WriteOptions::default()).expect("put");
        }
    };
    put_all(0);
    // Eight pages hold 270 of these: each page that was opened has made room for another.
    let more = prepare();
    assert!((7..=8).contains(&more), "{more} more");
    // The store is filled many times over: pages that have been in use are made ready once more.
    let mut prepared = 8 + more;
    for round in 1..24 {
        put_all(round);
        // As in the background: the most that is dead at once is 12 pages.
        for _ in 0..12 {
            disk.store.clean().expect("clean");
        }
        prepared += prepare();
        assert_eq!(prepare(), 0);
    }
    // No more often than pages were opened, by writers and by the cleaner.
    let stats = disk.store.stats();
    let opened = (stats.log_bytes_written + stats.cleaner_bytes_copied).div_ceil(2 << 20);
    assert!((81..=8 + opened).contains(&prepared), "{prepared} of 64 pages, {opened} opened");
    // Each was written once at most: where files are on a disk, that is the cost.
    assert!(written.get() <= 64 * (2 << 20), "{} bytes", written.get());
    for number in 0..300_u64 {
        let mut len = 0;
        let key = (1000 + number).to_le_bytes();
        let mut see = |record: coreplane_engine::Record<'_>| len = record.value.to_vec().len();
        assert!(disk.store.get_with(&key, Visibility::Early, &mut see).expect("get").hit);
        assert_eq!(len, value.len());
    }

    let memory = Home::in_memory().create(New::of_size(64 << 20));
    assert_eq!(memory.prepare_pages().expect("prepare"), 0, "a fence is an instruction");
}
