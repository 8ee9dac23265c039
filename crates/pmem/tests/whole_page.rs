//! A page that is written as a whole: its cost, and when it is durable.

use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};
use coreplane_pmem::{CreateOptions, MediaChoice, Pool, Space, WriteMode, epoch, order};
use std::sync::Arc;

const PAGE: usize = 4096;
const LINES: u64 = (PAGE / order::LINE) as u64;
const MODES: [WriteMode; 2] = [WriteMode::NonTemporal, WriteMode::Cached];

/// The contents of a page, with no two words equal.
fn content() -> Vec<u8> {
    (1..=PAGE as u64 / 8).flat_map(u64::to_le_bytes).collect()
}

/// Fills a free page with the parts, durably if `fences`.
fn write(space: &Arc<Space>, page: u32, parts: &[&[u8]], mode: WriteMode, fences: bool) {
    let mut writer = space.claim_log(page).unwrap();
    let at = match mode {
        WriteMode::NonTemporal => writer.append_nt(parts).unwrap(),
        WriteMode::Cached => {
            let at = writer.append(parts).unwrap();
            writer.flush_from(at);
            at
        }
    };
    assert_eq!((at, writer.remaining()), (space.start_of(page), 0));
    if fences {
        space.fence().unwrap();
        drop(writer.finish());
    }
}

#[test]
fn past_the_caches_a_page_costs_a_fence_and_no_flush() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = CreateOptions {
        size: 8 * PAGE as u64,
        media: MediaChoice::Emulated("none".to_owned()),
        page_size: PAGE as u32,
        kind: "whole".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(&directory.path().join("p"), &options).unwrap();
    let space = pool.space();
    if order::can_flush() {
        assert_eq!(space.fill_mode(), WriteMode::NonTemporal);
    }
    let content = content();
    for (page, mode) in (2..).zip(MODES) {
        let before = space.flushes_and_fences();
        write(space, page, &[&content], mode, true);
        let after = space.flushes_and_fences();
        let lines = if mode == WriteMode::Cached { LINES } else { 0 };
        assert_eq!((after.0 - before.0, after.1 - before.1), (lines, 1), "{mode:?}");
        assert_eq!(space.watermarks(page), Some((PAGE as u32, PAGE as u32)));
        let guard = epoch::pin();
        let bytes = space.bytes(&guard, space.start_of(page), PAGE as u64);
        assert_eq!(bytes, Some(content.as_slice()));
    }
}

/// One store directly from the source: contents in several parts, or ending within a word, are
/// assembled first, a KiB at a time.
#[test]
fn a_page_goes_past_the_caches_without_a_copy_in_between() {
    let content = content();
    let parts: [&[u8]; 2] = [&content[..9], &content[9..]];
    let whole: [&[u8]; 1] = [&content];
    let unaligned: [&[u8]; 1] = [&content[..PAGE - 3]];
    for (mode, parts, is_straight, lines) in [
        (WriteMode::NonTemporal, whole.as_slice(), true, 0),
        (WriteMode::NonTemporal, &parts, false, 0),
        (WriteMode::NonTemporal, &unaligned, false, 0),
        (WriteMode::Cached, &whole, true, LINES),
    ] {
        let sim = Sim::new(&SimOptions::default()).unwrap();
        let ((), cost) = sim.cost_of(|| write(sim.space(), 2, parts, mode, true));
        let is_one = cost.stores == 1;
        assert_eq!((is_one, cost.stored_bytes), (is_straight, PAGE as u64), "{mode:?}");
        assert_eq!((cost.flushed_lines.len() as u64, cost.fences), (lines, 1), "{mode:?}");
    }
}

#[test]
fn a_page_is_there_after_its_fence_and_not_before() {
    let content = content();
    for mode in MODES {
        for fences in [false, true] {
            let sim = Sim::new(&SimOptions::default()).unwrap();
            write(sim.space(), 2, &[&content], mode, fences);
            let left = |eviction| sim.crash(eviction).bytes()[2 * PAGE..3 * PAGE].to_vec();
            let least = if fences { content.clone() } else { vec![0; PAGE] };
            assert_eq!(left(Eviction::Nothing), least, "{mode:?}");
            assert_eq!(left(Eviction::Everything), content, "{mode:?}");
        }
    }
}
