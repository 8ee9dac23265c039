//! Drops: they need no room, and give back what was dropped.

use coreplane_tsdb::{Error, FieldValue, Options, Point, Policy, SeriesKey, Store, TagFilter};

const HOUR: u64 = 3_600_000_000_000;

fn options() -> Options {
    Options { sets: 1, size: 4 << 20, page_len: 4096, head_bytes: 1 << 30, ..Options::default() }
}

fn point(series: &str, time: i64, value: FieldValue<'static>) -> Point<'static> {
    Point {
        series: SeriesKey::of_text(series).expect("a key").into_owned(),
        fields: [("f".into(), value)].into_iter().collect(),
        time,
    }
}

/// New names take all pages that they may. Each kind of drop is still possible then, also after a start, when the log
/// of names needs a new page.
#[test]
fn a_store_that_is_full_of_names_can_be_emptied() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ts");
    let options = Options { size: 1 << 20, head_bytes: 64 << 10, ..options() };
    let store = Store::open(&path, &options).expect("a store");
    store.create_database("db").expect("a database");
    let short =
        Policy { name: "short".to_owned(), duration_ns: HOUR, shard_ns: HOUR, is_default: false };
    store.put_policy("db", &short).expect("a policy");
    store.set_clock(1);
    let kept = ["kept,a=1", "kept,a=2"].map(|it| point(it, 1, FieldValue::Float(1.0)));
    for policy in [None, Some("short")] {
        assert_eq!(store.write("db", policy, &kept).expect("written").written, 2);
    }
    let (mut at, mut same) = (0, 0);
    while same < 20 {
        let before = store.stats().series;
        let points: Vec<_> = (at..at + 500)
            .map(|at| point(&format!("m,a={at}"), 1, FieldValue::Float(1.0)))
            .collect();
        match store.write("db", None, &points) {
            Ok(_) | Err(Error::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
        // It may make room, or find none.
        let _sealed = store.seal();
        at += 500;
        same = if store.stats().series == before { same + 1 } else { 0 };
    }
    drop(store);
    let whole = std::fs::read(path.join("q0")).expect("a pool");
    let drops: [(&str, fn(&Store) -> Result<(), Error>); 5] = [
        ("database", |it| it.drop_database("db")),
        ("policy", |it| it.drop_policy("db", "short")),
        ("measurement", |it| it.drop_measurement("db", "kept")),
        ("series", |it| it.drop_series("db", "kept", &TagFilter::All).map(drop)),
        ("shard", Store::expire),
    ];
    for (what, dropped) in drops {
        std::fs::write(path.join("q0"), &whole).expect("a pool");
        let store = Store::open(&path, &options).expect("opened");
        let refused = store.create_database("other");
        assert!(matches!(refused, Err(Error::Full(_))), "{what}: {refused:?}");
        dropped(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        let store = Store::open(&path, &options).expect("opened");
        assert_eq!(store.reader("db", None).is_err(), what == "database");
        if what == "database" {
            store.merge().expect("merged");
            store.create_database("db").expect("a database");
            store.write("db", None, &kept).expect("there is room again");
        }
        assert!(store.verify(&mut |_, _| {}).expect("findings").is_sound());
    }
}
