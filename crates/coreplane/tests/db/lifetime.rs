//! Opening, closing, and the handles of a store.

use crate::stores::{each_config, in_memory};
use coreplane::{
    Completion, Db, EngineChoice, Error, MatrixShape, MediaChoice, Outcome, Remedy, StoreConfig,
    Visibility, WriteOptions,
};

#[test]
fn a_handle_goes_to_any_thread() {
    fn anywhere<T: Clone + Send + Sync + 'static>() {}
    anywhere::<Db>();
    fn sent<T: Send + 'static>() {}
    sent::<coreplane::Range>();
    sent::<coreplane::Iter>();
    sent::<coreplane::WriteBatch>();
}

#[test]
fn a_store_is_open_once() {
    each_config(|name, config| {
        let db = config.create_db().unwrap();
        db.put("k", "v").unwrap();
        let error = config.open_db().unwrap_err();
        assert!(matches!(error, Error::Locked(_)), "{name}: {error:?}");
        let (clone, mut iter) = (db.clone(), db.iter());
        drop(db);
        assert_eq!(clone.get("k").unwrap().as_deref(), Some(&b"v"[..]), "{name}");
        drop(clone);
        assert!(config.open_db().is_err(), "{name}: an iterator has it");
        assert!(iter.next().unwrap().is_ok(), "{name}");
        drop(iter);
        let db = Db::open(config.path()).unwrap();
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]), "{name}");
    });
}

#[test]
fn a_closed_store_refuses_writes() {
    each_config(|name, config| {
        let db = config.create_db().unwrap();
        db.put("k", "v").unwrap();
        let other = db.clone();
        db.close().unwrap();
        db.close().unwrap();
        other.close().unwrap();
        let mut batch = other.batch();
        batch.put("k", "w");
        let refused = [
            other.put("k", "w").map(drop),
            other.put_if_absent("new", "w").map(drop),
            other.compare_and_set("k", &b"v"[..], "w").map(drop),
            other.delete("k").map(drop),
            batch.commit().map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(matches!(error, Error::Closed), "{name}: {error:?}");
            assert_eq!(error.remedy(), Remedy::GiveUp, "{name}");
        }
        assert_eq!(batch.len(), 1, "{name}: it has what it had");
        // Reads may go on.
        match other.get("k") {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"v"[..]), "{name}"),
            Err(error) => assert!(matches!(error, Error::Closed), "{name}: {error:?}"),
        }
        match other.iter().next() {
            Some(Ok(entry)) => assert_eq!(entry, (b"k".to_vec(), b"v".to_vec()), "{name}"),
            Some(Err(error)) => assert!(matches!(error, Error::Closed), "{name}: {error:?}"),
            None => panic!("{name}: the record is there"),
        }
        drop((db, other, batch));
        let db = config.open_db().unwrap();
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]), "{name}");
        assert_eq!(db.len().unwrap(), 1, "{name}");
    });
}

#[test]
fn the_last_handle_closes_the_store() {
    let directory = in_memory();
    let config = StoreConfig::at(directory.path().join("pool")).engine(EngineChoice::Bptree);
    let db = config.size(16 << 20).create_db().unwrap();
    db.put("k", "v").unwrap();
    let iter = db.iter();
    drop(db);
    drop(iter);
    let db = Db::open(directory.path().join("pool")).unwrap();
    // Only a close leaves a checkpoint.
    assert_eq!(db.stats().figure("opened_with_checkpoint"), Some(1));
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_is_there_is_opened_and_nothing_else() {
    let directory = in_memory();
    let path = directory.path().join("pool");
    let error = Db::open(&path).unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixInput, "{error}");
    assert!(!path.exists());
    let config = StoreConfig::at(&path).engine(EngineChoice::Bptree).size(16 << 20);
    drop(config.open_or_create_db().unwrap());
    assert!(config.create_db().is_err(), "there is one");
    let other = Db::open_or_create(&path, EngineChoice::Scmkv).unwrap_err();
    assert!(matches!(other, Error::Unusable(_)), "{other}");
    assert!(Db::create(&path, EngineChoice::Bptree).is_err());
    assert!(Db::open_or_create(&path, EngineChoice::Bptree).unwrap().is_ordered());
    let junk = directory.path().join("junk");
    std::fs::write(&junk, vec![7; 1 << 20]).unwrap();
    let error = Db::open(&junk).unwrap_err();
    assert!(matches!(error, Error::NotAPool(_) | Error::Unusable(_)), "{error:?}");
}

#[test]
fn a_device_of_a_matrix_is_not_written_to_alone() {
    let directory = in_memory();
    let path = directory.path().join("matrix");
    let shape = MatrixShape { groups: 1, devices: 2 };
    let config = StoreConfig::at(&path).size(16 << 20).matrix(shape);
    config.create_db().unwrap().put("k", "v").unwrap();
    let device = path.join("g0d0");
    let error = Db::open(&device).unwrap_err();
    assert!(matches!(&error, Error::Unusable(what) if what.contains("matrix")), "{error}");
    // By its content: its file may be called otherwise.
    let elsewhere = directory.path().join("elsewhere");
    std::fs::rename(&device, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &device).unwrap();
    let error = Db::open(&elsewhere).unwrap_err();
    assert!(matches!(&error, Error::Unusable(what) if what.contains("matrix")), "{error}");
    let copy = StoreConfig::at(&device).copy(true).open_db().unwrap();
    assert_eq!(copy.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    drop(copy);
    let db = Db::open(&path).unwrap();
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(!db.store().matrix().unwrap().is_degraded());
}

/// A store whose fence is a sync, with a write that no caller has waited for.
fn early(engine: EngineChoice) -> (tempfile::TempDir, Db, Outcome) {
    let directory = in_memory();
    let config = StoreConfig::at(directory.path().join("pool")).engine(engine);
    let db = config.size(16 << 20).media(MediaChoice::File).create_db().unwrap();
    let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    let outcome = db.put_with("k", "v", &options).unwrap();
    assert!(
        !db.engine().is_durable(&outcome.ticket().into()).unwrap(),
        "nobody has asked for a sync"
    );
    (directory, db, outcome)
}

#[test]
fn what_is_shown_is_durable() {
    let looks: [fn(&Db); 6] = [
        |db| assert!(db.get("k").unwrap().is_some()),
        |db| assert!(db.contains_key("k").unwrap()),
        |db| assert!(db.multi_get(&["k"]).unwrap()[0].is_some()),
        |db| assert!(db.iter().next().unwrap().is_ok()),
        |db| assert_eq!(db.len().unwrap(), 1),
        |db| db.sync().unwrap(),
    ];
    for engine in ["scmkv", "bptree", "list", "cow-tree"] {
        for (number, look) in looks.iter().enumerate() {
            let (_directory, db, outcome) = early(engine.parse().unwrap());
            look(&db);
            let is_durable = db.engine().is_durable(&outcome.ticket().into()).unwrap();
            assert!(is_durable, "{engine}: look {number}");
        }
    }
    let (_directory, db, outcome) = early(EngineChoice::Bptree);
    assert!(db.prefix("k").unwrap().next_back().unwrap().is_ok());
    assert!(db.engine().is_durable(&outcome.ticket().into()).unwrap(), "from the end");
    let seen = db.engine().get_with(b"k", Visibility::Early, &mut |_| {}).unwrap();
    assert!(seen.ticket.is_durable());
}
