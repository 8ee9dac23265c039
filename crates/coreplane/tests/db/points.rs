//! Reads and writes of a key.

use crate::stores::each;
use coreplane::{Db, Error, Expected, Mutation, Outcome, Remedy, UnixMillis, WriteOptions};
use std::time::Duration;

fn value(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap().map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn reads_see_what_was_written() {
    each(|name, db| {
        assert!(db.is_empty().unwrap(), "{name}");
        assert_eq!((db.get("k").unwrap(), db.contains_key("k").unwrap()), (None, false), "{name}");
        db.put("k", "v").unwrap();
        db.put([], "of the empty key").unwrap();
        db.put([0, 0xff], []).unwrap();
        assert_eq!(value(db, "k").as_deref(), Some("v"), "{name}");
        assert_eq!(value(db, "").as_deref(), Some("of the empty key"), "{name}");
        assert_eq!(db.get([0, 0xff]).unwrap(), Some(Vec::new()), "{name}");
        assert!(db.contains_key([0, 0xff]).unwrap() && !db.contains_key([0]).unwrap(), "{name}");
        let many = db.multi_get(&["nobody", "k", ""]).unwrap();
        let many: Vec<_> = many.iter().map(|value| value.as_deref()).collect();
        assert_eq!(many, [None, Some(&b"v"[..]), Some(b"of the empty key")], "{name}");
        let owned = String::from("moved into the closure");
        let seen = db.get_with("k", |record| (owned, record.value.to_vec())).unwrap().unwrap();
        assert_eq!((seen.0.len(), seen.1), (22, b"v".to_vec()), "{name}");
        assert_eq!(db.get_with("nobody", |_| ()).unwrap(), None, "{name}");
        assert_eq!(db.len().unwrap(), 3, "{name}");
        assert!(db.stats().puts >= 3, "{name}: {:?}", db.stats());
        db.clear().unwrap();
        assert_eq!((db.len().unwrap(), db.get("k").unwrap()), (0, None), "{name}");
    });
}

/// A pool with such a record would be taken for a device of a matrix.
#[test]
fn keys_of_a_matrix_are_refused() {
    each(|name, db| {
        let own = b"\0coreplane matrix\0membership";
        let outcomes = [
            db.put(own, "v").map(drop),
            db.put_if_absent(own, "v").map(drop),
            db.update(own, "v").map(drop),
            db.compare_and_set(own, None, "v").map(drop),
            db.modify(own, |_| Mutation::Keep).map(drop),
            db.batch().put("k", "v").put(own, "v").commit().map(drop),
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(Error::Unsupported { .. })), "{name}: {outcome:?}");
        }
        assert!(db.is_empty().unwrap(), "{name}");
    });
}

#[test]
fn a_write_says_what_came_of_it() {
    each(|name, db| {
        assert!(!db.put("k", "1").unwrap().replaced, "{name}");
        assert!(db.put("k", "2").unwrap().replaced, "{name}");
        let refused = db.put_if_absent("k", "3").unwrap();
        assert!(matches!(refused, Outcome::Exists(_)), "{name}: {refused:?}");
        assert_eq!(value(db, "k").as_deref(), Some("2"), "{name}");
        assert!(db.put_if_absent("new", "3").unwrap().is_written(), "{name}");
        assert!(db.update("new", "4").unwrap().is_written(), "{name}");
        assert_eq!(value(db, "new").as_deref(), Some("4"), "{name}");
        let refused = db.update("nobody", "4").unwrap();
        assert!(matches!(refused, Outcome::Missing(_)), "{name}: {refused:?}");
        assert!(!db.contains_key("nobody").unwrap(), "{name}");
        assert!(db.delete("k").unwrap(), "{name}");
        assert!(!db.delete("k").unwrap(), "{name}: a second time");
        assert_eq!(value(db, "k"), None, "{name}");
        let options = WriteOptions::default();
        assert!(db.put_with("k", "5", &options).unwrap().is_written(), "{name}");
        let refused = db.delete_with("nobody", &options).unwrap();
        assert!(matches!(refused, Outcome::Missing(_)), "{name}: {refused:?}");
        assert!(db.delete_with("k", &options).unwrap().is_written(), "{name}");
    });
}

#[test]
fn what_is_compared_decides() {
    each(|name, db| {
        let mismatch =
            |outcome: Outcome| assert!(matches!(outcome, Outcome::Mismatch(_)), "{name}");
        let written = |outcome: Outcome| outcome.written().expect(name);
        mismatch(db.compare_and_set("k", Expected::Value(b""), "1").unwrap());
        written(db.compare_and_set("k", db.get("k").unwrap().as_deref(), "1").unwrap());
        mismatch(db.compare_and_set("k", None, "2").unwrap());
        mismatch(db.compare_and_set("k", Expected::Absent, "2").unwrap());
        mismatch(db.compare_and_set("k", b"12", "2").unwrap());
        mismatch(db.compare_and_set("k", &vec![b'2'], "2").unwrap());
        let second = written(db.compare_and_set("k", "1", "2").unwrap());
        written(db.compare_and_set("k", Expected::Sequence(second.sequence), "3").unwrap());
        mismatch(db.compare_and_set("k", Expected::Sequence(second.sequence), "4").unwrap());
        assert_eq!(value(db, "k").as_deref(), Some("3"), "{name}");
    });
}

