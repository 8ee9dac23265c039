//! The owner of a log page that is being filled, or of several in turn.

use super::Space;
use super::persist::Moment;
use crate::arch;
use crate::epoch::barrier;
use crate::media::Behaviour;
use crate::mutant;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// How an append reaches the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Plain stores, and a flush of the lines by the caller.
    Cached,
    /// Stores past the caches; durable at the next fence without a flush.
    NonTemporal,
}

/// Appends to one log page. The claim ensures one writer per page; appended bytes can be read only
/// once they are published, and never change after.
#[derive(Debug)]
pub struct PageWriter {
    pub(super) space: Arc<Space>,
    page: u32,
    start: u64,
    tail: u32,
    published: u32,
    /// When a thread last stored past the caches; none if there were no such stores since the last publication, or if
    /// they were ordered at once.
    past_caches: Option<Moment>,
    /// The buffer in which a record that goes past the caches is assembled; allocated when first needed.
    stage: Option<Box<Stage>>,
}

/// The state needed to write to one page after the other, whether a page is new or already begun.
#[derive(Debug)]
pub struct Pen {
    space: Arc<Space>,
    stage: Option<Box<Stage>>,
}

impl Pen {
    /// A pen for the pages of `space`.
    pub fn new(space: &Arc<Space>) -> Self {
        Self { space: Arc::clone(space), stage: None }
    }

    /// A writer for a log page without one, which appends behind the published bytes. These must
    /// end at a word boundary.
    ///
    /// # Errors
    /// The pen, if the page is not such a page.
    pub fn take_up(self, page: u32) -> Result<PageWriter, Self> {
        match self.space.roles.adopt_writer(page) {
            Some(published) => Ok(self.writer(page, published)),
            None => Err(self),
        }
    }

    /// A writer for a free page, as [`Space::claim_log`] returns it.
    ///
    /// # Errors
    /// The pen, if the page is not free.
    pub fn begin(self, page: u32) -> Result<PageWriter, Self> {
        if self.space.claim_for_log(page) { Ok(self.writer(page, 0)) } else { Err(self) }
    }

    fn writer(self, page: u32, tail: u32) -> PageWriter {
        let start = self.space.start_of(page);
        let (space, stage, published) = (self.space, self.stage, tail);
        PageWriter { space, page, start, tail, published, past_caches: None, stage }
    }
}

/// Bytes in all parts; saturates at the greatest number, for which no page has room.
#[inline]
fn len_of(parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |len: usize, part| len.saturating_add(part.len()))
}

/// Bytes that are assembled before they go past the caches.
const STAGE: usize = 1024;

#[derive(Debug)]
#[repr(align(64))]
struct Stage([u8; STAGE]);

impl PageWriter {
    pub(super) fn new(space: Arc<Space>, page: u32) -> Self {
        Pen { space, stage: None }.writer(page, 0)
    }

    /// Publishes everything appended so far, which the caller has made durable, and gives up the
    /// page.
    #[inline]
    pub fn finish(mut self) -> Pen {
        if self.space.fences_at_once() {
            self.order();
            self.space.roles.finish(self.page, self.tail);
            return self.into_pen();
        }
        self.publish();
        self.lay_down()
    }

    /// Publishes everything appended so far although it may not be durable yet, and gives up the
    /// page; [`Space::mark_durable`] follows when it is. No other thread may raise a watermark of
    /// the page meanwhile.
    #[inline]
    pub fn finish_early(mut self) -> Pen {
        if self.space.fences_at_once() {
            self.order();
            self.space.roles.finish_early(self.page, self.tail);
            return self.into_pen();
        }
        self.publish_early();
        self.lay_down()
    }

    /// Gives up the page, as if dropped, and keeps the state needed to write to another.
    pub fn lay_down(self) -> Pen {
        self.space.roles.drop_writer(self.page);
        self.into_pen()
    }

