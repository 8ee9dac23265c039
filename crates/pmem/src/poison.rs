//! Bytes that cannot be read.
//!
//! A load from a page that the medium has lost (an uncorrectable error, or a file that someone
//! shortened) does not return an error: the kernel ends the process with SIGBUS, silently. Two
//! remedies:
//!
//! - [`install_handler`]: a handler that says which pool and offset it was before the process
//!   ends with status [`EXIT_STATUS`]. It does not try to go on: whatever the thread was doing
//!   with the page is unknown.
//! - [`Space::probe`](crate::Space::probe): asks the kernel to read a page on the caller's
//!   behalf, which returns an error instead of a signal. For whoever verifies a pool.
//!
//! The handler may run at any instruction, so that it allocates nothing, locks nothing and calls
//! nothing but `write`, `pause` and `_exit`: mapped pools are registered in a fixed table of
//! atomics. A signal in a mapping can only come from a thread that uses the mapping, so that the
//! entry it finds cannot be going away. A SIGBUS anywhere else is left to the handler that was
//! there before.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// With which the process ends after a SIGBUS in a pool (`EX_SOFTWARE`).
pub const EXIT_STATUS: i32 = 70;

/// A page that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unreadable (poisoned) at offset {offset:#x}")]
pub struct PoisonedAt {
    /// Of the first byte that cannot be read, or of the system page that it is in.
    pub offset: u64,
}

/// A mapped pool, as the handler sees it. Free while `len` is 0.
struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
}

/// Pools beyond this many are mapped all the same; a SIGBUS in them ends the process silently.
const ENTRIES: usize = 256;

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
        name_len: AtomicUsize::new(0),
    }
}; ENTRIES];

/// Keeps a mapping in the table.
#[derive(Debug)]
pub(crate) struct Registered {
    entry: Option<usize>,
    name: Box<[u8]>,
}

impl Registered {
    /// The mapping of `path` at `start .. start + len`.
    pub(crate) fn new(start: usize, len: usize, path: &Path) -> Self {
        let mut name: Box<[u8]> = path.as_os_str().as_bytes().into();
        let free = |entry: &Entry| !entry.taken.swap(true, Ordering::AcqRel);
        let number = TABLE.iter().position(free);
        if let Some(entry) = number.and_then(|number| TABLE.get(number)) {
            entry.name.store(name.as_mut_ptr(), Ordering::Relaxed);
            entry.name_len.store(name.len(), Ordering::Relaxed);
            entry.start.store(start, Ordering::Relaxed);
            entry.len.store(len, Ordering::Release);
        }
        Self { entry: number, name }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.and_then(|number| TABLE.get(number)) {
            entry.len.store(0, Ordering::Release);
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

/// The action that was there before.
struct Previous(std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once before the handler is installed, only read after.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(std::cell::UnsafeCell::new(MaybeUninit::uninit()));

/// Installs the handler of SIGBUS; once per process, further calls do nothing.
///
/// # Errors
/// If the system refuses, which it does not.
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
    let address = unsafe { (*info).si_addr() }.addr();
    for entry in &TABLE {
        let len = entry.len.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Relaxed);
        if address.wrapping_sub(start) < len {
            report(entry, (address - start) as u64);
        }
    }
    // SAFETY: `PREVIOUS` was filled before this handler was installed. The instruction that
    // faulted runs again under the earlier action.
    unsafe {
        libc::sigaction(libc::SIGBUS, (*PREVIOUS.0.get()).as_ptr(), ptr::null_mut());
    }
}

/// Says what happened and ends the process. Of several threads that meet lost pages at once the
/// first says it; the others wait for the end, so that no line is cut in two by another.
fn report(entry: &Entry, offset: u64) -> ! {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if IS_SAID.swap(true, Ordering::AcqRel) {
        loop {
            // SAFETY: waits for a signal; may be called in a handler.
            unsafe { libc::pause() };
        }
    }
    let mut digits = [0; 16];
    let offset = hex(offset, &mut digits);
    // SAFETY: the name lives as long as the entry, and the mapping that faulted keeps both; the
    // other buffers are ours. `write` and `_exit` may be called in a signal handler.
    unsafe {
        let name = std::slice::from_raw_parts(
            entry.name.load(Ordering::Relaxed),
            entry.name_len.load(Ordering::Relaxed),
        );
        for part in [
            b"pool ".as_slice(),
            name,
            b": poisoned page at offset 0x",
            offset,
            b"; run coreplane verify\n",
        ] {
            libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
        libc::_exit(EXIT_STATUS)
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
