//! Checks the support of this machine's file systems for pools; `cargo xtask vm` runs it on an
//! emulated NVDIMM.
//!
//! ```text
//! dax_probe sync PATH      maps PATH with MAP_SYNC and leaves a pattern there
//! dax_probe verify PATH    checks that pattern after the power cut
//! dax_probe pool PATH      PATH is on DAX: a pool there must be power-safe
//! dax_probe refuse PATH    PATH is on DAX: a pool on a plain mapping must be refused
//! dax_probe without PATH   PATH is not on DAX: MAP_SYNC and a DAX pool must be refused
//! ```
#![allow(clippy::print_stdout, reason = "it prints what it found")]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::ExitCode;
use std::ptr;

use coreplane_pmem::{CreateOptions, MediaChoice, Medium, Pool};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const LEN: usize = 4 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["sync", path] => sync(path),
        ["verify", path] => verify(path),
        ["pool", path] => pool(path),
        ["refuse", path] => refuse(path),
        ["without", path] => without(path),
        _ => Err("usage: dax_probe sync|verify|pool|refuse|without PATH".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dax_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(path: &str) -> Outcome<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN as u64)?;
    Ok(file)
}

/// Maps the file with MAP_SYNC and shows the mapping to `visit`.
fn with_map_sync<T>(file: &File, visit: impl FnOnce(&mut [u8]) -> T) -> rustix::io::Result<T> {
    // SAFETY: a fresh mapping at an address of the kernel's choice, `LEN` bytes of a file that was
    // allocated to that length and that is not truncated meanwhile.
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
    // SAFETY: the mapping made above, of which no borrow is left.
    unsafe { munmap(start, LEN) }?;
    Ok(answer)
}

fn pattern(index: usize) -> u8 {
    (index.wrapping_mul(31) >> 3) as u8
}

/// Flushes nothing: the emulator's host keeps every store, and the crash simulator finds missing
/// flushes. This tests that the blocks of the file survive the machine.
fn sync(path: &str) -> Outcome<()> {
    let file = open(path)?;
    with_map_sync(&file, |bytes| {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = pattern(index);
        }
    })?;
    println!("map_sync=ok");
    Ok(())
}

fn verify(path: &str) -> Outcome<()> {
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

/// Creates a new pool at `path` and prints its medium.
fn create(path: &str, media: MediaChoice) -> Outcome<Medium> {
    if Path::new(path).exists() {
        std::fs::remove_file(path)?;
    }
    let options = CreateOptions {
        size: LEN as u64,
        media,
        page_size: 64 << 10,
        kind: "probe".to_owned(),
        parameters: [0; 8],
    };
    Ok(Pool::create(Path::new(path), &options)?.medium())
}

fn pool(path: &str) -> Outcome<()> {
    let medium = create(path, MediaChoice::Auto)?;
    println!("medium={} persists_by={}", medium.name, medium.persists_by);
    if medium.name != "dax" || !medium.power_safe {
        return Err(format!("a pool on DAX is taken for {medium:?}").into());
    }
    println!("pool_power_safe=yes");
    Ok(())
}

/// `emulated` uses a plain mapping. On a DAX file system that looks like persistent memory, but
/// loses the file's blocks at a power cut.
fn refuse(path: &str) -> Outcome<()> {
    match create(path, MediaChoice::Emulated("none".to_owned())) {
        Ok(medium) if medium.power_safe => {
            Err(format!("a plain mapping on DAX is called power-safe: {medium:?}").into())
        }
        Ok(medium) => Err(format!("a plain mapping on DAX was not refused: {medium:?}").into()),
        Err(refusal) => {
            println!("plain_mapping=refused ({refusal})");
            Ok(())
        }
    }
}

fn without(path: &str) -> Outcome<()> {
    let file = open(path)?;
    let Err(refusal) = with_map_sync(&file, |_| ()) else {
        return Err("MAP_SYNC was granted where there is no DAX".into());
    };
    println!("map_sync_without_dax=refused ({refusal})");
    let Err(refusal) = create(path, MediaChoice::Dax) else {
        return Err("a DAX pool was created where there is no DAX".into());
    };
    println!("dax_pool_without_dax=refused ({refusal})");
    let medium = create(path, MediaChoice::Auto)?;
    println!("medium={} persists_by={}", medium.name, medium.persists_by);
    if medium.name != "file" {
        return Err(format!("a pool without DAX is taken for {medium:?}").into());
    }
    Ok(())
}