#[test]
fn threads_that_compare_lose_no_step() {
    each(|name, db| {
        db.put("count", 0_u64.to_le_bytes()).unwrap();
        let step = || loop {
            let seen = db.get("count").unwrap().unwrap();
            let next = u64::from_le_bytes(seen.as_slice().try_into().unwrap()) + 1;
            let outcome = db.compare_and_set("count", seen.as_slice(), next.to_le_bytes());
            if outcome.unwrap().is_written() {
                break;
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| (0..50).for_each(|_| step()))));
        });
        assert_eq!(db.get("count").unwrap(), Some(200_u64.to_le_bytes().to_vec()), "{name}");
    });
}

#[test]
fn a_decision_is_made_on_the_record() {
    each(|name, db| {
        let kept = db.modify("k", |record| {
            assert!(record.is_none(), "{name}");
            Mutation::Keep
        });
        assert!(matches!(kept.unwrap(), Outcome::Kept(_)), "{name}");
        let put = |value: &str| Mutation::Put { value: value.into(), expires_at: None };
        assert!(db.modify("k", |_| put("1")).unwrap().is_written(), "{name}");
        let appended = db.modify("k", |record| {
            let mut value = record.unwrap().value.to_vec();
            value.push(b'2');
            Mutation::Put { value, expires_at: None }
        });
        assert!(appended.unwrap().is_written(), "{name}");
        assert_eq!(value(db, "k").as_deref(), Some("12"), "{name}");
        assert!(db.modify("k", |_| Mutation::Delete).unwrap().is_written(), "{name}");
        assert_eq!(value(db, "k"), None, "{name}");
    });
}

#[test]
fn records_expire() {
    let expiry = |db: &Db, key: &str| db.get_with(key, |record| record.expires_at).unwrap();
    each(|name, db| {
        db.put_with_expiry("past", "v", UnixMillis(1)).unwrap();
        assert_eq!((value(db, "past"), db.iter().count()), (None, 0), "{name}");
        let before = db.now();
        db.put_with_ttl("later", "v", Duration::from_secs(1000)).unwrap();
        let until = expiry(db, "later").unwrap().unwrap();
        let bounds =
            before.after(Duration::from_secs(1000))..=db.now().after(Duration::from_secs(1000));
        assert!(bounds.contains(&until), "{name}: {until:?} is not in {bounds:?}");
        assert!(db.set_expiry("later", None).unwrap().is_written(), "{name}");
        assert_eq!(expiry(db, "later"), Some(None), "{name}");
        assert!(db.set_expiry("later", Some(until)).unwrap().is_written(), "{name}");
        assert_eq!(expiry(db, "later"), Some(Some(until)), "{name}");
        db.put("later", "w").unwrap();
        assert_eq!(expiry(db, "later"), Some(None), "{name}: a put has its own, or none");
        assert!(db.set_expiry("later", Some(UnixMillis(1))).unwrap().is_written(), "{name}");
        assert_eq!(value(db, "later"), None, "{name}");
        let missing = db.set_expiry("nobody", None).unwrap();
        assert!(matches!(missing, Outcome::Missing(_)), "{name}: {missing:?}");
        let options = WriteOptions { expires_at: Some(until), ..WriteOptions::default() };
        assert!(db.put_if_absent_with("new", "v", &options).unwrap().is_written(), "{name}");
        assert_eq!(expiry(db, "new"), Some(Some(until)), "{name}");
    });
}

#[test]
fn what_is_too_long_is_refused() {
    each(|name, db| {
        let limits = db.engine().limits();
        let (longest, longer) = (vec![7; limits.key_len_max], vec![7; limits.key_len_max + 1]);
        db.put(&longest, "v").unwrap();
        assert_eq!(db.get(&longest).unwrap().as_deref(), Some(&b"v"[..]), "{name}");
        let refused = [
            db.put(&longer, "v").map(drop),
            db.put_if_absent(&longer, "v").map(drop),
            db.compare_and_set(&longer, Expected::Absent, "v").map(drop),
            db.batch().put("beside", "v").put(&longer, "v").commit().map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            let is_so = matches!(error, Error::KeyTooLong { len, max } if len == max + 1);
            assert!(is_so && error.remedy() == Remedy::FixInput, "{name}: {error}");
        }
        assert_eq!(db.get(&longer).unwrap(), None, "{name}: no such record can be");
        let long = vec![0; limits.value_len_max + 1];
        let error = db.put("k", &long).unwrap_err();
        assert!(matches!(error, Error::ValueTooLong { .. }), "{name}: {error}");
        assert_eq!(db.len().unwrap(), 1, "{name}: nothing of it was made");
    });
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    each(|name, db| {
        let value = vec![1; 64 << 10];
        let error = (0_u32..2000).find_map(|number| db.put(number.to_be_bytes(), &value).err());
        let error = error.expect("more than there is room for");
        assert!(matches!(error, Error::NoSpace { .. }), "{name}: {error}");
        assert_eq!(error.remedy(), Remedy::FreeSpace, "{name}");
        assert_eq!(db.get(0_u32.to_be_bytes()).unwrap().as_ref(), Some(&value), "{name}");
        assert!(db.delete(0_u32.to_be_bytes()).unwrap(), "{name}: a delete has room");
    });
}
