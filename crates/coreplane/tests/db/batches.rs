//! Changes that are made together.

use crate::stores::each;
use coreplane::{Error, UnixMillis};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_batch_is_made_as_a_whole() {
    each(|name, db| {
        db.put("gone", "v").unwrap();
        let mut batch = db.batch();
        batch.put("a", "1").put("a", "2").delete("gone").delete("nobody");
        batch.put("b", "3").delete("b").put_with_expiry("past", "v", UnixMillis(1));
        assert_eq!((batch.len(), batch.bytes_len(), db.len().unwrap()), (7, 22, 1), "{name}");
        batch.commit().unwrap();
        assert!(batch.is_empty(), "{name}: it can be used again");
        let values = db.multi_get(&["a", "b", "gone", "past"]).unwrap();
        assert_eq!(values, [Some(b"2".to_vec()), None, None, None], "{name}");
        batch.put("c", "4").commit().unwrap();
        let values = db.multi_get(&["a", "c"]).unwrap();
        assert_eq!(values, [Some(b"2".to_vec()), Some(b"4".to_vec())], "{name}");
        batch.commit().unwrap();
        assert_eq!(db.multi_get(&["a", "c"]).unwrap(), values, "{name}: an empty one");
    });
}

#[test]
fn a_batch_that_is_too_large_stays_as_it_is() {
    each(|name, db| {
        let max = db.engine().limits().batch_len_max;
        if max > 1 << 20 {
            return;
        }
        let mut batch = db.batch();
        for number in 0..=max {
            batch.put(number.to_be_bytes(), "v");
        }
        let error = batch.commit().unwrap_err();
        assert!(
            matches!(error, Error::BatchTooLarge { len, .. } if len == max + 1),
            "{name}: {error}"
        );
        assert_eq!((batch.len(), db.len().unwrap()), (max + 1, 0), "{name}");
    });
}

#[test]
fn readers_see_all_of_a_batch_or_nothing() {
    each(|name, db| {
        let keys = ["left", "right"];
        db.batch().put(keys[0], "0").put(keys[1], "0").commit().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200 {
                    let value = format!("{number}");
                    db.batch().put(keys[0], &value).put(keys[1], &value).commit().unwrap();
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                let values = db.multi_get(&keys).unwrap();
                assert!(values[0] == values[1] && values[0].is_some(), "{name}: {values:?}");
            }
        });
        assert_eq!(db.get("left").unwrap().as_deref(), Some(&b"199"[..]), "{name}");
    });
}
