//! Flipped bits: a read returns the written data or an error, and missing data was reported.

use coreplane_tsdb::{
    Column, Error, FieldValue, Options, Point, Scrub, SeriesKey, Stats, Store, TagFilter,
};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn options() -> Options {
    Options { sets: 2, size: 1 << 20, page_len: 4096, head_bytes: 24 << 10, ..Options::default() }
}

fn value_of(host: i64, time: i64) -> i64 {
    host * 1_000_000 + time * time % 977
}

fn points(times: std::ops::Range<i64>) -> Vec<Point<'static>> {
    times
        .flat_map(|time| (0..5).map(move |host| (time, host)))
        .map(|(time, host)| Point {
            series: SeriesKey::new("cpu", [("host", &*format!("h{host}"))]).expect("a key"),
            fields: [("load".into(), FieldValue::Integer(value_of(host, time)))]
                .into_iter()
                .collect(),
            time: time * 1_000_000_000,
        })
        .collect()
}

/// The result of a check of everything.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Whole,
    Said,
    Silent(String),
}

fn look(path: &Path) -> Look {
    let store = match Store::open(path, &options()) {
        Ok(store) => store,
        Err(Error::Damage(_) | Error::Pools(_) | Error::Pool(_)) => return Look::Said,
        Err(error) => return Look::Silent(format!("{error:?}")),
    };
    let mut is_said = store.damage().count() > 0;
    let Ok(reader) = store.reader("db", None) else {
        return Look::Silent("no database".to_owned());
    };
    let mut found = BTreeMap::new();
    for series in reader.series("cpu", &TagFilter::All) {
        for field in reader.fields("cpu") {
            let everything = i64::MIN..=i64::MAX;
            is_said |= reader.summaries(&series, &field, everything.clone(), None).is_err();
            for block in reader.points(&series, &field, everything, false) {
                // The others follow.
                let Ok(block) = block else {
                    is_said = true;
                    continue;
                };
                let Column::Integer(values) = block.values else {
                    return Look::Silent("type".into());
                };
                for (time, value) in block.times.into_iter().zip(values) {
                    let host: i64 = series.tag("host")[1..].parse().expect("a number");
                    if value != value_of(host, time / 1_000_000_000) {
                        return Look::Silent(format!("{host} {time} is {value}"));
                    }
                    found.insert((host, time), value);
                }
            }
        }
    }
    let is_whole = found.len() == 5 * 700;
    match (is_whole, is_said) {
        (true, false) => Look::Whole,
        (_, true) => Look::Said,
        (false, false) => Look::Silent(format!("{} of 3500 points", found.len())),
    }
}

/// A closed store with all points, as the background has sealed them.
fn written(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("ts");
    let store = Store::open(&path, &options()).expect("a store");
    store.create_database("db").expect("a database");
    for at in 0..70 {
        store.write("db", None, &points(at * 10..at * 10 + 10)).expect("written");
    }
    path
}

#[test]
fn a_flipped_bit_is_set_right_or_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    {
        let store = Store::open(&path, &options()).expect("a store");
        store.create_database("db").expect("a database");
        for at in 0..70 {
            store.write("db", None, &points(at * 10..at * 10 + 10)).expect("written");
            if at % 20 == 19 {
                store.seal().expect("sealed");
            }
        }
        let stats = store.stats();
        assert!(stats.sealed_points > 500 && stats.head_points > 100, "{stats:?}");
        assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
    }
    let whole: Vec<Vec<u8>> =
        ["q0", "q1"].iter().map(|it| std::fs::read(path.join(it)).expect("a pool")).collect();
    assert_eq!(look(&path), Look::Whole);
    let mut draw = 12345_u64;
    let mut next = |below: usize| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) as usize % below
    };
    let mut said = 0;
    for round in 0..600 {
        let pool = next(2);
        // Only in lines with data, not in the zeroes behind them.
        let used: Vec<usize> = (0..whole[pool].len() / 64)
            .filter(|line| whole[pool][line * 64..line * 64 + 64].iter().any(|byte| *byte != 0))
            .collect();
        let mut bytes = whole[pool].clone();
        let at = used[next(used.len())] * 64 + next(64);
        bytes[at] ^= 1 << next(8);
        for (name, it) in ["q0", "q1"].iter().zip(&whole) {
            std::fs::write(path.join(name), it).expect("a pool");
        }
        std::fs::write(path.join(["q0", "q1"][pool]), &bytes).expect("a pool");
        match look(&path) {
            Look::Whole => {}
            Look::Said => said += 1,
            Look::Silent(what) => panic!("round {round}: byte {at} of q{pool}: {what}"),
        }
    }
    assert!(said > 100, "{said}");
}

