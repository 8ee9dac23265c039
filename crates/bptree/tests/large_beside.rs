//! Large values that are read beside writes to their leaf: a writer writes each time that a page of a value is
//! loaded.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, Entry, Ordered, Visibility, WriteOptions};
use coreplane_pmem::media::Trace;
use coreplane_pmem::{Space, SpaceOptions, SyncError};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const PAGE: u32 = 4096;

/// The maximum number of writes: endless for a reader that begins again after each.
const WRITES_MAX: u32 = 2000;

/// Only loads of the pages of large values are longer than this.
const SMALL: u64 = 1024;

thread_local! {
    /// True while this thread reads.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// The link to a thread that writes on request.
struct Neighbour {
    ask: Sender<()>,
    answer: Receiver<()>,
    asked: u32,
}

/// A medium that requests a write at each load of a page of a large value.
#[derive(Default)]
struct Watched {
    neighbour: OnceLock<Mutex<Neighbour>>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Watched {
    fn asked(&self) -> u32 {
        self.neighbour.get().expect("a neighbour").lock().expect("unpoisoned").asked
    }
}

impl Trace for Watched {
    fn load(&self, _: u64, len: u64, _: bool) {
        if len <= SMALL || !READS.get() {
            return;
        }
        let mut neighbour = self.neighbour.get().expect("a neighbour").lock().expect("unpoisoned");
        if neighbour.asked < WRITES_MAX {
            neighbour.asked += 1;
            neighbour.ask.send(()).expect("a neighbour");
            // The reader may have the leaf locked, and then the write is not waited for.
            let _in_time = neighbour.answer.recv_timeout(Duration::from_millis(20)).is_ok();
        }
    }

    fn store(&self, _: u64, _: &[u8], _: bool) {}
    fn store_nt(&self, _: u64, _: &[u8]) {}
    fn swapped(&self, _: u64, _: u64, _: bool) {}
    fn flush(&self, _: u64, _: u64) {}
    fn fenced_elsewhere(&self) {}
    fn sync_request(&self, _: u64) {}

    fn fence(&self) -> Result<(), SyncError> {
        Ok(())
    }

    fn fences_at_once(&self) -> bool {
        true
    }

    fn sync_generation(&self) -> u64 {
        0
    }

    fn sync_is_done(&self, _: u64) -> Result<bool, SyncError> {
        Ok(true)
    }

    fn appends_past_caches(&self) -> bool {
        false
    }

    fn check_sync(&self) -> Result<(), SyncError> {
        Ok(())
    }

    fn unreadable(&self, _: u64, _: u64) -> Option<u64> {
        None
    }

    fn grow(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a store with three large values in one leaf, beside a writer that puts `key` with a value of `len` bytes
/// at each load of a page; returns the number of writes.
fn writes_beside(key: &[u8], len: usize, check_reads: bool, read: &dyn Fn(&Bptree)) -> u32 {
    writes_beside_more(key, len, check_reads, &|_| {}, read)
}

/// The same with more records in the store.
fn writes_beside_more(
    key: &[u8],
    len: usize,
    check_reads: bool,
    more: &dyn Fn(&Bptree),
    read: &dyn Fn(&Bptree),
) -> u32 {
    let watched = Arc::new(Watched::default());
    let options = SpaceOptions { page_size: PAGE, reserve: 32 << 20, own_epochs: false };
    let trace: Arc<dyn Trace> = Arc::clone(&watched) as _;
    let space = Space::traced(16 << 20, &options, trace).expect("memory");
    let options = Options { background: false, check_reads, ..Options::default() };
    let store = Bptree::simulated_create(Arc::new(space), &options).expect("a store");
    let put = |key: &[u8], value: &[u8]| {
        let _outcome = store.put(key, value, &WriteOptions::default()).expect("put");
    };
    [b"a", b"b", b"c"].iter().for_each(|key| put(*key, &value_of(*key)));
    more(&store);
    let (ask, asked) = channel();
    let (answer, answered) = channel();
    let neighbour = Neighbour { ask, answer: answered, asked: 0 };
    assert!(watched.neighbour.set(Mutex::new(neighbour)).is_ok());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for () in asked {
                put(key, &vec![key[0]; len]);
                answer.send(()).expect("somebody reads");
            }
        });
        READS.set(true);
        read(&store);
        READS.set(false);
        // Ends the other thread.
        let count = watched.asked();
        let (none, _) = channel();
        watched.neighbour.get().expect("a neighbour").lock().expect("unpoisoned").ask = none;
        count
    })
}

