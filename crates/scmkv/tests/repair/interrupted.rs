//! The power goes in the middle of a repair: the remains can be repaired again, with the same
//! result. Every fence of a repair is cut, on persistent memory and on a file.

use crate::home;
use crate::image::{Area, Image, images, options};
use coreplane_engine::{Engine, Repairable};
use coreplane_pmem::Space;
use coreplane_pmem::media::sim::{History, Model, Run, SimOptions, Subject, explore};
use coreplane_scmkv::Scmkv;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// The damaged pool is there.
    Install,
    Repair,
}

/// The repair of a damaged pool.
struct Repairing {
    bytes: Vec<u8>,
    /// The state after an undisturbed repair.
    expected: Map,
}

/// Writes `bytes` to a space of which no page is claimed, durable when it returns. The first page,
/// which says that it is a pool, comes last: a part of it is no pool. A pool most of which is
/// zeroes is repaired, but not to the same state if the repair is interrupted.
fn install(space: &Arc<Space>, bytes: &[u8]) {
    for (page, bytes) in bytes.chunks(PAGE).enumerate().rev() {
        let mut writer = space.claim_log(page as u32).expect("a free page");
        writer.append(&[bytes]).expect("it fits");
        writer.flush_from(space.start_of(page as u32));
        space.fence().expect("fence");
        drop(writer);
        assert!(space.retire(page as u32));
        // Readers of the other test's stores may be active.
        while space.reclaim().is_none() {
            std::thread::yield_now();
        }
    }
}

fn contents_of(store: &Scmkv) -> Result<Map, String> {
    let map = home::contents(store).map_err(|error| error.to_string())?;
    let report = store.verify(&mut |_| {}).map_err(|error| error.to_string())?;
    if report.is_sound() { Ok(map) } else { Err(format!("damages {:?}", report.damages)) }
}

impl Subject for Repairing {
    type Op = Op;
    type Store = Option<Scmkv>;
    type Contents = Option<Map>;

    fn work(&self, run: &Run<'_, Op>) {
        run.acknowledged(Op::Install, || install(run.space(), &self.bytes));
        run.acknowledged(Op::Repair, || {
            let repaired = Scmkv::simulated_repair(run.space().clone(), options(), &mut |_| {});
            let (store, _) = repaired.expect("repair");
            store.close().expect("close");
        });
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Scmkv>, String> {
        match Scmkv::simulated_repair(space.clone(), options(), &mut |_| {}) {
            Ok((store, _)) => Ok(Some(store)),
            // `check` distinguishes the cases: before all of it was installed there may be none.
            Err(_) => Ok(None),
        }
    }

    fn contents(&self, store: &Option<Scmkv>) -> Result<Option<Map>, String> {
        // A pool that was installed in part may be anything.
        Ok(store.as_ref().and_then(|store| contents_of(store).ok()))
    }

    fn check(&self, contents: &Option<Map>, history: &History<'_, Op>) -> Result<(), String> {
        let is_installed = history.acknowledged().any(|op| *op == Op::Install);
        match contents {
            _ if !is_installed => Ok(()),
            None => Err("it cannot be repaired, or is not sound then".to_owned()),
            Some(found) if *found == self.expected => Ok(()),
            Some(found) => {
                let lost = self.expected.keys().filter(|key| !found.contains_key(*key)).count();
                let wrong =
                    found.iter().filter(|(key, value)| self.expected.get(*key) != Some(value));
                Err(format!("{lost} lost, {:?} wrong", wrong.collect::<Vec<_>>()))
            }
        }
    }
}

/// The image, damaged by `damage` at a place in its records that `draw` picks.
fn damaged(image: &Image, draw: usize) -> Vec<u8> {
    let areas = image.areas();
    let heads: Vec<usize> = (0..areas.len()).filter(|at| areas[*at] == Area::RecordHead).collect();
    let mut bytes = image.bytes.clone();
    // A changed byte here, and a lost block there.
    bytes[heads[draw * 7919 % heads.len()]] ^= 0x41;
    let block = heads[(draw * 104_729 + 1000) % (heads.len() - 600)] / 256 * 256;
    bytes[block..block + 256].fill(0);
    bytes
}

fn undisturbed(bytes: &[u8]) -> Map {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("pool");
    std::fs::write(&path, bytes).expect("the copy");
    let media = coreplane_pmem::MediaChoice::Auto;
    let (store, repair) = Scmkv::repair(&path, media, options(), &mut |_| {}).expect("repair");
    assert!(!repair.findings.is_empty());
    contents_of(&store).expect("sound")
}

fn explore_all(images: &[Image], model: Model, draws: usize) {
    let mut count = 0;
    for image in images {
        for draw in 1..=draws {
            let bytes = damaged(image, draw);
            let expected = undisturbed(&bytes);
            let len = bytes.len() as u64;
            let options = SimOptions {
                len,
                max_len: len,
                page_size: PAGE as u32,
                model,
                seed: draw as u64,
                images_per_cut: 6,
                recovery_cut_in: 40,
                images_per_recovery_cut: 2,
                checkers: 2,
                ..SimOptions::default()
            };
            let report = explore(&options, &Repairing { bytes, expected });
            assert!(report.violations.is_empty(), "{}, {draw}: {report:#?}", image.name);
            count += report.images;
        }
    }
    eprintln!("{count} crash images, 0 violations");
    assert!(count > 100 * images.len() as u64, "only {count} images");
}

fn draws() -> usize {
    if std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full") { 60 } else { 12 }
}

#[test]
fn a_repair_can_be_interrupted_anywhere() {
    explore_all(&images(), Model::X86, draws());
}

#[test]
fn a_repair_can_be_interrupted_anywhere_where_a_fence_is_a_sync() {
    let in_dram = |image: &Image| image.name.contains("DRAM");
    let images: Vec<Image> = images().into_iter().filter(in_dram).collect();
    explore_all(&images, Model::File, draws());
}
