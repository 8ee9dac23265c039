//! Power cuts at moments that are known to be hard.

use crate::story::{BOTH, PAGE, Place, Story, place_of, places};
use coreplane_pmem::media::sim::{Eviction, Model, Sim, SimOptions};
use coreplane_tsdb::influxql::{Limits, Request, run};
use coreplane_tsdb::{Error, FieldValue, Options, Point, SeriesKey, Store};
use std::time::{Duration, Instant};

/// A write is cut off, and after an opening another one goes to the same places: the second one counts, and stays.
#[test]
fn what_a_cut_has_left_does_not_come_back_behind_a_newer_point() {
    let story = Story { rounds: 0, ..Story::new(1, 1) };
    let places = |value: i64| -> Vec<(Place, i64)> {
        let field = |at: i64| format!("f{}", at % 40);
        (0..80).map(|at| (("m0,n=1".to_owned(), field(at), at / 40), value)).collect()
    };
    let mut cuts = 0;
    for model in BOTH {
        let sim = Sim::new(&story.sim_options(model)).expect("memory");
        let store = Store::simulated_create(sim.spaces(), &story.options()).expect("a store");
        store.create_database("db").expect("a database");
        assert!(story.write(&store, &places(1)).expect("written"));
        let before = sim.events();
        // Several records, on two pages.
        assert!(story.write(&store, &places(2)).expect("written"));
        for events in before..sim.events() {
            for seed in 0..6 {
                let sim = sim.crash_at(events, Eviction::Seeded(seed)).reopen().expect("memory");
                let open =
                    || Store::simulated_open(sim.spaces(), &story.options()).expect("opened");
                let store = open();
                assert!(story.write(&store, &places(3)).expect("written"));
                let sim = sim.crash(Eviction::Nothing).reopen().expect("memory");
                let store = Store::simulated_open(sim.spaces(), &story.options()).expect("opened");
                assert_eq!(store.damage().next(), None, "{model:?} {events} {seed}");
                let reader = store.reader("db", None).expect("a reader");
                let found = self::places(&reader).expect("points");
                assert_eq!(found.len(), 81);
                let is_new =
                    |(place, value): (&Place, &i64)| *value == 3 || *place == place_of("m0");
                assert!(found.iter().all(is_new), "{model:?} {events} {seed}: {found:?}");
                cuts += 1;
            }
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// A write of several records of one length is cut off when it has begun a page. The cut may lose the word of that
/// page while the records in it survive. A shorter write to the same place follows, in a page that is begun in the
/// same place.
#[test]
fn a_page_that_a_cut_has_forgotten_does_not_come_back_behind_a_newer_point() {
    const LARGE: u32 = 64 << 10;
    let story = Story { rounds: 0, pages: 60 * u64::from(LARGE / PAGE), ..Story::new(1, 1) };
    let options = Options { page_len: LARGE, head_bytes: 1 << 20, ..story.options() };
    // A record has 546 of them.
    let points = |value: i64, records: usize| -> Vec<(Place, i64)> {
        vec![(("m0,n=1".to_owned(), "a".to_owned(), 1), value); records * 546]
    };
    for model in BOTH {
        let sim_options = SimOptions { page_size: LARGE, ..story.sim_options(model) };
        let sim = Sim::new(&sim_options).expect("memory");
        let store = Store::simulated_create(sim.spaces(), &options).expect("a store");
        store.create_database("db").expect("a database");
        // The log has pages 4 to 7: the word of the next one is the first of a line.
        for _ in 0..4 {
            assert!(story.write(&store, &points(1, 3)).expect("written"));
        }
        let before = sim.events();
        assert!(story.write(&store, &points(2, 3)).expect("written"));
        let (word, mut forgot) = (u64::from(LARGE) + 8 * 8, 0);
        for events in before..sim.events() {
            let mut image = sim.crash_at(events, Eviction::Everything);
            forgot += u32::from(image.word(word) != 0);
            image.fill_line(word, 0);
            let cut = image.reopen().expect("memory");
            let store = Store::simulated_open(cut.spaces(), &options).expect("opened");
            assert!(story.write(&store, &points(3, 1)).expect("written"));
            let cut = cut.crash(Eviction::Nothing).reopen().expect("memory");
            let store = Store::simulated_open(cut.spaces(), &options).expect("opened");
            assert_eq!(store.damage().next(), None, "{model:?} {events}");
            let found = places(&store.reader("db", None).expect("a reader")).expect("points");
            let place = ("m0,n=1".to_owned(), "a".to_owned(), 1);
            assert_eq!(found.get(&place), Some(&3), "{model:?} {events}");
        }
        assert!(forgot > 0, "{model:?}");
    }
}

/// Names that are made after a sync has failed.
#[test]
fn a_store_whose_sync_has_failed_can_be_opened_again() {
    let story = Story::new(1, 2);
    let sim = Sim::new(&story.sim_options(Model::File)).expect("memory");
    let store = Store::simulated_create(sim.spaces(), &story.options()).expect("a store");
    store.create_database("db").expect("a database");
    let point = |at: i64| vec![((format!("m{at}"), "a".to_owned(), at), at)];
    assert!(story.write(&store, &point(1)).expect("written"));
    sim.fail_syncs();
    for at in 2..5 {
        assert!(matches!(story.write(&store, &point(at)), Err(Error::Sync(_))));
    }
    let cut = sim.crash(Eviction::Everything).reopen().expect("memory");
    let store = Store::simulated_open(cut.spaces(), &story.options()).expect("opened");
    assert_eq!(store.damage().next(), None);
    let found = places(&store.reader("db", None).expect("a reader")).expect("points");
    assert_eq!(found.get(&("m1".to_owned(), "a".to_owned(), 1)), Some(&1));
}

/// Each sync of a sealing and of a merge fails, and the process is killed: the next one finds all stores.
#[test]
fn a_kill_after_a_failed_sync_of_a_segment_loses_no_point() {
    let story = Story { seal_in: 0, ..Story::new(1, 1) };
    let options = Options { head_bytes: 1 << 20, ..story.options() };
    let point = |at: i64| vec![(("m,n=1".to_owned(), "a".to_owned(), at), at)];
    let mut failed = [0, 0];
    for sync in 1.. {
        let of_sim = SimOptions { failing_sync: Some(sync), ..story.sim_options(Model::File) };
        let sim = Sim::new(&of_sim).expect("memory");
        let Ok(store) = Store::simulated_create(sim.spaces(), &options) else { continue };
        let mut written = 0;
        let mut work = || -> Result<(), (usize, Error)> {
            store.create_database("db").map_err(|error| (2, error))?;
            for _ in 0..3 {
                assert!(story.write(&store, &point(written)).map_err(|error| (2, error))?);
                written += 1;
                store.seal().map_err(|error| (0, error))?;
            }
            store.merge().map_err(|error| (1, error))
        };
        let Err((step, error)) = work() else { break };
        let Some(count) = failed.get_mut(step) else { continue };
        assert!(matches!(error, Error::Sync(_)), "{error}");
        *count += 1;
        assert!(matches!(store.merge(), Err(Error::Sync(_))));
        drop(store);
        let next = sim.killed().expect("memory");
        let store = Store::simulated_open(next.spaces(), &options).expect("opened");
        assert_eq!(store.damage().next(), None, "sync {sync}");
        let found = places(&store.reader("db", None).expect("a reader")).expect("points");
        let points = found.keys().filter(|it| it.1 == "a").count();
        assert_eq!(points as i64, written, "sync {sync}, step {step}: {found:?}");
        store.check_pages().expect("pages");
    }
    assert!(failed.iter().all(|it| *it > 1), "{failed:?}");
}

/// Points for which there was no room to be sealed, and later points.
#[test]
fn all_points_are_sealed_once_there_is_room() {
    let story = Story { pages: 400, ..Story::new(1, 1) };
    let options = Options { head_bytes: 1 << 20, ..story.options() };
    // A thread of another test that stopped while reading cannot hold back a page of this test.
    let of_sim = SimOptions { own_epochs: true, ..story.sim_options(Model::X86) };
    let sim = Sim::new(&of_sim).expect("memory");
    let store = Store::simulated_create(sim.spaces(), &options).expect("a store");
    let write = |database: &str, range: std::ops::Range<i64>| -> Result<(), Error> {
        let texts: Vec<String> = range.map(|at| format!("m,n={at}")).collect();
        let point = |text| Point {
            series: SeriesKey::of_text(text).expect("a key"),
            fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
            time: 1,
        };
        let points: Vec<Point<'_>> = texts.iter().map(|text| point(text)).collect();
        store.write(database, None, &points).map(drop)
    };
    for database in ["old", "db"] {
        store.create_database(database).expect("a database");
    }
    write("old", 0..1300).expect("room");
    store.seal().expect("room");
    write("db", 0..600).expect("room");
    assert!(matches!(store.seal(), Err(Error::Full(_))), "{:?}", store.stats());
    store.drop_database("old").expect("dropped");
    write("db", 0..1).expect("room");
    // This sealing comes after the merge that gives back the space of the dropped database.
    store.seal().expect("room");
    assert_eq!(store.stats().head_points, 0);
    store.check_pages().expect("pages");
}

/// Runs a statement; its error, if it has one.
fn stated(store: &Store, text: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(1000);
    let (rows_max, buckets_max, bytes_max) = (1000, 1000, 1 << 20);
    let limits =
        Limits { rows_max, buckets_max, bytes_max, deadline, cancel: None, threads_max: 1 };
    let (database, policy, now) = (None, None, 0);
    let request = Request { text, database, policy, now, is_read_only: false, limits };
    let answers = run(store, &request).expect("a statement");
    answers.into_iter().try_for_each(|it| it.outcome.map(drop))
}

/// A database with a policy of its own is made, and the making is cut off.
#[test]
fn a_database_is_there_with_its_own_policy_or_not_at_all() {
    const STATEMENT: &str = "CREATE DATABASE db WITH DURATION 2d NAME mine";
    let story = Story { rounds: 0, ..Story::new(1, 1) };
    let mut found = [0, 0];
    for model in BOTH {
        let sim = Sim::new(&story.sim_options(model)).expect("memory");
        let store = Store::simulated_create(sim.spaces(), &story.options()).expect("a store");
        let before = sim.events();
        assert_eq!(stated(&store, STATEMENT), Ok(()));
        for events in before..=sim.events() {
            for seed in 0..6 {
                let cut = sim.crash_at(events, Eviction::Seeded(seed)).reopen().expect("memory");
                let store = Store::simulated_open(cut.spaces(), &story.options()).expect("opened");
                let names = |store: &Store| -> Vec<String> {
                    let policies = store.policies("db").unwrap_or_default();
                    policies.into_iter().map(|it| it.name).collect()
                };
                let is_made = !store.databases().is_empty();
                found[usize::from(is_made)] += 1;
                let expected: &[&str] = if is_made { &["mine"] } else { &[] };
                assert_eq!(names(&store), expected, "{model:?} {events} {seed}");
                assert_eq!(stated(&store, STATEMENT), Ok(()), "{model:?} {events} {seed}");
                assert_eq!(names(&store), ["mine"]);
            }
        }
    }
    assert!(found.iter().all(|it| *it > 0), "{found:?}");
}
