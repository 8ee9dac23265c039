//! Handling of bytes that cannot be read.
//!
//! A load from a page that the medium has lost (an uncorrectable error, or a file that was
//! truncated) does not return an error: the kernel ends the process with SIGBUS, silently. Three
//! remedies:
//!
//! - [`install_handler`]: a handler that reports the pool and the offset before the process ends
//!   with status [`EXIT_STATUS`]. It does not try to go on, since it cannot know what the thread
//!   was doing with the page.
//! - [`Pool::outlive`](crate::Pool::outlive): in such a pool the handler lets the thread go on, with
//!   zeroes. For one of several pools with the same contents; see below.
//! - [`Space::probe`](crate::Space::probe): lets the kernel read a page on the caller's behalf,
//!   which returns an error instead of a signal. For the verification of a pool.
//!
//! The handler may run at any instruction, so that it allocates nothing, locks nothing and calls
//! nothing but `write`, `mmap`, `pause` and `_exit`: mapped pools are registered in a fixed table of
//! atomics. A signal in a mapping can only come from a thread that uses the mapping, so that its
//! entry cannot be removed at the same time. A SIGBUS at any other address is left to the handler
//! that was installed before.
//!
//! # A pool that is outlived
//!
//! ```text
//!   a load or store faults ─▶ the pool is marked as lost ─▶ zeroes are mapped over all of it
//!     ─▶ the instruction runs again ─▶ … ─▶ the engine answers ─▶ the mark is looked at: an error
//! ```
//!
//! Zeroes are mapped over the whole pool, not only over the page: when a device fails, its other pages will fail,
//! too; no mapping of huge pages has to be split; there is one mapping afterwards and not one for each page; and
//! later stores cannot reach the file. The mark is set *before* the zeroes can be seen. So any thread that has seen
//! zeroes and checks the mark afterwards ([`Space::check_lost`]) finds it set.
//!
//! [`Space::check_lost`]: crate::Space::check_lost
//!
//! Obligations of the users of such a pool:
//!
//! - Nothing that was read, concluded or shown since the pool was marked may be used: after each call of
//!   an engine the mark is checked before the answer is used. `Space::fence` fails once the mark is set,
//!   so that no write is taken for durable.
//! - Any byte in the pool may become zero between two loads, behind a shared slice, too. The compiler
//!   assumes that a slice does not change; at most it loads a byte once or several times, and each
//!   load gives the byte or zero. So an offset, a length or a count must be loaded once, or be as safe
//!   to use when it is zero, as is required for a damaged pool in any case. Then the worst that an
//!   engine can do is give wrong answers, fail, or panic; this affects the pool and the engine's own
//!   memory, both of which are given up.
//!
//! The handler notices only accesses that fault: a file that is truncated and extended again between
//! two accesses reads as zeroes, without a signal.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Once};

/// The exit status of the process after a SIGBUS in a pool (`EX_SOFTWARE`).
pub const EXIT_STATUS: i32 = 70;

/// A page that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unreadable (poisoned) at offset {offset:#x}")]
pub struct PoisonedAt {
    /// The offset of the first byte that cannot be read, or of its system page.
    pub offset: u64,
}

/// A mapped pool, as the handler sees it. Free while `len` is 0.
struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
    /// Bytes from the start that are mapped; the rest is in reserve.
    mapped: AtomicUsize,
    /// The mark of a pool that is outlived; null otherwise.
    mark: AtomicPtr<AtomicU64>,
}

/// Whether a pool that is outlived was lost, and where that was detected: 0, or the offset plus
/// one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mark(Arc<AtomicU64>);

impl Mark {
    #[inline]
    pub(crate) fn check(&self) -> Result<(), LostAt> {
        // After all earlier loads of this thread.
        fence(Ordering::Acquire);
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            at => Err(LostAt { offset: at - 1 }),
        }
    }
}

/// A pool that is outlived was lost under its mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the medium is gone, found out at offset {offset:#x}")]
pub struct LostAt {
    /// The offset at which the loss was detected, in bytes.
    pub offset: u64,
}

impl From<LostAt> for io::Error {
    /// The error that a failing device returns.
    fn from(_: LostAt) -> Self {
        Self::from_raw_os_error(libc::EIO)
    }
}

/// The most pools in the table. Further pools are mapped without an entry; a SIGBUS in them ends the process
/// silently.
const ENTRIES: usize = 256;

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
        name_len: AtomicUsize::new(0),
        mapped: AtomicUsize::new(0),
        mark: AtomicPtr::new(ptr::null_mut()),
    }
}; ENTRIES];

/// Keeps a mapping in the table.
#[derive(Debug)]
pub(crate) struct Registered {
    entry: Option<usize>,
    name: Box<[u8]>,
    /// The mark that the entry points to, if it points to one.
    mark: Mark,
}

impl Registered {
    /// Registers the mapping of `path` at `start .. start + len`, which may be outlived with this mark.
    pub(crate) fn new(start: usize, len: usize, path: &Path, mark: Mark) -> Self {
        let mut name: Box<[u8]> = path.as_os_str().as_bytes().into();
        let free = |entry: &Entry| !entry.taken.swap(true, Ordering::AcqRel);
        let number = TABLE.iter().position(free);
        if let Some(entry) = number.and_then(|number| TABLE.get(number)) {
            entry.name.store(name.as_mut_ptr(), Ordering::Relaxed);
            entry.name_len.store(name.len(), Ordering::Relaxed);
            entry.start.store(start, Ordering::Relaxed);
            entry.len.store(len, Ordering::Release);
        }
        Self { entry: number, name, mark }
    }

