//! The conformance suite over matrices of both engines.

mod scale;
mod shelf;

use coreplane_conformance::model::ManualClock;
use coreplane_conformance::{Fixture, Reopen, Restart, Scale};
use coreplane_engine::{StorageEngine, UnixMillis};
use coreplane_mkvs::{Ack, Matrix, Options, Prototype, ReadPath, Shape};
use scale::scaled;
use shelf::{Kind, Shelf};
use std::sync::Arc;

fn options(clock: &ManualClock, read_path: ReadPath) -> Options {
    Options { time: clock.as_clock(), read_path, ..Options::default() }
}

/// Closes (or, for a kill, just drops) the matrix and opens its devices again.
fn reopen(shelf: Arc<Shelf>, clock: ManualClock, read_path: ReadPath) -> Reopen {
    Box::new(move |engine: Arc<dyn StorageEngine>, how| {
        match how {
            Restart::Clean => engine.close().expect("close"),
            Restart::Kill => {}
            // The simulator tests power cuts.
            Restart::PowerCut => return None,
        }
        drop(engine);
        let opened = Matrix::open(&*shelf, &options(&clock, read_path), &|_| {}).expect("open");
        Some(Arc::new(opened) as Arc<dyn StorageEngine>)
    })
}

/// A scale for smaller pools; the whole of it at full scale.
fn reduced(scale: Scale) -> Scale {
    scaled(scale.small(), scale)
}

/// A matrix of devices of `size` bytes. With several groups a device has a part of the records alone, and its pool may
/// be smaller than the scale says. The suite's time is that of making the pages of all these pools: in a quick test one
/// matrix alone has the usual scale.
fn fixture(kind: Kind, shape: Shape, size: u64, scale: Scale) -> Fixture {
    by_path(kind, shape, size, scale, ReadPath::Auto)
}

fn by_path(kind: Kind, shape: Shape, size: u64, scale: Scale, read_path: ReadPath) -> Fixture {
    on_shelf(Shelf::new(kind, size), shape, scale, read_path)
}

fn on_shelf(shelf: Shelf, shape: Shape, scale: Scale, read_path: ReadPath) -> Fixture {
    let clock = ManualClock::starting_at(UnixMillis(1_800_000_000_000));
    let shelf = Arc::new(shelf);
    let matrix = Matrix::create(&*shelf, shape, &options(&clock, read_path)).expect("create");
    Fixture::new(Arc::new(matrix))
        .with_clock(clock.clone())
        .with_reopen(reopen(Arc::clone(&shelf), clock, read_path))
        .with_scale(scale)
        .keeping(Box::new(shelf))
}

mod two_by_two_of_bptree {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape::default();
        fixture(Kind::Bptree, shape, 24 << 20, Scale::USUAL)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod two_by_two_of_scmkv {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape::default();
        // Of 64 MiB each device has two logs.
        let size = scaled(12 << 20, 64 << 20);
        fixture(Kind::Scmkv, shape, size, reduced(Scale::USUAL))
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod three_by_two_that_waits_for_the_first {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { groups: 3, ack: Ack::First, ..Shape::default() };
        fixture(Kind::Bptree, shape, scaled(4, 16) << 20, reduced(Scale::USUAL))
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod three_by_two_of_scmkv {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { groups: 3, ..Shape::default() };
        fixture(Kind::Scmkv, shape, scaled(8, 24) << 20, reduced(Scale::SYNCED))
    }
    coreplane_conformance::conformance_suite!(fresh);
}

/// Every fence is a sync: with a disk's syncs at full scale.
mod two_by_two_on_files {
    use super::*;

    fn fresh() -> Fixture {
        let shelf = Shelf::on_files(Kind::Bptree, scaled(6, 24) << 20, scaled(false, true));
        on_shelf(shelf, Shape::default(), reduced(Scale::SYNCED), ReadPath::Auto)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

/// Devices of different engines, one of each in every group.
mod two_by_two_of_both {
    use super::*;

    fn fresh() -> Fixture {
        let shelf = Shelf::mixed(scaled(8, 24) << 20);
        on_shelf(shelf, Shape::default(), reduced(Scale::SYNCED), ReadPath::Auto)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod one_by_three_that_waits_for_most {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { groups: 1, devices: 3, ack: Ack::Majority, ..Shape::default() };
        fixture(Kind::Bptree, shape, scaled(6, 32) << 20, reduced(Scale::USUAL))
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod tiny {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape::default();
        fixture(Kind::Bptree, shape, 1 << 20, Scale::TINY).filled_by(2 << 20)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod two_by_two_that_competes {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { ack: Ack::First, ..Shape::default() };
        by_path(Kind::Bptree, shape, 4 << 20, Scale::TINY, ReadPath::Rings)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod two_by_two_without_competition {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { prototype: Prototype::Gekv, ..Shape::default() };
        fixture(Kind::Bptree, shape, 4 << 20, Scale::TINY)
    }
    coreplane_conformance::conformance_suite!(fresh);
}

mod one_device {
    use super::*;

    fn fresh() -> Fixture {
        let shape = Shape { prototype: Prototype::Ekv, ..Shape::default() };
        fixture(Kind::Bptree, shape, 4 << 20, Scale::TINY)
    }
    coreplane_conformance::conformance_suite!(fresh);
}
