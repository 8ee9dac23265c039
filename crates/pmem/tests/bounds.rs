//! No offset gives a safe caller access to memory outside the space.

use coreplane_pmem::{PageWriter, Space, SpaceOptions, epoch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: u64 = 4096;
const LOG_PAGE: u32 = 3;

fn with_a_record() -> (Arc<Space>, PageWriter) {
    let options = SpaceOptions { page_size: PAGE as u32, reserve: 1 << 20, own_epochs: false };
    let space = Arc::new(Space::dram(1 << 16, &options).unwrap());
    let mut writer = space.claim_log(LOG_PAGE).unwrap();
    writer.append(&[&[7; 64]]).unwrap();
    writer.publish();
    (space, writer)
}

#[test]
fn an_offset_beyond_the_pages_names_no_bytes() {
    let (space, _writer) = with_a_record();
    let guard = epoch::pin();
    let offset = u64::from(LOG_PAGE) * PAGE;
    assert!(space.bytes(&guard, offset, 8).is_some());
    // One flipped bit; from bit 44 on the page has the same number in 32 bits.
    for bit in 12..64 {
        let bytes = space.bytes(&guard, offset ^ 1 << bit, 8);
        assert!(bytes.is_none(), "bit {bit}: {bytes:?}");
    }
}

#[test]
fn no_length_reaches_beyond_what_is_published() {
    let (space, _writer) = with_a_record();
    let guard = epoch::pin();
    let offset = u64::from(LOG_PAGE) * PAGE;
    for len in [65, PAGE, PAGE + 1, 1 << 32, u64::MAX - 8, u64::MAX] {
        assert!(space.bytes(&guard, offset + 8, len).is_none(), "{len} bytes");
    }
}

#[test]
fn a_page_shows_what_was_published_of_it_and_no_more() {
    let (space, mut writer) = with_a_record();
    let guard = epoch::pin();
    let page = space.page_bytes(&guard, LOG_PAGE).unwrap();
    assert_eq!((page.start(), page.published()), (u64::from(LOG_PAGE) * PAGE, 64));
    assert_eq!(page.get(8, 56), Some([7; 56].as_slice()));
    for (within, len) in [(8, 57), (0, 65), (64, 1), (u32::MAX, 8), (8, usize::MAX)] {
        assert_eq!(page.get(within, len), None, "{len} bytes at {within}");
    }
    writer.append(&[&[8; 64]]).unwrap();
    writer.publish();
    assert_eq!(page.get(64, 8), None, "it is as it was");
    assert_eq!(space.page_bytes(&guard, LOG_PAGE).unwrap().published(), 128);
    drop(writer);
    assert!(space.retire(LOG_PAGE));
    assert!(space.page_bytes(&guard, LOG_PAGE).is_none());
    assert!(space.page_bytes(&guard, LOG_PAGE + 1).is_none(), "free");
    assert!(space.page_bytes(&guard, u32::MAX).is_none());
    assert_eq!(page.get(8, 56), Some([7; 56].as_slice()), "the guard lives");
}

#[test]
fn a_page_that_is_nowhere_is_not_one_that_is_there() {
    let (space, _writer) = with_a_record();
    assert_eq!(space.page_of(u64::from(LOG_PAGE) * PAGE + 5), LOG_PAGE);
    for bit in 44..64 {
        let page = space.page_of((u64::from(LOG_PAGE) * PAGE) | (1 << bit));
        assert!(page >= space.pages(), "bit {bit}: page {page}");
    }
}

#[test]
fn a_flush_outside_the_pool_does_nothing() {
    use coreplane_pmem::{CreateOptions, MediaChoice, Pool};
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = CreateOptions {
        size: 1 << 16,
        media: MediaChoice::Auto,
        page_size: PAGE as u32,
        kind: "bounds".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(&directory.path().join("pool"), &options).unwrap();
    let space = pool.space();
    let before = space.flushes_and_fences();
    // Within the reserve, far beyond it, and where the end of the range overflows.
    for (offset, len) in
        [(1 << 16, 64), (1 << 16, 1), (1 << 50, 8), (u64::MAX - 7, 8), (8, u64::MAX)]
    {
        space.flush(offset, len);
    }
    assert_eq!(space.flushes_and_fences(), before);
    space.flush((1 << 16) - 8, 8);
    assert_eq!(space.flushes_and_fences().0, before.0 + 1);
}

#[test]
fn a_writer_goes_back_to_what_is_published_and_no_further() {
    let (space, mut writer) = with_a_record();
    let start = u64::from(LOG_PAGE) * PAGE;
    writer.append(&[&[8; 64]]).unwrap();
    assert!(writer.rewind(start + 64), "nothing of it is published");
    writer.append(&[&[9; 64]]).unwrap();
    assert!(!writer.rewind(start + 56) && !writer.rewind(start + 136));
    writer.publish_early();
    assert_eq!(space.watermarks(LOG_PAGE), Some((128, 64)), "what is seen early is not durable");
    assert!(!writer.rewind(start + 64));
}

#[test]
fn what_is_said_to_be_durable_publishes_nothing() {
    let (space, _writer) = with_a_record();
    assert!(space.adopt_log(LOG_PAGE + 1, PAGE as u32 - 1));
    space.mark_durable(LOG_PAGE + 1, u32::MAX);
    assert_eq!(space.watermarks(LOG_PAGE + 1), Some((PAGE as u32 - 1, PAGE as u32)));
    let pen = coreplane_pmem::Pen::new(&space);
    assert!(pen.take_up(LOG_PAGE + 1).is_err(), "a writer goes on at a word");
}

/// A store past the caches is not ordered before the store that publishes it, unless by a fence.
#[test]
fn what_is_published_does_not_change() {
    const ROUNDS: u32 = 20_000;
    let page_size = 1 << 20;
    let options = SpaceOptions { page_size, reserve: 1 << 21, own_epochs: false };
    let space = Arc::new(Space::dram(1 << 21, &options).unwrap());
    let mut writer = space.claim_log(1).unwrap();
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (space, next) = (&space, &next);
        let reader = scope.spawn(move || {
            let mut wrong = 0;
            for round in 0..ROUNDS {
                let offset = u64::from(page_size) + 8 * u64::from(round);
                loop {
                    let guard = epoch::pin();
                    if let Some(bytes) = space.bytes(&guard, offset, 8) {
                        wrong += u32::from(bytes != 7_u64.to_le_bytes());
                        break;
                    }
                    std::hint::spin_loop();
                }
                next.store(round + 1, Ordering::Release);
            }
            wrong
        });
        for round in 0..ROUNDS {
            writer.append_nt(&[&7_u64.to_le_bytes()]).unwrap();
            writer.publish();
            while next.load(Ordering::Acquire) <= round {
                std::hint::spin_loop();
            }
        }
        assert_eq!(reader.join().unwrap(), 0, "reads of {ROUNDS}");
    });
}

#[test]
fn a_writer_goes_back_to_whole_words() {
    let (_space, mut writer) = with_a_record();
    let offset = writer.append(&[&[7; 16]]).unwrap();
    assert!(!writer.rewind(offset + 4));
    assert!(writer.rewind(offset + 8) && writer.rewind(offset));
}
