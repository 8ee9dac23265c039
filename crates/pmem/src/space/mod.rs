//! A mapped range of memory in pages, and the only code that loads, stores, flushes or fences it.
//!
//! The role of a page is kept in DRAM, in one word per page ([`roles`]) with its published and its durable watermark.
//! The interface is safe because a handle to words is given out only for word pages, a slice only below the watermark
//! of a log page, and an appending [`PageWriter`] once per claim.
//!
//! The same type serves a persistent pool and a DRAM arena, so that the same index code works in
//! both: in DRAM nothing is flushed and nothing is traced.

mod block;
mod claim;
mod generations;
mod guard;
mod map;
mod page_bytes;
mod persist;
mod prefetch;
mod prepare;
mod probe;
mod recovery;
mod retirement;
mod roles;
pub(crate) mod rounds;
mod sync;
mod thread_number;
mod word;
mod writer;

pub use claim::Claim;
pub use guard::SpaceGuard;
pub use page_bytes::PageBytes;
pub use persist::{FenceMark, fence_mark};
pub use prepare::Preparation;
pub(crate) use prepare::{len_max, write_at};
pub use recovery::{Recovery, RecoveryGuard};
pub use sync::SyncError;
pub(crate) use thread_number::set_thread_number;
pub use thread_number::{ShortLived, thread_number};
pub use word::{Durable, Grade, Volatile, Word};
pub use writer::{PageWriter, Pen, WriteMode};

use crate::epoch::Guard;
use crate::media::{Behaviour, Trace};
use crate::order::{self, Instruction, LINE};
use crate::poison::{LostAt, Mark, Registered};
use crate::space::map::Mapping;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use roles::{Role, Roles};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use sync::Syncer;

/// A kind of access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// The range of page sizes; they must also be a power of two.
pub(crate) const PAGE_SIZES: std::ops::RangeInclusive<u32> = 1 << 10..=1 << 30;

/// How a [`Space`] is made.
#[derive(Debug)]
pub struct SpaceOptions {
    /// Bytes in a page; a power of two from 1 KiB to 1 GiB.
    pub page_size: u32,
    /// Address space to reserve for growth, in bytes.
    pub reserve: u64,
    /// The space has its own domain of epochs: log pages are read only with guards of [`Space::pin`], and no
    /// other readers delay the reuse of a page. For simulations, since all its readers share a lock.
    pub own_epochs: bool,
}

/// A mapped range in pages. All offsets are in bytes from its start.
pub struct Space {
    /// The entry in the table of the SIGBUS handler; dropped before the mapping.
    registered: OnceLock<Registered>,
    mapping: Mapping,
    /// Set if the space was lost and is outlived.
    lost: Mark,
    page_shift: u32,
    roles: Roles,
    behaviour: Behaviour,
    /// True if loads go through the trace of a simulator, or are delayed by an emulated medium.
    is_watched: bool,
    instruction: Instruction,
    syncer: Option<Syncer>,
    /// The mapped file: keeps its lock.
    backing: Option<Arc<std::fs::File>>,
    /// The same file through a separate open file description; none if it cannot be opened.
    preparing: OnceLock<Option<std::fs::File>>,
    /// The number of pages for which the kernel was given advice.
    told: AtomicU32,
    counters: Box<[CachePadded<Counter>]>,
    retired: Mutex<VecDeque<(u32, u64)>>,
    /// The space's own domain of epochs, if it has one.
    own: Option<Box<guard::Own>>,
    recovery: recovery::Phase,
}

/// Lines flushed and fences made by the threads that share the counter.
#[derive(Debug, Default)]
struct Counter {
    flushes: AtomicU64,
    fences: AtomicU64,
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space")
            .field("pool", &self.registered.get().map(Registered::name))
            .field("len", &self.len())
            .field("page_size", &self.page_size())
            .field("behaviour", &self.behaviour)
            .finish_non_exhaustive()
    }
}

impl Space {
    const COUNTERS: usize = 64;

