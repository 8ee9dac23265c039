//! Writers beside the cleaner, which read at once what they have written: the last writer wins.

use crate::home::{Home, New, write};
use coreplane_engine::{Engine, Error};
use coreplane_scmkv::Placement;
use std::sync::atomic::{AtomicBool, Ordering};

const KEYS: usize = 40;
const ROUNDS: u32 = 300;

fn newest_beside_the_cleaner(placement: Placement) {
    let home = Home::in_memory();
    let store = home.create(New::tiny(48).placed(placement));
    let is_over = AtomicBool::new(false);
    let cleaned = std::thread::scope(|scope| {
        let (store, is_over) = (&store, &is_over);
        let writers: Vec<_> = (0..2_u8)
            .map(|thread| {
                scope.spawn(move || {
                    let mut last = [0_u32; KEYS];
                    for round in 1..=ROUNDS {
                        for (key, last) in last.iter_mut().enumerate() {
                            let name = [thread, key as u8];
                            // The record stays there for a while: some are copied meanwhile.
                            let found = store.get(&name).expect("get");
                            let found = found.map(|value| value[..4].try_into().expect("a value"));
                            let found = found.map_or(0, u32::from_le_bytes);
                            assert_eq!(found, *last, "key {key} of {thread} in round {round}");
                            let mut value = [7; 90];
                            value[..4].copy_from_slice(&round.to_le_bytes());
                            while let Err(error) = store.put(&name, &value, &write()) {
                                assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                            }
                            *last = round;
                        }
                    }
                })
            })
            .collect();
        let cleaner = scope.spawn(move || {
            let mut cleaned = 0;
            while !is_over.load(Ordering::Relaxed) {
                match store.clean() {
                    Ok(is_cleaned) => cleaned += u32::from(is_cleaned),
                    Err(Error::NoSpace { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            cleaned
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|it| it.expect("a writer"));
        cleaner.join().expect("the cleaner")
    });
    // Without those that a writer cleans when it needs space.
    assert!(cleaned > 0, "nothing was cleaned beside the writers");
}

#[test]
fn the_cleaner_undoes_no_write_with_the_index_in_the_pool() {
    newest_beside_the_cleaner(Placement::Pool);
}

#[test]
fn the_cleaner_undoes_no_write_with_the_index_in_dram() {
    newest_beside_the_cleaner(Placement::Dram);
}
