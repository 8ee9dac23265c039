//! Allocates blocks and faults in pages ahead of their use, so that a full file system is an error
//! here and never a SIGBUS later.

use super::error::{IoContext, PoolError};
use super::sync_failure;
use crate::dram::background;
use crate::media::Behaviour;
use crate::media::file::memory_filesystem;
use crate::space::{Access, Space, len_max, write_at};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Creates the file, which must not be there.
pub(super) fn create_file(path: &Path) -> Result<File, PoolError> {
    match File::options().read(true).write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(PoolError::Exists { path: path.to_owned() })
        }
        other => other.io(format!("create {}", path.display())),
    }
}

pub(super) fn file_len(file: &File, path: &Path) -> Result<u64, PoolError> {
    Ok(file.metadata().io(format!("stat {}", path.display()))?.len())
}

/// Allocates the blocks of `start .. end`, where nothing was written yet, and makes the file that long.
pub(super) fn blocks(file: &File, path: &Path, start: u64, end: u64) -> Result<(), PoolError> {
    let to = len_max();
    if end > to {
        let what = "bytes of a file, by the limit of this process";
        return Err(PoolError::OutOfRange { what, given: end, from: start, to });
    }
    match fallocate(file, path, start, end)? {
        Allocated::Done => Ok(()),
        // Writing zeroes allocates blocks, too.
        Allocated::Unsupported => {
            let context = || format!("allocate {} bytes for {}", end - start, path.display());
            file.set_len(end).io(context())?;
            write_zeroes(file, path, start, end)
        }
    }
}

enum Allocated {
    Done,
    /// The file system lacks the call, or it is not allowed.
    Unsupported,
}

/// Allocates the blocks of `start .. end` that are missing; no byte is changed.
fn fallocate(file: &File, path: &Path, start: u64, end: u64) -> Result<Allocated, PoolError> {
    let context = || format!("allocate {} bytes for {}", end - start, path.display());
    loop {
        return match rustix::fs::fallocate(file, FallocateFlags::empty(), start, end - start) {
            Err(Errno::INTR) => continue,
            Err(Errno::NOSPC | Errno::DQUOT) => Err(no_space(file, end - start)),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Allocated::Unsupported),
            other => other.map(|()| Allocated::Done).io(context()),
        };
    }
}

/// Bytes that the file system at `path` has free, if that can be told.
pub fn space_at(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn no_space(file: &File, needed: u64) -> PoolError {
    let available =
        rustix::fs::fstatvfs(file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    PoolError::NoSpace { needed, available }
}

/// Allocates the missing blocks of a sparse copy of a pool.
pub(super) fn fill_holes(file: &File, path: &Path, size: u64) -> Result<(), PoolError> {
    let stat = file.metadata().io(format!("stat {}", path.display()))?;
    let has_bytes = stat.blocks().saturating_mul(512) >= size;
    // Most file systems count blocks of their own as the file's. In memory they do not, and `fallocate` would look at
    // each page.
    if has_bytes
        && (memory_filesystem(file).is_some() || seek(file, path, SeekFrom::Hole(0), size)? >= size)
    {
        return Ok(());
    }
    match fallocate(file, path, 0, size) {
        Ok(Allocated::Unsupported) if !has_bytes => write_to_holes(file, path, size),
        // Blocks that were never written are told as holes, too, and there may be no other: zeroes would be written in
        // vain, and XFS asks for space before it looks.
        Err(PoolError::NoSpace { .. }) if has_bytes => Ok(()),
        other => other.map(drop),
    }
}

/// Writes zeroes to the holes of `0 .. size`, and to nothing else. A file system that compresses has fewer blocks than
/// bytes, and no hole; one that does not tell its holes leaves them.
fn write_to_holes(file: &File, path: &Path, size: u64) -> Result<(), PoolError> {
    let mut at = 0;
    while at < size {
        let hole = seek(file, path, SeekFrom::Hole(at), size)?;
        at = seek(file, path, SeekFrom::Data(hole), size)?;
        if hole < at {
            write_zeroes(file, path, hole, at)?;
        }
    }
    Ok(())
}

/// The next hole or data in the first `size` bytes of a file; `size` if there is none.
fn seek(file: &File, path: &Path, to: SeekFrom, size: u64) -> Result<u64, PoolError> {
    match rustix::fs::seek(file, to) {
        Err(Errno::NXIO) => Ok(size),
        other => Ok(other.io(format!("find the holes of {}", path.display()))?.min(size)),
    }
}

/// Allocates by writing. Not done where `fallocate` works: a block that was never written costs a
/// change of metadata with its first sync, but zeroes cost 3 s a GiB here, and leave the page
/// cache full of large folios, each of which a later sync of 64 bytes writes whole (measured on
/// ext4: 2 to 5 times the time of a sync). Pages are written shortly before they are filled
/// ([`Space::prepare`]).
fn write_zeroes(file: &File, path: &Path, start: u64, end: u64) -> Result<(), PoolError> {
    const CHUNK: u64 = 1 << 20;
    let zeroes = vec![0; CHUNK as usize];
    let mut at = start;
    while at < end {
        let len = CHUNK.min(end - at);
        let written = write_at(file, &zeroes[..len as usize], at);
        // The error may be the report of an earlier write, which the kernel makes once.
        match written.inspect_err(|_| sync_failure::lay(path)) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                ) =>
            {
                return Err(no_space(file, end - at));
            }
            other => other.io(format!("write zeroes to {}", path.display()))?,
        }
        at += len;
    }
    Ok(())
}

