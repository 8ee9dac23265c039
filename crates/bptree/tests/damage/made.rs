//! No result is computed from a damaged record.

use crate::{PAGE, is_damage, key, options};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::WriteOptions;
use coreplane_engine::{
    Engine, Error, Expected, Mutation, Outcome, Record, Repairable, UnixMillis,
};
use coreplane_pmem::MediaChoice;
use std::os::unix::fs::FileExt as _;

const LARGE: usize = 3 * PAGE;

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

/// A store with two keys, the first of which has one wrong bit in its value.
fn hurt(len: usize, options: &Options) -> (tempfile::TempDir, Bptree) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, options);
    let store = store.expect("create");
    let _outcome = store.put(&key(1), &value(len), &WriteOptions::default()).expect("put");
    let _outcome = store.put(&key(2), b"another", &WriteOptions::default()).expect("put");
    let bytes = std::fs::read(&path).expect("read");
    let value = &value(len)[..100];
    let mut found = bytes.windows(value.len()).enumerate().filter(|(_, it)| *it == value);
    let (at, _) = found.next().expect("the value");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.write_at(&[value[50] ^ 8], at as u64 + 50).expect("write");
    (directory, store)
}

fn refused(outcome: Result<Outcome, Error>) {
    assert!(outcome.as_ref().is_err_and(is_damage), "{outcome:?}");
}

#[test]
fn nothing_is_made_of_a_damaged_value() {
    let (with_checks, default) = (options(), WriteOptions::default());
    for options in [&with_checks, &Options::default()] {
        for len in [100, LARGE] {
            let (_directory, store) = hurt(len, options);
            let expire = &mut |_: Option<Record<'_>>| Mutation::Expire(Some(UnixMillis(1 << 50)));
            refused(store.modify(&key(1), &default, expire));
            let shown = &mut |_: Option<Record<'_>>| panic!("it is shown");
            refused(store.modify(&key(1), &default, shown));
            // It is not even compared with another value.
            if options.check_reads {
                let given = Expected::Value(&value(len));
                refused(store.compare_and_set(&key(1), given, b"new", &default));
            }
            assert!(store.check(&key(1)).is_err(), "it is as it was");
            let outcome = store.modify(&key(2), &default, expire).expect("modify");
            assert!(outcome.written().is_some());
        }
    }
}

#[test]
fn who_does_not_ask_what_the_value_was_ends_the_damage() {
    type Write = fn(&Bptree) -> Result<Outcome, Error>;
    let writes: [Write; 3] = [
        |store| store.put(&key(1), b"new", &WriteOptions::default()),
        |store| store.update(&key(1), b"new", &WriteOptions::default()),
        |store| store.delete(&key(1), &WriteOptions::default()),
    ];
    for (write, len) in writes.into_iter().flat_map(|it| [(it, 100), (it, LARGE)]) {
        let (_directory, store) = hurt(len, &options());
        let _outcome = write(&store).expect("write");
        store.check(&key(1)).expect("it is sound, or gone");
    }
}