    /// The state needed to write to another page. The reference to the space is moved, without a
    /// change of its count: a locked instruction right after a fence waits for the medium, and the
    /// count is in a line that all writers share.
    #[inline]
    fn into_pen(self) -> Pen {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so that both fields have one owner; no other field needs a
        // drop.
        unsafe { Pen { space: ptr::read(&this.space), stage: ptr::read(&this.stage) } }
    }

    /// Frees a page of which nothing is published: no slice of it was ever given out, or the
    /// recovery that has cut it guarantees that none is left.
    pub fn abandon(mut self) {
        if self.published == 0 {
            if !mutant!("pmem.writer.abandon") {
                self.order();
            }
            self.space.roles.release(self.page);
            // The drop of `self` must not give up the page any more.
            self.page = u32::MAX;
        }
    }

    /// The page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Bytes appended.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> u32 {
        self.space.page_size() - self.tail
    }

    /// The offset at which the next append will start.
    pub fn next_offset(&self) -> u64 {
        self.start + u64::from(self.tail)
    }

    /// Appends the parts one after the other and pads with zeroes to a multiple of 8; returns the
    /// offset of the first byte, or none if they do not fit. Not visible before
    /// [`PageWriter::publish`]; durable after a flush and a fence.
    #[inline]
    pub fn append(&mut self, parts: &[&[u8]]) -> Option<u64> {
        let len = len_of(parts);
        let padded = len.checked_next_multiple_of(8)?;
        if padded > self.remaining() as usize {
            return None;
        }
        let offset = self.next_offset();
        let mut at = offset;
        for part in parts {
            self.copy(at, part);
            at += part.len() as u64;
        }
        let pad = [0; 8];
        self.copy(at, &pad[..padded - len]);
        self.tail += padded as u32;
        Some(offset)
    }

    /// Notes that `len` bytes at the tail have been written; the caller has checked that they are in the page.
    pub(super) fn advance(&mut self, len: u32) {
        self.tail += len;
    }

    /// Copies within the bounds that `append` has checked.
    #[inline]
    fn copy(&self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Behaviour::Traced(trace) = &self.space.behaviour {
            trace.store(at, bytes, true);
        }
        // SAFETY: `append` has checked that the bytes end within the page. They are above the
        // published watermark, so that no other thread reads them, and the caller holds `&mut self`
        // of the page's only writer. `bytes` cannot overlap: it is not above a watermark.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.space.mapping.at(at), bytes.len());
        }
    }

    /// As [`PageWriter::append`], past the caches: durable after a fence of this thread, without a
    /// flush. [`Space::append_mode`] returns whether this is faster.
    #[inline]
    pub fn append_nt(&mut self, parts: &[&[u8]]) -> Option<u64> {
        self.append_staged(parts, WriteMode::NonTemporal)
    }

    /// As [`PageWriter::append`], and each aligned word is stored as a whole, even where two parts
    /// meet: a power cut leaves either its old or its new value. [`PageWriter::append_nt`] does so,
    /// too.
    #[inline]
    pub fn append_in_words(&mut self, parts: &[&[u8]]) -> Option<u64> {
        self.append_staged(parts, WriteMode::Cached)
    }

    #[inline(always)]
    fn append_staged(&mut self, parts: &[&[u8]], mode: WriteMode) -> Option<u64> {
        let len = len_of(parts);
        let padded = len.checked_next_multiple_of(8)?;
        if padded > self.remaining() as usize {
            return None;
        }
        let offset = self.next_offset();
        if let ([whole], WriteMode::NonTemporal) = (parts, mode)
            && whole.len() == padded
        {
            self.store(whole, mode);
            return Some(offset);
        }
        let mut stage = self.stage.take().unwrap_or_else(|| Box::new(Stage([0; STAGE])));
        let mut staged = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(STAGE - staged));
                stage.0[staged..staged + piece.len()].copy_from_slice(piece);
                staged += piece.len();
                rest = after;
                if staged == STAGE {
                    self.store(&stage.0, mode);
                    staged = 0;
                }
            }
        }
        let whole = staged.next_multiple_of(8);
        stage.0[staged..whole].fill(0);
        self.store(&stage.0[..whole], mode);
        self.stage = Some(stage);
        Some(offset)
    }

    /// Stores whole words at the tail and advances it. The caller has checked that they fit.
    #[inline(always)]
    fn store(&mut self, bytes: &[u8], mode: WriteMode) {
        let (offset, len) = (self.next_offset(), bytes.len());
        // Before the bytes: their lines may not be in the cache yet, later stores wait for them, and
        // so would a load of the tail together with neighbouring fields.
        self.tail += len as u32;
        match mode {
            WriteMode::Cached => self.copy(offset, bytes),
            WriteMode::NonTemporal => {
                if let Behaviour::Traced(trace) = &self.space.behaviour {
                    trace.store_nt(offset, bytes);
                }
                // SAFETY: as in `copy`; tail and length are multiples of 8.
                unsafe { arch::copy_nt(self.space.mapping.at(offset), bytes.as_ptr(), len) };
                self.note_past_caches();
                self.space.note_nt(offset, len as u64);
            }
        }
    }

    /// Fills the page with `word` from the tail to its end; durable after a fence. This appends nothing: the next
    /// append overwrites it. False if the appended bytes do not end at a word boundary.
    pub fn fill_rest(&mut self, word: u64, mode: WriteMode) -> bool {
        let (from, tail) = (self.next_offset(), self.tail);
        if !tail.is_multiple_of(8) {
            return false;
        }
        let mut stage = self.stage.take().unwrap_or_else(|| Box::new(Stage([0; STAGE])));
        stage.0.as_chunks_mut().0.fill(word.to_le_bytes());
        while self.remaining() > 0 {
            self.store(&stage.0[..STAGE.min(self.remaining() as usize)], mode);
        }
        self.stage = Some(stage);
        if mode == WriteMode::Cached {
            self.flush_from(from);
        }
        self.tail = tail;
        true
    }

    /// True if every word of the page from the tail to its end is `word`, as after
    /// [`PageWriter::fill_rest`].
    pub fn is_filled(&self, word: u64) -> bool {
        let (from, len) = (self.next_offset(), self.remaining() as usize);
        if let Behaviour::Traced(trace) = &self.space.behaviour {
            trace.load(from, len as u64, true);
        }
        // SAFETY: the bytes end with the page, which is mapped, and lie above the published watermark,
        // where this writer alone stores, and only through `&mut self`.
        let rest = unsafe { std::slice::from_raw_parts(self.space.mapping.at(from), len) };
        let (words, tail) = rest.as_chunks();
        tail.is_empty() && words.iter().all(|it| *it == word.to_le_bytes())
    }

    /// Flushes the bytes appended from `offset` on.
    #[inline]
    pub fn flush_from(&self, offset: u64) {
        if !mutant!("pmem.writer.flush") {
            self.space.flush(offset, self.next_offset() - offset);
        }
    }

    /// Notes that this thread has stored past the caches.
    #[inline]
    fn note_past_caches(&mut self) {
        if !barrier::reaches_others() {
            // No other thread could order these stores later.
            return arch::fence();
        }
        let now = Moment::now();
        if let Some(before) = self.past_caches.replace(now)
            && !before.is_of_thread_of(now)
        {
            Self::order_of_others();
        }
    }

    /// Orders stores past the caches before the store that publishes them, which the processor may otherwise show
    /// first. The caller has mostly made a fence. That of another thread than the one that has stored orders nothing,
    /// and the writer may have come from there by an ordinary store, such as the end of a [`Lock`](crate::spin::Lock).
    #[inline]
    fn order(&mut self) {
        let Some(stored) = self.past_caches.take() else { return };
        let now = Moment::now();
        if !stored.is_of_thread_of(now) {
            Self::order_of_others();
        } else if stored == now && !mutant!("pmem.writer.order") {
            arch::fence();
        }
    }

    /// Orders the stores that other threads have made past the caches.
    #[cold]
    fn order_of_others() {
        if !mutant!("pmem.writer.order_of_others") {
            barrier::heavy();
        }
    }

    /// Publishes everything appended so far, which the caller has made durable.
    #[inline]
    pub fn publish(&mut self) {
        self.order();
        self.published = self.tail;
        self.space.roles.raise_both(self.page, self.tail);
    }

    /// Publishes everything appended so far although it may not be durable yet:
    /// [`Space::mark_durable`] follows when it is.
    #[inline]
    pub fn publish_early(&mut self) {
        self.order();
        self.published = self.tail;
        if mutant!("pmem.writer.published_is_durable") {
            self.space.roles.raise_both(self.page, self.tail);
        }
        self.space.roles.raise_published(self.page, self.tail);
    }

    /// Discards the bytes appended from `offset` on, if they are not published yet: the next append
    /// starts there. False if some of them are published, or if `offset` is in the middle of a word.
    pub fn rewind(&mut self, offset: u64) -> bool {
        let within = offset.wrapping_sub(self.start);
        let is_published = within < u64::from(self.published) && !mutant!("pmem.writer.rewind");
        if is_published || within > u64::from(self.tail) || !within.is_multiple_of(8) {
            return false;
        }
        self.tail = within as u32;
        true
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        self.space.roles.drop_writer(self.page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::SpaceOptions;

    /// Each of these threads is another one, also to its successor.
    fn elsewhere<R: Send>(run: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
    }

    /// None where no barrier reaches other threads.
    fn writer_beside_barriers() -> Option<(Arc<Space>, PageWriter)> {
        barrier::prepare();
        let options = SpaceOptions { page_size: 4096, reserve: 1 << 20, own_epochs: false };
        let space = Arc::new(Space::dram(1 << 16, &options).expect("a space"));
        let writer = space.claim_log(3).expect("a page");
        barrier::reaches_others().then_some((space, writer))
    }

    #[test]
    fn stores_past_the_caches_are_ordered_where_another_thread_publishes_them() {
        let Some((_space, mut writer)) = writer_beside_barriers() else { return };
        let store = |writer: &mut PageWriter| writer.append_nt(&[&[7; 8]]).is_some();
        let barriers = |writer: &mut PageWriter, run: &mut dyn FnMut(&mut PageWriter)| {
            let before = barrier::heavy_count();
            run(writer);
            barrier::heavy_count() - before
        };
        let own = barriers(&mut writer, &mut |writer| {
            assert!(store(writer) && store(writer));
            writer.publish();
        });
        assert_eq!(own, 0);
        assert!(elsewhere(|| store(&mut writer)));
        assert_eq!(barriers(&mut writer, &mut PageWriter::publish), 1);
        assert_eq!(
            barriers(&mut writer, &mut PageWriter::publish_early),
            0,
            "nothing is left to be ordered"
        );
        // The second thread publishes the stores of both.
        assert!(elsewhere(|| store(&mut writer)));
        let both = barriers(&mut writer, &mut |writer| {
            assert!(store(writer) && store(writer));
            writer.publish();
        });
        assert_eq!(both, 1);
        assert!(elsewhere(|| store(&mut writer)));
        let before = barrier::heavy_count();
        drop(writer.finish());
        assert_eq!(barrier::heavy_count() - before, 1);
    }

    /// Its next owner may store with the usual instructions.
    #[test]
    fn a_page_is_free_again_behind_what_was_stored_past_the_caches() {
        let Some((space, mut writer)) = writer_beside_barriers() else { return };
        assert!(elsewhere(|| writer.append_nt(&[&[7; 8]]).is_some()));
        let before = barrier::heavy_count();
        writer.abandon();
        assert_eq!(barrier::heavy_count() - before, 1);
        assert!(space.claim_log(3).is_some());
    }
}
