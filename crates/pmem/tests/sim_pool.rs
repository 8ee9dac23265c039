//! The pool itself under power cuts: creation, the root, growth.

use coreplane_pmem::media::sim::{
    Eviction, Fault, History, Model, Run, Sim, SimOptions, Subject, explore,
};
use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, Durable, MediaChoice, Pool, Space};
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
enum Op {
    Create,
    SetRoot(u64),
    Grow(u64),
}

/// Creates a pool with pages of this many bytes, sets its root, grows it.
struct Pools(u64);

/// The initial bytes of a pool.
const LEN: u64 = 64 << 10;

fn root(value: u64) -> [u64; ROOT_WORDS] {
    std::array::from_fn(|at| value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 * 7))
}

fn create_options() -> CreateOptions {
    CreateOptions {
        size: 0,
        media: MediaChoice::Auto,
        page_size: 0,
        kind: "test".to_owned(),
        parameters: [3; 8],
    }
}

/// The root and the number of pages that it states; none if there is no pool.
type Contents = Option<([u64; ROOT_WORDS], u64)>;

impl Subject for Pools {
    type Op = Op;
    type Store = Option<Pool>;
    type Contents = Contents;

    fn work(&self, run: &Run<'_, Op>) {
        let pool = run.acknowledged(Op::Create, || {
            Pool::simulated_create(run.space().clone(), &create_options()).unwrap()
        });
        for value in 1..6 {
            run.acknowledged(Op::SetRoot(value), || pool.set_root(root(value)).unwrap());
            let pages = LEN / self.0 + value;
            run.acknowledged(Op::Grow(pages), || pool.grow(pages * self.0).unwrap());
        }
        let call = run.began(Op::Grow(1000));
        pool.grow(1000 * self.0).unwrap_err();
        call.refused();
        run.acknowledged(Op::SetRoot(9), || pool.set_root(root(9)).unwrap());
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Option<Pool>, String> {
        match Pool::simulated_open(space.clone()) {
            Ok(pool) => Ok(Some(pool)),
            Err(coreplane_pmem::PoolError::NotAPool { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn contents(&self, pool: &Option<Pool>) -> Result<Contents, String> {
        let Some(pool) = pool else {
            return Ok(None);
        };
        pool.check().map_err(|error| error.to_string())?;
        if pool.parameters() != [3; 8] || pool.kind() != "test" {
            return Err("the static part is wrong".to_owned());
        }
        // The space may be longer, if the power was cut before the root recorded the growth.
        Ok(Some((pool.root(), pool.size() / self.0)))
    }

    fn check(&self, contents: &Contents, history: &History<'_, Op>) -> Result<(), String> {
        let mut least = None;
        let apply = |to: &mut Contents, op: &Op| {
            let (words, pages) = to.unwrap_or(([0; ROOT_WORDS], LEN / self.0));
            *to = Some(match op {
                Op::Create => (words, pages),
                Op::SetRoot(value) => (root(*value), pages),
                Op::Grow(grown) => (words, *grown),
            });
        };
        history.acknowledged().for_each(|op| apply(&mut least, op));
        let mut most = least;
        history.in_flight().for_each(|op| apply(&mut most, op));
        if [least, most].contains(contents) {
            return Ok(());
        }
        Err(format!("{contents:?} is neither {least:?} nor {most:?}"))
    }
}

fn options(model: Model, page_size: u64) -> SimOptions {
    SimOptions {
        model,
        len: LEN,
        page_size: page_size as u32,
        max_len: 128 << 10,
        images_per_cut: 256,
        recovery_cut_in: 4,
        images_per_recovery_cut: 32,
        ..SimOptions::default()
    }
}

#[test]
fn a_pool_survives_every_cut() {
    for model in [Model::X86, Model::File] {
        for seed in 1..4 {
            let report = explore(&SimOptions { seed, ..options(model, 4096) }, &Pools(4096));
            assert!(report.is_clean(), "{report}");
            assert!(report.images > 300, "{report}");
        }
    }
}

/// The header fills one page, or two: a power cut may come between the writes to the two.
#[test]
fn a_pool_survives_every_cut_with_pages_no_larger_than_its_header() {
    for model in [Model::X86, Model::File] {
        for page_size in [2048, 1024] {
            let report = explore(&options(model, page_size), &Pools(page_size));
            assert!(report.is_clean(), "{page_size}: {report}");
            assert!(report.images > 300, "{page_size}: {report}");
        }
    }
}

#[test]
fn without_flushes_or_fences_it_does_not() {
    for model in [Model::X86, Model::File] {
        for fault in [Fault::DropEveryFlush, Fault::DropEveryFence] {
            let report =
                explore(&SimOptions { fault: Some(fault), ..options(model, 4096) }, &Pools(4096));
            assert!(!report.violations.is_empty(), "{report}");
        }
    }
}

/// A process is killed in the middle of a change of the root, whose state it has not flushed; the next one completes
/// the change, and the power is cut meanwhile.
#[test]
fn a_root_of_a_killed_process_is_completed_so_that_a_cut_damages_nothing() {
    /// The word that tells whether the root is written, and its generation.
    const STATE: u64 = 8 * 192;
    for model in [Model::X86, Model::File] {
        let sim = Sim::new(&options(model, 4096)).unwrap();
        let pool = Pool::simulated_create(sim.space().clone(), &create_options()).unwrap();
        let before = sim.events();
        pool.set_root([0; ROOT_WORDS]).unwrap();
        assert_eq!(sim.fences_since(before), 4);
        let word = sim.space().word::<Durable>(STATE).unwrap();
        // As it is with a greater generation, while that is written.
        let low = ((word.load() & u64::from(u32::MAX)) + 2) | 1;
        let uuid = crc32c::crc32c(&pool.uuid());
        word.store(low | u64::from(crc32c::crc32c_append(uuid, &low.to_le_bytes())) << 32);
        drop(pool);
        let sim = sim.killed().unwrap();
        let before = sim.events();
        let pool = Pool::simulated_open(sim.space().clone()).unwrap();
        assert_eq!(pool.root(), [0; ROOT_WORDS]);
        for fences in 0..=4 {
            for image in [Eviction::Nothing, Eviction::Everything] {
                let cut = sim.crash_at_fence(before, fences, image).reopen().unwrap();
                let again = Pool::simulated_open(cut.space().clone());
                let root = again.map(|pool| pool.root());
                assert_eq!(root.expect("the pool"), [0; ROOT_WORDS], "{model:?} {fences}");
            }
        }
    }
}
