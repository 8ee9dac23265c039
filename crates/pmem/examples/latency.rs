//! Compares the modelled and the measured times of the emulated media on this machine.
//!
//! ```text
//! cargo run --release -p coreplane-pmem --example latency [PROFILE…]
//! ```
//!
//! A profile may have parameters, as in `optane,wait=yield`; without arguments all profiles are
//! measured. It prints a line per profile and operation: modelled and measured nanoseconds (medians of
//! an operation for latencies, means for streams). A medium that is faster than this machine's own
//! DRAM and instructions (the line `none`) cannot be emulated, and the output shows that.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use coreplane_pmem::media::Profile;
use coreplane_pmem::pool::PoolError;
use coreplane_pmem::{CreateOptions, MediaChoice, Pool, Space, epoch};
use std::path::Path;
use std::time::Instant;

const PAGE: u64 = 2 << 20;
const PAGES: u64 = 32;
const OPERATIONS: u64 = 20_000;
/// Lines to choose from; a power of two, so that the choice takes no time.
const PLACES: u64 = (PAGES / 2) * PAGE / 64;
/// Bytes of a stream between two fences.
const STEP: u64 = 64 << 10;

fn main() -> Result<(), PoolError> {
    println!("{:<22} {:<28} {:>9} {:>9} {:>7}", "profile", "operation", "promised", "measured", "");
    let mut chosen: Vec<String> = std::env::args().skip(1).collect();
    if chosen.is_empty() {
        chosen.extend(Profile::names().map(str::to_owned));
    }
    for name in chosen {
        let profile = match name.parse::<Profile>() {
            Ok(profile) => profile,
            Err(message) => {
                println!("{name}: {message}");
                continue;
            }
        };
        let path = format!("/dev/shm/coreplane-latency-{}", std::process::id());
        let measured = measure(&profile, Path::new(&path));
        let _removed = std::fs::remove_file(&path).is_ok();
        measured?;
    }
    Ok(())
}

fn measure(profile: &Profile, path: &Path) -> Result<(), PoolError> {
    let options = CreateOptions {
        size: PAGE * PAGES,
        media: MediaChoice::Emulated(profile.to_string()),
        page_size: PAGE as u32,
        kind: "latency".to_owned(),
        parameters: [0; 8],
    };
    let pool = Pool::create(path, &options)?;
    let space = pool.space();
    for page in 1..PAGES as u32 {
        let filled = space.claim_log(page).and_then(|mut writer| {
            writer.append(&[&vec![1; PAGE as usize]])?;
            writer.publish();
            Some(())
        });
        assert!(filled.is_some(), "a fresh page takes a page of bytes");
    }
    let transfer = |gbps: f64, bytes: f64| bytes / gbps;
    let persist = profile.write_ns as f64 + transfer(profile.write_gbps, 256.0);
    show(
        profile,
        "persist a random line",
        persist,
        random(64, |offset| space.persist(offset, 64).is_ok()),
    );
    let guard = epoch::pin();
    let read = profile.read_ns as f64 + transfer(profile.read_gbps, 64.0);
    show(
        profile,
        "read a random line",
        read,
        random(64, |offset| {
            space.bytes(&guard, offset, 64).is_some_and(|bytes| std::hint::black_box(bytes[0]) == 1)
        }),
    );
    let stream = transfer(profile.write_gbps * f64::from(profile.channels), 1024.0)
        + profile.write_ns as f64 / (STEP >> 10) as f64;
    show(profile, "stream, per KiB written", stream, streamed(space));
    Ok(())
}

fn show(profile: &Profile, operation: &str, promised: f64, measured: f64) {
    let off = if promised > 0.0 {
        format!("{:+.0} %", 100.0 * (measured / promised - 1.0))
    } else {
        String::new()
    };
    println!(
        "{:<22} {operation:<28} {promised:>9.0} {measured:>9.0} {off:>7}",
        profile.to_string()
    );
}

/// The time of `operation` at random places, in nanoseconds: the median of batches, so that
/// neither the clock nor a preemption counts.
fn random(len: u64, operation: impl Fn(u64) -> bool) -> f64 {
    const BATCH: u64 = 32;
    let mut state = 1_u64;
    let mut times: Vec<u64> = (0..OPERATIONS / BATCH)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let offset = PAGE + (state >> 20) % (PLACES * 64 / len) * len;
                assert!(operation(offset), "the operation at {offset} failed");
            }
            u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] as f64 / BATCH as f64
}

/// Nanoseconds per KiB of a long write in steps of 64 KiB, each with its fence.
fn streamed(space: &Space) -> f64 {
    let start = Instant::now();
    let mut written = 0;
    for offset in (PAGE..space.len()).step_by(STEP as usize) {
        assert!(space.persist(offset, STEP).is_ok(), "a fence failed");
        written += STEP;
    }
    start.elapsed().as_nanos() as f64 / (written / 1024) as f64
}