/// One bit of a word flips, and long after it another.
#[test]
fn a_corrected_word_is_corrected_in_the_pool() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = written(&directory);
    for pool in ["q0", "q1"].map(|it| path.join(it)) {
        for byte in [0, 2] {
            let mut bytes = std::fs::read(&pool).expect("a pool");
            let words = (4096..4096 + 8 * 256).step_by(8);
            let used: Vec<usize> = words.filter(|at| bytes[*at..][..8] != [0; 8]).collect();
            assert!(used.len() > 3, "{used:?}");
            used.into_iter().for_each(|at| bytes[at + byte] ^= 8);
            std::fs::write(&pool, &bytes).expect("a pool");
            assert_eq!(look(&path), Look::Whole, "byte {byte} of {}", pool.display());
        }
    }
}

#[test]
fn a_page_of_which_nobody_knows_what_it_is_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = written(&directory);
    for pool in ["q0", "q1"].map(|it| path.join(it)) {
        let whole = std::fs::read(&pool).expect("a pool");
        let words = (4096..4096 + 8 * 256).step_by(8);
        for at in words.filter(|at| whole[*at..][..8] != [0; 8]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes[at + 2] ^= 8;
            std::fs::write(&pool, &bytes).expect("a pool");
            let found = look(&path);
            assert_eq!(found, Look::Said, "word {} of {}", at / 8 - 512, pool.display());
        }
        std::fs::write(&pool, &whole).expect("a pool");
    }
}

/// What an opening does about a word that it cannot read must be right whatever the word was: all is there again once
/// the word is.
#[test]
fn a_page_of_which_nobody_knows_what_it_is_takes_no_other_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    {
        let store = Store::open(&path, &options()).expect("a store");
        store.create_database("db").expect("a database");
        (0..70).for_each(|at| _ = store.write("db", None, &points(at * 10..at * 10 + 10)));
        store.seal().expect("sealed");
        let stats = store.stats();
        assert_eq!((stats.head_points, stats.sealed_points), (0, 3500));
    }
    let (mut roles, mut openings) = ([0; 16], Vec::new());
    for pool in ["q0", "q1"].map(|it| path.join(it)) {
        let whole = std::fs::read(&pool).expect("a pool");
        let words = (4096..4096 + 8 * 256).step_by(8);
        for at in words.filter(|at| whole[*at..][..8] != [0; 8]) {
            let role = whole[at + 5] >> 4;
            roles[usize::from(role)] += 1;
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes[at + 2] ^= 8;
            std::fs::write(&pool, &bytes).expect("a pool");
            let opened = Store::open(&path, &options()).map(drop);
            let mut left = std::fs::read(&pool).expect("a pool");
            left[at..at + 8].copy_from_slice(&whole[at..at + 8]);
            std::fs::write(&pool, &left).expect("a pool");
            assert_eq!(look(&path), Look::Whole, "role {role}, word {}", at / 8 - 512);
            openings.push((role, opened));
        }
        std::fs::write(&pool, &whole).expect("a pool");
    }
    for (role, opened) in openings {
        // Without a segment's page the rest is served; without names or the list of segments nothing is known.
        let is_refused = matches!(opened, Err(Error::Damage(_)));
        assert_eq!(is_refused, matches!(role, 2 | 3), "{role}: {opened:?}");
    }
    assert!(roles[2] >= 2 && roles[3] >= 1 && roles[4] >= 2, "{roles:?}");
}

/// The places where the pages of segments begin, by the table of pages.
fn segments(pool: &[u8]) -> Vec<usize> {
    let words = pool[4096..].as_chunks::<8>().0.iter().take(256);
    let words = words.map(|word| u64::from_le_bytes(*word)).enumerate();
    words.filter(|(_, word)| word >> 44 & 15 == 4).map(|(page, _)| page * 4096).collect()
}

