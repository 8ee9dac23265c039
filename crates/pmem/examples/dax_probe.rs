//! What this machine's file systems can do for a pool; `cargo xtask vm` runs it on an emulated
//! NVDIMM.
//!
//! ```text
//! dax_probe sync PATH      maps PATH with MAP_SYNC and leaves a pattern there
//! dax_probe verify PATH    finds that pattern again, after the power cut
//! dax_probe without PATH   PATH is not on DAX: MAP_SYNC must be refused
//! ```
#![allow(clippy::print_stdout, reason = "it prints what it found")]

use std::fs::{File, OpenOptions};
use std::process::ExitCode;
use std::ptr;

use coreplane_pmem::order::chosen;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const LEN: usize = 4 << 20;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [step, path] if step == "sync" => sync(path),
        [step, path] if step == "verify" => verify(path),
        [step, path] if step == "without" => without(path),
        _ => Err("usage: dax_probe sync|verify|without PATH".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dax_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(path: &str) -> Result<File, Box<dyn std::error::Error>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN as u64)?;
    Ok(file)
}

/// Maps the file with MAP_SYNC and shows the mapping to `visit`.
fn with_map_sync<T>(file: &File, visit: impl FnOnce(&mut [u8]) -> T) -> rustix::io::Result<T> {
    // SAFETY: a fresh mapping at an address of the kernel's choice, `LEN` bytes of a file that
    // was allocated to that length and that nobody shortens meanwhile.
    let start = unsafe {
        mmap(
            ptr::null_mut(),
            LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            file,
            0,
        )
    }?;
    // SAFETY: `LEN` bytes were just mapped for reading and writing, and only this slice is made
    // of them, which ends before the mapping does.
    let answer = visit(unsafe { std::slice::from_raw_parts_mut(start.cast(), LEN) });
    // SAFETY: the mapping made above, of which nothing is borrowed any more.
    unsafe { munmap(start, LEN) }?;
    Ok(answer)
}

fn pattern(index: usize) -> u8 {
    (index.wrapping_mul(31) >> 3) as u8
}

fn sync(path: &str) -> Outcome {
    let file = open(path)?;
    with_map_sync(&file, |bytes| {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = pattern(index);
        }
    })?;
    println!("map_sync=ok");
    println!("flush={}", chosen().name());
    Ok(())
}

fn verify(path: &str) -> Outcome {
    let file = open(path)?;
    let wrong = with_map_sync(&file, |bytes| {
        let wrong = |(index, byte): &(usize, &u8)| **byte != pattern(*index);
        bytes.iter().enumerate().filter(wrong).count()
    })?;
    if wrong > 0 {
        return Err(format!("{wrong} bytes of {path} were lost").into());
    }
    println!("pattern=kept");
    Ok(())
}

fn without(path: &str) -> Outcome {
    let file = open(path)?;
    match with_map_sync(&file, |_| ()) {
        Ok(()) => Err("MAP_SYNC was granted where there is no DAX".into()),
        Err(refusal) => {
            println!("map_sync_without_dax=refused ({refusal})");
            Ok(())
        }
    }
}