fn value_of(key: &[u8]) -> Vec<u8> {
    vec![key[0]; 20_000]
}

fn get(store: &Bptree, key: &[u8]) {
    let mut seen = Vec::new();
    let found = store.get_with(key, Visibility::Durable, &mut |it| seen = it.value.to_vec());
    assert!(found.expect("get").hit && seen == value_of(key));
}

/// All large values, in any order, and the small one beside them once.
fn whole(mut shown: Vec<(Vec<u8>, Vec<u8>)>) {
    shown.retain(|(key, _)| key.len() == 1);
    shown.sort();
    let all = [b"a", b"b", b"c"].map(|key| (key.to_vec(), value_of(key)));
    assert!(shown == all, "{} values", shown.len());
}

fn iterate(store: &Bptree) {
    let mut shown = Vec::new();
    let next = store.iterate(0, usize::MAX, &mut |it| {
        shown.push((it.key.to_vec(), it.record.expect("a record").value.to_vec()));
    });
    assert_eq!(next.expect("iterate"), 0);
    whole(shown);
}

fn scan(store: &Bptree) {
    for reverse in [false, true] {
        let mut shown = Vec::new();
        let scanned = store.scan(b"", None, reverse, usize::MAX, &mut |it| {
            shown.push((it.key.to_vec(), it.record.expect("a record").value.to_vec()));
            true
        });
        scanned.expect("scan");
        whole(shown);
    }
}

/// Five pages of each value are loaded, and if reads are checked each of them once more.
#[test]
fn a_write_to_its_leaf_does_not_let_a_read_of_a_large_value_begin_again() {
    for check_reads in [false, true] {
        let times = if check_reads { 2 } else { 1 };
        let writes = writes_beside(b"small", 7, check_reads, &|store| get(store, b"b"));
        assert_eq!(writes, 5 * times);
        let writes = writes_beside(b"small", 7, check_reads, &|store| {
            store.multi_get(&[b"b", b"a"], Visibility::Durable, &mut |_, _| {}).expect("get");
        });
        assert_eq!(writes, 10 * times);
        let writes = writes_beside(b"small", 7, check_reads, &iterate);
        assert_eq!(writes, 15);
        let writes = writes_beside(b"small", 7, check_reads, &scan);
        assert_eq!(writes, 30 * times);
    }
}

/// Five pages of each key are loaded, more than once; at last while no writer can write to the leaf.
#[test]
fn a_long_key_is_read_beside_writes_to_its_leaf() {
    for check_reads in [false, true] {
        let long = |key: u8| vec![key; 20_000];
        let put = |store: &Bptree| {
            for key in [b'l', b'm'] {
                let _outcome =
                    store.put(&long(key), b"value", &WriteOptions::default()).expect("put");
            }
        };
        let writes = writes_beside_more(b"small", 7, check_reads, &put, &|store| {
            assert_eq!(store.get(&long(b'm')).expect("get").as_deref(), Some(&b"value"[..]));
        });
        assert!((5..200).contains(&writes), "{writes}");
        let writes = writes_beside_more(b"small", 7, check_reads, &put, &|store| {
            let mut shown = 0;
            let count = &mut |_: Entry<'_>| {
                shown += 1;
                true
            };
            store.scan(b"l", Some(b"n"), false, 10, count).expect("scan");
            store.scan(b"l", Some(b"n"), true, 10, count).expect("scan");
            assert_eq!(shown, 4);
        });
        assert!((10..500).contains(&writes), "{writes}");
    }
}

/// At last it is read while no writer can write to its leaf.
#[test]
fn a_large_value_that_is_written_at_each_look_is_read_all_the_same() {
    for check_reads in [false, true] {
        let writes = writes_beside(b"b", 20_000, check_reads, &|store| get(store, b"b"));
        assert!((5..100).contains(&writes), "{writes}");
        let writes = writes_beside(b"b", 20_000, check_reads, &iterate);
        assert!((5..300).contains(&writes), "{writes}");
        let writes = writes_beside(b"b", 20_000, check_reads, &scan);
        assert!((5..500).contains(&writes), "{writes}");
    }
}