#[test]
fn a_damaged_chunk_holds_up_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &Options { head_bytes: 1 << 30, ..options() }).expect("a store");
    store.create_database("db").expect("a database");
    let write = |at: i64| {
        store.write("db", None, &points(at * 10..at * 10 + 10)).expect("written");
        assert!(store.stats().head_points > 0);
        let sealed = store.seal();
        assert_eq!(store.stats().head_points, 0, "{at} {sealed:?}");
        sealed
    };
    (0..3).for_each(|at| write(at).expect("sealed"));
    let file = path.join("q0");
    let mut bytes = std::fs::read(&file).expect("a pool");
    let at = segments(&bytes)[0];
    bytes[at] ^= 1;
    let pool = std::fs::File::options().write(true).open(&file).expect("a pool");
    pool.write_all_at(&bytes[at..=at], at as u64).expect("written");
    let said = write(3);
    assert!(matches!(said, Err(Error::Damage(_))), "{said:?}");
    (4..9).for_each(|at| write(at).expect("sealed"));
    assert!(!store.verify(&mut |_, _| {}).expect("findings").is_sound());
}

/// Whichever byte of a segment is damaged, the series of the chunk or the entry lacks points, or that and those beside
/// it: the entry may be of each.
#[test]
fn a_damaged_entry_holds_up_no_other_series() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { sets: 1, head_bytes: 1 << 30, ..options() };
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    store.write("db", None, &points(0..60)).expect("written");
    store.seal().expect("sealed");
    let bytes = std::fs::read(path.join("q0")).expect("a pool");
    let file = std::fs::File::options().write(true).open(path.join("q0")).expect("a pool");
    let reader = store.reader("db", None).expect("a reader");
    let (field, mut most) = (reader.fields("cpu").pop().expect("a field"), 0);
    let mut has_asked = false;
    for page in segments(&bytes) {
        let used = (page..page + 4096).filter(|at| bytes[*at] != 0).step_by(7);
        for at in used {
            file.write_all_at(&[bytes[at] ^ 4], at as u64).expect("written");
            let mut damaged = 0;
            for series in reader.series("cpu", &TagFilter::All) {
                let all = reader.points(&series, &field, i64::MIN..=i64::MAX, false);
                match all.map(|it| it.map(|block| block.len())).sum::<Result<usize, Error>>() {
                    Ok(count) => assert_eq!(count, 60, "byte {at}"),
                    Err(_) => damaged += 1,
                }
            }
            assert!((1..=3).contains(&damaged), "byte {at}: {damaged} of 5 series");
            most = most.max(damaged);
            if damaged == 3 && !std::mem::replace(&mut has_asked, true) {
                // An older point, or none, would be no answer.
                let all = reader.series("cpu", &TagFilter::All);
                let lasts = all.iter().map(|it| reader.last(it, &field, i64::MIN..=i64::MAX));
                let (sound, lost): (Vec<_>, Vec<_>) = lasts.partition(Result::is_ok);
                assert_eq!((sound.len(), lost.len()), (3, 2), "byte {at}");
                assert!(sound.into_iter().all(|it| it.ok().flatten().is_some()), "byte {at}");
            }
            file.write_all_at(&[bytes[at]], at as u64).expect("written");
        }
    }
    assert_eq!(most, 3);
}

/// The reports of a scrub during `count` more complete rounds.
fn rounds(store: &Store, scrub: &mut Scrub, count: u64) -> Vec<String> {
    let (mut told, until) = (Vec::new(), store.stats().scrub_rounds + count);
    while store.stats().scrub_rounds < until {
        told.extend(store.scrub_next(scrub));
    }
    told
}

#[test]
fn a_scrub_finds_what_nobody_reads_and_tells_it_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let store = Store::open(&path, &Options { head_bytes: 1 << 30, ..options() }).expect("a store");
    store.create_database("db").expect("a database");
    // No shard is old enough for its segments to be merged into one.
    store.set_clock(1);
    for times in [0..150, 150..300] {
        store.write("db", None, &points(times)).expect("written");
        store.seal().expect("sealed");
    }
    let mut scrub = Scrub::default();
    assert_eq!(rounds(&store, &mut scrub, 2), [""; 0]);
    let mut expected = 0;
    for (pool, file) in ["q0", "q1"].map(|it| (it, path.join(it))) {
        let bytes = std::fs::read(&file).expect("a pool");
        let file = std::fs::File::options().write(true).open(file).expect("a pool");
        let (mut chunks, mut entries) = (0, 0);
        for page in segments(&bytes) {
            // Unused bytes are zeroes.
            let used = (page..page + 4096).filter(|at| bytes[*at] != 0).step_by(5);
            for at in used {
                file.write_all_at(&[bytes[at] ^ 4], at as u64).expect("written");
                let mut scrub = Scrub::default();
                let [told] = &rounds(&store, &mut scrub, 3)[..] else { panic!("byte {at}") };
                assert!(told.starts_with(&format!("{pool}: damaged: ")), "{told}");
                assert!(told.ends_with("policy \"autogen\" of database \"db\""), "{told}");
                let is_chunk = told.contains("field \"load\" of series \"cpu,host=h");
                (chunks, entries) = (chunks + u32::from(is_chunk), entries + u32::from(!is_chunk));
                file.write_all_at(&[bytes[at]], at as u64).expect("written");
                expected += 1;
            }
        }
        assert!(chunks > 10 && entries > 10, "{chunks} {entries}");
    }
    assert_eq!(store.stats().scrub_damaged, expected);
    assert_eq!(rounds(&store, &mut scrub, 1), [""; 0], "all is as it was");
}