    fn new(
        mapping: Mapping,
        options: &SpaceOptions,
        behaviour: Behaviour,
        backing: Option<Arc<std::fs::File>>,
    ) -> std::io::Result<Self> {
        let SpaceOptions { page_size, own_epochs, .. } = *options;
        let is_possible = page_size.is_power_of_two() && PAGE_SIZES.contains(&page_size);
        assert!(is_possible, "page size {page_size}");
        let count =
            |bytes: u64| usize::try_from(bytes / u64::from(page_size)).unwrap_or(usize::MAX);
        let roles = Roles::new(count(mapping.reserved()), count(mapping.len()), own_epochs)?;
        Ok(Self {
            mapping,
            lost: Mark::default(),
            page_shift: page_size.trailing_zeros(),
            roles,
            own: own_epochs.then(Box::default),
            instruction: if behaviour.flushes_lines() {
                order::chosen()
            } else {
                Instruction::None
            },
            syncer: backing.clone().filter(|_| behaviour.syncs_file()).map(Syncer::new),
            is_watched: matches!(behaviour, Behaviour::Traced(_) | Behaviour::Emulated(Some(_))),
            behaviour,
            backing,
            preparing: OnceLock::new(),
            told: AtomicU32::new(0),
            registered: OnceLock::new(),
            counters: (0..Self::COUNTERS).map(|_| CachePadded::default()).collect(),
            retired: Mutex::new(VecDeque::new()),
            recovery: recovery::Phase::default(),
        })
    }

    /// An arena of DRAM: nothing in it is ever durable, flushes and fences do nothing. Requests
    /// huge pages. `len` may grow up to `options.reserve`.
    ///
    /// # Errors
    /// If the address space cannot be reserved.
    pub fn dram(len: u64, options: &SpaceOptions) -> std::io::Result<Self> {
        let mapping = Mapping::anonymous(len, options.reserve, true)?;
        Self::new(mapping, options, Behaviour::Dram, None)
    }

    /// Memory of the crash simulator: every access goes through `trace`.
    ///
    /// # Errors
    /// If the address space cannot be reserved.
    pub fn traced(
        len: u64,
        options: &SpaceOptions,
        trace: Arc<dyn Trace>,
    ) -> std::io::Result<Self> {
        let mapping = Mapping::anonymous(len, options.reserve, false)?;
        Self::new(mapping, options, Behaviour::Traced(trace), None)
    }

    /// As [`Space::traced`], with the contents `bytes` that a simulated power cut has left.
    pub(crate) fn traced_with(
        bytes: &[u8],
        options: &SpaceOptions,
        trace: Arc<dyn Trace>,
    ) -> std::io::Result<Self> {
        let mapping = Mapping::holding(bytes, options.reserve)?;
        Self::new(mapping, options, Behaviour::Traced(trace), None)
    }

    /// A mapped file. `behaviour` determines how its stores become durable.
    ///
    /// # Errors
    /// If it cannot be mapped in this way.
    pub(crate) fn file(
        file: Arc<std::fs::File>,
        len: u64,
        options: &SpaceOptions,
        behaviour: Behaviour,
    ) -> std::io::Result<Self> {
        let mapping = Mapping::file(&file, len, options.reserve, behaviour.maps_sync())?;
        Self::new(mapping, options, behaviour, Some(file))
    }

    /// The mapped file.
    pub(crate) fn backing(&self) -> Option<Arc<std::fs::File>> {
        self.backing.clone()
    }

    /// Sets the name of the pool, for the message of a SIGBUS.
    pub(crate) fn set_name(&self, path: &Path) {
        let (start, len) = (self.mapping.at(0).addr(), self.mapping.reserved() as usize);
        let register = || Registered::new(start, len, path, self.lost.clone());
        self.registered.get_or_init(register).set_mapped(self.len());
    }