    fn entry(&self) -> Option<&'static Entry> {
        self.entry.and_then(|number| TABLE.get(number))
    }

    /// Sets how many bytes from the start are mapped.
    pub(crate) fn set_mapped(&self, mapped: u64) {
        if let Some(entry) = self.entry() {
            entry.mapped.store(mapped as usize, Ordering::Release);
        }
    }

    /// The pool is outlived from now on; false if it has no entry, since there are too many pools.
    pub(crate) fn outlive(&self) -> bool {
        let Some(entry) = self.entry() else { return false };
        entry.mark.store(Arc::as_ptr(&self.mark.0).cast_mut(), Ordering::Release);
        true
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(entry) = self.entry() {
            entry.len.store(0, Ordering::Release);
            entry.mark.store(ptr::null_mut(), Ordering::Release);
            entry.mapped.store(0, Ordering::Release);
            entry.name_len.store(0, Ordering::Release);
            entry.taken.store(false, Ordering::Release);
        }
    }
}

impl Registered {
    /// The path, for messages.
    pub(crate) fn name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// The action that was installed before.
struct Previous(std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once before the handler is installed, only read after.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(std::cell::UnsafeCell::new(MaybeUninit::uninit()));

/// Installs the handler of SIGBUS; once per process, further calls do nothing.
///
/// # Errors
/// If the system refuses, which is not expected.
pub fn install_handler() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut installed = Ok(());
    ONCE.call_once(|| installed = install());
    installed
}

fn install() -> io::Result<()> {
    // SAFETY: `PREVIOUS` is written here alone, once, and before any handler of ours can read
    // it; the new action is zeroed, which is a valid one, and then filled in.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), (*PREVIOUS.0.get()).as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_bus_error(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, and SIGBUS has an address.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    for entry in &TABLE {
        let len = entry.len.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Relaxed);
        if address.wrapping_sub(start) < len {
            // A misaligned access would fault again.
            if code != libc::BUS_ADRALN && go_on(entry, start, (address - start) as u64) {
                return;
            }
            report(entry, (address - start) as u64);
        }
    }
    // SAFETY: `PREVIOUS` was filled before this handler was installed. The instruction that
    // faulted runs again under the earlier action.
    unsafe {
        libc::sigaction(libc::SIGBUS, (*PREVIOUS.0.get()).as_ptr(), ptr::null_mut());
    }
}

/// Marks a pool that is outlived as lost, and maps zeroes over it, so that the instruction that
/// faulted can run again; false if that is impossible, and the process must end.
fn go_on(entry: &Entry, start: usize, offset: u64) -> bool {
    let mark = entry.mark.load(Ordering::Acquire);
    if mark.is_null() {
        return false;
    }
    // SAFETY: the mark belongs to the mapping's `Registered`, which is dropped before the mapping;
    // and the thread that faulted still uses the mapping.
    let mark = unsafe { &*mark };
    // Before any thread can see a zero.
    let is_first = mark.compare_exchange(0, offset + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let mapped = entry.mapped.load(Ordering::Acquire);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: `start .. start + mapped` is the mapping of this pool alone, and is not unmapped while a
    // thread uses it. All references into it stay valid: they lead to memory of the same length, whose
    // bytes have become zero, for which the users of such a pool are prepared (see the module).
    // Several threads may do this one after the other: stores to a lost pool do not matter. It is one
    // system call, which may be made at any instruction; the thread's `errno` is restored.
    let at = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let at = libc::mmap(ptr::without_provenance_mut(start), mapped, protection, kind, -1, 0);
        *errno = before;
        at
    };
    let is_mapped = at != libc::MAP_FAILED && offset < mapped as u64;
    if is_mapped && is_first {
        say(entry, b": its medium is gone, found out at offset 0x", offset, b"; it is left out\n");
    }
    is_mapped
}

/// Reports the fault and ends the process. If several threads meet lost pages at once, the first
/// one reports; the others wait for the end, so that their lines do not mix.
fn report(entry: &Entry, offset: u64) -> ! {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if IS_SAID.swap(true, Ordering::AcqRel) {
        loop {
            // SAFETY: waits for a signal; may be called in a handler.
            unsafe { libc::pause() };
        }
    }
    say(entry, b": poisoned page at offset 0x", offset, b"; run coreplane verify\n");
    // SAFETY: may be called in a signal handler.
    unsafe { libc::_exit(EXIT_STATUS) }
}

/// Writes a line about a pool to the standard error.
fn say(entry: &Entry, what: &[u8], offset: u64, rest: &[u8]) {
    let mut digits = [0; 16];
    let offset = hex(offset, &mut digits);
    // SAFETY: the name lives as long as the entry, and the mapping that faulted keeps both alive; the other buffers
    // belong to this function and its callers. `write` may be called in a signal handler.
    unsafe {
        let name = std::slice::from_raw_parts(
            entry.name.load(Ordering::Relaxed),
            entry.name_len.load(Ordering::Relaxed),
        );
        for part in [b"pool ".as_slice(), name, what, offset, rest] {
            libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
    }
}

/// `number` in hexadecimal, without allocation.
fn hex(mut number: u64, digits: &mut [u8; 16]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
        if number == 0 || at == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_leading_zeroes() {
        for number in [0, 9, 0x10, 0xabc_def0, u64::MAX] {
            let mut digits = [0; 16];
            assert_eq!(hex(number, &mut digits), format!("{number:x}").as_bytes());
        }
    }
}