/// Makes the name of a file or directory durable.
///
/// # Errors
/// [`PoolError::Io`].
pub fn sync_directory(path: &Path) -> Result<(), PoolError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .io(format!("sync {}", directory.display()))
}

/// Allocates `old .. new` of a file whose first `old` bytes are a pool; if that fails the file is
/// as long as before. Durable at the next sync of the file. For an open pool, `file` is better not the description
/// that fences sync, which has to get every error of a write.
///
/// # Errors
/// [`PoolError::Truncated`] for a file that is shorter than the pool: it must not get its length back, which would
/// hide the loss. [`PoolError::NoSpace`], [`PoolError::Io`].
pub(super) fn extend(file: &File, path: &Path, old: u64, new: u64) -> Result<(), PoolError> {
    let len = file_len(file, path)?;
    if len < old {
        return Err(PoolError::Truncated { expected: old, found: len });
    }
    let extended = blocks(file, path, old, new);
    if extended.is_err() {
        // Blocks beyond the acknowledged size are useless.
        let _given_back = file.set_len(len.min(new).max(old)).is_ok();
    }
    extended
}

/// Bytes faulted in by one call: so few that other threads that map or fault do not wait long.
const CHUNK: u64 = 16 << 20;

/// True where pages are worth faulting in: not on a file, whose pages come from a disk, and where
/// a fault for writing makes a page dirty.
fn wants_faults(space: &Space) -> bool {
    !matches!(space.behaviour(), Behaviour::File)
}

/// Faults the range in, on two threads (the kernel zeroes or maps page by page).
pub(super) fn fault_in(space: &Space, start: u64, len: u64) {
    if !wants_faults(space) {
        return;
    }
    let never = AtomicBool::new(false);
    let middle = (len / 2).next_multiple_of(CHUNK).min(len);
    let fresh = |at, len| space.populate(at, len);
    std::thread::scope(|scope| {
        let second = || populate((start + middle, len - middle), &never, fresh);
        let builder = std::thread::Builder::new().name("pool-fault-in".to_owned());
        let alone = middle == len || builder.spawn_scoped(scope, second).is_err();
        populate((start, middle), &never, fresh);
        if alone {
            second();
        }
    });
}

fn populate((start, len): (u64, u64), stop: &AtomicBool, chunk: impl Fn(u64, u64)) {
    let end = start + len;
    let mut at = start;
    while at < end && !stop.load(Ordering::Relaxed) {
        let len = CHUNK.min(end - at);
        chunk(at, len);
        at += len;
    }
}

/// A pool up to this size is faulted in by the caller: a thread takes longer to start and to end.
const AT_ONCE: u64 = 256 << 10;

/// The access by which pages that were written before are faulted in. On a file in memory a read fault also maps the
/// surrounding pages, and for stores as well; on a DAX file a store to a page that was only read faults again.
fn access_of(space: &Space) -> Access {
    match space.behaviour() {
        Behaviour::Emulated(_) => Access::Read,
        _ => Access::Write,
    }
}

/// Held while a chunk is faulted in in the background: the devices of a matrix take turns, so that they
/// occupy at most one processor.
static TURN: Mutex<()> = Mutex::new(());

/// The number of [`FaultInHold`]s that exist.
static HOLDS: AtomicUsize = AtomicUsize::new(0);

/// How long faulting in sleeps before it checks again whether it is held.
const HELD: Duration = Duration::from_millis(10);

/// While it exists no pool is faulted in in the background: for a caller that opens several pools and still has to
/// read from others when the first ones are open.
#[derive(Debug)]
#[must_use = "it holds as long as it lives"]
pub struct FaultInHold(());

impl FaultInHold {
    /// Holds back faulting in from now on; a chunk that is under way is finished.
    pub fn begin() -> Self {
        HOLDS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for FaultInHold {
    fn drop(&mut self) {
        HOLDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Faults in an opened pool in the background. Ends when all pages are in, or when it is dropped
/// (which waits for one chunk), so that a closed pool is unlocked at once.
#[derive(Debug)]
pub(super) struct FaultIn {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FaultIn {
    /// None if it is done at once, or not worth it, or no thread can be started: pages are then faulted in as they are
    /// used. A small pool is faulted in when it returns, unless that is held.
    pub(super) fn start(space: &Arc<Space>) -> Option<Self> {
        if !wants_faults(space) {
            return None;
        }
        if space.len() <= AT_ONCE && HOLDS.load(Ordering::Relaxed) == 0 {
            space.populate_for(0, space.len(), access_of(space));
            return None;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (space, stopped) = (Arc::clone(space), Arc::clone(&stop));
        let fault_in = move || {
            let access = access_of(&space);
            populate((0, space.len()), &stopped, |at, len| {
                while HOLDS.load(Ordering::Relaxed) > 0 && !stopped.load(Ordering::Relaxed) {
                    std::thread::park_timeout(HELD);
                }
                let _turn = TURN.lock();
                if !stopped.load(Ordering::Relaxed) {
                    space.populate_for(at, len, access);
                }
            });
        };
        let thread = background::spawn("pool-fault-in", fault_in).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for FaultIn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It may be held.
            thread.thread().unpark();
            // It cannot panic; if it did, pages would be faulted in as they are used.
            let _ended = thread.join().is_ok();
        }
    }
}