    /// Makes the process survive a loss of the medium: after a loss [`Space::check_lost`] fails. For
    /// a file with a name ([`Space::set_name`]). False if this is impossible.
    pub(crate) fn outlive(&self) -> bool {
        self.registered.get().is_some_and(Registered::outlive)
    }

    /// For a pool that is outlived ([`Pool::outlive`](crate::Pool::outlive)): fails if any bytes that
    /// this thread has read from it so far may be wrong. To be called before they are used. For any
    /// other space it never fails.
    ///
    /// # Errors
    /// [`LostAt`], from then on.
    #[inline]
    pub fn check_lost(&self) -> Result<(), LostAt> {
        self.lost.check()
    }

    /// Bytes mapped now.
    #[inline]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// The greatest size to which it can grow.
    pub fn reserved(&self) -> u64 {
        self.mapping.reserved()
    }

    /// True if nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in a page.
    #[inline]
    pub fn page_size(&self) -> u32 {
        1 << self.page_shift
    }

    /// Pages mapped now.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.len() >> self.page_shift).unwrap_or(u32::MAX)
    }

    /// Bytes of DRAM for the roles of the pages mapped now.
    pub fn dram_bytes(&self) -> u64 {
        u64::from(self.pages()) * size_of::<u64>() as u64
    }

    /// The page that contains `offset`; `u32::MAX` for an offset beyond all page numbers.
    #[inline]
    pub fn page_of(&self, offset: u64) -> u32 {
        u32::try_from(offset >> self.page_shift).unwrap_or(u32::MAX)
    }

    /// The offset at which `page` starts.
    #[inline]
    pub fn start_of(&self, page: u32) -> u64 {
        u64::from(page) << self.page_shift
    }

    /// How stores become durable in this space.
    pub fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }

    /// The flush instruction in use.
    pub fn instruction(&self) -> Instruction {
        self.instruction
    }

    /// Maps more of its file (which must have that length already) or of DRAM. Offsets and slices
    /// stay valid.
    ///
    /// # Errors
    /// If `len` is over the reserve, or the system refuses.
    pub fn grow(&self, len: u64) -> std::io::Result<()> {
        if let Behaviour::Traced(trace) = &self.behaviour
            && len > self.len()
        {
            trace.grow(len)?;
        }
        self.check_lost()?;
        self.mapping.grow(len, self.backing.as_deref(), self.behaviour.maps_sync())?;
        self.registered.get().iter().for_each(|it| it.set_mapped(self.len()));
        Ok(())
    }

    /// Faults in every page of the range so that no later access faults (best effort).
    pub fn populate(&self, offset: u64, len: u64) {
        self.populate_for(offset, len, Access::Write);
    }

    /// As [`Space::populate`], for accesses of this kind.
    pub(crate) fn populate_for(&self, offset: u64, len: u64, access: Access) {
        // Populating a lost pool would only waste memory.
        if self.check_lost().is_ok() {
            self.mapping.populate(offset, len, access);
        }
    }

    /// A handle to the 8-byte word at `offset`, if that is aligned and in a word page.
    #[inline]
    pub fn word<G: Grade>(&self, offset: u64) -> Option<Word<'_, G>> {
        if offset & 7 != 0 || !self.is_words(offset) {
            return None;
        }
        Some(Word::new(self, offset))
    }

    #[inline]
    fn is_words(&self, offset: u64) -> bool {
        // The full page number, as in `bytes`. A page with a role is mapped.
        self.roles.is_words(offset >> self.page_shift)
    }

    /// The eight words of the line at `offset` (64-aligned, in a word page), each loaded
    /// atomically, but not the line as a whole.
    #[inline]
    pub fn load_line(&self, offset: u64) -> Option<[u64; 8]> {
        if offset & 63 != 0 || !self.is_words(offset) {
            return None;
        }
        self.before_load(offset, LINE as u64, || {
            std::hint::black_box(self.atomic(offset).load(Ordering::Relaxed));
        });
        let line = self.mapping.at(offset);
        Some(std::array::from_fn(|at| {
            // SAFETY: as in `atomic`: one of the eight words of an aligned line, which is in the page
            // as a whole.
            unsafe { AtomicU64::from_ptr(line.add(8 * at).cast()) }.load(Ordering::Acquire)
        }))
    }

    /// The atomic at `offset`. The caller has checked alignment, bounds and role.
    #[inline]
    fn atomic(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset & 7 == 0 && offset + 8 <= self.len());
        debug_assert!(self.roles.role(self.page_of(offset)) == Role::Words);
        // SAFETY: every caller has checked that the word is aligned, mapped and in a page whose
        // role is `Words`: such a page is touched by atomics alone until it is released, which
        // takes a fresh claim, and mappings live as long as `self`.
        unsafe { AtomicU64::from_ptr(self.mapping.at(offset).cast()) }
    }

    /// The published bytes at `offset`; none if any of them is not in a log page below its
    /// watermark (the page was retired; the offset is wrong; or the page is under recovery or in a space with
    /// its own epochs, and the guard is not one of theirs). The slice does not change while the guard lives.
    #[inline]
    pub fn bytes<'g>(&'g self, guard: &'g Guard, offset: u64, len: u64) -> Option<&'g [u8]> {
        let within = offset & u64::from(self.page_size() - 1);
        // The full page number, for any offset: a truncated number could denote another page.
        let page = offset >> self.page_shift;
        let published = self.readable_with(guard, page)?;
        if within.checked_add(len)? > u64::from(published) {
            return None;
        }
        // SAFETY: a page has a role only if it is mapped, and no watermark is above its end, so that
        // `offset + len <= self.len()`. The bytes are below the watermark that the page had after the guard was
        // pinned: they were written before the watermark was raised (Release/Acquire), the page's writer writes only
        // above it, and the page is not claimed again before the guard is dropped (module `epoch`); the guard is of
        // the space's own domain if it has one (`recovered_bytes`). The page is cut only by a recovery that no guard
        // borrows, before any other reader can see it (`recovery`). The mapping outlives `'g` because `self` does.
        let bytes: &'g [u8] = unsafe {
            std::slice::from_raw_parts(self.mapping.at(offset), usize::try_from(len).ok()?)
        };
        self.before_load(offset, len, || {
            for line in bytes.chunks(LINE) {
                std::hint::black_box(line[0]);
            }
        });
        Some(bytes)
    }

    /// The bytes of a page, which may have any number, that can be read with this guard.
    #[inline(always)]
    fn readable_with(&self, guard: &Guard, page: u64) -> Option<u32> {
        match self.roles.readable(page)? {
            (published, false) => Some(published),
            (_, true) => self.recovered_bytes(page as u32, guard),
        }
    }

    /// Called before a load of durable bytes: a simulator records it, an emulated medium adds its
    /// latency.
    #[inline]
    fn before_load(&self, offset: u64, len: u64, touch: impl Fn()) {
        if self.is_watched {
            self.before_slow_load(offset, len, &touch);
        }
    }

    // Not inlined into the callers of a load.
    #[cold]
    fn before_slow_load(&self, offset: u64, len: u64, touch: &dyn Fn()) {
        match &self.behaviour {
            Behaviour::Traced(trace) => trace.load(offset, len, true),
            Behaviour::Emulated(Some(model)) => {
                model.read(offset, len, touch);
            }
            _ => {}
        }
    }

    /// The watermarks of a log page: bytes published, bytes durable.
    #[inline]
    pub fn watermarks(&self, page: u32) -> Option<(u32, u32)> {
        match self.roles.get(page)? {
            Role::Log { published, durable } => Some((published, durable)),
            _ => None,
        }
    }

    /// Raises the durable watermark of a log page: the caller has made the bytes below it durable.
    pub fn mark_durable(&self, page: u32, durable: u32) {
        self.roles.raise_durable(page, durable.min(self.page_size()));
    }
}

/// Adds without a locked instruction: the counter belongs to one thread, unless there are more than 64.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
