//! ext4 on `coreplane nbd serve`, which is killed while files are written.
//!
//! One writer makes files, another rewrites the blocks of one file, both with `O_DSYNC`: completed writes are there
//! after the kill, and after a replay of the journal `e2fsck -fn` finds no fault.
//!
//! The test needs root, loop devices, FUSE, nbdfuse and e2fsprogs. If they are not available, `cargo xtask test`
//! reports them and names them in `COREPLANE_CLIENTS_LEFT_OUT`; without that this fails.
//!
//! Four rounds of each disk, or as many as `COREPLANE_KILL_ROUNDS` says; twenty at `COREPLANE_TEST_SCALE=full`.

mod disk;
mod mount;
mod pool;
mod session;

use disk::{Disk, lack, rounds};
use mount::{Mount, bytes_of};
use pool::Place;
use session::{Outcome, Served};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The value of Linux.
const O_DSYNC: i32 = 0o10000;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

fn mix(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn file_len(number: u64) -> usize {
    match mix(number) % 16 {
        0 => 100_000 + (mix(number) >> 8) as usize % 300_000,
        _ => 1 + (mix(number) >> 8) as usize % 12_000,
    }
}

/// The acknowledged writes.
#[derive(Default)]
struct Written {
    /// The number of the last file that was begun, and the numbers of the complete ones.
    last: u64,
    files: Vec<u64>,
    /// The number of the last write of a block that was begun, and for each block the numbers of its last
    /// acknowledged write and of the write after it.
    writes: u64,
    blocks: Vec<[u64; 2]>,
}

/// Creates files until the device is gone.
fn make_files(at: &Path, written: &mut Written, answers: &AtomicU64) -> io::Result<()> {
    loop {
        written.last += 1;
        let number = written.last;
        let path = at.join(format!("file-{number}"));
        let mut file =
            File::options().create_new(true).write(true).custom_flags(O_DSYNC).open(path)?;
        for piece in bytes_of(number, file_len(number)).chunks(50_000) {
            file.write_all(piece)?;
        }
        written.files.push(number);
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Rewrites blocks of one file until the device is gone.
fn write_blocks(at: &Path, written: &mut Written, answers: &AtomicU64) -> io::Result<()> {
    let file = File::options().write(true).custom_flags(O_DSYNC).open(at.join("blocks"))?;
    loop {
        written.writes += 1;
        let number = written.writes;
        let block = mix(number) % BLOCKS;
        written.blocks[block as usize][1] = number;
        file.write_all_at(&bytes_of(number, BLOCK), block * BLOCK as u64)?;
        written.blocks[block as usize] = [number; 2];
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares the files with the acknowledgements, and removes them; their number.
fn check(at: &Path, [files, blocks]: &mut [Written; 2]) -> Outcome<usize> {
    let count = files.files.len();
    for number in files.files.drain(..) {
        let found = std::fs::read(at.join(format!("file-{number}")))
            .map_err(|error| format!("file {number}: {error}"))?;
        if found != bytes_of(number, file_len(number)) {
            let len = found.len();
            return Err(format!("file {number} has other bytes ({len} of them)").into());
        }
    }
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("file-") {
            std::fs::remove_file(entry.path())?;
        }
    }
    let found = std::fs::read(at.join("blocks"))?;
    for (block, (found, numbers)) in found.chunks(BLOCK).zip(&mut blocks.blocks).enumerate() {
        let holds = numbers.iter().copied().find(|number| bytes_of(*number, BLOCK) == found);
        let holds = holds.ok_or_else(|| format!("block {block}: none of {numbers:?}"))?;
        *numbers = [holds; 2];
    }
    Ok(count)
}

/// Writes until so many files and blocks were acknowledged, and kills the server; their number.
fn kill_in_mid_write(
    served: Served,
    mut mount: Mount,
    [files, blocks]: &mut [Written; 2],
    until: u64,
) -> Outcome<u64> {
    let (answers, at) = (AtomicU64::new(0), mount.at.clone());
    std::thread::scope(|scope| {
        let writers = [
            scope.spawn(|| make_files(&at, files, &answers)),
            scope.spawn(|| write_blocks(&at, blocks, &answers)),
        ];
        let deadline = Instant::now() + Duration::from_mins(5);
        let is_well = || writers.iter().all(|writer| !writer.is_finished());
        while answers.load(Ordering::Relaxed) < until && Instant::now() < deadline && is_well() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let was_well = is_well();
        let is_late = answers.load(Ordering::Relaxed) < until;
        let killed = served.kill();
        mount.cut()?;
        for writer in writers {
            let ended = writer.join().map_err(|_| "a writer has panicked")?;
            let why = ended.err().ok_or("writers go on until the device fails")?;
            assert!(was_well, "{why}");
        }
        assert!(!is_late, "the writers do not get on");
        killed
    })?;
    Ok(answers.into_inner())
}

/// Makes a file system with a file of blocks, which exists through all rounds.
fn made(disk: &Disk) -> Outcome<[Written; 2]> {
    let served = disk.serve()?;
    let mut mount = Mount::attach(disk)?;
    mount.make()?;
    let at = mount.mount()?;
    let mut file = File::options()
        .create_new(true)
        .write(true)
        .custom_flags(O_DSYNC)
        .open(at.join("blocks"))?;
    for _ in 0..BLOCKS {
        file.write_all(&bytes_of(0, BLOCK))?;
    }
    drop(file);
    mount.detach()?;
    disk.finish(served)?;
    let blocks = vec![[0; 2]; BLOCKS as usize];
    Ok([Written::default(), Written { blocks, ..Written::default() }])
}

fn killed_under_ext4(name: &str, disk: &Disk) -> Outcome<()> {
    if lack(&mount::NEEDED)? {
        return Ok(());
    }
    let mut written = made(disk)?;
    let rounds = rounds(4, 20)?;
    let (mut files, mut answers) = (0, 0);
    for round in 0..rounds {
        let served = disk.serve()?;
        let mut mount = Mount::attach(disk)?;
        mount.check().map_err(|error| format!("{name}, round {round}: {error}"))?;
        let at = mount.mount()?;
        let found = check(at, &mut written);
        files += found.map_err(|error| format!("{name}, round {round}: {error}"))?;
        answers += kill_in_mid_write(served, mount, &mut written, 100 + mix(round) % 300)?;
    }
    let served = disk.serve()?;
    let mut mount = Mount::attach(disk)?;
    mount.check().map_err(|error| format!("{name}, at last: {error}"))?;
    files += check(mount.mount()?, &mut written)?;
    mount.detach()?;
    disk.finish(served)?;
    writeln!(io::stdout(), "\n{name}: {rounds} kills, {answers} writes, {files} files")?;
    Ok(())
}

#[test]
fn ext4_on_memory_keeps_what_was_synced() -> Outcome<()> {
    let disk = Disk::new(Place::in_memory()?, &["--size", "64MiB"])?;
    killed_under_ext4("memory", &disk)
}

#[test]
fn ext4_on_a_file_keeps_what_was_synced() -> Outcome<()> {
    let arguments = ["--size", "64MiB", "--queues", "2", "--media", "file"];
    let disk = Disk::new(Place::on_disk()?, &arguments)?;
    killed_under_ext4("a file", &disk)
}

#[test]
fn a_file_that_is_lost_would_be_found() -> Outcome<()> {
    if lack(&mount::NEEDED)? {
        return Ok(());
    }
    let disk = Disk::new(Place::in_memory()?, &["--size", "64MiB", "--queues", "1"])?;
    let mut written = made(&disk)?;
    let earlier = disk.pool.bytes()?;
    let served = disk.serve()?;
    let mut mount = Mount::attach(&disk)?;
    mount.mount()?;
    kill_in_mid_write(served, mount, &mut written, 50)?;
    disk.pool.put_bytes(&earlier)?;
    let served = disk.serve()?;
    let mut mount = Mount::attach(&disk)?;
    mount.check()?;
    assert!(check(mount.mount()?, &mut written).is_err(), "all files are gone");
    mount.detach()?;
    disk.finish(served)
}