/// Points whose values do not compress: 80 bytes each.
fn scattered(from: i64, count: i64) -> Vec<Point<'static>> {
    let value = |at: i64, field: i64| {
        let bits =
            (at * 10 + field).cast_unsigned().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        FieldValue::Integer((bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).cast_signed())
    };
    let point = |at: i64| Point {
        series: SeriesKey::new("noise", [("host", "a")]).expect("a key"),
        fields: (0..10).map(|it| (format!("f{it}").into(), value(at, it))).collect(),
        time: at,
    };
    (from..from + count).map(point).collect()
}

#[test]
fn a_round_ends_however_much_is_sealed_meanwhile() {
    const WEEK: i64 = 7 * 86_400 * 1_000_000_000;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { sets: 1, size: 64 << 20, page_len: 16 << 10, ..options() };
    let store = Store::open(&path, &Options { head_bytes: 1 << 30, ..options }).expect("a store");
    store.create_database("db").expect("a database");
    // Each segment is larger than the part that a scrub reads in a step.
    let add = |week: i64| {
        store.write("db", None, &scattered(week * WEEK, 6_000)).expect("written");
        store.seal().expect("sealed");
    };
    (0..4).for_each(add);
    let before = store.stats().sealed_bytes;
    assert!(before > 4 * (300 << 10), "{before}");
    let (mut scrub, mut steps) = (Scrub::default(), 0);
    while store.stats().scrub_rounds == 0 {
        assert_eq!(store.scrub_next(&mut scrub), [""; 0]);
        steps += 1;
        assert!(steps < 24, "a round does not end");
        add(3 + steps);
    }
    // All segments that were there have been read, in several steps.
    let read = store.stats().scrub_pages * (16 << 10);
    assert!(steps > 4 && read >= before, "{steps} {read} {before}");
    assert!(read < store.stats().sealed_bytes);
    let all = store.stats();
    rounds(&store, &mut scrub, 1);
    let read = (store.stats().scrub_pages - all.scrub_pages) * (16 << 10);
    assert!(read >= all.sealed_bytes, "{read} of {}", all.sealed_bytes);
}

#[test]
fn a_scrub_beside_those_who_write_seal_merge_and_drop_finds_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { size: 32 << 20, ..options() };
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let (is_over, drops) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut told = Vec::new();
    std::thread::scope(|scope| {
        let writer = |database: &'static str| {
            let (store, is_over) = (&store, &is_over);
            move || {
                let mut at = 0;
                while !is_over.load(Ordering::Relaxed) {
                    store.create_database(database).expect("a database");
                    // The other thread may have dropped it again.
                    let written = store.write(database, None, &points(at..at + 20));
                    assert!(matches!(written, Ok(_) | Err(Error::NotFound(_))), "{written:?}");
                    at = (at + 20) % 20_000;
                }
            }
        };
        let mut others = vec![scope.spawn(writer("db")), scope.spawn(writer("short"))];
        others.push(scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.merge().expect("merged");
                store.drop_database("short").expect("dropped");
                drops.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let mut scrub = Scrub::default();
        let is_done = |drops: u64, stats: Stats| {
            drops >= 100 && stats.scrub_rounds >= 500 && stats.scrub_pages >= 1_000
        };
        while !is_done(drops.load(Ordering::Relaxed), store.stats())
            && others.iter().all(|it| !it.is_finished())
        {
            told.extend(store.scrub_next(&mut scrub));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(told, [""; 0]);
    store.seal().expect("sealed");
    assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
    drop(store);
    Store::open(&path, &options).expect("a store").check_pages().expect("pages");
}
