//! Power cuts beside puts with sequences that the callers give, in any order: no record that is
//! older than its key's comes to light, at no cut.

use crate::scale::scaled;
use coreplane_engine::{Engine, Outcome, WriteOptions};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Run, SimOptions, Subject, explore};
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A put of a key, with a sequence, which is its value.
type Put = (u8, u64);

struct Given {
    seed: u64,
    placement: Placement,
}

impl Given {
    fn options() -> Options {
        Options { background: false, ..Options::default() }
    }

    /// Sequences about a rising line: some above all of their group, some above their key's alone,
    /// some below.
    fn puts(&self) -> Vec<Put> {
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        (0..40).map(|at| (draw(4) as u8, (1 << 40) + 4 * at + draw(30))).collect()
    }
}

impl Subject for Given {
    type Op = Put;
    type Store = Option<Scmkv>;
    type Contents = BTreeMap<u8, u64>;

    fn work(&self, run: &Run<'_, Put>) {
        let space = run.space().clone();
        let created =
            Scmkv::simulated_create(space, Geometry::TINY, self.placement, Self::options());
        let store = created.expect("create");
        let mut newest = BTreeMap::new();
        for (key, sequence) in self.puts() {
            let newest = newest.entry(key).or_insert(0);
            let write = WriteOptions { sequence: Some(sequence), ..WriteOptions::default() };
            let call = run.began((key, sequence));
            match store.put(&[key], &sequence.to_le_bytes(), &write).expect("put") {
                Outcome::Written(_) => assert!(sequence > *newest, "{sequence} is older"),
                Outcome::NotNewer(there, _) => {
                    assert!(there == *newest && sequence <= there, "{sequence} is newer");
                }
                other => panic!("{other:?}"),
            }
            call.returned();
            *newest = sequence.max(*newest);
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        // Not a pool yet: its creation was cut.
        Ok(Scmkv::simulated_open(space.clone(), Self::options()).ok())
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<BTreeMap<u8, u64>, String> {
        let mut found = BTreeMap::new();
        for (store, key) in store.iter().flat_map(|store| (0..4).map(move |key| (store, key))) {
            if let Some(value) = store.get(&[key]).map_err(|error| error.to_string())? {
                let value = value.try_into().map_err(|_| format!("the value of {key}"))?;
                found.insert(key, u64::from_le_bytes(value));
            }
        }
        Ok(found)
    }

    fn check(
        &self,
        contents: &BTreeMap<u8, u64>,
        history: &History<'_, Put>,
    ) -> Result<(), String> {
        for key in 0..4 {
            let of_key = |put: &&Put| put.0 == key;
            let made = history.acknowledged().filter(of_key).map(|put| put.1).max();
            let begun = history.in_flight().filter(of_key).map(|put| put.1).max().max(made);
            let found = contents.get(&key).copied();
            if found != made && found != begun {
                return Err(format!("{key} is {found:?}, and {made:?} or {begun:?} was put"));
            }
        }
        Ok(())
    }
}

#[test]
fn what_is_older_never_comes_to_light() {
    let mut images = 0;
    for seed in 0..scaled(6, 60) {
        let placement = if seed % 2 == 0 { Placement::Pool } else { Placement::Dram };
        let options =
            SimOptions { seed, len: 64 << 10, max_len: 64 << 10, ..SimOptions::default() };
        let report = explore(&options, &Given { seed, placement });
        assert!(report.violations.is_empty(), "seed {seed}: {report}");
        images += report.images;
    }
    assert!(images > 1000, "only {images} images");
}
